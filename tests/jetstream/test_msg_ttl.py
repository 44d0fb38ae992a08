"""Message TTLs as clients of a broker process see them: key-value buckets of the stock client, and restarts."""

from __future__ import annotations

import asyncio

import pytest
from nats.js.api import KeyValueConfig
from nats.js.errors import APIError

from tests.jetstream.in_process import Inside

pytestmark = pytest.mark.asyncio


@pytest.mark.shows("kv.ttl")
async def test_buckets_of_stock_clients() -> None:
    """nats.py enables TTLs whenever it creates a bucket: a key expires, and leaves a marker if the bucket has a limit
    for it.

    Both hold after a restart, too.
    """
    async with Inside() as broker:
        js = broker.client.jetstream()
        plain = await js.create_key_value(KeyValueConfig(bucket="P"))
        marked = await js.create_key_value(KeyValueConfig(bucket="M", limit_marker_ttl=30))
        config = (await broker.ok("STREAM.INFO.KV_P"))["config"]
        assert (config["allow_msg_ttl"], config["metadata"]["_nats.req.level"]) == (True, "1")
        await plain.put("keep", b"1")
        for ttl in (1, 5, 25):  # on a busy machine a key may have expired before somebody watches it
            await plain.create(key := f"a{ttl}", b"2", msg_ttl=ttl)
            await marked.create(key, b"3", msg_ttl=ttl)
            await broker.restart()
            watcher = await marked.watch(key)
            if (first := await watcher.updates()).value == b"3":
                break
        assert first.value == b"3"
        assert await watcher.updates() is None
        marker = await watcher.updates(timeout=30)
        assert marker.operation == "PURGE"
        async with asyncio.timeout(30):
            while await plain.keys() != ["keep"]:  # noqa: ASYNC110  # it is the broker's
                await asyncio.sleep(0.01)


async def test_streams_without() -> None:
    async with Inside() as broker:
        js = broker.client.jetstream()
        await broker.ok("STREAM.CREATE.S", {"name": "S", "subjects": ["s"]})
        with pytest.raises(APIError) as refused:
            await js.publish("s", b"", msg_ttl=5)
        assert refused.value.err_code == 10166
        await broker.ok("STREAM.UPDATE.S", {"name": "S", "subjects": ["s"], "allow_msg_ttl": True})
        await js.publish("s", b"", msg_ttl=1)
        for _ in range(600):
            if not (await broker.ok("STREAM.INFO.S"))["state"]["messages"]:
                break
            await asyncio.sleep(0.05)
        else:
            pytest.fail("it did not expire")
