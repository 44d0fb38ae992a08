"""The frame of all pages: the header, the menu, the state of the connection, and how texts and errors are shown.

What comes from the server is shown as text, never as HTML or Markdown.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ParamSpec
from urllib.parse import quote

from nats.errors import Error
from nicegui import context, ui

from broker.console.server import Refused

if TYPE_CHECKING:
    from broker.console.session import Session

__all__ = ["code", "colors", "confirm", "copy", "editor", "figure", "figures", "frame", "guarded", "problem", "url"]

P = ParamSpec("P")

_LOG = logging.getLogger(__name__)
_MENU = (("/", "dashboard", "Overview"), ("/streams", "view_stream", "Streams"), ("/kv", "key", "Key-value"),
         ("/objects", "folder", "Objects"), ("/store", "storage", "Store"))
_STATE_SECONDS = 2.0
_CSS = """
.jb-code { white-space: pre-wrap; overflow-wrap: anywhere; overflow: auto; font: 13px/1.45 monospace; padding: .6rem;
           border: 1px solid rgba(128, 128, 128, .35); border-radius: 4px; width: 100%; }
.jb-page a { color: #1f5a91; } .jb-page .q-uploader a { color: inherit; }
.jb-name { display: inline-block; max-width: 28rem; white-space: normal; overflow-wrap: break-word; }
.jb-figures { display: grid; width: 100%; gap: 1rem;
              grid-template-columns: repeat(auto-fill, minmax(min(9rem, calc(50% - .5rem)), 1fr)); }
.body--dark .jb-page a, .body--dark .jb-menu a { color: #8ec5ff; }
.body--dark .jb-page .q-uploader a { color: inherit; }
/* An important rule wins against those of later layers only: Quasar's are in the last one. */
@layer overrides { .body--dark .text-primary { color: #8ec5ff !important; }
                   .body--dark .text-negative { color: #ff8a80 !important; } }
.jb-menu a { color: inherit; border-radius: 4px; }
.jb-menu a[aria-current] { background: rgba(39, 99, 156, .18); font-weight: 600; }
.jb-skip { position: absolute; left: -999px; } .jb-skip:focus { left: 1rem; background: white; color: black; }
:focus-visible { outline: 2px solid #4f9de0; outline-offset: 2px; }
"""
_USED = """<script>(() => { let last = 0;
for (const kind of ["pointerdown", "keydown", "wheel"]) addEventListener(kind, () => {
  if (Date.now() - last > 15000) { last = Date.now(); emitEvent("used"); } }, {passive: true}); })()</script>"""


def url(*parts: str) -> str:
    """Return the path of a page of the console, with ``parts`` quoted."""
    return "/" + "/".join(quote(part, safe="") for part in parts)


def colors() -> None:
    """Set the colours of a page."""
    ui.colors(primary="#27639c")
    ui.add_css(_CSS)


@contextmanager
def frame(session: Session, title: str, *crumbs: tuple[str, str]) -> Iterator[None]:
    """Surround a page. Args: ``crumbs``: text and address of the pages above it."""
    colors()
    ui.add_body_html(_USED)
    ui.on("used", session.touch)
    dark = ui.dark_mode(session.dark)
    ui.link("Skip to the content", "#content").classes("jb-skip")
    # The value is given, because NiceGUI would ask the browser for it, and log a busy browser's silence as an error.
    menu = ui.left_drawer(value=False, bordered=True).props("width=200 breakpoint=900 show-if-above")
    with ui.header().classes("items-center gap-2 sm:gap-4 py-2 px-2 sm:px-4 no-wrap").props("elevated"):
        ui.button(icon="menu", on_click=menu.toggle).props('flat dense color=white aria-label="Menu"')
        ui.link("jetblock console", "/").classes("text-white text-lg font-bold no-underline whitespace-nowrap")
        ui.space()
        _state_line(session)

        def switch() -> None:
            session.dark = dark.value = not dark.value

        ui.button(icon="dark_mode", on_click=switch).props('flat dense color=white aria-label="Light or dark"')
        if not session.settings.logged_in:
            ui.button("Log out", on_click=lambda: session.sessions.log_out(session)).props(
                "flat dense no-caps color=white").classes("whitespace-nowrap")
    with menu, ui.element("nav").props('aria-label="Pages"').classes("w-full jb-menu"):
        _menu(session)
    with ui.column().classes("w-full max-w-screen-xl mx-auto gap-4 jb-page").props('id="content"'):
        with ui.row().classes("items-center gap-2"):
            for text, address in crumbs:
                ui.link(text, address)
                ui.label("/").classes("opacity-60")
            ui.label(title).classes("text-2xl break-all").props('role="heading" aria-level="1"')
        yield


def _menu(session: Session) -> None:
    request = context.client.request
    shown = request.url.path if request else "/"
    for address, icon, text in _MENU:
        if address == "/store" and not session.sees_store:
            continue
        here = shown == address or (address != "/" and shown.startswith(f"{address}/"))
        with ui.link(target=address).classes("flex items-center gap-3 p-2 no-underline w-full").props(
                'aria-current="page"' if here else ""):
            ui.icon(icon)
            ui.label(text)
    ui.label("Times are UTC.").classes("px-2 pt-4 text-xs opacity-70")


def _state_line(session: Session) -> None:
    """Show which server the session has, and whether it can be reached; go to the login when the session has ended."""
    server = session.server
    label = ui.label().classes("text-sm truncate min-w-0")
    request = context.client.request
    here = request.url.path if request else "/"

    def update() -> None:
        if session.ended:
            ui.navigate.to("/login" if session.logged_out else f"/login?ended=1&next={quote(here, safe='')}")
            return
        who = f" as {server.user}" if server.user else ""
        label.text = (f"{server.login.shown}{who}" if server.connected else
                      f"{server.login.shown} cannot be reached; trying again")
        label.classes(remove="text-amber-300 text-white", add="text-white" if server.connected else "text-amber-300")
        label.props(f'role="status" data-connected={"yes" if server.connected else "no"}')

    update()
    ui.timer(_STATE_SECONDS, update)


def figures() -> ui.element:
    """Return the place of several figures."""
    return ui.element("div").classes("jb-figures")


def figure(text: str, value: str = "") -> ui.label:
    """Show a figure with its name; return the label of the figure."""
    with ui.card().classes("items-start gap-0"):
        ui.label(text).classes("text-sm opacity-70")
        return ui.label(value).classes("text-lg break-words max-w-full").props(f'data-figure="{text}"')


def code(text: str = "") -> ui.label:
    """Show text with its line breaks, in a font of one width."""
    return ui.label(text).classes("jb-code").props("tabindex=0")


def editor(session: Session, text: str) -> ui.codemirror:
    """Show an editor of JSON."""
    theme: Any = "oneDark" if session.dark else "basicLight"
    return ui.codemirror(text, language="JSON", theme=theme).classes("w-full h-72")


def copy(text: str) -> None:
    """Put text on the user's clipboard."""
    ui.clipboard.write(text)
    ui.notify("Copied.", type="positive")


def problem(text: str) -> None:
    """Show why something cannot be shown."""
    with ui.card().classes("w-full border-l-4 border-red-500").props('role="alert"'):
        ui.label(text)


def guarded(handler: Callable[P, Awaitable[Any]]) -> Callable[P, Awaitable[None]]:
    """Return ``handler`` with its errors shown to the user in one sentence."""
    @functools.wraps(handler)
    async def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            await handler(*args, **kwargs)
            return
        except (Refused, Error, OSError, TimeoutError) as error:
            text = str(error).removeprefix("nats: ") or "The server did not answer in time."
        except Exception as error:
            _LOG.exception("a handler failed")
            text = f"The console failed: {type(error).__name__}; its log has more."
        ui.notify(text, type="negative", multi_line=True, timeout=10_000,
                  actions=[{"label": "Close", "color": "white"}])
    return run


async def confirm(text: str, name: str, action: str) -> bool:
    """Ask the user to type ``name`` before ``action``; return whether this was done."""
    with ui.dialog() as dialog, ui.card():
        ui.label(text)
        typed = ui.input(f"Type {name} to confirm").classes("w-full").props("autofocus autocomplete=off")
        with ui.row().classes("w-full justify-end"):
            ui.button("Cancel", on_click=lambda: dialog.submit(False)).props("flat")
            button = ui.button(action, on_click=lambda: dialog.submit(True)).props("color=negative")
            button.bind_enabled_from(typed, "value", backward=lambda value: value == name)
    return bool(await dialog)
