"""Reads staged runs for the shard's owner, checks every byte, and collects the facts that a stream needs of the
messages.

Frames stay unchanged in their objects. All are compared with their checksums. Those of messages with headers are also
decoded, since a reader's library has to parse the headers.
"""

from __future__ import annotations

import asyncio
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat
from operator import ge, gt
from typing import Any, Final, NamedTuple

from broker.storage.format.agreement import check_agreement
from broker.storage.format.block import BlockCore, BlockPlace, BlockRef
from broker.storage.format.errors import FormatError
from broker.storage.format.frames import HEADERS_TOO_LONG, LENGTHS_DIFFER, check_frame, decode_frame
from broker.storage.format.header import ObjectKind
from broker.storage.format.index import Head, decode_index
from broker.storage.format.message_size import HEADERS_BYTES, ROW_BYTES
from broker.storage.format.records.message_ids import MessageIds
from broker.storage.format.request import BLOCK_MESSAGES_MAX, Acting, Request, StagedRun, excess
from broker.storage.format.segment import HEAD_BYTES, SegmentHead, decode_head
from broker.storage.objectstore.base import NotFound, ObjectStore
from broker.storage.paths import StreamPaths
from broker.storage.staging.acting import ACTING_MAX, ActingMessage, acting_messages
from broker.storage.staging.headers import first_flaw
from broker.storage.staging.read_ahead import ReadAhead, RunSource
from broker.storage.staging.subjects import is_stageable
from broker.storage.staging.times import StagedTimes, times_below

__all__ = ["ANY_SUBJECT", "SUBJECTS_MAX", "Ids", "InThread", "NotAdoptable", "RulesChanged", "Staged", "StagedBlock",
           "SubjectRules", "read_staged"]

SUBJECTS_MAX: Final = 1 << 20
"""The most subjects of one request whose messages are counted by subject: they are in memory together."""

ID_BYTES: Final = 140
"""The bytes that a duplicate window counts for an id besides the id itself."""

_READ_BYTES: Final = 8 << 20
_FREED_AT_ONCE: Final = 4096
_LARGE: Final = 16 << 20


InThread = Callable[..., Awaitable[Any]]
"""in_thread(fn, *args) calls a function that may take milliseconds, and returns its result."""


class NotAdoptable(Exception):
    """The request cannot be granted, now or later."""


class RulesChanged(Exception):
    """The stream's rules for subjects changed while the request was read: read it again."""


class SubjectRules(NamedTuple):
    """The rules of a stream for the subjects of its messages, in one configuration.

    Attributes: ``patterns`` are the stream's subjects; ``accepts(subject)`` returns whether one of them matches, in any
        thread; ``counted``: the messages of each subject are counted, because the stream limits them.
    """

    patterns: tuple[bytes, ...]
    accepts: Callable[[bytes], bool]
    counted: bool

    def agree(self, other: SubjectRules) -> bool:
        """Return whether messages that were checked by these rules need not be checked by the other ones."""
        return self.patterns == other.patterns and (self.counted or not other.counted)


ANY_SUBJECT: Final = SubjectRules((b">",), lambda subject: True, counted=True)


class Ids(NamedTuple):
    """The messages of a block that have ids, as columns: there may be a million.

    ``ordinals`` are their places in the block, ``times`` those of their writer, ``sizes`` those in the stream's bytes,
    and ``subjects`` indexes into ``names``, which is empty if no message has an id: all blocks of a request are in
    memory together, and may have millions of names.
    """

    ordinals: Sequence[int]
    ids: Sequence[bytes]
    times: Sequence[int]
    sizes: Sequence[int]
    subjects: Sequence[int]
    names: Sequence[bytes]

    def subject(self, at: int) -> bytes:
        """Return the subject of message ``at`` of these."""
        return self.names[self.subjects[at]]

    def within(self, start: int, count: int) -> list[bytes]:
        """Return the id of each of ``count`` messages of the block, b"" for a message without id."""
        found, ordinals = [b""] * count, self.ordinals
        for at in range(bisect_left(ordinals, start), bisect_left(ordinals, start + count)):
            found[ordinals[at] - start] = self.ids[at]
        return found


