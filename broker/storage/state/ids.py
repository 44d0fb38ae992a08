"""The message ids of one stream's duplicate window, as its blocks recorded them: by parts, in the order of their messages.

    parts    │ page   │ page │ in blocks │ packed │ tail        what no part covers has no ids
             └ stored by checkpoints     └ since then

What a part says stays true: an id has its message's sequence and time, whatever becomes of the message. So parts are neither
replayed nor changed. They are joined, they go to pages and come back, and the oldest leave with the window.

Owns: which ids are in memory, which in which page, and which are in blocks alone. Does not own: the window (jetstream's Dedupe),
nor when pages are written (checkpoint).
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
"""In a stream's configuration; ids are kept where it is above 0."""

PART_IDS: Final = 1 << 16
"""Ids in a part; a block with more is a part of its own."""

_PARTS_MAX: Final = 512
"""Of a stream, whose directory entry names them all: staged messages that join may make two each time."""

_ONE_TIME_NS: Final = 100_000_000
"""If a block spans at most this time, all its ids count from its last message's time: they stay slightly longer."""


@dataclass(frozen=True, slots=True, eq=False)
class IdPart:
    """The ids of messages first_seq..last_seq, none of them after ``last_time_ns``: in memory as ``chunks``, in a page at
    ``place``, or, where there is neither, in the stream's blocks. ``size``: bytes of the chunks."""

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
        """For a directory page; the last two are its chunks and its page."""
        return [self.first_seq, self.last_seq, self.last_time_ns, self.count, self.size, None,
                None if self.place is None else self.place.pack()]

    @classmethod
    def unpack(cls, packed: Any, after: int) -> IdPart:
        """``after``: the last sequence of the part before. Raises: ValueError, TypeError or Corrupt."""
        first_seq, last_seq, last_time_ns, count, size, chunks, ref = packed
        place = None if ref is None else PageRef.unpack(ref)
        if (not after < first_seq <= last_seq or min(last_time_ns, count, size) < 0 or (place is not None and (
                chunks is not None or place.kind != PageKind.DEDUPE)) or bool(count) != bool(chunks or place)):
            raise ValueError("the parts of a stream's ids are not in order")
        if chunks and set(map(type, chunks)) != {bytes}:
            raise ValueError("the chunks of a stream's ids are none")
        return cls(first_seq, last_seq, last_time_ns, count, size, tuple(chunks or ()), place)

    def moved(self, place: PageRef) -> IdPart:
        """The same, in a page."""
        return IdPart(self.first_seq, self.last_seq, self.last_time_ns, self.count, self.size, place=place)

    def lost(self) -> IdPart:
        """The same, when its page cannot be used."""
        return IdPart(self.first_seq, self.last_seq, self.last_time_ns, 0, 0)


