"""What an entry of the log proves about those before it: that tells the log's end from an entry that the store has lost.

    … 40 41 42 __ __ 45 46        45 says "42 had landed": a crash left 45, and the log ends before 43
    … 40 41 42 __ __ 45 46        46 says "44 had landed": the store has lost 43 and 44

    a segment    the number that it has in it; one without it: that of W before, since number n + W is not begun before n
                 landed; and an owner begins nothing before its opening landed
    a seal       the number that it has in it: its owner's last one, or that before the first that its taker found missing

What is said was true when it was written, whoever wrote it: an owner that was deposed meanwhile learns of no entry at or beyond
the seal that it has landed. Only a later checkpoint makes entries go, and a power cut those that were not synced: a reader
considers both before it calls an entry lost.
"""

from __future__ import annotations

from typing import Final

from broker.storage.format.claim import Seal
from broker.storage.format.errors import FormatError
from broker.storage.format.header import ObjectHeader, ObjectKind, Position
from broker.storage.format.segment import HEAD_BYTES_MIN, PUTS_IN_FLIGHT_MAX, decode_landed

__all__ = ["SAID_BYTES", "is_being_copied", "landed_before", "proves"]

SAID_BYTES: Final = 1024
"""What is read of an entry that may prove something: the beginning of a segment, or nearly every seal."""

assert SAID_BYTES >= HEAD_BYTES_MIN


def proves(data: bytes | None, later: Position, missing: Position) -> bool:
    """Whether the entry at ``later`` says that the one at ``missing`` had landed. Args: data is as for ``landed_before``; None:
    there is no entry."""
    if data is None or later <= missing or later.epoch != missing.epoch:
        return False
    landed = landed_before(data, later)
    return landed is not None and landed >= missing.number


def landed_before(data: bytes, position: Position) -> int | None:
    """The highest number that had landed, with all before it, when the entry at ``position`` was put; None: it proves none.

    Args: data is its beginning, ``SAID_BYTES`` or all of it.
    """
    try:
        kind = ObjectHeader.unpack(data).kind
        if kind == ObjectKind.SEAL:
            return Seal.decode(data, position).landed
        said = decode_landed(data, position) if kind == ObjectKind.SEGMENT else None
    except FormatError:
        # Damaged itself: that it is a segment still shows that its put had begun.
        if data[8:9] != bytes((ObjectKind.SEGMENT,)):
            return None
        said = None
    if not position.number:
        return None
    return max(0, position.number - PUTS_IN_FLIGHT_MAX, -1 if said is None else said)


def is_being_copied(mark: bytes | None, epoch: int) -> bool:
    """Whether a copy was being brought up to date with entries of ``epoch``: then one may be missing that later ones prove.

    Args: mark is the beginning of the object ``paths.COPYING``: the newest claim of the source while that goes on.
    """
    try:
        header = None if mark is None else ObjectHeader.unpack(mark)
    except FormatError:
        return False
    return header is not None and header.kind == ObjectKind.CLAIM and header.position.epoch >= epoch
