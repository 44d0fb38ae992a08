"""The overview: traffic, connections, commits, what the store is asked for and costs, and health."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from nicegui import ui

from broker.base.output import count, size
from broker.console.frame import problem
from broker.console.server import Refused
from broker.maintenance.cost import Prices

if TYPE_CHECKING:
    from broker.console.monitor import Monitor, Sample
    from broker.console.session import Session

__all__ = ["build"]

_EVERY_SECONDS = 2.0


async def build(session: Session) -> None:
    """Show the account's figures, and the server's if its monitoring port is known."""
    with ui.row().classes("gap-4 w-full"):
        account = await _account(session)
    if session.monitor is None:
        info = session.server.info
        problem(f"Server {session.server.name}, version {info.get('version', '?')}. Start the console with --monitor "
                f"and the address of the server's monitoring port to see traffic, commits and health.")
    else:
        _monitored(session.monitor)

    async def refresh() -> None:
        try:
            figures = await session.streams.account()
        except Refused:
            return
        for name, label in account.items():
            label.text = _ACCOUNT[name][1](figures.get(name, 0))

    ui.timer(_EVERY_SECONDS * 2, refresh, immediate=False)


_ACCOUNT: dict[str, tuple[str, Any]] = {
    "streams": ("Streams", count), "consumers": ("Consumers", count), "storage": ("Stored", size),
    "memory": ("In memory", size)}


async def _account(session: Session) -> dict[str, ui.label]:
    try:
        figures = await session.streams.account()
    except Refused as error:
        problem(str(error))
        return {}
    return {name: _figure(text, show(figures.get(name, 0))) for name, (text, show) in _ACCOUNT.items()}


def _figure(text: str, value: str = "") -> ui.label:
    with ui.card().classes("items-start gap-0 min-w-36"):
        ui.label(text).classes("text-sm opacity-70")
        return ui.label(value).classes("text-xl")


def _monitored(monitor: Monitor) -> None:
    failed = ui.label().classes("text-negative").props('role="alert"')
    with ui.row().classes("gap-4 w-full"):
        figures = {name: _figure(text) for name, text in (
            ("health", "Health"), ("state", "State"), ("connections", "Connections"),
            ("slow_consumers", "Slow consumers"), ("uptime", "Up for"), ("dollars", "Store requests, $ a month"))}
    charts = []
    with ui.grid(columns="repeat(auto-fit, minmax(min(30rem, 100%), 1fr))").classes("w-full"):
        for title, names in (
                ("Messages a second", (("in", "in_msgs"), ("out", "out_msgs"))),
                ("Bytes a second", (("in", "in_bytes"), ("out", "out_bytes"))),
                ("Store requests a second", (("put", "put"), ("get", "get"), ("list", "list"), ("delete", "delete"))),
                ("Mean commit, ms", (("commit", ""),))):
            charts.append((_chart(title, [text for text, _ in names]), title, names))

    def update() -> None:
        monitor.look()
        failed.text = monitor.problem
        sample = monitor.last
        if sample is None:
            return
        for name, text in _figures(sample, monitor.requests_a_month()).items():
            figures[name].text = text
        for chart, title, names in charts:
            for at, (_, name) in enumerate(names):
                if title.startswith("Mean"):
                    points = monitor.commit_ms()
                elif title.startswith("Store"):
                    points = _request_rates(monitor, name)
                else:
                    points = monitor.rates(name)
                chart.options["series"][at]["data"] = [[at_s * 1000, round(value, 2)] for at_s, value in points]
            chart.update()

    update()
    ui.timer(_EVERY_SECONDS, update)


def _figures(sample: Sample, requests: dict[str, float]) -> dict[str, str]:
    varz, metrics = sample.varz, sample.metrics
    health = str(sample.healthz.get("status", "?"))
    if error := sample.healthz.get("error"):
        health = f"{health}: {error}"
    state = "running"
    if metrics:
        state = ("standby" if metrics.get("jetblock_standby") else
                 "owner, lease valid" if metrics.get("jetblock_lease_valid") else "not the owner")
    dollars = "not jetblock"
    if requests:
        prices = Prices()
        writes, reads = requests.get("put", 0) + requests.get("list", 0), requests.get("get", 0)
        dollars = f"{writes / 1000 * prices.puts + reads / 1000 * prices.gets:,.2f} on S3"
    return {"health": health, "state": state, "connections": count(int(varz.get("connections", 0))),
            "slow_consumers": count(int(varz.get("slow_consumers", 0))), "uptime": str(varz.get("uptime", "")),
            "dollars": dollars}


def _request_rates(monitor: Monitor, operation: str) -> list[tuple[float, float]]:
    samples = list(monitor.samples)
    return [(two.at, max(two.requests.get(operation, 0) - one.requests.get(operation, 0), 0) / (two.at - one.at))
            for one, two in pairwise(samples) if two.at > one.at]


def _chart(title: str, names: Sequence[str]) -> ui.echart:
    return ui.echart({
        "title": {"text": title, "left": 0, "textStyle": {"fontSize": 13, "color": "#888"}}, "animation": False,
        "tooltip": {"trigger": "axis"}, "legend": {"show": len(names) > 1, "right": 0, "top": 0,
        "textStyle": {"color": "#888"}},
        "grid": {"left": 60, "right": 10, "top": 40, "bottom": 25}, "xAxis": {"type": "time"},
        "yAxis": {"type": "value", "min": 0},
        "series": [{"name": name, "type": "line", "showSymbol": False, "data": []} for name in names],
    }).classes("w-full h-56").props(f'role="img" aria-label="{title}"')
