"""Delivery by reference: a pull consumer gets the places of messages in the bucket, and the client reads them there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.js.api import AckPolicy, ConsumerConfig, StreamConfig

from broker.runtime.embedded import Broker
from jetblock.references import DELIVER, REFERENCE, BadReference, fetched
from tests.harness import BrokerProcess
from tests.stores import make_store

pytestmark = pytest.mark.shows("consumer.references")


async def pulled(client: Any, names: str, batch: int) -> list[Any]:
    """Pull messages by reference."""
    inbox = client.new_inbox()
    subscription = await client.subscribe(inbox)
    await client.publish(f"$JS.API.CONSUMER.MSG.NEXT.{names}", json.dumps({"batch": batch}).encode(), reply=inbox,
                         headers={DELIVER: REFERENCE})
    return [await subscription.next_msg(timeout=30) for _ in range(batch)]


async def test_messages_are_read_from_the_bucket(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Shows that URL, range, codec, checksum and offsets give exactly what was published, with and without headers."""
    store = make_store("minio", tmp_path, request)
    async with BrokerProcess("--store", store.url, environ=store.environ) as broker:
        client = await nats.connect(broker.url)
        js = client.jetstream()
        await js.add_stream(StreamConfig(name="S", subjects=["s.*"]))
        sent = []
        for i in range(12):
            headers = {"Number": str(i)} if i % 3 else None
            sent.append((headers, b"payload %d " % i * (i * 500)))
        for i, (headers, payload) in enumerate(sent):
            await js.publish(f"s.{i % 2}", payload, headers=headers)
        await js.add_consumer("S", ConsumerConfig(durable_name="C", ack_policy=AckPolicy.EXPLICIT))
        found, references = [], 0
        for msg in await pulled(client, "S.C", len(sent)):
            references += "Jetblock-Url" in (msg.headers or {})
            block, payload = await fetched(msg.headers, msg.data)
            whole = "Jetblock-Url" not in (msg.headers or {})
            found.append((dict(msg.headers or {}) if whole else block, payload))
            assert msg.reply.startswith("$JS.ACK.S.C.")
        assert references > 0
        for (headers, payload), (block, got) in zip(sent, found, strict=True):
            assert got == payload
            if isinstance(block, bytes):
                assert block == (b"NATS/1.0\r\nNumber: %b\r\n\r\n" % headers["Number"].encode() if headers else b"")
        await js.add_consumer("S", ConsumerConfig(durable_name="D", ack_policy=AckPolicy.EXPLICIT))
        empty, second = await pulled(client, "S.D", 2)
        assert empty.headers is None  # there is nothing to fetch
        with pytest.raises(BadReference, match="checksum"):
            await fetched(dict(second.headers) | {"Jetblock-Crc32": "00000000"}, b"")
        await client.close()


@pytest.mark.parametrize(("settings", "storage", "why"), [
    ({}, "file", "a directory, whose files have no URLs"), ({}, "memory", "a memory stream has no objects"),
    ({"storage.key": "the master key of these tests"}, "file", "the stream is encrypted")])
async def test_refusals(tmp_path: Path, settings: dict[str, Any], storage: Any, why: str) -> None:
    """Shows that a request that cannot have references is refused with the reason, and nothing is delivered."""
    async with Broker(tmp_path, settings=settings) as broker:
        client = await nats.connect(broker.url)
        js = client.jetstream()
        await js.add_stream(StreamConfig(name="S", subjects=["s"], storage=storage))
        await js.publish("s", b"payload")
        await js.add_consumer("S", ConsumerConfig(durable_name="C", ack_policy=AckPolicy.EXPLICIT))
        [refused] = await pulled(client, "S.C", 1)
        assert (refused.headers["Status"], why in refused.headers["Description"]) == ("409", True)
        assert (await js.consumer_info("S", "C")).num_pending == 1
        await client.close()
