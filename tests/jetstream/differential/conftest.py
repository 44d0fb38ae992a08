"""Plays a scenario of player.py to the real nats-server and to the broker, and compares what comes back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import pytest
import pytest_asyncio

from tests.harness import BrokerProcess, NatsServerProcess
from tests.jetstream.differential import coverage
from tests.jetstream.differential.player import PATIENT_SECONDS, SILENT_SECONDS, Player
from tests.jetstream.differential.scenarios import ALL

__all__ = ["compare", "players"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def players(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Player, ...]]:
    """The real one, ours, and ours with a cache that holds next to nothing."""
    base = tmp_path_factory.mktemp("differential")
    async with AsyncExitStack() as stack:
        real = await stack.enter_async_context(NatsServerProcess("-js", "-sd", str(base / "real")))
        ours = await stack.enter_async_context(BrokerProcess("-js", "-sd", str(base / "ours")))
        tiny = await stack.enter_async_context(BrokerProcess(
            "-js", "-sd", str(base / "tiny"), environ={"JETBLOCK_CACHE_BYTES": "4KiB"}))
        yield tuple([await stack.enter_async_context(Player(server.port)) for server in (real, ours, tiny)])


@pytest.fixture
def compare(players: tuple[Player, ...]) -> Callable[[str], Awaitable[None]]:
    """Plays a scenario by its name, and fails at the first step whose results differ.

    nats-server's goroutines race: a difference gets two more tries, and only one found each time is reported.
    """
    async def compared(name: str) -> None:
        for last_try in (False, False, True):
            for player in players:
                player.silent_seconds = PATIENT_SECONDS if last_try else SILENT_SECONDS
            await asyncio.gather(*(player.clear() for player in players))
            expected, *got = await asyncio.gather(*(player.play(ALL[name]) for player in players))
            if last_try or all(one == expected for one in got):
                break
        for one in got:
            for (step, theirs), (_, ours) in zip(expected, one, strict=True):
                assert ours == theirs, step
        real, *others = players
        for player in others:
            assert player.broken <= real.broken, "messages that are not as their schemas say"
        assert not coverage.unkept(name, expected), "coverage.py says that nats-server sends this"

    return compared
