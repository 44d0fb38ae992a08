"""The console's web server: its pages, and who may see them.

A browser must reach the console by an address of numbers or a name that the console was started for, so that another
site's name cannot be made to point to it (DNS rebinding). Requests that another site's page causes are refused.
"""

from __future__ import annotations

import json
import logging
import re
import secrets
from collections.abc import Awaitable, Callable, Iterable
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from fastapi import Request
from fastapi.exception_handlers import http_exception_handler
from fastapi.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from nicegui import app, ui
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.websockets import WebSocketClose

from broker.base.html_page import page
from broker.console import downloads
from broker.console.frame import frame, problem
from broker.console.login import BadLogin
from broker.console.pages import kv, login, messages, objects, overview, store, stream, streams
from broker.console.server import Refused
from broker.console.session import Sessions

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from broker.console.session import Session, Settings

__all__ = ["run"]

_LOG = logging.getLogger(__name__)
_NAME = re.compile(r"[^\s.*>/\\]+")
_HEADERS = {"X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY", "Referrer-Policy": "no-referrer",
            "Content-Security-Policy": "frame-ancestors 'none'; object-src 'none'; base-uri 'self'; form-action 'self'"}
_MISSING = page("jetblock console", "There is no such page.", '<p><a href="/">Overview</a></p>')

Crumbs = tuple[tuple[str, str], ...]
Build = Callable[..., Awaitable[None]]


def run(settings: Settings, host: str, port: int, names: Iterable[str] = ()) -> None:
    """Serve the console until SIGINT or SIGTERM. Args: names: of the host, as browsers may use them."""
    sessions = Sessions(settings)
    # Browsers send the cookies of one host to all its ports, so the names have the port.
    cookie = f"jetblock_console_{port}"
    app.add_middleware(_Guard, {host, "localhost", *names})
    app.on_shutdown(sessions.close)
    _pages(sessions, cookie)
    ui.run(host=host, port=port, title="jetblock console", show=False, reload=False, favicon="🧱", dark=None,
           storage_secret=secrets.token_hex(32), show_welcome_message=False, uvicorn_logging_level="warning",
           session_middleware_kwargs={"session_cookie": f"{cookie}_pages"}, reconnect_timeout=30.0)


class _Guard:
    """Refuses unknown host names, and requests and WebSockets of another site's pages: these have the cookie, too."""

    def __init__(self, inner: ASGIApp, names: set[str]) -> None:
        self._inner = inner
        self._names = {name.lower() for name in names}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._inner(scope, receive, send)
            return
        headers = Headers(scope=scope)
        host, origin = headers.get("host", ""), headers.get("origin")
        if not self._known(host):
            await _refuse(scope, receive, send, 400, "The console does not know this host name: start it with "
                                                     "--allow-host and the name.")
        elif origin is not None and urlsplit(origin).netloc != host:
            await _refuse(scope, receive, send, 403, "Requests from other sites are refused.")
        else:
            await self._inner(scope, receive, _with_headers(send))

    def _known(self, host: str) -> bool:
        name = (urlsplit(f"//{host}").hostname or "").lower()
        if name in self._names:
            return True
        try:
            ip_address(name)
        except ValueError:
            return False
        return True


async def _refuse(scope: Scope, receive: Receive, send: Send, status: int, text: str) -> None:
    if scope["type"] == "websocket":
        await WebSocketClose(code=1008)(scope, receive, send)
    else:
        await PlainTextResponse(text, status)(scope, receive, send)


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in _HEADERS.items():
                headers[name] = value
            if headers.get("content-type", "").startswith("text/html"):
                headers["Cache-Control"] = "no-store"
        await send(message)
    return sending


def _browser(request: Request) -> str:
    """Return the identifier of a browser, which is in a signed cookie."""
    return str(request.session["id"])


def _pages(sessions: Sessions, cookie: str) -> None:
    @ui.page("/login", title="Log in · jetblock console")
    async def show_login(request: Request) -> None:
        await login.build(sessions, _browser(request), request.query_params)

    @app.post("/enter")
    async def enter(request: Request) -> Response:
        ticket = (await request.body())[:100].decode("ascii", "replace")
        key = await sessions.enter(ticket, _browser(request), request.cookies.get(cookie, ""))
        if key is None:
            return PlainTextResponse("The login has expired.", 403)
        answer = Response(status_code=204)
        answer.set_cookie(cookie, key, httponly=True, samesite="lax", secure=request.url.scheme == "https")
        return answer

    @app.exception_handler(404)
    async def missing(request: Request, error: Exception) -> Response:
        if request.scope.get("endpoint") is not None and isinstance(error, HTTPException):
            return await http_exception_handler(request, error)  # a download
        return HTMLResponse(_MISSING, 404)

    downloads.add_routes(sessions, cookie)
    _page(sessions, cookie, "/", "Overview", overview.build)
    _page(sessions, cookie, "/streams", "Streams", streams.build)
    _page(sessions, cookie, "/streams/{name}", "", stream.build, ("Streams", "/streams"))
    _page(sessions, cookie, "/streams/{name}/messages", "Messages", messages.build, ("Streams", "/streams"))
    _page(sessions, cookie, "/kv", "Key-value buckets", kv.build_list)
    _page(sessions, cookie, "/kv/{name}", "", kv.build, ("Key-value", "/kv"))
    _page(sessions, cookie, "/objects", "Object stores", objects.build_list)
    _page(sessions, cookie, "/objects/{name}", "", objects.build, ("Objects", "/objects"))
    if sessions.settings.store:
        _page(sessions, cookie, "/store", "Store", store.build)


def _page(sessions: Sessions, cookie: str, path: str, title: str, build: Build, *crumbs: tuple[str, str]) -> None:
    """Add a page for users who are logged in. ``title`` "": the name in the page's path."""
    @ui.page(path, title=f"{title or '…'} · jetblock console")
    async def show(request: Request) -> Any:
        try:
            session: Session | None = await sessions.get(request.cookies.get(cookie, ""))
        except BadLogin as error:
            problem(str(error))
            ui.button("Try again", on_click=ui.navigate.reload)
            return None
        if session is None:
            return RedirectResponse(_login_address(request, ended=cookie in request.cookies))
        name = request.path_params.get("name")
        above = (*crumbs, (str(name), f"/streams/{quote(str(name), safe='')}")) if name and title else crumbs
        if name is not None:
            ui.run_javascript(f"document.title = {json.dumps(f'{name} · jetblock console')}")
        with frame(session, title or str(name), *above):
            try:
                if name is not None and not _NAME.fullmatch(name):
                    raise Refused("Names have no spaces, slashes, dots or wildcards.")
                await (build(session) if name is None else build(session, name))
            except Refused as error:
                problem(str(error))
            except Exception as error:
                _LOG.exception("%s cannot be shown", request.url.path)
                problem(f"The page cannot be shown: {type(error).__name__}; the console's log has more.")
        return None


def _login_address(request: Request, *, ended: bool) -> str:
    wanted = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    if wanted == "/" and not ended:
        return "/login"
    return f"/login?{'ended=1&' if ended else ''}next={quote(wanted, safe='')}"
