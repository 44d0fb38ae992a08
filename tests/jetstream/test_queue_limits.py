"""``request_queue_limit`` and ``info_queue_limit``: more requests than may wait are dropped, and the others served."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import nats
import pytest

from broker.config.settings import JetStreamSettings
from broker.jetstream.api.waiting import Waiting, is_info_request
from tests.harness import BrokerProcess, NatsServerProcess, ServerProcess
from tests.jetstream.in_process import Inside
from tests.jetstream.schemas import broken
from tests.manual_clock import ManualClock
from tests.server.raw_client import Wire
from tests.sim.loop import SimLoop

pytestmark = pytest.mark.shows("operation.queue_limits")


@pytest.mark.asyncio
async def test_requests_past_the_limits_are_dropped() -> None:
    """Shows that as many requests of each kind in one read are answered as may wait; afterwards all are."""
    async with Inside(JetStreamSettings(request_queue_limit=3,
                                        info_queue_limit=2)) as broker, Wire(broker.server.port) as wire:
        wire.send(b'CONNECT {"verbose":false}\r\nSUB answers.* 1\r\n' + b"".join(
            b"PUB $JS.API.STREAM.CREATE.S%d answers.c 17\r\n" % i + json.dumps({"name": f"S{i}x"[:2]}).encode().ljust(
                17) + b"\r\n"
            for i in range(6)) + b"PUB $JS.API.STREAM.NAMES answers.n 0\r\n\r\n" * 5)
        answers = b""
        async with asyncio.timeout(30):
            while answers.count(b"MSG answers.c") < 3 or answers.count(b"MSG answers.n") < 2:
                answers += await wire.until(b"\r\n")
        answers += await wire.settled()
        assert (answers.count(b"MSG answers.c"), answers.count(b"MSG answers.n")) == (3, 2)
        assert len((await broker.api("STREAM.NAMES"))["streams"]) == 3
        for i in range(6):
            await broker.api(f"STREAM.INFO.S{i}")


async def test_counts() -> None:
    """Each kind has a limit of its own; without one for info requests, the other limit is for both."""
    reported: list[int] = []
    waiting = Waiting(JetStreamSettings(request_queue_limit=1), reported.append)
    assert [waiting.admit(asks) for asks in (True, False, True, False)] == [True, True, False, False]
    waiting.done(True)
    assert [waiting.admit(asks) for asks in (False, True)] == [False, True]
    assert [is_info_request(words.split(".")) for words in ("INFO", "STREAM.INFO.S", "STREAM.CREATE.S",
                                                            "CONSUMER.LIST.S")] == [
        True, True, False, True]
    assert reported == [1]
    waiting.close()


def test_each_dropped_request_is_reported() -> None:
    """The first is reported at once, the others of a burst after a second, by kind; after a quiet second,
    the next at once."""
    reported: list[tuple[float, int]] = []
    loop = SimLoop(ManualClock())

    async def drop() -> None:
        waiting = Waiting(JetStreamSettings(request_queue_limit=1, info_queue_limit=1),
                          lambda n: reported.append((loop.time(), n)))
        began = loop.time()
        for asks in (True, False):
            waiting.admit(asks)
        for asks in (True, True, False, True, False, False, False):
            waiting.admit(asks)
        await asyncio.sleep(5)
        waiting.admit(True)
        waiting.admit(True)
        waiting.close()
        await asyncio.sleep(5)
        reported[:] = [(round(at - began, 6), count) for at, count in reported]

    loop.run_until_complete(drop())
    loop.close()
    assert reported == [(0, 1), (1, 4), (1, 2), (5, 1)]


@pytest.mark.parametrize("process", [BrokerProcess, NatsServerProcess], ids=["jetblock", "nats-server"])
@pytest.mark.shows("advisory.api_limit")
async def test_the_system_account_is_notified(process: type[ServerProcess], tmp_path: Path) -> None:
    """Clients of the system account receive an advisory with the number of dropped requests; others do not."""
    config = tmp_path / "limits.conf"
    config.write_text("""
        server_name: limited
        jetstream { request_queue_limit: 1, info_queue_limit: 1, domain: here, store_dir: "%s" }
        accounts { $SYS { users: [ { user: s, password: s } ] }
                   A { jetstream: enabled, users: [ { user: a, password: a } ] } }
    """ % (tmp_path / "store"))
    async with process("-c", str(config)) as server:
        system = await nats.connect(server.url, user="s", password="s")
        client = await nats.connect(server.url, user="a", password="a")
        advisories = await system.subscribe("$JS.EVENT.ADVISORY.API.LIMIT_REACHED")
        own = await client.subscribe("$JS.EVENT.ADVISORY.API.LIMIT_REACHED")
        await system.flush()
        for _ in range(500):
            await client.publish("$JS.API.STREAM.NAMES", reply="nobody")
        await client.flush()
        advisory = {"dropped": 0}
        # nats-server also sends one if a request was admitted just before it would be dropped.
        while not advisory["dropped"]:
            message = await advisories.next_msg(timeout=30)
            advisory = json.loads(message.data)
        assert not broken(message.data)
        assert advisory.keys() == {"type", "id", "timestamp", "server", "domain", "dropped"}
        assert (advisory["type"], advisory["server"], advisory["domain"]) == (
            "io.nats.jetstream.advisory.v1.api_limit_reached", "limited", "here")
        await client.flush()
        assert own.pending_msgs == 0
        await client.close()
        await system.close()
