"""A broker in virtual time: JetStream, the shard with log, checkpoints, compaction and sweeper, over a counting store
in memory.

Only clients, sockets and the store's latency are simulated: a put takes 30 ms, as on S3.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Sequence
from typing import Any

from broker.cluster.identity import Identity
from broker.cluster.ownership import take_shard
from broker.jetstream.bus import Msg
from broker.jetstream.engine import JetStream
from broker.server.routing.router import Router
from broker.storage.compaction.settings import CompactionSettings
from broker.storage.format.header import NONCE_BYTES
from broker.storage.log.settings import LogSettings
from broker.storage.objectstore.instrumented import InstrumentedStore
from broker.storage.objectstore.memory import MemoryStore
from broker.storage.paths import ShardPaths
from broker.storage.read.cache import Cache
from broker.storage.read.reader import BlockReader
from broker.storage.shard import Shard, ShardSettings
from tests.manual_clock import ManualClock
from tests.storage.objectstore.faulty import Faults, FaultyStore

__all__ = ["SECOND", "VirtualBroker"]

SECOND = 1_000_000_000
_PATHS = ShardPaths(0)
_LATENCY_NS = 30_000_000
_CACHE_BYTES = 64 << 20


class VirtualBroker:
    """The owner of a shard. ``store`` counts requests; ``objects`` are its objects."""

    headers = True
    no_echo = False
    wants_no_responders = False
    pending_bytes = 0

    def __init__(self, clock: ManualClock, loop: asyncio.AbstractEventLoop, *, commit_interval_s: float,
                 lease_s: float = 15, compaction: bool = True, grace_s: float = 600,
                 memory: MemoryStore | None = None) -> None:
        self.clock = clock
        self.memory = memory or MemoryStore()
        self.store = InstrumentedStore(self.memory, clock=clock)
        self.settings = ShardSettings(
            log=LogSettings(commit_interval_ns=int(commit_interval_s * SECOND), lease_ns=int(lease_s * SECOND),
                            put_timeout_ns=5 * SECOND),
            sweep_grace_ns=int(grace_s * SECOND), compaction=CompactionSettings() if compaction else None)
        self._loop = loop
        self._rng = random.Random(1)
        self._answers: dict[bytes, asyncio.Future[dict[str, Any]]] = {}
        self.acked = self._sent = 0
        self.shard: Shard | None = None

    async def start(self) -> float:
        """Recover and serve; return the seconds of processor time."""
        began_s = time.process_time()
        rng, clock = self._rng, self.clock
        remote = FaultyStore(self.store, rng=rng, faults=Faults(latency_ns=_LATENCY_NS))
        me = Identity("months", rng.randbytes(NONCE_BYTES))
        self.router = Router(clock, random.Random(2), self._loop.call_soon)
        self.js = JetStream(clock, random.Random(3))
        await self.js.add_account("$G", self.router)
        self.js.listen()
        self.router.subscribe(b"_R.>", self._answered)
        self.router.subscribe(b"_A.>", self._acknowledged)
        taken = await take_shard(remote, _PATHS, me, clock, rng)
        self.shard = await Shard.open(remote, _PATHS, taken.epoch, me.nonce, clock, rng, self.settings,
                                      began_ns=taken.began_ns)
        await self.js.open(0, self.shard.log, BlockReader(remote, Cache(_CACHE_BYTES), self.shard.key_of, _PATHS))
        return time.process_time() - began_s

    async def stop(self) -> None:
        """Stop as by kill -9, but leave nothing behind in this process."""
        assert self.shard is not None
        await self.js.close(notify=False)
        await self.js.stop()
        await self.shard.abandon()

    async def ask(self, subject: str, body: Any = None) -> dict[str, Any]:
        """Send an API request; return its answer. Raises: RuntimeError if it is an error."""
        reply = b"_R.%d" % len(self._answers)
        answer = self._answers[reply] = self._loop.create_future()
        self._route([(f"$JS.API.{subject}".encode(), reply, 0, json.dumps(body).encode() if body is not None else b"")])
        answered = await answer
        if "error" in answered:
            raise RuntimeError(f"{subject}: {answered['error']}")
        return answered

    def publish(self, subjects: Sequence[bytes], bodies: Sequence[bytes], header: bytes = b"") -> None:
        """Publish messages as one read of a socket would bring them, each to be acknowledged. ``header`` has the place
        of a number, which no two messages share."""
        if not header:
            self._route([(subject, b"_A.x", 0, body) for subject, body in zip(subjects, bodies, strict=True)])
            return
        ops = []
        for subject, body in zip(subjects, bodies, strict=True):
            self._sent += 1
            head = header % self._sent
            ops.append((subject, b"_A.x", len(head), head + body))
        self._route(ops)

    def _route(self, ops: list[Msg]) -> None:
        self.router.route(ops, 0, len(ops), self, self.clock.now_ns())

    def _answered(self, ops: Sequence[Msg], start: int, end: int, source: object, now_ns: int) -> None:
        for subject, _, hlen, body in ops[start:end]:
            self._answers.pop(subject).set_result(json.loads(body[hlen:]))

    def _acknowledged(self, ops: Sequence[Msg], start: int, end: int, source: object, now_ns: int) -> None:
        self.acked += end - start

    # The interface of a client for the router and JetStream.

    def identity(self) -> dict[str, Any]:
        return {"name": "months"}

    def no_responders(self, subject: bytes, reply: bytes) -> None: ...
    def refuse_publish(self, subject: bytes) -> None: ...
    def hold(self) -> None: ...
    def release(self) -> None: ...
