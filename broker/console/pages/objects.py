"""Object stores: their objects, upload and download."""

from __future__ import annotations

import tempfile
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from nats.errors import Error
from nats.js.api import ObjectMeta, ObjectStoreConfig
from nats.js.errors import NotFoundError
from nicegui import events, ui

from broker.base.output import counted, size
from broker.console.downloads import object_address
from broker.console.frame import confirm, guarded, url
from broker.console.server import Refused
from broker.console.streams import OBJECTS_PREFIX
from broker.console.tables import Table, column

if TYPE_CHECKING:
    from nats.js.object_store import ObjectStore

    from broker.console.session import Session

__all__ = ["build", "build_list"]

_UPLOADED_MAX = 4 << 30
"""The most bytes of an object that are uploaded here."""


async def build_list(session: Session) -> None:
    """Show the object stores."""
    streams = [one for one in await session.streams.all() if one["config"]["name"].startswith(OBJECTS_PREFIX)]
    if session.may(f"STREAM.CREATE.{OBJECTS_PREFIX}x"):
        ui.button("New object store", icon="add", on_click=lambda: _create(session))
    Table([column("name", "Object store"), column("bytes", "Size", kind="shown")], key="name",
          empty="No object stores").rows = [
        {"name": name, "href": url("objects", name), "bytes": stream["state"]["bytes"],
         "shown_bytes": size(stream["state"]["bytes"])}
        for stream in streams if (name := stream["config"]["name"].removeprefix(OBJECTS_PREFIX))]


async def _create(session: Session) -> None:
    with ui.dialog() as dialog, ui.card().classes("w-full max-w-md"):
        ui.label("New object store").classes("text-lg").props('role="heading"')
        name = ui.input("Name").classes("w-full").props("autofocus")

        async def create() -> None:
            js = session.server.client.jetstream(domain=session.server.login.domain or None)
            try:
                await js.create_object_store(str(name.value or ""), config=ObjectStoreConfig())
            except (ValueError, NotFoundError) as error:
                raise Refused(f"{error}.") from None
            dialog.close()
            ui.navigate.to(url("objects", str(name.value)))

        with ui.row().classes("w-full justify-end"):
            ui.button("Cancel", on_click=dialog.close).props("flat")
            ui.button("Create", on_click=guarded(create))
    await dialog


async def build(session: Session, name: str) -> None:
    """Show one object store."""
    js = session.server.client.jetstream(domain=session.server.login.domain or None)
    try:
        objects = await js.object_store(name)
    except (Error, TimeoutError):
        raise Refused(f"There is no object store {name}.") from None
    may_put = not session.settings.read_only and session.server.may(f"$O.{name}.C.x")
    shown = ui.label().props('role="status"')

    async def opened(one: str) -> None:
        await _open(objects, name, one, may_put=may_put)
        await refresh()

    table = Table([column("name", "Name"), column("size", "Size", kind="shown"), column("time", "Modified"),
                   column("digest", "Digest", sortable=False)], key="name", empty="No objects", on_open=opened)

    @guarded
    async def refresh() -> None:
        try:
            found = await objects.list()
        except NotFoundError:
            found = []
        table.rows = [{"name": info.name, "size": info.size or 0, "shown_size": size(info.size or 0),
                       "time": str(info.mtime or "").replace("T", " ")[:19],
                       "digest": (info.digest or "").removeprefix("SHA-256=")[:16]}
                      for info in found if not info.deleted]
        shown.text = counted(len(table.rows), "object")

    if may_put:
        _uploads(objects, refresh)
    await refresh()


def _uploads(objects: ObjectStore, refresh: Callable[[], Awaitable[None]]) -> None:
    progress = ui.linear_progress(0, show_value=False).classes("w-full").props('aria-label="Progress of the upload"')
    state = ui.label().props('role="status"')
    progress.visible = False

    @guarded
    async def put(event: events.UploadEventArguments) -> None:
        name, of = event.file.name, max(event.file.size(), 1)
        progress.visible = True
        progress.value = 0
        try:
            with tempfile.TemporaryFile() as file:
                async for part in event.file.iterate():
                    file.write(part)
                file.seek(0)

                def update() -> None:
                    progress.value = round(file.tell() / of, 3)
                    state.text = f"{name}: {size(file.tell())} of {size(of)} sent to the server"

                timer = ui.timer(0.3, update)
                try:
                    await objects.put(name, file, ObjectMeta(name=name))
                finally:
                    timer.cancel()
        finally:
            progress.visible = False
            state.text = ""
        ui.notify(f"{name} is stored.", type="positive")
        await refresh()

    ui.upload(label="Upload", multiple=True, auto_upload=True, on_upload=put, max_file_size=_UPLOADED_MAX,
              on_rejected=lambda: ui.notify("A file is larger than 4 GiB: use a client.", type="negative")).classes(
        "w-full")


async def _open(objects: ObjectStore, bucket: str, name: str, *, may_put: bool) -> None:
    with ui.dialog() as dialog, ui.card().classes("w-full max-w-xl"):
        ui.label(name).classes("text-lg break-all").props('role="heading"')

        async def download() -> None:
            await objects.get_info(name)
            ui.download.from_url(object_address(bucket, name))
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
