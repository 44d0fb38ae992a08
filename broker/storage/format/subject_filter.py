"""A filter of a block's subjects, about a byte each: it shows for certain that a subject is absent, or that it may be
present.

It is for blocks with too many subjects for a summary. A filter is a set of *entries*: every subject, and every
beginning of a subject that ends before a dot. So it can be asked about a literal subject, or about a pattern by its
tokens before the first wildcard.

    entries of orders.eu.17    orders.eu.17, orders.eu, orders
    value of an entry         crc32(entry) mod places     (not its highest bits: similar subjects share them)
    filter                    places (4 bytes), then the values in ascending order as differences of a byte each;
                              a difference above 255 is written as several bytes
    a value is in the set if it is one of the running sums

With 64 places for each entry a filter takes 1.02 bytes an entry, and wrongly includes 1.6 % of the absent subjects. A
Bloom filter of that size has more errors (2.3 %), and setting its bits one by one takes two to three times as long.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import accumulate
from operator import sub
from typing import Final
from zlib import crc32

__all__ = ["FILTER_BYTES_BOUND", "FILTER_ENTRIES_MAX", "check_filter", "encode_filter", "entry_hashes", "holds_all",
           "may_hold", "pattern_hash", "prefix_hash", "subject_hash"]

FILTER_ENTRIES_MAX: Final = 2048
"""The most entries of a filter. References with filters stay in memory, in the broker and in Spark's planner."""
FILTER_BYTES_BOUND: Final = 1 << 16
"""The longest filter that a reader accepts."""

_PLACES: Final = 64
_LONG: Final = 512
"""The length of a subject from which on its beginnings are not copied."""
_AT: Final = 4
_SET_FROM: Final = 4
"""The number of hashes from which on a set of the values is faster."""


def subject_hash(subject: bytes) -> int:
    """Return the hash of one subject, or of a beginning before a dot."""
    return crc32(subject)


def pattern_hash(pattern: bytes) -> int | None:
    """Return the hash of an entry of every block with a subject that matches ``pattern``; None: there is none."""
    tokens = pattern.split(b".")
    for i, token in enumerate(tokens):
        if token in (b"*", b">"):
            return _hash_or_none(b".".join(tokens[:i]))
    return subject_hash(pattern)


def prefix_hash(prefix: bytes) -> int | None:
    """Return the hash of an entry in every block with a subject that begins with ``prefix``; None: there is none."""
    return _hash_or_none(prefix.rpartition(b".")[0])


def _hash_or_none(beginning: bytes) -> int | None:
    return subject_hash(beginning) if beginning else None


def entry_hashes(subjects: Collection[bytes]) -> set[int]:
    """Return the hashes of all entries for the subjects, or of more than ``FILTER_ENTRIES_MAX``.

    Many subjects share beginnings, so these are cut off level by level. For a long subject that would copy megabytes,
    so its tokens are hashed one after the other.
    """
    entries = {subject for subject in subjects if len(subject) <= _LONG}
    level: Collection[bytes] = entries
    while level and len(entries) <= FILTER_ENTRIES_MAX:
        beginnings = {entry.rpartition(b".")[0] for entry in level}
        beginnings.discard(b"")
        level = beginnings - entries
        entries |= level
    hashes = set(map(crc32, entries))
    for subject in subjects:
        if len(subject) > _LONG:
            hashes |= _hashes_of_one(subject)
            if len(hashes) > FILTER_ENTRIES_MAX:
                break
    return hashes


def _hashes_of_one(subject: bytes) -> set[int]:
    hashes: set[int] = set()
    start = crc = 0
    while start < len(subject) and len(hashes) <= FILTER_ENTRIES_MAX:
        end = subject.find(b".", start + 1)
        end = len(subject) if end < 0 else end
        crc = crc32(subject[start:end], crc)
        hashes.add(crc)
        start = end
    return hashes


def encode_filter(subjects: Collection[bytes]) -> bytes | None:
    """Return the filter of these subjects; None if there are none or too many entries. Costs about 0.3 µs a subject."""
    if not 0 < len(subjects) <= FILTER_ENTRIES_MAX:
        return None
    hashes = entry_hashes(subjects)
    if len(hashes) > FILTER_ENTRIES_MAX:
        return None
    places = _PLACES * len(hashes) + 1  # odd, since crc32 modulo a power of two is its lowest bits
    values = sorted({crc % places for crc in hashes})
    gaps = list(map(sub, values, [0, *values]))
    if max(gaps) > 255:
        gaps = [part for gap in gaps for part in ((gap,) if gap < 256 else (*(255,) * (gap // 255), gap % 255))]
    return places.to_bytes(_AT, "little") + bytes(gaps)


def check_filter(data: object) -> bytes:
    """Return ``data`` itself. Raises: ValueError if it is no filter."""
    if not isinstance(data, bytes) or not _AT < len(data) <= FILTER_BYTES_BOUND or not any(data[:_AT]):
        raise ValueError("not a subject filter")
    return data


def holds_all(data: bytes, hashes: Iterable[int]) -> bool:
    """Return whether the filter may have all entries with these hashes; True may be wrong, False never is."""
    places = int.from_bytes(data[:_AT], "little")
    return {crc % places for crc in hashes} <= set(accumulate(data[_AT:]))


def may_hold(data: bytes, hashes: Collection[int]) -> bool:
    """Return whether the filter may have an entry with one of these hashes; True may be wrong, False never is."""
    places = int.from_bytes(data[:_AT], "little")
    values = accumulate(data[_AT:])
    if len(hashes) < _SET_FROM:
        wanted = [one % places for one in hashes]
        if len(wanted) == 1:
            return wanted[0] in values
        return any(value in wanted for value in values)
    return not {one % places for one in hashes}.isdisjoint(values)
