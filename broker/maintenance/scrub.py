"""Scrubbing reads all stored objects repeatedly and slowly, and checks them.

It checks the same as ``jetblock fsck``: header and key, sizes, checksums, the parts of an object against each other;
and that every object with live blocks exists.

    wait ── for each folder: list it ── read each object, no faster than the rate ── check it in a thread
      └──── until the next pass is due <── compare the listing with the objects of live blocks <──┘

Only the owner of the shard scrubs it. Its progress is kept in memory, so a new owner begins at the first object. A
damaged object is recorded, and the next one is read; nothing is repaired, moved or deleted.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from array import array
from bisect import bisect_left
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeVar

from broker.base.clock import Clock
from broker.inspect.objects import Checked, Fault, check_object
from broker.inspect.problems import RESTORE, Problem, of_error
from broker.inspect.source import Source
from broker.storage.format.block import BlockPlace
from broker.storage.format.header import ObjectKind, Position, key_position, position_key
from broker.storage.format.staged import STAGED_EPOCH
from broker.storage.objectstore import NotFound, ObjectInfo, ObjectStore, StoreError
from broker.storage.paths import FORMAT, STREAMS, Key, ShardPaths, parse, run_key
from broker.storage.state.applied import ShardState
from broker.storage.state.entry import as_entry
from broker.storage.state.stream import StreamState
from broker.storage.state.table import RunKey

__all__ = ["Affected", "Finding", "ScrubSettings", "Scrubber"]

_log = logging.getLogger(__name__)

T = TypeVar("T")

_PAGE = 1000
_OBJECT_BYTES = 64 << 10
"""Bytes that a smaller object counts as: its request takes as long as reading this many bytes."""
_SLICE = 4096
"""Number of segments that are compared in one turn of the loop."""
_RUNS_SLICE = 256
"""Number of runs that are compared in one turn; it is lower, because making their keys takes time."""
_FINDINGS_MAX = 1000
_SHOWN_MAX = 20
_TRY_AGAIN_SECONDS = 60.0
_TRIES = 3
"""Number of tries to read an object whose folder can be listed; after them a pass reads the next object."""

_MEANS = {
    ObjectKind.CLAIM: "nothing needs it as long as its key exists",
    ObjectKind.ROOT: "the next start uses another checkpoint, if one is undamaged",
    ObjectKind.PAGES: "checkpoints that name it cannot be used by the next start",
    ObjectKind.INBOX: "the request will not be granted",
    ObjectKind.FORMAT: "the next start will be refused",
    ObjectKind.SEAL: "the next start may be refused",
    ObjectKind.SEGMENT: "the next start may be refused, if it has to read this entry",
    ObjectKind.RUN: "the messages that streams have in it cannot be read",
}
"""The consequence of damage to an object of each kind."""


@dataclass(frozen=True, slots=True)
class ScrubSettings:
    """The pace of scrubbing."""

    interval_ns: int = 7 * 86_400_000_000_000
    """The time from the beginning of a pass to the beginning of the next one."""
    bytes_per_second: int = 1 << 20


class Affected(NamedTuple):
    """Messages in a damaged part of an object; their stream may already read them from a newer object."""

    account: str
    stream: str
    first_seq: int
    last_seq: int


@dataclass(frozen=True, slots=True)
class Finding:
    """A damaged or missing object."""

    problem: Problem
    affected: tuple[Affected, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {"object": self.problem.object, "what": self.problem.what, "means": self.problem.means}


@dataclass(slots=True)
class _Place:
    """The progress of one pass."""

    folder: int = 0
    after: str = ""
    """The last key that was read in the folder."""
    upto: Position | None = None
    """The log's position at the beginning of the pass."""
    log: array[int] = field(default_factory=lambda: array("Q"))
    """The positions of the log entries listed so far."""
    runs: set[str] = field(default_factory=set)
    """The keys of the runs listed so far."""
    failed: str = ""
    """The key of the object whose reading failed last, ``tries`` times in a row."""
    tries: int = 0
    found: set[str] = field(default_factory=set)
    """The keys of the pass's findings, at most ``_FINDINGS_MAX``."""
    more: int = 0
    """The number of further findings."""


