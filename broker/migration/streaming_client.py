"""A client of NATS Streaming that reads channels, and finds out what a durable subscription has not acknowledged.

    messages   subscribe at a sequence, for as many messages as may be in flight, and unsubscribe; then the next ones
    unacked    resume a durable subscription that nobody uses, for one message in flight: the server redelivers all that
               is unacknowledged, and so nothing new; then close it, without an ack

Nothing is acknowledged. Only resuming changes anything at the server: the redelivery counts.

Source: nats-streaming-server, server/server.go performDurableRedelivery, sendMsgToSub.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from broker.client.connection import Connection, ConnectionFailed, NobodyAnswers
from broker.migration.errors import CannotMigrate, GaveUp, StreamFailed
from broker.streaming.wire import stan_pb2 as wire

if TYPE_CHECKING:
    from nats.aio.msg import Msg

__all__ = ["ClientIdInUse", "StreamingClient"]

_ANSWER_SECONDS = 30.0
_SILENCE_SECONDS = 20.0
"""The time without a message after which no more is expected."""
_ACK_WAIT_SECONDS = 3600
"""Longer than the messages of one subscription take to arrive, so that none comes twice."""
_WINDOW_MIN, _WINDOW_MAX = 16, 1024
_WINDOW_BYTES = 4 << 20
"""The bytes that the messages in flight should have together."""


class ClientIdInUse(Exception):
    """Raised if another client is connected with the client ID."""


class StreamingClient:
    """A client that is registered at a server; leave it with ``close``."""

    def __init__(self, connection: Connection, client_id: str) -> None:
        self._connection = connection
        self._id = client_id
        self._server = wire.ConnectResponse()

    @property
    def identity(self) -> str:
        """The identity of the server's store: it stays the same when the server starts again."""
        return self._server.pub_prefix.removeprefix("_STAN.pub.")

    @classmethod
    async def open(cls, connection: Connection, cluster_id: str, client_id: str) -> StreamingClient:
        """Register a client. Raises: ClientIdInUse; CannotMigrate; ConnectionFailed."""
        nats = connection.client
        client = cls(connection, client_id)

        async def answer(msg: Msg) -> None:
            if msg.reply and not nats.is_closed:
                await nats.publish(msg.reply)

        inbox = nats.new_inbox()
        await nats.subscribe(inbox, cb=answer)
        request = wire.ConnectRequest(client_id=client_id, heartbeat_inbox=inbox, protocol=1, conn_id=inbox.encode(),
                                      ping_interval=5, ping_max_out=3)
        try:
            data = await connection.request(f"_STAN.discover.{cluster_id}", request.SerializeToString(),
                                            _ANSWER_SECONDS)
        except NobodyAnswers:
            raise CannotMigrate(f"{connection.shown}: no nats-streaming-server with cluster ID {cluster_id!r} answers; "
                                f"give its cluster ID with --cluster-id") from None
        client._server = wire.ConnectResponse.FromString(data)
        if "already registered" in client._server.error:
            raise ClientIdInUse(client._server.error)
        if client._server.error:
            raise CannotMigrate(f"{connection.shown}: the server refuses a client: {client._server.error}")
        return client

    async def close(self) -> None:
        """End the registration, if the connection is still there."""
        request = wire.CloseRequest(client_id=self._id)
        if not self._connection.client.is_closed and not self._connection.lost.is_set():
            await self._connection.request(self._server.close_requests, request.SerializeToString(), _ANSWER_SECONDS)

    async def messages(self, channel: str, first_seq: int, last_seq: int) -> AsyncGenerator[list[wire.MsgProto], None]:
        """Yield the messages between two sequences, inclusive, in order. Sequences that were discarded are left out.

        Raises: GaveUp, if the server has sent nothing for a while; StreamFailed; ConnectionFailed.
        """
        window, next_seq = _WINDOW_MIN, first_seq
        while next_seq <= last_seq:
            msgs: list[wire.MsgProto] = []
            size = 0
            async with self._subscribed(channel, start_position=wire.SEQUENCE_START, start_sequence=next_seq,
                                        max_in_flight=window) as arriving:
                while len(msgs) < window and next_seq <= last_seq:
                    msg = await self._next(arriving, _SILENCE_SECONDS)
                    if msg is None:
                        raise GaveUp(f"the source has sent nothing after sequence {next_seq - 1} for "
                                     f"{_SILENCE_SECONDS:g} s")
                    next_seq = msg.sequence + 1
                    if msg.sequence <= last_seq:
                        msgs.append(msg)
                        size += len(msg.data)
            yield msgs
            window = min(window * 2, _WINDOW_MAX) if size < _WINDOW_BYTES else max(window // 2, _WINDOW_MIN)

    async def edge(self, channel: str, position: wire.StartPosition, silence_seconds: float) -> wire.MsgProto | None:
        """Return the message at a start position; None if the channel has no message, or none comes in time.

        Raises: StreamFailed; ConnectionFailed.
        """
        async with self._subscribed(channel, start_position=position, max_in_flight=1) as arriving:
            return await self._next(arriving, silence_seconds)

    async def unacked(self, channel: str, durable: str, queue: str, count: int) -> dict[int, int]:
        """Return the sequences that a durable subscription has not acknowledged, with their earlier redeliveries.

        ``count`` is their number, as the server shows it; messages that were discarded do not come.
        Raises: StreamFailed; ConnectionFailed.
        """
        found: dict[int, int] = {}
        async with self._subscribed(channel, start_position=wire.NEW_ONLY, max_in_flight=1, durable_name=durable,
                                    q_group=queue) as arriving:
            while len(found) < count and (msg := await self._next(arriving, 2.0)) is not None:
                if not msg.redelivered:
                    raise StreamFailed(f"durable {durable} was changed at the source meanwhile; run this again")
                found[msg.sequence] = max(msg.redelivery_count - 1, 0)
        return found

    @asynccontextmanager
    async def _subscribed(self, channel: str, **fields: Any) -> AsyncIterator[asyncio.Queue[wire.MsgProto]]:
        """Subscribe; the messages are in the queue. A durable subscription is closed afterwards, another one ends.

        Raises: StreamFailed; ConnectionFailed.
        """
        connection, nats = self._connection, self._connection.client
        arriving: asyncio.Queue[wire.MsgProto] = asyncio.Queue()

        async def on_msg(msg: Msg) -> None:
            arriving.put_nowait(wire.MsgProto.FromString(msg.data))

        inbox = nats.new_inbox()
        subscription = await nats.subscribe(inbox, cb=on_msg, pending_msgs_limit=-1, pending_bytes_limit=-1)
        request = wire.SubscriptionRequest(client_id=self._id, subject=channel, inbox=inbox,
                                           ack_wait_in_secs=_ACK_WAIT_SECONDS, **fields)
        answer = wire.SubscriptionResponse.FromString(await connection.request(
            self._server.sub_requests, request.SerializeToString(), _ANSWER_SECONDS))
        try:
            if answer.error:
                raise StreamFailed(f"the source refuses a subscription: {answer.error}")
            yield arriving
        finally:
            if not connection.lost.is_set() and not nats.is_closed:
                await subscription.unsubscribe()
                if not answer.error:
                    end = wire.UnsubscribeRequest(client_id=self._id, subject=channel, inbox=answer.ack_inbox)
                    to = self._server.sub_close_requests if request.durable_name else self._server.unsub_requests
                    await connection.request(to, end.SerializeToString(), _ANSWER_SECONDS)

    async def _next(self, arriving: asyncio.Queue[wire.MsgProto], seconds: float) -> wire.MsgProto | None:
        """Return the next message; None if none comes in time. Raises: ConnectionFailed."""
        if not arriving.empty():
            return arriving.get_nowait()
        lost, msg = asyncio.ensure_future(self._connection.lost.wait()), asyncio.ensure_future(arriving.get())
        try:
            await asyncio.wait((lost, msg), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if msg.done():
                return msg.result()
            if lost.done():
                raise ConnectionFailed(f"{self._connection.shown}: the connection was lost; run the same command again "
                                       f"to continue")
            return None
        finally:
            lost.cancel()
            msg.cancel()
