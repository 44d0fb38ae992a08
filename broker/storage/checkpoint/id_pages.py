"""Joins the pages with message ids of streams, at the beginning of a round.

Owns which pages are read back, to be written again together with newer ids, and the limits of that work. Does not own
the contents of a page (id_rows, state.ids), nor what writes it (directory_pages).

    pages    │ 65 536 │ 65 536 │ 30 000 │ 9 000 │ new       the new ids are joined with pages of at most twice as many

So an id is written about once for each doubling of its page, and a stream has few pages that are not full. Nothing
depends on this: after an error, the next round joins the pages.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from broker.storage.checkpoint.threads import in_thread
from broker.storage.format.errors import FormatError
from broker.storage.objectstore.base import NotFound, StoreError
from broker.storage.read.ids import load_ids
from broker.storage.state import ids as state_ids
from broker.storage.state import pages as state_pages
from broker.storage.state.ids import WINDOW, IdPart, decode_ids

if TYPE_CHECKING:
    from broker.storage.checkpoint.erasing import Erasing
    from broker.storage.format.id_rows import IdRows
    from broker.storage.log.log import Log
    from broker.storage.paths import ShardPaths
    from broker.storage.state.stream import StreamState

__all__ = ["IdPager"]

_log = logging.getLogger(__name__)

_SECONDS = 5
_GETS_MAX = 64
"""Pages that a round reads."""
_IDS_MAX = 4 * state_ids.PART_IDS
"""Ids in these pages together: about 8 MiB."""
_STREAMS_AT_ONCE = 1024
"""Streams that are checked between two turns of the loop: about a millisecond."""


class IdPager:
    """The pages of ids of one shard's streams. ``threads``: pages are decoded in a thread."""

    def __init__(self, log: Log, paths: ShardPaths, *, threads: bool) -> None:
        self._log = log
        self._paths = paths
        self._threads = threads

    async def update(self) -> None:
        """Read back the pages that are to be joined with new ids. Raises: Fenced; Corrupt."""
        gets, left = _GETS_MAX, _IDS_MAX
        try:
            async with asyncio.timeout(_SECONDS):
                for at, stream in enumerate(list(self._log.state.streams.values()), 1):
                    if at % _STREAMS_AT_ONCE == 0:
                        await asyncio.sleep(0)
                    if not stream.dirty or not stream.ids or gets <= 0 or left <= 0:
                        continue
                    stream.ids.expire(stream.last_time_ns - stream.config.get(WINDOW, 0))
                    if run := _to_join(stream.ids.parts(), gets, left):
                        pages = [part for part in run if part.place is not None]
                        gets -= len(pages)
                        left -= sum(part.count for part in pages)
                        await self._join(stream, run)
        except (StoreError, TimeoutError) as error:
            _log.debug("pages of message ids are joined by the next round: %r", error)

    async def erase(self, erasing: Erasing) -> None:
        """Leave the ids of erased messages to the streams' blocks, and empty the objects that may have them.

        Ids of other messages in the same parts are then in blocks only, too; other pages in the same objects are
        loaded, so that the next round writes them. Raises: StoreError.
        """
        streams = self._log.state.streams
        gone = set(erasing.worn)
        for stream_id, seqs in erasing.seqs.items():
            stream = streams.get(stream_id)
            for part in list(stream.ids.parts()) if stream is not None else ():
                if not part.in_blocks and seqs.overlaps(part.first_seq, part.last_seq):
                    if part.place is not None:
                        gone.add(part.place.position)
                    if stream is not None and stream.ids.replace([part], part.lost()):
                        stream.dirty = True
        for at, stream in enumerate(list(streams.values()) if gone else (), 1):
            if at % _STREAMS_AT_ONCE == 0:
                await asyncio.sleep(0)
            for part in list(stream.ids.parts()):
                if part.place is not None and part.place.position in gone:
                    await load_ids(stream, part, self._log.store, self._paths)

    async def _join(self, stream: StreamState, run: Sequence[IdPart]) -> None:
        """Load all parts of ``run`` into memory as one part. If a page cannot be used, its ids are in blocks only."""
        limit_ns = stream.last_time_ns - stream.config.get(WINDOW, 0)
        chunks: list[bytes] = []
        first_seq = count = 0
        for part in run:
            packed: Sequence[bytes] = part.chunks
            rows: list[IdRows] = []
            if part.place is not None:
                try:
                    ref = part.place
                    data = await self._log.store.get(self._paths.pages(ref.position), ref.offset, ref.offset + ref.size)
                    packed, rows = await in_thread(decode_ids, part, data, threads=self._threads)
                except (NotFound, FormatError) as error:
                    if stream.ids.replace([part], part.lost()):
                        stream.dirty = True
                        _log.warning("a page with the message ids of stream %s/%s cannot be used: %s", stream.account,
                                     stream.name, error)
                    return
            gone = 0
            while not chunks and gone < len(rows) and rows[gone].times[-1] <= limit_ns:
                gone += 1
            if not chunks:
                first_seq = rows[gone].seqs[0] if gone < len(rows) else part.first_seq
            chunks += packed[gone:]
            count += part.count - sum(len(some.ids) for some in rows[:gone])
        if chunks:
            last = run[-1]
            one = IdPart(first_seq, last.last_seq, last.last_time_ns, count, sum(map(len, chunks)), tuple(chunks))
            stream.dirty = stream.ids.replace(run, one) or stream.dirty


def _to_join(parts: Sequence[IdPart], gets: int, most: int) -> Sequence[IdPart]:
    """Return the part in memory at the end of ``parts``, and before it the pages to join with it.

    Args: ``gets`` is the most pages, ``most`` the most ids in all. Returns: empty if the part in memory is too small
        for a page, or there is no page to join.
    """
    start = len(parts)
    while start and parts[start - 1].chunks:
        start -= 1
    memory = parts[start:]
    if len(memory) != 1 or memory[0].size <= state_pages.INLINE_IDS_BYTES_MAX:
        return ()
    count, end = memory[0].count, start
    while (start and parts[start - 1].place is not None and parts[start - 1].count <= 2 * count and end - start < gets
           and count + parts[start - 1].count <= min(state_ids.PART_IDS, most)):
        start -= 1
        count += parts[start].count
    return parts[start:] if start < end else ()
