"""``request_queue_limit`` and ``info_queue_limit``: more requests than may wait are dropped, and the others served."""

from __future__ import annotations

import asyncio
import json

import pytest

from broker.clock import SystemClock
from broker.config.settings import JetStreamSettings
from broker.jetstream.api.waiting import Waiting, only_asks
from tests.jetstream.in_process import Inside
from tests.server.raw_client import Wire

pytestmark = pytest.mark.shows("operation.queue_limits")


@pytest.mark.asyncio
async def test_requests_past_the_limits_are_dropped() -> None:
    """Of requests that come in one read, as many of each kind are answered as may wait; afterwards all are."""
    async with Inside(JetStreamSettings(request_queue_limit=3, info_queue_limit=2)) as broker, Wire(broker.server.port) as wire:
        wire.send(b'CONNECT {"verbose":false}\r\nSUB answers.* 1\r\n' + b"".join(
            b"PUB $JS.API.STREAM.CREATE.S%d answers.c 17\r\n" % i + json.dumps({"name": f"S{i}x"[:2]}).encode().ljust(17) + b"\r\n"
            for i in range(6)) + b"PUB $JS.API.STREAM.NAMES answers.n 0\r\n\r\n" * 5)
        answers = b""
        async with asyncio.timeout(10):
            while answers.count(b"MSG answers.c") < 3 or answers.count(b"MSG answers.n") < 2:
                answers += await wire.until(b"\r\n")
        answers += await wire.settled()
        assert (answers.count(b"MSG answers.c"), answers.count(b"MSG answers.n")) == (3, 2)
        assert len((await broker.api("STREAM.NAMES"))["streams"]) == 3
        for i in range(6):
            await broker.api(f"STREAM.INFO.S{i}")


def test_counts() -> None:
    """Each kind has a limit of its own; without one, that of the others is for both."""
    waiting = Waiting(JetStreamSettings(request_queue_limit=1), SystemClock())
    assert [waiting.admit(asks) for asks in (True, False, True, False)] == [True, True, False, False]
    waiting.done(True)
    assert [waiting.admit(asks) for asks in (False, True)] == [False, True]
    assert [only_asks(words.split(".")) for words in ("INFO", "STREAM.INFO.S", "STREAM.CREATE.S", "CONSUMER.LIST.S")] == [
        True, True, False, True]
