"""The list of streams, with rates; creating a stream."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from nicegui import ui

from broker.base.output import counted, size
from broker.console.frame import editor, guarded, url
from broker.console.server import Refused
from broker.console.tables import Table, column

if TYPE_CHECKING:
    from broker.console.session import Session

__all__ = ["build"]

_EVERY_SECONDS = 5.0
_REFRESHED_MAX = 500
"""Streams up to which the list is read again every few seconds; longer lists are read again when asked."""

_COLUMNS = [
    column("name", "Name"), column("subjects", "Subjects", sortable=False),
    column("messages", "Messages", kind="number"), column("rate", "Per second", kind="number"),
    column("bytes", "Size", kind="shown"), column("consumers", "Consumers", kind="number"),
    column("last", "Last message"), column("kind", "Kind")]

_EXAMPLE = {"name": "ORDERS", "subjects": ["orders.>"], "retention": "limits", "storage": "file", "max_age": 0,
            "max_bytes": -1, "allow_direct": True}

Json = dict[str, Any]


async def build(session: Session) -> None:
    """Show the list."""
    seen: dict[str, tuple[float, int]] = {}
    with ui.row().classes("w-full items-center"):
        wanted = ui.input(placeholder="Find a stream").props('clearable dense debounce=200 aria-label="Find a stream"')
        shown = ui.label().classes("opacity-70")
        ui.space()
        ui.button("Read again", icon="refresh", on_click=lambda: refresh()).props("flat")
        if session.may("STREAM.CREATE.x"):
            ui.button("New stream", icon="add", on_click=lambda: _create(session))
    progress = ui.linear_progress(0, show_value=False).classes("w-full")
    table = Table(_COLUMNS, key="name", empty="No streams")
    wanted.on_value_change(lambda event: table.find(event.value or ""))

    async def read() -> None:
        streams = await session.streams.all(lambda done, of: progress.set_value(done / of if of else 1))
        now = time.monotonic()
        table.rows = [_row(stream, seen, now) for stream in streams]
        shown.text = counted(len(streams), "stream")

    @guarded
    async def refresh() -> None:
        progress.visible = True
        try:
            await read()
        finally:
            progress.visible = False

    async def refresh_quietly() -> None:
        if len(table.rows) <= _REFRESHED_MAX:
            try:
                await read()
            except Refused:
                pass  # the header says that the server is away

    wanted.props("autofocus")
    await refresh()
    ui.timer(_EVERY_SECONDS, refresh_quietly, immediate=False)


def _row(info: Json, seen: dict[str, tuple[float, int]], now: float) -> Json:
    """Return a row of the table. ``seen``: time and last sequence when each stream was read the last time."""
    config, state = info["config"], info["state"]
    name, last = config["name"], int(state["last_seq"])
    before = seen.get(name)
    rate = round((last - before[1]) / (now - before[0]), 1) if before and now > before[0] and last >= before[1] else 0
    seen[name] = (now, last)
    subjects = config.get("subjects") or []
    shown = ", ".join(subjects[:3]) + (f" and {len(subjects) - 3:,} more" if len(subjects) > 3 else "")
    return {"name": name, "href": url("streams", name), "subjects": shown[:200], "messages": state["messages"],
            "rate": rate, "bytes": state["bytes"], "shown_bytes": size(state["bytes"]),
            "consumers": state.get("consumer_count", 0),
            "last": str(state.get("last_ts", "")).replace("T", " ")[:19] if state["messages"] else "",
            "kind": _kind(config)}


def _kind(config: Json) -> str:
    kinds = [str(config.get("retention", "limits"))]
    kinds += ["memory"] if config.get("storage") == "memory" else []
    kinds += [name for name in ("mirror", "sources", "sealed") if config.get(name)]
    return ", ".join(kinds)


async def _create(session: Session) -> None:
    with ui.dialog() as dialog, ui.card().classes("w-full max-w-2xl"):
        ui.label("New stream").classes("text-lg")
        ui.label("The configuration as JSON, with the names of the API; what is left out has its default.")
        text = editor(session, json.dumps(_EXAMPLE, indent=2))
        wrong = ui.label().classes("text-negative").props('role="alert"')

        async def create() -> None:
            try:
                config = json.loads(text.value)
                if not isinstance(config, dict) or not config.get("name"):
                    raise ValueError('"name" is missing')
                await session.streams.create(config)
            except ValueError as error:
                wrong.text = f"This is not a configuration: {error}."
            except Refused as error:
                wrong.text = str(error)
            else:
                dialog.close()
                ui.navigate.to(url("streams", str(config["name"])))

        with ui.row().classes("w-full justify-end"):
            ui.button("Cancel", on_click=dialog.close).props("flat")
            ui.button("Create", on_click=create)
    await dialog
