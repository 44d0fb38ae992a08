"""One stream: its state, configuration, subjects, messages over time, and consumers."""

from __future__ import annotations

import difflib
import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from nicegui import ui

from broker.base.output import count, size
from broker.console.frame import confirm, guarded, url
from broker.console.server import Refused
from broker.console.streams import subject_tree
from broker.jetstream.wire.error_table import ApiErrors

if TYPE_CHECKING:
    from broker.console.session import Session

__all__ = ["build"]

_EVERY_SECONDS = 3.0
_KEPT = 200
"""Points of each consumer's chart."""
_CHARTED_MAX = 20
"""Consumers up to which all are charted."""

Json = dict[str, Any]


async def build(session: Session, name: str) -> None:
    """Show the stream."""
    info = await session.streams.info(name)
    with ui.row().classes("gap-4 w-full items-center"):
        labels = {key: _figure(text) for key, text in (
            ("messages", "Messages"), ("bytes", "Size"), ("seqs", "Sequences"), ("subjects", "Subjects"),
            ("deleted", "Deleted"), ("last", "Last message"))}
    _show_state(labels, info["state"])
    with ui.row().classes("gap-2"):
        ui.button("Messages", icon="mail", on_click=lambda: ui.navigate.to(url("streams", name, "messages")))
        if session.may(f"STREAM.PURGE.{name}"):
            ui.button("Purge", icon="delete_sweep", on_click=guarded(lambda: _purge(session, name))).props("outline")
        if session.may(f"STREAM.DELETE.{name}"):
            ui.button("Delete", icon="delete", on_click=guarded(lambda: _delete(session, name))).props(
                "outline color=negative")
    with ui.tabs().props('align=left aria-label="Parts of the stream"') as tabs:
        consumers, subjects, over_time, config = (ui.tab(text) for text in (
            "Consumers", "Subjects", "Over time", "Configuration"))
    opened: set[str] = set()
    with ui.tab_panels(tabs, value=consumers).classes("w-full bg-transparent") as panels:
        with ui.tab_panel(consumers).classes("p-0"):
            await _consumers(session, name)
        with ui.tab_panel(subjects).classes("p-0") as subjects_panel:
            pass
        with ui.tab_panel(over_time).classes("p-0") as time_panel:
            pass
        with ui.tab_panel(config).classes("p-0"):
            _config(session, info["config"])

    @guarded
    async def open_tab() -> None:
        tab = str(panels.value)
        if tab in opened:
            return
        opened.add(tab)
        if tab == "Subjects":
            with subjects_panel:
                await _subjects(session, name)
        elif tab == "Over time":
            with time_panel:
                await _over_time(session, name)

    panels.on_value_change(open_tab)

    async def refresh() -> None:
        try:
            _show_state(labels, (await session.streams.info(name))["state"])
        except Refused as error:
            if error.code == ApiErrors.STREAM_NOT_FOUND:
                labels["messages"].text = "deleted"

    ui.timer(_EVERY_SECONDS, refresh, immediate=False)


def _figure(text: str) -> ui.label:
    with ui.card().classes("items-start gap-0 min-w-32"):
        ui.label(text).classes("text-sm opacity-70")
        return ui.label().classes("text-lg").props(f'data-figure="{text}"')


def _show_state(labels: dict[str, ui.label], state: Json) -> None:
    values = {"messages": count(state["messages"]), "bytes": size(state["bytes"]),
              "seqs": f"{state['first_seq']:,} to {state['last_seq']:,}",
              "subjects": count(state.get("num_subjects", 0)),
              "deleted": count(state.get("num_deleted", 0)),
              "last": str(state.get("last_ts", "")).replace("T", " ")[:19] if state["messages"] else "none"}
    for key, value in values.items():
        labels[key].text = value


# --- consumers --------------------------------------------------------------------------------------------------------

_COLUMNS: list[dict[str, Any]] = [
    {"name": "name", "label": "Name", "field": "name", "align": "left", "sortable": True},
    {"name": "kind", "label": "Kind", "field": "kind", "align": "left", "sortable": True},
    {"name": "filter", "label": "Filter", "field": "filter", "align": "left"},
    *({"name": key, "label": text, "field": key, "sortable": True, ":format": "value => value.toLocaleString()"}
      for key, text in (("pending", "Pending"), ("ack_pending", "Ack pending"), ("redelivered", "Redelivered"),
                        ("waiting", "Waiting pulls"))),
    {"name": "state", "label": "State", "field": "state", "align": "left", "sortable": True},
]


