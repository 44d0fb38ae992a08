"""Message TTLs are not there yet: what asks for them is refused by name, and what is shown is what there is."""

from __future__ import annotations

import pytest
from nats.js.api import KeyValueConfig
from nats.js.errors import APIError

from tests.jetstream.in_process import Inside

pytestmark = pytest.mark.asyncio


async def test_streams_cannot_have_it() -> None:
    async with Inside() as broker:
        wanted = {"name": "S", "subjects": ["s"], "allow_msg_ttl": True}
        refused = await broker.api("STREAM.CREATE.S", wanted)
        assert refused["error"]["err_code"] == 10052
        assert "allow_msg_ttl" in refused["error"]["description"]
        await broker.ok("STREAM.CREATE.S", {**wanted, "allow_msg_ttl": False})
        assert await broker.error("STREAM.UPDATE.S", wanted) == 10052
        assert await broker.error("STREAM.CREATE.KV_X", {"name": "KV_X", "subjects": ["x"], "allow_msg_ttl": True}) == 10052


async def test_buckets_of_stock_clients_go_without() -> None:
    """nats.py asks for it whenever it makes a bucket."""
    async with Inside() as broker:
        js = broker.client.jetstream()
        bucket = await js.create_key_value(KeyValueConfig(bucket="B"))
        assert await bucket.put("a", b"1") == 1
        assert (await broker.ok("STREAM.INFO.KV_B"))["config"]["allow_msg_ttl"] is False
        await js.create_key_value(KeyValueConfig(bucket="B"))
        with pytest.raises(APIError) as refused:
            await js.publish("$KV.B.a", b"2", msg_ttl=5)
        assert refused.value.err_code == 10166
        with pytest.raises(APIError) as refused:
            await js.create_key_value(KeyValueConfig(bucket="C", limit_marker_ttl=5))
        assert refused.value.err_code == 10052


async def test_a_stream_that_an_earlier_version_took(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is loaded, without; an update that does not ask for it goes through."""
    async with Inside() as broker:
        with monkeypatch.context() as earlier:
            earlier.setattr("broker.jetstream.account.account.check_supported", lambda config: None)
            await broker.ok("STREAM.CREATE.S", {"name": "S", "subjects": ["s"], "allow_msg_ttl": True})
        assert await broker.publish("s") == 1
        await broker.restart()
        info = await broker.ok("STREAM.INFO.S")
        assert (info["config"]["allow_msg_ttl"], info["state"]["messages"]) == (False, 1)
        assert await broker.publish("s") == 2
        await broker.ok("STREAM.UPDATE.S", {"name": "S", "subjects": ["s", "t"]})
