"""The longest pauses of the event loop for one stream with very many blocks or message ids, and for very many streams.

    python -m bench.stalls [--blocks 1000000] [--ids 1000000] [--streams 10000] [--runs 4096]

Prints one JSON line: {operation: [ms, where]}. The broker's own parts run in this process, on a log in memory, since
publishing a million blocks would take an hour. The milliseconds are processor time of the longest turn of the loop, to
which other processes add little (``bench.turns``).
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import random
import time
from collections.abc import Awaitable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from bench.turns import MeasuredLoop, measured_loop
from broker.access.accounts import AccountLimits
from broker.base.clock import SystemClock
from broker.config.settings import ServerLimits
from broker.jetstream.config.stream import StreamConfig
from broker.jetstream.config.stream_rules import check_stream
from broker.jetstream.stream.publish.dedupe import Dedupe
from broker.jetstream.stream.stream import Stream
from broker.storage.checkpoint.checkpointer import Checkpointer
from broker.storage.checkpoint.sweeper import Sweeper
from broker.storage.format.header import Position, position_key
from broker.storage.format.records.stream_delete import StreamDelete
from broker.storage.format.request import Request
from broker.storage.log.log import Log
from broker.storage.objectstore.base import Buffers
from broker.storage.objectstore.memory import MemoryStore
from broker.storage.paths import ShardPaths, object_key
from broker.storage.read.cache import Cache
from broker.storage.read.reader import BlockReader
from broker.storage.read.snapshot import Snapshot
from broker.storage.staging.check import read_staged
from broker.storage.staging.writer import RunWriter
from broker.storage.state.applied import ShardState
from broker.storage.state.stream import StreamState

__all__ = ["main"]

PATHS = ShardPaths(0)
A_BLOCK = 10
_TURNS_AFTER = 2000
"""Number of turns of the loop for follow-up work once an operation has ended."""


class Bus:
    """Discards replies."""

    tracer = None

    def publish(self, subject: bytes, reply: bytes, hlen: int, body: bytes) -> int:
        return 1

    def pub_acks(self, *_: Any) -> None:
        pass

    pub_acks_each = count_work = pub_acks


def fill(state: ShardState, blocks: int, number: int = 7) -> StreamState:
    """Fill a stream with ``blocks`` blocks in as many segments, as replay leaves it."""
    name = "S" if number == 7 else f"S{number}"
    stream = StreamState(number, "$G", name, {"name": name, "subjects": [f"{name}.>"], "duplicate_window": 120 * 10**9},
                         1)
    state.streams[number], state.names["$G", name] = stream, number
    now = time.time_ns()
    for i in range(1, blocks + 1):
        first, last = (i - 1) * A_BLOCK + 1, i * A_BLOCK
        stream.blocks.append((1, 1, i, 0, number, 128, 160, 288, 120, 408, 90, first, last, A_BLOCK, 100 * A_BLOCK,
                              now + i, now + i, ((b"S.a", A_BLOCK, first, last),)))
        state.counts.segments[position_key(Position(1, i))] = 1
    stream.last_seq = stream.msgs = blocks * A_BLOCK
    stream.bytes = 100 * stream.msgs
    stream.first_time_ns, stream.last_time_ns = now + 1, now + blocks
    state.position = stream.position = Position(1, blocks)
    return stream


class Store(MemoryStore):
    """A store whose puts wait until ``fast`` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.fast = asyncio.Event()
        self.fast.set()

    async def put(self, key: str, data: Buffers) -> None:
        await self.fast.wait()
        await super().put(key, data)


class Later(SystemClock):
    """A clock that is two hours ahead."""

    def now_ns(self) -> int:
        return super().now_ns() + 7200 * 10**9


