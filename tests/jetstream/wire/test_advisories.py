"""Advisories as a client receives them: in order, after their cause is stored, and at no cost if nobody subscribes.

Compared field by field with nats-server's by the scenarios "advisories" in tests/jetstream/differential.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.js.api import ConsumerConfig, StreamConfig

from broker.jetstream.wire.advisories import AccountEvents, ConsumerEvents
from tests.harness import BrokerProcess, NatsServerProcess, ServerProcess
from tests.jetstream.consumer.fakes import FakeBus
from tests.manual_clock import ManualClock

NANOSECOND_TIME = re.compile(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?Z")


async def test_advisories_come_in_order(broker: BrokerProcess) -> None:
    """Shows a client's ordinary calls, and the messages of another one on $JS.EVENT.ADVISORY.>."""
    watcher, client = await nats.connect(broker.url), await nats.connect(broker.url, name="worker")
    advisories = await watcher.subscribe("$JS.EVENT.ADVISORY.>")
    for _ in range(2):  # the first PING may go out before the SUB
        await watcher.flush()
    js = client.jetstream()
    await js.add_stream(StreamConfig(name="S", subjects=["s.>"]))
    await js.update_stream(StreamConfig(name="S", subjects=["s.>"], max_msgs=5))
    await js.add_consumer("S", ConsumerConfig(durable_name="C"))
    await js.add_consumer("S", ConsumerConfig(durable_name="D"))
    await js.publish("s.a", b"x")
    pull = await js.pull_subscribe_bind("C", "S")
    [message] = await pull.fetch(1)
    await message.nak()
    [message] = await pull.fetch(1)
    await message.term()
    await js.delete_consumer("S", "C")
    await js.delete_stream("S")
    events, asked = [], []
    while not events or events[-1][0] != "API STREAM.DELETE.S":
        message = await advisories.next_msg(timeout=30)
        event = json.loads(message.data)
        assert re.fullmatch(r"[0-9A-Za-z]{22}", event["id"])
        assert NANOSECOND_TIME.fullmatch(event["timestamp"])
        what = message.subject.removeprefix("$JS.EVENT.ADVISORY.")
        if what == "API":
            asked.append(event)
            what += " " + event["subject"].removeprefix("$JS.API.")
        events.append((what, event["type"].removeprefix("io.nats.jetstream.advisory.v1."), event.get("action")))
    assert [row for row in events if not row[0].startswith(("API STREAM.INFO", "API CONSUMER.INFO"))] == [
        ("STREAM.CREATED.S", "stream_action", "create"), ("API STREAM.CREATE.S", "api_audit", None),
        ("STREAM.UPDATED.S", "stream_action", "modify"), ("API STREAM.UPDATE.S", "api_audit", None),
        ("CONSUMER.CREATED.S.C", "consumer_action", "create"), ("API CONSUMER.DURABLE.CREATE.S.C", "api_audit", None),
        ("CONSUMER.CREATED.S.D", "consumer_action", "create"), ("API CONSUMER.DURABLE.CREATE.S.D", "api_audit", None),
        ("CONSUMER.MSG_NAKED.S.C", "nak", None), ("CONSUMER.MSG_TERMINATED.S.C", "terminated", None),
        ("CONSUMER.DELETED.S.C", "consumer_action", "delete"), ("API CONSUMER.DELETE.S.C", "api_audit", None),
        ("CONSUMER.DELETED.S.D", "consumer_action", "delete"), ("STREAM.DELETED.S", "stream_action", "delete"),
        ("API STREAM.DELETE.S", "api_audit", None)]
    for audit in asked:
        who = audit["client"]
        assert (who["name"], who["lang"], who["kind"], who["id"]) == ("worker", "python3", "Client", client.client_id)
        assert json.loads(audit["response"])["type"].startswith("io.nats.jetstream.api.v1.")
    await watcher.close()
    await client.close()