class _Frame(NamedTuple):
    """Frame ``number`` of block ``block`` of the request: its ``offset`` in the object and its stored ``size``.
    ``ids`` are those of the block, None if its messages have neither headers nor ids."""

    offset: int
    size: int
    head: Head
    number: int
    ids: Ids | None
    block: int


class StagedBlock(NamedTuple):
    """A block of a staged run. ``ref`` counts sequences from 1.

    ``read_head()`` reads the index again; it raises StoreError or FormatError.
    """

    ref: BlockRef
    ids: Ids
    read_head: Callable[[], Awaitable[Head]]


@dataclass(slots=True)
class Staged:
    """The contents of the runs of one request. ``*_max`` is the largest of all messages, as a stream's limits count.

    ``subjects`` has the number of messages of each subject if ``rules`` count them. Otherwise there may be millions of
    subjects, and none is kept.
    """

    blocks: list[StagedBlock] = field(default_factory=list)
    rules: SubjectRules = ANY_SUBJECT
    subjects: Counter[bytes] = field(default_factory=Counter)
    messages: int = 0
    size_bytes: int = 0
    body_bytes_max: int = 0
    header_bytes_max: int = 0
    size_max: int = 0
    """The size of the largest message; for small messages an upper bound."""
    ids_bytes: int = 0
    times: StagedTimes = field(default_factory=StagedTimes)
    acting: list[ActingMessage] | None = None
    """The messages with headers that the stream acts upon, in order; None if the request does not ask for that."""

    async def free(self) -> None:
        """Forget blocks and subjects, some in each turn of the loop: a million of these take tens of milliseconds."""
        while self.blocks:
            self.blocks.pop()
            await asyncio.sleep(0)
        while self.subjects:
            for _ in range(min(len(self.subjects), _FREED_AT_ONCE)):
                self.subjects.popitem()
            await asyncio.sleep(0)


async def read_staged(store: ObjectStore, request: Request, *, ids_bytes_max: int, rules: SubjectRules = ANY_SUBJECT,
                      in_thread: InThread = asyncio.to_thread) -> Staged:
    """Read and check all runs of ``request``. Raises: NotAdoptable; StoreError."""
    runs = request.runs
    if not runs:
        raise NotAdoptable("it has no runs")
    if (why := excess(runs)) is not None:
        raise NotAdoptable(why)
    if len({run[:2] for run in runs}) < len(runs):
        raise NotAdoptable("it names a run twice")
    staged = Staged(rules=rules, acting=[] if request.acting == Acting.APPLY else None)
    ahead = ReadAhead(store, StreamPaths(request.account, request.stream, request.stream_id), runs)
    try:
        for number, run in enumerate(runs):
            key = ahead.key(number)
            try:
                await _read_run(await ahead.open(number), key, run, request.stream_id, staged, ids_bytes_max, in_thread)
            except NotFound:
                raise NotAdoptable(f"{key} is not there") from None
            except FormatError as error:
                raise NotAdoptable(f"{key} is damaged, or no staged run: {error}") from None
    finally:
        await ahead.close()
    return staged


async def _read_run(source: RunSource, key: str, run: StagedRun, stream_id: int, staged: Staged, ids_bytes_max: int,
                    in_thread: InThread) -> None:
    """Read and check one run. Raises: NotAdoptable; NotFound; StoreError; FormatError."""
    head = await _head(source, run)
    if len(head.rows) != run.blocks or head.header.size != run.size or any(
            row.stream_id != stream_id or not row.messages for row in head.rows) or sum(
            row.messages for row in head.rows) != run.messages:
        raise NotAdoptable(f"{key} does not match the request")
    if any(row.messages > BLOCK_MESSAGES_MAX for row in head.rows):
        raise NotAdoptable(f"{key} has a block of more than {BLOCK_MESSAGES_MAX} messages")
    frames: list[_Frame] = []
    for i, row in enumerate(head.rows):
        core = await in_thread(_core, head, i)
        ref = row.ref(BlockPlace.STAGED, core)
        if not core.staged or core.removed or any(record.kind != MessageIds.KIND for record in core.records):
            raise NotAdoptable(f"{key} has a block that is no staged one")
        data = await source.get(ref.index_offset, ref.index_offset + ref.index_bytes)
        read_head = partial(_read_head, source.store, key, ref, in_thread)
        frames += await in_thread(_gather, staged, key, ref, core, data, read_head)
        if staged.ids_bytes > ids_bytes_max:
            raise NotAdoptable("it has more message ids than the stream's duplicate window can hold: "
                               "make several requests of it, or leave the ids out")
        *full, frames = _spans(frames)  # check all but the last now, so that only some blocks' indexes are in memory
        for span in full:
            await _check_span(source, key, run.size, span, staged.acting, in_thread)
    await _check_span(source, key, run.size, frames, staged.acting, in_thread)


