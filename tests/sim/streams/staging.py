"""Staged messages in the simulation. A writer beside the brokers puts runs and requests, sometimes not all of them;
each request must be granted whole, once, or not at all.

The writer's own puts never fail: the objects that it leaves out are chosen. A client may notify the broker of a
request, or leave it to the broker's polling.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from broker.jetstream.inbox.inbox import InboxSettings
from broker.storage.format.header import ObjectKind
from broker.storage.format.request import Version
from broker.storage.format.staged import STAGED_EPOCH
from broker.storage.objectstore.memory import MemoryStore
from broker.storage.paths import ShardPaths, parse
from broker.storage.staging.answers import GRANTED, WRITER, Answer, LastVersion, answer_in
from broker.storage.staging.writer import RunWriter
from broker.storage.state.stream import StreamState
from tests.sim.streams.record import Lost, Publish, StreamRecord
from tests.sim.streams.usage import subject_of

if TYPE_CHECKING:
    from tests.sim.streams.checker import Message
    from tests.sim.streams.requests import Requests
    from tests.sim.streams.world import World

__all__ = ["Staging"]

PATHS = ShardPaths(0)
SECOND = 1_000_000_000
NOT_NOW = frozenset((10008, 10167, 10194))


class _Staged:
    """A request and its messages."""

    def __init__(self, record: StreamRecord, rows: list[Publish], version: Version | None) -> None:
        self.record = record
        self.rows = rows
        self.version = version
        """The version, if the request has a writer: each stream has one."""
        self.asked = False
        """True if its request was put."""
        self.answer: Answer | None = None
        """The answer with which it was granted, once that was seen."""


class Staging:
    """All requests of one world."""

    def __init__(self, world: World, store: MemoryStore) -> None:
        self._world = world
        self._store = store
        self._rng = random.Random(world.seed)
        self._staged: dict[int, _Staged] = {}
        self.settings = InboxSettings(poll_ns=60 * SECOND, staged_grace_ns=3600 * SECOND, in_thread=_at_once)

    def stage(self, record: StreamRecord, requests: Requests) -> None:
        """Put some messages for a stream, request that they join, and perhaps notify the broker."""
        rng, world = self._rng, self._world
        writer = RunWriter("$G", record.name, record.stream_id, now_ns=world.clock.now_ns(),
                           run_bytes=rng.choice((20, 1 << 20)),
                           block_messages=rng.choice((1, 3, 100)), randbytes=rng.randbytes)
        rows = []
        for _ in range(rng.choice((1, 4, 9))):
            row = Publish(subject_of(record.kind, rng).encode(), b"p%d" % world.next_number(), world.clock.now_ns())
            record.send(row)
            world.sent_to[row.payload] = record
            writer.add(row.subject, row.payload)
            rows.append(row)
        runs = writer.finish()
        request_id = world.next_number()
        version = Version("writer", request_id) if request_id % 2 else None
        if version is not None:
            request_id = version.request_id(record.stream_id)
        self._staged[request_id] = _Staged(record, rows, version)
        if rng.random() < 0.1:
            del runs[rng.randrange(len(runs))]
        for run in runs:
            _now(self._store.put(run.key, run.data))
        world.counts["staged"] += 1
        if rng.random() < 0.1:
            for row in rows:
                row.refused = True
            return
        asked = writer.request(version or request_id, 0)
        _now(self._store.put(asked.key, asked.data))
        self._staged[request_id].asked = True
        for _ in range(rng.choice((0, 1, 1, 1, 2))):
            named = ({"request": f"{request_id:016x}"} if version is None else
                     {"writer": version.writer, "version": version.number})
            requests.request(f"JETBLOCK.ADOPT.{record.name}", named,
                             lambda answer: self._answered(request_id, answer, requests))

    def _answered(self, request_id: int, answer: dict[str, Any], requests: Requests) -> None:
        staged = self._staged[request_id]
        record = staged.record
        if "error" in answer:
            if answer["error"]["err_code"] not in NOT_NOW:
                live = requests.process.streams().get(record.name)
                if live is not None and live.stream_id != record.stream_id:
                    return  # a stream of the same name was created since, and it answered
                if live is None and record.status in ("going", "gone"):
                    return
                if staged.answer is not None:
                    raise Lost(f"{record}: request {request_id:016x}, which was granted, is refused: {answer['error']}")
                for row in staged.rows:
                    row.refused = True
            return
        if "already" in answer:
            if staged.version is None or answer["already"] <= staged.version.number:
                raise Lost(f"{record}: request {request_id:016x} is answered {answer}")
            return
        answer_seen = Answer(request_id, GRANTED, 0, answer["first_seq"], answer["last_seq"], answer["messages"],
                      answer["duplicates"])
        self._granted(staged, answer_seen)
        for seq, row in enumerate(staged.rows, answer["first_seq"]):
            if not row.seq:
                record.pub_ack(row, {"stream": record.name, "seq": seq}, requests.process.epoch)
            record.stored.add(seq)
        self._world.counts["adopted"] += 1
        self._world.counts["adopted while blocks are compacted"] += self._world.compacts
        requests.maybe_kill(0.2)

    def _granted(self, staged: _Staged, granted: Answer) -> None:
        record, before = staged.record, staged.answer
        if (granted.messages, granted.duplicates, granted.last_seq - granted.first_seq + 1) != (len(staged.rows), 0,
                                                                                    len(staged.rows)):
            raise Lost(f"{record}: {granted} of {len(staged.rows)} messages")
        if before is not None and (before.first_seq, before.last_seq) != (granted.first_seq, granted.last_seq):
            raise Lost(f"{record}: a request was granted twice: {before}, {granted}")
        staged.answer = granted

    def check(self, stream: StreamState, messages: dict[int, Message]) -> None:
        """Compare a fresh reader's stream with the requests for it. Raises: Lost."""
        seqs = {message.payload: seq for seq, message in messages.items()}
        for request_id, staged in self._staged.items():
            if staged.record.stream_id != stream.stream_id:
                continue
            answer = self._answer_of(stream, request_id, staged, seqs)
            granted = answer is not None and answer.state == GRANTED
            if granted:
                assert answer is not None
                self._granted(staged, answer)
            elif staged.answer is not None:
                raise Lost(f"{staged.record}: request {request_id:016x} was granted, and the store has no record of it")
            for at, row in enumerate(staged.rows):
                seq = seqs.get(row.payload)
                if seq is not None and (answer is None or not granted or seq != answer.first_seq + at):
                    raise Lost(f"{staged.record}: {row.payload!r} of request {request_id:016x} is at {seq}, its answer "
                               f"is {answer}")

    def _answer_of(self, stream: StreamState, request_id: int, staged: _Staged, seqs: dict[bytes, int]
                   ) -> Answer | None:
        """Return the answer to a request, from the store. A stream keeps the last one of a writer only: an earlier one
        follows from the place of the first message that is there."""
        last = _last_version(stream)
        if staged.version is None or last is None or staged.version.number > last.number:
            return answer_in(stream.extra, request_id)
        if staged.version.number == last.number:
            return last.answer
        there = [(seqs[row.payload], at) for at, row in enumerate(staged.rows) if row.payload in seqs]
        if staged.answer is not None or not there:
            return staged.answer
        first_seq = there[0][0] - there[0][1]
        return Answer(request_id, GRANTED, 0, first_seq, first_seq + len(staged.rows) - 1, len(staged.rows))

    async def check_end(self) -> None:
        """Wait until every request is answered and gone, and, where idle time costs nothing, every run that no stream
        has. Raises: Lost."""
        world = self._world
        if not await _until(lambda: not self._requests(), 300):
            raise Lost(f"requests stay in the inbox: {self._requests()}")
        for process in world.processes:
            for stream in process.shard.state.streams.values() if process.serving and process.shard is not None else ():
                for request_id, staged in self._staged.items():
                    own = staged.asked and staged.record.stream_id == stream.stream_id
                    last = _last_version(stream)
                    if staged.version is not None and last is not None and staged.version.number <= last.number:
                        continue
                    if own and answer_in(stream.extra, request_id) is None:
                        raise Lost(f"{staged.record}: request {request_id:016x} is gone without an answer")
        if not world.leased and not await _until(lambda: not self._unnamed(), 3 * 3600):
            raise Lost(f"abandoned runs stay in the store: {self._unnamed()}")

    def _requests(self) -> list[str]:
        return [key for key in self._store.objects if key.startswith(PATHS.requests)]

    def _unnamed(self) -> list[str]:
        named = {run[:3] for process in self._world.processes if process.shard is not None
                 for run in process.shard.state.counts.runs}
        return [text for text in self._store.objects if (key := parse(text)) is not None and key.kind is ObjectKind.RUN
                and key.position is not None and key.position.epoch == STAGED_EPOCH
                and (*key.position, key.object_id) not in named]


def _last_version(stream: StreamState) -> LastVersion | None:
    packed = stream.extra.get(WRITER + "writer")
    return None if packed is None else LastVersion.unpack(packed)


async def _until(done: Callable[[], object], seconds: int) -> bool:
    """Wait until ``done()``; return False if that took too long."""
    for _ in range(0, seconds, 20):
        if done():
            return True
        await asyncio.sleep(20)
    return bool(done())


async def _at_once(call: Callable[..., Any], *args: Any) -> Any:
    return call(*args)


def _now(put: Awaitable[None]) -> None:
    """Run a call of a MemoryStore, which never waits."""
    loop_free = put.__await__()
    try:
        next(loop_free)
    except StopIteration:
        return
    raise AssertionError("a store in memory waits for nothing")


