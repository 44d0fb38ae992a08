"""A seeded simulation: one store, several brokers that may all believe they own it, and an oracle that reads it afresh.

The brokers run the real engine: ownership, recovery, log, checkpoints, sweeping, and with odd seeds compaction. Simulated
around it:

    Network     each broker's connection to the store, which refuses, loses answers, is slow, and lets puts land late, also
                after the broker's death (FaultyStore); a broker can be paused there for longer than any sweep
    Owner       streams that publish, remove, trim and keep a consumer, through the same BlockOwner interface as the
                broker's own streams
    Oracle      what was acknowledged, and whether a fresh reader of the store finds it

Faults that must be survived: any number of impatient brokers, killed at any await, paused at any store call, any
order of late puts, sweeps without grace. Not survived, and not tried: a store that loses or changes what it acknowledged.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Callable, Sequence
from typing import Any

from broker.clock import ManualClock
from broker.cluster.identity import Identity
from broker.cluster.ownership import seal_at, take
from broker.cluster.standby import wait_for_lease
from broker.storage.checkpoint.checkpointer import CheckpointSettings
from broker.storage.compaction.settings import CompactionSettings
from broker.storage.format.block import BlockRef, Outcome
from broker.storage.format.claim import Claim
from broker.storage.format.errors import CutOff, FormatError
from broker.storage.format.frame import Chunk
from broker.storage.format.header import HEADER_BYTES, ObjectHeader, ObjectKind
from broker.storage.format.index import decode_frame, decode_index
from broker.storage.format.message_size import message_size
from broker.storage.format.records.kinds import RecordKind
from broker.storage.log.log import Log
from broker.storage.log.settings import LogSettings
from broker.storage.log.writer import OpenBlock, SealedBlock
from broker.storage.objectstore.base import ObjectInfo, StoreError
from broker.storage.objectstore.faulty import Faults, FaultyStore
from broker.storage.objectstore.memory import MemoryStore
from broker.storage.paths import ShardPaths, block_key, parse
from broker.storage.put import Fenced
from broker.storage.read.snapshot import replay, run_blocking
from broker.storage.shard import Shard, ShardSettings
from broker.storage.state.applied import ShardState
from broker.storage.state.stream import StreamState
from tests.sim.loop import SimLoop

__all__ = ["Lost", "World", "eager_compaction"]

PATHS = ShardPaths(0)
SECOND = 1_000_000_000


def eager_compaction(choice: Callable[[Sequence[int]], int]) -> CompactionSettings:
    """Compaction that has a few messages for large blocks, and works all the time."""
    return CompactionSettings(
        segments=choice((2, 3, 8)), quiet_ns=choice((1, 5)) * SECOND, few=2, cpu=1.0, large_bytes=choice((200, 2000)),
        object_bytes=choice((400, 4000, 1 << 20)), block_bytes=choice((100, 1000, 1 << 20)), merge_bytes=choice((500, 1 << 20)))


class Lost(AssertionError):
    """The oracle's verdict."""


