"""While a stream is offline, the objects of the others are merged and deleted as ever, and nothing that the stream needs is.

An owner that knows a record (kind 200) writes it; owners that do not know it have the stream offline. ``newer`` says which of
them runs. All in virtual time.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from broker.clock import ManualClock
from broker.storage.checkpoint.checkpointer import CheckpointSettings
from broker.storage.compaction.settings import CompactionSettings
from broker.storage.format.header import Position, position_key
from broker.storage.format.records.body import RecordBody
from broker.storage.format.records.kinds import RecordKind
from broker.storage.format.records.table import BODIES
from broker.storage.log.settings import LogSettings
from broker.storage.objectstore.memory import MemoryStore
from broker.storage.read.snapshot import read_snapshot, replay_from
from broker.storage.read.steps import run
from broker.storage.shard import Shard, ShardSettings
from tests.storage.rig import PATHS, SECOND, Rig, Stream, dump, in_virtual_time, read_all

MINUTE = 60.0
S, T, U = 7, 9, 11
NAMES = {S: "s", T: "t", U: "u"}


@dataclass
class FromTheFuture(RecordBody):
    """A record that only newer owners know."""

    KIND: ClassVar[Any] = 200

    def encode(self) -> object:
        return {}

    @classmethod
    def decode(cls, body: Any) -> FromTheFuture:
        return cls()


class Owners:
    """Owners of one shard, one after the other, and the messages that its streams must have."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.shared = MemoryStore()
        self.messages: dict[int, dict[int, bytes]] = {}
        self.last_seqs: dict[int, int] = {}
        self.rig: Rig | None = None
        self._streams: dict[int, Stream] = {}
        self._opened = 0

    @property
    def shard(self) -> Shard:
        assert self.rig is not None
        assert self.rig.shard is not None
        return self.rig.shard

    @property
    def offline(self) -> bool:
        return self.shard.state.is_offline(S)

    async def open(self, *, newer: bool, segments: int = 16, compaction: bool = True) -> None:
        """A new owner takes the shard; ``segments`` start a checkpoint."""
        BODIES.pop(200, None)
        if newer:
            BODIES[200] = FromTheFuture
        self._opened += 1
        self.rig = Rig(self.shared, self.clock, f"b{self._opened}", self._opened, settings=ShardSettings(
            log=LogSettings(), checkpoint=CheckpointSettings(segments=segments, replayed_segments=1 << 30, replayed_epochs=1 << 30,
                                                             interval_ns=None if segments > 1000 else 60 * SECOND),
            sweep_grace_ns=SECOND,
            compaction=CompactionSettings(segments=8, quiet_ns=5 * SECOND, few=4) if compaction else None))
        await self.rig.open()
        self._streams = {}

    def stream(self, stream_id: int) -> Stream:
        stream = self._streams.get(stream_id)
        if stream is None:
            have = self.messages.get(stream_id)
            stream = Stream(self.shard.log, stream_id, NAMES[stream_id])
            if have is None:
                stream.create()
                self.messages[stream_id], self.last_seqs[stream_id] = {}, 0
            else:
                stream.last_seq, stream.msgs = self.last_seqs[stream_id], len(have)
                stream.first_seq = min(have, default=stream.last_seq + 1)
            self._streams[stream_id] = stream
        return stream

    async def publish(self, stream_id: int, count: int = 1) -> None:
        """Publish one by one, each in a segment of its own."""
        stream = self.stream(stream_id)
        for _ in range(count):
            body = b"%05d" % (stream.last_seq + 1)
            stream.publish(1, body)
            await self.shard.log.persisted()
            self.messages[stream_id][stream.last_seq] = body
            self.last_seqs[stream_id] = stream.last_seq

    async def publish_together(self, *stream_ids: int) -> None:
        """Publish a message to each in one segment."""
        for stream_id in stream_ids:
            self.stream(stream_id).publish(1, b"%05d" % (self.stream(stream_id).last_seq + 1), urgent=False)
        self.shard.log.urgent()
        await self.shard.log.persisted()
        for stream_id in stream_ids:
            seq = self.stream(stream_id).last_seq
            self.messages[stream_id][seq] = b"%05d" % seq
            self.last_seqs[stream_id] = seq

    async def remove(self, stream_id: int, first: int, last: int) -> None:
        """Remove the live messages among first..last, which have no gaps."""
        stream, have = self.stream(stream_id), self.messages[stream_id]
        seqs = [seq for seq in range(first, last + 1) if have.pop(seq, None) is not None]
        if seqs:
            stream.remove(seqs[0], seqs[-1])
            stream.first_seq = min(have, default=stream.last_seq + 1)
            await self.shard.log.persisted()

    async def from_the_future(self) -> None:
        """The newer owner writes the record that older ones do not know."""
        self.stream(S).record(200, {})
        await self.shard.log.persisted()

    async def repaired(self) -> None:
        """Check that a newer version has every message, from each checkpoint that is kept, and that nothing else is kept."""
        known = BODIES.get(200)
        BODIES[200] = FromTheFuture
        try:
            for stream_id, messages in self.messages.items():
                assert await read_all(self.shared, NAMES[stream_id]) == messages
            newest = await read_snapshot(self.shared)
            if newest.root is not None:
                for at, _ in newest.root.extra["roots"]:
                    again = await run(replay_from(PATHS, Position(*at), newest.state.position), self.shared)
                    assert dump(again.state) == dump(newest.state)
        finally:
            if known is None:
                del BODIES[200]
        assert dump((await read_snapshot(self.shared)).state) == dump(self.shard.state)

    def data_objects(self) -> list[str]:
        return [key for key in self.shared.objects if "/log/" in key or "/runs/" in key]


