"""The records of a consumer's deliveries: they are bounded, however fast it delivers."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from nats.aio.msg import Msg

from broker.jetstream.consumer import consumer as consumer_module
from broker.jetstream.consumer.acks.delta import AckDelta
from tests.jetstream.in_process import Inside

MESSAGES = 6000


async def test_very_many_pending_messages_are_written_down_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """6000 messages are delivered at once and not acked, with a bound of 1000 in a record.

    No record has them all, and after a restart they are pending.
    """
    monkeypatch.setattr(consumer_module, "_UNSTORED_MAX", 1000)
    listed: list[int] = []
    move_into = AckDelta.move_into

    def counted(self: AckDelta, delta: Any, *state: Any) -> None:
        move_into(self, delta, *state)
        listed.append(len(delta.pending.stream_seqs) if delta.pending is not None else 0)

    monkeypatch.setattr(AckDelta, "move_into", counted)
    async with Inside() as broker:
        await broker.ok("STREAM.CREATE.S", {"name": "S", "subjects": ["s"]})
        for _ in range(MESSAGES - 1):
            await broker.client.publish("s", b"x")
        await broker.publish("s")
        config = {"durable_name": "C", "ack_policy": "explicit", "ack_wait": 3600 * 10**9, "max_ack_pending": -1}
        await broker.ok("CONSUMER.DURABLE.CREATE.S.C", {"stream_name": "S", "config": config})
        inbox, got, done = broker.client.new_inbox(), 0, asyncio.Event()

        async def delivered(message: Msg) -> None:
            nonlocal got
            got += 1
            if got == MESSAGES:
                done.set()

        await broker.client.subscribe(inbox, cb=delivered)
        await broker.client.publish("$JS.API.CONSUMER.MSG.NEXT.S.C", json.dumps({"batch": MESSAGES}).encode(),
                                    reply=inbox)
        await asyncio.wait_for(done.wait(), 60)
        await broker.restart()
        assert sum(listed) == MESSAGES
        assert max(listed) <= MESSAGES // 2
        assert (await broker.ok("CONSUMER.INFO.S.C"))["num_ack_pending"] == MESSAGES
