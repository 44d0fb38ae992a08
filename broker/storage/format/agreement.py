"""Checks that the core of a block agrees with its index."""

from __future__ import annotations

from broker.storage.format.block import BlockCore
from broker.storage.format.errors import Corrupt
from broker.storage.format.index import Head
from broker.storage.format.message_size import messages_size
from broker.storage.format.subject_filter import entry_hashes, holds_all

__all__ = ["check_agreement"]


def check_agreement(core: BlockCore, index: Head, name: str, offset: int) -> None:
    """Compare the core, at ``offset`` of the object ``name``, with the index. Raises: Corrupt."""
    def wrong(what: str) -> Corrupt:
        return Corrupt(name, "block core", offset, f"{what} are not those of its index")

    if (core.first_time_ns, core.last_time_ns) != (index.time_of(0), index.time_of(index.count - 1)):
        raise wrong("its times")
    if core.raw_bytes != sum(frame.raw_bytes for frame in index.frames):
        raise wrong("its raw bytes")
    with_headers = (core.count if index.hlen else 0) if index.hlens is None else core.count - index.hlens.count(0)
    subject_bytes = sum(len(name) * count for name, count in zip(index.subjects, index.subject_counts, strict=True))
    if core.bytes != messages_size(core.count, with_headers, subject_bytes, core.raw_bytes):
        raise wrong("its messages' bytes")
    if core.subjects is not None and core.subjects != tuple(
            (subject, count, index.seq_of(first), index.seq_of(last)) for subject, count, first, last in zip(
                index.subjects, index.subject_counts, index.subject_firsts, index.subject_lasts, strict=True)):
        raise wrong("its subjects")
    if core.subject_filter is not None and not holds_all(core.subject_filter, entry_hashes(index.subjects)):
        raise wrong("the subjects of its filter")
