"""Limits of batches in the configuration, and how the batches that exceed them end."""

from __future__ import annotations

import json
from typing import Any

import pytest

from broker.config.settings import JetStreamSettings, ServerLimits
from broker.jetstream.inflight import BatchLimits
from broker.jetstream.stream.publish import atomic
from tests.jetstream.in_process import Inside

pytestmark = pytest.mark.shows("publish.atomic_limits")


async def send(broker: Inside, batch: str, place: int, body: bytes = b"x", **headers: str) -> Any:
    """Send one message of an atomic batch; return its answer, None if it is empty."""
    given = {"Nats-Batch-Id": batch, "Nats-Batch-Sequence": str(place), **headers}
    data = (await broker.client.request("s.a", body, timeout=30, headers=given)).data
    return json.loads(data) if data else None


@pytest.mark.shows("operation.limits")
async def test_limits_of_batches_are_configured() -> None:
    """Shows limits of messages, open batches, and time: each ends with an error or an advisory."""
    limits = ServerLimits(batch_max_inflight_per_stream=2, batch_max_msgs=2, batch_timeout_ns=50_000_000)
    async with Inside(JetStreamSettings(server=limits)) as broker:
        advisories = await broker.client.subscribe("$JS.EVENT.ADVISORY.STREAM.BATCH_ABANDONED.S")
        await broker.ok("STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"], "allow_atomic": True})
        assert await send(broker, "a", 1) is None
        event = json.loads((await advisories.next_msg(timeout=30)).data)
        assert (event["type"], event["stream"], event["batch"], event["reason"]) == (
            "io.nats.jetstream.advisory.v1.stream_batch_abandoned", "S", "a", "timeout")
        assert (await send(broker, "a", 3))["error"]["description"] == "atomic publish batch is too large: 2"
        assert (await send(broker, "a", 2))["error"]["err_code"] == 10176
        assert (await send(broker, "b", 1, **{"Nats-Batch-Commit": "1"}))["count"] == 1


async def test_a_batch_of_too_many_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shows that nothing of it is stored or kept in memory, whatever is published to it afterwards.

    Other streams accept messages meanwhile. A batch that just fits is stored whole, in one segment.
    """
    monkeypatch.setattr(atomic, "BATCH_BYTES_MAX", 1 << 20)
    async with Inside() as broker:
        await broker.ok("STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"], "allow_atomic": True})
        await broker.ok("STREAM.CREATE.T", {"name": "T"})
        body = bytes(300_000)
        for place in (1, 2, 3):
            assert await send(broker, "a", place, body) is None
            await broker.publish("T")
        assert broker.js._inflight.staged_bytes > 3 * len(body)
        assert (await send(broker, "a", 4, body))["error"]["err_code"] == 10199
        assert broker.js._inflight.staged_bytes == 0
        assert (await send(broker, "a", 5, body, **{"Nats-Batch-Commit": "1"}))["error"]["err_code"] == 10176
        assert (await broker.ok("STREAM.INFO.S"))["state"]["messages"] == 0
        for place in (1, 2):
            await send(broker, "b", place, body)
        segments = len(broker.store.objects)
        assert (await send(broker, "b", 3, body, **{"Nats-Batch-Commit": "1"}))["count"] == 3
        assert len(broker.store.objects) == segments + 1
        assert (await broker.ok("STREAM.INFO.S"))["state"]["messages"] == 3


def test_limits_that_are_not_configured_are_nats_servers() -> None:
    assert BatchLimits.of(ServerLimits()) == BatchLimits(
        max_msgs=1000, per_stream=50, total=1000, timeout_ns=10_000_000_000, fast_per_stream=1000, fast_total=50_000)
    few = BatchLimits.of(ServerLimits(batch_max_inflight_per_stream=7, batch_max_inflight_total=9))
    assert (few.per_stream, few.fast_per_stream, few.total, few.fast_total) == (7, 7, 9, 9)
