"""The message ids of one stream's duplicate window, as its blocks recorded them: in parts, in the order of messages.

    parts    │ page   │ page │ in blocks │ packed │ tail        messages in no part have no ids
             └ stored by checkpoints     └ since then

A part stays valid: an id has its message's sequence and time, even after the message is removed. So parts are neither
replayed nor changed. They are joined, stored in pages and loaded from them; the oldest are dropped with the window.

Owns which ids are in memory, which are in which page, and which are in blocks only. Does not own the window
(jetstream's Dedupe), nor when pages are written (checkpoint).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import ge
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from broker.storage.format.errors import Corrupt
from broker.storage.format.header import ObjectKind, object_name
from broker.storage.format.id_rows import IdRows, pack_ids, unpack_body, unpack_chunks
from broker.storage.format.page import PageKind, PageRef, decode_page
from broker.storage.format.records.message_ids import MessageIds

if TYPE_CHECKING:
    from broker.storage.format.block import BlockCore
    from broker.storage.format.index import Head
    from broker.storage.format.record import Record

__all__ = ["WINDOW", "BlockIds", "IdPart", "StreamIds", "decode_ids"]

WINDOW: Final = "duplicate_window"
"""A setting of the stream. Ids are kept if it is above 0."""

PART_IDS: Final = 1 << 16
"""Ids in a part. A block with more is a part of its own."""

_PARTS_MAX: Final = 512
"""Parts of a stream: its directory entry names all of them, and a join of staged messages may make two."""

_ONE_TIME_NS: Final = 100_000_000
"""The longest time span of a block whose ids all get its last message's time: they are kept slightly longer."""


@dataclass(frozen=True, slots=True, eq=False)
class IdPart:
    """The ids of messages first_seq..last_seq, none of them after ``last_time_ns``.

    They are in memory as ``chunks``, ``size`` bytes in all; or in a page at ``place``; or else in the stream's blocks
    only.
    """

    first_seq: int
    last_seq: int
    last_time_ns: int
    count: int
    size: int
    chunks: tuple[bytes, ...] = ()
    place: PageRef | None = None

    @property
    def in_blocks(self) -> bool:
        return self.place is None and not self.chunks

    def pack(self) -> list[Any]:
        """Return the part as a value for a directory page. The last two members are for its chunks and its page."""
        return [self.first_seq, self.last_seq, self.last_time_ns, self.count, self.size, None,
                None if self.place is None else self.place.pack()]

    @classmethod
    def unpack(cls, packed: Any, after: int) -> IdPart:
        """Return the part that ``pack`` packed; ``after`` is the last sequence of the previous part.

        Raises: ValueError, TypeError or Corrupt.
        """
        first_seq, last_seq, last_time_ns, count, size, chunks, ref = packed
        place = None if ref is None else PageRef.unpack(ref)
        if (not after < first_seq <= last_seq or min(last_time_ns, count, size) < 0 or (place is not None and (
                chunks is not None or place.kind != PageKind.DEDUPE)) or bool(count) != bool(chunks or place)):
            raise ValueError("the parts of a stream's ids are not in order")
        if chunks and set(map(type, chunks)) != {bytes}:
            raise ValueError("the chunks of a stream's ids are not bytes")
        return cls(first_seq, last_seq, last_time_ns, count, size, tuple(chunks or ()), place)

    def moved(self, place: PageRef) -> IdPart:
        """Return the same part, in a page."""
        return IdPart(self.first_seq, self.last_seq, self.last_time_ns, self.count, self.size, place=place)

    def lost(self) -> IdPart:
        """Return the same part after its page was found unusable: its ids are in blocks only."""
        return IdPart(self.first_seq, self.last_seq, self.last_time_ns, 0, 0)


