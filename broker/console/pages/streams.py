"""The list of streams, with rates; creating a stream."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from nicegui import ui

from broker.base.output import size
from broker.console.frame import guarded, link, url
from broker.console.server import Refused

if TYPE_CHECKING:
    from broker.console.session import Session

__all__ = ["build"]

_EVERY_SECONDS = 5.0
_REFRESHED_MAX = 500
"""Streams up to which the list is read again every few seconds; longer lists are read again when asked."""

_COLUMNS: list[dict[str, Any]] = [
    {"name": "name", "label": "Name", "field": "name", "align": "left", "sortable": True},
    {"name": "subjects", "label": "Subjects", "field": "subjects", "align": "left"},
    {"name": "messages", "label": "Messages", "field": "messages", "sortable": True,
     ":format": "value => value.toLocaleString()"},
    {"name": "rate", "label": "Per second", "field": "rate", "sortable": True},
    {"name": "bytes", "label": "Size", "field": "bytes", "sortable": True,
     ":format": "(value, row) => row.shown_bytes"},
    {"name": "consumers", "label": "Consumers", "field": "consumers", "sortable": True},
    {"name": "last", "label": "Last message", "field": "last", "align": "left", "sortable": True},
    {"name": "kind", "label": "Kind", "field": "kind", "align": "left", "sortable": True},
]

_EXAMPLE = {"name": "ORDERS", "subjects": ["orders.>"], "retention": "limits", "storage": "file", "max_age": 0,
            "max_bytes": -1, "allow_direct": True}


async def build(session: Session) -> None:
    """Show the list."""
    seen: dict[str, tuple[float, int]] = {}
    waiting = ui.linear_progress(0, show_value=False).classes("w-full")
    try:
        streams = await session.streams.all(lambda done, of: waiting.set_value(done / of if of else 1))
    finally:
        waiting.delete()
    with ui.row().classes("w-full items-center"):
        wanted = ui.input(placeholder="Find a stream").props('clearable dense aria-label="Find a stream"')
        ui.space()
        ui.button("Read again", icon="refresh", on_click=lambda: refresh()).props("flat")
        if session.may("STREAM.CREATE.x"):
            ui.button("New stream", icon="add", on_click=lambda: _create(session))
    table = ui.table(columns=_COLUMNS, rows=[_row(stream, seen) for stream in streams], row_key="name",
                     pagination=50).classes("w-full")
    wanted.bind_value_to(table, "filter")
    link(table, "name")

    @guarded
    async def refresh() -> None:
        table.rows = [_row(stream, seen) for stream in await session.streams.all()]

    async def refresh_quietly() -> None:
        if len(table.rows) > _REFRESHED_MAX:
            return
        try:
            table.rows = [_row(stream, seen) for stream in await session.streams.all()]
        except Refused:
            pass  # the header says that the server is away

    ui.timer(_EVERY_SECONDS, refresh_quietly, immediate=False)


def _row(info: dict[str, Any], seen: dict[str, tuple[float, int]]) -> dict[str, Any]:
    """Return a row of the table. ``seen``: time and last sequence when each stream was read the last time."""
    config, state = info["config"], info["state"]
    name, now, last = config["name"], time.monotonic(), int(state["last_seq"])
    before = seen.get(name)
    rate = round((last - before[1]) / (now - before[0]), 1) if before and now > before[0] else 0
    seen[name] = (now, last)
    subjects = config.get("subjects") or []
    shown = ", ".join(subjects[:3]) + (f" and {len(subjects) - 3} more" if len(subjects) > 3 else "")
    return {"name": name, "href": url("streams", name), "subjects": shown, "messages": state["messages"], "rate": rate,
            "bytes": state["bytes"], "shown_bytes": size(state["bytes"]), "consumers": state.get("consumer_count", 0),
            "last": str(state.get("last_ts", "")).replace("T", " ")[:19] if state["messages"] else "",
            "kind": _kind(config)}


def _kind(config: dict[str, Any]) -> str:
    kinds = [str(config.get("retention", "limits"))]
    kinds += ["memory"] if config.get("storage") == "memory" else []
    kinds += [name for name in ("mirror", "sources", "sealed") if config.get(name)]
    return ", ".join(kinds)


async def _create(session: Session) -> None:
    with ui.dialog() as dialog, ui.card().classes("w-full max-w-2xl"):
        ui.label("New stream").classes("text-lg")
        ui.label("The configuration as JSON, with the names of the API; what is left out has its default.")
        editor = ui.codemirror(json.dumps(_EXAMPLE, indent=2), language="JSON").classes("w-full h-64")
        wrong = ui.label().classes("text-negative").props('role="alert"')

        async def create() -> None:
            try:
                config = json.loads(editor.value)
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


