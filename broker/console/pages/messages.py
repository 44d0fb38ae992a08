"""The messages of a stream: browsing, following, searching, publishing."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from nicegui import background_tasks, context, ui

from broker.base.gotime import parse_time
from broker.base.output import size
from broker.console.frame import guarded
from broker.console.messages import Message, Messages, Search, Start
from broker.console.payload import VIEWS, preview, show
from broker.console.server import Refused

if TYPE_CHECKING:
    from broker.console.session import Session

__all__ = ["build"]

_PAGE = 50
_FOLLOWED = 200
"""The latest messages that are shown while following."""

_COLUMNS: list[dict[str, Any]] = [
    {"name": "seq", "label": "Sequence", "field": "seq", "sortable": True},
    {"name": "time", "label": "Time", "field": "time", "align": "left"},
    {"name": "subject", "label": "Subject", "field": "subject", "align": "left"},
    {"name": "size", "label": "Size", "field": "size"},
    {"name": "preview", "label": "Payload", "field": "preview", "align": "left",
     "classes": "max-w-md overflow-hidden text-ellipsis"},
]


async def build(session: Session, name: str) -> None:
    """Show the page."""
    await _Page(session, name).build()


class _Page:
    def __init__(self, session: Session, name: str) -> None:
        self._session = session
        self._name = name
        self._messages = Messages(session.server, name)
        self._shown: dict[int, Message] = {}
        self._following: asyncio.Task[None] | None = None
        self._search: Search | None = None

    async def build(self) -> None:
        query = context.client.request.query_params if context.client.request else {}
        with ui.row().classes("w-full items-end gap-2"):
            self._subject = ui.input("Subject", value=query.get("subject", "")).classes("w-48")
            self._seq = ui.number("From sequence", min=0, format="%d").classes("w-36")
            self._time = ui.input("From time", placeholder="2026-11-23T09:00:00Z").classes("w-52")
            ui.button("Show", on_click=guarded(self._from_start))
            ui.button("Earlier", icon="chevron_left", on_click=guarded(self._earlier)).props("flat")
            ui.button("Later", icon="chevron_right", on_click=guarded(self._later)).props("flat")
            ui.button("Latest", icon="last_page", on_click=guarded(self._latest)).props("flat")
            self._follow_button = ui.button("Follow", icon="play_arrow", on_click=guarded(self._follow)).props("flat")
            ui.space()
            if not self._session.settings.read_only:
                ui.button("Publish", icon="send", on_click=lambda: self._publish(None))
        with ui.row().classes("w-full items-end gap-2"):
            self._text = ui.input("Search for").classes("w-64")
            self._regex = ui.checkbox("Regular expression")
            ui.button("Search", icon="search", on_click=guarded(self._find)).props("outline")
            self._cancel = ui.button("Stop", on_click=self._stop_search).props("flat")
            self._progress = ui.linear_progress(0, show_value=False).classes("w-48")
            self._found = ui.label()
        self._cancel.visible = self._progress.visible = False
        self._table = ui.table(columns=_COLUMNS, rows=[], row_key="seq").classes("w-full").props(
            'dense no-data-label="No messages" :rows-per-page-options="[0]"')
        self._table.on("rowClick", self._open)
        context.client.on_disconnect(self._stop)
        await guarded(self._latest)()

    # --- browsing

    def _show(self, found: list[Message]) -> None:
        self._shown = {msg.seq: msg for msg in found}
        self._table.rows = [_row(msg) for msg in reversed(found)]

    async def _from_start(self) -> None:
        self._stop()
        time = str(self._time.value or "").strip()
        if time:
            try:
                parse_time(time)
            except ValueError as error:
                raise Refused(f"The time is not RFC 3339, such as 2026-11-23T09:00:00Z: {error}.") from None
        self._show(await self._messages.read(Start(int(self._seq.value or 0), time), _PAGE, self._filter))

    async def _earlier(self) -> None:
        self._stop()
        found = await self._messages.before(min(self._shown, default=0), _PAGE, self._filter)
        if found:
            self._show(found)

    async def _later(self) -> None:
        self._stop()
        found = await self._messages.read(Start(max(self._shown, default=0) + 1), _PAGE, self._filter)
        if found:
            self._show(found)

    async def _latest(self) -> None:
        self._stop()
        try:
            self._show(await self._messages.before(0, _PAGE, self._filter))
        except Refused:
            if not self._seq.value:
                raise
            self._show([await self._messages.get(int(self._seq.value))])  # of a work queue

    @property
    def _filter(self) -> str:
        return str(self._subject.value or "").strip()

    # --- following

    async def _follow(self) -> None:
        if self._following is not None:
            self._stop()
            return
        self._follow_button.props("icon=stop").text = "Stop following"
        self._following = background_tasks.create(self._run_follow(), name="follow a stream")

    async def _run_follow(self) -> None:
        new: list[Message] = []

        async def read() -> None:
            async for msg in self._messages.follow(self._filter):
                new.append(msg)
                del new[:-_FOLLOWED]

        reading = asyncio.ensure_future(read())
        try:
            while not reading.done():
                await asyncio.wait((reading,), timeout=0.3)
                if new:
                    self._show([*self._shown.values(), *new][-_FOLLOWED:])
                    new.clear()
            with self._table, suppress(asyncio.CancelledError):
                await guarded(lambda: reading)()
        finally:
            reading.cancel()

    def _stop(self) -> None:
        """Stop following and searching."""
        if self._following is not None:
            self._following.cancel()
            self._following = None
            self._follow_button.props("icon=play_arrow").text = "Follow"
        self._stop_search()

    # --- searching

    async def _find(self) -> None:
        self._stop()
        if not self._text.value:
            raise Refused("What shall be searched for?")
        search = self._search = Search(str(self._text.value), bool(self._regex.value), int(self._seq.value or 1))
        self._cancel.visible = self._progress.visible = True
        running = asyncio.ensure_future(self._messages.search(search, self._filter))
        try:
            while not running.done():
                await asyncio.wait((running,), timeout=0.3)
                self._progress.value = search.share
                self._found.text = f"{len(search.found):,} found up to sequence {search.at:,}"
            await running
        finally:
            running.cancel()
            self._cancel.visible = self._progress.visible = False
            self._search = None
        self._show(search.found[-_FOLLOWED:])
        more = f"; the last {_FOLLOWED} are shown" if len(search.found) > _FOLLOWED else ""
        self._found.text = f"{len(search.found):,} found up to sequence {search.at:,}{more}" + (
            ", stopped" if search.cancelled else "")

    def _stop_search(self) -> None:
        if self._search is not None:
            self._search.cancelled = True

    # --- one message

    async def _open(self, event: Any) -> None:
        msg = self._shown.get(event.args[1]["seq"])
        if msg is None:
            return
        with ui.dialog() as dialog, ui.card().classes("w-full max-w-4xl"):
            ui.label(f"{msg.subject}, sequence {msg.seq}").classes("text-lg break-all")
            ui.label(f"{msg.time}, {size(len(msg.data))}").classes("opacity-70")
            if msg.headers:
                ui.table(rows=[{"header": key, "value": value} for key, value in msg.headers.items()]).props(
                    "dense flat").classes("w-full")
            view = ui.toggle(list(VIEWS), value="auto")
            remark = ui.label().classes("opacity-70")
            code = ui.code("").classes("w-full max-h-96 overflow-auto")

            def update() -> None:
                used, text, remark.text = show(msg.data, str(view.value))
                code.content = text
                code.props(f'data-view="{used}"')

            view.on_value_change(update)
            update()
            with ui.row().classes("w-full items-center"):
                ui.label("Copy code:").classes("opacity-70")
                for text, make in _COPIES.items():
                    code_of = make(self._session.server.login.shown, self._name, msg)
                    ui.button(text, icon="content_copy", on_click=lambda _, copied=code_of: _copy(copied)).props(
                        "flat dense no-caps")
            with ui.row().classes("w-full justify-end"):
                ui.button("Download", on_click=lambda: ui.download.content(msg.data, f"{self._name}-{msg.seq}")).props(
                    "flat")
                if not self._session.settings.read_only:
                    ui.button("Publish a copy", on_click=lambda: self._publish(msg)).props("flat")
                if self._session.may(f"STREAM.MSG.DELETE.{self._name}"):
                    async def delete() -> None:
                        await self._session.streams.delete_message(self._name, msg.seq, erase=True)
                        dialog.close()
                        ui.notify(f"Message {msg.seq} is deleted.", type="positive")

                    ui.button("Delete", on_click=guarded(delete)).props("flat color=negative")
                ui.button("Close", on_click=dialog.close).props("flat")
        await dialog

    async def _publish(self, msg: Message | None) -> None:
        with ui.dialog() as dialog, ui.card().classes("w-full max-w-2xl"):
            ui.label("Publish" if msg is None else "Publish a copy").classes("text-lg")
            subject = ui.input("Subject", value=msg.subject if msg else "").classes("w-full")
            headers = ui.textarea("Headers, one a line: Name: value", value="\n".join(
                f"{key}: {value}" for key, value in msg.headers.items()) if msg else "").classes("w-full")
            text = ui.textarea("Payload", value=_text(msg.data) if msg else "").classes("w-full")
            binary = msg is not None and _text(msg.data) is None
            if binary:
                text.disable()
                text.value = "(the bytes of the message, which are not text)"
            wrong = ui.label().classes("text-negative").props('role="alert"')

            async def send() -> None:
                data = msg.data if msg is not None and binary else str(text.value or "").encode()
                try:
                    given = dict(line.split(":", 1) for line in str(headers.value or "").splitlines() if line.strip())
                except ValueError:
                    wrong.text = "Each line of the headers must have a colon."
                    return
                try:
                    answer = await self._session.server.publish(
                        str(subject.value or "").strip(), data,
                        {key.strip(): value.strip() for key, value in given.items()} or None)
                except Refused as error:
                    wrong.text = str(error)
                    return
                dialog.close()
                ui.notify(f"Stored in {answer.get('stream')} as sequence {answer.get('seq')}.", type="positive")

            with ui.row().classes("w-full justify-end"):
                ui.button("Cancel", on_click=dialog.close).props("flat")
                ui.button("Publish", on_click=send)
        await dialog


def _row(msg: Message) -> dict[str, Any]:
    return {"seq": msg.seq, "time": msg.time.replace("T", " ")[:23], "subject": msg.subject,
            "size": size(len(msg.data)), "preview": preview(msg.data)}


def _text(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _copy(text: str) -> None:
    ui.clipboard.write(text)
    ui.notify("Copied.", type="positive")


def _as_cli(server: str, stream: str, msg: Message) -> str:
    return f"nats --server {server} stream get {stream} {msg.seq}"


def _as_python(server: str, stream: str, msg: Message) -> str:
    return (f"import asyncio\n\nimport nats\n\n\nasync def main() -> None:\n"
            f"    nc = await nats.connect({json.dumps(server)})\n"
            f"    msg = await nc.jetstream().get_msg({json.dumps(stream)}, {msg.seq})\n"
            f"    print(msg.subject, msg.data)\n    await nc.close()\n\n\nasyncio.run(main())\n")


def _as_pyspark(server: str, stream: str, msg: Message) -> str:
    return (f"from jetblock.spark import read\n\n"
            f'messages = read(spark, store="<the store>", stream={json.dumps(stream)})\n'
            f'messages.where("seq = {msg.seq}").show()\n')


_COPIES = {"nats CLI": _as_cli, "Python": _as_python, "PySpark": _as_pyspark}
