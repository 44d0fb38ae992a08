"""A NATS Streaming client for tests: it shows every answer and every delivery, and does nothing by itself.

Stock clients hide what servers send: they acknowledge, answer heartbeats, and turn errors into exceptions. The tests of
stock clients are in test_stock_clients.py.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, Self

import nats
from nats.aio.client import Client as NatsClient
from nats.aio.msg import Msg

from broker.streaming.wire import stan_pb2 as wire

__all__ = ["FIRST", "LAST", "NEW", "SEQUENCE", "TIME", "Delivery", "StanClient", "Sub"]

NEW, LAST, TIME, SEQUENCE, FIRST = range(5)

CLUSTER_ID = "test-cluster"


@dataclass(frozen=True)
class Delivery:
    """A delivered message, without its time."""

    seq: int
    data: bytes
    redelivered: int = 0
    """The redelivery count."""


@dataclass
class Sub:
    """A subscription: ``ack_inbox`` or ``error`` is the server's answer."""

    client: StanClient
    channel: str
    inbox: str
    ack_inbox: str = ""
    error: str = ""
    msgs: asyncio.Queue[wire.MsgProto] = field(default_factory=asyncio.Queue)

    async def next(self, seconds: float = 15.0) -> Delivery:
        """Return the next message, without acknowledging it."""
        async with asyncio.timeout(seconds):
            return _shown(await self.msgs.get())

    async def take(self, count: int, *, ack: bool = True) -> list[Delivery]:
        """Return the next ``count`` messages; ``ack``: acknowledge each."""
        found = []
        for _ in range(count):
            found.append(await self.next())
            if ack:
                await self.ack(found[-1].seq)
        return found

    async def rest(self, seconds: float = 0.3) -> list[Delivery]:
        """Return what comes until nothing has come for ``seconds``: a check that nothing more comes."""
        found = []
        while True:
            try:
                found.append(await self.next(seconds))
            except TimeoutError:
                return found

    async def ack(self, *seqs: int, channel: str = "") -> None:
        for seq in seqs:
            ack = wire.Ack(subject=channel or self.channel, sequence=seq)
            await self.client.nc.publish(self.ack_inbox, ack.SerializeToString())
        await self.client.nc.flush()

    async def close(self) -> str:
        """Close the subscription; return the error."""
        return await self.client.end(self.client.connected.sub_close_requests, self.channel, self.ack_inbox)

    async def unsubscribe(self) -> str:
        """Unsubscribe; return the error."""
        return await self.client.end(self.client.connected.unsub_requests, self.channel, self.ack_inbox)