async def _check_span(source: RunSource, key: str, size: int, span: Sequence[_Frame],
                      acting: list[ActingMessage] | None, in_thread: InThread) -> None:
    """Read and check successive frames. Raises: NotAdoptable; NotFound; StoreError; FormatError."""
    if span:
        start, end = span[0].offset, span[-1].offset + span[-1].size
        # Read one byte more: an object that is too long has been changed too.
        data = await source.get(start, end + 1 if end == size else end)
        await in_thread(_check_frames, key, data, start, end, span, acting)


async def _head(source: RunSource, run: StagedRun) -> SegmentHead:
    asked = HEAD_BYTES
    while True:
        data = await source.get(0, asked)
        found = decode_head(data, run.position, kind=ObjectKind.RUN, object_id=run.run_id, complete=len(data) < asked)
        if isinstance(found, SegmentHead):
            return found
        asked = found


def _core(head: SegmentHead, i: int) -> BlockCore:
    """Decode a core in a thread: it may have a hundred thousand message ids. Raises: FormatError."""
    return head.core(i, everything=True)


def _gather(staged: Staged, key: str, ref: BlockRef, core: BlockCore, data: bytes,
            read_head: Callable[[], Awaitable[Head]]) -> list[_Frame]:
    """Check the index of a block in a thread, and add the block to ``staged``. Returns: its frames.

    Raises: NotAdoptable; FormatError.
    """
    head = decode_index(data, ref, key)
    check_agreement(core, head, key, ref.core_offset)
    _check_lengths(head, key)
    if not 0 <= ref.first_time_ns <= ref.last_time_ns:
        raise NotAdoptable(f"{key} has times that descend, or are negative")
    if not all(map(is_stageable, head.subjects)):
        subject = next(subject for subject in head.subjects if not is_stageable(subject))
        raise NotAdoptable(f"{key} has the subject {subject[:80]!r}, which no message can have")
    if not all(map(staged.rules.accepts, head.subjects)):
        subject = next(subject for subject in head.subjects if not staged.rules.accepts(subject))
        raise NotAdoptable(f"subject {subject.decode('utf-8', 'replace')!r} is not one of the stream's")
    if staged.rules.counted:
        staged.subjects.update(dict(zip(head.subjects, head.subject_counts, strict=True)))
        if len(staged.subjects) > SUBJECTS_MAX:
            raise NotAdoptable(f"it has more than {SUBJECTS_MAX} subjects, and the stream limits the messages of each: "
                               f"make several requests of it")
    staged.messages += ref.count
    staged.size_bytes += ref.bytes
    staged.body_bytes_max = max(staged.body_bytes_max,
                                head.body_len if head.body_lens is None else max(head.body_lens))
    staged.header_bytes_max = max(staged.header_bytes_max, head.hlen if head.hlens is None else max(head.hlens))
    exact = staged.body_bytes_max > _LARGE
    staged.size_max = max(staged.size_max, max(map(head.size_of, range(head.count))) if exact else
                          staged.body_bytes_max + max(map(len, head.subjects)) + ROW_BYTES + HEADERS_BYTES)
    ids = _ids(head, core)
    staged.ids_bytes += sum(map(len, ids.ids)) + ID_BYTES * len(ids.ids)
    staged.blocks.append(StagedBlock(ref, ids, read_head))
    staged.times.add(ref, head, partial(_count_below, ref, read_head))
    has_headers = bool(head.hlen if head.hlens is None else any(head.hlens))
    wanted = ids if has_headers or ids.ids else None
    return [_Frame(ref.frames_offset + frame.offset, frame.stored_bytes, head, number, wanted, len(staged.blocks) - 1)
            for number, frame in enumerate(head.frames)]


