"""Checkpoints: a round copies the changed parts of the applied state into pages, then puts a root that names all pages.

    round     pages of subjects, for a few streams (an object each) -> pages of big streams (one object)
              -> pages of message ids (usually one object) -> directory pages (another, which names the others) -> root
    then      a record in the log releases what the kept roots no longer need; the sweeper deletes it

A checkpoint is a snapshot of persisted state only. It is copied one part at a time, with turns of the loop between, and
everything after ``replay_from``, the position at which the round began, is replayed over it.

    a round starts          because
    after many segments     recovery would have to replay them
    after a minute          if anything was persisted since the last round
    after empty segments    an idle owner's heartbeats are replayed too, although they contain nothing
    never                   while nothing is written

Objects are put until they are stored, with the same bytes each time. Pages are numbered by a counter of this process
run, roots by their position: no key is ever put with different bytes.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from typing import NamedTuple

from broker.base.backoff import Backoff
from broker.base.turns import in_turns
from broker.storage.checkpoint.erasing import Erasing
from broker.storage.checkpoint.id_pages import IdPager
from broker.storage.checkpoint.subject_pages import SubjectPager, SubjectSettings
from broker.storage.format.checkpoint import Root
from broker.storage.format.errors import FormatError
from broker.storage.format.header import Position
from broker.storage.format.page import Page, PageRef, encode_pages, object_size
from broker.storage.format.records.catalogue import Catalogue
from broker.storage.log.listener import LogListener
from broker.storage.log.log import Log
from broker.storage.log.putter import Segment
from broker.storage.objectstore.base import Buffers, StoreRefused, Transient
from broker.storage.paths import ShardPaths
from broker.storage.put import Fenced, key_taken_error, put_ours, until_answered
from broker.storage.read.snapshot import Snapshot
from broker.storage.state.applied import ShardState
from broker.storage.state.names import NAMES, pack_names
from broker.storage.state.pages import (
    DIRECTORY_STREAMS,
    StreamCopy,
    directory_page,
    held_of,
    pack_roots_held,
    roots_held_of,
    shard_extra,
)
from broker.storage.state.seq_ranges import SeqRanges
from broker.storage.state.stream import StreamState

__all__ = ["CheckpointSettings", "Checkpointer", "KeptRoot"]

_log = logging.getLogger(__name__)

_PAGE_OBJECTS_MAX = 32
"""Objects that a root may name: if there are more, a round rewrites the pages in the oldest ones."""
_TURN_WEIGHT = 2_000
"""The weight of the streams copied between two turns of the loop, about in microseconds (``StreamCopy.weight``)."""
_PART_WEIGHT = 1_000
"""The weight of a part of a stream that has a page of its own: at most 1024 blocks, or 4096 expiry times."""
_STREAMS_AT_ONCE = 4096
"""Streams that are checked, but not copied, between two turns of the loop."""
_PLACED_IDS_AT_ONCE = 256
_IDS_BYTES_MAX = 16 << 20
"""Message ids in one object of pages, in bytes."""
_HELD_MAX = 65_536
"""The most segments that a root names for one offline stream; if there are more, no checkpoint is written. They grow
in number if the stream is offline in the applied state only, while the live stream is written on."""
_PLACED_AT_ONCE = 4
"""Pages whose blocks are freed, once they are packed, between two turns of the loop: about a millisecond."""


class CheckpointSettings:
    """The conditions for a round to start. One of these bounds must be reached since the last round began:

        segments          segments with blocks of streams, or with changes of the catalogue
        head_bytes        bytes of the heads of these segments
        interval_ns       time after the first of these segments
        empty_segments    segments without such blocks
    """

    def __init__(self, *, segments: int = 256, head_bytes: int = 64 << 20, empty_segments: int = 20,
                 interval_ns: int | None = 60_000_000_000, hold_factor: int = 4, roots_kept: int = 3,
                 replayed_segments: int = 64, replayed_epochs: int = 8,
                 subjects: SubjectSettings | None = None) -> None:
        self.segments = segments
        self.head_bytes = head_bytes
        self.empty_segments = empty_segments
        """The bound for heartbeats and for segments with only the shard's own records. It is large enough that the
        segments which a round itself writes do not soon start the next round. An idle log has up to (``roots_kept`` +
        1) times as many. Each round costs two puts and a listing."""
        self.interval_ns = interval_ns
        """None: time alone starts no round. An owner's first round comes at the latest this long after its start."""
        self.hold_factor = hold_factor
        """Commits wait for a new root once ``segments`` or ``head_bytes`` is exceeded by this factor."""
        self.roots_kept = roots_kept
        self.replayed_segments = replayed_segments
        """A round starts at once after a recovery that replayed more segments, or more than ``replayed_epochs``
        epochs."""
        self.replayed_epochs = replayed_epochs
        self.subjects = subjects or SubjectSettings()


