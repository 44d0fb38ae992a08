"""Delivery by reference: a pull consumer gets the places of messages in the bucket, and the client reads them there."""

from __future__ import annotations

import asyncio
import json
import secrets
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
        with pytest.raises(BadReference, match="cannot be read"):  # neighbours in the object may be of another account
            await fetched(dict(second.headers) | {"Jetblock-Range": "bytes=0-"}, b"")
        with pytest.raises(BadReference, match="checksum"):
            await fetched(dict(second.headers) | {"Jetblock-Crc32": "00000000"}, b"")
        await client.close()


async def test_messages_of_blocks_grouped_by_subject(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Shows that references to a run of compaction, and those of redeliveries, give what was published."""
    store = make_store("minio", tmp_path, request)
    environ = {**store.environ, "JETBLOCK_ERASE_DELAY": "10ms", "JETBLOCK_READER_GRACE": "0s"}
    async with BrokerProcess("--store", store.url, environ=environ) as broker:
        client = await nats.connect(broker.url)
        js = client.jetstream()
        await js.add_stream(StreamConfig(name="S", subjects=["s.*"]))
        sent = [(f"s.{i * 7 % 3}", secrets.token_bytes(i % 5 * 3000)) for i in range(60)]
        for subject, payload in sent:
            await js.publish(subject, payload, headers={"Number": "1"} if len(payload) == 3000 else None)
        answer = json.loads((await client.request("$JS.API.JETBLOCK.ERASE.S", b'{"seqs": "1"}', timeout=30)).data)
        while True:
            shown = json.loads((await client.request("$JS.API.JETBLOCK.ERASURE.S",
                                                     json.dumps({"erasure": answer["erasure"]}).encode())).data)
            if shown["streams"][0]["state"] == "done":
                break
            await asyncio.sleep(0.1)
        for seq in range(2, 61):  # the indexes of the run's blocks are in memory then
            await js.get_msg("S", seq)
        await js.add_consumer("S", ConsumerConfig(durable_name="C", ack_policy=AckPolicy.EXPLICIT, ack_wait=0.2))
        for _ in range(2):
            ranges = set()
            for msg in await pulled(client, "S.C", len(sent) - 1):
                subject, payload = sent[int(msg.reply.split(".")[5]) - 1]
                block, got = await fetched(msg.headers, msg.data)
                assert (msg.subject, got) == (subject, payload)
                assert bool(payload) == ("Jetblock-Url" in (msg.headers or {}))
                assert block == (b"NATS/1.0\r\nNumber: 1\r\n\r\n" if len(payload) == 3000 else b"")
                ranges.add((msg.headers or {}).get("Jetblock-Range"))
            assert len(ranges) > 2, "the parts of grouped frames have places of their own"
        await js.add_consumer("S", ConsumerConfig(durable_name="H", ack_policy=AckPolicy.EXPLICIT, headers_only=True))
        for msg in await pulled(client, "S.H", 5):
            assert "Jetblock-Url" not in msg.headers
            assert "Nats-Msg-Size" in msg.headers
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
