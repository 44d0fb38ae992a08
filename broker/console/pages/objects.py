"""Object stores: their objects, upload and download."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nats.errors import Error
from nats.js.api import ObjectMeta
from nats.js.errors import NotFoundError, ObjectNotFoundError
from nicegui import app, events, ui

from broker.base.output import count, size
from broker.console.frame import confirm, guarded, link, url
from broker.console.server import Refused
from broker.console.streams import OBJECTS_PREFIX

if TYPE_CHECKING:
    from nats.js.object_store import ObjectStore

    from broker.console.session import Session

__all__ = ["build", "build_list"]

_BYTES_MAX = 4 << 30
"""The most bytes of an object that are uploaded or downloaded here."""
_DOWNLOAD_SECONDS = 3600.0
"""How long a browser may take to download an object."""


async def build_list(session: Session) -> None:
    """Show the object stores."""
    streams = [one for one in await session.streams.all() if one["config"]["name"].startswith(OBJECTS_PREFIX)]
    rows = [{"name": name, "href": url("objects", name), "bytes": size(stream["state"]["bytes"])}
            for stream in streams if (name := stream["config"]["name"].removeprefix(OBJECTS_PREFIX))]
    table = ui.table(rows=rows, row_key="name", pagination=50, columns=[
        {"name": "name", "label": "Object store", "field": "name", "align": "left", "sortable": True},
        {"name": "bytes", "label": "Size", "field": "bytes"},
    ]).classes("w-full").props('no-data-label="No object stores"')
    link(table, "name")


async def build(session: Session, name: str) -> None:
    """Show one object store."""
    js = session.server.client.jetstream(domain=session.server.login.domain or None)
    try:
        objects = await js.object_store(name)
    except (Error, TimeoutError):
        raise Refused(f"There is no object store {name}.") from None
    may_put = not session.settings.read_only and session.server.may(f"$O.{name}.C.x")
    shown = ui.label()
    table = ui.table(rows=[], row_key="name", pagination=50, columns=[
        {"name": "name", "label": "Name", "field": "name", "align": "left", "sortable": True},
        {"name": "size", "label": "Size", "field": "size", "sortable": True,
         ":format": "(value, row) => row.shown_size"},
        {"name": "time", "label": "Modified", "field": "time", "align": "left", "sortable": True},
        {"name": "digest", "label": "Digest", "field": "digest", "align": "left"},
    ]).classes("w-full").props('no-data-label="No objects"')

    @guarded
    async def refresh() -> None:
        try:
            found = await objects.list()
        except NotFoundError:
            found = []
        table.rows = [{"name": info.name, "size": info.size or 0, "shown_size": size(info.size or 0),
                       "time": str(info.mtime or "").replace("T", " ")[:19], "digest": info.digest or ""}
                      for info in found if not info.deleted]
        shown.text = f"{count(len(table.rows))} objects"

    async def opened(event: Any) -> None:
        await _object(objects, str(event.args[1]["name"]), may_put=may_put)
        await refresh()

    table.on("rowClick", opened)
    if may_put:
        @guarded
        async def put(event: events.UploadEventArguments) -> None:
            with tempfile.TemporaryFile() as file:
                async for part in event.file.iterate():
                    file.write(part)
                file.seek(0)
                await objects.put(event.file.name, file, ObjectMeta(name=event.file.name))
            ui.notify(f"{event.file.name} is stored.", type="positive")
            await refresh()

        ui.upload(label="Upload", multiple=True, auto_upload=True, on_upload=put, max_file_size=_BYTES_MAX).classes(
            "w-full")
    await refresh()


async def _object(objects: ObjectStore, name: str, *, may_put: bool) -> None:
    with ui.dialog() as dialog, ui.card().classes("w-full max-w-xl"):
        ui.label(name).classes("text-lg break-all")
        bar = ui.linear_progress(0, show_value=False)
        bar.visible = False

        async def download() -> None:
            info = await objects.get_info(name)
            if (info.size or 0) > _BYTES_MAX:
                raise Refused(f"{name} has {size(info.size or 0)}; use a client for objects beyond {size(_BYTES_MAX)}.")
            bar.visible = True
            folder = tempfile.mkdtemp()
            path = Path(folder, "object")
            with await asyncio.to_thread(path.open, "wb") as file:
                shown = ui.timer(0.2, lambda: bar.set_value(path.stat().st_size / max(info.size or 0, 1)))
                try:
                    await objects.get(name, writeinto=file)
                except ObjectNotFoundError:
                    shutil.rmtree(folder)
                    raise Refused(f"{name} is gone.") from None
                finally:
                    shown.deactivate()
            ui.download.file(path, name)
            app.timer(_DOWNLOAD_SECONDS, lambda: shutil.rmtree(folder, ignore_errors=True), once=True)
            dialog.close()

        async def delete() -> None:
            if await confirm(f"The object {name} will be gone.", name, "Delete"):
                await objects.delete(name)
                dialog.close()

        with ui.row().classes("w-full justify-end"):
            ui.button("Download", on_click=guarded(download))
            if may_put:
                ui.button("Delete", on_click=guarded(delete)).props("outline color=negative")
            ui.button("Close", on_click=dialog.close).props("flat")
    await dialog
