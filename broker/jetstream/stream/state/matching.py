"""Which messages of a block match filters: as far as its subject list or filter can say, and exactly by its rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from broker.storage.format.index import Head
from broker.storage.format.subject_filter import may_hold, pattern_hash

if TYPE_CHECKING:
    from broker.jetstream.filters import Filters
    from broker.jetstream.stream.state.block import LiveBlock
    from broker.jetstream.stream.state.rows import Rows

__all__ = ["EXCLUDED_AT_ONCE", "candidates", "listed_match", "matching_rows", "may_match"]

EXCLUDED_AT_ONCE: Final = 256
"""Blocks that their filters may exclude before the loop has a turn."""


def listed_match(block: LiveBlock, filters: Filters) -> bool:
    """Whether a block may hold a matching message, as far as its short list of subjects says."""
    return filters.all or block.subjects is None or any(filters.match(one[0]) for one in block.subjects)


def may_match(block: LiveBlock, filters: Filters) -> bool:
    """The same, as far as is known without its head. Takes about 10 µs where the block has a subject filter."""
    if filters.all:
        return True
    if block.subjects is not None or block.ref is None or block.ref.subject_filter is None:
        return listed_match(block, filters)
    hashes = _hashes(filters.subjects)
    return not hashes or may_hold(block.ref.subject_filter, hashes)


def candidates(blocks: Iterable[LiveBlock], filters: Filters) -> Iterator[LiveBlock]:
    """Those of ``blocks`` that may match, for loading; after many that cannot, one of those, as a turn for the loop."""
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
    """Hashes of which a block's filter has one if the block holds a match; none: nothing can be concluded."""
    found = [pattern_hash(subject) for subject in subjects]
    return () if None in found else tuple(one for one in found if one is not None)


def matching_rows(rows: Rows, block: LiveBlock, filters: Filters) -> list[tuple[int, bytes]]:
    """(sequence, subject) of the block's messages that match, dead ones included."""
    if not isinstance(rows, Head):
        match = filters.match
        return [(rows.seq_of(at), subject) for at in range(block.count) if match(subject := rows.subject_of(at))]
    if len(filters.literals) == len(filters.subjects) == 1:
        # As roll-ups ask; there may be one for each subject of a block.
        subject_id = rows.subject_id(filters.subjects[0])
        return [] if subject_id is None else [(rows.seq_of(at), filters.subjects[0]) for at in rows.postings(subject_id)]
    subjects = rows.subjects
    wanted = {i for i, subject in enumerate(subjects) if filters.match(subject)}
    if not wanted:
        return []
    ids = rows.subject_ids
    if ids is None:
        return [(rows.seq_of(at), subjects[0]) for at in range(rows.count)]
    first_seq, seqs = rows.first_seq, rows.seqs
    if seqs is None:
        return [(first_seq + at, subjects[i]) for at, i in enumerate(ids) if i in wanted]
    return [(seqs[at], subjects[i]) for at, i in enumerate(ids) if i in wanted]