class StanClient:
    """A client. ``connected`` is the answer to its last connect request."""

    def __init__(self, nc: NatsClient, client_id: str, cluster_id: str = CLUSTER_ID) -> None:
        self.nc = nc
        self.id = client_id
        self.cluster_id = cluster_id
        self.connected = wire.ConnectResponse()
        self.conn_id = b""
        self.answers_heartbeats = True
        self.heartbeats = 0
        self._beats: asyncio.Queue[None] = asyncio.Queue()
        self._guids = 0

    @classmethod
    async def open(cls, url: str | list[str], client_id: str, cluster_id: str = CLUSTER_ID, **request: Any) -> Self:
        """Connect to a server, and register the client. Raises: AssertionError, if the server refuses it."""
        client = cls(await nats.connect(url, max_reconnect_attempts=-1, reconnect_time_wait=0.1), client_id, cluster_id)
        error = await client.register(**request)
        assert not error, error
        return client

    async def register(self, **request: Any) -> str:
        """Send a connect request; return the error."""
        inbox = self.nc.new_inbox()
        await self.nc.subscribe(inbox, cb=self._on_heartbeat)
        values: dict[str, Any] = {"client_id": self.id, "heartbeat_inbox": inbox, "protocol": 1,
                                  "conn_id": inbox.encode(), "ping_interval": 5, "ping_max_out": 3} | request
        answer = await self.request(f"_STAN.discover.{self.cluster_id}", wire.ConnectRequest(**values))
        response = wire.ConnectResponse.FromString(answer)
        if not response.error:
            self.connected, self.conn_id = response, values["conn_id"]
        return response.error

    async def request(self, subject: str, body: Any, seconds: float = 20.0) -> bytes:
        """Send a request, a message or bytes; return the answer."""
        data = body if isinstance(body, bytes) else body.SerializeToString()
        return (await self.nc.request(subject, data, timeout=seconds)).data

    async def publish(self, channel: str, data: bytes = b"", **fields: Any) -> wire.PubAck:
        """Publish a message, and return the PubAck."""
        self._guids += 1
        values = {"client_id": self.id, "guid": f"{self.id}-{self._guids}", "subject": channel, "data": data,
                  "conn_id": self.conn_id} | fields
        return wire.PubAck.FromString(await self.request(f"{self.connected.pub_prefix}.{channel}",
                                                         wire.PubMsg(**values)))

    async def publish_all(self, channel: str, *datas: bytes) -> None:
        """Publish messages one after the other. Raises: AssertionError, if one is refused."""
        for data in datas:
            ack = await self.publish(channel, data)
            assert not ack.error, ack.error

    async def subscribe(self, channel: str, position: int = NEW, *, seq: int = 0, delta: int = 0, queue: str = "",
                        durable: str = "", in_flight: int = 100, ack_wait: int = 30, **fields: Any) -> Sub:
        """Subscribe; the answer is in the result."""
        sub = Sub(self, channel, self.nc.new_inbox())

        async def on_msg(msg: Msg) -> None:
            sub.msgs.put_nowait(wire.MsgProto.FromString(msg.data))

        await self.nc.subscribe(sub.inbox, cb=on_msg)
        values = {"client_id": self.id, "subject": channel, "q_group": queue, "inbox": sub.inbox,
                  "max_in_flight": in_flight, "ack_wait_in_secs": ack_wait, "durable_name": durable,
                  "start_position": position, "start_sequence": seq, "start_time_delta": delta} | fields
        response = wire.SubscriptionResponse.FromString(
            await self.request(self.connected.sub_requests, wire.SubscriptionRequest(**values)))
        sub.ack_inbox, sub.error = response.ack_inbox, response.error
        return sub

    async def end(self, subject: str, channel: str, ack_inbox: str) -> str:
        """Send a request to unsubscribe or to close a subscription; return the error."""
        request = wire.UnsubscribeRequest(client_id=self.id, subject=channel, inbox=ack_inbox)
        return wire.SubscriptionResponse.FromString(await self.request(subject, request)).error

    async def ping(self, conn_id: bytes | None = None) -> str:
        """Send a ping; return the error."""
        request = wire.Ping(conn_id=self.conn_id if conn_id is None else conn_id)
        return wire.PingResponse.FromString(await self.request(self.connected.ping_requests, request)).error

    async def close(self) -> str:
        """Close the registration, and keep the NATS connection; return the error."""
        request = wire.CloseRequest(client_id=self.id)
        return wire.CloseResponse.FromString(await self.request(self.connected.close_requests, request)).error

    async def next_heartbeats(self, count: int) -> None:
        """Return after ``count`` heartbeats have come."""
        while not self._beats.empty():
            self._beats.get_nowait()
        for _ in range(count):
            await self._beats.get()

    async def closed(self, seconds: float = 30.0) -> None:
        """Return once the server does not know this client any more: the answer to a ping says so."""
        async with asyncio.timeout(seconds):
            while not await self.ping():  # noqa: ASYNC110  # the server does not announce it
                await asyncio.sleep(0.05)

    async def _on_heartbeat(self, msg: Msg) -> None:
        self.heartbeats += 1
        self._beats.put_nowait(None)
        if self.answers_heartbeats and msg.reply:
            await self.nc.publish(msg.reply, b"")


def _shown(msg: wire.MsgProto) -> Delivery:
    assert msg.redelivered == (msg.redelivery_count > 0)
    return Delivery(msg.sequence, msg.data, msg.redelivery_count)
