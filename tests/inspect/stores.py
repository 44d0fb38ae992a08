"""Stores with content, written by the real engine: ownership, log, checkpoints."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from broker.cluster.identity import Identity
from broker.cluster.ownership import seal_at, take_shard
from broker.storage.checkpoint.settings import CheckpointSettings
from broker.storage.checkpoint.subject_pages import SubjectSettings
from broker.storage.format.block import Outcome
from broker.storage.format.message_size import message_size
from broker.storage.format.record import Record
from broker.storage.format.records.kinds import RecordKind
from broker.storage.format.store import StoreFormat
from broker.storage.log.settings import LogSettings
from broker.storage.log.writer import OpenBlock, SealedBlock
from broker.storage.objectstore.base import ObjectStore
from broker.storage.paths import FORMAT, ShardPaths
from broker.storage.shard import Shard, ShardSettings
from tests.manual_clock import ManualClock
from tests.plain_records import add_record

PATHS = ShardPaths(0)
T0 = 1_700_000_000_000_000_000
STORE_ID = bytes(range(16))

Row = tuple[int, bytes, bytes, bytes, int]
"""A message: seq, subject, headers, data, time_ns."""


class Stream:
    """A stream that remembers its expected content."""

    def __init__(self, owner: Owner, stream_id: int, name: str, account: str = "$G") -> None:
        self.owner = owner
        self.stream_id = stream_id
        self.name = name
        self.account = account
        self.last_seq = 0
        self.live: dict[int, Row] = {}

    def create(self) -> None:
        block = self.owner.log.block(self)
        add_record(block, RecordKind.STREAM_CREATE, {"account": self.account, "name": self.name, "created_ns": T0,
                                                     "config": {"name": self.name, "subjects": [f"{self.name}.>"]}})
        add_record(block, RecordKind.CONSUMER_CREATE, {"name": "c", "config": {"durable_name": "c"}, "created_ns": T0})
        self.owner.log.urgent()

    def publish(self, *rows: tuple[str, bytes, bytes]) -> None:
        """Publish messages at one time; each row has a subject, a header block and a payload."""
        self.owner.clock.advance(1_000_000)
        now_ns = self.owner.clock.now_ns()
        first = self.last_seq + 1
        subjects = [subject.encode() for subject, _, _ in rows]
        hlens = [len(headers) for _, headers, _ in rows]
        self.owner.log.block(self).append_run(first, subjects, hlens if any(hlens) else None,
                                              [headers + data for _, headers, data in rows], now_ns)
        for seq, (subject, headers, data) in enumerate(rows, first):
            self.live[seq] = (seq, subject.encode(), headers, data, now_ns)
        self.last_seq += len(rows)
        self.owner.log.urgent()

    def remove(self, first: int, last: int) -> None:
        gone = [self.live.pop(seq) for seq in range(first, last + 1) if seq in self.live]
        self.owner.log.block(self).remove(first, last, len(gone), sum(map(_size, gone)))
        self.owner.log.urgent()

    def deliver(self, upto: int, floor: int) -> None:
        new = list(range(floor + 1, upto + 1))
        add_record(self.owner.log.block(self), RecordKind.CONSUMER_STATE, {
            "n": "c", "d": [upto, upto, T0 + 9], "f": [floor, floor], "la": T0 + 9,
            "add": [new, new, [T0 + 9] * len(new)], "re": {new[-1]: 2} if new else {}})
        self.owner.log.urgent()

    def journaling(self, block: OpenBlock[Any], start: int) -> Sequence[Record]:
        self.sealing(block)
        return ()

    def sealing(self, block: OpenBlock[Any]) -> None:
        rows = list(self.live.values())
        first = rows[0] if rows else None
        block.outcome = Outcome(first[0] if first else self.last_seq + 1, self.last_seq, len(rows),
                                sum(map(_size, rows)), first[4] if first else 0)

    def safe(self, last_seq: int) -> None:
        pass

    def persisted(self, block: SealedBlock[Any]) -> None:
        pass


def _size(row: Row) -> int:
    return message_size(row[1], len(row[2]), row[2] + row[3])


class Owner:
    """An owner of a store, with one process run after another."""

    def __init__(self, store: ObjectStore, *, seed: int = 1, shard: int = 0, **log: Any) -> None:
        self.store = store
        self.paths = ShardPaths(shard)
        self.rng = random.Random(seed)
        self.clock = ManualClock(T0)
        self.settings = ShardSettings(
            log=LogSettings(**log), sweep_grace_ns=0,
            checkpoint=CheckpointSettings(segments=1 << 30, subjects=SubjectSettings(blocks_min=2)))
        self.streams: dict[str, Stream] = {}
        self.shard: Shard
        self.me: Identity
        self.epoch = 0

    @property
    def log(self) -> Any:
        return self.shard.log

    async def start(self, name: str = "broker-a") -> None:
        """Claim the shard for a new process run."""
        if not await self.store.list(FORMAT):
            await self.store.put(FORMAT, [StoreFormat.make(STORE_ID, T0).encode()])
        self.me = Identity(name, self.rng.randbytes(16))
        taken = await take_shard(self.store, self.paths, self.me, self.clock, self.rng)
        self.epoch = taken.epoch
        self.shard = await Shard.open(self.store, self.paths, taken.epoch, self.me.nonce, self.clock, self.rng,
                                      self.settings)

    async def stream(self, name: str) -> Stream:
        stream = self.streams[name] = Stream(self, self.rng.getrandbits(64), name)
        stream.create()
        await self.log.persisted()
        return stream

    async def round(self) -> None:
        """Cut a checkpoint and release what is no longer needed."""
        checkpointer = self.shard.checkpointer
        assert await checkpointer.cut()
        await self.shard.sweeper.after_round(checkpointer)
        self.log.urgent()
        await self.log.persisted()

    async def stop(self) -> None:
        """Stop cleanly."""
        end = await self.shard.close()
        await seal_at(self.store, self.paths, end, self.epoch, self.me, self.clock, self.rng)

    async def kill(self) -> None:
        await self.shard.abandon()


async def filled(store: ObjectStore) -> Owner:
    """Fill a store by three process runs: two streams, removals, a consumer, checkpoints, segments beyond them.

    The last run is not ended: stop or kill it.
    """
    owner = Owner(store)
    await owner.start()
    orders, logs = await owner.stream("ORDERS"), await owner.stream("logs")
    header = b"NATS/1.0\r\nNats-Msg-Id: 1\r\n\r\n"
    for i in range(4):
        orders.publish((f"ORDERS.eu.{i}", header, b"order %d" % i), (f"ORDERS.us.{i}", b"", b"\xff" * 10))
        logs.publish(*[(f"logs.{n % 40}", b"", b"line %d of a log that repeats itself " % n * 40) for n in range(300)])
        await owner.log.persisted()
    await owner.round()
    orders.remove(2, 3)
    orders.deliver(5, 2)
    await owner.log.persisted()
    await owner.kill()
    await owner.start()
    orders.publish(("ORDERS.eu.9", b"", b"after the kill"))
    await owner.log.persisted()
    await owner.round()
    logs.remove(1, 450)
    await owner.log.persisted()
    await owner.stop()
    await owner.start("broker-b")
    orders.publish(("ORDERS.us.9", header, b"the last"))
    await owner.log.persisted()
    return owner
