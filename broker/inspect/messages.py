"""Read a stream's messages from the store, without a broker or while one runs.

    state (newest checkpoint and the log after it) ── its blocks in order ── index, then the wanted frames

The messages are those of the state when reading began. If a block's object is deleted meanwhile, a newer state is read.
Blocks are read ahead, bounded in bytes.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from broker.inspect.problems import RESTORE, Problem, of_error
from broker.inspect.shardview import NoStream, ShardView, find_stream, key_of
from broker.inspect.source import Source, each
from broker.inspect.survey import cannot_be_read
from broker.protocol.subject import is_literal, matches
from broker.storage.format.errors import FormatError
from broker.storage.format.frame import Chunk
from broker.storage.format.frames import decode_frame
from broker.storage.format.index import Head, decode_index
from broker.storage.format.subject_filter import may_hold, pattern_hash
from broker.storage.objectstore import NotFound, ObjectStore
from broker.storage.paths import ShardPaths
from broker.storage.state.stream import StreamState
from broker.storage.state.table import BlockEntry

__all__ = ["Message", "Missing", "read_messages"]

_AHEAD_BYTES = 64 << 20
_GET_BYTES = 1 << 20
_TOGETHER_BYTES = 256 << 10
"""An index and frames within this span are read in one get."""


class Message(NamedTuple):
    """A stored message. headers: the whole header block, b"" for none. time_ns: Unix UTC."""

    seq: int
    subject: bytes
    headers: bytes
    data: bytes
    time_ns: int


class Missing(Exception):
    """An object with live messages is missing; ``problem`` names it."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(f"{problem}: {problem.means}")
        self.problem = problem


class Wanted(NamedTuple):
    """The messages from ``first_seq`` on whose subject matches the pattern ``subject``, at most ``limit``."""

    first_seq: int
    subject: bytes | None
    limit: int | None

    def may_be_in(self, entry: BlockEntry) -> bool:
        """Return True if the block may have a wanted message."""
        if entry.ref.last_seq < self.first_seq:
            return False
        if self.subject is None:
            return True
        rows, known = entry.ref.subjects, entry.ref.subject_filter
        if rows is not None:
            return any(matches(self.subject, row[0]) for row in rows)
        wanted = pattern_hash(self.subject) if known is not None else None
        return known is None or wanted is None or may_hold(known, (wanted,))


async def read_messages(store: ObjectStore | Source, stream: str, *, account: str | None = None,
                        shard: int | None = None, first_seq: int = 1, limit: int | None = None,
                        subject: bytes | None = None, view: tuple[ShardView, StreamState] | None = None,
                        faults: Callable[[Problem], object] | None = None) -> AsyncGenerator[Message, None]:
    """Yield the live messages of a stream, in sequence order.

    Args: stream is its name, ``ACCOUNT/NAME`` or incarnation. shard None: all are searched. subject: a pattern. view:
        the result of ``find_stream``, if already called. faults is called with each damaged or missing part, and
        reading continues; without it the first one is raised.
    Raises: NoStream; StoreError; if ``faults`` is None, also Corrupt, VersionUnknown or Missing, which name the object.
    """
    source = store if isinstance(store, Source) else Source(store)
    shard_view, state = view or await find_stream(source, stream, account, shard=shard)
    left = limit
    missing: str | None = None
    while True:
        wanted = Wanted(max(first_seq, state.first_seq), subject, left)
        moved: str | None = None
        loads = each((entry for entry in state.blocks if wanted.may_be_in(entry)),
                     _loader(source, shard_view.paths, state, wanted), source.at_once,
                     weight=lambda entry: entry.ref.bytes, weight_max=_AHEAD_BYTES, gently=limit is not None)
        try:
            async for entry, block in loads:
                key = key_of(shard_view.paths, state, entry.ref)
                if block.gone:
                    if key != missing:
                        moved = key
                        break
                    gone = Problem(key, "it is missing, and it holds live messages", cannot_be_read(
                        state, max(wanted.first_seq, entry.ref.first_seq), entry.ref.last_seq), RESTORE)
                    if faults is None:
                        raise Missing(gone)
                    faults(gone)
                for message in block.messages(entry, wanted):
                    if left is not None:
                        if left <= 0:
                            return
                        left -= 1
                    yield message
                for error, first, last in block.errors:
                    if faults is None:
                        raise error
                    faults(of_error(key, error, cannot_be_read(state, max(wanted.first_seq, first), last)))
                first_seq = entry.ref.last_seq + 1
                if left is not None and left <= 0:
                    return
        finally:
            await loads.aclose()
        if moved is None:
            return
        missing = moved
        try:
            shard_view, state = await find_stream(source, f"{state.stream_id:016x}", state.account)
        except NoStream:
            return  # the stream was deleted meanwhile


