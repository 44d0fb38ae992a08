"""Checks of a broker while its store is full, for any kind of store: a disk, or a bucket with a quota."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import nats
import pytest
from nats.aio.client import Client
from nats.js.api import ConsumerConfig, StreamConfig
from nats.js.errors import APIError

from tests.adversity.clients import connect, health, unexpected
from tests.harness import BrokerProcess

__all__ = ["CONFIG", "check_full_store", "request"]

_ANSWER_SECONDS = 100.0
"""Upper bound of a wait: MinIO learns from its scanner that the reserve was deleted."""

CONFIG = """
accounts {
  SYS: { users: [ { user: sys, password: p } ] }
  A: { jetstream: enabled, users: [ { user: a, password: p } ] }
}
system_account: SYS
no_auth_user: a
"""


async def request(nc: Client, subject: str, body: bytes = b"") -> dict[str, Any]:
    """Repeat a request while its answer is that the store has no room for earlier changes (10008); return the
    answer."""
    while True:
        answer: dict[str, Any] = json.loads((await nc.request(subject, body, timeout=_ANSWER_SECONDS)).data)
        if answer.get("error", {}).get("err_code") != 10008:
            return answer
        await asyncio.sleep(0.2)


async def check_full_store(broker: BrokerProcess, fill: Callable[[], object], free: Callable[[], object]) -> None:
    """Check a broker while ``fill()`` has taken all room but its reserve, until ``free()`` ends that.

    Publishes are refused at once, health checks state why, requests are answered, and requests that make room are
    carried
    out, also after a restart.
    """
    nc = await connect(broker.url)
    js = nc.jetstream(timeout=_ANSWER_SECONDS)
    for name, storage in (("S", "file"), ("T", "file"), ("M", "memory")):
        await js.add_stream(StreamConfig(name=name, subjects=[f"{name}.>"], storage=storage))  # type: ignore[arg-type]
        for number in range(20):
            await js.publish(f"{name}.{number % 4}", bytes(1000))
    pull = await js.pull_subscribe("S.>", durable="pull", config=ConsumerConfig(ack_wait=300))
    messages = await pull.fetch(5, timeout=_ANSWER_SECONDS)
    fill()
    acked = await _publish_until_refused(js)
    # From now on each publish is refused at once: the client does not wait for one second of back-pressure.
    for _ in range(30):
        with pytest.raises(APIError) as refused:
            await js.publish("S.x", b"x", timeout=_ANSWER_SECONDS)
        assert (refused.value.code, refused.value.err_code) == (503, 10023)
    # Memory streams need no room.
    await js.publish("M.x", b"x")
    status, why = await health(broker)
    assert status == 503, why
    assert "no messages can be stored" in why
    sys = await nats.connect(broker.url, user="sys", password="p")
    answer = await request(sys, "$SYS.REQ.SERVER.PING.HEALTHZ")
    assert (answer["data"]["status_code"], "no messages can be stored" in answer["data"]["error"]) == (503, True)
    await sys.close()
    assert (await request(nc, "$JS.API.INFO"))["streams"] == 3
    assert (await request(nc, "$JS.API.STREAM.INFO.S"))["state"]["messages"] == 20 + acked
    # The changes of readers and operators are stored.
    await messages[0].ack_sync(timeout=_ANSWER_SECONDS)
    assert await pull.fetch(5, timeout=_ANSWER_SECONDS)
    assert (await request(nc, "$JS.API.STREAM.MSG.DELETE.S", b'{"seq":2}'))["success"]
    assert (await request(nc, "$JS.API.STREAM.PURGE.S", b'{"filter":"S.1"}'))["purged"] == 4
    assert (await js.consumer_info("S", "pull")).num_pending
    await broker.restart()
    js = nc.jetstream(timeout=_ANSWER_SECONDS)
    acked += await _publish_until_refused(js)
    assert (await request(nc, "$JS.API.STREAM.INFO.S"))["state"]["messages"] == 15 + acked
    assert (await request(nc, "$JS.API.STREAM.PURGE.S"))["purged"] == 15 + acked
    assert (await request(nc, "$JS.API.STREAM.DELETE.T"))["success"]
    assert (await health(broker))[0] == 503
    free()
    await broker.wait_line("has room again")
    assert (await health(broker))[0] == 200
    assert (await js.publish("S.x", b"x")).seq > 20
    await nc.close()
    assert not unexpected(broker)


async def _publish_until_refused(js: Any) -> int:
    """Publish until the broker knows that the store is full; return the number of stored messages."""
    acked = 0
    while True:
        try:
            await js.publish("S.x", bytes(1000), timeout=_ANSWER_SECONDS)
            acked += 1
        except APIError as error:
            assert (error.code, error.err_code) == (503, 10023)  # noqa: PT017 - any number of them may be stored before
            return acked
