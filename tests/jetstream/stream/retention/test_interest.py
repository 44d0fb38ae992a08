"""Compares work queues and interest streams with a model: a message is kept while some consumer needs it, across
restarts and crashes.

The model has for each consumer the set of sequences that are still to be delivered or acked. The broker is JetStream on
a real log and reader, with a cache so small that most heads must be loaded again.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from broker.access.accounts import AccountLimits
from broker.base.clock import SystemClock
from broker.config.settings import JetStreamSettings
from broker.jetstream.bus import Msg
from broker.jetstream.engine import JetStream
from broker.jetstream.stream.stream import Stream
from broker.protocol.subject import collide, subset
from broker.server.routing.router import Router
from broker.storage.format.header import Position
from broker.storage.log.log import Log
from broker.storage.log.settings import LogSettings
from broker.storage.objectstore.memory import MemoryStore
from broker.storage.paths import ShardPaths, object_key
from broker.storage.read.cache import Cache
from broker.storage.read.reader import BlockReader
from broker.storage.state.applied import ShardState
from tests.jetstream.caller import Caller

SEEDS = 18
STEPS = 40
SHARD = ShardPaths(0)
SUBJECTS = ["s.a", "s.b", "s.c.d"]
FILTERS: list[list[str]] = [[], ["s.a"], ["s.b"], ["s.*"], ["s.a", "s.c.>"], [">"]]
NAMES = ["A", "B", "C"]
POLICIES = ["explicit", "explicit", "all", "none"]


class Reader:
    """A consumer of the model, and the messages that its client received."""

    def __init__(self, filters: list[str], policy: str) -> None:
        self.filters = filters
        self.policy = policy
        self.waits: set[int] = set()
        self.got: dict[int, bytes] = {}
        """Messages delivered and not acked: sequence → ack subject."""
        self.uncertain: dict[int, bytes] = {}
        """Messages whose ack a crash may undo: sequence → ack subject."""

    def matches(self, subject: str) -> bool:
        return not self.filters or any(subset(subject.encode(), one.encode()) for one in self.filters)


class Broker:
    """JetStream without sockets. ``crash`` drops everything that is not persisted."""

    def __init__(self, cache_bytes: int, segment_count: int) -> None:
        self.clock = SystemClock()
        self.store = MemoryStore()
        self.state = ShardState()
        self.state.apply_segment(Position(1, 0))
        self.cache_bytes = cache_bytes
        self.log_settings = LogSettings(segment_count=segment_count)
        self.router = Router(self.clock, random.Random(1), asyncio.get_running_loop().call_soon)
        self.js = JetStream(self.clock, random.Random(1), JetStreamSettings())
        self.caller = Caller(self.router)
        self.deliveries: list[tuple[bytes, bytes]] = []
        self.came = asyncio.Event()
        self.router.subscribe(b"_D.*", self._on_delivery)

    async def open(self) -> None:
        if not self.js.accounts:
            await self.js.add_account("$G", self.router, AccountLimits())
            self.js.listen()
        self.log = Log(self.store, SHARD.log, 1, bytes(16), self.state, self.clock, random.Random(1),
                       self.log_settings)
        self.reader = BlockReader(self.store, Cache(self.cache_bytes), lambda ref: object_key(SHARD, ref), SHARD)
        await self.js.open(0, self.log, self.reader)

    async def crash(self) -> None:
        await self.js.close()
        await self.log.close()
        await self.reader.close()

    @property
    def stream(self) -> Stream:
        return self.js.accounts["$G"].streams["S"]

    def _on_delivery(self, ops: Sequence[Msg], start: int, end: int, source: object, now_ns: int) -> None:
        self.deliveries += [(reply, body[:hlen]) for _, reply, hlen, body in ops[start:end]]
        self.came.set()

    async def pull(self, consumer: str, batch: int) -> list[bytes]:
        """Return the ack subjects of the available messages, up to ``batch`` of them."""
        self.deliveries.clear()
        request = json.dumps({"batch": batch, "no_wait": True}).encode()
        self.send(f"$JS.API.CONSUMER.MSG.NEXT.S.{consumer}".encode(), request, b"_D.1")
        while len(replies := [reply for reply, _ in self.deliveries if reply]) < batch and not any(
                headers.startswith(b"NATS/1.0 4") for _, headers in self.deliveries):
            self.came.clear()
            await self.came.wait()
        return replies

    def send(self, subject: bytes, body: bytes, reply: bytes = b"") -> None:
        self.router.route([(subject, reply, 0, body)], 0, 1, self.caller, self.clock.now_ns())  # type: ignore[arg-type]


class History:
    """The broker and the model with the same random input."""

    def __init__(self, seed: int) -> None:
        rng = self.rng = random.Random(seed)
        self.loop = asyncio.new_event_loop()
        self.errors: list[dict[str, Any]] = []
        self.loop.set_exception_handler(lambda loop, context: self.errors.append(context))
        self.queue = seed % 3 == 0
        self.subjects: dict[int, str] = {}
        self.live: set[int] = set()
        self.readers: dict[str, Reader] = {}
        self.last_seq = 0

        async def make() -> None:
            self.broker = Broker(rng.choice([0, 1 << 20]), rng.choice([2, 5, 20_000]))
            await self.broker.open()
            await self.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"],
                                               "retention": "workqueue" if self.queue else "interest"})

        self.run(make())

    def play(self) -> None:
        """Run a history to its end."""
        steps = {self.publish: 30, self.create: 12, self.narrow: 2, self.pull: 25, self.ack: 30, self.delete: 3,
                 self.delete_msg: 2, self.purge: 1, self.crash: 4}
        for step in self.rng.choices(list(steps), list(steps.values()), k=STEPS):
            step()
            self.check_kept()
        self.end()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(asyncio.wait_for(work, 30))

    async def api(self, subject: str, body: Any = None) -> dict[str, Any]:
        answer = await self.broker.caller.api(subject, body)
        assert "error" not in answer, (subject, body, answer)
        return answer

    def end(self) -> None:
        self.run(self.drain())
        self.run(self.broker.crash())
        self.run(self.broker.js.stop())
        self.loop.close()
        assert not self.errors

    # ---- steps

    def publish(self) -> None:
        subjects = self.rng.choices(SUBJECTS, k=self.rng.randint(1, 8))

        async def work() -> None:
            answers = await asyncio.gather(*(self.broker.caller.request(subject, b"x" * 20) for subject in subjects))
            for subject, answer in zip(subjects, answers, strict=True):
                self.last_seq += 1
                assert answer == {"stream": "S", "seq": self.last_seq}
                waiting = [reader for reader in self.readers.values() if reader.matches(subject)]
                if waiting or self.queue:
                    self.live.add(self.last_seq)
                    self.subjects[self.last_seq] = subject
                for reader in waiting:
                    reader.waits.add(self.last_seq)

        self.run(work())

    def create(self) -> None:
        name, filters, policy = self.rng.choice(NAMES), self.rng.choice(FILTERS), self.rng.choice(POLICIES)
        if name in self.readers:
            return
        if self.queue:
            policy = "explicit"
            if self.readers:
                filters = [SUBJECTS[NAMES.index(name)]]
            if any(_collide(filters, reader.filters) for reader in self.readers.values()):
                return
        reader = Reader(filters, policy)
        reader.waits = {seq for seq in self.live if reader.matches(self.subjects[seq])}
        self.run(self.api(f"CONSUMER.CREATE.S.{name}", {"stream_name": "S", "config": {
            "durable_name": name, "ack_policy": policy, "filter_subjects": filters, "ack_wait": 3_600_000_000_000}}))
        self.readers[name] = reader

    def narrow(self) -> None:
        """Change filters to ones that all present filters cover."""
        name, reader = self.one(lambda reader: not self.queue)
        if reader is None or reader.filters in (["s.a"], ["s.b"]):
            return
        reader.filters = ["s.a"]
        self.run(self.api(f"CONSUMER.CREATE.S.{name}", {"stream_name": "S", "config": {
            "durable_name": name, "ack_policy": reader.policy, "filter_subjects": ["s.a"],
            "ack_wait": 3_600_000_000_000}}))
        reader.waits = {seq for seq in reader.waits if self.subjects[seq] == "s.a"}
        self.forget()

    def pull(self) -> None:
        name, reader = self.one(lambda reader: bool(reader.waits))
        if reader is None:
            return
        for reply in self.run(self.broker.pull(name, self.rng.randint(1, 9))):
            seq = int(reply.split(b".")[5])
            assert seq in reader.waits
            if reader.policy == "none":
                reader.waits.discard(seq)
                reader.uncertain[seq] = reply
            else:
                reader.got[seq] = reply
        self.left()

    def ack(self) -> None:
        _, reader = self.one(lambda reader: bool(reader.got))
        if reader is None:
            return
        body, double = self.rng.choice([b"", b"+ACK", b"+TERM", b"+TERM why"]), self.rng.random() < 0.4
        acked = self.rng.sample(sorted(reader.got), self.rng.randint(1, min(len(reader.got), 6)))
        if reader.policy == "all":
            acked = acked[:1]

        async def work() -> None:
            answers = []
            for seq in acked:
                if double:
                    answers.append(self.broker.caller.send(reader.got[seq].decode(), body))
                else:
                    self.broker.send(reader.got[seq], body)
            await asyncio.gather(*answers)
            if not double:
                await self.broker.log.persisted()

        self.run(work())
        for seq in acked:
            reader.uncertain[seq] = reader.got[seq]
            for one in [one for one in reader.got if one <= seq] if reader.policy == "all" else [seq]:
                reader.got.pop(one, None)
                reader.waits.discard(one)
            if reader.policy == "all":
                reader.waits = {one for one in reader.waits if one > seq}
            if self.queue:
                self.live.discard(seq)
        self.left()

    def delete(self) -> None:
        name, reader = self.one(lambda reader: True)
        if reader is not None:
            del self.readers[name]
            self.run(self.api(f"CONSUMER.DELETE.S.{name}"))
            self.forget()

    def delete_msg(self) -> None:
        if self.live:
            seq = self.rng.choice(sorted(self.live))
            self.run(self.api("STREAM.MSG.DELETE.S", {"seq": seq}))
            self.gone({seq})

    def purge(self) -> None:
        wanted = self.rng.choice([None, *SUBJECTS])
        self.run(self.api("STREAM.PURGE.S", {"filter": wanted} if wanted else None))
        self.gone({seq for seq in self.live if wanted in (None, self.subjects[seq])})

    def crash(self) -> None:
        """A crash may undo acks that were not answered, and deliveries: clients ack redelivered messages again."""
        persisted = self.rng.random() < 0.4

        async def work() -> None:
            if persisted:
                await self.barrier()
            await self.broker.crash()
            await self.broker.open()
            for name, reader in self.readers.items():
                for seq in sorted(reader.uncertain):
                    if reader.policy != "none" and not persisted:
                        await self.broker.caller.send(reader.uncertain[seq].decode())
                while reader.policy == "none" and not persisted and (found := await self.broker.pull(name, 20)):
                    seqs = {int(reply.split(b".")[5]) for reply in found}
                    assert seqs <= reader.waits | set(reader.uncertain)
                    reader.waits -= seqs
                reader.uncertain.clear()
            await self.barrier()

        self.run(work())
        self.left()

    def one(self, fits: Callable[[Reader], bool]) -> tuple[str, Reader | None]:
        names = [name for name, reader in self.readers.items() if fits(reader)]
        name = self.rng.choice(names) if names else ""
        return name, self.readers.get(name)

    # ---- the model

    def forget(self) -> None:
        if not self.queue:
            self.live &= set().union(*(reader.waits for reader in self.readers.values()))

    left = forget

    def gone(self, seqs: set[int]) -> None:
        self.live -= seqs
        for reader in self.readers.values():
            reader.waits -= seqs
            for seq in seqs:
                reader.got.pop(seq, None)

    # ---- checks

    async def barrier(self) -> None:
        self.broker.log.barrier(self.broker.stream)
        await self.broker.log.persisted()

    async def kept(self) -> set[int]:
        """Return the live sequences, by gets; check that the stream's numbers match them."""
        stream = self.broker.stream
        found, seq = set(), 1
        while (msg := await stream.get_next(b">", seq)) is not None:
            assert msg.subject.decode() == self.subjects[msg.seq]
            found.add(msg.seq)
            seq = msg.seq + 1
        return found

    def check_kept(self) -> None:
        async def work() -> None:
            await self.broker.stream.interest.finished()  # heads are being loaded
            kept = await self.kept()
            assert kept == self.live
            stream = self.broker.stream
            assert (stream.msgs, stream.last_seq) == (len(kept), self.last_seq)
            assert stream.first_seq == min(kept, default=stream.first_seq)

        self.run(work())

    async def drain(self) -> None:
        """Ack everything; only messages that no consumer gets remain then, in the store too."""
        for name, reader in self.readers.items():
            while True:
                for seq in sorted(reader.got):
                    await asyncio.wait_for(self.broker.caller.send(reader.got.pop(seq).decode()), 30)
                    reader.waits.discard(seq)
                    if self.queue:
                        self.live.discard(seq)
                found = await self.broker.pull(name, 20)
                if not found:
                    break
                if reader.policy != "none":
                    reader.got = {int(reply.split(b".")[5]): reply for reply in found}
        await self.barrier()
        await self.broker.stream.interest.finished()
        kept = await self.kept()
        assert not any(reader.matches(self.subjects[seq]) for seq in kept for reader in self.readers.values())
        assert self.queue or not kept
        stored = self.broker.state.streams[self.broker.stream.stream_id]
        await self.barrier()
        assert stored.msgs == len(kept)