async def _consumers(session: Session, name: str) -> None:
    history: dict[str, list[tuple[float, int, int, int]]] = {}
    with ui.row().classes("w-full items-center"):
        ui.label("A row shows more of its consumer.").classes("opacity-70")
        ui.space()
        if session.may(f"CONSUMER.CREATE.{name}"):
            ui.button("New consumer", icon="add", on_click=lambda: _edit_consumer(session, name, None))
    table = ui.table(columns=_COLUMNS, rows=[], row_key="name", pagination=50).classes("w-full").props(
        'no-data-label="No consumers"')
    chart = ui.echart(_chart("Pending messages of consumers")).classes("w-full h-56")
    chosen: dict[str, Json] = {}

    async def refresh() -> None:
        try:
            found = await session.streams.consumers(name)
        except Refused:
            return
        now = datetime.now(UTC).timestamp() * 1000
        chosen.clear()
        chosen.update({consumer["name"]: consumer for consumer in found})
        table.rows = [_consumer_row(consumer) for consumer in found]
        for consumer in found[:_CHARTED_MAX]:
            points = history.setdefault(consumer["name"], [])
            points.append((now, consumer["num_pending"], consumer["num_ack_pending"], consumer["num_redelivered"]))
            del points[:-_KEPT]
        chart.options["series"] = [
            {"name": consumer, "type": "line", "showSymbol": False,
             "data": [[at, pending] for at, pending, *_ in points]}
            for consumer, points in history.items() if consumer in chosen]
        chart.update()

    async def show(event: Any) -> None:
        consumer = chosen.get(event.args[1]["name"])
        if consumer is not None:
            await _consumer(session, name, consumer, history.get(consumer["name"], []))
            await refresh()

    table.on("rowClick", show)
    await refresh()
    ui.timer(_EVERY_SECONDS, refresh, immediate=False)


def _consumer_row(info: Json) -> Json:
    config = info["config"]
    filters = config.get("filter_subjects") or [config.get("filter_subject", "")]
    return {"name": info["name"], "kind": "push" if config.get("deliver_subject") else "pull",
            "filter": ", ".join(filters), "pending": info["num_pending"], "ack_pending": info["num_ack_pending"],
            "redelivered": info["num_redelivered"], "waiting": info.get("num_waiting", 0),
            "state": "paused" if info.get("paused") else "active"}


