"""The owner on top of a shard: scripted streams, through the same BlockOwner interface as the broker's own."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

from broker.storage.format.block import Outcome
from broker.storage.format.message_size import message_size
from broker.storage.format.records.kinds import RecordKind
from broker.storage.log.log import Log
from broker.storage.log.writer import OpenBlock, SealedBlock
from broker.storage.shard import Shard
from broker.storage.state.stream import StreamState
from tests.plain_records import add_record

if TYPE_CHECKING:
    from tests.sim.process import Broker

__all__ = ["Owner"]


class SimStream:
    """A stream with one consumer: the minimum that exercises every outcome of a block."""

    def __init__(self, owner: Owner, stream_id: int, state: StreamState | None) -> None:
        self.owner = owner
        self.stream_id = stream_id
        self.first_seq, self.last_seq = (1, 0) if state is None else (state.first_seq, state.last_seq)
        self.last_time_ns, self.bytes = (0, 0) if state is None else (state.last_time_ns, state.bytes)
        self.live: set[int] = set() if state is None else set(owner.oracle.live(state, owner.broker.paths))
        self.size = message_size(b"s", 0, bytes(12))
        self.delivered = self.floor = 0
        if state is not None:
            consumer = state.consumers["c"]
            self.delivered, self.floor = consumer.delivered_sseq, consumer.floor_sseq
        self._recorded = (self.delivered, self.floor)

    def publish(self, payloads: list[bytes], now_ns: int) -> None:
        log, oracle = self.owner.log, self.owner.oracle
        first_seq = self.last_seq + 1
        for seq, payload in enumerate(payloads, first_seq):
            oracle.offered.setdefault((self.stream_id, seq), set()).add(payload)
            self.live.add(seq)
        self.last_seq += len(payloads)
        self.last_time_ns = max(now_ns, self.last_time_ns)
        log.block(self).append_run(first_seq, [b"s"] * len(payloads), None, payloads, self.last_time_ns)
        log.urgent()
        log.wait(self.owner.when_alive, oracle.ack, self.stream_id, first_seq, payloads)

    def remove(self, first: int, last: int) -> None:
        gone = [seq for seq in range(first, last + 1) if seq in self.live]
        if not gone:
            return
        self._removing(gone)
        self.owner.log.block(self).remove(gone[0], gone[-1], len(gone), len(gone) * self.size)
        self._removed(gone)

    def trim(self, first_seq: int) -> None:
        """Drop the oldest messages, by the outcome alone."""
        gone = [seq for seq in self.live if seq < first_seq]
        if not gone:
            return
        self._removing(gone)
        # An outcome alone is not persisted; a real stream also has the message that pushed these out.
        add_record(self.owner.log.block(self), RecordKind.STREAM_UPDATE, {"config": {"trimmed": first_seq}})
        self._removed(gone)

    def deliver(self, count: int) -> None:
        self.delivered = min(self.last_seq, self.delivered + count)
        self.owner.log.lazy(self)

    def acknowledge(self, count: int, double: bool) -> None:
        self.floor = min(self.delivered, self.floor + count)
        log = self.owner.log
        log.lazy(self)
        if double:
            log.barrier(self)
            log.wait(self.owner.when_alive, self._delivered, self.delivered)

    def sealing(self, block: OpenBlock[Any]) -> None:
        before, (delivered, floor) = self._recorded, (self.delivered, self.floor)
        if before != (delivered, floor):
            self._recorded = (delivered, floor)
            new = list(range(max(before[0], floor) + 1, delivered + 1))
            add_record(block, RecordKind.CONSUMER_STATE, {
                "n": "c", "d": [delivered, delivered, 1], "f": [floor, floor], "la": 1,
                "add": [new, new, [1] * len(new)], "drop": list(range(before[1] + 1, min(floor, before[0]) + 1))})
        self.first_seq = min(self.live) if self.live else self.last_seq + 1
        block.outcome = Outcome(self.first_seq, self.last_seq, len(self.live), len(self.live) * self.size, 1)

    def persisted(self, block: SealedBlock[Any]) -> None:
        pass

    def _removing(self, gone: list[int]) -> None:
        self.owner.oracle.removing.update((self.stream_id, seq) for seq in gone)
        self.live.difference_update(gone)

    def _removed(self, gone: list[int]) -> None:
        keys = [(self.stream_id, seq) for seq in gone]
        self.owner.log.urgent()
        self.owner.log.wait(self.owner.when_alive, self.owner.oracle.removed.update, keys)

    def _delivered(self, seq: int) -> None:
        known = self.owner.oracle.delivered
        known[self.stream_id] = max(known.get(self.stream_id, 0), seq)


class Owner:
    """The owner of a shard: streams, and a client that keeps them busy."""

    def __init__(self, broker: Broker, shard: Shard) -> None:
        self.broker = broker
        self.world = broker.world
        self.shard = shard
        self.log: Log = shard.log
        self.oracle = broker.world.oracle
        self.streams = {s.stream_id: SimStream(self, s.stream_id, s) for s in shard.state.streams.values()}

    def when_alive(self, fn: Any, *args: Any) -> None:
        """Call ``fn`` as a reply: it reaches nobody if the broker is dead, and states only what the store then has."""
        if self.broker.dead:
            return
        fn(*args)
        self.world.note("reply", *args)

    def create(self) -> None:
        world = self.world
        world.streams += 1
        stream = SimStream(self, world.streams, None)
        self.streams[stream.stream_id] = stream
        block = self.log.block(stream)
        add_record(block, RecordKind.STREAM_CREATE, {"account": "$G", "name": f"s{stream.stream_id}", "config": {},
                                                     "created_ns": 1})
        add_record(block, RecordKind.CONSUMER_CREATE, {"name": "c", "config": {}, "created_ns": 1})
        self.log.urgent()
        # A late reply of an owner that was paused meanwhile does not undo its successor's.
        self.log.wait(self.when_alive, self.oracle.streams.setdefault, stream.stream_id, "made")

    def delete(self, stream: SimStream) -> None:
        del self.streams[stream.stream_id]
        self.oracle.streams[stream.stream_id] = "going"
        add_record(self.log.block(stream), RecordKind.STREAM_DELETE, {})
        self.log.urgent()
        self.log.wait(self.when_alive, self.oracle.streams.__setitem__, stream.stream_id, "gone")

    async def work(self, until_ns: int) -> None:
        """Do random operations until then, or until the log fails."""
        rng, clock, log = self.world.rng, self.world.clock, self.log
        while clock.monotonic_ns() < until_ns and log.failure is None:
            await self.broker.unpaused()
            for _ in range(rng.randint(1, 4)):
                if log.room():
                    self._do_random_operation(rng)
            await self.between(rng)
            await asyncio.sleep(rng.choice((0.0, 0.003, 0.02, 0.1, 0.6)))

    async def between(self, rng: random.Random) -> None:
        """Do what takes several turns of the loop, between the operations."""

    def _do_random_operation(self, rng: random.Random) -> None:
        if not self.streams or (len(self.streams) < 4 and rng.random() < 0.03):
            self.create()
            return
        stream = rng.choice(list(self.streams.values()))
        draw = rng.random()
        if draw < 0.60:
            stream.publish(self.world.payloads(rng.randint(1, 4)), self.broker.clock.now_ns())
        elif draw < 0.72 and stream.live:
            seq = rng.choice(sorted(stream.live))
            stream.remove(seq, seq + rng.choice((0, 0, 0, 3, 12)))
        elif draw < 0.77 and stream.live:
            stream.trim(min(stream.live) + rng.randint(1, 15))
        elif draw < 0.87:
            stream.deliver(rng.randint(1, 5))
        elif draw < 0.99:
            stream.acknowledge(rng.randint(1, 5), rng.random() < 0.4)
        elif draw < 0.993 and len(self.streams) > 1:
            self.delete(stream)
