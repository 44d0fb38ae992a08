"""Brokers that share a store, in virtual time and without servers: ``SharedStore`` and JetStream on common routers.

Each request to the store takes a tenth of a second, and nothing else takes time.
"""

from __future__ import annotations

import asyncio
import random
from unittest.mock import patch

import pytest

from broker.config.settings import StorageSettings
from broker.jetstream.config.stream import StreamConfig
from broker.jetstream.engine import JetStream
from broker.runtime.shard_owner import ShardOwner
from broker.runtime.shared_store import SharedStore
from broker.runtime.store_host import StoreHost
from broker.server.routing.router import Router
from broker.storage.objectstore.base import Buffers, Listing
from broker.storage.objectstore.memory import MemoryStore
from broker.storage.shard import Shard
from tests.runtime.brokers import Costly, Inline, TrustedClock
from tests.storage.rig import MS

__all__ = ["ROUND_NS", "SharedBroker", "two_brokers"]

ROUND_NS = 100 * MS


class LoggingStore(Costly):
    """Keeps the requests, each with the time at which it began."""

    def __init__(self, shared: MemoryStore, clock: TrustedClock, seed: int) -> None:
        super().__init__(shared, ROUND_NS, 0, seed)
        self.requests: list[tuple[int, str]] = []
        self._clock_of_test = clock

    def _note(self, *what: object) -> None:
        self.requests.append((self._clock_of_test.monotonic_ns(), " ".join(map(str, what))))

    async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        self._note("get", key)
        return await super().get(key, start, end)

    async def put(self, key: str, data: Buffers) -> None:
        self._note("put", key)
        await super().put(key, data)

    async def list(self, prefix: str, after: str = "", limit: int | None = None) -> Listing:
        self._note("list", prefix)
        return await super().list(prefix, after, limit)


class SharedBroker:
    """A broker without a server. The routers are those of the account A and of the system account of a cluster."""

    def __init__(self, name: str, own: int, shared: MemoryStore, clock: TrustedClock, app: Router, system: Router,
                 ) -> None:
        self.store = LoggingStore(shared, clock, own)
        settings = StorageSettings(url="s3://x/y", scrub_interval_ns=0, shards=2, own=(own,))
        with patch("broker.runtime.store_host.open_store", lambda *_, **__: self.store):
            host = StoreHost(settings, name, clock, lambda: 1 << 20)  # type: ignore[arg-type]
        host.encoders, host.store_id = Inline(), b"one"
        self.closed_ns = self.opened_ns = 0
        self._clock = clock
        self._app = app
        self.js = JetStream(clock, random.Random(1), server_name=name)
        self.shared = SharedStore(host, self.js, system, name, name, open_shard=self._open, fail=pytest.fail,
                                  connected=lambda: True, has_clients=lambda: True, damaged=pytest.fail)
        self._close, self.shared.close = self.shared.close, self._note_close  # type: ignore[method-assign]

    async def start(self) -> None:
        await self.js.add_account("A", self._app)
        self.shared.start()
        await self.shared.shards.start()

    async def _open(self, owner: ShardOwner, shard: Shard) -> None:
        await self.js.open(shard.number, shard.log, owner.reader, merger=shard.merger)
        self.opened_ns = self._clock.monotonic_ns()

    async def _note_close(self, number: int, *, given: bool) -> None:
        self.closed_ns = self._clock.monotonic_ns()
        await self._close(number, given=given)


async def two_brokers(clock: TrustedClock, *streams: str) -> tuple[Router, SharedBroker, SharedBroker]:
    """Start a broker with shard 0 and one with shard 1; create a stream in each shard by turns, with its name in lower
    case as the subject. Returns: the router of the account A, and the brokers."""
    def router() -> Router:
        return Router(clock, random.Random(1), asyncio.get_running_loop().call_soon)

    shared, app, system = MemoryStore(), router(), router()
    a, b = (SharedBroker(name, own, shared, clock, app, system) for own, name in enumerate("ab"))
    await asyncio.gather(a.start(), b.start())
    await asyncio.sleep(2)
    for at, name in enumerate(streams):
        await a.js.accounts["A"].changes.create_anywhere(StreamConfig.from_json(
            {"name": name, "subjects": [name.lower()], "metadata": {"jetblock.shard": str(at % 2)}}))
    await asyncio.sleep(2)
    return app, a, b
