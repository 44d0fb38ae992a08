"""JetStream with its real neighbours in this process: listener, router, log and reader, over a store in memory."""

from __future__ import annotations

import json
import random
from typing import Any, Self

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg

from broker.access.accounts import AccountLimits
from broker.base.clock import SystemClock
from broker.config.settings import ClientSettings, JetStreamSettings, Settings
from broker.jetstream.engine import JetStream
from broker.server.server import Server
from broker.storage.format.block import BlockRef
from broker.storage.format.header import Position
from broker.storage.log.log import Log
from broker.storage.log.settings import LogSettings
from broker.storage.objectstore.memory import MemoryStore
from broker.storage.paths import ShardPaths, block_key
from broker.storage.read.cache import Cache
from broker.storage.read.reader import BlockReader
from broker.storage.state.applied import ShardState

__all__ = ["Inside"]

_SHARD = ShardPaths(0)


class Inside:
    """A broker without a process of its own.

        async with Inside() as broker:
            answer = await broker.api("STREAM.CREATE.S", {"name": "S"})
    """

    def __init__(self, settings: JetStreamSettings | None = None, *, limits: AccountLimits | None = None,
                 opened: bool = True) -> None:
        self.clock = SystemClock()
        self.rng = random.Random(1)
        self.store = MemoryStore()
        self.settings = settings or JetStreamSettings()
        self.limits = limits or AccountLimits()
        self._opened = opened

    async def __aenter__(self) -> Self:
        self.server = Server(Settings(clients=ClientSettings(host="127.0.0.1", port=-1),
                                      jetstream=JetStreamSettings(enabled=True)),
                             self.clock)
        await self.server.start()
        self.js = JetStream(self.clock, self.rng, self.settings)
        await self.js.add_account("$G", self.server.router, self.limits)
        self.js.listen()
        self.state = ShardState()
        self.state.apply_segment(Position(1, 0))
        if self._opened:
            await self.open()
        self.client: Client = await nats.connect(f"nats://127.0.0.1:{self.server.port}")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.close()
        await self.js.close()
        await self.js.stop()
        if self._opened:
            await self.log.close()
        await self.server.close()

    async def open(self, settings: LogSettings | None = None, *, began_ns: int | None = None) -> None:
        """Restore from the applied state, as after a restart."""
        self._opened = True
        self.log = Log(self.store, _SHARD.log, 1, bytes(16), self.state, self.clock, self.rng, settings,
                       began_ns=began_ns)
        self.reader = BlockReader(self.store, Cache(1 << 24), self._key_of, _SHARD)
        await self.js.open(0, self.log, self.reader)

    def _key_of(self, ref: BlockRef) -> str:
        stream = self.state.streams[ref.stream_id]
        return block_key(_SHARD, stream.account, stream.name, ref)

    async def restart(self, settings: LogSettings | None = None, *, began_ns: int | None = None) -> None:
        """Drop everything in memory but the applied state, and start again from it."""
        await self.log.drain()
        await self.js.close()
        await self.log.close()
        await self.open(settings, began_ns=began_ns)

    async def ask(self, subject: str, body: Any = b"", *, prefix: str = "$JS.API.", seconds: float = 30.0) -> Msg:
        """Return the raw answer of an API request."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await self.client.request(prefix + subject, data, timeout=seconds)

    async def api(self, subject: str, body: Any = b"", **how: Any) -> dict[str, Any]:
        """Return the answer of an API request, decoded."""
        answer: dict[str, Any] = json.loads((await self.ask(subject, body, **how)).data)
        return answer

    async def ok(self, subject: str, body: Any = b"", **how: Any) -> dict[str, Any]:
        """Return the answer of a request that must succeed."""
        answer = await self.api(subject, body, **how)
        assert "error" not in answer, answer
        return answer

    async def error(self, subject: str, body: Any = b"", **how: Any) -> int:
        """Return the err_code of a request that must fail."""
        answer = await self.api(subject, body, **how)
        return int(answer["error"]["err_code"])

    async def pull(self, names: str, *, prefix: str = "$JS.API.") -> Msg:
        """Return the next message or status for a pull request to ``<stream>.<consumer>``.

        It uses an inbox of its own: a delivery shows the stored subject, by which a client cannot match its request.
        """
        inbox = self.client.new_inbox()
        subscription = await self.client.subscribe(inbox, max_msgs=1)
        await self.client.publish(f"{prefix}CONSUMER.MSG.NEXT.{names}", b"1", reply=inbox)
        return await subscription.next_msg(timeout=30)

    async def publish(self, subject: str, payload: bytes = b"x") -> int:
        """Publish to JetStream; returns the sequence."""
        answer = await self.client.request(subject, payload, timeout=30)
        return int(json.loads(answer.data)["seq"])

    async def refusal(self, subject: str, payload: bytes = b"x") -> dict[str, Any]:
        """Return the error of a JetStream publish that must fail."""
        error: dict[str, Any] = json.loads((await self.client.request(subject, payload, timeout=30)).data)["error"]
        return error


