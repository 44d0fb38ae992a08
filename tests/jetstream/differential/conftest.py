"""Plays a scenario of player.py to the real nats-server and to the broker, and compares what comes back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import pytest
import pytest_asyncio

from tests.harness import BrokerProcess, NatsServerProcess
from tests.jetstream.differential import coverage, player
from tests.jetstream.differential.player import Played, Player, steps_of
from tests.jetstream.differential.scenarios import ALL

__all__ = ["compare", "players"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def players(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Player, ...]]:
    """Yield players of nats-server, the broker, and the broker with a cache that holds almost nothing."""
    base = tmp_path_factory.mktemp("differential")
    async with AsyncExitStack() as stack:
        real = await stack.enter_async_context(NatsServerProcess("-js", "-sd", str(base / "real")))
        ours = await stack.enter_async_context(BrokerProcess("-js", "-sd", str(base / "ours")))
        tiny = await stack.enter_async_context(BrokerProcess(
            "-js", "-sd", str(base / "tiny"), environ={"JETBLOCK_CACHE_BYTES": "4KiB"}))
        yield tuple([await stack.enter_async_context(Player(server.port)) for server in (real, ours, tiny)])


@pytest.fixture
def compare(players: tuple[Player, ...]) -> Callable[[str], Awaitable[None]]:
    """Return a function that plays a scenario by its name, and fails at the first step whose results differ."""
    async def compared(name: str) -> None:
        async def play() -> list[Played]:
            await asyncio.gather(*(one.clear() for one in players))
            return await asyncio.gather(*(one.play(steps_of(ALL[name])) for one in players))

        expected = await player.compare(players, play)
        real, *others = players
        for one in others:
            assert one.broken <= real.broken, "messages that are not as their schemas say"
        assert not coverage.unkept(name, expected), "coverage.py says that nats-server sends this"

    return compared
