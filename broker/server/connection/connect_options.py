"""CONNECT's fields: decoded as by Go, and shown in logs without their secrets.

Unknown names and nulls are ignored, and a value of a wrong type makes the whole object unreadable.

Source: nats-server, server/client.go (ClientOpts, processConnect).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from broker.base.gojson.decoding import JsonError, assigned, folded, members, unmarshal

__all__ = ["CONNECT_DEFAULTS", "described", "go_quoted", "read_connect", "shown_connect"]

_TYPES: Final[dict[str, type]] = {
    "verbose": bool, "pedantic": bool, "echo": bool, "headers": bool, "no_responders": bool, "tls_required": bool,
    "new_account": bool, "protocol": int, "name": str, "lang": str, "version": str, "user": str, "pass": str,
    "auth_token": str, "nkey": str, "jwt": str, "sig": str, "account": str, "proxy_sig": str,
}
CONNECT_DEFAULTS: Final[dict[str, Any]] = {"verbose": True, "pedantic": True, "echo": True, "protocol": 0}

_SECRET: Final = frozenset({"pass", "auth_token", "jwt", "sig", "nkey", "proxy_sig"})
_ESCAPES: Final = {'"': '\\"', "\\": "\\\\", "\a": "\\a", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r",
                   "\t": "\\t", "\v": "\\v"}


def read_connect(arg: bytes) -> dict[str, Any] | None:
    """Return the known fields by their lower-case names; None if ``arg`` cannot be decoded."""
    decoded = _decoded(arg)
    if decoded is None:
        return {} if arg.strip() == b"null" else None
    fields: dict[str, Any] = {}
    for name, value in assigned(decoded, _TYPES):
        if value is None:
            continue
        if type(value) is not _TYPES[name]:
            return None
        fields[name] = value
    return fields


def shown_connect(arg: bytes) -> bytes:
    """Return ``arg`` in a form for logs.

    Secrets are found by decoding: a name can be spelled in any case and with escapes, which no pattern would match.
    An ``arg`` that cannot be decoded is not shown at all.
    """
    decoded = _decoded(arg)
    if decoded is None:
        return b"(%d bytes that are no JSON object)" % len(arg)
    if not any(folded(name) in _SECRET for name in decoded):
        return arg
    shown = {name: "[REDACTED]" if folded(name) in _SECRET else value for name, value in members(decoded)}
    return json.dumps(shown, separators=(",", ":")).encode()


def described(fields: Mapping[str, Any], account: str, user: str = "", kind: str = "user") -> str:
    """Return the text that log lines add to a client's address after its first login.

    It has the client's software, and ``user`` or the name that the client sent.

    ``kind`` is the kind of name that ``user`` is: user, nkey or jwt.
    """
    software = ":".join((f"v{fields[key]}" if key == "version" else fields[key])
                    for key in ("version", "lang", "name") if fields.get(key))
    user = user or fields.get("user") or ""
    who = f"{kind}:{user}" if user else "token" if fields.get("auth_token") else ""
    return "".join(f" - {go_quoted(text)}" for text in (software, who and f"{account}/{who}") if text)


def go_quoted(text: str) -> str:
    """Return ``text`` as Go's ``%q`` prints it: quoted and on one line, whatever a client sent."""
    return '"' + "".join(_ESCAPES.get(char) or (char if char.isprintable() else _escaped(ord(char)))
                         for char in text) + '"'


def _escaped(code: int) -> str:
    if 0xDC80 <= code <= 0xDCFF:  # a byte that is not UTF-8, through ``surrogateescape``
        return f"\\x{code - 0xDC00:02x}"
    if code < 0x80:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _decoded(arg: bytes) -> dict[str, Any] | None:
    try:
        decoded = unmarshal(arg)
    except JsonError:
        return None
    return decoded if isinstance(decoded, dict) else None
