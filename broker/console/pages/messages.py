"""The messages of a stream: browsing, following, searching."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from nicegui import background_tasks, context, ui

from broker.base.gotime import parse_time
from broker.base.output import counted, size
from broker.console.frame import guarded
from broker.console.messages import Message, Messages, Search, Start
from broker.console.pages.message import open_message, publish
from broker.console.payload import preview
from broker.console.server import Refused

if TYPE_CHECKING:
    from broker.console.session import Session

__all__ = ["build"]

_PAGE = 50
_FOLLOWED = 200
"""The latest messages that are shown while following."""

_COLUMNS: list[dict[str, Any]] = [
    {"name": "seq", "label": "Sequence", "field": "seq"},
    {"name": "time", "label": "Time (UTC)", "field": "time", "align": "left"},
    {"name": "subject", "label": "Subject", "field": "subject", "align": "left",
     "classes": "break-all whitespace-normal", "style": "min-width: 10rem"},
    {"name": "size", "label": "Size", "field": "size"},
    {"name": "preview", "label": "Payload", "field": "preview", "align": "left",
     "classes": "max-w-md overflow-hidden text-ellipsis font-mono"},
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
        self._passed = 0
        self._search: Search | None = None

    async def build(self) -> None:
        query = context.client.request.query_params if context.client.request else {}
        with ui.row().classes("w-full items-end gap-2"):
            self._subject = ui.input("Subject", value=query.get("subject", "")).classes("w-56")
            self._seq = ui.number("From sequence", min=0, format="%d").classes("w-36")
            self._time = ui.input("From time", placeholder="2026-11-23T09:00:00Z").classes("w-52")
            ui.button("Show", on_click=guarded(self._from_start))
            ui.space()
            if not self._session.settings.read_only:
                ui.button("Publish", icon="send", on_click=lambda: publish(self._session, None))
        with ui.row().classes("w-full items-end gap-2"):
            self._text = ui.input("Search for", placeholder="in subjects, headers and payloads").classes("w-72")
            self._until = ui.number("Up to sequence", min=0, format="%d").classes("w-36")
            self._regex = ui.checkbox("Regular expression")
            ui.button("Search", icon="search", on_click=guarded(self._find)).props("outline")
            self._cancel = ui.button("Stop", on_click=self._stop_search).props("flat")
            self._progress = ui.linear_progress(0, show_value=False).classes("w-48").props(
                'aria-label="Progress of the search"')
        with ui.row().classes("w-full items-center gap-1"):
            for text, icon, action in (
                    ("Earlier", "chevron_left", self._earlier), ("Later", "chevron_right", self._later),
                    ("Latest", "last_page", self._latest)):
                ui.button(text, icon=icon, on_click=guarded(action)).props("flat dense")
            self._follow_button = ui.button("Follow", icon="play_arrow", on_click=guarded(self._follow)).props(
                "flat dense")
            self._found = ui.label().props('role="status"').classes("opacity-70")
        self._cancel.visible = self._progress.visible = False
        for field, action in ((self._subject, self._from_start), (self._seq, self._from_start),
                              (self._time, self._from_start), (self._text, self._find)):
            field.on("keydown.enter", guarded(action))
        self._table = ui.table(columns=_COLUMNS, rows=[], row_key="seq").classes("w-full").props(
            'dense no-data-label="No messages" :rows-per-page-options="[0]"')
        self._table.add_slot("no-data", '<span class="opacity-70">{{ props.message }}</span>')
        self._table.add_slot("body-cell-seq", (
            '<q-td :props="props"><a href="#" role="button" class="text-primary"'
            """ @click.prevent.stop="$parent.$emit('open', props.row.seq)">{{ props.value }}</a></q-td>"""))
        self._table.on("rowClick", lambda event: self._open(event.args[1]["seq"]))
        self._table.on("open", lambda event: self._open(event.args))
        context.client.on_disconnect(self._stop)
        await guarded(self._from_start if self._filter else self._latest)()

    # --- browsing

    def _show(self, found: list[Message]) -> None:
        self._shown = {msg.seq: msg for msg in found}
        self._table.rows = [_row(msg) for msg in reversed(found)]

    def _show_page(self, found: list[Message]) -> None:
        self._show(found)
        self._found.text = (f"{counted(len(found), 'message')}, sequences {found[0].seq:,} to {found[-1].seq:,}"
                            if found else "")

    async def _from_start(self) -> None:
        self._stop()
        time = str(self._time.value or "").strip()
        if time:
            try:
                parse_time(time)
            except ValueError as error:
                raise Refused(f"The time is not RFC 3339, such as 2026-11-23T09:00:00Z: {error}.") from None
        self._show_page(await self._messages.read(Start(int(self._seq.value or 0), time), _PAGE, self._filter))

    async def _earlier(self) -> None:
        self._stop()
        found = await self._messages.before(min(self._shown, default=0), _PAGE, self._filter)
        if not found:
            raise Refused("There are no earlier messages.")
        self._show_page(found)

    async def _later(self) -> None:
        self._stop()
        found = await self._messages.read(Start(max(self._shown, default=0) + 1), _PAGE, self._filter)
        if not found:
            raise Refused("There are no later messages.")
        self._show_page(found)

    async def _latest(self) -> None:
        self._stop()
        self._show_page(await self._messages.before(0, _PAGE, self._filter))

    @property
    def _filter(self) -> str:
        return str(self._subject.value or "").strip()

    # --- following

    async def _follow(self) -> None:
        if self._following is not None:
            self._stop()
            return
        self._follow_button.props("icon=stop").text = "Stop following"
        self._passed = 0
        self._following = background_tasks.create(self._run_follow(), name="follow a stream")

    async def _run_follow(self) -> None:
        async def read() -> None:
            async for found, passed in self._messages.follow(self._filter):
                self._passed += passed
                self._show([*self._shown.values(), *found][-_FOLLOWED:])
                self._found.text = "Following" + (
                    f"; {self._passed:,} messages were passed over, as they arrive faster than they can be shown"
                    if self._passed else "")

        with self._table, suppress(asyncio.CancelledError):
            self._found.text = "Following"
            await guarded(read)()
            self._stop()

    def _stop(self) -> None:
        """Stop following and searching."""
        if self._following is not None:
            self._following.cancel()
            self._following = None
            self._follow_button.props("icon=play_arrow").text = "Follow"
            self._found.text = ""
        self._stop_search()

    # --- searching

    async def _find(self) -> None:
        self._stop()
        if not self._text.value:
            raise Refused("Enter what to search for.")
        search = self._search = Search(str(self._text.value), bool(self._regex.value), int(self._seq.value or 1),
                                       int(self._until.value or 0))
        self._cancel.visible = self._progress.visible = True
        running = asyncio.ensure_future(self._messages.search(search, self._filter))
        try:
            while not running.done():
                await asyncio.wait((running,), timeout=0.3)
                self._progress.value = round(search.share, 3)
                self._found.text = f"{len(search.found):,} found up to sequence {search.at:,}"
            await running
        finally:
            running.cancel()
            if self._search is search:
                self._cancel.visible = self._progress.visible = False
                self._search = None
        self._show(search.found[-_FOLLOWED:])
        more = f"; the last {_FOLLOWED} are shown" if len(search.found) > _FOLLOWED else ""
        self._found.text = f"{len(search.found):,} found up to sequence {search.at:,}{more}" + (
            ", stopped" if search.cancelled else "")

    def _stop_search(self) -> None:
        if self._search is not None:
            self._search.cancelled = True

    @property
    def _open(self) -> Any:
        @guarded
        async def open(seq: int) -> None:
            await open_message(self._session, self._name, await self._messages.get(int(seq)))
        return open


def _row(msg: Message) -> dict[str, Any]:
    return {"seq": msg.seq, "time": msg.time.replace("T", " ")[:23], "subject": msg.subject, "size": size(msg.size),
            "preview": "(large)" if msg.data is None else preview(msg.data)}
