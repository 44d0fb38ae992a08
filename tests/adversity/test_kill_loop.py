"""kill -9 at random moments, repeatedly, with a checker of acknowledged publishes, deliveries and acks.

``load`` has the clients and their checks. The seed of the moments is printed on failure and read from
JETBLOCK_KILL_SEED; JETBLOCK_KILL_ROUNDS sets the number of kills of the long variants.
"""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path

import pytest
from nats.js.api import StreamConfig

from tests.adversity.clients import connect, raise_ended, running
from tests.adversity.load import STREAM, Load
from tests.harness import BrokerProcess
from tests.stores import Store, make_store


async def kill_rounds(store: Store, rounds: int, **environ: str) -> int:
    """Kill a broker under load, and check what its clients know. Returns: how many starts have replayed a journal."""
    seed = int(os.environ.get("JETBLOCK_KILL_SEED", random.SystemRandom().randrange(1 << 32)))
    print(f"JETBLOCK_KILL_SEED={seed}")
    rng = random.Random(seed)
    replays = 0
    async with BrokerProcess("--store", store.url, environ={**store.environ, **environ}) as broker:
        load = Load(rng, broker.url)
        nc = await connect(broker.url)
        await nc.jetstream().add_stream(StreamConfig(name=STREAM, subjects=["kill.>"]))
        await nc.close()
        async with running(load.stop, load.clients()) as tasks:
            for _ in range(rounds):
                load.moved.clear()
                async with asyncio.timeout(30):
                    await load.moved.wait()  # The broker acknowledges publishes again.
                await asyncio.sleep(rng.random() * 0.5)
                raise_ended(tasks)
                await broker.kill()
                load.killed()
                await broker.start()
                replays += any("came from its journal" in line for line in broker.stderr)
        held, last = await load.stored()
        load.check(held, last)
    print(f"{rounds} kills: {load}, {last} stored; {replays} journals replayed")
    assert len(load.history.acked) > rounds
    return replays


@pytest.mark.shows("publish.durable", "store.kill")
@pytest.mark.timeout(300)
async def test_6_kills_on_a_directory(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    await kill_rounds(make_store("directory", tmp_path, request), 6)


@pytest.mark.shows("store.sync_interval")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("interval", ["2m", "50ms"])
async def test_kills_of_a_broker_that_syncs_later(interval: str, tmp_path: Path,
                                                  request: pytest.FixtureRequest) -> None:
    """A kill of the process takes nothing from the system's memory, whatever was synced by then.

    The next start stores the acknowledged messages that only the journal has.
    """
    await kill_rounds(make_store("directory", tmp_path, request), 3, JETBLOCK_SYNC_INTERVAL=interval)


@pytest.mark.shows("publish.durable", "store.kill")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("interval", ["always", "2m"])
async def test_kills_of_a_broker_without_a_journal(interval: str, tmp_path: Path,
                                                   request: pytest.FixtureRequest) -> None:
    """Each acknowledged message is in a segment."""
    await kill_rounds(make_store("directory", tmp_path, request), 3, JETBLOCK_JOURNAL="false",
                      JETBLOCK_SYNC_INTERVAL=interval)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", ["directory", "minio"])
async def test_100_kills(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    await kill_rounds(make_store(kind, tmp_path, request), int(os.environ.get("JETBLOCK_KILL_ROUNDS", "100")))


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("interval", ["always", "2m"])
async def test_100_kills_with_a_journal(interval: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    assert await kill_rounds(make_store("directory", tmp_path, request),
                             int(os.environ.get("JETBLOCK_KILL_ROUNDS", "100")),
                             JETBLOCK_JOURNAL="true", JETBLOCK_SYNC_INTERVAL=interval)
