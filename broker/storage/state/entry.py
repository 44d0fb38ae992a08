"""A persisted block as an entry of a block table, and the objects that blocks are stored in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from broker.storage.format.block import FIRST_SEQ, LAST_SEQ, BlockPlace, BlockRef, PackedRef
from broker.storage.format.header import NUMBER_BITS, position_key
from broker.storage.state.dead import DeadSet

__all__ = ["BlockEntry", "Kept", "RunKey", "as_entry", "first_of", "last_of", "log_keys", "run_keys"]

RunKey = tuple[int, int, int, int]
"""Epoch, number and id of a run, and the incarnation of the only stream in it, or 0."""

_LOG = int(BlockPlace.LOG)
_STREAM_RUN = int(BlockPlace.STREAM_RUN)


class BlockEntry:
    """A persisted block with at least one live message."""

    __slots__ = ("dead", "dead_bytes", "dead_count", "ref")

    def __init__(self, ref: BlockRef) -> None:
        self.ref = ref
        self.dead: DeadSet | None = None
        self.dead_count = 0
        """Number of messages removed by sequence. It is too low if the block has gaps, and a removed range covered a
        part of it and messages of other blocks. No broker writes such a range."""
        self.dead_bytes = 0
        """User size of these messages; an estimate if such a range ended in the block."""

    @property
    def first_seq(self) -> int:
        return self.ref.first_seq

    @property
    def last_seq(self) -> int:
        return self.ref.last_seq

    @property
    def live_msgs(self) -> int:
        """Messages that were not removed by sequence."""
        return self.ref.count - self.dead_count

    def is_dead(self, seq: int) -> bool:
        """Return whether the message at ``seq`` of this block was removed by sequence."""
        return self.dead is not None and seq in self.dead

    def remove(self, first: int, last: int, msgs: int, size: int) -> bool:
        """Mark this block's part of first..last dead. Returns: True if anything changed.

        Args: msgs and size are those of the whole range, so they are exact if the range is within the block.
        """
        ref = self.ref
        within = first >= ref.first_seq and last <= ref.last_seq
        low, high = max(first, ref.first_seq), min(last, ref.last_seq)
        if low == ref.first_seq and high == ref.last_seq:
            changed = self.dead_count < ref.count
            self.dead_count, self.dead_bytes = ref.count, ref.bytes
            return changed
        if self.dead is None:
            self.dead = DeadSet(ref.first_seq, ref.last_seq, ref.count)
        new = self.dead.add(low, high)
        if not new:
            return False
        if within:
            self.dead_count += min(msgs, new)
            self.dead_bytes += size
        elif ref.gapless:
            self.dead_count += new
            self.dead_bytes = min(ref.bytes, self.dead_bytes + ref.bytes * new // ref.count)
        return True

    def mark(self, bits: bytes, size: int) -> bool:
        """Mark scattered messages dead, ``size`` bytes in all, of a block without gaps. Raises: ValueError."""
        ref = self.ref
        dead = DeadSet(ref.first_seq, ref.last_seq, ref.count) if self.dead is None else self.dead
        if not ref.gapless:
            raise ValueError(f"{ref!r} has gaps")
        new = dead.merge(bits)
        if not new:
            return False
        self.dead = dead
        self.dead_count += new
        self.dead_bytes = min(ref.bytes, self.dead_bytes + size)
        return True

    def pack(self) -> list[Any]:
        ref = self.ref.pack()
        return [ref] if self.dead is None else [ref, self.dead.pack(), self.dead_count, self.dead_bytes]

    @classmethod
    def unpack(cls, packed: Any, unpack_ref: Callable[[Any], BlockRef] = BlockRef.unpack) -> BlockEntry:
        """Return the entry that ``pack`` packed. Raises: ValueError, TypeError or Corrupt for any other value."""
        entry = cls(unpack_ref(packed[0]))
        if len(packed) > 1:
            _, dead, entry.dead_count, entry.dead_bytes = packed
            numbers = type(entry.dead_count), type(entry.dead_bytes)
            if numbers != (int, int) or not 0 <= entry.dead_count <= entry.ref.count:
                raise ValueError("a block's dead messages do not add up")
            entry.dead = DeadSet(entry.ref.first_seq, entry.ref.last_seq, entry.ref.count)
            entry.dead.load(dead)
        return entry


Kept = PackedRef | BlockEntry
"""A block in memory: a packed reference while all of it is live, otherwise an entry."""


def run_keys(stream_id: int, blocks: Iterable[Kept]) -> Iterator[RunKey]:
    """Iterate over the runs of ``blocks``, one for each block that is not in a segment."""
    for kept in blocks:
        ref = kept if type(kept) is tuple else kept.ref.pack()  # type: ignore[union-attr]
        if ref[0] != _LOG:
            yield ref[1], ref[2], ref[3], stream_id if ref[0] >= _STREAM_RUN else 0


def log_keys(blocks: Iterable[Kept]) -> Iterator[int]:
    """Iterate over the ``position_key`` of the segments of ``blocks``, one for each block that is not in a run."""
    for kept in blocks:
        if isinstance(kept, BlockEntry):
            ref = kept.ref
            if ref.place == BlockPlace.LOG:
                yield position_key(ref.position)
        elif kept[0] == _LOG:
            yield kept[1] << NUMBER_BITS | kept[2]


def as_entry(kept: Kept) -> BlockEntry:
    """Return ``kept`` itself, or an entry made of it."""
    return kept if isinstance(kept, BlockEntry) else BlockEntry(BlockRef.of(kept))


def first_of(kept: Kept) -> int:
    """Return the first sequence of a block."""
    return kept.ref.first_seq if isinstance(kept, BlockEntry) else kept[FIRST_SEQ]


def last_of(kept: Kept) -> int:
    """Return the last sequence of a block."""
    return kept.ref.last_seq if isinstance(kept, BlockEntry) else kept[LAST_SEQ]
