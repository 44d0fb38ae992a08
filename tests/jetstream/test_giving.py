"""A broker that stops offers its shards to the other brokers, by itself: its shards and the others are simulated."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from broker.jetstream.owners.giving import Giving, NotTaken
from broker.jetstream.owners.peers import Peers
from broker.jetstream.owners.roster import Line
from broker.jetstream.wire.error_table import ApiErrors
from broker.jetstream.wire.errors import ApiError
from broker.server.routing.router import Router
from broker.storage.format.header import Position
from tests.manual_clock import ManualClock

SEAL = Position(3, 9)


class Shards:
    """The shards of the broker that stops. ``given`` has the shards that other brokers took."""

    count = 4

    def __init__(self, *numbers: int) -> None:
        self._numbers = dict.fromkeys(numbers, 0)
        self.given: list[int] = []

    def committed(self) -> dict[int, int]:
        return dict(self._numbers)

    async def write_checkpoint(self, number: int) -> None:
        """Do nothing."""

    async def give(self, number: int, to: str, take: Callable[[Position | None], Awaitable[Any]]) -> None:
        del self._numbers[number]  # it is sealed, and taken back only later
        await take(SEAL)
        self.given.append(number)

    async def take(self, number: int, seconds: float, seal: Position | None = None) -> None:
        raise NotTaken

    def leave(self, number: int, seconds: float) -> None:
        """Do nothing."""


class Other:
    """Another broker, whose answer to an offer is ``answer(number)``."""

    def __init__(self, peers: Peers, name: str, answer: Callable[[int], None]) -> None:
        self.line = Line(name, name, "auto", {})
        self.offered: list[tuple[int, Any]] = []
        self._answer = answer
        peers.answer(f"BROKER.{name}", self._asked)
        peers.hint("LOAD", **self.line.to_json())

    async def _asked(self, question: dict[str, Any]) -> dict[str, Any]:
        if question["do"] == "take":
            self.offered.append((question["shard"], question["seal"]))
            self._answer(question["shard"])
        return {}


def takes(_: int) -> None:
    """Take every shard."""


def takes_none(_: int) -> None:
    """Take no shard."""
    raise ApiError.of(ApiErrors.CLUSTER_NO_PEERS, "the store does not answer")


@asynccontextmanager
async def stopping(shards: Shards) -> AsyncIterator[tuple[Peers, Giving]]:
    """Yield a broker that is about to stop, and the way to it."""
    clock = ManualClock()
    peers = Peers(Router(clock, random.Random(1), asyncio.get_running_loop().call_soon), "store")

    async def prepare(_: int, __: float) -> None:
        """Do nothing."""

    giving = Giving(shards, peers, Line("me", "me", "auto", {}), clock, store={}, why_fixed=lambda _: "",
                    interval_ns=15_000_000_000, prepare=prepare)
    giving.start()
    yield peers, giving
    await peers.stop()


async def test_a_broker_that_takes_nothing_does_not_keep_the_shards_from_others() -> None:
    """The first heir takes no shard after all. It is asked once; another broker gets the same shard, and all others."""
    shards = Shards(1, 2, 3)
    async with stopping(shards) as (peers, giving):
        bad, good = Other(peers, "b", takes_none), Other(peers, "c", takes)
        await giving.stop()
    assert bad.offered == [(1, [*SEAL])]
    assert good.offered == [(number, [*SEAL]) for number in (1, 2, 3)]
    assert shards.given == [1, 2, 3]


async def test_each_broker_is_asked_once_if_none_takes_a_shard() -> None:
    """If the store fails, a stop waits once for each broker, and not for each shard."""
    shards = Shards(1, 2)
    async with stopping(shards) as (peers, giving):
        others = [Other(peers, name, takes_none) for name in "bc"]
        await giving.stop()
    assert [other.offered for other in others] == [[(1, [*SEAL])], [(1, [*SEAL])]]
    assert not shards.given


async def test_a_third_broker_that_was_faster_keeps_its_shard() -> None:
    """The shard that the heir could not take is offered to nobody else, and the heir is not asked again."""
    shards = Shards(1, 2)
    async with stopping(shards) as (peers, giving):
        def lost(number: int) -> None:
            peers.answer(f"SHARD.{number}", lambda _: asyncio.sleep(0, {}))
            takes_none(number)

        heir, other = Other(peers, "b", lost), Other(peers, "c", takes)
        await giving.stop()
    assert heir.offered == [(1, [*SEAL])]
    assert other.offered == [(2, [*SEAL])]
