"""Helpers for tests of the log and the modules around it: virtual time, a scripted stream, a shard."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from broker.cluster.identity import Identity
from broker.cluster.ownership import Taken, take_shard
from broker.storage.format.block import Outcome
from broker.storage.format.frames import decode_frame
from broker.storage.format.header import Position
from broker.storage.format.index import decode_index
from broker.storage.format.message_size import message_size
from broker.storage.format.record import Record
from broker.storage.format.records.expiry import NEVER, Expiry
from broker.storage.format.records.kinds import RecordKind
from broker.storage.format.records.schedule import Schedule
from broker.storage.log.log import Log
from broker.storage.log.settings import LogSettings
from broker.storage.log.writer import OpenBlock, SealedBlock
from broker.storage.objectstore.base import Buffers, ObjectStore
from broker.storage.objectstore.memory import MemoryStore
from broker.storage.objectstore.wrapper import Wrapper
from broker.storage.paths import ShardPaths, block_key
from broker.storage.read.snapshot import read_snapshot
from broker.storage.shard import Shard, ShardSettings
from broker.storage.state.applied import ShardState
from broker.storage.state.stream import StreamState
from tests.manual_clock import ManualClock
from tests.plain_records import add_record
from tests.sim.loop import SimLoop
from tests.storage.objectstore.faulty import Faults, FaultyStore

__all__ = ["PATHS", "Counting", "Publisher", "Rig", "Stream", "dump", "fast", "in_virtual_time", "read_all",
           "read_stream"]

PATHS = ShardPaths(0)
MS = 1_000_000
SECOND = 1_000_000_000
T = TypeVar("T")
C = TypeVar("C", bound=ManualClock)


def in_virtual_time(main: Callable[[C], Coroutine[Any, Any, T]],
                    make_clock: Callable[[], C] = ManualClock) -> T:  # type: ignore[assignment]
    """Run ``main(clock)`` on a loop whose sleeps take no time. Fail if the loop's exception handler was called."""
    clock = make_clock()
    loop = SimLoop(clock)
    try:
        result = loop.run_until_complete(main(clock))
        for task in asyncio.all_tasks(loop):
            task.cancel()
        # Two turns: a task cancelled by a cancelled one ends a turn later.
        loop.run_until_complete(asyncio.sleep(0))
        loop.run_until_complete(asyncio.sleep(0))
        assert not loop.errors, loop.errors
        return result
    finally:
        loop.close()


class Stream:
    """A stream that only counts: its messages are all alike, and its outcome counts added and removed messages."""

    def __init__(self, log: Log, stream_id: int = 7, name: str = "s", last_seq: int = 0, msgs: int = 0) -> None:
        self.log = log
        self.stream_id = stream_id
        self.name = name
        self.first_seq = 1
        self.last_seq = last_seq
        self.msgs = msgs
        self.lazy_records: list[tuple[int, object]] = []
        self.expires_at_ns: dict[int, int] = {}
        """The expiry times of live messages; removing a message deletes its entry."""
        self.safe_seq = 0
        self.persisted_blocks: list[SealedBlock[Any]] = []
        self.failures: list[Exception] = []

    def create(self) -> None:
        add_record(self.log.block(self), RecordKind.STREAM_CREATE, {"account": "$G", "name": self.name,
                                                                  "config": {"n": 1}, "created_ns": 1})
        self.log.urgent()

    def publish(self, count: int = 1, body: bytes = b"hello", subject: bytes = b"foo", urgent: bool = True) -> None:
        block = self.log.block(self)
        block.append_run(self.last_seq + 1, [subject] * count, None, [body] * count, 1000)
        self.last_seq += count
        self.msgs += count
        if urgent:
            self.log.urgent()

    def remove(self, first: int, last: int) -> None:
        """Remove first..last, all of which are live."""
        count = last - first + 1
        self.log.block(self).remove(first, last, count, count * message_size(b"foo", 0, b"hello"))
        self.msgs -= count
        if first == self.first_seq:
            self.first_seq = last + 1
        self.log.urgent()

    def record(self, kind: int, body: object) -> None:
        add_record(self.log.block(self), kind, body)
        self.log.urgent()

    def sealing(self, block: OpenBlock[Any]) -> None:
        for kind, body in self.lazy_records:
            add_record(block, kind, body)
        self.lazy_records.clear()
        if expiring := [seq for seq in self.expires_at_ns if block.first_seq <= seq]:
            block.add(Expiry(expiring, [self.expires_at_ns[seq] for seq in expiring]))
        if self.expires_at_ns:
            # The first of them is due again in every block, like schedules that have fired.
            seqs = sorted({min(self.expires_at_ns), *expiring})
            block.add(Schedule(seqs, [self.last_seq] * len(seqs)))
        block.outcome = Outcome(self.first_seq, self.last_seq, self.msgs, self.msgs * 43, 1000 if self.msgs else 0)

    def journaling(self, block: OpenBlock[Any], start: int) -> Sequence[Record]:
        """Add the outcome and lazy records, and return the expiries and schedules of the messages from ``start`` on."""
        listed: list[Record] = []
        seqs = [seq for seq in self.expires_at_ns if block.count and block.first_seq + start <= seq]
        if seqs:
            listed.append(Record.pack(Expiry(seqs, [self.expires_at_ns[seq] for seq in seqs]), block.last_seq))
        kept, self.expires_at_ns = self.expires_at_ns, {}
        self.sealing(block)
        self.expires_at_ns = kept
        return listed

    def safe(self, last_seq: int) -> None:
        self.safe_seq = last_seq

    def persisted(self, block: SealedBlock[Any]) -> None:
        self.persisted_blocks.append(block)

    def failed(self, error: Exception) -> None:
        self.failures.append(error)

    def withdrawn(self, fn: Callable[..., object], items: list[Any]) -> list[Any]:
        return [item for item in items if item != self.name]


