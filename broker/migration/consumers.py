"""Consumers on both sides: find those that have advanced since their stream was moved."""

from __future__ import annotations

from typing import Any

from broker.client.connection import Connection

__all__ = ["Infos", "advanced_consumers", "consumer_infos"]

Infos = dict[str, dict[str, Any]]
"""The API's infos of a stream's consumers, by name."""


async def consumer_infos(connection: Connection, stream: str) -> Infos:
    """List the infos of all consumers of a stream. Raises: ApiRefusal; ConnectionFailed."""
    found: Infos = {}
    while True:
        page = await connection.api(f"CONSUMER.LIST.{stream}", {"offset": len(found)})
        infos = page.get("consumers") or []
        found |= {info["name"]: info for info in infos}
        if not infos or len(found) >= int(page.get("total", 0)):
            return found


def advanced_consumers(here: Infos, there: Infos) -> list[str]:
    """Find the durable consumers of ``here`` that are missing or behind in ``there``; return a text about each."""
    texts = []
    for name, info in here.items():
        if not info["config"].get("durable_name"):
            continue
        if name not in there:
            texts.append(f"consumer {name} is new")
        elif any(one > other for one, other in zip(_progress(info), _progress(there[name]), strict=True)):
            texts.append(f"consumer {name} has advanced")
    return texts


def _progress(info: dict[str, Any]) -> tuple[int, int]:
    return int(info["delivered"]["consumer_seq"]), int(info["ack_floor"]["stream_seq"])