@pytest.fixture(autouse=True)
def _known_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a test adds to the records that are known is taken back."""
    monkeypatch.setitem(BODIES, 200, FromTheFuture)
    monkeypatch.delitem(BODIES, 200)


def owners(main: Callable[[Owners], Any]) -> None:
    async def run_(clock: ManualClock) -> None:
        await main(Owners(clock))
    in_virtual_time(run_)


@pytest.mark.parametrize("newer_merges", [False, True])
def test_the_objects_of_other_streams_are_deleted(newer_merges: bool) -> None:
    """A stream of 80 messages goes offline; then the others get 1000 messages and lose most of them, under three owners, two of
    which are killed. The store has about as many objects as at first, and the stream is back with a newer owner.

    ``newer_merges``: the newer owner merged blocks of the stream after the record that the older ones do not know, so that
    runs are named by records that could not be applied.
    """
    async def main(world: Owners) -> None:
        await world.open(newer=True, segments=1 << 20, compaction=newer_merges)
        for _ in range(20):
            await world.publish_together(S, T)
            await world.publish(S)
        await world.from_the_future()
        for _ in range(20):
            await world.publish_together(S, U)
            await world.publish(S)
        await world.remove(S, 1, 5)
        if newer_merges:
            await asyncio.sleep(20)
            assert world.shard.compactor is not None
            assert world.shard.compactor.merges
            await world.publish(S, 3)
        assert any("/runs/" in key for key in world.shared.objects) == newer_merges
        await world.shard.abandon()
        before = len(world.data_objects())
        for owner in range(3):
            await world.open(newer=False)
            assert world.offline
            for at in range(120):
                await world.publish_together(T, U)
                await world.publish(T)
                if at % 40 == 39:
                    await world.remove(T, 1, world.last_seqs[T] - 10)
                    await world.repaired()
            await asyncio.sleep(20 * MINUTE)
            assert world.offline
            assert len(world.data_objects()) < before + 60
            await world.repaired()
            if owner < 2:
                await world.shard.abandon()
        await world.shard.close()
        await world.open(newer=True)
        assert not world.offline
        await world.repaired()
        await world.publish(S, 5)
        await asyncio.sleep(20 * MINUTE)
        assert len(world.data_objects()) < 40, "what only an offline stream needed is deleted"
        await world.repaired()
    owners(main)


def test_deleting_an_offline_stream_releases_what_it_needed() -> None:
    """Its segments, and the run that a record names which could not be applied."""
    async def main(world: Owners) -> None:
        await world.open(newer=True, segments=1 << 20)
        await world.publish(T, 10)
        await world.publish(S, 10)
        await world.from_the_future()
        await world.publish(S, 20)
        await asyncio.sleep(20)
        await world.shard.abandon()
        await world.open(newer=False)
        stream = world.shard.state.streams[S]
        assert stream.held
        assert stream.held_runs
        await world.publish(T, 100)
        await asyncio.sleep(20 * MINUTE)
        kept = {PATHS.log(position) for position in stream.held}
        assert kept <= world.shared.objects.keys()
        runs = [key for key in world.shared.objects if "/runs/" in key]
        Stream(world.shard.log, S).record(RecordKind.STREAM_DELETE, {})
        del world.messages[S]
        await world.shard.log.persisted()
        await asyncio.sleep(20 * MINUTE)
        assert not kept & world.shared.objects.keys()
        assert len([key for key in runs if key in world.shared.objects]) < len(runs)
        await world.repaired()
        await world.shard.close()
        await world.open(newer=True)
        await asyncio.sleep(20 * MINUTE)
        assert len(world.data_objects()) < 30
        await world.repaired()
    owners(main)


def test_a_kept_checkpoint_that_names_held_segments_keeps_them() -> None:
    """A newer owner has the stream online again, and dies after one checkpoint; so does the next. What the checkpoints of the
    older owner name stays until these have gone, since a start may have to fall back to them."""
    async def main(world: Owners) -> None:
        await world.open(newer=True, segments=1 << 20, compaction=False)
        await world.publish(S, 10)
        await world.from_the_future()
        await world.publish(S, 10)
        await world.shard.abandon()
        await world.open(newer=False, segments=1 << 20, compaction=False)
        held = {PATHS.log(position) for position in world.shard.state.streams[S].held}
        assert len(held) == 11
        for _ in range(3):
            await world.publish(T)
            assert await world.shard.checkpointer.cut()
        await world.shard.abandon()
        for left in range(2, -1, -1):
            assert held <= world.shared.objects.keys()
            await world.open(newer=True, segments=1 << 20, compaction=False)
            assert not world.offline
            await world.remove(S, 1, 20)
            await world.publish(T)
            assert await world.shard.checkpointer.cut()
            await world.shard.checkpointer.on_round(world.shard.checkpointer)  # type: ignore[misc]
            await world.shard.log.persisted()
            await asyncio.sleep(2)
            assert bool(held & world.shared.objects.keys()) == (left > 0), left
            await world.repaired()
            await world.shard.abandon()
    owners(main)


@pytest.mark.parametrize("seed", range(12))
def test_random_histories(seed: int) -> None:
    """Newer and older owners take turns and do what comes: publish, remove, cut checkpoints, merge, sweep, end, die. A newer
    version could read every message all the time."""
    rng = random.Random(seed)

    async def main(world: Owners) -> None:
        for turn in range(8):
            newer = turn % 2 == 0 if rng.random() < 0.8 else rng.random() < 0.5
            await world.open(newer=newer or not turn, segments=rng.choice([4, 16, 1 << 20]), compaction=rng.random() < 0.8)
            for _ in range(rng.randrange(5, 40)):
                mine = [S, T, U] if not world.offline else [T, U]
                action = rng.random()
                if action < 0.35:
                    await world.publish(rng.choice(mine), rng.randrange(1, 6))
                elif action < 0.6:
                    await world.publish_together(*mine)
                elif action < 0.75:
                    stream_id = rng.choice(mine)
                    if have := world.messages.get(stream_id):
                        first = rng.choice([min(have), rng.choice(list(have))])
                        last = first
                        while last + 1 in have and rng.random() < 0.9:
                            last += 1
                        await world.remove(stream_id, first, last)
                elif action < 0.85 and newer and S in world.messages and S in mine:
                    await world.from_the_future()
                elif action < 0.95:
                    await asyncio.sleep(rng.choice([1, 10, 100]))
                else:
                    await world.shard.checkpointer.cut()
            await world.repaired()
            state = world.shard.state
            for position in state.streams[S].held if S in state.streams else ():
                assert state.segments.get(position_key(position))
            if rng.random() < 0.3:
                await world.shard.close()
            else:
                await world.shard.abandon()
        await world.open(newer=True)
        assert not world.offline
        await world.publish(S)
        await asyncio.sleep(20 * MINUTE)
        await world.repaired()
        assert len(world.data_objects()) < 60
    owners(main)
