"""The frame of all pages: the header, the menu, the state of the connection, and how errors are shown."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ParamSpec
from urllib.parse import quote

from nats.errors import Error
from nicegui import app, ui

from broker.console.server import Refused

if TYPE_CHECKING:
    from broker.console.session import Session

__all__ = ["confirm", "frame", "guarded", "link", "problem", "state_line", "url"]

P = ParamSpec("P")

_MENU = (("/", "dashboard", "Overview"), ("/streams", "view_stream", "Streams"), ("/kv", "key", "Key-value"),
         ("/objects", "folder", "Objects"), ("/store", "storage", "Store"))
_STATE_SECONDS = 2.0


def url(*parts: str) -> str:
    """Return the path of a page of the console, with ``parts`` quoted."""
    return "/" + "/".join(quote(part, safe="") for part in parts)


@contextmanager
def frame(session: Session, title: str, *crumbs: tuple[str, str]) -> Iterator[None]:
    """Surround a page. Args: ``crumbs``: text and address of the pages above it."""
    ui.colors(primary="#27639c")
    dark = ui.dark_mode(session.dark)
    menu = ui.left_drawer(bordered=True).props("width=200 breakpoint=900")
    with ui.header().classes("items-center gap-4 py-2").props("elevated"):
        ui.button(icon="menu", on_click=menu.toggle).props('flat dense color=white aria-label="Menu"')
        ui.link("jetblock console", "/").classes("text-white text-lg font-bold no-underline")
        ui.space()
        state_line(session)

        def switch() -> None:
            session.dark = dark.value = not dark.value

        ui.button(icon="dark_mode", on_click=switch).props('flat dense color=white aria-label="Light or dark"')
        if not session.settings.logged_in:
            ui.link("Log out", "/logout").classes("text-white")
    with menu, ui.element("nav").props('aria-label="Pages"').classes("w-full"):
        for address, icon, text in _MENU:
            if address == "/store" and not session.settings.store:
                continue
            with ui.link(target=address).classes("flex items-center gap-3 p-2 no-underline w-full"):
                ui.icon(icon)
                ui.label(text)
    with ui.column().classes("w-full max-w-screen-xl mx-auto gap-4").props('role="main"'):
        with ui.row().classes("items-center gap-2"):
            for text, address in crumbs:
                ui.link(text, address)
                ui.label("/").classes("opacity-60")
            ui.label(title).classes("text-2xl break-all").props('role="heading" aria-level="1"')
        yield


def state_line(session: Session) -> None:
    """Show which server the session has, and whether it can be reached; go to the login when the session has ended."""
    server = session.server
    label = ui.label().classes("text-sm")

    def update() -> None:
        if session.ended:
            ui.navigate.to("/login")
            return
        who = f" as {server.user}" if server.user else ""
        label.text = (f"{server.login.shown}{who}" if server.connected else
                      f"{server.login.shown} cannot be reached; trying again")
        label.classes(remove="text-amber-300 text-white", add="text-white" if server.connected else "text-amber-300")
        label.props(f'role="status" data-connected={"yes" if server.connected else "no"}')

    update()
    ui.timer(_STATE_SECONDS, update)


def problem(text: str) -> None:
    """Show why something cannot be shown."""
    with ui.card().classes("w-full border-l-4 border-red-500").props('role="alert"'):
        ui.label(text)


def guarded(handler: Callable[P, Awaitable[Any]]) -> Callable[P, Awaitable[None]]:
    """Return ``handler`` with the errors of the server shown to the user."""
    @functools.wraps(handler)
    async def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            await handler(*args, **kwargs)
        except (Refused, Error, OSError, TimeoutError) as error:
            text = str(error).removeprefix("nats: ") or "The server did not answer in time."
            ui.notify(text, type="negative", multi_line=True, close_button="Close", timeout=10_000)
    return run


async def confirm(text: str, name: str, action: str) -> bool:
    """Ask the user to type ``name`` before ``action``; return whether this was done."""
    with ui.dialog() as dialog, ui.card():
        ui.label(text)
        typed = ui.input(f"Type {name} to confirm").classes("w-full").props("autofocus")
        with ui.row().classes("w-full justify-end"):
            ui.button("Cancel", on_click=lambda: dialog.submit(False)).props("flat")
            button = ui.button(action, on_click=lambda: dialog.submit(True)).props("color=negative")
            button.bind_enabled_from(typed, "value", backward=lambda value: value == name)
    return bool(await dialog)


def link(table: ui.table, column: str) -> None:
    """Show a column's values as links to the ``href`` of their rows."""
    table.add_slot(f"body-cell-{column}", '<q-td :props="props"><a :href="props.row.href" class="text-primary">'
                                          "{{ props.value }}</a></q-td>")


def browser_key() -> str:
    """Return the identifier of the browser, which is in a signed cookie."""
    return str(app.storage.browser["id"])
