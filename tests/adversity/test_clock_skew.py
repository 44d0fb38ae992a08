"""Brokers whose machines' clocks differ by less than the clock guard tolerates."""

from __future__ import annotations

import json
import time
from pathlib import Path

import nats
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.api import ConsumerConfig, RetentionPolicy, StreamConfig

from tests.adversity.clients import connect
from tests.harness import BrokerProcess

SKEW_SECONDS = 30
ACK_WAIT_SECONDS = 2
_AHEAD = f"""
import time

time.time_ns = lambda real=time.time_ns: real() + {SKEW_SECONDS} * 10**9
time.time = lambda real=time.time: real() + {SKEW_SECONDS}
"""


@pytest.mark.parametrize("acked", [b"", b"+WPI"], ids=["delivered", "in progress"])
async def test_a_message_that_an_owner_ahead_of_us_delivered_is_redelivered_in_time(tmp_path: Path,
                                                                                    acked: bytes) -> None:
    """The owner delivers a message with a clock that is half a minute ahead, and is killed. The next owner's clock is
    right, and it redelivers after the ack wait, not half a minute later."""
    (tmp_path / "sitecustomize.py").write_text(_AHEAD)
    store = f"file://{tmp_path / 'store'}"
    ahead = BrokerProcess("--store", store, environ={"PYTHONPATH": str(tmp_path)})
    await ahead.start()
    nc = await nats.connect(ahead.url, allow_reconnect=False)
    js = nc.jetstream()
    await js.add_stream(StreamConfig(name="S", subjects=["s"], retention=RetentionPolicy.WORK_QUEUE))
    await js.add_consumer("S", ConsumerConfig(durable_name="c", ack_wait=ACK_WAIT_SECONDS))
    await js.publish("s", b"job")
    message = await _next(nc)
    info = await js.consumer_info("S", "c")  # waits until the delivery is stored
    assert info.num_ack_pending == 1
    if acked:
        await nc.publish(message.reply, acked)
        assert (await js.consumer_info("S", "c")).num_ack_pending == 1
    await ahead.kill()
    await ahead.close()
    async with BrokerProcess("--store", store) as right:
        nc = await connect(right.url)
        began = time.monotonic()
        assert (await _next(nc)).data == b"job"
        assert time.monotonic() - began < SKEW_SECONDS / 2
        await nc.close()


async def _next(nc: Client) -> Msg:
    inbox = nc.new_inbox()
    sub = await nc.subscribe(inbox)
    await nc.publish("$JS.API.CONSUMER.MSG.NEXT.S.c", json.dumps({"batch": 1, "expires": 60 * 10**9}).encode(),
                     reply=inbox)
    return await sub.next_msg(timeout=60)