class Oracle:
    """What clients were told, and what they asked for."""

    def __init__(self, store: MemoryStore) -> None:
        self.store = store
        self.offered: dict[tuple[int, int], set[bytes]] = {}
        """(stream, seq) → payloads that some owner gave that sequence, acknowledged or not"""
        self.acked: dict[tuple[int, int], bytes] = {}
        self.removing: set[tuple[int, int]] = set()
        """A removal was asked for: the message may be there or not."""
        self.removed: set[tuple[int, int]] = set()
        """A removal was acknowledged: the message must be gone."""
        self.streams: dict[int, str] = {}
        """stream → "made", "going" or "gone", as acknowledged ("going": as asked for)"""
        self.delivered: dict[int, int] = {}
        """stream → highest delivered sequence of its consumer that was acknowledged"""
        self.checks = 0
        self._read: dict[tuple[str, int], dict[int, bytes]] = {}

    def ack(self, stream_id: int, first_seq: int, payloads: list[bytes]) -> None:
        for seq, payload in enumerate(payloads, first_seq):
            other = self.acked.setdefault((stream_id, seq), payload)
            if other != payload:
                raise Lost(f"sequence {seq} of stream {stream_id} names two messages: {other!r} and {payload!r}")

    def check(self) -> None:
        """Read the store as somebody who just came, and compare."""
        try:
            snapshot = run_blocking(replay(PATHS), self._get, self._list)
        except (FormatError, CutOff) as error:
            raise Lost(f"a fresh reader cannot read the store: {error}") from error
        self.compare(snapshot.state)

    def compare(self, state: ShardState) -> None:
        """Compare a replayed state with what was acknowledged."""
        self.checks += 1
        for stream_id, word in self.streams.items():
            there = stream_id in state.streams
            if word == "made" and not there:
                raise Lost(f"stream {stream_id}, whose creation was acknowledged, is not there at {state.position}")
            if word == "gone" and there:
                raise Lost(f"stream {stream_id}, whose deletion was acknowledged, is there at {state.position}")
        live: dict[int, dict[int, bytes]] = {}
        for stream in state.streams.values():
            if stream.offline is not None:
                raise Lost(f"{stream!r} is offline: {stream.offline}")
            live[stream.stream_id] = self._checked(stream)
        for key, payload in self.acked.items():
            stream_id, seq = key
            if stream_id not in live:
                continue
            found = live[stream_id].get(seq)
            if found is None:
                if key not in self.removing:
                    raise Lost(f"message {seq} of stream {stream_id}, acknowledged, is lost at {state.position}: "
                               f"{state.streams[stream_id]!r}")
            elif found != payload:
                raise Lost(f"message {seq} of stream {stream_id} reads {found!r}, acknowledged was {payload!r}")
            elif key in self.removed:
                raise Lost(f"message {seq} of stream {stream_id} is back, though its removal was acknowledged")
        for stream_id, seq in self.delivered.items():
            if stream_id in state.streams:
                consumer = state.streams[stream_id].consumers["c"]
                if consumer.delivered_sseq < seq:
                    raise Lost(f"the consumer of {stream_id} forgot that {seq} was delivered: {consumer.delivered_sseq}")

    def live(self, stream: StreamState) -> dict[int, bytes]:
        """The stream's messages, every one read."""
        return {seq: payload for entry in stream.blocks for seq, payload in self._payloads(stream, entry.ref).items()
                if seq >= stream.first_seq and not entry.is_dead(seq)}

    def _checked(self, stream: StreamState) -> dict[int, bytes]:
        """The same, and the invariants of the stream's state."""
        messages = self.live(stream)
        if len(messages) != stream.msgs:
            raise Lost(f"{stream!r} holds {len(messages)} messages")
        for consumer in stream.consumers.values():
            wanted = set(range(consumer.floor_sseq + 1, consumer.delivered_sseq + 1))
            if set(consumer.pending) != wanted:
                raise Lost(f"consumer of {stream!r}: pending {sorted(consumer.pending)}, not {sorted(wanted)}")
        return messages

    def _payloads(self, stream: StreamState, ref: BlockRef) -> dict[int, bytes]:
        key = block_key(PATHS, stream.account, stream.name, ref)
        if key not in self.store.objects:
            raise Lost(f"{key}, which a live block lies in, is gone")
        read = self._read.get((key, ref.core_offset))
        if read is None:
            data = self.store.objects[key]
            head = decode_index(data[ref.index_offset:ref.index_offset + ref.index_bytes], ref)
            read = {}
            for i, frame in enumerate(head.frames):
                at = ref.frames_offset + frame.offset
                chunk: Chunk = decode_frame(head, i, data[at:at + frame.stored_bytes])
                for j, body in enumerate(chunk.bodies):
                    seq = chunk.seq(j)
                    if body not in self.offered.get((ref.stream_id, seq), ()):
                        raise Lost(f"message {seq} of stream {ref.stream_id} reads {body!r}, which nobody published")
                    read[seq] = body
            self._read[key, ref.core_offset] = read
        return read

    def one_writer_each(self) -> None:
        """Every object of an epoch's log, its pages and its roots carry the nonce of its claim."""
        claims: dict[int, bytes] = {}
        for key, data in self.store.objects.items():
            parsed = parse(key)
            assert parsed is not None
            assert parsed.position is not None
            if parsed.kind == ObjectKind.CLAIM:
                claims[parsed.position.epoch] = Claim.decode(data, parsed.position.epoch).run_id
        for key, data in self.store.objects.items():
            header = ObjectHeader.unpack(data[:HEADER_BYTES], key)
            epoch = header.position.epoch
            if (header.kind in (ObjectKind.SEGMENT, ObjectKind.ROOT, ObjectKind.PAGES)
                    and header.nonce != claims[epoch]):
                raise Lost(f"{key} was written by another than epoch {epoch}'s owner")
        if sorted(claims) != list(range(1, len(claims) + 1)):
            raise Lost(f"claims are missing: {sorted(claims)}")

    def _get(self, key: str, start: int, end: int | None) -> bytes | None:
        data = self.store.objects.get(key)
        return None if data is None else data[start:end]

    def _list(self, prefix: str, after: str) -> list[ObjectInfo]:
        return [ObjectInfo(key, 0) for key in self.store._keys if key.startswith(prefix) and key > after]


