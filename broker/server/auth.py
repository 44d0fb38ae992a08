"""Who may come in, by what CONNECT says: user and password, or a token; anything more brings its own check."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import Any

from .options import Authenticate, ServerOptions

__all__ = ["authenticator"]


def authenticator(options: ServerOptions) -> Authenticate | None:
    """The check that ``options`` ask for, or None when everybody is welcome."""
    if options.authenticate is not None:
        return options.authenticate
    users = dict(options.users)
    if options.user:
        users[options.user] = options.password
    token = options.token
    if not users and not token:
        return None
    fallback = options.no_auth_user if options.no_auth_user in users else ""

    def authenticate(connect: Mapping[str, Any]) -> bool:
        user = connect.get("user") or ""
        given = connect.get("auth_token") or ""
        if user:
            return user in users and _same(users[user], connect.get("pass") or "")
        if given:
            return bool(token) and _same(token, given)
        return bool(fallback)

    return authenticate


def _same(wanted: str, given: str) -> bool:
    return hmac.compare_digest(wanted.encode(), given.encode())
