"""Rounds: copy what changed of the applied state into pages, then put a root that names all pages.

    round     pages of subjects, for a few streams (an object each) -> pages of big streams (one object)
              -> pages of message ids (usually one object) -> directory pages (another, which names the others) -> root
    then      a record in the log releases what the kept roots no longer need; the sweeper deletes it

A checkpoint is a snapshot, never the truth: it contains only persisted state, copied one part at a time with turns of the
loop between, and everything after ``replay_from``, the position at which the round began, is replayed over it.

    a round starts          because
    after many segments     recovery would have to replay them
    after a minute          if anything was persisted since the last round
    after empty segments    an idle owner's heartbeats are replayed too, although they contain nothing
    never                   while nothing is written

Objects are put until they land, with the same bytes each time. Pages are numbered by a counter of this process run, roots
by their position: no key is ever put with different bytes.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Generator, Iterator
from concurrent.futures import Executor
from typing import NamedTuple, TypeVar

from broker.base.backoff import Backoff
from broker.storage.checkpoint.id_pages import IdPager
from broker.storage.checkpoint.subject_pages import SubjectPager, SubjectSettings
from broker.storage.format.checkpoint import Root
from broker.storage.format.errors import FormatError
from broker.storage.format.header import Position
from broker.storage.format.page import Page, PageRef, encode_pages
from broker.storage.log.listener import LogListener
from broker.storage.log.log import Log
from broker.storage.log.putter import Segment
from broker.storage.objectstore.base import Buffers, StoreRefused, Transient
from broker.storage.paths import ShardPaths
from broker.storage.put import Fenced, describe, put_ours
from broker.storage.read.snapshot import Snapshot
from broker.storage.state.applied import ShardState
from broker.storage.state.pages import (
    DIRECTORY_STREAMS,
    StreamCopy,
    directory_page,
    held_of,
    pack_roots_held,
    roots_held_of,
    shard_extra,
)
from broker.storage.state.stream import StreamState

__all__ = ["CheckpointSettings", "Checkpointer", "KeptRoot"]

_log = logging.getLogger(__name__)

T = TypeVar("T")

_PAGE_OBJECTS_MAX = 32
"""If a root names more objects than this, a round rewrites the pages in the oldest ones."""
_TURN_WEIGHT = 2_000
"""What is copied between two turns of the loop, in microseconds or so (``StreamCopy.weight``)."""
_PART_WEIGHT = 1_000
"""Of a part of a stream that has a page of its own: at most 1024 blocks, or 4096 times."""
_STREAMS_AT_ONCE = 4096
"""Streams looked at, but not copied, between two turns."""
_PLACED_IDS_AT_ONCE = 256
_IDS_BYTES_MAX = 16 << 20
"""Of message ids in one object of pages."""
_HELD_MAX = 65_536
"""Segments that a root names for one offline stream. A stream may go offline for replay alone, and go on being written."""
_PLACED_AT_ONCE = 4
"""Pages of which the blocks are let go, now that they are packed, between two turns: about a millisecond."""


class CheckpointSettings:
    """When a round starts: after this many ``segments`` with blocks of streams since the last one began, or ``head_bytes``
    of them, or ``interval_ns`` after the first of them, or after this many ``empty_segments``."""

    def __init__(self, *, segments: int = 256, head_bytes: int = 64 << 20, empty_segments: int = 20,
                 interval_ns: int | None = 60_000_000_000, hold_factor: int = 4, roots_kept: int = 3,
                 replayed_segments: int = 64, replayed_epochs: int = 8, subjects: SubjectSettings | None = None) -> None:
        self.segments = segments
        self.head_bytes = head_bytes
        self.empty_segments = empty_segments
        """Heartbeats, and segments with only the shard's own records: what rounds themselves write starts none soon. An idle
        log holds up to (``roots_kept`` + 1) times as many; each round costs two puts and a listing."""
        self.interval_ns = interval_ns
        """Also from an owner's start to its first round. None: time alone starts no round."""
        self.hold_factor = hold_factor
        """At this many times either bound, commits wait for a new root."""
        self.roots_kept = roots_kept
        self.replayed_segments = replayed_segments
        """After a recovery that replayed more than this, or more than ``replayed_epochs``, a round starts at once."""
        self.replayed_epochs = replayed_epochs
        self.subjects = subjects or SubjectSettings()


