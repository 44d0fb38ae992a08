"""Scenarios beside the real nats-streaming-server: a client must see the same."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
import pytest_asyncio

from tests.harness import BrokerProcess, NatsStreamingProcess
from tests.streaming.scenarios import SCENARIOS, World

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.shows("streaming.connect", "streaming.publish", "streaming.start", "streaming.acks",
                      "streaming.durable", "streaming.queue")]

_AT_ONCE = 12
_TRIES = 3
"""A busy machine may delay one of two servers; a difference counts if it comes back."""

Servers = tuple[str, str]


async def play(url: str, name: str, attempt: int) -> list[Any]:
    """Play a scenario to a server; return its notes, with the error that ended it, if there is one."""
    world = World(url, f"{name}-{attempt}")
    try:
        async with asyncio.timeout(60):
            await SCENARIOS[name](world)
    except Exception as error:
        world.note("failed", type(error).__name__, traceback.format_exc(limit=-2).splitlines()[1:3])
    finally:
        await world.close()
    return world.notes


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def played(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[dict[str, tuple[list[Any], list[Any]]]]:
    """Play all scenarios to both servers, many at once; a scenario mostly waits."""
    folder = tmp_path_factory.mktemp("streaming")
    async with AsyncExitStack() as stack:
        peer = await stack.enter_async_context(
            NatsStreamingProcess("-store", "file", "-dir", str(folder / "peer"), "-mc", "0"))
        ours = await stack.enter_async_context(
            BrokerProcess("-js", "-sd", str(folder / "ours"), "-cid", "test-cluster", "-mc", "0"))
        turns = asyncio.Semaphore(_AT_ONCE)

        async def both(name: str) -> tuple[list[Any], list[Any]]:
            found: tuple[list[Any], list[Any]] = ([], [])
            async with turns:
                for attempt in range(_TRIES):
                    one, other = await asyncio.gather(play(peer.url, name, attempt), play(ours.url, name, attempt))
                    found = (one, other)
                    if one == other and not any("failed" in note[:1] for note in one if isinstance(note, tuple)):
                        break
            return found

        yield dict(zip(SCENARIOS, await asyncio.gather(*map(both, SCENARIOS)), strict=True))


@pytest.mark.parametrize("name", SCENARIOS)
async def test_a_client_sees_the_same(played: dict[str, tuple[list[Any], list[Any]]], name: str) -> None:
    """Answers, errors, deliveries and redeliveries of both servers are equal."""
    peer, ours = played[name]
    assert ours == peer
    assert peer