@dataclass(slots=True)
class _Block:
    """The loaded part of one block. ``errors`` has the first and last sequence that each error affects."""

    gone: bool = False
    chunks: list[Chunk] = field(default_factory=list)
    errors: list[tuple[FormatError, int, int]] = field(default_factory=list)

    def messages(self, entry: BlockEntry, wanted: Wanted) -> Iterator[Message]:
        subject, first_seq = wanted.subject, wanted.first_seq
        for chunk in self.chunks:
            for i, body in enumerate(chunk.bodies):
                seq = chunk.seq(i)
                if seq < first_seq or entry.is_dead(seq):
                    continue
                if subject is not None and not matches(subject, chunk.subjects[i]):
                    continue
                hlen = chunk.hlens[i] if chunk.hlens is not None else 0
                yield Message(seq, chunk.subjects[i], body[:hlen], body[hlen:], chunk.times[i])


def _loader(source: Source, paths: ShardPaths, stream: StreamState, wanted: Wanted
            ) -> Callable[[BlockEntry], Awaitable[_Block]]:
    async def load(entry: BlockEntry) -> _Block:
        ref = entry.ref
        key = key_of(paths, stream, ref)
        block = _Block()
        try:
            end = ref.index_offset + ref.index_bytes
            last = ref.frames_offset + ref.frames_bytes
            together = ref.frames_bytes and last - ref.index_offset <= _TOGETHER_BYTES
            data = await source.get(key, ref.index_offset, last if together else end)
            head = decode_index(data[:ref.index_bytes], ref, key)
            frames = [number for number in range(len(head.frames)) if _needed(head, number, wanted)]
            if together:
                at = ref.frames_offset - ref.index_offset
                _decode(key, head, frames, data[at:], 0, entry, wanted, block)
                return block
            while frames and not _enough(block, entry, wanted):
                some = [frames.pop(0)]
                start = head.frames[some[0]].offset
                stop = start + head.frames[some[0]].stored_bytes
                while frames and head.frames[frames[0]].offset == stop and (
                        stop + head.frames[frames[0]].stored_bytes - start <= _GET_BYTES):
                    some.append(frames.pop(0))
                    stop += head.frames[some[-1]].stored_bytes
                data = await source.get(key, ref.frames_offset + start, ref.frames_offset + stop)
                _decode(key, head, some, data, start, entry, wanted, block)
        except NotFound:
            block.gone = True
            block.chunks.clear()
            block.errors.clear()
        except FormatError as error:
            block.errors.append((error, ref.first_seq, ref.last_seq))
        return block
    return load


def _decode(key: str, head: Head, numbers: list[int], data: bytes, base: int, entry: BlockEntry, wanted: Wanted,
            block: _Block) -> None:
    """Decode frames from ``data``, which begins at ``base`` within the block's frames."""
    for number in numbers:
        frame = head.frames[number]
        at = frame.offset - base
        try:
            block.chunks.append(decode_frame(head, number, data[at:at + frame.stored_bytes], key))
        except FormatError as error:
            first, last = head.seq_of(frame.start), head.seq_of(frame.start + frame.messages - 1)
            block.errors.append((error, first, last))
        if _enough(block, entry, wanted):
            return


def _enough(block: _Block, entry: BlockEntry, wanted: Wanted) -> bool:
    """Return True if this block alone has as many messages as the limit allows."""
    if wanted.limit is None or sum(map(len, block.chunks)) < wanted.limit:
        return False
    return sum(1 for _ in block.messages(entry, wanted)) >= wanted.limit


def _needed(head: Head, number: int, wanted: Wanted) -> bool:
    """Return True if a frame may have a wanted message."""
    frame = head.frames[number]
    end = frame.start + frame.messages
    start = max(frame.start, head.ordinal_of(wanted.first_seq))
    if start >= end:
        return False
    pattern, ids = wanted.subject, head.subject_ids
    if pattern is None:
        return True
    if ids is None:
        return matches(pattern, head.subjects[0])
    if is_literal(pattern):
        one = head.subject_id(pattern)
        return one is not None and head.subject_firsts[one] < end and head.subject_lasts[one] >= start
    return any(matches(pattern, head.subjects[i]) for i in set(ids[start:end]))
