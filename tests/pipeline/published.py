"""Stores written by a broker and a client, to be read with Spark: in a directory or a bucket."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import nats
from nats.js.api import ConsumerConfig, StreamConfig

from tests.harness import BrokerProcess

__all__ = ["Message", "Published", "broker_on", "publish", "published"]

MESSAGES = 600
"""Number of messages in ORDERS for each of the two runs of the broker."""


class Message(NamedTuple):
    """A message as published. headers: the block as sent on the wire, or None."""

    seq: int
    subject: str
    headers: bytes | None
    data: bytes


@dataclass
class Published:
    """A store and its expected content: the live messages of each stream, in order."""

    url: str
    environ: Mapping[str, str] = field(default_factory=dict)
    streams: dict[str, list[Message]] = field(default_factory=dict)

    def options(self, stream: str = "ORDERS", **more: Any) -> dict[str, Any]:
        """The options of a query."""
        return {"store": self.url, "stream": stream, **more}


@contextlib.asynccontextmanager
async def broker_on(url: str, environ: Mapping[str, str] | None = None) -> AsyncIterator[tuple[BrokerProcess, Any]]:
    """A broker on this store and a client of it; the broker ends cleanly."""
    async with BrokerProcess("-js", "--store", url, environ=environ) as broker:
        nc = await nats.connect(broker.url)
        yield broker, nc
        if not nc.is_closed:
            await nc.close()
        await broker.stop()


async def publish(js: Any, messages: list[tuple[str, dict[str, str] | None, bytes]]) -> list[Message]:
    """Publish all messages at once; they are sequenced in this order."""
    acks = await asyncio.gather(*(js.publish(subject, data, headers=headers) for subject, headers, data in messages))
    return [Message(ack.seq, subject, _block(headers), data)
            for ack, (subject, headers, data) in zip(acks, messages, strict=True)]


async def published(url: str, environ: Mapping[str, str] | None = None) -> Published:
    """Streams of two runs of a broker, the first one killed.

    ORDERS: ``orders.REGION.N`` with headers on each third, single messages deleted and a subject purged. LOGS and
    LOGS2: the last 100 messages of ``logs.N`` and some of ``logs2.x``. A consumer of ORDERS, ``worker``, acked ten
    messages.
    """
    store = Published(url, environ or {})
    orders: list[Message] = []
    logs: list[Message] = []
    async with BrokerProcess("-js", "--store", url, environ=environ) as broker:
        for run in range(2):
            nc = await nats.connect(broker.url)
            js = nc.jetstream()
            if not run:
                await js.add_stream(StreamConfig(name="ORDERS", subjects=["orders.*.*"]))
                await js.add_stream(StreamConfig(name="LOGS", subjects=["logs.>"], max_msgs=100))
                await js.add_stream(StreamConfig(name="LOGS2", subjects=["logs2.>"]))
            for batch in range(6):  # several blocks
                numbers = range(run * MESSAGES + batch * MESSAGES // 6, run * MESSAGES + (batch + 1) * MESSAGES // 6)
                orders += await publish(js, [
                    (f"orders.{('eu', 'us', 'asia')[i % 3]}.{i % 10}", {"X-No": str(i)} if i % 3 == 0 else None,
                     b"order %d" % i + b"." * (i % 50)) for i in numbers])
                logs += await publish(js, [(f"logs.{i % 7}", None, b"line %d" % i) for i in numbers[::2]])
            for seq in (3 + run * MESSAGES, 7 + run * MESSAGES):
                await js.delete_msg("ORDERS", seq)
                orders = [one for one in orders if one.seq != seq]
            if not run:
                await js.purge_stream("ORDERS", subject="orders.eu.6")
                orders = [one for one in orders if one.subject != "orders.eu.6"]
                puller = await js.pull_subscribe("orders.us.*", "worker", config=ConsumerConfig(ack_wait=30))
                for message in await puller.fetch(10):
                    await message.ack_sync()
                store.streams["LOGS2"] = await publish(js, [("logs2.x", None, b"%d" % i) for i in range(5)])
            await nc.close()
            if not run:
                await broker.kill()
                await broker.start()
        await broker.stop()
    store.streams |= {"ORDERS": orders, "LOGS": logs[-100:]}
    return store


def _block(headers: dict[str, str] | None) -> bytes | None:
    if headers is None:
        return None
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"NATS/1.0\r\n{lines}\r\n".encode()
