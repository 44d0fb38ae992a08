"""Streams move between eight shards of three brokers behind a cluster of three nats-servers while all of them fail."""

from __future__ import annotations

import asyncio
import os
import random
import time
from pathlib import Path

import pytest

from broker.inspect.source import Source
from broker.inspect.survey import read_survey
from broker.inspect.verify import verify
from broker.storage.objectstore import open_store
from tests.adversity.clients import connect, raise_ended
from tests.adversity.moving_streams import Mover, Reader
from tests.adversity.network import SHARDS, T, network
from tests.stores import make_store

SECONDS = float(os.environ.get("JETBLOCK_TEST_HISTORY_SECONDS", "1800"))
"""The length of the run on S3; that on a directory is a fifth of it."""
STREAMS = 5


@pytest.mark.soak
@pytest.mark.shows("cluster.moves")
@pytest.mark.timeout(2 * SECONDS + 900)
@pytest.mark.parametrize("kind", ["directory", "minio"])
async def test_streams_move_while_everything_fails(
        kind: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each acknowledged message is in its stream once, each stream in one place, and readers see a prefix of each."""
    seed = int(os.environ.get("JETBLOCK_TEST_SEED", str(random.randrange(1 << 30))))
    print(f"seed {seed}")
    rng = random.Random(seed)
    store = make_store(kind, tmp_path, request)
    for name, value in store.environ.items():
        monkeypatch.setenv(name, value)
    async with network(tmp_path, store) as net:
        client = await connect(*net.urls, user="app", password="a")
        system = await connect(*net.urls, user="sys", password="s")
        movers = [Mover(client, system, number, SHARDS, random.Random(rng.random())) for number in range(STREAMS)]
        reader = Reader(store.url, movers, complete=kind != "directory")
        ended = asyncio.Event()

        async def keep_living(mover: Mover) -> None:
            while not ended.is_set():
                await mover.live()

        async def keep_reading() -> None:
            while not ended.is_set():
                await reader.read(rng)
                await asyncio.sleep(rng.uniform(0, 1))

        tasks = [asyncio.create_task(keep_living(mover)) for mover in movers]
        tasks.append(asyncio.create_task(keep_reading()))
        ends = time.monotonic() + (SECONDS if kind == "minio" else SECONDS / 5)
        try:
            while time.monotonic() < ends:
                await asyncio.sleep(rng.uniform(1, 3 * T))
                await net.break_something(rng)
                raise_ended(tasks)
            ended.set()
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            print(net.faults, reader.counts, *((mover.counts, round(mover.longest, 1)) for mover in movers), sep="\n")
            (tmp_path / "brokers.log").write_text("".join(net.log))
        names = [info.config.name for info in await client.jetstream(domain="jb", timeout=10).streams_info()]
        assert names == []
        net.check_log()
        await client.close()
        await system.close()
    source = Source(open_store(store.url))
    survey = await read_survey(source)
    assert survey.streams == []
    assert survey.problems == []
    assert (await verify(source, survey)).problems == []
    await source.close()
