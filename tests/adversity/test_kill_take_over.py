"""kill -9 with two brokers on one store, again and again, under load: publishers, consumers with acks, a bucket, a work
queue, staged messages that join, and compaction.

The faults vary: the owner is killed, so the other takes over; or both are killed; or the one that is just taking over;
or, on S3, the owner is paused past its lease and wakes deposed. Meanwhile a reader without a broker reads the
acknowledged messages. At the end a fresh broker serves all of them, Spark's reader reads the same, and every byte of
the store is sound.

JETBLOCK_KILL_ROUNDS sets the number of kills, JETBLOCK_KILL_SEED their moments.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from nats.js.api import StreamConfig

from broker.inspect.messages import read_messages
from broker.inspect.source import Source
from broker.inspect.survey import read_survey
from broker.inspect.verify import verify
from broker.pipeline.plan.plan import tasks
from broker.pipeline.plan.selection import Selection
from broker.pipeline.plan.snapshot import read_store
from broker.pipeline.read.scan import read_tasks
from broker.pipeline.store.objects import open_object_client
from broker.storage.objectstore import ObjectStore, open_store
from tests.adversity import load as published
from tests.adversity import staging_load as staged
from tests.adversity.clients import connect, read_all, unexpected
from tests.adversity.load import Load
from tests.adversity.queue_load import QueueLoad
from tests.adversity.staging_load import StagingLoad
from tests.eager_broker import EagerBrokerProcess, compaction
from tests.harness import BrokerProcess
from tests.pipeline.read.test_scan import EXACT
from tests.stores import Store, make_store

LEASE_S = 3
SECONDS_MAX = 60
"""Time within which a broker must serve again after any fault; on two cores that others use, too."""
ENVIRON = {
    "JETBLOCK_LEASE": f"{LEASE_S}s", "JETBLOCK_PUT_TIMEOUT": "1s", "JETBLOCK_COMPACTION_CPU": "100",
    **compaction(segments=8, quiet_ns=1_000_000_000, dead_share=0.1),
    "JETBLOCK_READER_GRACE": "5s", "JETBLOCK_INBOX_INTERVAL": "500ms"}
"""Compaction works without limits, and the blocks that it replaced are soon deleted."""
NEWEST_CHECKED = 3000
"""Number of the newest messages that each check of the reader without a broker reads."""


class Pair:
    """Two brokers on one store, the one that serves and the one that waits; both are killed and paused."""

    def __init__(self, store: Store, rng: random.Random, load: Load) -> None:
        self.rng, self.load = rng, load
        self.pauses = store.url.startswith("s3://")
        """A paused owner of a directory keeps it."""
        self.shards = "3" if self.pauses else "1"
        self.brokers = [EagerBrokerProcess("--store", store.url, "-n", name, environ={
            **ENVIRON, **store.environ, "JETBLOCK_SERVER_NAME": name, "JETBLOCK_SHARDS": self.shards})
            for name in ("one", "two")]
        self.urls = [f"nats://127.0.0.1:{broker.port}" for broker in self.brokers]
        self.kills = self.paused = self.merges = 0
        """``merges`` counts merges of compaction, as far as owners reported them."""

    async def owner(self, but: BrokerProcess | None = None) -> BrokerProcess:
        """Wait for a broker that serves clients."""
        async with asyncio.timeout(SECONDS_MAX):
            while True:
                for broker in self.brokers:
                    if broker.returncode not in (None, -signal.SIGKILL):
                        raise broker.failed(f"ended by itself with status {broker.returncode}")
                    if broker is not but and broker.running and await _serves(broker.port):
                        return broker
                await asyncio.sleep(0.05)

    async def kill(self, broker: BrokerProcess) -> None:
        assert not unexpected(broker), broker.tail()
        self.kills += 1
        await broker.kill()
        self.load.killed()

    async def cause_fault(self) -> None:
        """Kill or pause the brokers in one of the ways above."""
        owner = await self.owner()
        [other] = [broker for broker in self.brokers if broker is not owner]
        await owner.wait_ready()
        with contextlib.suppress(AssertionError, OSError):  # the figures of an owner that has just been deposed
            figures = (await owner.monitor("/varz"))["jetblock"]["log"]["compaction"]
            self.merges += figures["merges"]
        draw = self.rng.random()
        if draw < 0.2 and self.pauses:
            self.paused += 1
            owner.send_signal(signal.SIGSTOP)
            await self.owner(but=owner)
            owner.send_signal(signal.SIGCONT)
            return
        await self.kill(owner)
        if draw < 0.4:
            await self.kill(other)
        elif draw < 0.6:
            # The moment is between its first read of the log and its first answer.
            await asyncio.sleep(self.rng.random() * (LEASE_S + 1 if self.pauses else 0.3))
            await self.kill(other)
        elif draw < 0.8:
            await self.owner()
        for broker in self.rng.sample(self.brokers, 2):
            if not broker.running:
                await broker.start(ready=False)

    async def close(self) -> None:
        for broker in self.brokers:
            await broker.close()


async def _serves(port: int) -> bool:
    """Return whether a broker answers clients on ``port``: a standby has not bound it."""
    try:
        async with asyncio.timeout(1):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                return (await reader.readline()).startswith(b"INFO")
            finally:
                writer.close()
    except OSError:
        return False


@contextlib.asynccontextmanager
async def _opened(url: str) -> AsyncIterator[ObjectStore]:
    objects = open_store(url)
    try:
        yield objects
    finally:
        await objects.close()


async def check_newest(store: ObjectStore, load: Load) -> int:
    """Read the newest messages without a broker, and check that those acknowledged before are there. Returns: the
    number of checked messages."""
    acked = {seq: msg_id for msg_id, seq in load.history.acked.items()}
    if not acked:
        return 0
    first = max(1, max(acked) - NEWEST_CHECKED)
    held = {message.seq: message.data async for message in read_messages(Source(store), published.STREAM,
                                                                         first_seq=first)}
    wanted = {seq: load.history.begun[msg_id] for seq, msg_id in acked.items() if seq >= first}
    wrong = [seq for seq, payload in wanted.items() if held.get(seq) != payload]
    assert not wrong, f"acknowledged, and a reader of the store does not find {wrong[:5]}, {len(wrong)} in all"
    return len(wanted)


def rows_without_broker(url: str, stream: str) -> dict[int, bytes]:
    """Read all of a stream by Spark's reader."""
    objects = open_object_client(url)
    [snapshot] = read_store(objects, account="$G", stream=stream)
    rows: dict[int, bytes] = {}
    for batch in read_tasks(objects, list(tasks(snapshot, Selection())), Selection(), EXACT):
        rows |= zip(batch.column("seq").to_pylist(), batch.column("data").to_pylist(), strict=True)
    return rows


