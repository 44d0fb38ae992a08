"""Copies and repairs with real brokers: one that serves while its store is copied, and one that starts on a repaired
store."""

from __future__ import annotations

import asyncio
from pathlib import Path

from nats.js.api import StreamConfig

from broker.maintenance.copy_cli import main as copy
from broker.maintenance.fsck_cli import main as fsck
from tests.adversity.clients import connect, read_all
from tests.adversity.test_damaged_store import COUNT, change, filled, flip, segments_of
from tests.harness import BrokerProcess


async def test_a_broker_serves_while_it_is_backed_up(tmp_path: Path) -> None:
    """A backup has every message acknowledged before it began, and a broker serves the restored store."""
    store, backup, restored = (f"file://{tmp_path / name}" for name in ("store", "backup", "restored"))
    acked = 0
    async with BrokerProcess("--store", store) as broker:
        nc = await connect(broker.url)
        js = nc.jetstream()
        await js.add_stream(StreamConfig(name="A", subjects=["A.>"]))

        async def publish() -> None:
            nonlocal acked
            while True:
                await js.publish(f"A.{acked}", b"message %d" % acked)
                acked += 1

        publishing = asyncio.create_task(publish())
        async with asyncio.timeout(30):
            while not acked:  # noqa: ASYNC110 (it goes on)
                await asyncio.sleep(0.01)
        for _ in range(3):
            expected = acked
            assert await asyncio.to_thread(copy, "backup", [store, backup]) == 0
        publishing.cancel()
        assert await asyncio.to_thread(fsck, [store, "--repair"]) == 2  # a broker owns it
        await nc.close()
    assert expected > 0
    assert await asyncio.to_thread(copy, "restore", [backup, restored]) == 0
    async with BrokerProcess("--store", restored) as broker:
        nc = await connect(broker.url)
        there = await read_all(nc, "A")
        assert expected <= len(there) <= acked + 1  # the last one may be stored and not acknowledged yet
        await nc.jetstream().publish("A.more", b"it goes on")
        await nc.close()


async def test_a_broker_starts_on_a_repaired_store(tmp_path: Path) -> None:
    """A store on which no broker starts is served again after a repair, except the damaged message; consumers and
    publishers continue."""
    store = tmp_path / "store"
    await filled(store)
    path, head = segments_of(store)[-5]
    row = next(row for row in head.rows if row.messages)
    change(path, flip(row.core_offset + 30))
    url = f"file://{store}"
    assert await asyncio.to_thread(fsck, [url]) == 1
    assert await asyncio.to_thread(fsck, [url, "--repair"]) == 0
    async with BrokerProcess("--store", url) as broker:
        nc = await connect(broker.url)
        counts = sorted([len(await read_all(nc, name)) for name in "AB"])
        assert counts == [COUNT - 1, COUNT]
        for name in "AB":
            ack = await nc.jetstream().publish(f"{name}.more", b"more")
            assert ack.seq == COUNT + 1
        await nc.close()
    assert await asyncio.to_thread(fsck, [url]) == 0