async def _consumer(session: Session, stream: str, info: Json, points: list[tuple[float, int, int, int]]) -> None:
    name = info["name"]
    with ui.dialog() as dialog, ui.card().classes("w-full max-w-3xl"):
        ui.label(name).classes("text-lg break-all")
        options = _chart("Since this page was opened")
        options["series"] = [{"name": text, "type": "line", "showSymbol": False,
                              "data": [[point[0], point[at]] for point in points]}
                             for at, text in enumerate(("pending", "ack pending", "redelivered"), 1)]
        ui.echart(options).classes("w-full h-48")
        ui.code(json.dumps(info, indent=2), language="json").classes("w-full max-h-80 overflow-auto")

        async def pause(seconds: int) -> None:
            until = (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat() if seconds else ""
            await session.streams.pause_consumer(stream, name, until)
            dialog.close()

        async def delete() -> None:
            if await confirm(f"Consumer {name} and its position will be gone.", name, "Delete"):
                await session.streams.delete_consumer(stream, name)
                dialog.close()

        with ui.row().classes("w-full justify-end"):
            if session.may(f"CONSUMER.PAUSE.{stream}.{name}"):
                if info.get("paused"):
                    ui.button("Resume", on_click=guarded(lambda: pause(0))).props("outline")
                else:
                    ui.button("Pause for an hour", on_click=guarded(lambda: pause(3600))).props("outline")
            if session.may(f"CONSUMER.CREATE.{stream}.{name}"):
                ui.button("Edit", on_click=lambda: _edit_consumer(session, stream, info["config"])).props("outline")
            if session.may(f"CONSUMER.DELETE.{stream}.{name}"):
                ui.button("Delete", on_click=guarded(delete)).props("outline color=negative")
            ui.button("Close", on_click=dialog.close).props("flat")
    await dialog


async def _edit_consumer(session: Session, stream: str, config: Json | None) -> None:
    async def apply(changed: Json) -> None:
        await session.streams.create_consumer(stream, changed)

    await _edit("Consumer" if config else "New consumer", config or {
        "durable_name": "worker", "ack_policy": "explicit", "deliver_policy": "all", "filter_subject": ""}, apply)


# --- subjects, time ---------------------------------------------------------------------------------------------------


async def _subjects(session: Session, name: str) -> None:
    wanted = ui.input("Only subjects that match", value=">").classes("w-96")
    shown = ui.label()
    place = ui.column().classes("w-full")

    @guarded
    async def read() -> None:
        subjects, total = await session.streams.subjects(name, str(wanted.value) or ">")
        shown.text = f"{count(total)} subjects" + (
            f"; the first {count(len(subjects))} are shown" if len(subjects) < total else "")
        place.clear()
        with place:
            ui.tree(subject_tree(subjects), label_key="label",
                    on_select=lambda event: _show_messages(name, event.value))

    wanted.on("keydown.enter", read)
    await read()


def _show_messages(name: str, subject: str | None) -> None:
    if subject:
        ui.navigate.to(url("streams", name, "messages") + f"?subject={quote(subject)}")


async def _over_time(session: Session, name: str) -> None:
    bars = await session.streams.histogram(name)
    if not bars:
        ui.label("The stream has no messages.")
        return
    options = _chart("Messages from each time to the next")
    options["series"] = [{"type": "bar", "data": [[time, messages] for time, messages in bars], "barMinWidth": 2}]
    ui.echart(options).classes("w-full h-80").props('role="img" aria-label="Messages over time"')


def _chart(title: str) -> Json:
    return {"title": {"text": title, "textStyle": {"fontSize": 13, "color": "#888"}}, "animation": False,
            "tooltip": {"trigger": "axis"}, "legend": {"type": "scroll", "right": 0, "textStyle": {"color": "#888"}},
            "grid": {"left": 60, "right": 10, "top": 40, "bottom": 25}, "xAxis": {"type": "time"},
            "yAxis": {"type": "value", "min": 0}, "series": []}


# --- configuration ----------------------------------------------------------------------------------------------------


def _config(session: Session, config: Json) -> None:
    if session.may(f"STREAM.UPDATE.{config['name']}"):
        async def apply(changed: Json) -> None:
            await session.streams.update(changed)
            ui.navigate.reload()

        ui.button("Edit", icon="edit", on_click=lambda: _edit("Configuration", config, apply)).props("outline")
    ui.code(json.dumps(config, indent=2), language="json").classes("w-full")


async def _edit(title: str, config: Json, apply: Any) -> None:
    """Let the user change a configuration, and show the difference before it is applied."""
    before = json.dumps(config, indent=2)
    with ui.dialog() as dialog, ui.card().classes("w-full max-w-3xl"):
        ui.label(title).classes("text-lg")
        editor = ui.codemirror(before, language="JSON").classes("w-full h-72")
        difference = ui.code("", language="diff").classes("w-full")
        difference.visible = False
        wrong = ui.label().classes("text-negative").props('role="alert"')

        async def check() -> None:
            wrong.text = ""
            try:
                changed = json.loads(editor.value)
                if not isinstance(changed, dict):
                    raise ValueError("an object is expected")
            except ValueError as error:
                wrong.text = f"This is not JSON: {error}."
                return
            if difference.visible and difference.content == _diff(before, changed):
                try:
                    await apply(changed)
                    dialog.close()
                except Refused as error:
                    wrong.text = str(error)
                return
            difference.content = _diff(before, changed)
            difference.visible = True
            button.text = "Apply"

        def edited() -> None:
            difference.visible = False
            button.text = "Compare"

        editor.on_value_change(edited)
        with ui.row().classes("w-full justify-end"):
            ui.button("Cancel", on_click=dialog.close).props("flat")
            button = ui.button("Compare", on_click=check)
    await dialog


def _diff(before: str, changed: Json) -> str:
    lines = difflib.unified_diff(before.splitlines(), json.dumps(changed, indent=2).splitlines(), "now", "changed",
                                 lineterm="")
    return "\n".join(lines) or "Nothing is changed."


async def _purge(session: Session, name: str) -> None:
    if await confirm(f"All messages of {name} will be gone.", name, "Purge"):
        purged = await session.streams.purge(name)
        ui.notify(f"{count(purged)} messages were removed.", type="positive")


async def _delete(session: Session, name: str) -> None:
    if await confirm(f"The stream {name}, its messages and its consumers will be gone.", name, "Delete"):
        await session.streams.delete(name)
        ui.navigate.to("/streams")
