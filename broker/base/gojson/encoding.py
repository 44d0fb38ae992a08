"""JSON as Go's ``json.Marshal`` writes it: without blanks, and with the characters escaped that HTML gives a meaning.

Source: the Go standard library, encoding/json (Marshal, HTMLEscape).
"""

from __future__ import annotations

import json
from typing import Final

__all__ = ["escaped", "marshal"]

_ENCODER: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False)

# These characters occur only within strings.
_ESCAPED: Final = ((b"<", rb"\u003c"), (b">", rb"\u003e"), (b"&", rb"\u0026"),
                   ("\u2028".encode(), rb"\u2028"), ("\u2029".encode(), rb"\u2029"))


def marshal(value: object) -> bytes:
    """Encode ``value`` as UTF-8. Parts of surrogate pairs, which UTF-8 has none of, become question marks."""
    return escaped(_ENCODER.encode(value).encode("utf-8", "replace"))


def escaped(data: bytes) -> bytes:
    """Escape HTML's special characters in JSON."""
    for character, sequence in _ESCAPED:
        if character in data:
            data = data.replace(character, sequence)
    return data
