"""The console's web server: its pages, and who may see them.

The host names under which the console can be reached are checked, so that another site's name cannot be made to
point to it (DNS rebinding). Requests that another site's page causes are refused.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from fastapi import Request
from fastapi.responses import PlainTextResponse, RedirectResponse, Response
from nicegui import app, ui
from starlette.datastructures import Headers
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.websockets import WebSocketClose

from broker.console.frame import browser_key, frame, problem
from broker.console.login import BadLogin
from broker.console.pages import kv, login, messages, objects, overview, store, stream, streams
from broker.console.server import Refused
from broker.console.session import Sessions

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from broker.console.session import Session, Settings

__all__ = ["run"]

Crumbs = tuple[tuple[str, str], ...]
Build = Callable[..., Awaitable[None]]


def run(settings: Settings, host: str, port: int) -> None:
    """Serve the console until SIGINT or SIGTERM."""
    sessions = Sessions(settings)
    hosts = ["*"] if host in ("0.0.0.0", "::") else [host, "localhost", "127.0.0.1", "[::1]"]
    app.add_middleware(_SameOrigin)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=hosts)
    app.on_shutdown(sessions.close)
    _pages(sessions)
    ui.run(host=host, port=port, title="jetblock console", show=False, reload=False, favicon="🧱", dark=None,
           storage_secret=secrets.token_hex(32), show_welcome_message=False, uvicorn_logging_level="warning",
           reconnect_timeout=30.0)


class _SameOrigin:
    """Refuses requests and WebSockets of another site's pages: these carry the browser's cookie, too."""

    def __init__(self, inner: ASGIApp) -> None:
        self._inner = inner

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope) if scope["type"] in ("http", "websocket") else {}
        origin = headers.get("origin")
        if origin is None or urlsplit(origin).netloc == headers.get("host"):
            await self._inner(scope, receive, send)
        elif scope["type"] == "websocket":
            await WebSocketClose(code=1008)(scope, receive, send)
        else:
            await PlainTextResponse("Requests from other sites are refused.", 403)(scope, receive, send)


def _pages(sessions: Sessions) -> None:
    @ui.page("/login", title="Log in · jetblock console")
    async def show_login() -> None:
        await login.build(sessions, browser_key())

    @ui.page("/logout")
    async def show_logout() -> Response:
        await sessions.end(browser_key())
        return RedirectResponse("/login")

    _page(sessions, "/", "Overview", overview.build)
    _page(sessions, "/streams", "Streams", streams.build)
    _page(sessions, "/streams/{name}", "", stream.build, ("Streams", "/streams"))
    _page(sessions, "/streams/{name}/messages", "", messages.build, ("Streams", "/streams"))
    _page(sessions, "/kv", "Key-value buckets", kv.build_list)
    _page(sessions, "/kv/{name}", "", kv.build, ("Key-value", "/kv"))
    _page(sessions, "/objects", "Object stores", objects.build_list)
    _page(sessions, "/objects/{name}", "", objects.build, ("Objects", "/objects"))
    if sessions.settings.store:
        _page(sessions, "/store", "Store", store.build)


def _page(sessions: Sessions, path: str, title: str, build: Build, *crumbs: tuple[str, str]) -> None:
    """Add a page for users who are logged in. ``title`` "": the name in the page's path."""
    @ui.page(path, title=f"{title or '…'} · jetblock console")
    async def show(request: Request) -> Any:
        try:
            session: Session | None = await sessions.get(browser_key())
        except BadLogin as error:
            problem(str(error))
            ui.button("Try again", on_click=ui.navigate.reload)
            return None
        if session is None:
            return RedirectResponse("/login")
        name = request.path_params.get("name")
        with frame(session, title or str(name), *crumbs):
            try:
                await (build(session) if name is None else build(session, name))
            except Refused as error:
                problem(str(error))
        return None
