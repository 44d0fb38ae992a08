"""The roster: the brokers of one store that are in reach, and the shards that each of them has.

Each broker publishes its own line once a second (``Line``). A line is a hint: it decides who is asked, and the broker
that is asked decides.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

if TYPE_CHECKING:
    from broker.base.clock import Clock
    from broker.jetstream.bus import Subscription
    from broker.jetstream.owners.peers import Peers

__all__ = ["INTERVAL_SECONDS", "Line", "Roster"]

T = TypeVar("T")

LOAD: Final = "LOAD"
INTERVAL_SECONDS: Final = 1.0
_FRESH_NS: Final = 3_500_000_000
"""A broker whose last line is older is not in reach."""
_MOST: Final = 1024
"""Brokers in a roster."""


class Line(NamedTuple):
    """A broker. ``own``: the shards that its configuration names, or "auto"; ``shards``: the bytes a second that each
    of its shards commits; ``leaving``: it is about to stop, and takes no more shards; ``busy``: the number of its busy
    shards, with which it shares ``commit_interval``."""

    id: str
    name: str
    own: str | tuple[int, ...]
    shards: Mapping[int, float]
    leaving: bool = False
    busy: float = 0.0

    @property
    def bytes_per_second(self) -> float:
        return sum(self.shards.values())

    def to_json(self) -> dict[str, Any]:
        return {"id": self.id, "name": self.name, "own": self.own, "leaving": self.leaving, "busy": self.busy,
                "shards": {str(number): rate for number, rate in self.shards.items()}}

    @staticmethod
    def from_json(members: Mapping[str, Any]) -> Line:
        """Raises: KeyError, TypeError, ValueError, AttributeError: it is not a line."""
        own = members["own"]
        return Line(str(members["id"]), str(members["name"]), own if own == "auto" else tuple(map(int, own)),
                    {int(number): float(rate) for number, rate in members["shards"].items()}, bool(members["leaving"]),
                    float(members.get("busy", 0.0)))


class Roster:
    """Publishes this broker's line, which ``own_line`` returns, and keeps those of the others."""

    def __init__(self, peers: Peers, own_id: str, own_line: Callable[[], Line], clock: Clock) -> None:
        self._peers = peers
        self._own_id = own_id
        self._own_line = own_line
        self._clock = clock
        self._lines: dict[str, tuple[Line, int]] = {}
        """The other brokers by id, each with the time at which its line came."""
        self._line_came = asyncio.Event()
        """Set when a line of another broker comes."""
        self._subscription: Subscription | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to publish and to listen."""
        self._subscription = self._peers.listen(LOAD, self._on_line)
        self._task = asyncio.get_running_loop().create_task(self._keep_publishing(), name="publish the load")

    async def stop(self) -> None:
        """Stop both."""
        if self._subscription is not None:
            self._peers.end(self._subscription)
            self._subscription = None
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def publish(self) -> None:
        """Publish this broker's line now: it has changed."""
        self._peers.hint(LOAD, **self._own_line().to_json())

    def others(self) -> list[Line]:
        """Return the other brokers that are in reach and stay."""
        oldest_ns = self._clock.monotonic_ns() - _FRESH_NS
        return [line for line, at_ns in self._lines.values() if at_ns >= oldest_ns and not line.leaving]

    async def choose(self, chosen: Callable[[list[Line]], T | None]) -> T | None:
        """Return the result of ``chosen`` for the other brokers; None if it has none within a second.

        It is called again for each line that comes: a broker that has just connected publishes its line within that
        time, and if this broker has just connected, all others do.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(INTERVAL_SECONDS):
                while (found := chosen(self.others())) is None:
                    self._line_came.clear()
                    await self._line_came.wait()
                return found
        return None

    def _on_line(self, members: dict[str, Any]) -> None:
        line = Line.from_json(members)
        if line.id == self._own_id:
            return
        new = line.id not in self._lines
        if new and len(self._lines) >= _MOST:
            self._lines.pop(next(iter(self._lines)))
        self._lines.pop(line.id, None)
        self._lines[line.id] = line, self._clock.monotonic_ns()
        self._line_came.set()
        if new:
            self.publish()  # so that a broker that starts knows the others at once

    async def _keep_publishing(self) -> None:
        while True:
            self.publish()
            await asyncio.sleep(INTERVAL_SECONDS)
