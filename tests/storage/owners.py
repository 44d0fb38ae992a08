"""Successive owners of one shard, of which only some know a certain kind of record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from broker.storage.checkpoint.settings import CheckpointSettings
from broker.storage.compaction.settings import CompactionSettings
from broker.storage.format.header import Position
from broker.storage.format.records.body import RecordBody
from broker.storage.format.records.table import BODIES
from broker.storage.format.store import StoreFormat
from broker.storage.log.settings import LogSettings
from broker.storage.objectstore.memory import MemoryStore
from broker.storage.paths import FORMAT
from broker.storage.read.snapshot import read_snapshot, replay_from
from broker.storage.read.steps import run
from broker.storage.shard import Shard, ShardSettings
from tests.manual_clock import ManualClock
from tests.storage.rig import PATHS, SECOND, Rig, Stream, dump, in_virtual_time, read_all

__all__ = ["Owners", "S", "T", "U", "owners"]

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
    """Successive owners of one shard, and the messages that its streams must have."""

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
        """Let a new owner take the shard; after ``segments`` segments it writes a checkpoint."""
        BODIES.pop(200, None)
        if newer:
            BODIES[200] = FromTheFuture
        self._opened += 1
        self.rig = Rig(self.shared, self.clock, f"b{self._opened}", self._opened, settings=ShardSettings(
            log=LogSettings(), checkpoint=CheckpointSettings(
                segments=segments, replayed_segments=1 << 30, replayed_epochs=1 << 30,
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

    async def write_unknown_record(self) -> None:
        """Write, as a newer owner, the record that older ones do not know."""
        self.stream(S).record(200, {})
        await self.shard.log.persisted()

    async def check_newer_version(self) -> None:
        """Check that a newer version has every message, from each kept checkpoint, and no other objects are kept."""
        known = BODIES.get(200)
        BODIES[200] = FromTheFuture
        try:
            for stream_id, messages in self.messages.items():
                assert await read_all(self.shared, NAMES[stream_id]) == messages
            newest = await read_snapshot(self.shared, 0)
            if newest.root is not None:
                for at, _ in newest.root.extra["roots"]:
                    again = await run(replay_from(PATHS, Position(*at), newest.state.position), self.shared)
                    assert dump(again.state) == dump(newest.state)
        finally:
            if known is None:
                del BODIES[200]
        assert dump((await read_snapshot(self.shared, 0)).state) == dump(self.shard.state)

    def data_objects(self) -> list[str]:
        return [key for key in self.shared.objects if "/log/" in key or "/runs/" in key]


def owners(main: Callable[[Owners], Any]) -> None:
    """Run ``main`` in virtual time, and restore the known kinds of records after it."""
    async def begin(clock: ManualClock) -> None:
        world = Owners(clock)
        await world.shared.put(FORMAT, [StoreFormat.make(bytes(16), 1).encode()])
        await main(world)

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(BODIES, 200, FromTheFuture)
        in_virtual_time(begin)
