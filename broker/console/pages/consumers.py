"""The consumers of a stream: what is pending, over time; changing, pausing and deleting them."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from nicegui import ui

from broker.base.output import counted
from broker.console.charts import Chart
from broker.console.frame import code, confirm, guarded
from broker.console.pages.configuration import edit
from broker.console.server import Refused
from broker.console.tables import Table, column

if TYPE_CHECKING:
    from broker.console.session import Session

__all__ = ["show_consumers"]

_EVERY_SECONDS = 3.0
_KEPT = 200
"""Points of each consumer's chart."""
_CHARTED_MAX = 8
"""Consumers that the common chart has: those with the most pending messages."""
_REFRESHED_MAX = 500
_NEW = {"durable_name": "worker", "ack_policy": "explicit", "deliver_policy": "all", "filter_subject": ""}
_PAUSES = {300: "5 minutes", 3600: "an hour", 86_400: "a day", 30 * 86_400: "30 days"}

_COLUMNS = [
    column("name", "Name"), column("kind", "Kind"), column("filter", "Filter"),
    *(column(key, text, kind="number") for key, text in (
        ("pending", "Pending"), ("ack_pending", "Ack pending"), ("redelivered", "Redelivered"),
        ("waiting", "Waiting pulls"))), column("state", "State")]

Json = dict[str, Any]
Points = list[tuple[float, int, int, int]]


async def show_consumers(session: Session, name: str) -> None:
    """Show the consumers of a stream, and refresh them."""
    history: dict[str, Points] = {}
    found: dict[str, Json] = {}
    with ui.row().classes("w-full items-center"):
        shown = ui.label().classes("opacity-70")
        ui.space()
        if session.may(f"CONSUMER.CREATE.{name}"):
            ui.button("New consumer", icon="add", on_click=guarded(lambda: _change(session, name, None)))

    async def opened(consumer: str) -> None:
        if consumer in found:
            await _open(session, name, found[consumer], history.setdefault(consumer, []))
            await refresh()

    table = Table(_COLUMNS, key="name", empty="No consumers", on_open=opened)
    chart = Chart("Pending messages")

    async def refresh() -> None:
        try:
            consumers = await session.streams.consumers(name)
        except Refused:
            return  # the page says that the server or the stream is gone
        now = time.time()
        found.clear()
        found.update({consumer["name"]: consumer for consumer in consumers})
        table.rows = [_row(consumer) for consumer in consumers]
        shown.text = counted(len(consumers), "consumer")
        for gone in history.keys() - found.keys():
            del history[gone]
        for consumer in consumers[:_REFRESHED_MAX]:
            points = history.setdefault(consumer["name"], [])
            points.append((now, consumer["num_pending"], consumer["num_ack_pending"], consumer["num_redelivered"]))
            del points[:-_KEPT]
        charted = sorted(history, key=lambda one: -history[one][-1][1] if history[one] else 0)[:_CHARTED_MAX]
        chart.visible = bool(charted)
        chart.show((one, [(at, pending) for at, pending, *_ in history[one]]) for one in sorted(charted))

    async def refresh_quietly() -> None:
        if len(found) <= _REFRESHED_MAX:
            await refresh()

    await refresh()
    ui.timer(_EVERY_SECONDS, refresh_quietly, immediate=False)


def _row(info: Json) -> Json:
    config = info["config"]
    filters = config.get("filter_subjects") or [config.get("filter_subject", "")]
    return {"name": info["name"], "kind": "push" if config.get("deliver_subject") else "pull",
            "filter": ", ".join(filters)[:200], "pending": info["num_pending"], "ack_pending": info["num_ack_pending"],
            "redelivered": info["num_redelivered"], "waiting": info.get("num_waiting", 0),
            "state": "paused" if info.get("paused") else "active"}


async def _open(session: Session, stream: str, info: Json, points: Points) -> None:
    name = info["name"]
    with ui.dialog() as dialog, ui.card().classes("w-full max-w-3xl"):
        ui.label(name).classes("text-lg break-all").props('role="heading"')
        chart = Chart("Since this page was opened")

        def draw() -> None:
            chart.show((text, [(point[0], point[at]) for point in points]) for at, text in enumerate(
                ("pending", "ack pending", "redelivered"), 1))

        draw()
        ui.timer(_EVERY_SECONDS, draw)
        code(json.dumps(info, indent=2, ensure_ascii=False)).classes("max-h-80")

        async def pause(seconds: int) -> None:
            until = (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat() if seconds else ""
            await session.streams.pause_consumer(stream, name, until)
            dialog.close()

        async def delete() -> None:
            if await confirm(f"Consumer {name} and its position will be gone.", name, "Delete"):
                await session.streams.delete_consumer(stream, name)
                dialog.close()

        async def change() -> None:
            dialog.close()
            await _change(session, stream, info["config"])

        with ui.row().classes("w-full justify-end items-center"):
            if session.may(f"CONSUMER.PAUSE.{stream}.{name}"):
                if info.get("paused"):
                    ui.button("Resume", on_click=guarded(lambda: pause(0))).props("outline")
                else:
                    wanted = ui.select(_PAUSES, value=3600).props('dense aria-label="How long to pause"')
                    ui.button("Pause", on_click=guarded(lambda: pause(int(wanted.value or 3600)))).props("outline")
            if session.may(f"CONSUMER.CREATE.{stream}.{name}"):
                ui.button("Edit", on_click=guarded(change)).props("outline")
            if session.may(f"CONSUMER.DELETE.{stream}.{name}"):
                ui.button("Delete", on_click=guarded(delete)).props("outline color=negative")
            ui.button("Close", on_click=dialog.close).props("flat")
    await dialog


async def _change(session: Session, stream: str, config: Json | None) -> None:
    async def apply(changed: Json) -> None:
        await session.streams.create_consumer(stream, changed)

    await edit(session, "Consumer" if config else "New consumer", config or _NEW, apply)