class KeptRoot(NamedTuple):
    """A root, and all page objects that it needs.

    ``held`` are the segments that a root of an earlier owner names for streams that were offline then. Such a stream
    may be online now, so the applied state does not name these segments. A root of our own needs no ``held``: a stream
    that is offline stays so for as long as we own the shard, and the applied state names its segments.
    """

    position: Position
    objects: frozenset[Position]
    held: frozenset[Position] = frozenset()


class Checkpointer(LogListener):
    """Writes checkpoints of one shard's log, one round at a time."""

    def __init__(self, log: Log, paths: ShardPaths, snapshot: Snapshot, rng: random.Random,
                 settings: CheckpointSettings | None = None, *, after_round: Callable[[Checkpointer], Awaitable[None]],
                 executor: Executor | None = None) -> None:
        """Continue from the ``snapshot`` that ``log`` was recovered from.

        Args: ``after_round`` is awaited after each round's root is stored: the sweeper decides what to release.
        """
        self.settings = settings or CheckpointSettings()
        self.rounds = 0
        self._after_round = after_round
        self._log = log
        self._paths = paths
        self._rng = rng
        self._executor = executor
        self._pager = SubjectPager(log, paths, self.settings.subjects, self._put_pages, threads=executor is not None)
        self._id_pager = IdPager(log, paths, threads=executor is not None)
        self._pages_number = 0
        self._put_since: set[Position] = set()
        """Page objects whose put began since the last root. Each may be in the store, whether or not its put ended."""
        self._directory: dict[int, PageRef] = {}
        self._members: dict[int, frozenset[int]] = {}
        self._names: dict[int, bytes] = {}
        """The packed names of the streams in each directory page; those of earlier releases' pages are missing."""
        self.roots: list[KeptRoot] = []
        """The kept roots, oldest first."""
        self.dropped: set[Position] = set()
        """Page objects that a kept root once needed and none needs now."""
        self._segments = snapshot.segments
        self._empty = snapshot.objects - snapshot.segments
        self._head_bytes = snapshot.head_bytes
        self._before_segments = self._before_bytes = 0
        self._attempted = snapshot.root.position if snapshot.root is not None else Position(0, 0)
        self._wake = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._busy = asyncio.Lock()
        self._erasing: Erasing | None = None
        """Set until a root leaves all of this out."""
        self._pauses = 0
        self._resumed = asyncio.Event()
        self._holds = 0
        self._held: list[asyncio.Future[None]] = []
        if snapshot.root is not None:
            self._continue_from(snapshot.root, snapshot.members)
        if (self.due or snapshot.segments > self.settings.replayed_segments
                or snapshot.epochs > self.settings.replayed_epochs):
            self._wake.set()

    def start(self) -> None:
        """Run rounds from now on when they are due."""
        self._log.listen(self)
        self._arm()
        self._task = asyncio.get_running_loop().create_task(self._run(), name="checkpoints")

    async def stop(self) -> None:
        """End, and abandon a round in progress: its root may be stored, even later."""
        self._disarm()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def finish(self) -> None:
        """Wait for a round in progress, and end; from then on only ``cut`` starts a round."""
        async with self._busy:
            await self.stop()

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """Enter the body once no round is in progress; the next round begins after it."""
        self._pauses += 1
        self._resumed.clear()
        try:
            async with self._busy:
                pass
            yield
        finally:
            self._pauses -= 1
            if not self._pauses:
                self._resumed.set()

    async def between_rounds(self, change: Callable[[], object]) -> None:
        """Call ``change``, which adds a record that replaces parts of tables, while no round copies these tables.

        A round copies a table in parts, and the record must be in all of them or in none. So the next round begins only
        once the record is persisted.
        """
        async with self._busy:
            change()
            self._holds += 1
            self._log.wait(self._release)

    def _release(self) -> None:
        self._holds -= 1
        if not self._holds:
            held, self._held = self._held, []
            for future in held:
                if not future.done():
                    future.set_result(None)

    @property
    def due(self) -> bool:
        """True if enough was persisted since the last round began."""
        settings = self.settings
        return (self._segments >= settings.segments or self._head_bytes >= settings.head_bytes
                or self._empty >= settings.empty_segments)

    @property
    def segments_since(self) -> int:
        """Segments with blocks of streams that were persisted since the last round began."""
        return self._segments

    def cut_soon(self) -> None:
        """Start a round although none is due: freed objects are deleted only once three roots are after them."""
        self._wake.set()

    async def erase(self, erased: Mapping[int, SeqRanges], go_on: Callable[[], Awaitable[object]]) -> bool:
        """Put as many roots as are kept, none of which needs an object from before this call.

        So all earlier pages, which may quote subjects and ids of erased messages, are released, and all segments before
        this call are beyond the need of any replay. ``erased`` are removed from the applied state already, by stream.
        ``go_on`` is awaited before each round: it persists something, because a root needs a new position.

        Returns: False if no root can be put now, because of a stream that is offline.
        Raises: StoreError once the log has failed; Fenced; Corrupt.
        """
        erasing = Erasing(erased, await self._worn())
        await self._id_pager.erase(erasing)
        self._erasing = erasing
        left = self.settings.roots_kept
        for _ in range(2 * left + 1):
            await go_on()
            try:
                if await self.cut() and self._erasing is None:
                    left -= 1
                await self._after_round(self)
            except Exception as error:
                self._log.fail(error)
                raise
            if not left:
                return True
        return False

    async def _worn(self) -> frozenset[Position]:
        """Return the objects with pages of subjects or ids that also have pages which nothing needs any more.

        Raises: StoreError once the log has failed.
        """
        used: defaultdict[Position, list[PageRef]] = defaultdict(list)
        for at, stream in enumerate(list(self._log.state.streams.values()), 1):
            for ref in (*(page.place for page in stream.subjects), *stream.ids.places):
                used[ref.position].append(ref)
            if at % _STREAMS_AT_ONCE == 0:
                await asyncio.sleep(0)
        sizes = {info.key: info.size for info in await until_answered(
            lambda: self._log.store.list(self._paths.page_objects), self._rng, lambda _: self._log.failure is not None,
            lambda error: _log.warning("erasure waits for the store: %s", error))}
        return frozenset(position for position, refs in used.items()
                         if sizes.get(self._paths.pages(position)) != object_size(refs))

    async def cut(self) -> bool:
        """Write a checkpoint of the persisted state, unless there is nothing new.

        For a stream that is offline, the checkpoint has its last state and names the segments with later records: a
        broker that understands these records applies them. If such a stream cannot be copied, no checkpoint is written.

        Returns: True if a root was stored. Raises: Fenced; Corrupt.
        """
        while self._pauses:
            await self._resumed.wait()
        async with self._busy:
            log = self._log
            state = log.state
            while self._holds:
                self._held.append(asyncio.get_running_loop().create_future())
                log.schedule_commit()
                await self._held[-1]
            start = state.position
            if start <= self._attempted or any(len(stream.held) > _HELD_MAX for stream in state.streams.values()):
                return False
            self._attempted = start
            self._disarm()
            segments, head_bytes, empty = self._segments, self._head_bytes, self._empty
            self._before_segments, self._before_bytes = segments, head_bytes
            self._segments = self._head_bytes = self._empty = 0
            try:
                erasing = self._erasing
                if erasing is not None:
                    await self._pager.erase(erasing)
                await self._pager.update(segments)
                await self._id_pager.update()
                # Segments were applied while these pages were put. A root must not include what is after its position.
                self._attempted = state.position
                await self._round(self._attempted, anew=erasing is not None)
                if self._erasing is erasing:
                    self._erasing = None
            except BaseException as error:
                # No root contains what was copied, so all streams count as changed.
                for stream in state.streams.values():
                    stream.dirty = True
                self._segments += segments
                self._head_bytes += head_bytes
                self._empty += empty
                if isinstance(error, FormatError | ValueError | TypeError | LookupError) and _offline(state):
                    _log.debug("no checkpoint is written: a stream that is offline cannot be copied: %s", error)
                    return False
                raise
            finally:
                self._before_segments = self._before_bytes = 0
            self.rounds += 1
            log.schedule_commit()
        return True

    def segment_persisted(self, segment: Segment) -> None:
        """Count the segment towards the next round."""
        if any(block.owner.stream_id or any(record.kind == Catalogue.KIND for record in block.core.records)
               for block in segment.sealed):
            self._segments += 1
            self._head_bytes += segment.head_bytes
            self._arm()
        else:
            self._empty += 1
        if self.due:
            self._wake.set()

    def _arm(self) -> None:
        """Make sure that a round starts after ``interval_ns``, even if nothing more is written."""
        if self._timer is None and self.settings.interval_ns is not None:
            self._timer = asyncio.get_running_loop().call_later(self.settings.interval_ns / 1e9, self._in_time)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _in_time(self) -> None:
        self._timer = None
        self._wake.set()

    def commits_paused(self) -> bool:
        """Return whether commits must wait for a root: otherwise recoveries would take longer and longer."""
        settings = self.settings
        if self._holds:
            return False  # the next round waits for a commit
        behind = (self._segments + self._before_segments >= settings.hold_factor * settings.segments
                  or self._head_bytes + self._before_bytes >= settings.hold_factor * settings.head_bytes)
        return behind and not _offline(self._log.state)

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                if await self.cut():
                    await self._after_round(self)
            except Exception as error:
                self._log.fail(error)
                return

    async def _round(self, start: Position, *, anew: bool) -> None:
        """Copy the shard's state, put its pages, and put a root for ``start``, the present position.

        ``anew``: write all pages, except those of subjects and ids.
        """
        state = self._log.state
        extra = await in_turns(shard_extra(state))
        moved = _always if anew else await self._moving()
        pages, members, needed = await self._dirty_pages(state, moved)
        bodies: dict[int, tuple[Position, list[StreamCopy]]] = {}
        parts: list[Page] = []
        placers: list[Callable[[PageRef], None]] = []
        weight = 0
        for number, streams in pages.items():
            copies: list[StreamCopy] = []
            for stream in streams:
                if state.streams.get(stream.stream_id) is not stream:
                    continue  # it was deleted meanwhile
                copy = StreamCopy(stream, codec=self._log.settings.codec)
                copies.append(copy)
                weight += copy.weight
                for part in copy.parts(lambda: state.position, moved):
                    if part is not None:
                        parts.append(part[0])
                        placers.append(part[1])
                    weight += _PART_WEIGHT
                    if weight >= _TURN_WEIGHT:
                        weight = 0
                        await asyncio.sleep(0)
                if weight >= _TURN_WEIGHT:
                    weight = 0
                    await asyncio.sleep(0)
            # Each stream's entry has a position of its own. None of them is after the page's position.
            bodies[number] = (state.position, copies)
            members[number] = frozenset(copy.stream.stream_id for copy in copies)
            self._names[number] = pack_names((copy.stream.account, copy.stream.name) for copy in copies)
        if parts:
            for i, (ref, placed) in enumerate(zip(await self._put_pages(start.epoch, parts), placers, strict=True)):
                placed(ref)
                if i % _PLACED_AT_ONCE == 0:
                    await asyncio.sleep(0)
        await self._put_ids(start.epoch, [copy for _, copies in bodies.values() for copy in copies])
        directory = {n: ref for n, ref in self._directory.items() if n in members}
        if bodies:
            written: list[Page] = []
            for number, (position, copies) in bodies.items():
                written.append(directory_page(position, number, copies))
                for copy in copies:
                    needed |= copy.objects()
                await asyncio.sleep(0)
            directory.update(zip(bodies, await self._put_pages(start.epoch, written), strict=True))
            written.clear()
            while bodies:  # freed one by one: there may be a million lists in them
                bodies.popitem()
                await asyncio.sleep(0)
        objects = {ref.position for ref in directory.values()} | needed
        kept = [*self.roots, KeptRoot(start, frozenset(objects))][-self.settings.roots_kept:]
        self._names = {number: names for number, names in self._names.items() if number in directory}
        extra[NAMES] = [[number, names] for number, names in sorted(self._names.items())]
        extra["roots"] = [[list(root.position), [list(p) for p in sorted(root.objects)]] for root in kept]
        now_held = frozenset(at for _, positions in held_of(extra, start) for at in positions)
        extra |= pack_roots_held((root.position, root.held - now_held) for root in kept)
        root = Root(start, start, tuple(directory[n] for n in sorted(directory)), extra)
        await self._put(self._paths.checkpoint(start), [root.encode(self._log.nonce, self._log.settings.codec)])
        known = frozenset().union(*(r.objects for r in self.roots), objects, self.dropped, self._put_since)
        self._put_since.clear()
        self.dropped = set(known - frozenset().union(*(r.objects for r in kept)))
        self.roots = kept
        self._directory, self._members = directory, members
        _log.debug("checkpoint at %s: %d pages and %d parts written", start, len(pages), len(parts))

    async def _dirty_pages(self, state: ShardState, moved: Callable[[PageRef], bool]
                           ) -> tuple[dict[int, list[StreamState]], dict[int, frozenset[int]], set[Position]]:
        """Return the directory pages to write, with their streams; the members of the other pages; and the objects with
        parts of the streams in the other pages.

        Runs in several turns of the loop, but handles a whole page in one: the streams of a page that is not written
        have exactly the parts that the page names. Later changes are after the round's beginning, so a replay applies
        them.
        """
        streams: dict[int, list[StreamState]] = {}
        unassigned: list[StreamState] = []
        for i, stream in enumerate(list(state.streams.values()), 1):
            if stream.page < 0:
                unassigned.append(stream)
            else:
                streams.setdefault(stream.page, []).append(stream)
            if i % _STREAMS_AT_ONCE == 0:
                await asyncio.sleep(0)
        number = 0
        for i, stream in enumerate(unassigned, 1):
            if i % _STREAMS_AT_ONCE == 0:
                await asyncio.sleep(0)
            while len(streams.setdefault(number, [])) >= DIRECTORY_STREAMS:
                number += 1
            stream.page = number
            streams[number].append(stream)
        dirty: dict[int, list[StreamState]] = {}
        members: dict[int, frozenset[int]] = {}
        needed: set[Position] = set()
        checked = 0
        for number, inside in sorted(streams.items()):
            checked += sum(1 + len(stream.blocks.pages) for stream in inside)
            if checked >= _STREAMS_AT_ONCE:
                checked = 0
                await asyncio.sleep(0)
            ids = frozenset(stream.stream_id for stream in inside)
            ref = self._directory.get(number)
            places = [place for stream in inside for place in _places(stream)]
            if (ref is None or moved(ref) or ids != self._members.get(number)
                    or any(stream.dirty for stream in inside) or any(map(moved, places))):
                dirty[number] = inside
            else:
                members[number] = ids
                needed.update(place.position for place in places)
                needed.update(page.place.position for stream in inside for page in stream.subjects)
                needed.update(place.position for stream in inside for place in stream.ids.places)
        return dirty, members, needed

    async def _put_ids(self, epoch: int, copies: list[StreamCopy]) -> None:
        """Put the pages of message ids in objects of their own: they are dropped with the duplicate window."""
        some: list[tuple[Page, Callable[[PageRef], None]]] = []
        size = 0
        for at, copy in enumerate(copies, 1):
            for page_size, page, placed in copy.ids(self._log.state.position):
                if some and size + page_size > _IDS_BYTES_MAX:
                    await self._put_and_place(epoch, some)
                    some, size = [], 0
                some.append((page, placed))
                size += page_size
            if at % _STREAMS_AT_ONCE == 0:
                await asyncio.sleep(0)
        if some:
            await self._put_and_place(epoch, some)

    async def _put_and_place(self, epoch: int, some: list[tuple[Page, Callable[[PageRef], None]]]) -> None:
        refs = await self._put_pages(epoch, [page for page, _ in some])
        for at, ((_, placed), ref) in enumerate(zip(some, refs, strict=True), 1):
            placed(ref)
            if at % _PLACED_IDS_AT_ONCE == 0:
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
        objects = self.roots[-1].objects if self.roots else frozenset()
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

    def _continue_from(self, root: Root, members: dict[int, frozenset[int]]) -> None:
        """Continue from the root that recovery began with."""
        self._directory = {ref.key: ref for ref in root.pages}
        self._members = members
        self._names = dict(root.extra.get(NAMES, ()))
        held = roots_held_of(root.extra, root.position)
        self.roots = [
            KeptRoot(position := Position(*at), frozenset(Position(*p) for p in objects),
                     held.get(position, frozenset()))
            for at, objects in root.extra.get("roots", ())]

    async def _put_pages(self, epoch: int, pages: list[Page]) -> list[PageRef]:
        self._pages_number += 1
        position = Position(epoch, self._pages_number)
        if self._executor is not None:
            data, refs = await asyncio.get_running_loop().run_in_executor(
                self._executor, encode_pages, position, self._log.nonce, pages, self._log.settings.codec)
        else:
            data, refs = encode_pages(position, self._log.nonce, pages, self._log.settings.codec)
        self._put_since.add(position)
        await self._put(self._paths.pages(position), data)
        return refs

    async def _put(self, key: str, data: Buffers) -> None:
        """Put until the object is stored. Raises: Corrupt if the key has another writer's object."""
        backoff = Backoff(rng=self._rng)
        while True:
            if isinstance(self._log.failure, Fenced):
                raise self._log.failure
            try:
                holder = await put_ours(self._log.store, key, data, self._log.nonce)
            except (Transient, StoreRefused) as error:
                if backoff.tries == 0:
                    _log.warning("a checkpoint is not in the store yet: %s", error)
                await asyncio.sleep(backoff.next())
                continue
            if holder is not None:
                raise key_taken_error(holder, key)
            return


def _always(_: PageRef) -> bool:
    return True


def _offline(state: ShardState) -> bool:
    """Return whether a stream is offline."""
    return any(stream.offline is not None for stream in state.streams.values())


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