class Stalls:
    """A stream, and the longest pause of the loop in each of several operations."""

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self.worst: dict[str, tuple[float, str]] = {}

    async def open(self, max_age_ns: int = 0, executor: ThreadPoolExecutor | None = None) -> None:
        clock, rng, store = SystemClock(), random.Random(1), Store()
        state = ShardState()
        stored = fill(state, self.blocks)
        self.log = Log(store, PATHS.log, 1, bytes(16), state, clock, rng, executor=executor)
        snapshot = Snapshot(state, None, {}, [], False, 0, 0, 0, 0, [])
        self.store = store
        self.sweeper = Sweeper(self.log, PATHS, clock, rng)
        self.checkpointer = Checkpointer(self.log, PATHS, snapshot, rng, after_round=self.sweeper.after_round,
                                         executor=ThreadPoolExecutor(1))
        self.sweeper.start(self.checkpointer)
        given = StreamConfig.from_json({"name": "S", "subjects": ["S.>"], "max_age": max_age_ns})
        reader = BlockReader(store, Cache(1 << 20), lambda ref: object_key(PATHS, ref), PATHS)
        self.stream = Stream(check_stream(given, {}, AccountLimits(), ServerLimits()), stored, account="$G",
                             stream_id=7,
                             created_ns=1, log=self.log, reader=reader, bus=Bus(), clock=clock,
                             rng=rng)  # type: ignore[arg-type]

    async def close(self) -> None:
        await self.sweeper.stop()
        self.stream.close()
        await self.log.close()

    async def measure(self, what: str, work: Awaitable[Any]) -> None:
        """Do ``work`` and its follow-up work, without garbage collection, and record the longest turn."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, MeasuredLoop)
        gc.collect()
        gc.disable()
        await asyncio.sleep(0)
        loop.reset()
        await work
        for _ in range(_TURNS_AFTER):
            await asyncio.sleep(0)
        gc.enable()
        longest = max(loop.longest)
        self.worst[what] = longest.ms, longest.callback

    async def run(self) -> None:
        await self.open()
        blocks, stream = self.blocks, self.stream
        await self.measure("a checkpoint", self.checkpointer.cut())
        await self.measure("first look after a restart", stream.load_blocks())
        await self.measure("purge of a third", stream.purge(None, blocks // 3 * A_BLOCK + 1, 0))
        await self.measure("purge of all", self._purge())
        await self.close()
        await self.open()
        await self.stream.load_blocks()
        await self.measure("delete of the stream", self._delete())
        await self.close()
        await self.open(3600 * 10**9)
        await self.stream.load_blocks()
        self.stream.clock = Later()  # type: ignore[assignment]
        self.stream.retention._clock = Later()  # type: ignore[assignment]
        await self.measure("expiry of all by max_age", self._expire())
        await self.close()

    async def adopt(self, count: int) -> None:
        """Adopt staged messages with ids: first half of them, none a duplicate; then all, so that every second one
        is."""
        for what, step, at in (("adoption, every message with an id", 2, 1),
                               ("adoption, every second one a duplicate", 1, 2)):
            writer = RunWriter("$G", "S", 7, now_ns=time.time_ns())
            for i in range(0, count, step):
                writer.add(b"S.a", b"order", msg_id=b"order-%012d" % i)
                for run in writer.take():
                    await self.store.put(run.key, run.data)
            for run in writer.finish():
                await self.store.put(run.key, run.data)
            asked = Request(at, "$G", "S", 7, writer.entries)
            await self.measure(what, self._adopt(asked))

    async def adopt_largest(self, runs: int, subjects: int) -> None:
        """Adopt one request: ``runs`` of a block each, in which all messages together have ``subjects`` subjects."""
        writer = RunWriter("$G", "S", 7, now_ns=time.time_ns(), run_bytes=1, block_messages=subjects // runs)
        for i in range(subjects):
            writer.add(b"S.%d" % i, b"order")
            for run in writer.take():
                await self.store.put(run.key, run.data)
        for run in writer.finish():
            await self.store.put(run.key, run.data)
        asked = Request(1, "$G", "S", 7, writer.entries)
        await self.measure(f"adoption of {len(writer.entries)} runs with {subjects} subjects", self._adopt(asked))

    async def publish(self, count: int, *, spread: bool) -> None:
        """Publish messages with ids while the store is slow, so that most are in one segment, which is encoded in a
        thread as in a broker. ``spread``: over more than 0.1 s, so that each id has its own time."""
        self.store.fast.clear()
        for at in range(count):
            own = b"NATS/1.0\r\nNats-Msg-Id: " + random.randbytes(11).hex().encode() + b"\r\n\r\n"
            self.stream.publish([(b"S.a", b"", len(own), own)], 0, 1, None, time.time_ns() + 10_000 * at * spread)
            if at % 100 == 0:
                await asyncio.sleep(0)
        self.log.urgent()
        self.store.fast.set()
        await self.log.persisted()

    async def _adopt(self, request: Request) -> None:
        staged = await read_staged(self.store, request, ids_bytes_max=1 << 40,
                                   rules=self.stream.appending.subject_rules())
        await self.stream.appending.append(request.request_id, staged)

    async def _expire(self) -> None:
        self.stream.retention.expire()
        while self.stream.msgs:  # noqa: ASYNC110 (a pass tells nobody)
            await asyncio.sleep(0.001)
        await self.log.persisted()

    async def _purge(self) -> None:
        await self.stream.purge(None, 0, 0)
        await self.log.persisted()

    async def _delete(self) -> None:
        self.log.block(self.stream).add(StreamDelete())
        self.stream.close()
        self.stream.live.free_blocks()
        self.log.urgent()
        await self.log.persisted()


async def ids(count: int, stalls: Stalls) -> None:
    """Restore the ids of a window after a restart, and let all expire at once."""
    window = Dedupe(120 * 10**9, known=False, bytes_max=256 << 20)
    now = time.time_ns()
    taken = [[(seq, b"order-%012d" % seq, now + seq) for seq in range(at, at + 4096)]
             for at in range(count // 4096 * 4096, 0, -4096)]

    async def restore() -> None:
        for some in taken:
            window.restore(some, now)
            await asyncio.sleep(0)
        window.restored()

    async def expire() -> None:
        while len(window):
            window.expire(now + 240 * 10**9, 4096)
            await asyncio.sleep(0)

    await stalls.measure("ids of the window after a restart", restore())
    await stalls.measure("ids leaving the window", expire())


async def many_streams(count: int, stalls: Stalls) -> None:
    """Cut a checkpoint of streams that all changed."""
    await stalls.open()
    state = stalls.log.state
    for number in range(8, 8 + count):
        fill(state, 20, number)
    await stalls.measure(f"a checkpoint of {count} streams", stalls.checkpointer.cut())
    await stalls.close()


async def measured(blocks: int, count: int, streams: int, runs: int) -> dict[str, tuple[float, str]]:
    stalls = Stalls(blocks)
    await stalls.run()
    await ids(count, stalls)
    stalls.blocks = 0
    await stalls.open()
    await stalls.adopt(count)
    await stalls.close()
    with ThreadPoolExecutor(1) as executor:
        await stalls.open(executor=executor)
        await stalls.adopt_largest(runs, runs << 10)
        await stalls.close()
    for spread in (False, True):
        with ThreadPoolExecutor(1) as executor:
            await stalls.open(executor=executor)
            await stalls.measure("a segment of 20 000 messages with ids" + ", a time for each" * spread,
                                 stalls.publish(20_000, spread=spread))
            await stalls.close()
    await many_streams(streams, stalls)
    return stalls.worst


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--blocks", type=int, default=1_000_000)
    p.add_argument("--ids", type=int, default=1_000_000)
    p.add_argument("--streams", type=int, default=10_000)
    p.add_argument("--runs", type=int, default=4096, help="runs of a request, with 1024 subjects each")
    args = p.parse_args()
    with asyncio.Runner(loop_factory=measured_loop) as runner:
        print(json.dumps(runner.run(measured(args.blocks, args.ids, args.streams, args.runs))))


if __name__ == "__main__":
    main()
