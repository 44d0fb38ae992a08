"""A stream on a whole shard over a store in memory, with checkpoints and pages of subjects; the shard can be stopped or
killed, and opened again."""

from __future__ import annotations

from typing import Any

from broker.cluster.identity import Identity
from broker.cluster.ownership import seal_at, take_shard
from broker.jetstream.config.stream import StreamConfig
from broker.jetstream.stream.stream import Stream
from broker.storage.checkpoint.settings import CheckpointSettings
from broker.storage.checkpoint.subject_pages import SubjectSettings
from broker.storage.compaction.settings import CompactionSettings
from broker.storage.format.header import ObjectKind
from broker.storage.format.page import PageKind, decode_pages_directory
from broker.storage.log.settings import LogSettings
from broker.storage.objectstore.base import ObjectStore
from broker.storage.paths import parse
from broker.storage.read.cache import Cache
from broker.storage.read.reader import BlockReader
from broker.storage.shard import Shard, ShardSettings
from broker.storage.state.applied import ShardState
from tests.jetstream.stream.world import SHARD, World
from tests.storage.rig import Counting

__all__ = ["DAMAGES", "NEVER", "PagedWorld", "do_damage", "gets_of", "object_of", "settings"]

DAMAGES = ["flipped", "cut", "gone", "of another stream"]

NEVER = 1 << 60


def settings(*, blocks_min: int = 4, enabled: bool = True, rows_max: int = 1 << 18,
             compaction: CompactionSettings | None = None) -> ShardSettings:
    """Return settings with which only the test cuts checkpoints."""
    return ShardSettings(
        log=LogSettings(), sweep_grace_ns=0, compaction=compaction,
        checkpoint=CheckpointSettings(segments=NEVER, head_bytes=NEVER, empty_segments=NEVER, interval_ns=None,
                                      replayed_segments=NEVER, replayed_epochs=NEVER,
                                      subjects=SubjectSettings(blocks_min=blocks_min, rows_max=rows_max,
                                                               enabled=enabled)))


class PagedWorld(World):
    """A world with a shard: ``open`` takes it; ``reopen`` stops or kills its owner, and takes it again."""

    shard: Shard

    def _begin(self, state: ShardState) -> None:
        """Do nothing before ``open``."""

    async def open(self, store: ObjectStore | None = None, how: ShardSettings | None = None) -> None:
        """Take the shard. ``store`` is used in front of ``self.store``, or in its place."""
        self.used = store or self.store
        self.identity = Identity("paged", self.rng.randbytes(16))
        taken = await take_shard(self.used, SHARD, self.identity, self.clock, self.rng)
        self.shard = await Shard.open(self.used, SHARD, taken.epoch, self.identity.nonce, self.clock, self.rng,
                                      how or settings())
        assert self.shard.recovered.problems == []
        self.log = self.shard.log
        self.reader = BlockReader(self.used, Cache(self.cache_bytes), self.shard.key_of, SHARD)

    async def stop(self, stream: Stream, *, kill: bool = False) -> None:
        stream.close()
        if kill:
            await self.shard.abandon()
        else:
            await self.log.drain()
            end = await self.shard.close()
            await seal_at(self.used, SHARD, end, end.epoch, self.identity, self.clock, self.rng)
        await self.reader.close()

    async def reopen(self, stream: Stream, *, kill: bool = False, how: ShardSettings | None = None,
                     store: ObjectStore | None = None) -> Stream:
        """Return the stream as the next owner restores it."""
        await self.stop(stream, kill=kill)
        await self.open(store, how)
        return self.found(stream.stream_id)

    def found(self, stream_id: int) -> Stream:
        """Return a live stream from the applied state."""
        state = self.log.state.streams[stream_id]
        bus: Any = self.bus
        return Stream(StreamConfig.from_json(state.config), state, account="$G", stream_id=stream_id,
                      created_ns=state.created_ns, log=self.log, reader=self.reader, bus=bus, clock=self.clock,
                      rng=self.rng)


def gets_of(counting: Counting) -> list[str]:
    """Return the kinds of the objects that were read, in order."""
    return [ObjectKind(parsed.kind).name for operation, key in counting.calls
            if operation == "get" and (parsed := parse(key)) is not None]


def object_of(world: PagedWorld, kind: PageKind) -> tuple[str, bytes]:
    """Return key and bytes of the first object that has only pages of this kind."""
    return next((key, data) for key, data in sorted(world.store.objects.items())
                if "/pages/" in key and _kinds(key, data) == {kind})


def do_damage(world: PagedWorld, key: str, stream_id: int, damage: str) -> None:
    """Do one of ``DAMAGES`` to an object with pages of this stream."""
    data = world.store.objects.pop(key)
    if damage != "gone":
        world.store.objects[key] = {"flipped": data[:-9] + bytes([data[-9] ^ 1]) + data[-8:], "cut": data[:-9],
                                    "of another stream": data.replace(stream_id.to_bytes(8, "little"),
                                                                      bytes(8))}[damage]


def _kinds(key: str, data: bytes) -> set[int]:
    parsed = parse(key)
    assert parsed is not None
    assert parsed.position is not None
    refs = decode_pages_directory(data, parsed.position, complete=True)
    assert not isinstance(refs, int)
    return {ref.kind for ref in refs}