class StreamIds:
    """The ids of one stream."""

    __slots__ = ("_parts", "_tail", "_tail_count", "_tail_first", "_tail_last", "_tail_size", "_tail_time_ns", "unlisted_ns")

    def __init__(self) -> None:
        self.unlisted_ns = 0
        """The ids of messages up to this time that are before the first part are in blocks alone: earlier releases listed none."""
        self._parts: list[IdPart] = []
        self._tail: list[bytes] = []
        self._tail_first = self._tail_last = self._tail_time_ns = self._tail_count = self._tail_size = 0

    def __bool__(self) -> bool:
        return bool(self._parts or self._tail)

    def parts(self) -> list[IdPart]:
        """All of them, rising; what is added later makes others, or joins the last one. Not to be changed."""
        if self._tail:
            tail, self._tail = tuple(self._tail), []
            self._join(IdPart(self._tail_first, self._tail_last, self._tail_time_ns, self._tail_count, self._tail_size, tail))
        return self._parts

    @property
    def places(self) -> list[PageRef]:
        """Where its pages are."""
        return [part.place for part in self._parts if part.place is not None]

    def sources(self, last_seq: int) -> list[IdPart]:
        """The parts of messages up to ``last_seq``, the newest first; the last one may be what earlier releases did not list."""
        parts = [part for part in self.parts() if part.first_seq <= last_seq]
        begin = parts[0].first_seq if parts else last_seq + 1
        if self.unlisted_ns and begin > 0:
            parts.insert(0, IdPart(0, begin - 1, self.unlisted_ns, 0, 0))
        return parts[::-1]

    def record(self, core: BlockCore, ids: BlockIds | None) -> None:
        """Add those of a block that follows; None: they are left in the block."""
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
        """The ids of messages first_seq..last_seq, which follow, are in blocks alone."""
        self.parts()
        self._join(IdPart(first_seq, last_seq, last_time_ns, 0, 0))

    def _join(self, part: IdPart) -> None:
        """Add a part; to the one before, if both are in memory and small, or both in blocks."""
        last = self._parts[-1] if self._parts else None
        if (last is not None and last.place is None and last.in_blocks == part.in_blocks
                and last.count + part.count <= PART_IDS):
            self._parts[-1] = IdPart(last.first_seq, part.last_seq, part.last_time_ns, last.count + part.count,
                                     last.size + part.size, last.chunks + part.chunks)
        else:
            self._parts.append(part)

    def load(self, part: IdPart) -> None:
        """Add a part as a checkpoint had it."""
        self._parts.append(part)

    def expire(self, limit_ns: int) -> None:
        """Forget parts in which all ids are as old as ``limit_ns``; too many others are left to their blocks."""
        parts, gone = self.parts(), 0
        while gone < len(parts) and parts[gone].last_time_ns <= limit_ns:
            gone += 1
        if gone:
            self._parts = parts[gone:]
        while len(self._parts) > _PARTS_MAX:
            oldest, following = self._parts[:2]
            self._parts[:2] = [IdPart(oldest.first_seq, following.last_seq, following.last_time_ns, 0, 0)]

    def clear(self) -> None:
        """Forget all."""
        self._parts, self._tail = [], []

    def replace(self, old: Sequence[IdPart], new: IdPart) -> bool:
        """Put ``new``, which has the same ids, in the place of ``old``, which are neighbours. False: they are not here any more."""
        parts = self.parts()
        at = next((at for at, part in enumerate(parts) if part is old[0]), len(parts))
        if len(parts) - at < len(old) or any(a is not b for a, b in zip(parts[at:], old, strict=False)):
            return False
        self._parts = [*parts[:at], new, *parts[at + len(old):]]
        return True


class BlockIds(NamedTuple):
    """The ids of one block: the first and the last sequence that has one, how many there are, and all of them packed."""

    first_seq: int
    last_seq: int
    number: int
    chunk: bytes

    @classmethod
    def of(cls, core: BlockCore, record: Record, head: Head | None) -> BlockIds | None:
        """Those that ``record`` has: almost a microsecond for each, so rather in a thread.

        ``head`` is needed where times or sequences have gaps. None: they can only be left in the block, because it is missing, or
        the record is damaged.
        """
        try:
            said = MessageIds.decode(record.body)
        except Corrupt:
            return None  # whoever asks for its ids finds the damage in the block; nothing else needs them
        ordinals, ids, first_seq = said.ordinals, said.ids, core.first_seq
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
        return cls(first_seq + ordinals[0], first_seq + ordinals[-1], len(ids), pack_ids(first_seq, ordinals, time_ns, ids))


def _sound(ordinals: Sequence[int], count: int) -> bool:
    """Whether they rise and are of a block of ``count`` messages."""
    return not ordinals or (ordinals[0] >= 0 and ordinals[-1] < count and not any(map(ge, ordinals, ordinals[1:])))


def decode_ids(part: IdPart, data: bytes = b"") -> tuple[Sequence[bytes], list[IdRows]]:
    """The chunks of ``part``, packed and unpacked; ``data`` is what its place names, if it has one. Raises: Corrupt;
    VersionUnknown."""
    place = part.place
    body = None if place is None else decode_page(data, place).body
    try:
        if body is None:
            return part.chunks, unpack_chunks(part.chunks, part.first_seq, part.last_seq, part.count)
        return unpack_body(body, part.first_seq, part.last_seq, part.count)
    except (TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
        name = "a checkpoint" if place is None else object_name(ObjectKind.PAGES, place.position)
        raise Corrupt(name, "message ids", 0 if place is None else place.offset, str(error)) from None