def _collide(mine: list[str], theirs: list[str]) -> bool:
    return not mine or not theirs or any(collide(a.encode(), b.encode()) for a in mine for b in theirs)


@pytest.mark.parametrize("first", range(0, SEEDS, 6))
def test_messages_that_consumers_wait_for_are_kept(first: int) -> None:
    """Publishes, new, deleted and narrowed consumers, acks of every kind, deletes, purges, restarts, crashes."""
    for seed in range(first, first + 6):
        History(seed).play()


class Gate:
    """Blocks the reads of a store until they are released."""

    def __init__(self, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
        self.waiting: asyncio.Queue[asyncio.Event] = asyncio.Queue()
        get = broker.store.get

        async def held(*args: Any, **kwargs: Any) -> Any:
            self.waiting.put_nowait(opened := asyncio.Event())
            await opened.wait()
            return await get(*args, **kwargs)

        monkeypatch.setattr(broker.store, "get", held)


async def _delivered(broker: Broker, *consumers: str, retention: str = "interest") -> dict[str, list[bytes]]:
    """Create a stream of three messages, each in an object of its own; return where each consumer acks them."""
    call = broker.caller
    await call.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"], "retention": retention})
    for name in consumers:
        await call.api(f"CONSUMER.CREATE.S.{name}", {"stream_name": "S", "config": {
            "durable_name": name, "ack_policy": "explicit", "ack_wait": 3_600_000_000_000}})
    for _ in range(3):
        await call.request("s.a", b"x")
    return {name: await broker.pull(name, 3) for name in consumers}


async def test_an_answered_ack_is_stored_though_another_waits_for_a_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two acks are in one segment. The first message stays for another consumer; the second is removed after a read.

    The broker is killed before that read ends, and removes the message at its next start.
    """
    broker = Broker(0, 20_000)
    await broker.open()
    acks = await _delivered(broker, "A", "B")
    await broker.caller.send(acks["B"][1].decode())
    with monkeypatch.context() as patch:
        gate = Gate(broker, patch)
        first, second = (broker.caller.send(acks["A"][at].decode()) for at in (0, 1))
        await asyncio.wait_for(first, 30)
        await asyncio.wait_for(gate.waiting.get(), 30)
        assert not second.done()
        await broker.crash()
    second.cancel()
    await broker.open()
    info = await broker.caller.api("CONSUMER.INFO.S.A")
    assert (info["num_ack_pending"], info["ack_floor"]["stream_seq"]) == (1, 2)
    await broker.stream.interest.finished()
    broker.log.barrier()
    await broker.log.persisted()
    state = broker.state.streams[broker.stream.stream_id]
    assert (state.msgs, state.first_seq, "sweep" in state.extra) == (2, 1, False)
    await broker.crash()
    await broker.js.stop()


async def test_an_ack_is_answered_though_a_later_one_waits_for_a_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The messages of both acks must be read; the second ack arrives while the first message is being read."""
    broker = Broker(0, 20_000)
    await broker.open()
    acks = await _delivered(broker, "A")
    with monkeypatch.context() as patch:
        gate = Gate(broker, patch)
        first = broker.caller.send(acks["A"][0].decode())
        opened = await asyncio.wait_for(gate.waiting.get(), 30)
        second = broker.caller.send(acks["A"][1].decode())
        opened.set()
        await asyncio.wait_for(first, 30)
        assert not second.done()
        state = broker.state.streams[broker.stream.stream_id]
        assert (state.msgs, state.extra["sweep"]) == (2, [1, False])
        (await asyncio.wait_for(gate.waiting.get(), 30)).set()
        await asyncio.wait_for(second, 30)
    broker.log.barrier()
    await broker.log.persisted()
    state = broker.state.streams[broker.stream.stream_id]
    assert (state.msgs, "sweep" in state.extra) == (1, False)
    await broker.crash()
    await broker.js.stop()


async def test_a_work_queue_without_consumers_keeps_its_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start sweeps for acked messages, because one was being read when its consumer was deleted."""
    broker = Broker(0, 20_000)
    await broker.open()
    acks = await _delivered(broker, "A", retention="workqueue")
    with monkeypatch.context() as patch:
        gate = Gate(broker, patch)
        broker.send(acks["A"][0], b"")
        await asyncio.wait_for(gate.waiting.get(), 30)
        assert "error" not in await broker.caller.api("CONSUMER.DELETE.S.A")
        await broker.crash()
    stream_id = next(iter(broker.state.streams))
    assert broker.state.streams[stream_id].extra["leaving"] == 1
    await broker.open()
    await broker.stream.interest.finished()
    broker.log.barrier()
    await broker.log.persisted()
    state = broker.state.streams[stream_id]
    assert (state.msgs, "leaving" in state.extra) == (3, False)
    await broker.crash()
    await broker.js.stop()


@pytest.mark.parametrize("batched", [False, True])
async def test_an_ack_of_all_passes_a_gap_of_any_length(batched: bool) -> None:
    """A crash undoes deliveries on both sides of a gap of 2^40 sequences, and then a message beyond the gap is acked.

    Everything up to it is removed, without a step for each sequence of the gap.
    """
    broker = Broker(1 << 20, 20_000)
    await broker.open()
    await broker.caller.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"], "retention": "interest"})
    await broker.caller.api("CONSUMER.CREATE.S.A", {"stream_name": "S", "config": {
        "name": "A", "durable_name": "A", "ack_policy": "all"}})
    for _ in range(3):
        await broker.caller.request("s.a", b"x")
    await broker.caller.api("STREAM.PURGE.S", {"seq": 1 << 40})
    for _ in range(5):
        await broker.caller.request("s.a", b"x")
    acks = await broker.pull("A", 5)
    assert acks[0].split(b".")[5] == b"%d" % (1 << 40)
    await broker.crash()
    # A purge moves the stream's consumers past it; limits that remove as many messages do not.
    consumer = broker.state.streams[next(iter(broker.state.streams))].consumers["A"]
    consumer.delivered_sseq = consumer.floor_sseq = 0
    await broker.open()
    if batched:
        broker.router.route([(ack, b"", 0, b"") for ack in acks[1:3]], 0, 2, broker.caller,  # type: ignore[arg-type]
                            broker.clock.now_ns())
    else:
        await asyncio.wait_for(broker.caller.send(acks[2].decode()), 30)
    await broker.stream.interest.finished()
    info = await broker.caller.api("CONSUMER.INFO.S.A")
    assert (info["num_ack_pending"], info["ack_floor"]["stream_seq"]) == (0, (1 << 40) + 2)
    assert (await broker.caller.api("STREAM.INFO.S"))["state"]["messages"] == 2
    assert len(await broker.pull("A", 2)) == 2
    await broker.crash()
    await broker.js.stop()
