"""Makes the pages with the subjects of streams, from the indexes of stored blocks, at the beginning of a round.

Owns the choice of messages that get a page, how pages are joined, and the limits of that work. Does not own the
contents of a page (subject_rows, state.subjects), its readers (the live stream), nor roots.

    blocks   │ b │ b │ b │ b │ b │ b │ b │ b │ b │ …       ┌ a block's subjects are in its index, a GET for each
    pages    │ 260 000 messages  │  60 000   │ none        └ these blocks get a page once there are ``blocks_min``

New messages are joined with the pages before them, as long as these have at most twice as many messages. So a message
is written about once for each doubling of its page, and a stream has few pages that are not full. A page is made
anew once half of its messages are dead, and dropped once all are.

Nothing depends on these pages: after an error, the next round makes them, and subjects without a page are read from the
blocks. So a round spends at most ``_SECONDS`` on them. It reads at most as many indexes as segments were put since the
last round, or ``_GETS_MIN`` if these are fewer.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_left
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING

from broker.storage.checkpoint.threads import in_thread
from broker.storage.format.errors import FormatError
from broker.storage.format.index import decode_index
from broker.storage.format.page import Page, PageKind
from broker.storage.format.subject_rows import SubjectRows, SubjectRowsWriter
from broker.storage.objectstore.base import NotFound, StoreError
from broker.storage.paths import block_key
from broker.storage.state.subjects import SubjectPage, decode_subjects

if TYPE_CHECKING:
    from broker.storage.checkpoint.erasing import Erasing
    from broker.storage.checkpoint.writer import CheckpointWriter
    from broker.storage.format.block import BlockRef
    from broker.storage.log.log import Log
    from broker.storage.paths import ShardPaths
    from broker.storage.state.stream import StreamState
    from broker.storage.state.table import BlockEntry

__all__ = ["SubjectPager", "SubjectSettings"]

_log = logging.getLogger(__name__)

_Index = tuple["BlockRef", str, bytes]
"""A block, the key of its object, and the bytes of its index."""

BLOCKS_MIN = 128
ROWS_MAX = 1 << 18

_SECONDS = 5
_GETS_MIN = 256
"""Indexes that may be read in a round, even if fewer segments were put."""
_AT_ONCE = 16
_BYTES_AT_ONCE = 8 << 20
_ROWS_AT_ONCE = 8192
"""Messages of blocks that are decoded in one call of a thread, or in one turn of the loop: about 3 ms."""
_BLOCKS_AT_ONCE = 1024
_STREAMS_AT_ONCE = 2048
"""Streams that are checked between two turns of the loop: about a millisecond."""
_SPANS_AT_ONCE = 4096
"""Ranges of dead messages that are collected in one turn of the loop: about 3 ms."""
_NAMES_BYTES_MAX = 8 << 20
"""Bytes of the subjects in a page."""
_PAGES_CHECKED = 8
"""Pages of a stream of which a round counts the live messages."""


class SubjectSettings:
    """Args: ``blocks_min``: with fewer blocks to read, a stream gets no page. ``rows_max``: messages in a page."""

    def __init__(self, *, blocks_min: int | None = None, rows_max: int | None = None, enabled: bool = True) -> None:
        self.blocks_min = BLOCKS_MIN if blocks_min is None else blocks_min
        self.rows_max = ROWS_MAX if rows_max is None else rows_max
        self.enabled = enabled


class SubjectPager:
    """The subject pages of one shard's streams."""

    def __init__(self, log: Log, paths: ShardPaths, settings: SubjectSettings,
                 writer: CheckpointWriter, *, threads: bool) -> None:
        self._log = log
        self._store = log.store
        self._paths = paths
        self._settings = settings
        self._writer = writer
        self._threads = threads
        self._rounds = 0
        self._unreadable: set[int] = set()
        """Streams with a damaged block. Their pages are not tried again before the next start."""

    async def update(self, segments: int) -> None:
        """Update pages of some streams; ``segments`` were persisted since the last call. Raises: Fenced; Corrupt."""
        blocks_min = self._settings.blocks_min
        if not self._settings.enabled:
            return
        state = self._log.state
        self._rounds += 1
        left = max(_GETS_MIN, segments)
        streams: list[StreamState] = []
        for at, stream in enumerate(list(state.streams.values()), 1):
            if (stream.dirty and not stream.restoring and stream.departed is None
                    and (stream.subjects or len(stream.blocks) >= blocks_min)
                    and stream.stream_id not in self._unreadable):
                streams.append(stream)
            if at % _STREAMS_AT_ONCE == 0:
                await asyncio.sleep(0)
        behind: list[tuple[int, StreamState]] = []
        try:
            async with asyncio.timeout(_SECONDS):
                for stream in streams:
                    self._drop_dead_pages(stream)
                    left -= await self._improve(stream)
                    if (count := self._behind(stream, left)) >= blocks_min:
                        behind.append((count, stream))
                    await asyncio.sleep(0)
                behind.sort(key=itemgetter(0))
                for at, (_, stream) in enumerate(behind):
                    if left < blocks_min:
                        break
                    # Large streams may use what the small ones did not need.
                    left -= await self._extend(stream, max(blocks_min, left // (len(behind) - at)))
        except (StoreError, TimeoutError) as error:
            _log.debug("pages of subjects are left for the next round: %r", error)

    async def erase(self, erasing: Erasing) -> None:
        """Make the pages anew that have erased messages, and those of the same streams beside them and in worn objects.
         Pages that cannot be made now are dropped. Raises: Fenced; Corrupt."""
        for stream_id, seqs in erasing.seqs.items():
            stream = self._log.state.streams.get(stream_id)
            if stream is None:
                continue
            self._drop_dead_pages(stream)
            stale = {page.place.position for page in stream.subjects
                     if page.place.position in erasing.worn or seqs.overlaps(page.first_seq, page.last_seq)}
            while (at := next((at for at, page in enumerate(stream.subjects) if page.place.position in stale),
                              None)) is not None:
                pages = stream.subjects
                with suppress(StoreError, TimeoutError):
                    async with asyncio.timeout(_SECONDS):
                        await self._make(stream, at, at + 1, [])
                if stream.subjects is pages:
                    stream.subjects = pages[:at]
                    stream.dirty = True

    def _drop_dead_pages(self, stream: StreamState) -> None:
        """Drop the pages that end before the stream's first message."""
        gone = 0
        while gone < len(stream.subjects) and stream.subjects[gone].last_seq < stream.first_seq:
            gone += 1
        if gone:
            stream.subjects = stream.subjects[gone:]

    def _behind(self, stream: StreamState, most: int) -> int:
        """Return how many of the first ``most`` blocks after the last page would have to be read for their subjects."""
        tracked = stream.config.get("max_msgs_per_subject", 0) > 0
        return sum(tracked or entry.dead is not None or entry.ref.subjects is None
                   for entry in islice(stream.blocks.since(_next(stream)), most))

    async def _extend(self, stream: StreamState, gets: int) -> int:
        """Make pages for the messages after the last page, of at most ``gets`` blocks. Returns: the number of objects
        read.

        Messages that arrive meanwhile are left for a later round: following a busy stream would put a page for every
        few blocks.
        """
        read, rows_max, last_seq = 0, self._settings.rows_max, stream.last_seq
        while read < gets:
            pages, begin = stream.subjects, _next(stream)
            entries: list[BlockEntry] = []
            count = 0
            for entry in islice(stream.blocks.since(begin), gets - read):
                if entry.first_seq > last_seq:
                    break
                if entries and count + entry.live_msgs > rows_max:
                    break  # put this page now: if time runs out, the pages that were put remain
                entries.append(entry)
                count += entry.live_msgs
            if not entries:
                break
            start = len(pages)
            while start and pages[start - 1].count <= min(2 * count, rows_max - count):
                start -= 1
                count += pages[start].count
            read += await self._make(stream, start, len(pages), entries)
            if _next(stream) <= begin:
                break
        return read

    async def _improve(self, stream: StreamState) -> int:
        """Drop pages without live messages, and make pages with few live messages anew, some in each round.

        Returns: the number of objects read.
        """
        pages = stream.subjects
        if not pages:
            return 0
        start = self._rounds % -(-len(pages) // _PAGES_CHECKED) * _PAGES_CHECKED
        live = [await _live(stream, page) for page in pages[start:start + _PAGES_CHECKED]]
        if stream.subjects is not pages:
            return 0
        worn = [at for at, (msgs, page) in enumerate(zip(live, pages[start:], strict=False), start)
                if 2 * msgs < page.count]
        if not worn:
            return 0
        begin, end = worn[0], worn[0] + 1
        count = live[begin - start]
        while end - start < len(live) and count + live[end - start] <= self._settings.rows_max // 2:
            count += live[end - start]
            end += 1
        if not count:
            stream.subjects = (*pages[:begin], *pages[end:])
            return 0
        return await self._make(stream, begin, end, [])

    async def _make(self, stream: StreamState, start: int, end: int, entries: Sequence[BlockEntry]) -> int:
        """Replace pages[start:end] by pages with their live messages and those of ``entries``, the blocks that follow.

        Returns: the number of objects read. If one of them cannot be read, nothing is changed.
        """
        pages, read = stream.subjects, 0
        first = pages[start].first_seq if start < end else pages[-1].last_seq + 1 if pages else entries[0].first_seq
        making = _Making(first, self._settings.rows_max)
        try:
            for page in pages[start:end]:
                rows = await self._rows_of(stream, page)
                if rows is None:
                    return read
                read += 1
                await in_thread(making.add_rows, rows, await _dead(stream, page.first_seq, page.last_seq),
                                threads=self._threads)
            async with aclosing(self._indexes(stream, entries)) as indexes:
                async for some in indexes:
                    read += len(some)
                    first, last = max(making.last_seq + 1, some[0][0].first_seq), some[-1][0].last_seq
                    await in_thread(making.add_indexes, some, await _dead(stream, first, last), threads=self._threads)
        except NotFound:
            return read  # the block left the stream, and its object the store
        except FormatError as error:
            _log.debug("stream %s/%s gets no more pages of subjects: %s", stream.account, stream.name, error)
            self._unreadable.add(stream.stream_id)
            return read
        except (StoreError, TimeoutError):
            raise
        except Exception:
            # Nothing depends on these pages, so no error here may stop the log.
            _log.exception("stream %s/%s gets no more pages of subjects", stream.account, stream.name)
            self._unreadable.add(stream.stream_id)
            return read
        made: list[SubjectPage] = []
        rows_of = await in_thread(making.end, threads=self._threads)
        if rows_of:
            state = self._log.state
            bodies = await in_thread(lambda: [rows.pack() for rows in rows_of], threads=self._threads)
            refs = await self._writer.put_pages([Page(PageKind.SUBJECTS, state.position, stream.stream_id, body)
                                                 for body in bodies])
            made = [SubjectPage(rows.first_seq, rows.last_seq, rows.count, ref)
                    for rows, ref in zip(rows_of, refs, strict=True)]
        if stream.subjects is pages:
            stream.subjects = (*pages[:start], *made, *pages[end:])
            stream.dirty = True
        return read

    async def _rows_of(self, stream: StreamState, page: SubjectPage) -> SubjectRows | None:
        """Return a page's rows. If the page is damaged or missing, drop it and those after it, to be made anew.

        Raises: StoreError.
        """
        ref, pages = page.place, stream.subjects
        try:
            data = await self._store.get(self._paths.pages(ref.position), ref.offset, ref.offset + ref.size)
            return await in_thread(decode_subjects, data, page, threads=self._threads)
        except (NotFound, FormatError) as error:
            _log.warning("a page with the subjects of stream %s/%s cannot be used, and is made anew: %s",
                         stream.account, stream.name, error)
            stream.subjects = pages[:pages.index(page)]
            stream.dirty = True
            return None

    async def _indexes(self, stream: StreamState, entries: Sequence[BlockEntry]) -> AsyncGenerator[list[_Index], None]:
        """Yield blocks with their indexes, in order, a few at a time. Raises: NotFound; StoreError."""
        at = 0
        while at < len(entries):
            end, size, rows = at, 0, 0
            while end < len(entries) and end - at < _AT_ONCE and (
                    end == at or (size + entries[end].ref.index_bytes <= _BYTES_AT_ONCE
                                  and rows + entries[end].ref.count <= _ROWS_AT_ONCE)):
                size += entries[end].ref.index_bytes
                rows += entries[end].ref.count
                end += 1
            refs = [entry.ref for entry in entries[at:end]]
            keys = [block_key(self._paths, stream.account, stream.name, ref) for ref in refs]
            found = await asyncio.gather(*[self._store.get(key, ref.index_offset, ref.index_offset + ref.index_bytes)
                                           for key, ref in zip(keys, refs, strict=True)])
            yield list(zip(refs, keys, found, strict=True))
            at = end


class _Making:
    """Pages for successive messages that are being made."""

    def __init__(self, first_seq: int, rows_max: int) -> None:
        self._rows_max = rows_max
        self._done: list[SubjectRows] = []
        self._writer = SubjectRowsWriter(first_seq)

    @property
    def last_seq(self) -> int:
        """The last sequence added."""
        return self._writer.last_seq

    def add_rows(self, rows: SubjectRows, dead: Sequence[tuple[int, int]]) -> None:
        self._writer.add_rows(rows, rows.first_seq, rows.last_seq, dead)
        self._cut()

    def add_indexes(self, indexes: Sequence[_Index], dead: Sequence[tuple[int, int]]) -> None:
        """Add the messages of blocks, except the ``dead`` ranges. Raises: FormatError."""
        for ref, key, data in indexes:
            head = decode_index(data, ref, key)
            first = max(ref.first_seq, self.last_seq + 1)
            at = bisect_left(dead, first, key=itemgetter(1))
            self._writer.add_head(head, first, ref.last_seq,
                                  dead[at:bisect_left(dead, ref.last_seq + 1, key=itemgetter(0))])
            self._cut()

    def _cut(self) -> None:
        if len(self._writer) >= self._rows_max or self._writer.names_bytes >= _NAMES_BYTES_MAX:
            self.end()

    def end(self) -> list[SubjectRows]:
        """Return all pages. What is added later makes another page."""
        if (rows := self._writer.rows()) is not None:
            self._done.append(rows)
            self._writer = SubjectRowsWriter(rows.last_seq + 1)
        return self._done


async def _dead(stream: StreamState, first: int, last: int) -> list[tuple[int, int]]:
    """Return the ranges of dead messages in first..last, ascending. They may include numbers that never were a message.

    Takes as many turns of the loop as needed. Between two turns messages may be removed, and blocks may be replaced:
    each turn begins with the block that has the next sequence by then.
    """
    dead: list[tuple[int, int]] = []
    at = first
    while at <= last:
        if at < stream.first_seq:
            dead.append((at, min(stream.first_seq - 1, last)))
            at = stream.first_seq
            continue
        most = len(dead) + _SPANS_AT_ONCE
        for seen, entry in enumerate(stream.blocks.since(at)):
            if seen == _BLOCKS_AT_ONCE or len(dead) > most:
                await asyncio.sleep(0)
                break
            if entry.first_seq > at:
                dead.append((at, min(entry.first_seq - 1, last)))
            if entry.first_seq > last:
                return dead
            if entry.dead is not None:
                dead += [(max(begin, at), end) for begin, end in entry.dead.seqs() if end >= at]
            at = max(at, entry.last_seq + 1)
        else:
            if at <= last:
                dead.append((at, last))
            return dead
    return dead


def _next(stream: StreamState) -> int:
    """Return the first sequence that is in no page."""
    return stream.subjects[-1].last_seq + 1 if stream.subjects else stream.first_seq


async def _live(stream: StreamState, page: SubjectPage) -> int:
    """Return about how many messages of a page are live, in as many turns of the loop as needed."""
    live, at = 0, max(page.first_seq, stream.first_seq)
    while at <= page.last_seq:
        for seen, entry in enumerate(stream.blocks.since(at)):
            if entry.first_seq > page.last_seq:
                return live
            if seen == _BLOCKS_AT_ONCE:
                break
            live += min(entry.live_msgs, min(entry.last_seq, page.last_seq) - max(entry.first_seq, at) + 1)
            at = entry.last_seq + 1
        else:
            return live
        await asyncio.sleep(0)
    return live
