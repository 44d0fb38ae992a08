"""The stored bytes of removed messages once a store is quiet: never much more than the live bytes. In virtual time,
with real bytes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from broker.storage.compaction.settings import CompactionSettings
from broker.storage.format.block import Outcome
from broker.storage.format.message_size import message_size
from broker.storage.log.log import Log
from broker.storage.log.open_block import OpenBlock
from broker.storage.objectstore.memory import MemoryStore
from broker.storage.shard import ShardSettings
from tests.manual_clock import ManualClock
from tests.storage.objectstore.faulty import Faults
from tests.storage.rig import MS, SECOND, Rig, Stream, in_virtual_time, read_all

MINUTE = 60.0


class Sized(Stream):
    """A stream of messages of random bytes, ``body`` bytes each."""

    def __init__(self, log: Log, body: int, stream_id: int = 7, name: str = "s") -> None:
        super().__init__(log, stream_id, name)
        self.body = body
        self.each = message_size(b"foo", 0, bytes(body))
        self.rng = random.Random(stream_id)

    async def store(self, count: int) -> None:
        """Publish ``count`` messages in a separate segment."""
        self.fill(count)
        await self.log.persisted()

    def fill(self, count: int) -> None:
        """Publish ``count`` messages in the open segment."""
        self.publish(count, bytes(self.body), urgent=False)
        self.log.block(self).bodies[-count:] = [self.rng.randbytes(self.body) for _ in range(count)]
        self.log.urgent()

    def remove(self, first: int, last: int) -> None:
        count = last - first + 1
        self.log.block(self).remove(first, last, count, count * self.each)
        self.msgs -= count
        if first == self.first_seq:
            self.first_seq = last + 1
        self.log.urgent()

    def sealing(self, block: OpenBlock[object]) -> None:
        block.outcome = Outcome(self.first_seq, self.last_seq, self.msgs, self.msgs * self.each, 1000 if self.msgs
                                else 0)


async def all_but_one(rig: Rig, stream: Sized) -> None:
    """Make a block of 4 MiB of which one message in a hundred is left."""
    await stream.store(1000)
    for first in range(1, 1000, 100):
        stream.remove(first, first + 98)
        await rig.log.persisted()


async def overwritten(rig: Rig, stream: Sized) -> None:
    """Make a bucket of a hundred keys with a history of one, each written a hundred times."""
    for round_ in range(100):
        await stream.store(100)
        if round_:
            stream.remove(round_ * 100 - 99, round_ * 100)
            await rig.log.persisted()


async def stuck(rig: Rig, stream: Sized) -> None:
    """Make a work queue with five stuck messages, far from each other."""
    left = 1
    for at in range(40):
        await stream.store(1000)
        if at % 8 == 0:
            stream.remove(left, left + 498)
            stream.remove(left + 500, left + 999)
        else:
            stream.remove(left, left + 999)
        left += 1000
        await rig.log.persisted()


async def oldest_kept(rig: Rig, stream: Sized) -> None:
    """Make a stream with a limit per subject, in which one in a hundred of the oldest messages is its subject's
    last."""
    for _ in range(20):
        await stream.store(500)
    for first in range(1, 5000, 100):
        stream.remove(first, first + 98)
    await rig.log.persisted()


async def another_gone(rig: Rig, stream: Sized) -> None:
    """Make two streams that share five segments, and purge one of them."""
    other = Sized(rig.log, 4000, 5, "other")
    other.create()
    await rig.log.persisted()
    for _ in range(5):
        other.fill(500)
        await stream.store(2)
    other.remove(1, 2500)
    await rig.log.persisted()


CASES: dict[str, tuple[int, Callable[[Rig, Sized], Awaitable[None]]]] = {
    "all but one": (4000, all_but_one), "overwritten": (200, overwritten), "stuck": (4000, stuck),
    "oldest kept": (4000, oldest_kept), "another gone": (4000, another_gone)}


@pytest.mark.parametrize("case", CASES)
def test_few_dead_bytes_are_left(case: str) -> None:
    """Segments and runs have, after a quiet while, at most twice the live bytes, plus 64 KiB. All messages are there.
    Apart from the tiers' merges, no more bytes were written than had been removed."""
    body, load = CASES[case]

    async def main(clock: ManualClock) -> None:
        shared = MemoryStore()
        rig = Rig(shared, clock, "a", faults=Faults(latency_ns=2 * MS), settings=ShardSettings(
            sweep_grace_ns=SECOND, compaction=CompactionSettings(quiet_ns=5 * SECOND)))
        await rig.open()
        stream = Sized(rig.log, body)
        stream.create()
        await load(rig, stream)
        await asyncio.sleep(60 * MINUTE)
        live = stream.msgs * stream.each
        stored = sum(len(data) for key, data in shared.objects.items() if "/log/" in key or "/runs/" in key)
        print(case, "stored", stored, "live", live, "ratio", round(stored / live, 2))
        assert stored <= 2 * live + (64 << 10)
        assert len(await read_all(shared)) == stream.msgs
        there = set(shared.objects)
        await asyncio.sleep(86_400)
        assert set(shared.objects) == there, "compaction does not end"
    in_virtual_time(main)
