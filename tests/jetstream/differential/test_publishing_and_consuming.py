"""The same publishing and consuming on the real nats-server and on the broker gives the same results.

player.py describes the scenarios, and what is compared: deliveries, statuses to the byte, and what consumers and
streams report after each step.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
import pytest_asyncio

from tests.harness import BrokerProcess, NatsServerProcess
from tests.jetstream.differential import (
    advisories,
    batches,
    consuming,
    copying,
    counters,
    coverage,
    fast_batches,
    priorities,
    publishing,
    refusals,
    retention,
    schedules,
    ttls,
    upstream,
)
from tests.jetstream.differential.player import PATIENT_SECONDS, SILENT_SECONDS, Player

pytestmark = pytest.mark.asyncio(loop_scope="module")

SCENARIOS = consuming.SCENARIOS | {f"{kind}: {name}": one
                                   for kind, found in (
                                       ("publishing", publishing),
                                       ("refusals", refusals),
                                       ("advisories", advisories),
                                       ("batches", batches),
                                       ("fast batches", fast_batches),
                                       ("TTLs", ttls),
                                       ("counters", counters),
                                       ("schedules", schedules),
                                       ("priorities", priorities),
                                       ("retention", retention),
                                       ("upstream", upstream),
                                       ("copying", copying),
                                   )
                                   for name, one in found.SCENARIOS.items()}


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


@pytest.mark.parametrize("name", SCENARIOS)
async def test_all_is_as_on_nats_server(players: tuple[Player, ...], name: str) -> None:
    """nats-server's goroutines race: a difference gets a second try, and only one found twice is reported."""
    for last_try in (False, True):
        for player in players:
            player.silent_seconds = PATIENT_SECONDS if last_try else SILENT_SECONDS
        await asyncio.gather(*(player.clear() for player in players))
        expected, *got = await asyncio.gather(*(player.play(SCENARIOS[name]) for player in players))
        if last_try or all(one == expected for one in got):
            break
    for one in got:
        for (step, theirs), (_, ours) in zip(expected, one, strict=True):
            assert ours == theirs, step
    assert not coverage.unkept(name, expected), "coverage.py says that nats-server sends this"