CONFIGURED: dict[str, tuple[str, dict[str, Any]]] = {
    "nobody asked for": ("", {"user": "who", "password": "cares"}),
    "user": ("authorization { user: u, password: p }", {"user": "u", "password": "p"}),
    "token": ("authorization { token: t0ken }", {"token": "t0ken"}),
    "domain": ("jetstream { domain: hub }", {"name": "worker"}),
}


async def _advisories(server: ServerProcess, connect: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return the advisories of ``server`` for a new stream, by subject; ids and times by their types."""
    watcher, client = await nats.connect(server.url, **connect), await nats.connect(server.url, **connect)
    advisories = await watcher.subscribe("$JS.EVENT.ADVISORY.>")
    for _ in range(2):  # the first PING may go out before the SUB
        await watcher.flush()
    await client.request("$JS.API.STREAM.CREATE.S", b'{"name": "S"}')
    events = {}
    for _ in range(2):
        message = await advisories.next_msg(timeout=30)
        event = json.loads(message.data)
        if who := event.get("client"):
            event |= {"response": "", "client": {name: _shape(name, value) for name, value in who.items()}}
        events[message.subject] = {name: _shape(name, value) for name, value in event.items()}
    await watcher.close()
    await client.close()
    return sorted(events.items())


def _shape(name: str, value: Any) -> Any:
    return type(value).__name__ if name in ("id", "timestamp", "start", "rtt") else value


@pytest.mark.shows("advisory.api_audit")
@pytest.mark.parametrize("name", CONFIGURED)
async def test_client_server_and_domain_are_as_nats_server_shows_them(name: str, tmp_path: Path) -> None:
    """Shows the members of ``client`` by the way it connected, ``server`` and ``domain``; a token is never shown."""
    config, connect = CONFIGURED[name]
    path = tmp_path / "nats.conf"
    path.write_text(f"server_name: one\njetstream: enabled\n{config}\n")
    found = []
    for kind in (NatsServerProcess, BrokerProcess):
        async with kind("-c", str(path), "-sd", str(tmp_path / kind.__name__), monitor=False) as server:
            found.append(await _advisories(server, connect))
    assert found[0] == found[1]
    assert "t0ken" not in str(found)


class _Waiting:
    """A log that stores nothing until it is released."""

    def __init__(self) -> None:
        self.waiters: list[tuple[Callable[..., object], tuple[Any, ...]]] = []

    def wait(self, fn: Callable[..., object], *args: Any) -> None:
        self.waiters.append((fn, args))


def test_advisories_wait_for_the_log_and_cost_nothing_without_subscribers() -> None:
    """Nothing is built or waits without a subscriber; otherwise an advisory waits until its cause is stored."""
    bus, log, rng = FakeBus(), _Waiting(), random.Random(1)
    account = AccountEvents(bus, ManualClock(), rng, "hub", "one")  # type: ignore[arg-type]
    consumer = ConsumerEvents(bus, ManualClock(), rng, "hub", "A", "S", "C")  # type: ignore[arg-type]
    before = rng.getstate()
    bus.listens_to_events = False
    account.stream("create", "S", log)
    account.consumer("delete", "S", "C", log)
    consumer.nak(1, 1, 1)
    assert not account.audited()
    assert not log.waiters
    assert rng.getstate() == before

    bus.listens_to_events = True
    account.stream("create", "S", log)
    assert not bus.events
    for fn, args in log.waiters:
        fn(*args)
    consumer.nak(1, 1, 1)
    account.audit(None, "$JS.API.INFO", b"", b"{}")
    assert [(subject.removeprefix("$JS.EVENT.ADVISORY."), event["domain"]) for subject, event in bus.events] == [
        ("STREAM.CREATED.S", "hub"), ("CONSUMER.MSG_NAKED.S.C", "hub"), ("API", "hub")]
    audit = bus.events[-1][1]
    assert audit["client"] is None
    assert "request" not in audit