class KeptRoot(NamedTuple):
    """A root, and all page objects that it needs. ``held``: the segments that a root of an earlier owner names for streams that
    were offline then, and may be online now. In roots of our own, such a stream is offline for as long as we own the shard."""

    position: Position
    objects: frozenset[Position]
    held: frozenset[Position] = frozenset()


class Checkpointer(LogListener):
    """Cuts checkpoints of one shard's log. One round at a time."""

    def __init__(self, log: Log, paths: ShardPaths, snapshot: Snapshot, rng: random.Random,
                 settings: CheckpointSettings | None = None, *, after_round: Callable[[Checkpointer], Awaitable[None]],
                 executor: Executor | None = None) -> None:
        """Continue from the ``snapshot`` that ``log`` was recovered from.

        Args: ``after_round`` is awaited once each round's root is in the store: the sweeper decides what to release.
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
        """Page objects that were begun to be put since the last root, and may be in the store whether or not that ended."""
        self._directory: dict[int, PageRef] = {}
        self._members: dict[int, frozenset[int]] = {}
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
        self._holds = 0
        self._held: list[asyncio.Future[None]] = []
        if snapshot.root is not None:
            self._take(snapshot.root, snapshot.members)
        if (self.due or snapshot.segments > self.settings.replayed_segments
                or snapshot.epochs > self.settings.replayed_epochs):
            self._wake.set()

    def start(self) -> None:
        """Run rounds from now on when they are due."""
        self._log.listen(self)
        self._arm()
        self._task = asyncio.get_running_loop().create_task(self._run(), name="checkpoints")

    async def stop(self) -> None:
        """End; a round in progress is abandoned (its root may have landed, or may land yet)."""
        self._disarm()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def finish(self) -> None:
        """Let a round in progress end; from then on only ``cut`` starts one."""
        async with self._busy:
            await self.stop()

    async def between_rounds(self, change: Callable[[], object]) -> None:
        """Call ``change``, which adds a record that replaces parts of tables, while no round copies them; none does so until
        all that is sequenced by then is persisted. A round copies a table in parts, and the record must be in all of them
        or in none."""
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
        """Whether enough was persisted since the last round began."""
        settings = self.settings
        return (self._segments >= settings.segments or self._head_bytes >= settings.head_bytes
                or self._empty >= settings.empty_segments)

    @property
    def segments_since(self) -> int:
        """Segments with blocks of streams that were persisted since the last round began."""
        return self._segments

    def cut_soon(self) -> None:
        """Cut a checkpoint though none is due: freed objects are deleted only once three roots are beyond them."""
        self._wake.set()

    async def cut(self) -> bool:
        """Cut a checkpoint of what is persisted now, unless there is nothing new.

        A stream that is offline is in it as it was last, with the segments that have the rest: a broker that understands these
        applies them. If it cannot be copied, no checkpoint is cut.

        Returns: whether a root landed. Raises: Fenced; Corrupt.
        """
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
                await self._pager.update(segments)
                await self._id_pager.update()
                # Segments were applied while these put their pages, and a root must not hold what is after its position.
                self._attempted = state.position
                await self._round(self._attempted)
            except BaseException as error:
                # No root contains what was copied, so it still counts as changed.
                for stream in state.streams.values():
                    stream.dirty = True
                self._segments += segments
                self._head_bytes += head_bytes
                self._empty += empty
                if isinstance(error, FormatError | ValueError | TypeError | LookupError) and _offline(state):
                    _log.debug("no checkpoint is cut: a stream that is offline cannot be copied: %s", error)
                    return False
                raise
            finally:
                self._before_segments = self._before_bytes = 0
            self.rounds += 1
            log.schedule_commit()
        return True

    def segment_persisted(self, segment: Segment) -> None:
        """Count it towards the next round."""
        if any(block.owner.stream_id for block in segment.sealed):
            self._segments += 1
            self._head_bytes += segment.head_bytes
            self._arm()
        else:
            self._empty += 1
        if self.due:
            self._wake.set()

    def _arm(self) -> None:
        """Make sure that a round comes in time, even if nothing more is written."""
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
        """Whether commits must wait for a root: otherwise a recovery would take ever longer."""
        settings = self.settings
        if self._holds:
            return False  # the next round waits for one of them
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

    async def _round(self, start: Position) -> None:
        """``start`` is the position at the time of the call: the shard's own state is copied from here on."""
        state = self._log.state
        extra = await _in_turns(shard_extra(state))
        moved = await self._moving()
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
                copy = StreamCopy(stream)
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
            # Each stream's entry has a position of its own; none is beyond the page's.
            bodies[number] = (state.position, copies)
            members[number] = frozenset(copy.stream.stream_id for copy in copies)
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
            while bodies:  # bit by bit: there may be a million lists in them
                bodies.popitem()
                await asyncio.sleep(0)
        objects = {ref.position for ref in directory.values()} | needed
        kept = [*self.roots, KeptRoot(start, frozenset(objects))][-self.settings.roots_kept:]
        extra["roots"] = [[list(root.position), [list(p) for p in sorted(root.objects)]] for root in kept]
        now_held = frozenset(at for _, positions in held_of(extra, start) for at in positions)
        extra |= pack_roots_held((root.position, root.held - now_held) for root in kept)
        root = Root(start, start, tuple(directory[n] for n in sorted(directory)), extra)
        await self._put(self._paths.checkpoint(start), [root.encode(self._log.nonce)])
        known = frozenset().union(*(r.objects for r in self.roots), objects, self.dropped, self._put_since)
        self._put_since.clear()
        self.dropped = set(known - frozenset().union(*(r.objects for r in kept)))
        self.roots = kept
        self._directory, self._members = directory, members
        _log.debug("checkpoint at %s: %d pages and %d parts written", start, len(pages), len(parts))

    async def _dirty_pages(self, state: ShardState, moved: Callable[[PageRef], bool]
                           ) -> tuple[dict[int, list[StreamState]], dict[int, frozenset[int]], set[Position]]:
        """The directory pages to write, with their streams; for those that stay, the members, and the objects with parts
        of their streams.

        In several turns of the loop, each page in one: a stream of a page that stays has the parts that the page names. What
        happens to streams meanwhile is after the round's beginning, so replay finds it.
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
        looked_at = 0
        for number, inside in sorted(streams.items()):
            looked_at += sum(1 + len(stream.blocks.pages) for stream in inside)
            if looked_at >= _STREAMS_AT_ONCE:
                looked_at = 0
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
        """Put the pages of message ids: in objects of their own, since they leave with the duplicate window."""
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
        """Which pages to rewrite though unchanged, so that no old object is kept for the sake of one page. Those with subjects
        and ids are left out: they have objects of their own, which leave with the messages, or with the duplicate window."""
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

    def _take(self, root: Root, members: dict[int, frozenset[int]]) -> None:
        """Continue from the root that recovery began with."""
        self._directory = {ref.key: ref for ref in root.pages}
        self._members = members
        held = roots_held_of(root.extra, root.position)
        self.roots = [KeptRoot(position := Position(*at), frozenset(Position(*p) for p in objects), held.get(position, frozenset()))
                      for at, objects in root.extra.get("roots", ())]

    async def _put_pages(self, epoch: int, pages: list[Page]) -> list[PageRef]:
        self._pages_number += 1
        position = Position(epoch, self._pages_number)
        if self._executor is not None:
            data, refs = await asyncio.get_running_loop().run_in_executor(
                self._executor, encode_pages, position, self._log.nonce, pages)
        else:
            data, refs = encode_pages(position, self._log.nonce, pages)
        self._put_since.add(position)
        await self._put(self._paths.pages(position), data)
        return refs

    async def _put(self, key: str, data: Buffers) -> None:
        """Put until it landed. Raises: Corrupt if the key, which carries our epoch, belongs to another writer."""
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
                raise describe(holder, key)
            return


async def _in_turns(steps: Generator[None, None, T]) -> T:
    """What ``steps`` returns, with a turn of the loop after each step."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        await asyncio.sleep(0)


def _offline(state: ShardState) -> bool:
    """Whether a stream is offline."""
    return any(stream.offline is not None for stream in state.streams.values())


def _places(stream: StreamState) -> Iterator[PageRef]:
    """The places of the stream's parts that have pages of their own and did not change."""
    for page in stream.blocks.pages:
        if isinstance(page.place, PageRef):
            yield page.place
    for consumer in stream.consumers.values():
        if isinstance(consumer.place, PageRef):
            yield consumer.place
    for times in (*stream.expiries.pages, *stream.schedules.pages):
        if isinstance(times.place, PageRef):
            yield times.place
