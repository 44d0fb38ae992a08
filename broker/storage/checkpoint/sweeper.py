"""Releases, then deletes: a record in the log names objects that nothing needs; once it is persisted, they are deleted.

    objects     are released when
    segments    they have no live block, and are at or before the oldest kept root, so that no replay needs them
    pages       no kept root needs any page of the object
    roots       they are older than the kept ones
    runs        they have no live block; they are never replayed, so no root needs them
                (objects that an offline stream needs for its repair count as live blocks: see ``storage.state.held``)
    orphans     an earlier owner left them beyond its end, or put them without a root that names them; or they are runs
                of ours that were not adopted. Orphans of earlier owners are searched for once, after our own first
                root, in a background task, so that no round and no commit waits for the search

A round releases everything that its oldest root no longer needs, in as many records as that takes. A freed segment
waits for three roots after it, which an idle log would never get by itself, so freed segments start rounds:

    segment freed ──> a round a minute, until the oldest kept root is after it ──> released ──> grace ──> deleted

Segments that never had a block (heartbeats, records) start no round, since each round would leave another; they are
released with the others.

A fenced owner cannot release anything, because its record is never persisted. Claims and seals are never deleted: they
fence older owners by put-if-absent, which detects only objects that exist. The grace period serves only readers, which
plan with an older root and would not find the objects. The broker's correctness does not depend on it. So it is ignored
while the store is full and publishes are refused. Nothing is deleted while the clocks disagree.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from typing import TypeVar

from broker.base.backoff import Backoff
from broker.base.clock import Clock
from broker.storage.checkpoint.checkpointer import Checkpointer
from broker.storage.checkpoint.orphans import orphan_pages, orphan_runs, orphan_segments
from broker.storage.format.errors import FormatError
from broker.storage.format.header import HEADER_BYTES, ObjectHeader, ObjectKind, Position, key_position, position_key
from broker.storage.format.records.release import Release
from broker.storage.log.listener import LogListener
from broker.storage.log.log import Log
from broker.storage.log.putter import Segment
from broker.storage.objectstore.base import NotFound, StoreError
from broker.storage.paths import ShardPaths, parse, run_key
from broker.storage.put import until_answered
from broker.storage.state.released import Released
from broker.storage.state.table import RunKey

__all__ = ["READER_GRACE_NS", "Sweeper"]

_log = logging.getLogger(__name__)

T = TypeVar("T")

READER_GRACE_NS = 600_000_000_000
"""The time for which a released object stays: a reader without a broker may read an object that it planned to
read. In the store it costs the size of the objects removed in that time; in memory some 100 bytes a segment."""
_ROUNDS_APART_NS = 60_000_000_000
"""Time between rounds that are run only to free objects: puts cost money."""
_ROUNDS_APART_FULL_S = 1.0
"""Time between such rounds while the store is full: publishes are refused until objects are deleted."""
_AT_ONCE = 32
_TRIES_BEFORE_WARNING = 4
"""A warning is logged after this many failures of one request, once."""
_POSITIONS_MAX = 4096
"""Positions of each kind that one record releases, so that applying it takes a few milliseconds."""
_TIDIED_AT_ONCE = 1024
"""Blocks removed from the counts between two turns of the loop: about 2 ms."""


class Sweeper(LogListener):
    """Releases the unneeded objects of one shard, and deletes those that its log has released."""

    def __init__(self, log: Log, paths: ShardPaths, clock: Clock, rng: random.Random, *,
                 grace_ns: int = READER_GRACE_NS, clock_trusted: Callable[[], bool] = lambda: True) -> None:
        self.deleted = 0
        """Objects deleted by this process run."""
        self.search_ns = 86_400_000_000_000
        """The time between two searches for orphans."""
        self._search_at_ns = 0
        self._log = log
        self._store = log.store
        self._paths = paths
        self._clock = clock
        self._rng = rng
        self._grace_ns = grace_ns
        self._clock_trusted = clock_trusted
        self._finding: asyncio.Task[None] | None = None
        self._orphans: dict[str, set[Position]] = {"segments": set(), "pages": set()}
        self._orphan_runs: list[str] = []
        self._in_use: AbstractSet[int | RunKey] = frozenset()
        self._held_back = False
        """True if the last round did not release an object because it is in use."""
        self._done: list[Position] = []
        self._queue: deque[tuple[int, Released]] = deque()
        self._wake = asyncio.Event()
        self._swept_to = Position(0, 0)
        """Everything freed up to here has been released."""
        self._freed = asyncio.Event()
        """Set once a freed segment waits for its release."""
        self._tidying: asyncio.Handle | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._more: asyncio.Task[None] | None = None

    def start(self, checkpointer: Checkpointer) -> None:
        """Begin to delete, including released objects of earlier owners. The checkpointer awaits ``after_round``."""
        self._log.listen(self)
        self._log.state.counts.observe_removals(self._blocks_left)
        due_ns = self._clock.monotonic_ns() + self._grace_ns
        self._queue.extend((due_ns, released) for released in self._log.state.released.values())
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._run(), name="sweeper"),
                       loop.create_task(self._ask_for_rounds(checkpointer), name="sweeper's rounds")]
        self._blocks_left()

    async def stop(self) -> None:
        """End; the next owner deletes the released objects that exist."""
        self._log.state.counts.stop_observing_removals()
        if self._tidying is not None:
            self._tidying.cancel()
            self._tidying = None
        tasks = [*self._tasks, *(task for task in (self._more, self._finding) if task is not None)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def after_round(self, checkpointer: Checkpointer) -> None:
        """Release what the kept roots no longer need. Raises: StoreError once the log has stopped."""
        kept = checkpointer.roots
        state = self._log.state
        if not self._clock_trusted():
            return
        if self._finding is None or (self._finding.done() and self._clock.monotonic_ns() >= self._search_at_ns):
            # Again, because an earlier owner that was paused may wake up and put an object that was deleted meanwhile.
            self._search_at_ns = self._clock.monotonic_ns() + self.search_ns
            self._finding = asyncio.get_running_loop().create_task(
                self._find_orphans(kept[-1].position.epoch, checkpointer), name="search for orphans")
        keep: frozenset[Position] = frozenset().union(*(root.objects for root in kept))
        roots = [key.position for info in await self._list(self._paths.checkpoints)
                 if (key := parse(info)) is not None and key.position is not None and key.position < kept[0].position]
        if not self._clock_trusted():
            return  # this changed while the store answered
        full = len(kept) >= checkpointer.settings.roots_kept
        pages_gone = {position for released in state.released.values() for position in released.pages}
        roots_gone = {position for released in state.released.values() for position in released.roots}
        pages = sorted((checkpointer.dropped | self._orphans["pages"]) - keep - pages_gone)[:_POSITIONS_MAX]
        roots = [root for root in roots if root not in roots_gone][:_POSITIONS_MAX] if full else []
        if self._more is not None:
            # The task of an earlier round still releases segments. This round's list includes these.
            self._more.cancel()
        self._held_back = False
        held = frozenset(position_key(position) for root in kept for position in root.held)
        segments = self._unneeded(kept[0].position if full else Position(0, 0), held)
        self._release(next(segments, ()), pages, roots, self._unneeded_runs())
        checkpointer.dropped.difference_update(pages)
        self._orphans["pages"].difference_update(pages)
        self._more = asyncio.get_running_loop().create_task(
            self._release_more(segments, kept[0].position if full else None), name="releasing")

    def protect(self, objects: AbstractSet[int | RunKey]) -> None:
        """Do not release these segments (by ``position_key``) and runs: live streams may still read them, although the
        applied state does not name them any more. Replaces the objects of the previous call."""
        self._in_use = objects

    def abandon_run(self, key: str) -> None:
        """Release a run of ours, which will never be adopted, with the next round."""
        self._orphan_runs.append(key)

    def release_runs(self, keys: Sequence[str]) -> None:
        """Release runs that nothing will ever name, without waiting for the next round: an idle log has no rounds."""
        if not self._clock_trusted():
            self._orphan_runs += keys
            return
        for at in range(0, len(keys), _POSITIONS_MAX):
            self._release((), (), (), keys[at:at + _POSITIONS_MAX])

    def _unneeded(self, oldest: Position, held: frozenset[int]) -> Iterator[list[Position]]:
        """Yield the segments that no root from ``oldest`` on needs, and orphans, as many at a time as fit into a
        record.

        Args: ``held`` are segments that these roots name for streams that were offline. A start from such a root
            applies them first.
        """
        counts, limit = self._log.state.counts, position_key(oldest)
        uncounted_to = counts.uncounted_to
        keys = list(counts.unreferenced)
        for at in range(0, len(keys), _POSITIONS_MAX):
            # Omit segments that were released meanwhile, or that a later block of the same segment has named again.
            some = {key for key in keys[at:at + _POSITIONS_MAX]
                    if uncounted_to < key <= limit and key in counts.unreferenced}
            unused = some - self._in_use - held
            self._held_back = self._held_back or len(unused) < len(some)
            yield list(map(key_position, sorted(unused)))
        orphans = sorted(self._orphans["segments"])
        for at in range(0, len(orphans), _POSITIONS_MAX):
            some_orphans = orphans[at:at + _POSITIONS_MAX]
            yield some_orphans
            self._orphans["segments"].difference_update(some_orphans)

    def _unneeded_runs(self) -> list[str]:
        """Return the keys of runs without live blocks, and of runs never adopted, as many as fit into a record.

        They count as released from here on. If the record is not persisted, the next owner finds them as orphans.
        """
        counts, in_use = self._log.state.counts, self._in_use
        freed, uncounted_to = counts.freed_runs, counts.uncounted_to
        unused = [run for run in freed if run not in in_use and position_key(Position(*run[:2])) > uncounted_to]
        keys = [run_key(self._paths, run, *freed.pop(run)) for run in unused[:_POSITIONS_MAX]]
        more = max(0, _POSITIONS_MAX - len(keys))
        keys += self._orphan_runs[:more]
        del self._orphan_runs[:more]
        return keys

    async def _release_more(self, segments: Iterator[list[Position]], swept_to: Position | None) -> None:
        """Put records one after the other, each persisted before the next, so that segments stay small."""
        try:
            for some in segments:
                if some:
                    await self._log.persisted()
                    self._release(some, (), ())
                else:
                    await asyncio.sleep(0)
        except Exception:
            return  # the log has stopped and reported why
        if swept_to is not None and not self._held_back:
            self._swept_to = swept_to

    def _release(self, segments: Sequence[Position], pages: Sequence[Position], roots: Sequence[Position],
                 runs: Sequence[str] = ()) -> None:
        """Record these releases, and the deletions since the last record, unless there is nothing to record."""
        done, self._done = self._done, []
        if segments or pages or roots or done or runs:
            self._record(Release(segments, pages, roots, done, runs))

    def _record(self, release: Release) -> None:
        self._log.block(self._log.shard).add(release)

    # --- rounds to free objects ---------------------------------------------------------------------------------------

    def _blocks_left(self) -> None:
        """Update the counts after blocks left their streams, and check whether a segment is free.

        This runs in slices and in turns of its own: one segment may remove blocks in a thousand places.
        """
        if self._tidying is None:
            self._tidying = asyncio.get_running_loop().call_soon(self._tidy)

    def _tidy(self) -> None:
        counts = self._log.state.counts
        self._tidying = None
        if counts.update(_TIDIED_AT_ONCE):
            self._tidying = asyncio.get_running_loop().call_soon(self._tidy)
        if counts.freed > self._swept_to:
            self._freed.set()

    async def _ask_for_rounds(self, checkpointer: Checkpointer) -> None:
        """Request rounds, however idle the log is, while a freed segment waits for roots after it."""
        state = self._log.state
        while True:
            self._freed.clear()
            if state.counts.freed <= self._swept_to:
                await self._freed.wait()
            rounds = checkpointer.rounds
            with suppress(TimeoutError):
                async with asyncio.timeout(_ROUNDS_APART_NS / 1e9):
                    await self._log.store_filled.wait()
            if self._log.full:
                await asyncio.sleep(_ROUNDS_APART_FULL_S)
            if checkpointer.rounds != rounds or state.counts.freed <= self._swept_to or not self._clock_trusted():
                continue  # a round ran anyway, or would free nothing
            if checkpointer.roots and state.position <= checkpointer.roots[-1].position:
                # A root is identified by its position. An empty record advances the position of an idle log.
                self._record(Release((), (), (), ()))
                try:
                    await self._log.persisted()
                except Exception:
                    return  # the log has stopped and reported why
            checkpointer.cut_soon()

    # --- deleting -----------------------------------------------------------------------------------------------------

    def segment_persisted(self, segment: Segment) -> None:
        """Delete the objects that the segment's records release, after the grace period."""
        released = self._log.state.released.get(segment.position)
        if released is not None:
            self._queue.append((self._clock.monotonic_ns() + self._grace_ns, released))
            self._wake.set()

    async def _run(self) -> None:
        while True:
            while not self._queue:
                self._wake.clear()
                await self._wake.wait()
            due_ns, released = self._queue[0]
            wait_ns = due_ns - self._clock.monotonic_ns()
            if wait_ns > 0 and not self._log.full:
                with suppress(TimeoutError):
                    async with asyncio.timeout(wait_ns / 1e9):
                        await self._log.store_filled.wait()
                continue
            if not self._clock_trusted():
                await asyncio.sleep(1.0)
                continue
            await self._delete(released)
            self._queue.popleft()
            self._done.append(released.position)
            if not self._queue:
                # Record this within a second, even without a round: otherwise the next owner would delete all again.
                self._release((), (), ())

    async def _delete(self, released: Released) -> None:
        """Delete all released objects, however often it takes; roots first, so that no root names a deleted one."""
        paths = self._paths
        await self._delete_all([paths.checkpoint(p) for p in released.roots])
        await self._delete_all([paths.pages(p) for p in released.pages])
        # No segment of our own epoch is a seal. Reading each header would cost as many GETs as all other work.
        ours = self._log.epoch
        await self._delete_all([paths.log(p) for p in released.segments if p.epoch != ours], spare_seals=True)
        await self._delete_all([paths.log(p) for p in released.segments if p.epoch == ours])
        await self._delete_all([key for key in released.runs if (parsed := parse(key)) is not None
                                and parsed.kind is ObjectKind.RUN and parsed.shard in (None, paths.shard)])

    async def _delete_all(self, keys: list[str], spare_seals: bool = False) -> None:
        for at in range(0, len(keys), _AT_ONCE):
            await asyncio.gather(*[self._delete_one(key, spare_seals) for key in keys[at:at + _AT_ONCE]])

    async def _delete_one(self, key: str, spare_seals: bool) -> None:
        backoff = Backoff(rng=self._rng)
        while True:
            try:
                if spare_seals and await self._is_seal(key):
                    return
                await self._store.delete(key)
                self.deleted += 1
                return
            except NotFound:
                return
            except StoreError as error:
                if backoff.tries == _TRIES_BEFORE_WARNING:
                    _log.warning("cannot delete %s: %s", key, error)
                await asyncio.sleep(backoff.next())

    async def _is_seal(self, key: str) -> bool:
        data = await self._store.get(key, 0, HEADER_BYTES)
        try:
            return ObjectHeader.unpack(data, key).kind == ObjectKind.SEAL
        except FormatError:
            return False  # it is damaged, but released, so nothing needs it

    async def _find_orphans(self, epoch: int, checkpointer: Checkpointer) -> None:
        """Find objects of earlier epochs that neither the log nor our roots know."""
        log, orphans = self._log, self._orphans
        try:
            orphans["segments"] |= await orphan_segments(self._store, self._paths, log.state, epoch, self._is_seal,
                                                        self._retry, self._retry)
            pages = await orphan_pages(self._store, self._paths, epoch, self._retry)
            runs = await orphan_runs(self._store, self._paths, log.state, epoch, self._retry)
            self._orphan_runs += [key for key in runs if key not in self._orphan_runs]
        except StoreError as error:
            _log.debug("the search for orphans was not completed: %s", error)  # the log has stopped
            return
        except Exception:
            _log.exception("the search for orphans failed; the next owner repeats it")
            return
        pages -= frozenset().union(*(root.objects for root in checkpointer.roots))
        pages.difference_update(*(released.pages for released in log.state.released.values()))
        orphans["pages"].update(pages)
        # Release them now: an idle log has no next round.
        if self._clock_trusted() and log.failure is None:
            some, some_pages = sorted(orphans["segments"])[:_POSITIONS_MAX], sorted(orphans["pages"])[:_POSITIONS_MAX]
            self._release(some, some_pages, [], self._unneeded_runs())
            orphans["segments"].difference_update(some)
            orphans["pages"].difference_update(some_pages)

    async def _list(self, prefix: str) -> list[str]:
        return [info.key for info in await self._retry(prefix, lambda: self._store.list(prefix))]

    async def _retry(self, what: str, ask: Callable[[], Awaitable[T]]) -> T:
        """Return the store's answer, however long that takes, since nothing waits for it. Raises: NotFound; StoreError
        after the log has failed."""
        return await until_answered(
            ask, self._rng, lambda _: self._log.failure is not None,
            lambda error: _log.warning("cannot decide yet what to delete: %s cannot be read: %s", what, error))
