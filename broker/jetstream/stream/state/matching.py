"""Which messages of a block match filters: as far as its short list of subjects tells, and exactly by its rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.storage.format.index import Head

if TYPE_CHECKING:
    from broker.jetstream.filters import Filters
    from broker.jetstream.stream.state.block import LiveBlock
    from broker.jetstream.stream.state.rows import Rows

__all__ = ["matching_rows", "may_match"]


def may_match(block: LiveBlock, filters: Filters) -> bool:
    """Whether a block may hold a matching message, as far as can be told without its head."""
    return filters.all or block.subjects is None or any(filters.match(one[0]) for one in block.subjects)


def matching_rows(rows: Rows, block: LiveBlock, filters: Filters) -> list[tuple[int, bytes]]:
    """(sequence, subject) of the block's messages that match, dead ones included."""
    if not isinstance(rows, Head):
        match = filters.match
        return [(rows.seq_of(at), subject) for at in range(block.count) if match(subject := rows.subject_of(at))]
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


