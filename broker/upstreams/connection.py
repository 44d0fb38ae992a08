"""One connection to another NATS system, as a link for mirrors and sources: an ordinary client's connection.

    subscribe, unsubscribe, publish ──> queue ──> the client, one after the other
    messages of the other system    ──> the handler of their subscription, as they came

The client is nats-py's, which neither decodes nor queues these messages: a copy needs the bytes of their headers, and
has a queue of its own. A connection that is lost does not come back: the upstream opens another one, and each copy
begins again after its last stored message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from nats.aio.client import Client
from nats.errors import Error

from broker.protocol import headers

if TYPE_CHECKING:
    from nats.aio.subscription import Subscription as ClientSubscription

    from broker.jetstream.bus import BatchHandler

__all__ = ["RawClient", "UpstreamConnection"]

_Command = Callable[[], Any]


class RawClient(Client):
    """A client whose messages go to ``handlers``, by the number of their subscription."""

    def __init__(self) -> None:
        super().__init__()
        self.handlers: dict[int, BatchHandler] = {}

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        handler = self.handlers.get(sid)
        if handler is None:
            await super()._process_msg(sid, subject, reply, data, headers)
            return
        hlen = len(headers) if headers else 0
        handler(((subject, reply, hlen, headers + data if hlen else data),), 0, 1, None, 0)


class _Subscription:
    """A subscription of the link; ``at_client`` is the client's, once the command has been executed."""

    def __init__(self, subject: bytes, handler: BatchHandler) -> None:
        self.subject = subject
        self.handler = handler
        self.at_client: ClientSubscription | None = None


class UpstreamConnection:
    """A link through ``client``, which is connected; ``run`` executes its commands."""

    def __init__(self, client: RawClient) -> None:
        self._client = client
        self._commands: asyncio.Queue[_Command] = asyncio.Queue()

    def subscribe(self, subject: bytes, handler: BatchHandler) -> _Subscription:
        """Call ``handler`` with each message to ``subject``."""
        made = _Subscription(subject, handler)

        async def begin() -> None:
            made.at_client = await self._client.subscribe(subject.decode())
            self._client.handlers[made.at_client._id] = handler  # nats-py has no public name for it

        self._commands.put_nowait(begin)
        return made

    def unsubscribe(self, subscription: _Subscription) -> None:
        async def end() -> None:
            if (sub := subscription.at_client) is not None:
                self._client.handlers.pop(sub._id, None)
                await sub.unsubscribe()

        self._commands.put_nowait(end)

    def publish(self, subject: bytes, reply: bytes, hlen: int, body: bytes) -> int:
        """Publish one message. Return 1: the other system alone knows who receives it."""
        fields = {name.decode(): value.decode() for name, value in headers.items(body[:hlen])} if hlen else None

        async def send() -> None:
            await self._client.publish(subject.decode(), body[hlen:], reply.decode(), headers=fields)

        self._commands.put_nowait(send)
        return 1

    async def run(self) -> None:
        """Execute the commands until the connection is lost, or the task is cancelled."""
        while not self._client.is_closed:
            command = await self._commands.get()
            try:
                await command()
            except (Error, OSError, ValueError):
                if self._client.is_closed:
                    return
