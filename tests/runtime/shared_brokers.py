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
from broker.storage.objectstore.memory import MemoryStore
from broker.storage.shard import Shard
from tests.runtime.brokers import Costly, Inline, TrustedClock
from tests.storage.rig import MS

__all__ = ["SharedBroker", "two_brokers"]


class SharedBroker:
    """A broker without a server. The routers are those of the account A and of the system account of a cluster."""

    def __init__(self, name: str, own: int, shared: MemoryStore, clock: TrustedClock, app: Router, system: Router,
                 ) -> None:
        store = Costly(shared, 100 * MS, 0, own)
        settings = StorageSettings(url="s3://x/y", scrub_interval_ns=0, shards=2, own=(own,))
        with patch("broker.runtime.store_host.open_store", lambda *_, **__: store):
            host = StoreHost(settings, name, clock, lambda: 1 << 20)  # type: ignore[arg-type]
        host.encoders, host.store_id = Inline(), b"one"
        self._app = app
        self.js = JetStream(clock, random.Random(1), server_name=name)
        self.shared = SharedStore(host, self.js, system, name, name, open_shard=self._open, fail=pytest.fail,
                                  connected=lambda: True, has_clients=lambda: True, damaged=pytest.fail)

    async def start(self) -> None:
        await self.js.add_account("A", self._app)
        self.shared.start()
        await self.shared.shards.start()

    async def _open(self, owner: ShardOwner, shard: Shard) -> None:
        await self.js.open(shard.number, shard.log, owner.reader, merger=shard.merger)


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
