"""A stream on the real log over a store in memory, with a bus that records what is published."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence
from typing import Any

from broker.access.accounts import AccountLimits
from broker.config.settings import ServerLimits
from broker.jetstream.bus import Msg
from broker.jetstream.config.consumer import ConsumerConfig
from broker.jetstream.config.stream import StreamConfig
from broker.jetstream.config.stream_rules import check_stream
from broker.jetstream.stream.stream import Stream
from broker.storage.format.header import Position
from broker.storage.format.records.consumer_state import ConsumerDelta
from broker.storage.log.log import Log
from broker.storage.log.memory_log import MemoryLog
from broker.storage.log.putter import Segment
from broker.storage.log.settings import LogSettings
from broker.storage.objectstore.memory import MemoryStore
from broker.storage.paths import ShardPaths, object_key
from broker.storage.read.cache import Cache
from broker.storage.read.reader import BlockReader
from broker.storage.state.applied import ShardState
from broker.storage.state.ids import StreamIds
from tests.manual_clock import ManualClock
from tests.storage.listening import Listening

CACHE_BYTES = 64 << 20
TINY_CACHE_BYTES = 4 << 10
"""A cache that holds hardly more than one block: loaded data is evicted unless a reference keeps it."""

SHARD = ShardPaths(0)
NONCE = bytes(range(16))


class Bus:
    """A bus that records replies: subject → payloads in order; and the headers of those that have some."""

    def __init__(self) -> None:
        self.replies: dict[bytes, list[bytes]] = {}
        self.headers: dict[bytes, bytes] = {}
        self.order: list[bytes] = []
        self.acked = 0

    def count_work(self, amount: int) -> None:
        """Ignore the work: no turn is cut short here."""

    def publish(self, subject: bytes, reply: bytes, hlen: int, body: bytes) -> int:
        self.replies.setdefault(subject, []).append(body[hlen:])
        self.order.append(subject)
        if hlen:
            self.headers[subject] = body[:hlen]
        return 1

    tracer = None

    def pub_acks(self, source: Any, replies: Sequence[bytes], prefix: bytes, first_seq: int, suffix: bytes) -> None:
        self.acked += len(replies)
        for i, reply in enumerate(replies):
            if reply:
                self.publish(reply, b"", 0, b"%b%d%b" % (prefix, first_seq + i, suffix))

    def pub_acks_each(self, acks: Sequence[Any]) -> None:
        for reply, prefix, seq in zip(acks[::3], acks[1::3], acks[2::3], strict=True):
            self.pub_acks(None, (reply,), prefix, seq, b"}")

    def answer(self, reply: bytes) -> Any:
        """The last payload sent to ``reply``, decoded."""
        return json.loads(self.replies[reply][-1])


class Source:
    """A client that counts how often it is held back."""

    def __init__(self) -> None:
        self.holds = 0
        self.held = 0

    def no_responders(self, subject: bytes, reply: bytes) -> None:
        raise AssertionError("a stream's request has no responders")

    def identity(self) -> dict[str, Any]:
        return {}

    def hold(self) -> None:
        self.holds += 1
        self.held += 1

    def release(self) -> None:
        self.holds -= 1


class Listener:
    """A consumer as the stream sees it: records its notifications."""

    def __init__(self, name: str = "c", filters: Sequence[str] = ()) -> None:
        self.name = name
        self.config = ConsumerConfig(name=name, filter_subjects=list(filters))
        self.filters = self.config.filters
        self.woken = 0
        self.gone: list[tuple[int, int, int, bytes | None, bool]] = []
        self.moved: list[int] = []
        self.delta: ConsumerDelta | None = None

    def wake(self) -> None:
        self.woken += 1

    def removed(self, first: int, last: int, msgs: int, subject: bytes | None = None, *, purged: bool = False) -> None:
        self.gone.append((first, last, msgs, subject, purged))

    def purged(self, next_seq: int) -> None:
        self.moved.append(next_seq)

    def pop_delta(self) -> ConsumerDelta | None:
        delta, self.delta = self.delta, None
        return delta


class World:
    """A store and a log with any number of streams. ``restart`` continues from the persisted state."""

    def __init__(self, *, settings: LogSettings | None = None, cache_bytes: int | None = None) -> None:
        self.clock = ManualClock()
        self.bus = Bus()
        self.store = MemoryStore()
        self.settings = settings or LogSettings()
        self.cache_bytes = CACHE_BYTES if cache_bytes is None else cache_bytes
        self.rng = random.Random(7)
        self.domain = ""
        state = ShardState()
        state.apply_segment(Position(1, 0))
        self._begin(state)

    def _begin(self, state: ShardState) -> None:
        self.log: Any = Log(self.store, SHARD.log, 1, NONCE, state, self.clock, self.rng, self.settings)
        self.reader = BlockReader(self.store, Cache(self.cache_bytes), lambda ref: object_key(SHARD, ref), SHARD)
        self.log.listen(Listening(segment_applied=self._applied))

    def _applied(self, segment: Segment) -> None:
        if segment.whole is not None:
            self.reader.admit_segment(segment.position, segment.whole)

    def stream(self, name: str = "S", **config: Any) -> Stream:
        """Create a stream, as an account does."""
        given = StreamConfig.from_json({"name": name, "subjects": [f"{name}.>"], **config})
        checked = check_stream(given, {}, AccountLimits(), ServerLimits())
        log = MemoryLog() if checked.storage == "memory" else self.log
        stream = Stream(checked, None, account="$G", stream_id=self.rng.getrandbits(62), created_ns=self.clock.now_ns(),
                        log=log, reader=self.reader, bus=self.bus, clock=self.clock, rng=self.rng,
                        domain=self.domain)  # type: ignore[arg-type]
        log.block(stream).add(stream.enforcement.create_record())
        log.urgent()
        return stream

    def update(self, stream: Stream, **changes: Any) -> asyncio.Future[None]:
        config = stream.config.to_json()
        config.update(changes)
        checked = StreamConfig.from_json(config)
        stream.log.block(stream).add(stream.enforcement.update_record(checked))
        stream.log.urgent()
        return stream.update(checked)

    async def settle(self, stream: Stream | None = None) -> None:
        """Wait until everything is sequenced and persisted."""
        if stream is not None:
            await stream.queue.quiet()
            await stream.log.persisted()
        await self.log.persisted()

    async def restart(self, stream: Stream, *, clean: bool = False, ids_in_blocks: bool = False) -> Stream:
        """Return the stream as the next process restores it; anything not persisted by now is lost.

        Args: ``ids_in_blocks``: its message ids are not in the checkpoint, as if an earlier release had written it.
        """
        if clean:
            stream.prepare_shutdown()
            await self.log.drain()
        stream.close()
        await self.log.close()
        self._begin(self.log.state)
        state = self.log.state.streams[stream.stream_id]
        if ids_in_blocks:
            state.ids = StreamIds()
            state.ids.unlisted_ns = state.last_time_ns
        again = Stream(StreamConfig.from_json(state.config), state, account="$G", stream_id=stream.stream_id,
                       created_ns=state.created_ns, log=self.log, reader=self.reader, bus=self.bus, clock=self.clock,
                       rng=self.rng)  # type: ignore[arg-type]
        return again

    async def close(self) -> None:
        await self.log.close()
        await self.reader.close()


_counter = iter(range(1, 1 << 60))


def pub(subject: bytes, payload: bytes = b"", *, reply: bytes | None = None, **headers: str) -> Msg:
    """Return a publish; header names have ``_`` for ``-``. Its reply subject is new unless given."""
    if reply is None:
        reply = b"_R.%d" % next(_counter)
    if not headers:
        return subject, reply, 0, payload
    lines = [b"%b: %b\r\n" % (name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    block = b"NATS/1.0\r\n" + b"".join(lines) + b"\r\n"
    return subject, reply, len(block), block + payload


def publish(world: World, stream: Stream, *msgs: Msg, source: Any = None) -> list[bytes]:
    """Publish messages as one run; return the reply subjects."""
    stream.publish(list(msgs), 0, len(msgs), source, world.clock.now_ns())
    return [msg[1] for msg in msgs]


async def ask(world: World, stream: Stream, msg: Msg) -> Any:
    """Publish one message and return the decoded PubAck."""
    publish(world, stream, msg)
    await world.settle(stream)
    return world.bus.answer(msg[1])


async def everything(stream: Stream) -> list[tuple[int, bytes, bytes]]:
    """Return (sequence, subject, payload) of all live messages, by gets."""
    found = []
    seq = 1
    while (msg := await stream.get_next(b">", seq)) is not None:
        found.append((msg.seq, msg.subject, msg.payload))
        seq = msg.seq + 1
    return found


async def read_all(stream: Stream, filters: Any = None) -> list[tuple[int, bytes, bytes]]:
    """Return (sequence, subject, payload) of a consumer's messages, by ``next_chunk``."""
    found: list[tuple[int, bytes, bytes]] = []
    seq = 1
    while True:
        got = stream.next_chunk(seq, filters)
        if got is None:
            return found
        if not isinstance(got, tuple):
            await got.ready
            seq = max(seq, got.seq)
            continue
        chunk, block, i = got
        for k in range(i, len(chunk)):
            at = chunk.seq(k)
            if at < stream.first_seq or (block.dead is not None and at in block.dead):
                continue
            if filters is None or filters.match(chunk.subjects[k]):
                hlen = 0 if chunk.hlens is None else chunk.hlens[k]
                found.append((at, chunk.subjects[k], chunk.bodies[k][hlen:]))
        seq = chunk.last_seq + 1


async def turns(n: int = 5) -> None:
    """Let the loop run."""
    for _ in range(n):
        await asyncio.sleep(0)
