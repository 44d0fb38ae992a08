"""Writes the growth of the open segment to the journal, commit by commit.

    open segment   blocks ── growth since the last commit ──> journal ── safe ──> the calls that wait for safety
                     │                                           ^
                     └── closed: the rest, marked as the end ────┘

A segment that is closed is *journaled* if the journal has all of it. Safe calls are made in log order, so while a
segment that is not journaled waits for its put, nothing that follows it is made safe by the journal (``gaps``).

Owns what the journal has of each open block. Does not own the file (``journal``), nor when a segment is closed and when
calls are made (``log``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from broker.storage.format.block import Outcome
from broker.storage.format.codec import checksum
from broker.storage.format.journal import (
    LARGE_BODY_BYTES,
    Commit,
    EncodedCommit,
    JournaledBlock,
    encode_commit,
    encode_message,
    seal_commit,
)
from broker.storage.format.section import SECTIONS, SectionCodec
from broker.storage.log.journal import Journal
from broker.storage.log.open_block import OpenBlock
from broker.storage.log.open_segment import OpenSegment
from broker.storage.log.owner import BlockOwner

__all__ = ["GROWTH_BYTES_MAX", "Grown", "Journaling"]

GROWTH_BYTES_MAX = 512 << 10
"""More bytes than this are stored as a segment: writing them twice would take longer than a put."""

_GATHERED_BYTES_MAX = 256 << 10
"""Growth above this is committed during a flush, too: much more would not fit into one commit."""

_ROW_BYTES = 64
"""An upper bound of what a message adds to its commit, apart from its bytes and its subject."""


class _Mark(NamedTuple):
    """The part of an open block that the journal has."""

    messages: int = 0
    runs: int = 0
    removed: int = 0
    records: int = 0
    outcome: Outcome = Outcome()


_NOTHING = _Mark()

Grown = tuple[BlockOwner, int]
"""A stream with messages or records in a commit, and the last sequence in its outcome."""


class Journaling:
    """The journal's side of one log.

    Attributes: ``commits``: the number of commits of the open segment in the journal; ``gaps``: the number of closed
        segments that are neither persisted nor journaled.
    """

    def __init__(self, journal: Journal, on_error: Callable[[BlockOwner, Exception], object],
                 codec: SectionCodec = SECTIONS) -> None:
        """Args: ``on_error`` is called for an owner that cannot give its records or its outcome. ``codec`` seals
        commits if it encrypts."""
        self.journal = journal
        self.commits = 0
        self.gaps = 0
        self._on_error = on_error
        self._codec = codec
        self._marks: dict[int, _Mark] = {}
        self._tally_bytes = 0
        self._tally_count = 0

    def persisted(self, number: int, journaled: bool) -> None:
        """Record that segment ``number`` and all before it are persisted."""
        self.gaps -= not journaled
        self.journal.persisted(number)

    @property
    def ready(self) -> bool:
        """True if a commit may be journaled now."""
        return self.journal.ready and not self.gaps

    def may_gather(self, opened: OpenSegment) -> bool:
        """Return whether the growth of ``opened`` may wait for the end of a flush: one commit for all that comes
        meanwhile costs a fraction of a commit for each turn of the loop."""
        return self._growth_of(opened) <= _GATHERED_BYTES_MAX

    def has(self, stream_id: int) -> bool:
        """Return whether the journal has some of the stream's open block."""
        return stream_id in self._marks

    def commit(self, opened: OpenSegment, segment: int, failed: set[int], done: Callable[[], object]
               ) -> list[Grown] | None:
        """Journal the growth of ``opened``, the open segment with number ``segment``. ``done``: see ``Journal.append``.

        Args: failed: streams that are offline.
        Returns: what the journal has now; None if the growth must be stored as a segment, because it is large or the
            journal has no room.
        """
        if not self._fits(opened):
            return None
        rows: list[JournaledBlock] = []
        blocks: list[OpenBlock[Any]] = []
        tally = opened.tally
        while tally.grown:
            grown, tally.grown = tally.grown, []
            for stream_id in grown:
                block = opened.blocks[stream_id]
                block.grown = False
                if block.stream_id not in failed:
                    self._add(block, blocks, rows)
        marks = [_Mark(block.count, len(block.runs), len(block.removed), len(block.records), block.outcome)
                 for block in blocks]
        if not rows or not self.journal.append(
                segment, self._sealed(self._encode(opened, segment, rows, blocks)), done):
            for block in blocks:
                block.touch()
            return None
        for block, mark in zip(blocks, marks, strict=True):
            self._marks[block.stream_id] = mark
        self.commits += 1
        self._tally_bytes, self._tally_count = tally.bytes, tally.count
        return _grown(blocks)

    def close(self, opened: OpenSegment, segment: int, blocks: Sequence[OpenBlock[Any]], done: Callable[[], object]
              ) -> list[Grown] | None:
        """Journal the rest of a segment that was closed; ``blocks`` are all of its blocks, with their last outcomes.

        Returns: as ``commit``; None if the segment is not journaled.
        """
        journaled = False
        if self.ready and self._fits(opened):
            rows = []
            grown = []
            for block in blocks:
                mark = self._marks.get(block.stream_id, _NOTHING)
                row = _growth(block, mark, ())
                if block.outcome != mark.outcome or row.runs or row.removed or row.records:
                    rows.append(row)
                    grown.append(block)
            crcs = self._crcs(opened, rows, grown)
            commit = self._sealed(encode_commit(Commit(segment, self.commits, True, rows), crcs))
            journaled = self.journal.append(segment, commit, done)
        if not journaled:
            self.gaps += 1
        self.commits = self._tally_bytes = self._tally_count = 0
        self._marks = {}
        return _grown(blocks) if journaled else None

    def _fits(self, opened: OpenSegment) -> bool:
        return self._growth_of(opened) <= GROWTH_BYTES_MAX

    def _growth_of(self, opened: OpenSegment) -> int:
        tally = opened.tally
        return tally.bytes - self._tally_bytes + _ROW_BYTES * (tally.count - self._tally_count)

    def _add(self, block: OpenBlock[Any], blocks: list[OpenBlock[Any]], rows: list[JournaledBlock]) -> None:
        mark = self._marks.get(block.stream_id, _NOTHING)
        try:
            listed = block.owner.journaling(block, mark.messages)
        except Exception as error:
            self._on_error(block.owner, error)
            return
        if not block.empty:  # otherwise its segment may never be stored, and its number given to the next one
            blocks.append(block)
            rows.append(_growth(block, mark, listed))

    def _sealed(self, commit: EncodedCommit) -> EncodedCommit:
        return seal_commit(commit, self.journal.epoch, self._codec) if self._codec.sealing else commit

    def _crcs(self, opened: OpenSegment, rows: Sequence[JournaledBlock], blocks: Sequence[OpenBlock[Any]]
              ) -> dict[int, dict[int, int]]:
        """Return the checksums of large bodies by row and place; each row is the growth of its block.

        The block keeps them for its segment, which stores most large bodies as they are.
        """
        found: dict[int, dict[int, int]] = {}
        if opened.tally.bytes - self._tally_bytes < LARGE_BODY_BYTES or self._codec.sealing:
            return found
        for number, (row, block) in enumerate(zip(rows, blocks, strict=True)):
            crcs = {place: checksum(body) for place, body in enumerate(row.bodies) if len(body) >= LARGE_BODY_BYTES}
            if crcs:
                found[number] = crcs
                first = block.count - len(row.bodies)
                block.add_crcs({first + place: crc for place, crc in crcs.items()})
        return found

    def _encode(self, opened: OpenSegment, segment: int, rows: list[JournaledBlock],
                blocks: list[OpenBlock[Any]]) -> EncodedCommit:
        row, crcs = rows[0], self._crcs(opened, rows, blocks)
        if (len(rows) == 1 == len(row.bodies) and not (row.removed or row.records or row.listed)
                and (row.hlens is None or not row.hlens[0])):
            return encode_message(segment, self.commits, row.stream_id, row.outcome, row.runs[0], row.subjects[0],
                                  row.bodies[0], crcs[0][0] if crcs else None)
        return encode_commit(Commit(segment, self.commits, False, rows), crcs)


def _grown(blocks: Sequence[OpenBlock[Any]]) -> list[Grown]:
    return [(block.owner, block.outcome.last_seq) for block in blocks]


def _growth(block: OpenBlock[Any], mark: _Mark, listed: Sequence[Any]) -> JournaledBlock:
    """Return the part of ``block`` after ``mark``."""
    count = mark.messages
    return JournaledBlock(block.stream_id, block.outcome, block.runs[mark.runs:], block.subjects[count:],
                          None if block.hlens is None else block.hlens[count:], block.bodies[count:],
                          block.removed[mark.removed:], block.records[mark.records:], listed)