async def take_overs(store: Store, objects: ObjectStore, kills: int) -> None:
    seed = int(os.environ.get("JETBLOCK_KILL_SEED", random.SystemRandom().randrange(1 << 32)))
    print(f"JETBLOCK_KILL_SEED={seed}")
    rng = random.Random(seed)
    load = Load(rng, strict=not store.environ)
    pair = Pair(store, rng, load)
    load.urls = tuple(pair.urls)
    queues, staging = QueueLoad(*pair.urls, batch=5), StagingLoad(rng, objects, *pair.urls)
    loads = (load, queues, staging)
    checked = 0

    async def reader() -> None:
        nonlocal checked
        while not load.stop.is_set():
            checked += await check_newest(objects, load)
            await asyncio.sleep(1)

    try:
        for broker in pair.brokers:
            await broker.start(ready=False)
        await pair.owner()
        nc = await connect(*pair.urls)
        js = nc.jetstream()
        await js.add_stream(StreamConfig(name=published.STREAM, subjects=["kill.>"]))
        # The load reads the state of shard 0.
        await js.add_stream(StreamConfig(name=staged.STREAM, subjects=[staged.SUBJECT],
                                         metadata={"jetblock.shard": "0"}))
        await queues.make(js)
        going = [asyncio.create_task(one) for one in (*load.clients(), *staging.clients(), *queues.publishers(),
                                                      reader())]
        draining = [asyncio.create_task(one) for one in queues.consumers()]
        try:
            while pair.kills < kills:
                for moved in (load.moved, queues.moved):
                    moved.clear()
                async with asyncio.timeout(SECONDS_MAX):
                    await load.moved.wait()
                    await queues.moved.wait()
                await asyncio.sleep(rng.random() * 1.5)
                for task in (*going, *draining):
                    if task.done():
                        task.result()
                await pair.cause_fault()
            await pair.owner()
        finally:
            for one in loads:
                one.stop.set()
            async with asyncio.timeout(120):
                results = await asyncio.gather(*going, *draining, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        await staging.wait_for_answers()
        await queues.check(js)
        await nc.close()
        for broker in pair.brokers:
            assert not unexpected(broker), broker.tail()
    finally:
        await pair.close()

    async with BrokerProcess("--store", store.url, environ={**store.environ, "JETBLOCK_SERVER_NAME": "fresh"}) as fresh:
        load.urls = (fresh.url,)
        held, last = await load.stored()
        load.check(held, last)
        nc = await connect(fresh.url)
        staging.check(await read_all(nc, staged.STREAM))
        await nc.close()
    read = await asyncio.to_thread(rows_without_broker, store.url, published.STREAM)
    assert read == {seq: payload for seq, (_, payload) in held.items()}
    staging.check(await asyncio.to_thread(rows_without_broker, store.url, staged.STREAM))
    source = Source(objects)
    survey = await read_survey(source)
    found = await verify(source, survey)
    assert [*survey.problems, *found.problems] == []
    print(f"{pair.kills} kills, {pair.paused} pauses, {pair.merges} merges: {load}; {checked} messages checked without "
          f"a broker; {staging}")
    assert pair.merges or kills < 20, "a few short lives may end before anything was merged"
    assert checked


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(("kind", "kills"), [("directory", 60), ("minio", 70), ("seaweed", 70)])
async def test_kills_and_take_overs(kind: str, kills: int, tmp_path: Path, request: pytest.FixtureRequest,
                                    monkeypatch: pytest.MonkeyPatch) -> None:
    """Two brokers survive 200 kills in all, on each kind of store."""
    store = make_store(kind, tmp_path, request)
    for name, value in store.environ.items():
        monkeypatch.setenv(name, value)  # for the readers without a broker
    async with _opened(store.url) as objects:
        await take_overs(store, objects, int(os.environ.get("JETBLOCK_KILL_ROUNDS", kills)))
