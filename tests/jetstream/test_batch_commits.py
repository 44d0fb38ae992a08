"""Batches do not wait for the commit interval: their publishers send a limited number of messages ahead."""

from __future__ import annotations

import asyncio
import json

import pytest

from broker.storage.log.settings import LogSettings
from tests.jetstream.in_process import Inside

DAY_NS = 86_400_000_000_000
SLOW = LogSettings(commit_interval_ns=DAY_NS)


@pytest.mark.shows("publish.fast")
async def test_acks_of_a_fast_batch_do_not_wait_for_the_interval() -> None:
    """With an interval of a day, each ack and the commit of a fast batch arrive at once."""
    async with Inside() as broker:
        await broker.ok("STREAM.CREATE.S", {"name": "S", "subjects": ["s"], "allow_batched": True})
        await broker.restart(SLOW)
        inbox = broker.client.new_inbox()
        answers = await broker.client.subscribe(f"{inbox}.>")
        kinds = []
        for place in range(1, 11):
            operation = 0 if place == 1 else 2 if place == 10 else 1
            await broker.client.publish("s", b"x", reply=f"{inbox}.b.3.fail.{place}.{operation}.$FI")
            if place in (1, 3, 6, 9, 10):
                kinds.append(json.loads((await answers.next_msg(timeout=30)).data))
        assert [kind.get("seq") for kind in kinds] == [0, 3, 6, 9, 10]
        assert kinds[-1]["count"] == 10


@pytest.mark.shows("publish.atomic")
async def test_commits_of_atomic_batches_do_not_wait_for_the_interval() -> None:
    """With an interval of a day, atomic batches are committed one after the other; a single message waits."""
    async with Inside() as broker:
        await broker.ok("STREAM.CREATE.S", {"name": "S", "subjects": ["s"], "allow_atomic": True})
        await broker.restart(SLOW)
        for batch in "abc":
            for place in ("1", "2"):
                headers = {"Nats-Batch-Id": batch, "Nats-Batch-Sequence": place}
                if place == "2":
                    headers["Nats-Batch-Commit"] = "1"
                answer = await broker.client.request("s", b"x", timeout=30, headers=headers)
            assert json.loads(answer.data)["count"] == 2
        single = asyncio.create_task(broker.publish("s"))
        await broker.client.flush()
        assert not single.done()
        broker.log.skip_interval()
        assert await single == 7
