"""Writes, in a round, the directory pages whose streams changed, and the pages that they name.

Owns the assignment of streams to directory pages, the choice of pages to write, and the order of their objects. Does
not own the contents of a page (``state.pages``), how pages of subjects and message ids are made and joined
(``subject_pages``, ``id_pages``), nor roots (``checkpointer``).

    parts of streams    BLOCKS, CONSUMERS, EXPIRY and SCHEDULE pages, all in one object
    message ids         DEDUPE pages, in objects of at most ``_IDS_BYTES_MAX``
    directory pages     all in one object; they name the pages above, and those that subject_pages put before

A page is written again only once something in it changed, so the pages of a root are in objects of many rounds. If a
root names too many objects, the next round also writes the unchanged pages in the oldest ones.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from broker.storage.checkpoint.writer import CheckpointWriter
from broker.storage.format.header import Position
from broker.storage.format.page import Page, PageRef
from broker.storage.log.log import Log
from broker.storage.state.names import pack_names
from broker.storage.state.pages import DIRECTORY_STREAMS, StreamCopy, directory_page
from broker.storage.state.stream import StreamState

__all__ = ["Directory", "DirectoryPager"]

_log = logging.getLogger(__name__)

_PAGE_OBJECTS_MAX = 32
"""Objects that a root may name: if there are more, a round rewrites the pages in the oldest ones."""
_TURN_WEIGHT = 2_000
"""The weight of the streams copied between two turns of the loop, about in microseconds (``StreamCopy.weight``)."""
_PART_WEIGHT = 1_000
"""The weight of a part of a stream that has a page of its own: at most 1024 blocks, or 4096 expiry times."""
_STREAMS_AT_ONCE = 4096
"""Streams that are checked, but not copied, between two turns of the loop."""
_PARTS_PLACED_AT_ONCE = 4
"""Pages whose blocks are freed, once they are packed, between two turns of the loop: about a millisecond."""
_IDS_PLACED_AT_ONCE = 256
_IDS_BYTES_MAX = 16 << 20
"""Message ids in one object of pages, in bytes."""

_NewPage = tuple[Page, Callable[[PageRef], None]]
"""A page to put, and the function to call with its place."""


class Directory(NamedTuple):
    """The directory pages of a root, by number."""

    pages: dict[int, PageRef]
    members: dict[int, frozenset[int]]
    """The ids of the streams in each page."""
    names: dict[int, bytes]
    """The packed names of the streams in each page; those of earlier releases' pages are missing."""
    objects: frozenset[Position]
    """All page objects that the root needs."""


