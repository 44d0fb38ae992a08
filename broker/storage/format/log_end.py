"""Proofs, by later entries of the log, that an entry was stored: they distinguish the log's end from a lost entry.

``landed`` is a field of an entry: the number up to which all entries were stored when the put of this entry began.

    … 40 41 42 __ __ 45 46        ``landed`` of 45 and 46 is 42: a crash left 45 and 46, and the log ends before 43
    … 40 41 42 __ __ 45 46        ``landed`` of 46 is 44: the store has lost 43 and 44

    a segment    proves the entries up to its ``landed``, and those at least W = ``PUTS_IN_FLIGHT_MAX`` before it: an
                 owner begins number n + W only after n is stored, and begins nothing before its opening is stored
    a seal       proves the entries up to its ``landed``: the number before the first one that its writer found
                 missing, or the last number of an owner that ended its own epoch

``landed`` is true even in an entry of a deposed owner: such an owner never learns that an entry at or after the seal is
stored. Entries are also missing if they were released after a checkpoint, or if a power cut took entries that were not
synced. A reader considers both before it reports a loss.
"""

from __future__ import annotations

from typing import Final

from broker.storage.format.claim import Seal
from broker.storage.format.errors import FormatError
from broker.storage.format.header import KIND_AT, ObjectHeader, ObjectKind, Position
from broker.storage.format.segment import HEAD_BYTES_MIN, PUTS_IN_FLIGHT_MAX, decode_landed

__all__ = ["PROOF_BYTES", "is_being_copied", "landed_before", "proves"]

PROOF_BYTES: Final = 1024
"""The bytes that are read of an entry to find ``landed``: the beginning of a segment, or nearly every seal."""

assert PROOF_BYTES >= HEAD_BYTES_MIN


def proves(data: bytes | None, later: Position, missing: Position) -> bool:
    """Return whether the entry at ``later`` proves that the entry at ``missing`` was stored.

    Args: data is as for ``landed_before``; None: there is no entry.
    """
    if data is None or later <= missing or later.epoch != missing.epoch:
        return False
    landed = landed_before(data, later)
    return landed is not None and landed >= missing.number


def landed_before(data: bytes, position: Position) -> int | None:
    """Return the number up to which all entries were stored when the entry at ``position`` was put; None: unknown.

    Args: data is the entry's beginning, ``PROOF_BYTES`` or all of it.
    """
    try:
        kind = ObjectHeader.unpack(data).kind
        if kind == ObjectKind.SEAL:
            return Seal.decode(data, position).landed
        landed = decode_landed(data, position) if kind == ObjectKind.SEGMENT else None
    except FormatError:
        # The entry is damaged. But its kind shows that it is a segment, so its put had begun.
        if data[KIND_AT:KIND_AT + 1] != bytes((ObjectKind.SEGMENT,)):
            return None
        landed = None
    if not position.number:
        return None
    return max(0, position.number - PUTS_IN_FLIGHT_MAX, -1 if landed is None else landed)


def is_being_copied(mark: bytes | None, epoch: int) -> bool:
    """Return whether a copy was being updated with entries of ``epoch``: then an entry may be missing before later
    ones.

    Args: mark is the beginning of the object ``paths.COPYING``: during an update, the newest claim of the source.
    """
    try:
        header = None if mark is None else ObjectHeader.unpack(mark)
    except FormatError:
        return False
    return header is not None and header.kind == ObjectKind.CLAIM and header.position.epoch >= epoch
