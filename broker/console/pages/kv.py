"""Key-value buckets: keys, values with their history, live changes, editing."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from nats.errors import Error
from nats.js.errors import KeyDeletedError, KeyNotFoundError, KeyWrongLastSequenceError, NoKeysError
from nicegui import background_tasks, context, ui

from broker.base.output import counted, size
from broker.console.frame import code, confirm, guarded, url
from broker.console.payload import preview, show
from broker.console.server import Refused
from broker.console.streams import KV_PREFIX
from broker.console.tables import Table, column

if TYPE_CHECKING:
    from nats.js.kv import KeyValue

    from broker.console.session import Session

__all__ = ["build", "build_list"]

_KEYS_MAX = 100_000
_CHANGES = 100
"""The latest changes that are shown."""
_HISTORY = [{"name": "revision", "label": "Revision", "field": "revision", "align": "right"},
            *({"name": name, "label": label, "field": name, "align": "left"} for name, label in (
                ("time", "Time"), ("operation", "Operation"), ("value", "Value")))]


async def build_list(session: Session) -> None:
    """Show the buckets."""
    streams = [stream for stream in await session.streams.all() if stream["config"]["name"].startswith(KV_PREFIX)]
    if session.may("STREAM.CREATE.KV_x"):
        ui.button("New bucket", icon="add", on_click=lambda: _create(session))
    Table([column("name", "Bucket"), column("keys", "Keys", kind="number"), column("bytes", "Size", kind="shown"),
           column("history", "Values kept for each key", kind="number")], key="name", empty="No buckets").rows = [
        {"name": name, "href": url("kv", name), "keys": stream["state"].get("num_subjects", 0),
         "bytes": stream["state"]["bytes"], "shown_bytes": size(stream["state"]["bytes"]),
         "history": stream["config"].get("max_msgs_per_subject", 1)}
        for stream in streams if (name := stream["config"]["name"].removeprefix(KV_PREFIX))]


async def _create(session: Session) -> None:
    with ui.dialog() as dialog, ui.card().classes("w-full max-w-md"):
        ui.label("New bucket").classes("text-lg").props('role="heading"')
        name = ui.input("Name").classes("w-full").props("autofocus")
        history = ui.number("Values kept for each key", value=1, min=1, max=64, format="%d").classes("w-full")

        async def create() -> None:
            js = session.server.client.jetstream(domain=session.server.login.domain or None)
            try:
                await js.create_key_value(bucket=str(name.value or ""), history=int(history.value or 1))
            except ValueError as error:
                raise Refused(f"{error}.") from None
            dialog.close()
            ui.navigate.to(url("kv", str(name.value)))

        with ui.row().classes("w-full justify-end"):
            ui.button("Cancel", on_click=dialog.close).props("flat")
            ui.button("Create", on_click=guarded(create))
    await dialog


async def build(session: Session, name: str) -> None:
    """Show one bucket."""
    js = session.server.client.jetstream(domain=session.server.login.domain or None)
    try:
        bucket = await js.key_value(name)
    except (Error, TimeoutError):
        raise Refused(f"There is no bucket {name}.") from None
    await _Page(session, name, bucket).build()


class _Page:
    def __init__(self, session: Session, name: str, bucket: KeyValue) -> None:
        self._session = session
        self._name = name
        self._bucket = bucket
        self._prefix = f"$KV.{name}."
        self._watching: asyncio.Task[None] | None = None
        self._may_put = not session.settings.read_only and session.server.may(f"{self._prefix}x")

    async def build(self) -> None:
        with ui.row().classes("w-full items-end"):
            self._wanted = ui.input("Keys that match", value=">").classes("w-64")
            self._wanted.on("keydown.enter", guarded(self._read))
            ui.button("Read again", icon="refresh", on_click=guarded(self._read)).props("flat")
            self._watch_button = ui.button("Watch", icon="play_arrow", on_click=self._watch).props("flat")
            ui.space()
            if self._may_put:
                ui.button("New key", icon="add", on_click=lambda: self._edit("", b"", 0))
        self._shown = ui.label()
        with ui.element("div").classes("w-full grid grid-cols-1 md:grid-cols-2 gap-4 items-start"):
            self._table = Table([column("key", "Key"), column("kept", "Values kept", kind="number")], key="key",
                                empty="No keys", dense=True, on_open=self._show)
            self._detail = ui.column().classes("w-full min-w-0")
            with self._detail:
                ui.label("A key shows its value and history.").classes("opacity-70")
        self._log = ui.log(max_lines=_CHANGES).classes("w-full h-48")
        self._log.visible = False
        context.client.on_disconnect(self._stop)
        await self._read()

    async def _read(self) -> None:
        subjects, total = await self._session.streams.subjects(
            KV_PREFIX + self._name, self._prefix + (str(self._wanted.value or "").strip() or ">"), _KEYS_MAX)
        self._table.rows = [{"key": subject.removeprefix(self._prefix), "kept": kept}
                            for subject, kept in subjects.items()]
        self._shown.text = counted(total, "key") + ", deleted ones included" + (
            f"; {len(subjects):,} of them are shown: enter a pattern to see others" if len(subjects) < total else "")

    async def _show(self, key: str) -> None:
        try:
            history = await self._bucket.history(key)
        except (NoKeysError, KeyNotFoundError):
            raise Refused(f"The key {key} is gone.") from None
        self._detail.clear()
        with self._detail:
            ui.label(key).classes("text-lg break-all").props('role="heading"')
            last = history[-1]
            deleted = bool(last.operation)
            if not deleted:
                _, text, remark = show(last.value or b"")
                ui.label(remark).classes("opacity-70")
                code(text).classes("max-h-72")
            with ui.row():
                if self._may_put:
                    ui.button("Edit", on_click=lambda: self._edit(key, last.value or b"", last.revision or 0)).props(
                        "outline")
                    if not deleted:
                        ui.button("Delete", on_click=guarded(lambda: self._delete(key, last.revision or 0))).props(
                            "outline color=negative")
            ui.table(columns=_HISTORY, rows=[{"revision": entry.revision, "time": str(entry.created or "")[:23],
                            "operation": entry.operation or "PUT", "value": preview(entry.value or b"", 60)}
                           for entry in reversed(history)], row_key="revision").classes("w-full").props("dense")

    async def _delete(self, key: str, revision: int) -> None:
        if await confirm(f"The key {key} will be deleted; its history stays.", key, "Delete"):
            try:
                await self._bucket.delete(key, last=revision)
            except KeyWrongLastSequenceError:
                raise Refused("Somebody has changed the key in the meantime; nothing was deleted.") from None
            await self._show(key)

    async def _edit(self, key: str, value: bytes, revision: int) -> None:
        try:
            text = value.decode()
        except UnicodeDecodeError:
            ui.notify("The value is not text; it can't be edited here.", type="warning")
            return
        with ui.dialog() as dialog, ui.card().classes("w-full max-w-2xl"):
            ui.label("Edit a value" if key else "New key").classes("text-lg").props('role="heading"')
            name = ui.input("Key", value=key).classes("w-full")
            name.enabled = not key
            editor = ui.textarea("Value", value=text).classes("w-full")

            async def put() -> None:
                target = str(name.value or "").strip()
                try:
                    await self._bucket.update(target, str(editor.value or "").encode(), last=revision)
                except KeyWrongLastSequenceError:
                    raise Refused("Somebody has changed the key in the meantime; nothing was written. Open it again "
                                  "to see its value." if key else "There is such a key already.") from None
                except (ValueError, KeyDeletedError) as error:
                    raise Refused(f"{error}.") from None
                dialog.close()
                await self._read()
                await self._show(target)

            with ui.row().classes("w-full justify-end"):
                ui.button("Cancel", on_click=dialog.close).props("flat")
                ui.button("Put", on_click=guarded(put))
        await dialog

    def _watch(self) -> None:
        if self._watching is not None:
            self._stop()
            return
        self._watch_button.props("icon=stop").text = "Stop watching"
        self._log.visible = True
        self._watching = background_tasks.create(self._run_watch(), name="watch a bucket")

    async def _run_watch(self) -> None:
        watcher = await self._bucket.watch(str(self._wanted.value or "").strip() or ">", include_history=False)
        initial = True
        try:
            while True:
                with suppress(TimeoutError, Error):
                    entry = await watcher.updates(timeout=5)  # type: ignore[no-untyped-call]
                    if entry is None:
                        initial = False
                    elif not initial:
                        self._log.push(f"{entry.revision}  {entry.operation or 'PUT'}  {entry.key}  "
                                       f"{preview(entry.value or b'', 80)}")
        finally:
            with suppress(Error):
                await watcher.stop()  # type: ignore[no-untyped-call]

    def _stop(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            self._watching = None
            self._watch_button.props("icon=play_arrow").text = "Watch"
