"""The JSON of answers that may be very long, written a slice in each turn of the loop.

For example, an answer may have the counts of a hundred thousand subjects.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import islice
from typing import Final

from broker.jetstream.wire.fields import dump

__all__ = ["dump_in_turns", "is_long"]

_AT_ONCE: Final = 8192
"""The members of a mapping, or elements of a list, in one slice: some 2 ms."""


def is_long(value: object) -> bool:
    """Return whether the value, or a member of it, is a mapping or list that takes more than one slice."""
    if isinstance(value, dict):
        return len(value) > _AT_ONCE or any(map(is_long, value.values()))
    return isinstance(value, list) and len(value) > _AT_ONCE


async def dump_in_turns(value: object) -> bytes:
    """Do as ``dump``, with a turn of the loop after each slice. ``value`` must not change meanwhile."""
    pieces = []
    for piece in _pieces(value):
        pieces.append(piece)
        if len(piece) > _AT_ONCE:
            await asyncio.sleep(0)
    return b"".join(pieces)


def _pieces(value: object) -> Iterator[bytes]:
    if not is_long(value) or not isinstance(value, dict | list):
        yield dump(value)
    elif len(value) > _AT_ONCE:
        before, end = (b"{", b"}") if isinstance(value, dict) else (b"[", b"]")
        for some in _slices(value):
            yield before + dump(some)[1:-1]
            before = b","
        yield end
    elif isinstance(value, dict):
        before = b"{"
        for name, member in value.items():
            yield before + dump(name) + b":"
            yield from _pieces(member)
            before = b","
        yield b"}"


def _slices(value: dict[str, object] | list[object]) -> Iterator[dict[str, object] | list[object]]:
    if isinstance(value, list):
        for at in range(0, len(value), _AT_ONCE):
            yield value[at:at + _AT_ONCE]
    else:
        members = iter(value.items())
        while some := dict(islice(members, _AT_ONCE)):
            yield some
