"""The page /metrics of a real broker: every metric of the table, values that follow events, both formats; the
dashboard."""

from __future__ import annotations

import asyncio
import json
import re
import runpy
from collections.abc import AsyncIterator
from typing import Any

import nats
import pytest
import pytest_asyncio
from prometheus_client import parser
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics

from broker.access.accounts import AccountLimits, AccountSettings, User
from broker.config.settings import make_settings
from broker.monitor.metrics import FAMILIES, metrics_text
from broker.monitor.views import Buckets, Sample
from broker.runtime import samples as samples_module
from broker.runtime.app import App
from tests.harness import ROOT, BrokerProcess, fetch

pytestmark = pytest.mark.asyncio(loop_scope="module")

Values = dict[tuple[str, frozenset[tuple[str, str]]], float]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def used(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[BrokerProcess]:
    """Run a broker with a stream of five messages and a consumer that received two of them and answered one."""
    async with BrokerProcess("-js", "-sd", str(tmp_path_factory.mktemp("metrics"))) as broker:
        client = await nats.connect(broker.url)
        js = client.jetstream()
        await js.add_stream(name="S", subjects=["s"])
        for _ in range(5):
            await js.publish("s", b"x" * 100)
        subscription = await js.pull_subscribe("s", "C")
        for message in (await subscription.fetch(2, timeout=30))[:1]:
            await message.ack_sync()
        await client.flush()
        yield broker
        await client.close()


async def scrape(broker: BrokerProcess) -> Values:
    status, body = await fetch(broker.monitor_url + "/metrics")
    assert status == 200
    return {(sample.name, frozenset(sample.labels.items())): sample.value
            for family in parser.text_string_to_metric_families(body.decode()) for sample in family.samples}


@pytest.mark.shows("monitoring.metrics")
async def test_every_metric_is_there(used: BrokerProcess) -> None:
    """Each metric has its type, help and labels. Units are base units, and only counters end in _total."""
    _, body = await fetch(used.monitor_url + "/metrics")
    found = {family.name: family for family in parser.text_string_to_metric_families(body.decode())}
    for family in FAMILIES:
        if family.name.startswith("jetblock_streaming_"):
            continue  # tests/streaming/test_pages.py
        assert (family.kind == "counter") == family.name.endswith("_total"), family.name
        assert not re.search(r"_(ms|ns|kb|mb|percent|milliseconds)(_|$)", family.name), family.name
        if family.name == "jetblock_store_errors_total" and family.name.removesuffix("_total") not in found:
            continue  # nothing failed
        shown = found.pop(family.name.removesuffix("_total"))
        assert (shown.type, shown.documentation) == (family.kind, family.help)
        for sample in shown.samples:
            assert set(sample.labels) - {"le"} == set(family.labels), family.name
    assert all(name.startswith(("process_", "python_")) for name in found), found.keys()
    assert {"process_cpu_seconds", "process_resident_memory_bytes", "process_open_fds"} <= found.keys()


@pytest.mark.shows("monitoring.metrics")
async def test_values(used: BrokerProcess) -> None:
    """The values are those of the stream, of its consumer, of clients and of commits."""
    values = await scrape(used)

    def value(name: str, **labels: str) -> float:
        return values[name, frozenset(labels.items())]

    stream = {"account": "$G", "stream": "S"}
    assert value("jetblock_stream_messages", **stream) == 5
    assert value("jetblock_stream_last_sequence", **stream) == 5
    assert value("jetblock_stream_bytes", **stream) == value("jetblock_jetstream_stored_bytes", storage="file") > 500
    assert value("jetblock_stream_pending_messages", **stream) == 3
    assert value("jetblock_stream_ack_pending_messages", **stream) == 1
    assert value("jetblock_stream_consumers", **stream) == value("jetblock_jetstream_consumers") == 1
    assert value("jetblock_connections") == value("jetblock_account_connections", account="$G") == 1
    assert value("jetblock_received_messages_total") >= 8
    assert value("jetblock_healthy") == value("jetblock_lease_valid") == value("jetblock_store_up") == 1
    assert value("jetblock_standby") == value("jetblock_streams_not_shown") == 0
    commits = value("jetblock_commit_duration_seconds_count")
    assert commits >= 5
    assert value("jetblock_commits_total") >= 1  # many commits of the journal become one segment
    assert value("jetblock_commit_duration_seconds_bucket", le="+Inf") == commits
    assert 0 < value("jetblock_commit_duration_seconds_sum") < 60
    assert value("jetblock_commit_bytes_total") > 500
    assert value("jetblock_store_operation_duration_seconds_count", operation="put") >= commits
    assert value("jetblock_recovery_duration_seconds") > 0
    assert value("jetblock_event_loop_lag_seconds_count") > 0


async def test_counters_only_grow(used: BrokerProcess) -> None:
    """Counters never fall from one scrape to the next, series of histograms included."""
    before = await scrape(used)
    after = await scrape(used)
    page = ("jetblock_http_requests_total", frozenset({("page", "/metrics")}))
    assert after[page] == before[page] + 1
    for key, value in before.items():
        if key[0].endswith(("_total", "_count", "_bucket", "_sum")):
            assert after[key] >= value, key


@pytest.mark.shows("monitoring.metrics")
async def test_openmetrics(used: BrokerProcess) -> None:
    """The other format is sent on request; its parser is strict about names and order."""
    async with BrokerConnection(used) as connection:
        head, body = await connection.get("/metrics", "Accept: application/openmetrics-text; version=1.0.0")
    assert "application/openmetrics-text" in head
    assert {family.name for family in openmetrics(body)} >= {"jetblock_commits", "jetblock_stream_messages"}


class BrokerConnection:
    """A connection for one request with headers of its own."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._at = broker.monitor_url.removeprefix("http://").split(":")

    async def __aenter__(self) -> BrokerConnection:
        self._reader, self._writer = await asyncio.open_connection(self._at[0], int(self._at[1]))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()

    async def get(self, target: str, *headers: str) -> tuple[str, str]:
        self._writer.write("\r\n".join([f"GET {target} HTTP/1.1", "Host: x", *headers, "", ""]).encode())
        head, _, body = (await self._reader.read()).decode().partition("\r\n\r\n")
        return head, body


async def test_dashboard(used: BrokerProcess) -> None:
    """Every metric and label that the dashboard uses exists; panels do not overlap; the file is as generated."""
    made = runpy.run_path(str(ROOT / "docs" / "generators" / "dashboard.py"))
    text = made["PAGE"].read_text()
    assert text == made["page"](), "run: python docs/generators/dashboard.py"
    samples = {name for name, _ in await scrape(used)} | {"jetblock_store_errors_total"} | {
        family.name for family in FAMILIES if family.name.startswith(("jetblock_cache_directory_", "jetblock_scrub_"))
        or family.name == "jetblock_damaged_objects"}  # these need a cache directory, or ten minutes
    labels = {name: set(family.labels) for family in FAMILIES for name in (family.name, family.name + "_bucket")}
    dashboard = json.loads(text)
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    assert len(expressions) > 30
    for expression in expressions:
        for name, selectors in re.findall(r"((?:jetblock|process)_[a-z_]+)\{([^}]*)\}", expression):
            assert name in samples, name
            asked = set(re.findall(r"(\w+)[!=]~?=?\"", selectors)) - {"instance"}
            assert asked <= labels.get(name, set()), expression
        assert expression.count("(") == expression.count(")")
    places = [tuple(panel["gridPos"][side] for side in "xy") for panel in dashboard["panels"]]
    assert len(set(places)) == len(places)


async def test_documented() -> None:
    """docs/MONITORING.md has the generated table, and names no metric that does not exist."""
    made = runpy.run_path(str(ROOT / "docs" / "generators" / "metrics.py"))
    text = made["PAGE"].read_text()
    assert text == made["page"](), "run: python docs/generators/metrics.py"
    names = {family.name for family in FAMILIES}
    for name in re.findall(r"jetblock_[a-z_]+[a-z]", text):
        assert name.removesuffix("_bucket") in names or name in ("jetblock_commit",), name


async def test_histogram_and_labels() -> None:
    """Buckets are cumulative, and labels may hold anything a stream's name may."""
    samples: list[Sample] = [
        Sample("jetblock_commit_duration_seconds", Buckets((0.5, 1.0), (3, 0, 2), 7.5)),
        Sample("jetblock_stream_messages", 1, ("a\"b\\", "é\n")),
        Sample("jetblock_stream_messages", 2, ("A", "\ud800"))]
    text, _ = metrics_text(samples, "")
    found: dict[Any, float] = {(sample.name, *sample.labels.values()): sample.value
                               for family in parser.text_string_to_metric_families(text.decode())
                               for sample in family.samples}
    assert [found["jetblock_commit_duration_seconds_bucket", le] for le in ("0.5", "1.0", "+Inf")] == [3, 3, 5]
    assert found["jetblock_commit_duration_seconds_sum",] == 7.5
    assert found["jetblock_stream_messages", "a\"b\\", "é\n"] == 1
    assert found["jetblock_stream_messages", "A", "?"] == 2


async def test_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the bounds, streams and accounts have no series, but their number is shown; so it is with many
    consumers."""
    monkeypatch.setattr(samples_module, "STREAMS_MAX", 3)
    monkeypatch.setattr(samples_module, "ACCOUNTS_MAX", 2)
    monkeypatch.setattr(samples_module, "_CONSUMERS_COUNTED_MAX", 2)
    accounts = (AccountSettings("A"), AccountSettings("B", jetstream=AccountLimits()))
    app = App(make_settings({"clients.host": "127.0.0.1", "clients.port": -1, "jetstream.enabled": True,
                             "storage.url": "memory://", "accounts.configured": accounts,
                             "auth.users": (User("b", "b", account="B"),)}))
    try:
        await app.start()
        client = await nats.connect(f"nats://b:b@127.0.0.1:{app.server.port}")
        js = client.jetstream()
        for n in range(5):
            await js.add_stream(name=f"S{n}", subjects=[f"s.{n}"])
            await js.add_consumer(f"S{n}", durable_name="C")
        found = [(sample.name, sample.labels) for sample in app.views.samples()]
        figures = {sample.name: sample.value for sample in app.views.samples()}
        await client.close()
    finally:
        await app.stop()

    def shown(name: str) -> list[tuple[str, ...]]:
        return [labels for other, labels in found if other == name]

    assert shown("jetblock_stream_messages") == [("B", "S0"), ("B", "S1"), ("B", "S2")]
    assert shown("jetblock_stream_pending_messages") == [("B", "S0"), ("B", "S1")]
    assert shown("jetblock_account_connections") == [("$G",), ("$SYS",)]
    assert (figures["jetblock_streams_not_shown"], figures["jetblock_accounts_not_shown"]) == (2, 2)
    assert (figures["jetblock_jetstream_streams"], figures["jetblock_jetstream_consumers"]) == (5, 5)
