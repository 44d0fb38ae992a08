"""kill -9 of a broker with several shards while clients create, update and delete streams, again and again.

After each kill every acknowledged operation holds: a created stream exists with its messages, a deleted one does not.
At the end the catalogue has exactly the streams of the other shards, each name once.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
from pathlib import Path

import nats
import pytest
from nats.aio.client import Client

from broker.inspect.source import Source
from broker.inspect.survey import read_survey
from broker.storage.objectstore import open_store
from tests.harness import BrokerProcess

WORKERS = 6


class Streams:
    """The streams as clients know them: ``acked`` counts messages, ``maybe`` has those without an answer yet."""

    def __init__(self) -> None:
        self.acked: dict[str, int] = {}
        self.maybe: set[str] = set()

    async def check(self, client: Client) -> None:
        """Compare with a restarted broker; forget the operations without an answer."""
        names: set[str] = set()
        total = 1
        while len(names) < total:
            asked = json.dumps({"offset": len(names)}).encode()
            answer = json.loads((await client.request("$JS.API.STREAM.NAMES", asked, timeout=60)).data)
            total = answer["total"]
            names.update(answer["streams"] or ())
        assert self.acked.keys() - self.maybe <= names <= self.acked.keys() | self.maybe
        for name in names & self.acked.keys():
            assert (await client.jetstream(timeout=60).stream_info(name)).state.messages >= self.acked[name]
        self.acked = {name: self.acked.get(name, 0) for name in names}
        self.maybe.clear()

    async def work(self, client: Client, prefix: str, rng: random.Random) -> None:
        """Create, fill, update and delete streams until the connection is lost."""
        js = client.jetstream(timeout=60)
        with contextlib.suppress(nats.errors.Error, OSError, asyncio.TimeoutError):
            for number in range(10_000):
                name = f"{prefix}_{number}"
                self.maybe.add(name)
                await js.add_stream(name=name, subjects=[name])
                self.acked[name] = 0
                self.maybe.discard(name)
                for _ in range(3):
                    await js.publish(name, b"x")
                    self.acked[name] += 1
                await js.update_stream(name=name, subjects=[name, f"{name}.more"])
                if rng.random() < 0.5:
                    self.maybe.add(name)
                    await js.delete_stream(name)
                    del self.acked[name]
                    self.maybe.discard(name)


@pytest.mark.soak
async def test_kills_between_the_steps(tmp_path: Path) -> None:
    """JETBLOCK_KILL_ROUNDS sets the number of kills, JETBLOCK_KILL_SEED their moments."""
    url = f"file://{tmp_path}/store"
    seed = int(os.environ.get("JETBLOCK_KILL_SEED", "0")) or random.randrange(1, 1 << 30)
    print(f"JETBLOCK_KILL_SEED={seed}")
    rng, streams = random.Random(seed), Streams()
    for kill in range(int(os.environ.get("JETBLOCK_KILL_ROUNDS", "10"))):
        async with BrokerProcess("--store", url, environ={"JETBLOCK_SHARDS": "3"}) as broker:
            client = await nats.connect(broker.url, allow_reconnect=False)
            await streams.check(client)
            working = [asyncio.create_task(streams.work(client, f"w{worker}_{kill}", rng)) for worker in range(WORKERS)]
            await asyncio.sleep(rng.uniform(0.2, 1.2))
            await broker.kill()
            for worker in working:
                worker.cancel()
            await asyncio.gather(*working, return_exceptions=True)
            with contextlib.suppress(Exception):
                await asyncio.wait_for(client.close(), 5)
    async with BrokerProcess("--store", url) as broker:
        await broker.stop()
    survey = await read_survey(Source(open_store(url)))
    assert survey.problems == []
    entries = survey.shards[0].view.state.catalogue.values()
    others = [(stream.stream_id, stream.name, shard.paths.shard) for shard, stream in survey.streams
              if shard.paths.shard]
    assert sorted((one.stream_id, one.name, one.shard) for one in entries) == sorted(others)
    assert not any(one.deleting for one in entries)
    names = [stream.name for _, stream in survey.streams]
    assert len(names) == len(set(names))
