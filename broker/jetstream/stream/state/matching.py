"""Finds the messages of a block that match filters: roughly by its subject list or subject filter, exactly by its
rows."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from broker.storage.format.index import Head
from broker.storage.format.subject_filter import may_hold, pattern_hash

if TYPE_CHECKING:
    from broker.jetstream.filters import Filters
    from broker.jetstream.stream.state.block import LiveBlock
    from broker.jetstream.stream.state.rows import Rows

__all__ = ["EXCLUDED_AT_ONCE", "candidates", "listed_match", "matching_ids", "matching_ordinals", "matching_rows",
           "may_match"]

EXCLUDED_AT_ONCE: Final = 256
"""Blocks that may be excluded by their subject filters before the loop gets a turn."""

_SEARCHED_MAX: Final = 16
"""Up to this number of literal subjects are searched for in a block's subject list; with more, the list is scanned."""


def listed_match(block: LiveBlock, filters: Filters) -> bool:
    """Return whether a block may hold a matching message, as far as its short list of subjects shows."""
    return filters.all or block.subjects is None or any(filters.match(one[0]) for one in block.subjects)


def may_match(block: LiveBlock, filters: Filters) -> bool:
    """Return whether a block may hold a matching message, as far as is known without its head.

    This takes about 10 µs if the block has a subject filter.
    """
    if filters.all:
        return True
    if block.subjects is not None or block.ref is None or block.ref.subject_filter is None:
        return listed_match(block, filters)
    hashes = _hashes(filters.subjects)
    return not hashes or may_hold(block.ref.subject_filter, hashes)


def candidates(blocks: Iterable[LiveBlock], filters: Filters) -> Iterator[LiveBlock]:
    """Yield the blocks that may match, to be loaded.

    After many excluded blocks one of them is yielded as well, so that the caller's load gives the loop a turn.
    """
    excluded = 0
    for block in blocks:
        if not listed_match(block, filters):
            continue
        if excluded < EXCLUDED_AT_ONCE and not may_match(block, filters):
            excluded += 1
            continue
        excluded = 0
        yield block


@lru_cache(maxsize=256)
def _hashes(subjects: tuple[bytes, ...]) -> tuple[int, ...]:
    """Return hashes of which a block's filter contains at least one if the block holds a match; empty: no
    conclusion."""
    found = [pattern_hash(subject) for subject in subjects]
    return () if None in found else tuple(one for one in found if one is not None)


def matching_ids(head: Head, filters: Filters) -> set[int]:
    """Return the indices of the matching subjects in the head's subject columns."""
    subjects, found = head.subjects, set[int]()
    if filters.literal and len(filters.literals) <= _SEARCHED_MAX:
        return {i for subject in filters.literals if (i := head.subject_id(subject)) is not None}
    places = [(bisect_left(subjects, start), bisect_left(subjects, end)) for start, end in filters.spans]
    for first, stop in places or [(0, len(subjects))]:
        found.update(range(first, stop) if filters.contiguous else
                     [i for i, subject in enumerate(subjects[first:stop], first) if filters.decide(subject)])
    return found


def matching_ordinals(head: Head, filters: Filters) -> Sequence[int]:
    """Return the ordinals of the block's messages that match, dead ones included, in order."""
    if filters.all:
        return range(head.count)
    wanted, ids = matching_ids(head, filters), head.subject_ids
    if not wanted or len(wanted) == len(head.subjects) or ids is None:
        return range(head.count if wanted else 0)
    if len(wanted) == 1:
        return head.postings(*wanted)
    if len(wanted) == sum(map(head.subject_counts.__getitem__, wanted)):
        return sorted(map(head.subject_firsts.__getitem__, wanted))  # one message for each subject
    return array("I", [at for at, i in enumerate(ids) if i in wanted])


def matching_rows(rows: Rows, block: LiveBlock, filters: Filters) -> list[tuple[int, bytes]]:
    """Return (sequence, subject) of the block's messages that match, dead ones included."""
    if not isinstance(rows, Head):
        match = filters.match
        return [(rows.seq_of(at), subject) for at in range(block.count) if match(subject := rows.subject_of(at))]
    return [(rows.seq_of(at), rows.subject_of(at)) for at in matching_ordinals(rows, filters)]
