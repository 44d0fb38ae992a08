"""One stream: its state, configuration, subjects, messages over time, and consumers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from nicegui import ui

from broker.base.output import counted, size
from broker.console.charts import bars
from broker.console.frame import code, confirm, figure, figures, guarded, url
from broker.console.pages.configuration import edit
from broker.console.pages.consumers import show_consumers
from broker.console.server import Refused
from broker.console.subjects import SubjectTree
from broker.jetstream.wire.error_table import ApiErrors

if TYPE_CHECKING:
    from broker.console.session import Session

__all__ = ["build"]

_EVERY_SECONDS = 3.0
_CHILDREN = 200
"""Tokens that a node of the tree shows."""

Json = dict[str, Any]


async def build(session: Session, name: str) -> None:
    """Show the stream."""
    info = await session.streams.info(name)
    for text in _about(info["config"]):
        ui.label(text).classes("opacity-70 break-all")
    with figures():
        labels = {key: figure(text) for key, text in (
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
    gone = ui.label().classes("text-negative").props('role="alert"')
    with ui.tabs().classes("max-w-full").props('align=left outside-arrows aria-label="Parts of the stream"') as tabs:
        for text in ("Consumers", "Subjects", "Over time", "Configuration"):
            ui.tab(text)
    opened: set[str] = set()
    places = {}
    with ui.tab_panels(tabs, value="Consumers").classes("w-full bg-transparent") as panels:
        for text in ("Consumers", "Subjects", "Over time", "Configuration"):
            with ui.tab_panel(text).classes("p-0 gap-2") as places[text]:
                if text == "Configuration":
                    _config(session, info["config"])

    @guarded
    async def open_tab() -> None:
        tab = str(panels.value)
        show = {"Consumers": show_consumers, "Subjects": _subjects, "Over time": _over_time}.get(tab)
        if show is None or tab in opened:
            return
        opened.add(tab)
        with places[tab]:
            await show(session, name)

    panels.on_value_change(open_tab)
    await open_tab()

    async def refresh() -> None:
        try:
            _show_state(labels, (await session.streams.info(name))["state"])
            gone.text = ""
        except Refused as error:
            if error.code == ApiErrors.STREAM_NOT_FOUND:
                gone.text = f"The stream {name} was deleted in the meantime."

    ui.timer(_EVERY_SECONDS, refresh, immediate=False)


def _about(config: Json) -> list[str]:
    metadata = {key: value for key, value in (config.get("metadata") or {}).items() if not key.startswith("_nats.")}
    return [*([str(config["description"])] if config.get("description") else []),
            *(f"{key}: {value}" for key, value in metadata.items())]


def _show_state(labels: dict[str, ui.label], state: Json) -> None:
    values = {"messages": f"{state['messages']:,}", "bytes": size(state["bytes"]),
              "seqs": (f"{state['first_seq']:,} to {state['last_seq']:,}" if state["messages"] else
                       f"none after {state['last_seq']:,}" if state["last_seq"] else "none"),
              "subjects": f"{state.get('num_subjects', 0):,}", "deleted": f"{state.get('num_deleted', 0):,}",
              "last": str(state.get("last_ts", "")).replace("T", " ")[:19] if state["messages"] else "none"}
    for key, value in values.items():
        labels[key].text = value


# --- subjects, time ---------------------------------------------------------------------------------------------------


async def _subjects(session: Session, name: str) -> None:
    with ui.row().classes("items-center gap-2"):
        wanted = ui.input("Only subjects that match", value=">").classes("w-96")
        ui.button("Read", on_click=lambda: read()).props("flat")
    shown = ui.label().props('role="status"')
    with ui.row().classes("items-center gap-2") as waiting:
        progress = ui.linear_progress(0, show_value=False).classes("w-96").props(
            'aria-label="Subjects that were read"')
        ui.button("Stop", on_click=lambda: stopped.append(True)).props("flat dense")
    place = ui.column().classes("w-full")
    stopped: list[bool] = []

    def go_on(done: int, of: int) -> bool:
        progress.value = round(done / of, 3) if of else 1
        return not stopped

    @guarded
    async def read() -> None:
        stopped.clear()
        waiting.visible = True
        try:
            subjects, total = await session.streams.subjects(
                name, str(wanted.value or "").strip() or ">", progress=go_on)
        finally:
            waiting.visible = False
        shown.text = counted(total, "subject") + (
            f"; {len(subjects):,} of them are shown" if len(subjects) < total else "")
        place.clear()
        with place:
            _tree(SubjectTree(subjects), name)

    wanted.on("keydown.enter", read)
    await read()


def _tree(subjects: SubjectTree, name: str) -> None:
    """Show the tree; a node gets its children when it is expanded."""
    nodes: dict[str, Json] = {}

    def level(prefix: str) -> list[Json]:
        branches, left = subjects.level(prefix, _CHILDREN)
        made = []
        for branch in branches:
            count = f"{branch.messages:,}" + (f" in {branch.subjects:,} subjects" if branch.subjects > 1 else "")
            node: Json = {"id": branch.subject + (".>" if branch.deeper else ""), "label": f"{branch.token} ({count})"}
            if branch.deeper:
                node["children"] = [{"id": f"{branch.subject}.> waits", "label": "…", "selectable": False}]
                nodes[node["id"]] = node
            made.append(node)
        if left:
            made.append({"id": f"{prefix} left", "selectable": False,
                         "label": f"… and {left:,} more subjects: enter a pattern above to see fewer"})
        return made

    def expand(ids: list[str]) -> None:
        for one in ids:
            if (node := nodes.pop(one, None)) is not None:
                node["children"] = level(one.removesuffix(">"))
        tree.props["nodes"] = roots  # NiceGUI keeps a copy

    roots = level("")
    tree = ui.tree(roots, label_key="label", on_select=lambda event: _show_messages(name, event.value),
                   on_expand=lambda event: expand(event.value)).props('no-nodes-label="No subjects"')
    ui.label("A subject's name leads to its messages.").classes("opacity-70")


def _show_messages(name: str, subject: str | None) -> None:
    if subject and " " not in subject:
        ui.navigate.to(url("streams", name, "messages") + f"?subject={quote(subject)}")


async def _over_time(session: Session, name: str) -> None:
    @guarded
    async def read() -> None:
        place.clear()
        with place:
            waiting = ui.spinner(size="lg").props('role="status" aria-label="The times of messages are read"')
        try:
            found = await session.streams.histogram(name)
        finally:
            waiting.delete()
        with place:
            if found:
                bars("Messages over time", found)
                ui.label("Estimated from the times of some messages at equal distances.").classes("opacity-70")
            else:
                ui.label("The stream has no messages.")

    ui.button("Read again", icon="refresh", on_click=read).props("flat")
    place = ui.column().classes("w-full")
    await read()


# --- configuration ----------------------------------------------------------------------------------------------------


def _config(session: Session, config: Json) -> None:
    if session.may(f"STREAM.UPDATE.{config['name']}"):
        async def apply(changed: Json) -> None:
            await session.streams.update(changed)
            ui.navigate.reload()

        ui.button("Edit", icon="edit", on_click=lambda: edit(session, "Configuration", config, apply)).props("outline")
    code(json.dumps(config, indent=2, ensure_ascii=False))


async def _purge(session: Session, name: str) -> None:
    if await confirm(f"All messages of {name} will be gone.", name, "Purge"):
        purged = await session.streams.purge(name)
        ui.notify(f"Removed {counted(purged, 'message')}.", type="positive")


async def _delete(session: Session, name: str) -> None:
    if await confirm(f"The stream {name}, its messages and its consumers will be gone.", name, "Delete"):
        await session.streams.delete(name)
        ui.navigate.to("/streams")
