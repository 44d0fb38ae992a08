"""Stock clients read, acknowledge and publish the same messages while compaction merges blocks."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import nats
import pytest
from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.api import RetentionPolicy
from nats.js.errors import KeyNotFoundError, NotFoundError

from broker.inspect.source import Source
from broker.inspect.survey import read_survey
from broker.inspect.verify import verify
from broker.runtime.embedded import Broker
from broker.storage.format.header import key_position
from broker.storage.objectstore.file import FileStore
from broker.storage.paths import ShardPaths
from broker.storage.shard import Shard
from tests.eager_broker import EagerBrokerProcess, compaction
from tests.plain_records import add_record

pytestmark = [pytest.mark.shows("store.compaction"), pytest.mark.usefixtures("merges_on_request")]

SETTINGS = {"storage.compaction_cpu": 100, "storage.compaction_bytes_per_second": 1 << 40, "storage.reader_grace_ns": 0,
            "storage.journal": False}
"""Compaction is not slowed down, and released objects are deleted at once. Each commit is an object, so that there are
many small ones."""


def shard_of(broker: Broker) -> Shard:
    assert broker._app is not None
    assert broker._app.shard_owner is not None
    assert broker._app.shard_owner.shard is not None
    return broker._app.shard_owner.shard


async def compact(broker: Broker) -> None:
    """Merge all small objects, and wait until the merged objects are deleted."""
    shard = shard_of(broker)
    assert shard.compactor is not None
    merges = shard.compactor.merges
    held = {key for key, count in shard.state.counts.segments.items() if count}
    await shard.compactor.work(quiet=True)
    assert shard.compactor.merges > merges
    for _ in range(4):
        add_record(shard.log.block(shard.log.shard), 10, {})
        shard.log.urgent()
        await shard.log.persisted()
        assert await shard.checkpointer.cut()
        await shard.sweeper.after_round(shard.checkpointer)
    await shard.log.drain()
    freed = [ShardPaths(0).log(key_position(key)) for key in held if not shard.state.counts.segments.get(key)]
    assert len(freed) > 5
    for _ in range(2000):
        if not set(freed) & {info.key for info in await shard.log.store.list("v1/")}:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("what was merged is still there")


async def connected(broker: Broker) -> tuple[Client, JetStreamContext]:
    client = await nats.connect(broker.url)
    return client, client.jetstream()


async def verified(path: Path) -> None:
    """Check that ``inspect --verify`` finds no problem and no stray in the store."""
    store = FileStore(path)
    source = Source(store, give_up_ns=0)
    survey = await read_survey(source)
    found = await verify(source, survey)
    assert (survey.problems, found.problems) == ([], [])
    await store.close()


async def test_a_consumer_in_mid_stream(tmp_path: Path) -> None:
    """A consumer gets all pending and later messages and redeliveries once, in order, from merged blocks, also after a
    restart."""
    broker = Broker(tmp_path, settings=SETTINGS)
    async with broker:
        client, js = await connected(broker)
        await js.add_stream(name="S", subjects=["s.>"])
        for i in range(1, 101):
            await js.publish(f"s.{i % 3}", b"%d" % i)
        whole = await js.pull_subscribe("s.>", durable="whole")
        filtered = await js.pull_subscribe("s.1", durable="filtered")
        first = await whole.fetch(20, timeout=30)
        for msg in first[:10]:
            await msg.ack_sync()
        assert await js.delete_msg("S", 50)
        await compact(broker)
        assert await js.delete_msg("S", 51)
        rest = await whole.fetch(78, timeout=30)
        assert [int(msg.data) for msg in rest] == [*range(21, 50), *range(52, 101)]
        for msg in first[10:]:
            await msg.nak()
        again = await whole.fetch(10, timeout=30)
        assert sorted(int(msg.data) for msg in again) == list(range(11, 21))
        assert [int(msg.data) for msg in await filtered.fetch(34, timeout=30)] == [i for i in range(1, 101)
                                                                                   if i % 3 == 1]
        assert (await js.stream_info("S")).state.messages == 98
        for i in range(101, 131):
            await js.publish(f"s.{i % 3}", b"%d" % i)
        await compact(broker)
        await client.close()
    async with broker:
        client, js = await connected(broker)
        for i in range(1, 131):
            if i in (50, 51):
                try:
                    await js.get_msg("S", i)
                except NotFoundError:
                    continue
            assert (await js.get_msg("S", i)).data == b"%d" % i
        assert (await js.get_last_msg("S", "s.1")).seq == 130
        await client.close()
    await verified(tmp_path)


async def test_keys_and_their_history(tmp_path: Path) -> None:
    """Keys that are put and deleted before, between and after merges have their newest values, and no others."""
    broker = Broker(tmp_path, settings=SETTINGS)
    async with broker:
        client, js = await connected(broker)
        kv = await js.create_key_value(bucket="B", history=3)
        for value in range(12):
            for key in range(8):
                await kv.put(f"k{key}", b"%d" % value)
            if value % 4 == 3:
                await kv.delete("k7")
                await compact(broker)
        await kv.put("k0", b"last")
        assert (await kv.get("k0")).value == b"last"
        assert [one.value for one in await kv.history("k0")] == [b"10", b"11", b"last"]
        assert [one.value for one in await kv.history("k1")] == [b"9", b"10", b"11"]
        for _ in range(2):
            try:
                await kv.get("k7")
                raise AssertionError("a deleted key is back")
            except KeyNotFoundError:
                pass
            await kv.purge("k6")
        assert (await js.stream_info("KV_B")).state.messages == 6 * 3 + 3 + 1
        await client.close()
    async with broker:
        client, js = await connected(broker)
        kv = await js.key_value("B")
        assert [one.value for one in await kv.history("k1")] == [b"9", b"10", b"11"]
        await client.close()
    await verified(tmp_path)


async def test_a_work_queue(tmp_path: Path) -> None:
    """Acked messages do not come back, and other messages stay, whatever was merged in between."""
    broker = Broker(tmp_path, settings=SETTINGS)
    async with broker:
        client, js = await connected(broker)
        await js.add_stream(name="W", subjects=["w"], retention=RetentionPolicy.WORK_QUEUE)
        for i in range(1, 61):
            await js.publish("w", b"%d" % i)
        worker = await js.pull_subscribe("w", durable="w")
        msgs = await worker.fetch(40, timeout=30)
        for msg in msgs[::2]:
            await msg.ack_sync()
        await compact(broker)
        for msg in msgs[1:20:2]:
            await msg.ack_sync()
        assert (await js.stream_info("W")).state.messages == 30
        await client.close()
    async with broker:
        client, js = await connected(broker)
        assert (await js.stream_info("W")).state.messages == 30
        live = set(range(22, 41, 2)) | set(range(41, 61))
        worker = await js.pull_subscribe("w", durable="w")
        assert {int(msg.data) for msg in await worker.fetch(20, timeout=30)} == set(range(41, 61))
        for seq in range(1, 61):
            try:
                await js.get_msg("W", seq)
                assert seq in live
            except NotFoundError:
                assert seq not in live
        await client.close()
    await verified(tmp_path)


async def test_what_a_stream_takes_in_the_store(tmp_path: Path) -> None:
    """The stored bytes in ``/jsz`` follow publishes, purges, and removals after they are rewritten."""
    often = compaction(segments=1000, quiet_ns=300_000_000)
    async with EagerBrokerProcess("--store", f"file://{tmp_path}", environ=often) as broker:
        client = await nats.connect(broker.url)
        js = client.jetstream()
        await js.add_stream(name="S", subjects=["s"])

        async def stored(least: int, most: int) -> None:
            async with asyncio.timeout(60):
                while True:
                    [stream] = (await broker.monitor("/jsz?streams=1&acc=$G"))["account_details"][0]["stream_detail"]
                    if least <= stream.get("jetblock", {"stored_bytes": -1})["stored_bytes"] <= most:
                        return
                    await asyncio.sleep(0.05)

        await stored(0, 0)
        rng = random.Random(1)
        for _ in range(100):
            await js.publish("s", rng.randbytes(1000))
        await stored(100_000, 110_000)
        for seq in range(1, 100):
            if seq % 10:  # so few are left that they are merged with the next ones
                await js.delete_msg("S", seq)
        for _ in range(10):
            await js.publish("s", rng.randbytes(1000))
        await stored(20_000, 30_000)
        await js.purge_stream("S")
        await stored(0, 0)
        await client.close()


async def test_message_ids_after_a_restart(tmp_path: Path) -> None:
    """A merged message, even a deleted one, is a duplicate by its id within the window."""
    broker = Broker(tmp_path, settings=SETTINGS)
    async with broker:
        client, js = await connected(broker)
        await js.add_stream(name="S", subjects=["s"], duplicate_window=3600)
        for first in range(1, 41, 4):
            await asyncio.gather(*[js.publish("s", b"%d" % i, headers={"Nats-Msg-Id": f"id-{i}"})
                                   for i in range(first, first + 4)])
        await js.delete_msg("S", 7)
        await compact(broker)
        await client.close()
    async with broker:
        client, js = await connected(broker)
        for i in (1, 7, 40):
            answer = await js.publish("s", b"again", headers={"Nats-Msg-Id": f"id-{i}"})
            assert (answer.duplicate, answer.seq) == (True, i)
        assert (await js.stream_info("S")).state.messages == 39
        assert not (await js.publish("s", b"new", headers={"Nats-Msg-Id": "id-41"})).duplicate
        await client.close()


async def test_publishes_and_reads_go_on_while_blocks_are_merged(tmp_path: Path) -> None:
    """With publishers, a consumer, deletes and compaction side by side, every message arrives once, in order."""
    broker = Broker(tmp_path, settings=SETTINGS)
    async with broker:
        client, js = await connected(broker)
        await js.add_stream(name="S", subjects=["s"])
        reader = await js.pull_subscribe("s", durable="d")
        shard = shard_of(broker)
        assert shard.compactor is not None
        got: list[int] = []
        done = False

        async def read() -> None:
            while len(got) < 300:
                for msg in await reader.fetch(10, timeout=30):
                    got.append(int(msg.data))
                    await msg.ack()

        async def merge() -> None:
            assert shard.compactor is not None
            while not done:
                await shard.compactor.work(quiet=True)
                await asyncio.sleep(0)

        reading, merging = asyncio.ensure_future(read()), asyncio.ensure_future(merge())
        for i in range(300):
            await js.publish("s", b"%d" % i)
        await reading
        done = True
        await merging
        assert got == list(range(300))
        assert shard.compactor.merges > 5
        await client.close()
    await verified(tmp_path)
