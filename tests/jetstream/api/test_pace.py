"""A bounded number of requests is begun in each turn of the loop, in their order."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise

import pytest
from nats.aio.msg import Msg

from broker.jetstream.api.dispatcher import Api
from broker.jetstream.api.pace import Pace
from broker.jetstream.api.request import Request
from tests.jetstream.in_process import Inside


async def test_sixteen_pass_in_a_turn() -> None:
    """A hundred callers pass in order, at most sixteen between two turns; a cancelled caller takes no place."""
    pace, passed, turns = Pace(), list[int](), list[int]()

    async def caller(number: int) -> None:
        await pace.begin()
        passed.append(number)

    async def watch() -> None:
        while len(passed) < 99:
            turns.append(len(passed))
            await asyncio.sleep(0)

    watching = asyncio.create_task(watch())
    callers = [asyncio.create_task(caller(number)) for number in range(100)]
    await asyncio.sleep(0)
    callers[50].cancel()
    await watching
    assert passed == [number for number in range(100) if number != 50]
    assert max(after - before for before, after in pairwise(turns)) <= 16


@pytest.mark.parametrize("streams", [1, 200])
async def test_requests_sent_at_once_are_served_in_slices(monkeypatch: pytest.MonkeyPatch, streams: int) -> None:
    """A client sends 200 requests at once, for one stream or for as many.

    No turn begins more than a few, and all are answered, those of one stream in order.
    """
    served: list[Request] = []
    inner = Api._serve_one

    async def counted(self: Api, request: Request) -> None:
        served.append(request)
        await inner(self, request)

    monkeypatch.setattr(Api, "_serve_one", counted)
    async with Inside() as broker:
        answers: list[str] = []
        done, most = asyncio.Event(), 0

        async def answered(message: Msg) -> None:
            answers.append(json.loads(message.data)["config"]["description"])
            if len(answers) == 200:
                done.set()

        async def watch() -> None:
            nonlocal most
            before = len(served)
            while True:
                await asyncio.sleep(0)
                most, before = max(most, len(served) - before), len(served)

        inbox = broker.client.new_inbox()
        await broker.client.subscribe(inbox, cb=answered)
        await broker.ok("STREAM.CREATE.S0", {"name": "S0", "subjects": ["s.0"]})
        watching = asyncio.create_task(watch())
        for i in range(200):
            if streams == 1:
                subject = f"CONSUMER.CREATE.S0.C{i}"
                body = {"stream_name": "S0", "config": {"name": f"C{i}", "ack_policy": "explicit",
                                                        "description": str(i)}}
            else:
                subject = f"STREAM.CREATE.T{i}"
                body = {"name": f"T{i}", "subjects": [f"t.{i}"], "description": str(i)}
            await broker.client.publish(f"$JS.API.{subject}", json.dumps(body).encode(), reply=inbox)
        await asyncio.wait_for(done.wait(), 60)
        watching.cancel()
        assert most <= 16
        assert sorted(answers, key=int) == [str(i) for i in range(200)]
        if streams == 1:
            assert answers == sorted(answers, key=int)