class SimStream:
    """A stream with one consumer: the least that exercises every outcome a block can carry."""

    def __init__(self, owner: Owner, stream_id: int, state: StreamState | None) -> None:
        self.owner = owner
        self.stream_id = stream_id
        self.first_seq, self.last_seq = (1, 0) if state is None else (state.first_seq, state.last_seq)
        self.bytes = 0 if state is None else state.bytes
        self.live: set[int] = set() if state is None else set(owner.oracle.live(state))
        self.size = message_size(b"s", 0, bytes(12))
        self.delivered = self.floor = 0
        if state is not None:
            consumer = state.consumers["c"]
            self.delivered, self.floor = consumer.delivered_sseq, consumer.floor_sseq
        self._said = (self.delivered, self.floor)

    def publish(self, payloads: list[bytes], now_ns: int) -> None:
        log, oracle = self.owner.log, self.owner.oracle
        first_seq = self.last_seq + 1
        for seq, payload in enumerate(payloads, first_seq):
            oracle.offered.setdefault((self.stream_id, seq), set()).add(payload)
            self.live.add(seq)
        self.last_seq += len(payloads)
        log.block(self).append_run(first_seq, [b"s"] * len(payloads), None, payloads, now_ns)
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
        """Drop the oldest, by the outcome alone."""
        gone = [seq for seq in self.live if seq < first_seq]
        if not gone:
            return
        self._removing(gone)
        # An outcome alone is nothing to persist; what the real stream has then is the message that pushed these out.
        self.owner.log.block(self).add_record(RecordKind.STREAM_UPDATE, {"config": {"trimmed": first_seq}})
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
        before, (delivered, floor) = self._said, (self.delivered, self.floor)
        if before != (delivered, floor):
            self._said = (delivered, floor)
            new = list(range(max(before[0], floor) + 1, delivered + 1))
            block.add_record(RecordKind.CONSUMER_STATE, {
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
    """What runs on top of an owned shard: streams, and a client that keeps them busy."""

    def __init__(self, broker: Broker, shard: Shard) -> None:
        self.broker = broker
        self.world = broker.world
        self.shard = shard
        self.log: Log = shard.log
        self.oracle = broker.world.oracle
        self.streams = {s.stream_id: SimStream(self, s.stream_id, s) for s in shard.state.streams.values()}

    def when_alive(self, fn: Any, *args: Any) -> None:
        """A reply: it reaches nobody when the broker is dead, and only says what the store then holds."""
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
        block.add_record(RecordKind.STREAM_CREATE, {"account": "$G", "name": f"s{stream.stream_id}", "config": {},
                                                    "created_ns": 1})
        block.add_record(RecordKind.CONSUMER_CREATE, {"name": "c", "config": {}, "created_ns": 1})
        self.log.urgent()
        # Said late, by an owner that was paused meanwhile, it does not undo what the next one said.
        self.log.wait(self.when_alive, self.oracle.streams.setdefault, stream.stream_id, "made")

    def delete(self, stream: SimStream) -> None:
        del self.streams[stream.stream_id]
        self.oracle.streams[stream.stream_id] = "going"
        self.log.block(stream).add_record(RecordKind.STREAM_DELETE, {})
        self.log.urgent()
        self.log.wait(self.when_alive, self.oracle.streams.__setitem__, stream.stream_id, "gone")

    async def work(self, until_ns: int) -> None:
        """Keep busy until then, or until the log fails."""
        rng, clock, log = self.world.rng, self.world.clock, self.log
        while clock.monotonic_ns() < until_ns and log.failure is None:
            await self.broker.unpaused()
            for _ in range(rng.randint(1, 4)):
                if log.room():
                    self._something(rng)
            await asyncio.sleep(rng.choice((0.0, 0.003, 0.02, 0.1, 0.6)))

    def _something(self, rng: random.Random) -> None:
        if not self.streams or (len(self.streams) < 4 and rng.random() < 0.03):
            self.create()
            return
        stream = rng.choice(list(self.streams.values()))
        draw = rng.random()
        if draw < 0.60:
            stream.publish(self.world.payloads(rng.randint(1, 4)), self.world.clock.now_ns())
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


class Broker:
    """One process run after another, under one name."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.dead = True
        self.owner: Owner | None = None
        self.store: FaultyStore | None = None
        self._paused: asyncio.Event | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """A new process."""
        self.dead = False
        world = self.world
        self.store = FaultyStore(world.shared, rng=random.Random(world.rng.getrandbits(64)), faults=world.faults)
        self.store.before = self.store.after = self._passing
        self._task = asyncio.get_running_loop().create_task(self._life(), name=self.name)

    def kill(self) -> None:
        """kill -9: nothing that has not reached the store ever will, but for what is late in the network."""
        self.dead = True
        assert self.store is not None
        assert self._task is not None
        self.store.halt()
        self.world.injected.update(self.store.injected)
        if self.owner is not None:
            self.owner.log.fail(Fenced("killed"), tell=False)
        self._task.cancel()
        self.owner = None
        self.resume()

    def pause(self) -> None:
        """Stop at the next call of the store, there or back, and publish nothing."""
        if self._paused is None:
            self._paused = asyncio.Event()

    def resume(self) -> None:
        if self._paused is not None:
            self._paused.set()
            self._paused = None

    async def unpaused(self) -> None:
        while self._paused is not None:
            await self._paused.wait()

    async def _passing(self, operation: str, key: str) -> None:
        await self.unpaused()

    async def _life(self) -> None:
        world, rng = self.world, self.world.rng
        store = self.store
        assert store is not None
        me = Identity(self.name, rng.randbytes(16))
        while True:
            run_rng = random.Random(rng.getrandbits(64))
            shard: Shard | None = None
            try:
                if rng.random() < 0.5:
                    await wait_for_lease(store, PATHS, me, world.clock, run_rng, world.lease_ns)
                taken = await take(store, PATHS, me, world.clock, run_rng)
                shard = await Shard.open(store, PATHS, taken.epoch, me.nonce, world.clock, run_rng, world.settings(),
                                         began_ns=taken.began_ns)
                world.opened(self, taken.epoch, shard.state)
                self.owner = Owner(self, shard)
                await self.owner.work(world.clock.monotonic_ns() + rng.randint(2, 60) * SECOND)
                if shard.log.failure is not None:
                    raise shard.log.failure
                world.note("clean stop", self.name)
                end = await shard.close(checkpoint=rng.random() < 0.7)
                await seal_at(store, PATHS, end, taken.epoch, me, world.clock, run_rng)
            except (Fenced, StoreError, CutOff) as error:
                world.note("ended", self.name, type(error).__name__)
            finally:
                self.owner = None
                if shard is not None:
                    world.deleted += shard.sweeper.deleted
                if shard is not None and not self.dead:
                    await shard.abandon()
            await asyncio.sleep(rng.choice((0.0, 0.5, 5.0)))


class World:
    """One run of one seed."""

    def __init__(self, seed: int, *, brokers: int = 3, seconds: int = 90, fault_factor: float | None = None) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.clock = ManualClock()
        self.loop = SimLoop(self.clock)
        self.shared = MemoryStore()
        self.oracle = Oracle(self.shared)
        factor = self.rng.choice((0.0, 0.3, 1.0, 2.0)) if fault_factor is None else fault_factor
        self.faults = Faults(slow=0.10, slow_ns_max=2 * SECOND, refused=0.02, unanswered=0.02, lost=0.01, late=0.02,
                             late_ns_max=20 * SECOND, latency_ns=self.rng.choice((0, 2_000_000, 20_000_000)),
                             timeout_ns=3 * SECOND).scaled(factor)
        self.lease_ns = self.rng.choice((3, 6)) * SECOND
        self.seconds = seconds
        self.brokers = [Broker(self, f"b{i}") for i in range(brokers)]
        self.streams = 0
        self.epochs: dict[int, str] = {}
        self.deleted = 0
        """Objects swept."""
        self.injected: set[str] = set()
        """Kinds of fault that happened."""
        self._payload = 0
        self._digest = hashlib.sha256()

    def run(self) -> str:
        """Run to the end; returns a digest of all that happened. Raises: Lost, and whatever else went wrong."""
        try:
            self.loop.run_until_complete(self._main())
            if self.loop.errors:
                context = self.loop.errors[0]
                raise Lost(f"the loop's exception handler was called: {context['message']}") from context.get("exception")
            self.oracle.check()
            self.oracle.one_writer_each()
            for key in sorted(self.shared.objects):
                self._digest.update(key.encode() + hashlib.sha256(self.shared.objects[key]).digest())
            return self._digest.hexdigest()
        except Lost as lost:
            raise Lost(f"seed {self.seed}: {lost}") from lost
        finally:
            self.loop.end()

    def note(self, *what: Any) -> None:
        """Part of the digest."""
        self._digest.update(repr((self.clock.monotonic_ns(), what)).encode())

    def opened(self, broker: Broker, epoch: int, state: ShardState) -> None:
        """A broker recovered: what he will serve is compared too."""
        if epoch in self.epochs:
            raise Lost(f"epoch {epoch} was opened by {self.epochs[epoch]} and by {broker.name}")
        self.epochs[epoch] = broker.name
        self.note("opened", broker.name, epoch)
        end = state.position
        newest = max(self.epochs)
        if newest == epoch:
            # Nobody opened a later epoch, so what was acknowledged until now must be in there.
            self.oracle.compare(state)
        assert end.epoch == epoch

    def payloads(self, count: int) -> list[bytes]:
        self._payload += count
        return [b"%012d" % (self._payload - i) for i in range(count)]

    def settings(self) -> ShardSettings:
        rng = self.rng
        return ShardSettings(
            log=LogSettings(segment_bytes=rng.choice((60, 200, 4 << 20)), puts_in_flight=rng.choice((1, 2, 4)),
                            commit_interval_ns=rng.choice((0, 0, 20_000_000)), lease_ns=self.lease_ns,
                            put_timeout_ns=2 * SECOND),
            checkpoint=CheckpointSettings(segments=rng.choice((3, 8, 20)), replayed_segments=10, replayed_epochs=3),
            sweep_grace_ns=0, compaction=eager_compaction(rng.choice) if self.seed % 2 else None)

    async def _main(self) -> None:
        rng = self.rng
        for broker in self.brokers:
            broker.start()
        end_ns = self.seconds * SECOND
        next_check_ns = 0
        while self.clock.monotonic_ns() < end_ns:
            await asyncio.sleep(rng.expovariate(1 / 1.5))
            broker = rng.choice(self.brokers)
            draw = rng.random()
            if draw < 0.10:
                broker.kill()
                self.note("killed", broker.name)
                await asyncio.sleep(rng.choice((0.0, 1.0)))
                broker.start()
            elif draw < 0.35:
                broker.pause()
            elif draw < 0.60:
                for other in self.brokers:
                    if rng.random() < 0.5:
                        other.resume()
            if self.clock.monotonic_ns() >= next_check_ns:
                next_check_ns = self.clock.monotonic_ns() + 3 * SECOND
                self.oracle.check()
        for broker in self.brokers:
            broker.kill()
        # What is late in the network lands, and is checked after.
        for broker in self.brokers:
            assert broker.store is not None
            await broker.store.late_puts_done()
