"""Masks for the parts in which two servers must differ: identities, times, and orders that goroutines decide."""

from __future__ import annotations

import json
import re
from base64 import b64decode
from collections.abc import Collection
from typing import Any

from tests.fuzz.frames import Message

__all__ = ["message", "payload"]

_REPLY = re.compile(r"_R_\.[A-Za-z0-9.]+")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
_NANOS = re.compile(r"\b\d{19}\b")
_VARIES = {"rtt", "start", "id", "server_id", "host", "timestamp", "service", "system", "total", "time", "seq", "ts",
           "cid", "ver", "cluster", "jetstream", "tags", "flags", "client_id", "now", "uptime", "created",
           "last_active", "first_ts", "last_ts", "api", "_nats.ver"}
"""Fields of which only the type is shown."""
_LEFT_OUT = {"feature_flags"}
"""Fields of the server's identity that depend on its version."""


def message(received: Message, queues: Collection[str] = ()) -> list[Any]:
    """Return subject, sid, reply, headers and payload as comparable values.

    Args: ``queues``: groups of several members, of which a server chooses any.
    """
    headers = [_header(line) for line in received.headers.split("\r\n")]
    return [_plain(received.subject), received.sid, _plain(received.reply), headers, payload(received.payload, queues)]


def payload(text: str, queues: Collection[str] = ()) -> Any:
    """Return JSON as a masked value, and other text with its variable parts masked."""
    if text.startswith("{"):
        try:
            value = json.loads(text)
        except ValueError:
            return _plain(text)
        if str(value.get("type")).endswith(".client_disconnect"):
            # Trace events, which were sent to the client, have times of different lengths.
            value["received"]["bytes"] = 0
        for hop in value.get("events", ()):
            if hop.get("queue") in queues:
                hop.pop("name", None)
                hop.pop("sub", None)
        return _masked(value)
    return _plain(text)


def _header(line: str) -> Any:
    name, separator, value = line.partition(": ")
    return [name, payload(value)] if separator and value.startswith("{") else _plain(line)


def _plain(text: str) -> str:
    return _NANOS.sub("NANOS", _TIME.sub("TIME", _REPLY.sub("_R_", text)))


def _masked(value: Any, key: str = "") -> Any:
    if key in _VARIES:
        return f"<{type(value).__name__}>"
    if key in ("data", "hdrs") and isinstance(value, str):
        return payload(b64decode(value).decode("latin-1"))
    if isinstance(value, dict):
        return {name: _masked(inner, name) for name, inner in value.items() if name not in _LEFT_OUT}
    if isinstance(value, list):
        inner = [_masked(one) for one in value]
        if key == "events":
            # The order of deliveries to several subscriptions is that of a Go map. Imports of the system account, which
            # nats-server keeps in every account, are not part of an account's own traffic.
            inner = [one for one in inner if one.get("acc") != "$SYS"]
            return inner[:1] + sorted(inner[1:], key=json.dumps)
        return sorted(inner, key=json.dumps)
    return _plain(value) if isinstance(value, str) else value
