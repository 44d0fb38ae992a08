"""Very many heartbeats at once, and very many messages without an ack: others are served, and memory has a bound.

The tests print what they measure.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from broker.base.clock import SystemClock
from broker.streaming.client import Client
from broker.streaming.heartbeats import Heartbeats
from tests.adversity.clients import resident_bytes
from tests.harness import BrokerProcess
from tests.streaming.stan_client import FIRST, StanClient

pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]

CLIENTS = 1_000_000
MSGS = 300_000
MIB = 1 << 20


class _Bus:
    """A bus on which each heartbeat is received, and answered in a later turn of the loop."""

    def __init__(self) -> None:
        self.sent = 0
        self.handler: Any = None

    def subscribe(self, subject: bytes, handler: Any) -> None:
        self.handler = handler

    def unsubscribe(self, subscription: None) -> None:
        self.handler = None

    def send(self, subject: bytes, reply: bytes, hlen: int, body: bytes) -> int:
        self.sent += 1
        asyncio.get_running_loop().call_soon(self.handler, [(reply, b"", 0, b"")], 0, 1, None, 0)
        return 1


async def test_a_million_heartbeats_due_at_once() -> None:
    """After a failover, a million clients are due together: each is asked once, and no turn of the loop is long."""
    bus: Any = _Bus()
    settings: Any = SimpleNamespace(hb_interval_ns=0, hb_timeout_ns=600_000_000_000, hb_fail_count=1)
    answered = 0

    def on_answer(client: Client) -> None:
        nonlocal answered
        answered += 1
        settings.hb_interval_ns = 600_000_000_000

    heartbeats = Heartbeats(bus, SystemClock(), settings, "_STAN.hb", on_answer, lambda client: None)
    clients = [Client(str(number), f"_INBOX.{number}", 1, b"") for number in range(CLIENTS)]
    for client in clients:  # no turn of the loop passes meanwhile, so all of them are due together
        heartbeats.add(client)
    most, sent, began = 0, 0, time.monotonic()
    while answered < CLIENTS:
        await asyncio.sleep(0)
        most, sent = max(most, bus.sent - sent), bus.sent
    heartbeats.close()
    print(f"a million heartbeats: {time.monotonic() - began:.1f} s, at most {most} in a turn of the loop")
    assert bus.sent == CLIENTS
    assert most <= 1000


async def test_a_client_that_never_acks(tmp_path: Path) -> None:
    """A client takes 300 000 messages, acks none, and gets them again and again: others are served meanwhile, and the
    memory is bounded by the number of unacknowledged messages, whatever the number of redeliveries."""
    async with BrokerProcess("--store", f"file://{tmp_path}", "-cid", "test-cluster") as server:
        client, other = await StanClient.open(server.url, "never"), await StanClient.open(server.url, "other")
        await client.publish("c", b"first")
        for number in range(1, MSGS):
            await client.nc.publish("c", b"x" * 200)
            if number % 5000 == 0:
                await client.nc.flush(60)
        await client.publish("c", b"last")
        before, largest, worst = resident_bytes(server), 0, 0.0
        sub = await client.subscribe("c", FIRST, in_flight=1 << 30, ack_wait=1)
        received, redelivered = 0, 0
        until = time.monotonic() + 60
        while time.monotonic() < until and redelivered < 2 * MSGS:
            while not sub.msgs.empty():
                msg = sub.msgs.get_nowait()
                received += 1
                redelivered += msg.redelivered
            began = time.monotonic()
            assert not (await other.publish("d", b"x")).error
            worst = max(worst, time.monotonic() - began)
            largest = max(largest, resident_bytes(server))
        print(f"never acked: {received} received, {redelivered} of them again; memory grew by "
              f"{(largest - before) / MIB:.0f} MiB; a PubAck for another client took {worst * 1000:.0f} ms at most")
        assert received >= MSGS
        assert largest - before < 300 * MIB
        assert worst < 10
        await client.nc.close()
        await other.nc.close()

