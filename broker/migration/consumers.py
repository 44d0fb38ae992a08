"""Consumers on both sides: whether one of them has gone on since a stream was moved."""

from __future__ import annotations

from typing import Any

from broker.migration.login import Connection

__all__ = ["Infos", "consumer_infos", "gone_on"]

Infos = dict[str, dict[str, Any]]
"""What the API says of each of a stream's consumers, by name."""


async def consumer_infos(connection: Connection, stream: str) -> Infos:
    """Raises: ApiRefusal; CannotMigrate."""
    found: Infos = {}
    while True:
        page = await connection.api(f"CONSUMER.LIST.{stream}", {"offset": len(found)})
        infos = page.get("consumers") or []
        found |= {info["name"]: info for info in infos}
        if not infos or len(found) >= int(page.get("total", 0)):
            return found


def gone_on(here: Infos, there: Infos) -> list[str]:
    """The durable consumers ``here`` that ``there`` does not have, or not as far; each in words."""
    said = []
    for name, info in here.items():
        if not info["config"].get("durable_name"):
            continue
        if name not in there:
            said.append(f"consumer {name} is new")
        elif any(one > other for one, other in zip(_places(info), _places(there[name]), strict=True)):
            said.append(f"consumer {name} has gone on")
    return said


def _places(info: dict[str, Any]) -> tuple[int, int]:
    return int(info["delivered"]["consumer_seq"]), int(info["ack_floor"]["stream_seq"])