class StreamIds:
    """The ids of one stream."""

    __slots__ = ("_parts", "_tail", "_tail_count", "_tail_first", "_tail_last", "_tail_size", "_tail_time_ns",
                 "unlisted_ns")

    def __init__(self) -> None:
        self.unlisted_ns = 0
        """Ids up to this time and before the first part are in blocks only: earlier releases listed none."""
        self._parts: list[IdPart] = []
        self._tail: list[bytes] = []
        self._tail_first = self._tail_last = self._tail_time_ns = self._tail_count = self._tail_size = 0

    def __bool__(self) -> bool:
        return bool(self._parts or self._tail)

    def parts(self) -> list[IdPart]:
        """Return all parts, ascending. Do not change them: later ids make new parts or join the last one."""
        if self._tail:
            tail, self._tail = tuple(self._tail), []
            self._join(IdPart(self._tail_first, self._tail_last, self._tail_time_ns, self._tail_count, self._tail_size,
                              tail))
        return self._parts

    @property
    def places(self) -> list[PageRef]:
        """The places of its pages."""
        return [part.place for part in self._parts if part.place is not None]

    def sources(self, last_seq: int) -> list[IdPart]:
        """Return the parts up to ``last_seq``, newest first, and last a part for ids that were not listed."""
        parts = [part for part in self.parts() if part.first_seq <= last_seq]
        begin = parts[0].first_seq if parts else last_seq + 1
        if self.unlisted_ns and begin > 0:
            parts.insert(0, IdPart(0, begin - 1, self.unlisted_ns, 0, 0))
        return parts[::-1]

    def record(self, core: BlockCore, ids: BlockIds | None) -> None:
        """Add the ids of the next block; None: they stay in the block only."""
        if ids is None:
            self.in_blocks(core.first_seq, core.last_seq, core.last_time_ns)
            return
        first_seq, last_seq, count, chunk = ids
        if not count:
            return
        if self._tail and self._tail_count + count > PART_IDS:
            self.parts()
        if not self._tail:
            self._tail_first, self._tail_count, self._tail_size = first_seq, 0, 0
        self._tail.append(chunk)
        self._tail_last, self._tail_time_ns = last_seq, core.last_time_ns
        self._tail_count += count
        self._tail_size += len(chunk)

    def in_blocks(self, first_seq: int, last_seq: int, last_time_ns: int) -> None:
        """Record that the ids of messages first_seq..last_seq, which follow, are in blocks only."""
        self.parts()
        self._join(IdPart(first_seq, last_seq, last_time_ns, 0, 0))

    def _join(self, part: IdPart) -> None:
        """Add a part, or join it with the previous one if both are small and in memory, or both are in blocks."""
        last = self._parts[-1] if self._parts else None
        if (last is not None and last.place is None and last.in_blocks == part.in_blocks
                and last.count + part.count <= PART_IDS):
            self._parts[-1] = IdPart(last.first_seq, part.last_seq, part.last_time_ns, last.count + part.count,
                                     last.size + part.size, last.chunks + part.chunks)
        else:
            self._parts.append(part)

    def load(self, part: IdPart) -> None:
        """Add a part from a checkpoint."""
        self._parts.append(part)

    def expire(self, limit_ns: int) -> None:
        """Drop parts with only ids as old as ``limit_ns``. Of too many parts, the oldest are left to blocks."""
        parts, gone = self.parts(), 0
        while gone < len(parts) and parts[gone].last_time_ns <= limit_ns:
            gone += 1
        if gone:
            self._parts = parts[gone:]
        while len(self._parts) > _PARTS_MAX:
            oldest, following = self._parts[:2]
            self._parts[:2] = [IdPart(oldest.first_seq, following.last_seq, following.last_time_ns, 0, 0)]

    def clear(self) -> None:
        """Drop all parts."""
        self._parts, self._tail = [], []

    def replace(self, old: Sequence[IdPart], new: IdPart) -> bool:
        """Replace the successive parts ``old`` by ``new``, with the same ids. Returns: False if they have left."""
        parts = self.parts()
        at = next((at for at, part in enumerate(parts) if part is old[0]), len(parts))
        if len(parts) - at < len(old) or any(a is not b for a, b in zip(parts[at:], old, strict=False)):
            return False
        self._parts = [*parts[:at], new, *parts[at + len(old):]]
        return True


class BlockIds(NamedTuple):
    """The packed ids of one block: the first and the last sequence that has an id, the number of ids, the bytes."""

    first_seq: int
    last_seq: int
    number: int
    chunk: bytes

    @classmethod
    def of(cls, core: BlockCore, record: Record, head: Head | None) -> BlockIds | None:
        """Pack the ids of ``record``. This takes almost a microsecond for each, so it is better done in a thread.

        Args: ``head`` is needed if times or sequences have gaps.
        Returns: None if the ids can only stay in the block, because ``head`` is missing or the record is damaged.
        """
        try:
            listed = MessageIds.decode(record.body)
        except Corrupt:
            return None  # nothing but a search for its ids needs the record, and that finds the damage
        ordinals, ids, first_seq = listed.ordinals, listed.ids, core.first_seq
        if not _sound(ordinals, core.count):
            return None
        if not ids:
            return cls(0, 0, 0, b"")
        time_ns: int | Sequence[int] = core.last_time_ns
        long = core.last_time_ns - core.first_time_ns > _ONE_TIME_NS
        gaps = core.last_seq - first_seq + 1 != core.count
        if long or gaps:
            if head is None:
                return None
            if long:
                time_ns = list(map(head.time_of, ordinals))
            if gaps:
                ordinals = [head.seq_of(at) - first_seq for at in ordinals]
        return cls(first_seq + ordinals[0], first_seq + ordinals[-1], len(ids),
                   pack_ids(first_seq, ordinals, time_ns, ids))


def _sound(ordinals: Sequence[int], count: int) -> bool:
    """Return whether ``ordinals`` are ascending and within a block of ``count`` messages."""
    return not ordinals or (ordinals[0] >= 0 and ordinals[-1] < count and not any(map(ge, ordinals, ordinals[1:])))


def decode_ids(part: IdPart, data: bytes = b"") -> tuple[Sequence[bytes], list[IdRows]]:
    """Return the chunks of ``part``, packed and unpacked. Raises: Corrupt; VersionUnknown.

    Args: ``data`` are the bytes at its place, if it has one.
    """
    place = part.place
    body = None if place is None else decode_page(data, place).body
    try:
        if body is None:
            return part.chunks, unpack_chunks(part.chunks, part.first_seq, part.last_seq, part.count)
        return unpack_body(body, part.first_seq, part.last_seq, part.count)
    except (TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
        name = "a checkpoint" if place is None else object_name(ObjectKind.PAGES, place.position)
        raise Corrupt(name, "message ids", 0 if place is None else place.offset, str(error)) from None
