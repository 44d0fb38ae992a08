"""Fields of a WebSocket handshake's request beyond WebSocket itself: the page's origin, cookies, an address.

This module does no I/O. Source: nats-server, server/websocket.go (wsUpgrade, checkOrigin).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from broker.config.settings import WebSocketSettings

__all__ = ["Fields", "cookies", "forwarded_for", "is_browser", "origin_error", "split_cookies", "wants_no_masking"]

Fields = Mapping[str, list[str]]
"""Header fields by lower-case names."""

_PORTS = {"http": 80, "https": 443}

_COOKIE: Final = b"cookie:"
_BLANKS: Final = " \t\r\n"
_NOT_IN_COOKIES: Final = re.compile(r'[^ !#-:<-\[\]-~]')
_COOKIES_MAX: Final = 3000
"""Bound on the cookies of a request; Go accepts none of a longer list."""


def origin_error(settings: WebSocketSettings, fields: Fields, *, secure: bool) -> str:
    """Return why a page of this origin may not connect; "" if it may.

    Other clients than browsers can send any origin, or none: these rules protect only users of browsers.
    """
    if not settings.same_origin and not settings.allowed_origins:
        return ""
    origin = _first(fields, "origin") or _first(fields, "sec-websocket-origin")
    if not origin:
        return ""
    try:
        came_from = _place(origin)
        if settings.same_origin and came_from != _place(f"{'https' if secure else 'http'}://{_first(fields, 'host')}"):
            return "not same origin"
    except ValueError:
        return f"{origin!r} is no origin"
    if settings.allowed_origins and came_from not in map(_place, settings.allowed_origins):
        return "not in the allowed list"
    return ""


def split_cookies(head: bytes) -> tuple[bytes, list[str]]:
    """Return a request's head without its cookies, and the lines with cookies.

    Browsers send all cookies of a host in one line, which may be much longer than any other line.
    """
    lines = head.split(b"\r\n")
    own = [line[len(_COOKIE):].decode("latin-1") for line in lines[1:] if line[:len(_COOKIE)].lower() == _COOKIE]
    return b"\r\n".join([lines[0], *(line for line in lines[1:] if line[:len(_COOKIE)].lower() != _COOKIE)]), own


def cookies(settings: WebSocketSettings, lines: Sequence[str]) -> dict[str, str]:
    """Return the credentials in cookies, by CONNECT's field names. If cookies have the same name, the last one counts.

    Applications may set any other cookies, so an invalid cookie is skipped alone.

    Source: Go, net/http/cookie.go (readCookies, parseCookieValue).
    """
    # If two settings name the same cookie, it belongs to the first one.
    wanted = {settings.token_cookie: "auth_token", settings.pass_cookie: "pass", settings.user_cookie: "user",
              settings.jwt_cookie: "jwt"}
    if sum(line.count(";") + 1 for line in lines) > _COOKIES_MAX:
        return {}
    found: dict[str, str] = {}
    for line in lines:
        for part in line.split(";"):
            name, _, value = part.strip(_BLANKS).partition("=")
            field = wanted.get(name.strip(_BLANKS))
            if len(value) > 1 and value[0] == value[-1] == '"':
                value = value[1:-1]
            if name and field is not None and not _NOT_IN_COOKIES.search(value):
                found[field] = value
    return found


def forwarded_for(fields: Fields) -> str:
    """Return the client's address according to a proxy; "" if there is none."""
    given = _first(fields, "x-forwarded-for")
    try:
        address = ip_address(given)
    except ValueError:
        return ""
    if address.version == 4:
        return given
    # An IPv6 scope could be any text; Go's parser refuses it.
    return f"[{given}]" if address.scope_id is None else ""


def is_browser(fields: Fields) -> bool:
    return _first(fields, "user-agent").startswith("Mozilla/")


def wants_no_masking(fields: Fields) -> bool:
    return _first(fields, "nats-no-masking") == "true"


def _first(fields: Fields, name: str) -> str:
    return next(iter(fields.get(name, ())), "")


def _place(origin: str) -> tuple[str, str, int]:
    """Return the origin's scheme, host and port. Raises: ValueError."""
    parts = urlsplit(origin)
    if parts.scheme not in _PORTS or not parts.hostname:
        raise ValueError(origin)
    return parts.scheme, parts.hostname, _PORTS[parts.scheme] if parts.port is None else parts.port
