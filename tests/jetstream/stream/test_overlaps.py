"""Streams with subjects in common (``overlapping_streams``): each stores a message, one sends the PubAck."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
import pytest_asyncio

from broker.config.settings import JetStreamSettings
from tests.jetstream.in_process import Inside


@pytest_asyncio.fixture
async def broker() -> AsyncIterator[Inside]:
    async with Inside(JetStreamSettings(overlapping_streams=True)) as inside:
        yield inside


async def create(broker: Inside, name: str, subjects: Sequence[str], **config: Any) -> None:
    await broker.ok(f"STREAM.CREATE.{name}", {"name": name, "subjects": list(subjects), **config})


async def counts(broker: Inside, *names: str) -> list[int]:
    return [(await broker.ok(f"STREAM.INFO.{name}"))["state"]["messages"] for name in names]


async def answers(broker: Inside, *publishes: tuple[str, dict[str, str]]) -> list[dict[str, Any]]:
    """Return all answers to the publishes; the last request shows that there are no others."""
    inbox = broker.client.new_inbox()
    subscription = await broker.client.subscribe(inbox)
    for subject, headers in publishes:
        await broker.client.publish(subject, b"x", reply=inbox, headers=headers or None)
    # The log answers in order, so an answer too many would arrive before this one.
    await broker.ok("STREAM.NAMES")
    await broker.publish("last.of.all")
    await broker.client.flush()
    found = [json.loads((await subscription.next_msg(timeout=30)).data) for _ in range(subscription.pending_msgs)]
    await subscription.unsubscribe()
    return found


@pytest_asyncio.fixture
async def two(broker: Inside) -> Inside:
    """Create two overlapping streams. The broad one is the first by name, but was created second."""
    await create(broker, "ORDERS", ["orders.*"])
    await create(broker, "AUDIT", ["orders.>", "other.>"])
    await create(broker, "LAST", ["last.>"])
    return broker


async def test_the_stream_created_first_answers_and_each_keeps_the_message(two: Inside) -> None:
    assert await answers(two, ("orders.a", {}), ("orders.a.b", {}), ("orders.c", {})) == [
        {"stream": "ORDERS", "seq": 1}, {"stream": "AUDIT", "seq": 2}, {"stream": "ORDERS", "seq": 2}]
    assert await counts(two, "ORDERS", "AUDIT") == [2, 3]
    await two.restart()
    assert await answers(two, ("orders.a", {})) == [{"stream": "ORDERS", "seq": 3}]
    assert await counts(two, "ORDERS", "AUDIT") == [3, 4]


async def test_the_expected_stream_answers(two: Inside) -> None:
    found = await answers(two, ("orders.a", {"Nats-Expected-Stream": "AUDIT"}),
                          ("orders.a", {"Nats-Expected-Stream": "ORDERS"}),
                          ("orders.a", {"Nats-Expected-Stream": "LAST"}))
    assert found[:2] == [{"stream": "AUDIT", "seq": 1}, {"stream": "ORDERS", "seq": 2}]
    assert found[2]["error"]["err_code"] == 10060
    assert found[2]["stream"] == "ORDERS"
    assert await counts(two, "ORDERS", "AUDIT") == [2, 2]


async def test_each_decides_for_itself(two: Inside) -> None:
    await two.publish("orders.x.y")  # stored by AUDIT alone: its sequences are one ahead
    assert await answers(two, ("orders.a", {"Nats-Expected-Last-Sequence": "0", "Nats-Msg-Id": "1"}),
                         ("orders.a", {"Nats-Msg-Id": "1"})) == [
        {"stream": "ORDERS", "seq": 1}, {"stream": "ORDERS", "seq": 1, "duplicate": True}]
    assert await counts(two, "ORDERS", "AUDIT") == [1, 2]


async def test_the_next_stream_answers_if_the_first_does_not_acknowledge(two: Inside) -> None:
    await create(two, "QUIET", ["more.>"], no_ack=True)
    await create(two, "LOUD", ["more.a"])
    assert await answers(two, ("more.a", {}), ("more.b", {})) == [{"stream": "LOUD", "seq": 1}]
    assert await counts(two, "QUIET", "LOUD") == [2, 1]


async def test_changes_of_streams_take_effect(two: Inside) -> None:
    await two.ok("STREAM.UPDATE.ORDERS", {"name": "ORDERS", "subjects": ["other.a"]})
    assert await answers(two, ("orders.a", {}), ("other.a", {})) == [{"stream": "AUDIT", "seq": 1},
                                                                     {"stream": "ORDERS", "seq": 1}]
    await two.ok("STREAM.DELETE.ORDERS")
    assert await answers(two, ("other.a", {})) == [{"stream": "AUDIT", "seq": 3}]


async def test_atomic_and_fast_batches_are_answered_once(two: Inside) -> None:
    await create(two, "BATCH", ["batch.>"], allow_atomic=True, allow_batched=True)
    await create(two, "COPY", ["batch.a"], allow_atomic=True)
    batch = {"Nats-Batch-Id": "b", "Nats-Batch-Sequence": "1"}
    inbox = two.client.new_inbox()
    subscription = await two.client.subscribe(inbox + ".>")
    await two.client.publish("batch.a", b"1", headers=batch)
    last = {**batch, "Nats-Batch-Sequence": "2", "Nats-Batch-Commit": "1"}
    found = await two.client.request("batch.a", b"2", timeout=30, headers=last)
    assert json.loads(found.data) == {"stream": "BATCH", "seq": 2, "batch": "b", "count": 2}
    assert await counts(two, "BATCH", "COPY") == [2, 2]
    for place, operation in enumerate((0, 1, 4, 3), 1):  # start, append, ping, end without a message
        place = min(place, 3) if operation != 4 else 2
        await two.client.publish("batch.a", b"m", reply=f"{inbox}.f.10.ok.{place}.{operation}.$FI")
    while "batch" not in (answer := json.loads((await subscription.next_msg(timeout=30)).data)):
        assert "error" not in answer
    assert answer["count"] == 2
    assert await counts(two, "BATCH", "COPY") == [4, 4]


async def test_without_the_setting_they_are_refused() -> None:
    async with Inside() as broker:
        await create(broker, "ORDERS", ["orders.*"])
        assert await broker.error("STREAM.CREATE.AUDIT", {"name": "AUDIT", "subjects": [">"], "no_ack": True}) == 10065


pytestmark = [pytest.mark.asyncio, pytest.mark.shows("stream.overlapping")]
