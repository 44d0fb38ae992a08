"""The time after the lease has expired: nothing is answered from memory; streams loaded then work fully afterwards."""

from __future__ import annotations

import asyncio
import json

import pytest

from broker.jetstream.consumer.consumer import Consumer
from broker.jetstream.stream.state.decision import Stuck
from broker.storage.log.settings import LogSettings
from broker.storage.objectstore.base import Buffers
from tests.jetstream.in_process import Inside

SECOND = 1_000_000_000


async def test_a_restored_consumer_opens_once_the_lease_is_proved() -> None:
    """Shows an owner whose recovery took longer than the lease: a consumer that must read first is refused at first.

    It tries again, and serves.
    """
    async with Inside() as broker:
        await broker.ok("STREAM.CREATE.K", {"name": "K", "subjects": ["K.>"]})
        for i in range(30):
            await broker.publish(f"K.{i % 10}", b"%d" % i)
        await broker.ok("CONSUMER.DURABLE.CREATE.K.W", {"stream_name": "K", "config": {
            "durable_name": "W", "ack_policy": "explicit", "deliver_policy": "last_per_subject",
            "filter_subject": "K.>"}})
        assert (await broker.pull("K.W")).data == b"20"
        proved = asyncio.Event()
        put = broker.store.put

        async def late(key: str, data: Buffers) -> None:
            await proved.wait()
            await put(key, data)

        await broker.log.drain()
        broker.store.put = late  # type: ignore[method-assign]
        asyncio.get_running_loop().call_later(0.2, proved.set)
        await broker.restart(LogSettings(lease_ns=15 * SECOND), began_ns=broker.clock.monotonic_ns() - 20 * SECOND)
        assert not broker.log.lease_expired
        assert (await broker.pull("K.W")).data == b"21"


async def test_duplicates_and_failed_expectations_wait_for_a_proof() -> None:
    """Each is decided from memory, and another owner may have changed that state since."""
    async with Inside() as broker:
        await broker.ok("STREAM.CREATE.S", {"name": "S", "subjects": ["S.>"]})
        headers = {"Nats-Msg-Id": "X"}
        await broker.client.request("S.a", b"x", headers=headers, timeout=30)
        await broker.restart(LogSettings(lease_ns=3600 * SECOND))
        first = json.loads((await broker.client.request("S.a", b"x", headers=headers, timeout=30)).data)
        assert first["duplicate"] is True
        position = broker.log.position
        broker.log._lease.proved_ns -= 7200 * SECOND  # as a process that was stopped for two hours
        assert broker.log.lease_expired
        for given in (headers, {"Nats-Expected-Last-Sequence": "7"}):
            answer = json.loads((await broker.client.request("S.a", b"x", headers=given, timeout=30)).data)
            assert answer.get("duplicate") or answer["error"]["err_code"] == 10071
            assert broker.log.position.number == position.number + 1, "one put, before the first answer"


async def test_a_restored_consumer_opens_after_an_unexpected_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shows that the error is logged and the consumer tries again."""
    async with Inside() as broker:
        await broker.ok("STREAM.CREATE.K", {"name": "K", "subjects": ["K.>"]})
        await broker.publish("K.1", b"1")
        await broker.ok("CONSUMER.DURABLE.CREATE.K.W", {"stream_name": "K", "config": {
            "durable_name": "W", "ack_policy": "explicit"}})
        calls = []
        opens = Consumer.open

        async def failing(consumer: Consumer) -> None:
            calls.append(consumer)
            if len(calls) == 1:
                raise Stuck("planted")
            await opens(consumer)

        monkeypatch.setattr(Consumer, "open", failing)
        await broker.restart()
        assert (await broker.pull("K.W")).data == b"1"
        assert len(calls) == 2
