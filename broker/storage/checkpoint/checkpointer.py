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

Owns the beginnings and the order of rounds, their pauses, the roots that are kept, and the rounds of an erasure. Does
not own which pages a round writes (``directory_pages``, ``subject_pages``, ``id_pages``), how objects are put
(``writer``), nor when they are deleted (``sweeper``).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from typing import NamedTuple

from broker.base.turns import in_turns
from broker.storage.checkpoint.directory_pages import Directory, DirectoryPager
from broker.storage.checkpoint.erasing import Erasing
from broker.storage.checkpoint.id_pages import IdPager
from broker.storage.checkpoint.settings import CheckpointSettings
from broker.storage.checkpoint.subject_pages import SubjectPager
from broker.storage.checkpoint.writer import CheckpointWriter
from broker.storage.format.checkpoint import Root
from broker.storage.format.errors import FormatError
from broker.storage.format.header import Position
from broker.storage.format.page import PageRef, object_size
from broker.storage.format.records.catalogue import Catalogue
from broker.storage.log.listener import LogListener
from broker.storage.log.log import Log
from broker.storage.log.putter import Segment
from broker.storage.paths import ShardPaths
from broker.storage.put import until_answered
from broker.storage.read.snapshot import Snapshot
from broker.storage.state.applied import ShardState
from broker.storage.state.names import NAMES
from broker.storage.state.pages import held_of, pack_roots_held, roots_held_of, shard_extra
from broker.storage.state.seq_ranges import SeqRanges

__all__ = ["Checkpointer", "KeptRoot"]

_log = logging.getLogger(__name__)

_STREAMS_AT_ONCE = 4096
"""Streams that are checked between two turns of the loop."""
_HELD_MAX = 65_536
"""The most segments that a root names for one offline stream; if there are more, no checkpoint is written. They grow
in number if the stream is offline in the applied state only, while the live stream is written on."""


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
        self._writer = CheckpointWriter(log, paths, rng, executor)
        self._directory_pager = DirectoryPager(log, self._writer)
        self._subject_pager = SubjectPager(log, paths, self.settings.subjects, self._writer,
                                           threads=executor is not None)
        self._id_pager = IdPager(log, paths, threads=executor is not None)
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
                    await self._subject_pager.erase(erasing)
                await self._subject_pager.update(segments)
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
        extra = await in_turns(shard_extra(self._log.state))
        directory = await self._directory_pager.write(anew=anew)
        kept = [*self.roots, KeptRoot(start, directory.objects)][-self.settings.roots_kept:]
        extra[NAMES] = [[number, names] for number, names in sorted(directory.names.items())]
        extra["roots"] = [[list(root.position), [list(p) for p in sorted(root.objects)]] for root in kept]
        now_held = frozenset(at for _, positions in held_of(extra, start) for at in positions)
        extra |= pack_roots_held((root.position, root.held - now_held) for root in kept)
        pages = tuple(page for _, page in sorted(directory.pages.items()))
        put_since = await self._writer.put_root(Root(start, start, pages, extra))
        known = frozenset().union(*(r.objects for r in self.roots), directory.objects, self.dropped, put_since)
        self.dropped = set(known - frozenset().union(*(r.objects for r in kept)))
        self.roots = kept
        self._directory_pager.newest = directory
        _log.debug("checkpoint at %s", start)

    def _continue_from(self, root: Root, members: dict[int, frozenset[int]]) -> None:
        """Continue from the root that recovery began with."""
        held = roots_held_of(root.extra, root.position)
        self.roots = [
            KeptRoot(position := Position(*at), frozenset(Position(*p) for p in objects),
                     held.get(position, frozenset()))
            for at, objects in root.extra.get("roots", ())]
        self._directory_pager.newest = Directory(
            {ref.key: ref for ref in root.pages}, members, dict(root.extra.get(NAMES, ())),
            self.roots[-1].objects if self.roots else frozenset())


def _offline(state: ShardState) -> bool:
    """Return whether a stream is offline."""
    return any(stream.offline is not None for stream in state.streams.values())
