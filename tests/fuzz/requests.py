"""A player of JetStream requests to one server, in an account that only this scenario uses."""

from __future__ import annotations

import re
from typing import Any

from tests.fuzz.scenario import Config, Scenario
from tests.fuzz.servers import Server
from tests.jetstream.differential.player import Player

__all__ = ["CONFIG", "FLAGS", "USERS", "play"]

USERS = tuple(f"f{number}" for number in range(8))

CONFIG: Config = {"accounts": {user.upper(): {"users": [{"user": user, "password": user}], "jetstream": "enabled"}
                               for user in USERS},
                  "jetstream": {"sync_interval": "2m"}}
FLAGS = ("-sd", "{store}")

_RESTORE = re.compile(r"(\$JS\.SNAPSHOT\.RESTORE\.\w+\.)[0-9A-Za-z]{22}")


async def play(server: Server, scenario: Scenario, slowness: int, user: str) -> list[tuple[str, Any]]:
    """Play a scenario, and return each step with its result; the account is empty before and after."""
    async with Player(server.port, user) as player:
        player.slowness = slowness
        await player.clear()
        played = await player.play("\n".join(line for _, line in scenario.steps))
        await player.clear()
    memory = any('"storage": "memory"' in line for _, line in scenario.steps)
    return [(step, _shown(result, memory)) for step, result in played]


def _shown(result: Any, memory: bool) -> Any:
    """Return ``result`` as a value that equals another server's."""
    if isinstance(result, Exception):
        return repr(result)
    if isinstance(result, dict):
        # nats-server counts differently in memory; here both stores count as its file store does.
        return {name: name if memory and name in ("bytes", "memory") else _shown(inner, memory)
                for name, inner in result.items()}
    if isinstance(result, str):
        return _RESTORE.sub(r"\1NUID", result)
    return [_shown(inner, memory) for inner in result] if isinstance(result, list) else result