class DirectoryPager:
    """The directory pages of one shard."""

    def __init__(self, log: Log, writer: CheckpointWriter) -> None:
        self.newest = Directory({}, {}, {}, frozenset())
        """The directory of the newest root. The checkpointer replaces it once it has put the next root."""
        self._log = log
        self._writer = writer

    async def write(self, *, anew: bool) -> Directory:
        """Put the pages that must differ from those of the newest root. Returns: the directory for the next root.

        ``anew``: write all pages, except those of subjects and ids.
        Raises: Fenced; Corrupt.
        """
        moved = _always if anew else await self._moving()
        changed, unchanged = await self._find_changed(moved)
        pages, members, names, _ = unchanged
        objects = set(unchanged.objects)
        copied = await self._copy(changed, moved)
        await self._put_ids([copy for _, copies in copied.values() for copy in copies])
        written: list[Page] = []
        for number, (position, copies) in copied.items():
            written.append(directory_page(position, number, copies))
            members[number] = frozenset(copy.stream.stream_id for copy in copies)
            names[number] = pack_names((copy.stream.account, copy.stream.name) for copy in copies)
            for copy in copies:
                objects |= copy.objects()
            await asyncio.sleep(0)
        if written:
            pages.update(zip(copied, await self._writer.put_pages(written), strict=True))
        _log.debug("%d directory pages written", len(written))
        written.clear()
        while copied:  # freed one by one: there may be a million lists in them
            copied.popitem()
            await asyncio.sleep(0)
        objects.update(ref.position for ref in pages.values())
        return Directory(pages, members, names, frozenset(objects))

    async def _find_changed(self, moved: Callable[[PageRef], bool]) -> tuple[dict[int, list[StreamState]], Directory]:
        """Return the directory pages to write, with their streams, and a directory of the other pages; its objects are
        those with parts of the streams in these pages.

        Runs in several turns of the loop, but handles a whole page in one: the streams of a page that is not written
        have exactly the parts that the page names. Later changes are after the round's beginning, so a replay applies
        them.
        """
        newest = self.newest
        changed: dict[int, list[StreamState]] = {}
        pages: dict[int, PageRef] = {}
        members: dict[int, frozenset[int]] = {}
        objects: set[Position] = set()
        checked = 0
        for number, streams in sorted((await self._assign()).items()):
            checked += sum(1 + len(stream.blocks.pages) for stream in streams)
            if checked >= _STREAMS_AT_ONCE:
                checked = 0
                await asyncio.sleep(0)
            ids = frozenset(stream.stream_id for stream in streams)
            ref = newest.pages.get(number)
            places = [place for stream in streams for place in _places(stream)]
            if (ref is None or moved(ref) or ids != newest.members.get(number)
                    or any(stream.dirty for stream in streams) or any(map(moved, places))):
                changed[number] = streams
            else:
                pages[number], members[number] = ref, ids
                objects.update(place.position for place in places)
                objects.update(page.place.position for stream in streams for page in stream.subjects)
                objects.update(place.position for stream in streams for place in stream.ids.places)
        names = {number: packed for number, packed in newest.names.items() if number in members}
        return changed, Directory(pages, members, names, frozenset(objects))

    async def _assign(self) -> dict[int, list[StreamState]]:
        """Give each new stream a directory page with room for it. Returns: the streams of each page."""
        pages: dict[int, list[StreamState]] = {}
        unassigned: list[StreamState] = []
        for i, stream in enumerate(list(self._log.state.streams.values()), 1):
            if stream.page < 0:
                unassigned.append(stream)
            else:
                pages.setdefault(stream.page, []).append(stream)
            if i % _STREAMS_AT_ONCE == 0:
                await asyncio.sleep(0)
        number = 0
        for i, stream in enumerate(unassigned, 1):
            if i % _STREAMS_AT_ONCE == 0:
                await asyncio.sleep(0)
            while len(pages.setdefault(number, [])) >= DIRECTORY_STREAMS:
                number += 1
            stream.page = number
            pages[number].append(stream)
        return pages

    async def _copy(self, changed: Mapping[int, list[StreamState]], moved: Callable[[PageRef], bool],
                    ) -> dict[int, tuple[Position, list[StreamCopy]]]:
        """Copy the streams of pages, and put the parts of these streams that have pages of their own.

        Returns: the position and the copied streams of each page. Each stream's entry has a position of its own, which
        is not after the page's.
        """
        state = self._log.state
        copied: dict[int, tuple[Position, list[StreamCopy]]] = {}
        parts: list[_NewPage] = []
        weight = 0
        for number, streams in changed.items():
            copies: list[StreamCopy] = []
            for stream in streams:
                if state.streams.get(stream.stream_id) is not stream:
                    continue  # it was deleted meanwhile
                copy = StreamCopy(stream, codec=self._log.settings.codec)
                copies.append(copy)
                weight += copy.weight
                for part in copy.parts(lambda: state.position, moved):
                    if part is not None:
                        parts.append(part)
                    weight += _PART_WEIGHT
                    if weight >= _TURN_WEIGHT:
                        weight = 0
                        await asyncio.sleep(0)
                if weight >= _TURN_WEIGHT:
                    weight = 0
                    await asyncio.sleep(0)
            copied[number] = state.position, copies
        if parts:
            await self._put_and_place(parts, _PARTS_PLACED_AT_ONCE)
        _log.debug("%d parts of streams written", len(parts))
        return copied

    async def _put_ids(self, copies: Sequence[StreamCopy]) -> None:
        """Put the pages of message ids in objects of their own: they are dropped with the duplicate window."""
        some: list[_NewPage] = []
        size = 0
        for at, copy in enumerate(copies, 1):
            for page_size, page, placed in copy.ids(self._log.state.position):
                if some and size + page_size > _IDS_BYTES_MAX:
                    await self._put_and_place(some, _IDS_PLACED_AT_ONCE)
                    some, size = [], 0
                some.append((page, placed))
                size += page_size
            if at % _STREAMS_AT_ONCE == 0:
                await asyncio.sleep(0)
        if some:
            await self._put_and_place(some, _IDS_PLACED_AT_ONCE)

    async def _put_and_place(self, pages: Sequence[_NewPage], at_once: int) -> None:
        """Put pages in one object, and place ``at_once`` of them between two turns of the loop."""
        refs = await self._writer.put_pages([page for page, _ in pages])
        for at, ((_, placed), ref) in enumerate(zip(pages, refs, strict=True), 1):
            placed(ref)
            if at % at_once == 0:
                await asyncio.sleep(0)

    async def _moving(self) -> Callable[[PageRef], bool]:
        """Return a function that returns whether a page must be rewritten although it is unchanged.

        Pages in the oldest objects are rewritten if there are too many objects. Pages with subjects or ids are not:
        their objects are dropped with the messages or with the duplicate window. If the store is encrypted, pages from
        before that are rewritten, too.
        """
        moved = await self._moving_old()
        codec = self._log.settings.codec
        if not codec.sealing:
            return moved
        return lambda ref: ref.position.epoch < codec.plain_before(ref.key) or moved(ref)

    async def _moving_old(self) -> Callable[[PageRef], bool]:
        objects = self.newest.objects
        if len(objects) > _PAGE_OBJECTS_MAX:
            own: set[Position] = set()
            for at, stream in enumerate(list(self._log.state.streams.values()), 1):
                own.update(page.place.position for page in stream.subjects)
                own.update(place.position for place in stream.ids.places)
                if at % _STREAMS_AT_ONCE == 0:
                    await asyncio.sleep(0)
            objects -= own
        if len(objects) <= _PAGE_OBJECTS_MAX:
            return lambda ref: False
        old = frozenset(sorted(objects)[:len(objects) - _PAGE_OBJECTS_MAX])
        return lambda ref: ref.position in old


def _always(_: PageRef) -> bool:
    return True


def _places(stream: StreamState) -> Iterator[PageRef]:
    """Iterate over the places of the stream's unchanged parts that have pages of their own."""
    for page in stream.blocks.pages:
        if isinstance(page.place, PageRef):
            yield page.place
    for consumer in stream.consumers.values():
        if isinstance(consumer.place, PageRef):
            yield consumer.place
    for times in (*stream.expiries.pages, *stream.schedules.pages):
        if isinstance(times.place, PageRef):
            yield times.place
