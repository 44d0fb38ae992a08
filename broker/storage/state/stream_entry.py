"""The entry of a stream in a directory page, as values: ``pages`` has its form.

Owns: making the state of a stream from an entry; packing a whole stream into an entry that names no page, with which it
moves to another shard.
Does not own: the entries and pages of a checkpoint (pages).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from broker.storage.format.codec import SECTION_BYTES_MAX
from broker.storage.format.errors import FormatError
from broker.storage.format.header import EPOCH_MAX, NUMBER_MAX, Position
from broker.storage.format.page import PageBody, PageRef
from broker.storage.state.consumer import ConsumerState
from broker.storage.state.expiries import ExpiryPage
from broker.storage.state.ids import IdPart
from broker.storage.state.packed import Packed
from broker.storage.state.stream import StreamState
from broker.storage.state.subjects import SubjectPage
from broker.storage.state.table import BlockEntry, Kept, TablePage

__all__ = ["DAMAGED", "ENTRY_FIELDS", "LISTED_BLOCKS_MAX", "Part", "check_entry", "kept", "pack_whole", "position_of",
           "unpack_entry"]

LISTED_BLOCKS_MAX = 4
"""A table with at most so many blocks is a list of entries, which takes less room than a summary."""
ENTRY_FIELDS = 16
"""Fields of the entry of a stream without expiries. ``_TABLE`` is the first field that names pages."""

_ENTRY_TYPES = [int, str, str, dict, int, int, int, int, int, int, int, int, list, dict, list, list]

DAMAGED = (TypeError, OverflowError, ValueError, KeyError, IndexError, AttributeError, FormatError)
"""The errors of unpacking a damaged value."""


class Part(NamedTuple):
    """A page of one stream that ``load_part`` needs.

    ``room`` and ``summary`` belong to a page of its block table; ``summary`` is None if the directory has none.
    """

    ref: PageRef
    room: int = 0
    summary: Sequence[Any] | None = None


def unpack_entry(entry: Sequence[Any], *, filters: bool, whole: bool) -> tuple[StreamState, list[Part]]:
    """Return the stream of an entry that ``check_entry`` has checked, and the pages that ``load_part`` needs, in order.

    Args: ``filters``: its block references may have subject filters; ``whole`` False: without the parts that only an
        owner needs. Raises: VersionUnknown; one of ``DAMAGED``.
    """
    (stream_id, account, name, config, created_ns, first_seq, last_seq, msgs, size, first_time_ns, last_time_ns,
     ceiling, position, extra, table, consumers, *more) = entry
    if len(more) not in (0, 2, 3, 4):
        raise ValueError("an entry has other fields")
    expiries, schedules, subjects, ids = [*more, (), (), (), ()][:4]
    needed: list[Part] = []
    stream = StreamState(stream_id, account, name, config, created_ns)
    stream.first_seq, stream.last_seq, stream.msgs, stream.bytes = first_seq, last_seq, msgs, size
    stream.first_time_ns, stream.last_time_ns, stream.ceiling = first_time_ns, last_time_ns, ceiling
    stream.position, stream.extra = Position(*position), extra
    stream.dirty = False
    for room, entries, ref, *rest in table:
        summary = rest[0] if rest else None
        if ref is not None:
            needed.append(Part(PageRef.unpack(ref), room, summary))
            continue
        if summary is None:
            part = TablePage.of([kept(packed) for packed in entries])
            stream.dirty = stream.dirty or len(entries) > LISTED_BLOCKS_MAX  # as in ``load_part``
        else:
            part = TablePage(Packed.summarized(PageBody.unpack(entries, stream_id), summary, filters=filters))
        part.room = room
        stream.blocks.load(part)
    for packed, ref in consumers:
        if ref is not None:
            needed.append(Part(PageRef.unpack(ref)))
        else:
            consumer = ConsumerState.unpack(packed)
            stream.consumers[consumer.name] = consumer
    if not whole:
        return stream, needed
    for times, rows in ((stream.expiries, expiries), (stream.schedules, schedules)):
        for packed, ref in rows:
            if ref is not None:
                needed.append(Part(PageRef.unpack(ref)))
            else:
                times.load(ExpiryPage.unpack(packed))
    pages: list[SubjectPage] = []
    for row in subjects:
        pages.append(SubjectPage.unpack(row, pages[-1].last_seq if pages else 0))
    stream.subjects = tuple(pages)
    after = 0
    for row in ids:
        part_of_ids = IdPart.unpack(row, after)
        stream.ids.load(part_of_ids)
        after = part_of_ids.last_seq
    return stream, needed


def pack_whole(stream: StreamState) -> list[Any]:
    """Return an entry that names no page, for the shard to which the stream moves. Its ids must be in memory.

    Subject pages are left out: an owner makes new ones. Raises: ValueError: the stream has blocks in objects that it
    shares with others, or the entry would be too large.
    """
    table, size = [], 0
    for page in stream.blocks.pages:
        if any(True for _ in page.log_keys()) or any(not run[3] for run, _ in page.run_counts(stream.stream_id)):
            raise ValueError(f"stream {stream.name} shares objects with others")
        packed = page.pack()
        data, raw_bytes, _ = packed.body.pack()
        table.append([page.room, [raw_bytes, data], None, packed.summary])
        size += len(data) + len(packed.summary[-1]) * 24
    # The last of the sources are ids from before this release listed them; no part has sequence 0.
    parts = [replace(part, first_seq=max(part.first_seq, 1)) for part in reversed(stream.ids.sources(stream.last_seq))
             if part.last_seq]
    ids = [[*part.pack()[:-2], list(part.chunks) or None, None] for part in parts]
    size += sum(part.size for part in parts) + 24 * sum(
        consumer.weight for consumer in stream.consumers.values()) + 16 * (len(stream.expiries) + len(stream.schedules))
    if size > SECTION_BYTES_MAX // 4:
        raise ValueError(f"the state of stream {stream.name} has {size >> 20} MiB, and at most "
                         f"{SECTION_BYTES_MAX >> 22} MiB can move")
    return [stream.stream_id, stream.account, stream.name, stream.config, stream.created_ns, stream.first_seq,
            stream.last_seq, stream.msgs, stream.bytes, stream.first_time_ns, stream.last_time_ns, stream.ceiling,
            list(stream.position), stream.extra, table, [[one.pack(), None] for one in stream.consumers.values()],
            *([[page.pack(), None] for page in times.pages] for times in (stream.expiries, stream.schedules)), [], ids]


def check_entry(entry: Sequence[Any]) -> None:
    """Check the types and numbers of an entry; the parts are checked as they are loaded. Raises: ValueError."""
    if [*map(type, entry[:ENTRY_FIELDS])] != _ENTRY_TYPES:
        raise ValueError("an entry has other fields")
    stream_id, (first_seq, last_seq, msgs, size), ceiling = entry[0], entry[5:9], entry[11]
    if (not stream_id or min(stream_id, first_seq, msgs, size, ceiling) < 0 or first_seq > last_seq + 1
            or msgs > last_seq):
        raise ValueError("an entry's numbers are inconsistent")
    position_of(entry[12])


def kept(packed: Any) -> Kept:
    """Return an entry of a page, checked, in the form that a table has."""
    entry = BlockEntry.unpack(packed)
    return entry if entry.dead is not None else entry.ref.pack()


def position_of(packed: Sequence[int]) -> Position:
    """Return a packed position. Raises: ValueError or TypeError for anything else."""
    epoch, number = packed
    if type(epoch) is not int or type(number) is not int or not (0 <= epoch <= EPOCH_MAX and 0 <= number <= NUMBER_MAX):
        raise ValueError(f"{packed!r} is no position")
    return Position(epoch, number)