class Counting(Wrapper):
    """A store that records its calls."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.calls: list[tuple[str, str]] = []

    async def put(self, key: str, data: Buffers) -> None:
        self.calls.append(("put", key))
        await self.inner.put(key, data)

    async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        self.calls.append(("get", key))
        return await self.inner.get(key, start, end)

    async def list(self, prefix: str, after: str = "", limit: int | None = None) -> Any:
        self.calls.append(("list", prefix))
        return await self.inner.list(prefix, after, limit)

    async def delete(self, key: str) -> None:
        self.calls.append(("delete", key))
        await self.inner.delete(key)


class Rig:
    """A broker's shard on a shared memory store, behind a FaultyStore of its own."""

    def __init__(self, shared: ObjectStore, clock: ManualClock, name: str = "a", seed: int = 1,
                 faults: Faults | None = None, settings: ShardSettings | None = None) -> None:
        self.shared = shared
        self.clock = clock
        self.rng = random.Random(seed * 1000 + sum(name.encode()))
        self.store = FaultyStore(shared, rng=random.Random(seed), faults=faults or Faults(latency_ns=2 * MS))
        self.me = Identity(name, self.rng.randbytes(16))
        self.settings = settings or ShardSettings()
        self.taken: Taken | None = None
        self.shard: Shard | None = None

    @property
    def log(self) -> Log:
        assert self.shard is not None
        return self.shard.log

    async def take_shard(self) -> Taken:
        """Take the shard as its new owner, without recovering it."""
        self.taken = await take_shard(self.store, PATHS, self.me, self.clock, self.rng)
        return self.taken

    async def open(self) -> Shard:
        taken = await self.take_shard()
        self.shard = await Shard.open(self.store, PATHS, taken.epoch, self.me.nonce, self.clock, self.rng,
                                      self.settings, began_ns=taken.began_ns)
        return self.shard

    def log_keys(self) -> list[Position]:
        """Positions of all entries in the log."""
        assert isinstance(self.shared, MemoryStore)
        return [Position(int(k[-21:-13], 16), int(k[-12:], 16)) for k in sorted(self.shared.objects) if "/log/" in k]


class Publisher:
    """A client of one rig's stream ``s``: publishes one by one, and records acknowledged messages."""

    def __init__(self, rig: Rig, acked: dict[int, bytes]) -> None:
        self.rig = rig
        self.acked = acked
        self.sent = 0
        known = rig.log.state.stream("$G", "s")
        self.stream = Stream(rig.log)
        if known is None:
            self.stream.create()
        else:
            self.stream.last_seq, self.stream.msgs = known.last_seq, known.msgs
            self.stream.first_seq = known.first_seq

    def publish(self) -> None:
        self.sent += 1
        body = f"{self.rig.me.name}{self.rig.log.epoch}-{self.sent}".encode()
        self.stream.publish(1, body)
        self.rig.log.wait(self._ack, self.stream.last_seq, body)

    async def publish_many(self, count: int) -> None:
        """Publish messages one after the other, each acknowledged. Raises: Fenced."""
        for _ in range(count):
            self.publish()
            await self.rig.log.persisted()

    def _ack(self, seq: int, body: bytes) -> None:
        assert self.acked.setdefault(seq, body) == body, f"sequence {seq} names two messages"


async def read_all(store: ObjectStore, name: str = "s") -> dict[int, bytes]:
    """Return every live message of a stream of shard 0, by sequence, as a reader without a broker finds it."""
    return await read_stream(store, (await read_snapshot(store, 0)).state.stream("$G", name))


async def read_stream(store: ObjectStore, stream: StreamState | None, shard: int = 0) -> dict[int, bytes]:
    """Return every live message of a stream."""
    found: dict[int, bytes] = {}
    for entry in stream.blocks if stream is not None else ():
        ref = entry.ref
        data = await store.get(block_key(ShardPaths(shard), stream.account, stream.name, ref))
        head = decode_index(data[ref.index_offset:ref.index_offset + ref.index_bytes], ref)
        for i, frame in enumerate(head.frames):
            at = ref.frames_offset + frame.offset
            chunk = decode_frame(head, i, data[at:at + frame.stored_bytes])
            for j, body in enumerate(chunk.bodies):
                seq = chunk.seq(j)
                if seq >= stream.first_seq and not entry.is_dead(seq):
                    found[seq] = body
    return found


def fast(**log: Any) -> ShardSettings:
    """Return shard settings with these log settings."""
    return ShardSettings(log=LogSettings(**log))


def dump(state: ShardState) -> dict[str, Any]:
    """Return everything that a replay must reproduce, as plain values."""
    return {
        "position": state.position,
        "names": dict(sorted(state.names.items())),
        "segments": dict(sorted(state.counts.segments.items())),
        "unreferenced": sorted(state.counts.unreferenced),
        "runs": dict(sorted(state.counts.runs.items())),
        "letgo": {at: released.to_record() for at, released in sorted(state.released.items())},
        "streams": {s.stream_id: {
            "who": (s.account, s.name, s.config, s.created_ns, s.extra, s.ceiling, s.offline),
            "outcome": s.outcome, "last_time_ns": s.last_time_ns, "position": s.position,
            "blocks": [e.pack() for e in s.blocks],
            "consumers": {c.name: c.pack() for c in s.consumers.values()},
            "expiries": tuple(map(list, s.expiries.rows(0, NEVER))),
            "schedules": tuple(map(list, s.schedules.rows(0, NEVER))),
        } for s in sorted(state.streams.values(), key=lambda s: s.stream_id)},
    }
