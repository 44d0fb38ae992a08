"""The parts of a WebSocket handshake's request beyond WebSocket itself: the page's origin, cookies, an address.

Decides without I/O. Source: nats-server, server/websocket.go (wsUpgrade, checkOrigin).
"""

from __future__ import annotations

from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie
from ipaddress import ip_address
from urllib.parse import urlsplit

from broker.config.settings import WebSocketSettings

__all__ = ["Fields", "cookies", "forwarded_for", "is_browser", "origin_error", "wants_no_masking"]

Fields = Mapping[str, list[str]]
"""Header fields by lower-case names."""

_PORTS = {"http": 80, "https": 443}


def origin_error(settings: WebSocketSettings, fields: Fields, *, secure: bool) -> str:
    """Why a page of this origin may not connect, or "".

    A client other than a browser sends no origin, or could send any: these rules protect only users of browsers.
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


def cookies(settings: WebSocketSettings, fields: Fields) -> dict[str, str]:
    """Credentials in cookies, by CONNECT's field names."""
    wanted = {settings.jwt_cookie: "jwt", settings.user_cookie: "user", settings.pass_cookie: "pass",
              settings.token_cookie: "auth_token"}
    found: dict[str, str] = {}
    for line in fields.get("cookie", ()):
        try:
            jar = SimpleCookie(line)
        except CookieError:
            continue
        found |= {wanted[name]: morsel.value for name, morsel in jar.items() if name in wanted and morsel.value}
    return found


def forwarded_for(fields: Fields) -> str:
    """The client's address according to a proxy; "" if none gives it."""
    given = _first(fields, "x-forwarded-for")
    try:
        address = ip_address(given)
    except ValueError:
        return ""
    if address.version == 4:
        return given
    # A scope could be any text, and Go's parser refuses it.
    return f"[{given}]" if address.scope_id is None else ""


def is_browser(fields: Fields) -> bool:
    return _first(fields, "user-agent").startswith("Mozilla/")


def wants_no_masking(fields: Fields) -> bool:
    return _first(fields, "nats-no-masking") == "true"


def _first(fields: Fields, name: str) -> str:
    return next(iter(fields.get(name, ())), "")


def _place(origin: str) -> tuple[str, str, int]:
    """The origin's scheme, host and port. Raises: ValueError."""
    parts = urlsplit(origin)
    if parts.scheme not in _PORTS or not parts.hostname:
        raise ValueError(origin)
    return parts.scheme, parts.hostname, parts.port or _PORTS[parts.scheme]
