"""Traces of messages: which messages get spans, their parents and times, a collector over HTTP, and errors."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import nats
import pytest
from aiohttp import web
from nats.js.api import StreamConfig
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from broker.base.clock import SystemClock
from broker.base.errors import StartError
from broker.config.flags import read_flags
from broker.config.load import load
from broker.config.settings import ConfigError, make_settings
from broker.runtime import app as app_module
from broker.runtime.app import App
from broker.runtime.otel import OtelTracer, parent_of
from jetblock import Broker
from tests.harness import BrokerProcess

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = f"00-{TRACE}-{SPAN}-01"


@pytest.mark.parametrize("line, found", [
    (f"traceparent: {PARENT}", True), (f"Traceparent:{PARENT}", True), (f"TRACEPARENT: \t{PARENT} ", True),
    (f"traceparent: 00-{TRACE.upper()}-{SPAN}-01", True), (f"traceparent: 01-{TRACE}-{SPAN}-03-more", True),
    (f"traceparent: 00-{TRACE}-{SPAN}-00", False), (f"traceparent: 00-{TRACE}-{SPAN}-01-more", False),
    (f"traceparent: ff-{TRACE}-{SPAN}-01", False), (f"traceparent: 00-{'0' * 32}-{SPAN}-01", False),
    (f"traceparent: 00-{TRACE}-{'0' * 16}-01", False), (f"traceparent: 00-{TRACE}-{SPAN}", False),
    (f"x-traceparent: {PARENT}", False), (f"a: traceparent: {PARENT}", False), ("traceparent: \xff", False),
])
def test_which_messages_have_a_parent(line: str, found: bool) -> None:
    """W3C's rules: any case of the name, later versions with more parts, no zeros, and only if it is sampled."""
    block = f"NATS/1.0\r\nA: b\r\n{line}\r\nC: d\r\n\r\n".encode("latin-1")
    parent = parent_of(block)
    assert (parent is not None) == found
    if parent is not None:
        assert (f"{parent.trace_id:032x}", f"{parent.span_id:016x}", parent.is_remote) == (TRACE, SPAN, True)


def test_the_state_travels() -> None:
    """tracestate belongs to the parent; a malformed one is dropped."""
    def state(value: str) -> Any:
        parent = parent_of(f"NATS/1.0\r\ntraceparent: {PARENT}\r\ntracestate: {value}\r\n\r\n".encode("latin-1"))
        assert parent is not None
        return dict(parent.trace_state)

    assert state("a=1,b=2") == {"a": "1", "b": "2"}
    assert state("\xff\x00=;;,,,") == {}


@asynccontextmanager
async def in_memory(monkeypatch: pytest.MonkeyPatch, store: str | Path) -> AsyncIterator[tuple[Any, Any]]:
    """Run a broker whose spans stay in this process: a client, and the exporter that has them."""
    exporter = InMemorySpanExporter()
    monkeypatch.setattr(app_module, "_tracer", lambda settings, clock: OtelTracer(
        "", "n", clock, SimpleSpanProcessor(exporter)))
    async with Broker(store, settings={"jetstream.otlp_endpoint": "http://127.0.0.1:1"}) as broker:
        client = await nats.connect(broker.url)
        yield client, exporter
        await client.close()


@pytest.mark.parametrize("config", [{}, {"max_msgs_per_subject": 100, "discard_new_per_subject": True,
                                         "discard": "new"}, {"storage": "memory"}])
