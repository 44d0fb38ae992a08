"""The names of channels and clients, and of the streams that keep channels.

A channel ``orders.new`` is the stream ``STAN_orders:new`` with the one subject ``orders.new``. The name of a stream may
not contain dots and slashes, so a dot becomes a colon, and the characters that a name cannot contain, ``:`` and ``%``
become ``%`` and two hexadecimal digits for each byte. Every channel has its own stream name, and the name can be
converted back.

Source: nats-streaming-server, util/util.go IsChannelNameValid; server/server.go clientIDRegEx.
"""

from __future__ import annotations

import re
from functools import lru_cache
from urllib.parse import unquote

from broker.protocol.subject import is_literal, is_valid

__all__ = ["STREAM_PREFIX", "channel_of", "is_client_id", "is_inbox", "is_literal_channel", "stream_of"]

STREAM_PREFIX = "STAN_"

_KEPT_LENGTH = 255
"""The longest name that the cache of checked names keeps. No stream has a longer one."""

_CLIENT_ID = re.compile("[a-zA-Z0-9_-]+")
_ESCAPED = re.compile(r"[%:/\\\s\x00-\x20\x7f]")


def is_client_id(name: str) -> bool:
    """Return whether a client may have this ID."""
    return _CLIENT_ID.fullmatch(name) is not None


def is_literal_channel(name: str) -> bool:
    """Return whether ``name`` is the name of one channel: a subject without wildcards, slashes and white space."""
    check = _is_literal_channel if len(name) <= _KEPT_LENGTH else _is_literal_channel.__wrapped__
    return check(name)


@lru_cache(maxsize=65_536)
def _is_literal_channel(name: str) -> bool:
    return (bool(name) and all(name.split(".")) and not any(char in name for char in "*>/")
            and not any(char.isspace() for char in name))


def is_inbox(subject: str) -> bool:
    """Return whether the broker may publish to a subject that a client names.

    It goes to other clients in a protocol line, so it must be a literal subject without control characters.
    """
    name = subject.encode()
    return is_valid(name) and is_literal(name) and subject.isprintable()


def stream_of(channel: str) -> str:
    """Return the name of the stream that keeps a channel."""
    escaped = _ESCAPED.sub(lambda found: "".join(f"%{byte:02X}" for byte in found[0].encode()), channel)
    return STREAM_PREFIX + escaped.replace(".", ":")


@lru_cache(maxsize=65_536)
def channel_of(stream: str) -> str:
    """Return the channel that a stream keeps, by the stream's name; "" if no channel has that stream."""
    if not stream.startswith(STREAM_PREFIX):
        return ""
    channel = unquote(stream.removeprefix(STREAM_PREFIX).replace(":", "."))
    return channel if is_literal_channel(channel) and stream_of(channel) == stream else ""
