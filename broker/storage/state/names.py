"""An index of the directory pages of a checkpoint: the page that may have the stream of a name.

A reader that wants one of ten thousand streams reads one page instead of all. The root has a hash of each name, in 4
bytes, by page. Roots of earlier releases have none, so a page without hashes may have any stream.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final
from zlib import crc32

__all__ = ["NAMES", "pack_names", "pages_of_name"]

NAMES: Final = "names"
"""A member of the root's extra: [[number of a directory page, hashes of the names of its streams, ascending], …]."""

_HASH_BYTES: Final = 4


def pack_names(names: Iterable[tuple[str, str]]) -> bytes:
    """Return the hashes of streams, given by account and name."""
    return b"".join(sorted(_hash(account, name) for account, name in names))


def pages_of_name(extra: dict[str, Any], account: str, name: str) -> tuple[frozenset[int], frozenset[int]]:
    """Return the directory pages with hashes in a root's ``extra``, and those of them that may have this stream.

    Raises: ValueError or TypeError.
    """
    rows = [(int(number), bytes(hashes)) for number, hashes in extra.get(NAMES, ())]
    wanted = _hash(account, name)
    return (frozenset(number for number, _ in rows),
            frozenset(number for number, hashes in rows if _has(hashes, wanted)))


def _hash(account: str, name: str) -> bytes:
    return crc32(f"{account}\0{name}".encode("utf-8", "surrogatepass")).to_bytes(_HASH_BYTES, "little")


def _has(hashes: bytes, wanted: bytes) -> bool:
    at = hashes.find(wanted)
    while at >= 0 and at % _HASH_BYTES:
        at = hashes.find(wanted, at + 1)
    return at >= 0
