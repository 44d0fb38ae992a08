"""The overview: traffic, connections, commits, what the store is asked for and costs, and health with its reasons."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from nicegui import ui

from broker.base.output import size
from broker.console.charts import Chart
from broker.console.frame import figure, figures, problem
from broker.console.server import Refused
from broker.maintenance.cost import Prices

if TYPE_CHECKING:
    from broker.console.monitor import Monitor, Sample
    from broker.console.session import Session

__all__ = ["build"]

_EVERY_SECONDS = 2.0
_MEASURED_SECONDS = 10.0
"""Before this, a rate is not extrapolated to a month."""

_BYTES = "Bytes a second"

Lines = Sequence[tuple[str, Sequence[tuple[float, float]]]]


async def build(session: Session) -> None:
    """Show the account's figures, and the server's if its monitoring port is known."""
    await _account(session)
    if session.monitor is not None:
        _monitored(session.monitor)
        return
    ui.label(f"Server {session.server.name}, version {session.server.info.get('version', '?')}.")
    ui.label("Start the console with --monitor and the address of the server's monitoring port to see traffic, "
             "commits and health.").classes("opacity-70")


def _count(value: int) -> str:
    return f"{value:,}"


_ACCOUNT: dict[str, tuple[str, Callable[[int], str]]] = {
    "streams": ("Streams", _count), "consumers": ("Consumers", _count), "storage": ("Stored", size),
    "memory": ("In memory", size)}


async def _account(session: Session) -> None:
    failed = ui.column().classes("w-full")
    with figures():
        labels = {name: figure(text, "…") for name, (text, _) in _ACCOUNT.items()}

    async def refresh() -> None:
        failed.clear()
        try:
            figures = await session.streams.account()
        except Refused as error:
            with failed:
                problem(str(error))
            return
        for name, label in labels.items():
            label.text = _ACCOUNT[name][1](int(figures.get(name, 0)))

    await refresh()
    ui.timer(_EVERY_SECONDS * 2, refresh, immediate=False)


def _monitored(monitor: Monitor) -> None:
    failed = ui.label().classes("text-negative").props('role="alert"')
    with figures():
        labels = {name: figure(text, "…") for name, text in (
            ("health", "Health"), ("state", "State"), ("connections", "Connections"),
            ("slow_consumers", "Slow consumers"), ("uptime", "Up for"))}
        with ui.element("div").classes("grid") as price:
            labels["dollars"] = figure("Store, $ a month", "…")
    reasons = ui.column().classes("w-full gap-1")
    shown: list[str] = []
    charts: list[tuple[Chart, Callable[[], Lines]]] = []
    with ui.grid(columns="repeat(auto-fit, minmax(min(24rem, 100%), 1fr))").classes("w-full"):
        for title, lines in _charts(monitor):
            charts.append((Chart(title, [name for name, _ in lines()], of_bytes=title == _BYTES), lines))
    remark = ui.label("The price is that of AWS's list for S3 Standard, at the rate of the last minutes.").classes(
        "opacity-70")
    of_jetblock: tuple[ui.element | Chart, ...] = (price, remark, *(chart for chart, _ in charts[2:]))

    def update() -> None:
        monitor.look()
        failed.text = monitor.problem
        sample = monitor.last
        if sample is None:
            return
        for one in of_jetblock:
            one.visible = bool(sample.metrics)
        for name, text in _figures(sample, monitor).items():
            labels[name].text = text
        for chart, lines in charts:
            if chart.visible:
                chart.show(lines())
        if (now := _reasons(sample)) != shown:
            shown[:] = now
            reasons.clear()
            with reasons:
                for text in now:
                    ui.label(text).props('role="alert"').classes("text-negative")

    update()
    ui.timer(_EVERY_SECONDS, update)


def _charts(monitor: Monitor) -> Sequence[tuple[str, Callable[[], Lines]]]:
    return (
        ("Messages a second", lambda: (("in", monitor.rates("in_msgs")), ("out", monitor.rates("out_msgs")))),
        (_BYTES, lambda: (("in", monitor.rates("in_bytes")), ("out", monitor.rates("out_bytes")))),
        ("Mean commit, ms", lambda: (("commit", monitor.commit_ms()),)),
        ("Store requests a second", lambda: tuple((one, monitor.request_rates(one)) for one in (
            "put", "get", "list", "delete"))))


def _figures(sample: Sample, monitor: Monitor) -> dict[str, str]:
    varz, metrics = sample.varz, sample.metrics
    log = _part(varz, "jetblock", "log")
    state = f"nats-server {varz.get('version', '')}"
    if metrics:
        state = ("standby" if metrics.get("jetblock_standby") else
                 f"owner, epoch {log.get('epoch', '?')}, lease valid" if metrics.get("jetblock_lease_valid")
                 else "not the owner")
    return {"health": "ok" if sample.healthz.get("status") == "ok" and not _reasons(sample) else
                      str(sample.healthz.get("status", "?")) if sample.healthz.get("status") != "ok" else "see below",
            "state": state, "connections": _count(int(varz.get("connections", 0))),
            "slow_consumers": _count(int(varz.get("slow_consumers", 0))), "uptime": str(varz.get("uptime", "")),
            "dollars": _dollars(sample, monitor)}


def _dollars(sample: Sample, monitor: Monitor) -> str:
    if monitor.seconds < _MEASURED_SECONDS:
        return "measuring …"
    requests, prices = monitor.requests_a_month(), Prices()
    writes, reads = requests.get("put", 0) + requests.get("list", 0), requests.get("get", 0)
    stored = float(sample.jsz.get("storage", 0)) / 2**30 * prices.storage
    return f"{writes / 1000 * prices.puts + reads / 1000 * prices.gets + stored:,.2f} on S3"


def _reasons(sample: Sample) -> list[str]:
    """Return what is not as it should be."""
    found = []
    if sample.healthz.get("status") != "ok":
        found.append(f"Health: {sample.healthz.get('error') or sample.healthz.get('status', '?')}")
    if error := _part(sample.varz, "jetblock", "log").get("store_error"):
        found.append(f"The store does not accept commits: {error}")
    metrics = sample.metrics
    if metrics and not metrics.get("jetblock_standby") and not metrics.get("jetblock_lease_valid"):
        found.append("This broker cannot prove that it owns the store.")
    if offline := int(metrics.get("jetblock_jetstream_streams_offline", 0)):
        found.append(f"{offline:,} streams cannot be used; the broker's log has the causes.")
    if damaged := int(metrics.get("jetblock_damaged_objects", 0)):
        found.append(f"{damaged:,} objects of the store are damaged or missing; the store's page has their names.")
    tail, most = metrics.get("jetblock_tail_bytes", 0), metrics.get("jetblock_max_tail_bytes", 0)
    if most and tail > 0.8 * most:
        found.append("The store is too slow: publishers are about to wait.")
    return found


def _part(value: dict[str, Any], *names: str) -> dict[str, Any]:
    for name in names:
        inner = value.get(name)
        value = inner if isinstance(inner, dict) else {}
    return value