class Scrubber:
    """Scrubs one shard's store: call ``start`` when this process owns the shard, and ``stop`` when it no longer does.

    Attributes: ``passes``: number of completed passes; ``objects``, ``bytes``: the objects and bytes that it checked.
    """

    def __init__(self, store: ObjectStore, paths: ShardPaths, clock: Clock, settings: ScrubSettings,
                 found: Callable[[Finding], object] = lambda _: None) -> None:
        """Make a scrubber; ``found`` is called on the loop, once for each damaged or missing object."""
        self.settings = settings
        self.passes = self.objects = self.bytes = 0
        self._store = store
        self._paths = paths
        self._clock = clock
        self._found = found
        self._findings: dict[str, Finding] = {}
        self._more = 0
        """The number of findings of the last pass that are not in ``_findings``."""
        self._reported: set[str] = set()
        self._place = _Place()
        self._began_ns: int | None = None
        self._state: Callable[[], ShardState] | None = None
        self._task: asyncio.Task[None] | None = None
        self._thread: _LoopThread | None = None
        self._due_ns = 0
        """The time from which the rate allows more bytes."""

    @property
    def damaged(self) -> int:
        """The number of objects that were damaged or missing at their last check."""
        return len(self._findings) + max(self._more, self._place.more)

    def figures(self) -> dict[str, Any]:
        """Return the counts and the first findings, for monitoring."""
        shown = [one.to_json() for one in list(self._findings.values())[:_SHOWN_MAX]]
        return {"passes": self.passes, "objects": self.objects, "bytes": self.bytes, "at": self._place.after,
                "damaged": self.damaged, "findings": shown}

    def start(self, state: Callable[[], ShardState]) -> None:
        """Start the background task; ``state`` returns the shard's applied state."""
        self._state = state
        self._task = asyncio.get_running_loop().create_task(self._run(), name="scrub")

    async def stop(self) -> None:
        """Stop the background task; a later ``start`` continues at the same object."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        thread, self._thread = self._thread, None
        if thread is not None:
            await thread.stop()
        self._state = None

    async def _run(self) -> None:
        settings = self.settings
        while True:
            if self._began_ns is None:
                self._began_ns = self._clock.monotonic_ns()
            try:
                await self.scrub()
            except StoreError as error:
                _log.warning("scrubbing continues later: %s", error)
                await asyncio.sleep(_TRY_AGAIN_SECONDS)
                continue
            except Exception:
                _log.exception("scrubbing failed; it begins anew later")
                self._place = _Place()
            began_ns, self._began_ns = self._began_ns, None
            await asyncio.sleep(max(0, began_ns + settings.interval_ns - self._clock.monotonic_ns()) / 1e9)

    # --- one pass -----------------------------------------------------------------------------------------------------

    async def scrub(self) -> None:
        """Carry out one pass, or the rest of an interrupted one. Raises: StoreError; the next call continues."""
        assert self._state is not None
        place, paths = self._place, self._paths
        if place.upto is None:
            place.upto = self._state().position
        folders = (paths.epochs, paths.logs, paths.checkpoints, paths.page_objects, paths.runs, paths.requests, STREAMS,
                   FORMAT)
        if self._thread is None:
            self._thread = _LoopThread(f"scrub {self._store.url}")
        source = _Paced(self._store, asyncio.get_running_loop(), self._pace)
        while place.folder < len(folders):
            async for info in self._listed(folders[place.folder], place.after):
                if not self._elsewhere(info):
                    await self._check(source, info)
                    self._record_listed(info)
                place.after = info.key
            place.folder, place.after = place.folder + 1, ""
        await self._compare()
        for key in self._findings.keys() - place.found:
            self._remove_finding(key)  # the object was deleted, and nothing needs it
        self._more = place.more
        self._place = _Place()
        self.passes += 1

    async def _listed(self, prefix: str, after: str) -> AsyncIterator[ObjectInfo]:
        while page := await self._store.list(prefix, after, _PAGE):
            for info in page:
                yield info
            after = page[-1].key

    def _elsewhere(self, info: ObjectInfo) -> bool:
        """Return whether the object is a run of a stream that is in another shard."""
        assert self._state is not None
        key = parse(info.key)
        return (key is not None and key.incarnation is not None
                and self._state().is_elsewhere(self._paths.shard, key.incarnation))

    def _record_listed(self, info: ObjectInfo) -> None:
        key = parse(info.key)
        if key is None:
            return
        if key.kind == ObjectKind.SEGMENT and key.position is not None:
            self._place.log.append(position_key(key.position))
        elif key.kind == ObjectKind.RUN:
            self._place.runs.add(info.key)

    async def _check(self, source: Source, info: ObjectInfo) -> None:
        key = parse(info.key)
        if key is None or self._thread is None:
            return
        try:
            checked = await self._thread.run(check_object(source, info, key, lambda *_: None))
        except StoreError as error:
            if not self._gives_up(info.key):
                raise
            means = _MEANS.get(key.kind, "it cannot be used")
            self._add_finding(Finding(Problem(info.key, f"it cannot be read: {error}", means, RESTORE)))
            return
        await self._pace(max(0, _OBJECT_BYTES - info.size))
        if not checked.gone:
            self.objects += 1
            self.bytes += info.size
        if checked.faults and not checked.gone and not self._unadopted(key):
            self._add_finding(await self._finding(checked))
        else:
            self._remove_finding(info.key)

    def _gives_up(self, key: str) -> bool:
        """Count a failed try to read an object; return True after the last try, when this pass skips the object."""
        place = self._place
        place.tries = place.tries + 1 if place.failed == key else 1
        place.failed = key
        return place.tries >= _TRIES

    async def _compare(self) -> None:
        """Find objects with live blocks that the listing did not have. Raises: StoreError."""
        assert self._state is not None
        place, state = self._place, self._state()
        assert place.upto is not None
        upto = position_key(place.upto)
        segments = list(state.counts.segments.items())
        for at in range(0, len(segments), _SLICE):
            for number, live in segments[at:at + _SLICE]:
                where = bisect_left(place.log, number)
                listed = where < len(place.log) and place.log[where] == number
                if live and number <= upto and not listed:
                    await self._expect(self._paths.log(key_position(number)), partial(self._live_segment, number))
            await asyncio.sleep(0)
        for at, run in enumerate(list(state.counts.runs), 1):
            if at % _RUNS_SLICE == 0:
                await asyncio.sleep(0)
            epoch, number, _, stream_id = run
            stream = state.streams.get(stream_id)
            if Position(epoch, number) > place.upto or (stream_id and stream is None):
                continue
            account, name = (stream.account, stream.name) if stream is not None else ("", "")
            if (key := run_key(self._paths, run, account, name)) not in place.runs:
                await self._expect(key, partial(self._live_run, run))

    def _live_segment(self, number: int) -> bool:
        assert self._state is not None
        return bool(self._state().counts.segments.get(number))

    def _live_run(self, run: RunKey) -> bool:
        assert self._state is not None
        return run in self._state().counts.runs

    async def _expect(self, key: str, named: Callable[[], bool]) -> None:
        """Report an object as missing if it does not exist, and ``named()``: it has live blocks. Raises: StoreError."""
        try:
            await self._store.get(key, 0, 1)
        except NotFound:
            if named():
                self._add_finding(Finding(Problem(key, "it is missing", _MEANS[ObjectKind.RUN], RESTORE)))

    # --- findings -----------------------------------------------------------------------------------------------------

    def _unadopted(self, key: Key) -> bool:
        """Return True for a staged run that no stream has: any program may have put it, and it will be deleted."""
        assert self._state is not None
        return (key.kind == ObjectKind.RUN and key.position is not None and key.position.epoch == STAGED_EPOCH
                and (*key.position, key.object_id, key.incarnation or 0) not in self._state().counts.runs)

    async def _finding(self, checked: Checked) -> Finding:
        assert self._state is not None
        fault: Fault = checked.faults[0]
        position = checked.key.position
        staged = checked.key.kind == ObjectKind.RUN and position is not None and position.epoch == STAGED_EPOCH
        affected = []
        for one in checked.faults:
            stream = self._state().streams.get(one.row.stream_id) if one.row is not None else None
            if stream is None or one.row is None:
                continue
            shift = 0
            if staged:  # Blocks of a staged run count from 1; the stream's block table has their actual sequences.
                if not (joined := await _joined_at(stream, checked.key, one.row.core_offset)):
                    continue
                shift = joined - one.row.first_seq
            if one.last_seq + shift >= max(stream.first_seq, 1):
                affected.append(Affected(stream.account, stream.name, max(one.first_seq + shift, stream.first_seq),
                                         one.last_seq + shift))
        texts = [f"stream {one.account}/{one.stream}: messages {one.first_seq} to {one.last_seq}, if it still reads "
                 f"them here, cannot be read" for one in dict.fromkeys(affected)]
        means = "; ".join(texts[:10]) if texts else _MEANS.get(checked.key.kind, "it cannot be used")
        return Finding(of_error(checked.info.key, fault.error, means), tuple(dict.fromkeys(affected)))

    def _add_finding(self, finding: Finding) -> None:
        key = finding.problem.object
        if key not in self._findings and len(self._findings) >= _FINDINGS_MAX:
            self._place.more += 1
            return
        self._findings[key] = finding
        self._place.found.add(key)
        if key in self._reported:
            return
        self._reported.add(key)
        problem = finding.problem
        _log.error("scrubbing found damage: %s: %s: %s; %s", self._store.url, problem, problem.means, problem.remedy)
        self._found(finding)

    def _remove_finding(self, key: str) -> None:
        if self._findings.pop(key, None) is not None:
            self._reported.discard(key)
            _log.info("%s: %s is undamaged again, or not needed any more", self._store.url, key)

    # --- pace ---------------------------------------------------------------------------------------------------------

    async def _pace(self, size: int) -> None:
        """Wait until the rate allows the ``size`` bytes that were read."""
        now_ns = self._clock.monotonic_ns()
        begin_ns = max(self._due_ns, now_ns)
        self._due_ns = begin_ns + size * 1_000_000_000 // self.settings.bytes_per_second
        await asyncio.sleep((begin_ns - now_ns) / 1e9)


async def _joined_at(stream: StreamState, key: Key, core_offset: int) -> int:
    """Return the first sequence of a staged block in the stream; 0 if the stream no longer has the block."""
    for page in list(stream.blocks.pages):
        if page.staged:
            for entry in map(as_entry, page.entries):
                ref = entry.ref
                if (ref.place is BlockPlace.STAGED and (ref.position, ref.object_id) == (key.position, key.object_id)
                        and ref.core_offset == core_offset):
                    return ref.first_seq
            await asyncio.sleep(0)
    return 0


class _Paced(Source):
    """A source for the checking thread's loop: its requests run on the broker's loop, at the set rate."""

    def __init__(self, store: ObjectStore, loop: asyncio.AbstractEventLoop,
                 pace: Callable[[int], Coroutine[Any, Any, None]]) -> None:
        super().__init__(store)
        self._bare = store
        self._loop = loop
        self._pace = pace

    async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._get(key, start, end), self._loop))

    async def _get(self, key: str, start: int, end: int | None) -> bytes:
        data = await self._bare.get(key, start, end)
        await self._pace(len(data))
        return data


class _LoopThread:
    """A thread with a loop of its own, so that checking does not block the broker's loop."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run ``work`` in the thread, and return its result."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    async def stop(self) -> None:
        """End the thread."""
        asyncio.run_coroutine_threadsafe(self._end(), self._loop)
        await asyncio.to_thread(self._thread.join)
        self._loop.close()

    async def _end(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._loop.stop()