async def test_publish_commit_and_delivery(config: dict[str, Any], tmp_path: Path,
                                           monkeypatch: pytest.MonkeyPatch) -> None:
    """A sampled message has three spans of its trace; they are there at its PubAck and its delivery. Runs that are
    appended as a whole and messages that are checked one by one are traced alike, and other messages have none."""
    async with in_memory(monkeypatch, tmp_path) as (client, exporter):
        js = client.jetstream()
        await js.add_stream(StreamConfig(name="S", subjects=["s.>"], **config))
        await js.publish("s.plain", b"x")
        await js.publish("s.other", b"x", headers={"a": "b"})
        ack = await js.publish("s.traced", b"x", headers={"traceparent": PARENT})
        await js.publish("s.not", b"x", headers={"traceparent": PARENT[:-1] + "0"})
        spans = {span.name: span for span in exporter.get_finished_spans()}
        assert set(spans) == {"publish S", "commit"}
        publish, commit = spans["publish S"], spans["commit"]
        assert (f"{publish.context.trace_id:032x}", f"{publish.parent.span_id:016x}") == (TRACE, SPAN)
        assert commit.parent.span_id == publish.context.span_id
        assert publish.start_time <= commit.start_time <= commit.end_time <= publish.end_time
        assert dict(publish.attributes) == {
            "messaging.system": "nats", "messaging.destination.name": "s.traced", "messaging.operation.name": "publish",
            "jetblock.account": "$G", "jetblock.stream": "S", "jetblock.sequence": ack.seq}
        exporter.clear()
        pull = await js.pull_subscribe("s.>", durable="C", config=nats.js.api.ConsumerConfig(ack_wait=0.5))
        msgs = await pull.fetch(4, timeout=30)
        assert [msg.headers.get("traceparent") for msg in msgs if msg.headers][1] == PARENT
        for msg in msgs:
            if msg.subject != "s.traced":
                await msg.ack_sync()
        [again] = await pull.fetch(1, timeout=60)
        assert again.subject == "s.traced"
        await again.ack_sync()
        spans = exporter.get_finished_spans()
        assert [span.name for span in spans] == ["deliver S C"] * 2
        assert [span.attributes["jetblock.delivery"] for span in spans] == [1, 2]
        assert {(f"{span.context.trace_id:032x}", f"{span.parent.span_id:016x}") for span in spans} == {(TRACE, SPAN)}


async def test_a_collector_over_http(tmp_path: Path) -> None:
    """A broker sends its spans to a collector by OTLP, the last ones at its end; its name is in the resource."""
    received: list[ExportTraceServiceRequest] = []

    async def traces(request: web.Request) -> web.Response:
        received.append(ExportTraceServiceRequest.FromString(await request.read()))
        return web.Response(body=b"", content_type="application/x-protobuf")

    site = web.Application()
    site.router.add_post("/v1/traces", traces)
    runner = web.AppRunner(site)
    await runner.setup()
    listener = web.TCPSite(runner, "127.0.0.1", 0)
    await listener.start()
    port = runner.addresses[0][1]
    conf = tmp_path / "c.conf"
    conf.write_text(f'jetblock {{ otlp_endpoint: "http://127.0.0.1:{port}" }}\nserver_name: traced\n')
    try:
        async with BrokerProcess("-c", str(conf), "-js", "-sd", str(tmp_path / "store"),
                                 environ={"OTEL_BSP_SCHEDULE_DELAY": "600000"}) as broker:
            client = await nats.connect(broker.url)
            js = client.jetstream()
            await js.add_stream(name="S", subjects=["s"])
            await js.publish("s", b"x", headers={"traceparent": PARENT})
            await client.close()
            assert await broker.stop() == 0
        [resource] = [one for request in received for one in request.resource_spans]
        values = {one.key: one.value.string_value for one in resource.resource.attributes}
        assert (values["service.name"], values["service.instance.id"]) == ("jetblock", "traced")
        assert {span.name for scope in resource.scope_spans for span in scope.spans} == {"publish S", "commit"}
    finally:
        await runner.cleanup()


async def test_a_collector_that_is_away(tmp_path: Path) -> None:
    """Without a collector, publishing and consuming go on, the broker ends cleanly and in time."""
    async with BrokerProcess("-js", "-sd", str(tmp_path), environ={
            "JETBLOCK_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_BSP_SCHEDULE_DELAY": "50"}) as broker:
        client = await nats.connect(broker.url)
        js = client.jetstream()
        await js.add_stream(name="S", subjects=["s"])
        for _ in range(200):
            await js.publish("s", b"x", headers={"traceparent": PARENT})
        await client.close()
        assert await asyncio.wait_for(broker.stop(), 60) == 0


def test_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    """An address of no known form is refused; missing packages end the start with the remedy."""
    with pytest.raises(ConfigError, match="must be an address such as http://"):
        load(read_flags([]), {"JETBLOCK_OTLP_ENDPOINT": "collector:4317"})
    monkeypatch.setitem(sys.modules, "broker.runtime.otel", None)
    with pytest.raises(StartError, match=r"pip install 'jetblock\[otel\]'"):
        App(make_settings({"jetstream.otlp_endpoint": "http://127.0.0.1:4318"}), SystemClock())


def test_off_by_default() -> None:
    """Without the setting, nothing of OpenTelemetry is imported."""
    code = ("import sys, broker.runtime.app as a; from broker.config.settings import Settings; a.App(Settings());"
            "sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))")
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