async def _read_head(store: ObjectStore, key: str, ref: BlockRef, in_thread: InThread) -> Head:
    """Read the index of a block again. Raises: StoreError; FormatError."""
    data = await store.get(key, ref.index_offset, ref.index_offset + ref.index_bytes)
    head: Head = await in_thread(decode_index, data, ref, key)
    return head


async def _count_below(ref: BlockRef, read_head: Callable[[], Awaitable[Head]], time_ns: int) -> int:
    """Return the number of messages of a block with times below ``time_ns``. Raises: StoreError; FormatError."""
    return times_below(ref, await read_head(), time_ns)


def _check_lengths(head: Head, key: str) -> None:
    """Check that the messages of each frame are together as long as the frame. Raises: NotAdoptable."""
    lens, hlens = head.body_lens, head.hlens
    for frame in head.frames:
        size = head.body_len * frame.messages if lens is None else sum(lens[frame.start:frame.start + frame.messages])
        if size != frame.raw_bytes:
            raise NotAdoptable(f"{key} has a frame of which {LENGTHS_DIFFER}")
    if any(map(gt, repeat(head.hlen, head.count) if hlens is None else hlens,
               repeat(head.body_len) if lens is None else lens)):
        raise NotAdoptable(f"{key}: {HEADERS_TOO_LONG}")


def _ids(head: Head, core: BlockCore) -> Ids:
    ordinals: tuple[int, ...] = ()
    ids: tuple[bytes, ...] = ()
    for record in core.records:
        listed = MessageIds.decode(record.body)
        ordinals, ids = (*ordinals, *listed.ordinals), (*ids, *listed.ids)
    if ordinals and (ordinals[0] < 0 or ordinals[-1] >= head.count or any(map(ge, ordinals, ordinals[1:]))
                     or not all(ids)):
        raise NotAdoptable("its message ids are empty, or not in order")
    subjects = [0] * len(ids) if head.subject_ids is None else [head.subject_ids[at] for at in ordinals]
    return Ids(array("I", ordinals), ids, array("q", map(head.time_of, ordinals)),
               array("I", map(head.size_of, ordinals)),
               array("I", subjects), tuple(head.subjects) if ids else ())


def _spans(frames: Sequence[_Frame]) -> list[list[_Frame]]:
    """Divide frames into groups of successive frames that are read together; the last group may get more frames."""
    spans: list[list[_Frame]] = [[]]
    for frame in frames:
        if spans[-1] and frame.offset + frame.size - spans[-1][0].offset > _READ_BYTES:
            spans.append([])
        spans[-1].append(frame)
    return spans


def _check_frames(key: str, data: bytes, start: int, end: int, span: Sequence[_Frame],
                  acting: list[ActingMessage] | None) -> None:
    """Check the frames in ``data``, in a thread, and add their acting messages to ``acting``.

    Raises: NotAdoptable; FormatError.
    """
    view = memoryview(data)
    if len(data) != end - start:
        raise NotAdoptable(f"{key} is damaged: its length is not that in its header")
    for frame in span:
        stored = view[frame.offset - start:frame.offset - start + frame.size]
        check_frame(frame.head, frame.number, stored, key)
        if frame.ids is None:
            continue
        ids, chunk = frame.ids, decode_frame(frame.head, frame.number, stored, key)
        count = len(chunk.bodies)
        hlens = chunk.hlens or [0] * count
        found = first_flaw(hlens, chunk.bodies, ids.within(chunk.start, count), acting=acting is not None)
        if found is not None:
            at, why = found
            raise NotAdoptable(f"{key} has a message that cannot be staged, number {chunk.start + at + 1} of its "
                               f"block, subject {chunk.subjects[at].decode('utf-8', 'replace')[:80]!r}: {why}")
        if acting is not None:
            acting += acting_messages(frame.block, chunk)
            if len(acting) > ACTING_MAX:
                raise NotAdoptable(f"it has more than {ACTING_MAX} messages with headers that the stream acts upon: "
                                   f"make several requests of it")
