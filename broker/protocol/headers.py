"""The header block of a message.

    NATS/1.0[ status[ description]] CRLF
    (name ":" [spaces] value CRLF)*
    CRLF

The server never validates a block from a client. So all functions accept any bytes, and ignore lines that are not like
headers. Names are case-sensitive, as in nats-server for every header that it acts upon.

Source: nats-server, server/client.go (getHeaderKeyIndex, sliceHeader, removeHeaderIfPresent, setHeader); ADR-4.
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["VERSION", "build", "get", "items", "move", "remove", "set", "status"]

VERSION = b"NATS/1.0"

_CRLF = b"\r\n"
_EMPTY = VERSION + _CRLF * 2


def get(block: bytes, name: bytes) -> bytes | None:
    """Return the first value of ``name`` (case-sensitive) without leading spaces; None if there is none."""
    start = block.find(b"\r\n" + name + b":")
    if start < 0:
        return None
    start += len(name) + 3
    end = block.find(_CRLF, start)
    return (block[start:] if end < 0 else block[start:end]).lstrip(b" ")


def items(block: bytes) -> list[tuple[bytes, bytes]]:
    """Return all (name, value) pairs in order, including repeated names; lines without a colon are skipped."""
    found = []
    for line in block.split(_CRLF)[1:]:
        name, colon, value = line.partition(b":")
        if colon and name:
            found.append((name, value.strip(b" ")))
    return found


def status(block: bytes) -> bytes:
    """Return the rest of the first line after the version: b"" or, for example, b"404 No Messages"."""
    line = block.partition(_CRLF)[0]
    return line[len(VERSION):].strip(b" ") if line.startswith(VERSION) else b""


def build(items: Iterable[tuple[bytes, bytes]] = (), status: bytes | None = None) -> bytes:
    """Build a complete block, including the blank line, with the pairs in the given order."""
    first = VERSION + b" " + status if status else VERSION
    return b"".join([first, _CRLF, *(b"%b: %b\r\n" % pair for pair in items), _CRLF])


def remove(block: bytes, *names: bytes) -> bytes:
    """Return ``block`` without all occurrences of ``names``; b"" if neither a header nor a status is left."""
    for name in names:
        mark = b"\r\n" + name + b":"
        start = block.find(mark)
        if start < 0:
            continue
        # Join the parts once only: a block may repeat a name fifty thousand times.
        kept: list[bytes] = []
        at = 0
        while start >= 0:
            end = block.find(_CRLF, start + 2)
            if end < 0:
                return b"".join(kept) + block[at:]
            kept.append(block[at:start])
            at = end
            start = block.find(mark, end)
        block = b"".join(kept) + block[at:]
    return b"" if len(block) <= len(_EMPTY) else block


def set(block: bytes, name: bytes, value: bytes) -> bytes:
    """Return ``block`` with ``name`` set to ``value``: in place of its first occurrence, or as the last header."""
    mark = b"\r\n" + name + b":"
    start = block.find(mark)
    if start >= 0:
        start += len(mark)
        end = block.find(_CRLF, start)
        return b"%b %b%b" % (block[:start], value, block[end:] if end >= 0 else _CRLF * 2)
    if not block:
        return b"%b\r\n%b: %b\r\n\r\n" % (VERSION, name, value)
    return b"%b%b: %b\r\n\r\n" % (block.removesuffix(_CRLF), name, value)


def move(block: bytes, name: bytes, value: bytes) -> bytes:
    """Return ``block`` with ``name`` set to ``value`` as its last header, and without earlier occurrences."""
    return set(remove(block, name), name, value)
