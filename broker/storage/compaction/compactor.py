"""The compactor: it merges small and half-dead blocks of one shard into runs, in the background.

    enough small objects, or quiet ──> inventory ──> groups ──┐
      ┌───────────────────────────────────────────────────────┘
      └─ a group: find its blocks ──> read ──> merge (in a thread) ──> put the run ──> one record adopts its blocks
           record persisted ──> applied ──> live streams notified ──> old objects released, and deleted after the grace

Nothing is lost, whenever the process ends. Until the record is persisted, the stream has the old blocks, and the run is
an orphan, which the next owner finds. Afterwards the stream has the new blocks. Messages that are removed between
reading and the record stay removed: applying the record marks as dead what the old blocks no longer have
(``storage.state.swap``). A fenced owner's record is never persisted, and no other owner adopts its runs.

Owns: the times of work, its speed, and the order of the steps. Does not own: the choice of objects (``plan``), reading
(``source``), joining blocks (``merge``), the records (``adopter``), deleting (``storage.checkpoint.sweeper``).
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from hashlib import sha256
from typing import Any

from broker.base.clock import Clock
from broker.storage.checkpoint.checkpointer import Checkpointer
from broker.storage.checkpoint.sweeper import Sweeper
from broker.storage.compaction.adopter import Adopter, runs_of
from broker.storage.compaction.inventory import ObjectKey, StoredObject, make_inventory
from broker.storage.compaction.merge import Damaged, Piece, Run, merge
from broker.storage.compaction.plan import cut, groups
from broker.storage.compaction.recent import RecentSegments
from broker.storage.compaction.settings import CompactionSettings
from broker.storage.compaction.source import Found, Source
from broker.storage.format.block import BlockPlace
from broker.storage.format.errors import Corrupt
from broker.storage.format.header import ObjectKind, Position
from broker.storage.format.staged import STAGED_EPOCH
from broker.storage.log.listener import LogListener
from broker.storage.log.log import Log
from broker.storage.log.putter import Segment
from broker.storage.objectstore.base import StoreError
from broker.storage.paths import ShardPaths, StreamPaths, parse
from broker.storage.put import key_taken_error, put_ours
from broker.storage.state.erasures import StoredFile
from broker.storage.state.seq_ranges import SeqRanges
from broker.storage.state.table import RunKey, log_keys, run_keys

__all__ = ["Compactor"]

_log = logging.getLogger(__name__)


class Compactor(LogListener):
    """The compaction of one shard by its owner.

    Attributes: ``merges``, ``written_bytes``, ``blocks_in``, ``blocks_out``: counts since the start.
    """

    def __init__(self, log: Log, paths: ShardPaths, checkpointer: Checkpointer, sweeper: Sweeper, clock: Clock,
                 rng: random.Random, settings: CompactionSettings, *, executor: Executor | None = None,
                 clock_trusted: Callable[[], bool] = lambda: True) -> None:
        self.settings = settings
        self.stored_bytes: dict[int, int] = {}
        """The bytes of each stream's blocks in the store, as the last complete inventory found them."""
        self.merges = self.written_bytes = self.blocks_in = self.blocks_out = 0
        self._log = log
        self._store = log.store
        self._paths = paths
        self._checkpointer = checkpointer
        self._adopter = Adopter(log, checkpointer, sweeper, clock, settings)
        self._sweeper = sweeper
        self._clock = clock
        self._rng = rng
        self._executor = executor
        self._clock_trusted = clock_trusted
        self._recent = RecentSegments(settings.recent_bytes)
        self._source = Source(log, paths, clock, rng, self._recent)
        self._segments = 0
        """The number of segments persisted since the last inventory."""
        self._before_quiet = 0
        self._quiet = False
        self._timer: asyncio.TimerHandle | None = None
        self._wake = asyncio.Event()
        self.working = asyncio.Lock()
        """Held while blocks are moved: no run with a removed message is made while another task has it."""
        self._made: list[StoredFile] | None = None
        self._hurried = False
        self.not_emptied: set[ObjectKey] = set()
        self._sealed: set[tuple[int, int, int]] = set()
        """Runs that this process has sealed although their epochs are those of plain ones: see ``ShardKeys.begin``."""
        self._task: asyncio.Task[None] | None = None

    @property
    def read_bytes(self) -> int:
        """The bytes read from the store since the start."""
        return self._source.read_bytes

    def figures(self) -> dict[str, int]:
        """Return the counts for monitoring."""
        return {"merges": self.merges, "blocks_in": self.blocks_in, "blocks_out": self.blocks_out,
                "read_bytes": self.read_bytes, "written_bytes": self.written_bytes}

    def start(self) -> None:
        """Start the background task; it first considers older segments once the shard is quiet."""
        self._log.listen(self)
        self._start_quiet_timer()
        self._task = asyncio.get_running_loop().create_task(self._run(), name="compaction")

    async def stop(self) -> None:
        """Stop the background task; a run that was put and not adopted is an orphan."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)

    # --- the times of work --------------------------------------------------------------------------------------------

    def segment_persisted(self, segment: Segment) -> None:
        """Count a segment towards the next merge, and keep its bytes for it if it is small."""
        if any(block.stream_id for block in segment.sealed):
            self._segments += 1
            if segment.data is not None and segment.raw_bytes < self.settings.large_bytes:
                self._recent.add(self._paths.log(segment.position), segment.data)
            if self._segments >= self.settings.segments:
                self._wake.set()
            if self._timer is None:
                self._start_quiet_timer()

    def _start_quiet_timer(self) -> None:
        self._before_quiet = self._segments
        self._timer = asyncio.get_running_loop().call_later(self.settings.quiet_ns / 1e9, self._check_quiet)

    def _check_quiet(self) -> None:
        self._timer = None
        if self._segments == self._before_quiet:
            self._quiet = True
            self._wake.set()
        else:
            self._start_quiet_timer()

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            quiet, self._quiet, self._segments = self._quiet, False, 0
            done = False
            try:
                await self.work(quiet)
                done = quiet
            except StoreError as error:
                if self._log.failure is not None:
                    return
                _log.warning("compaction continues later: %s", error)
            except Exception as error:
                if self._log.failure is not None:
                    return
                _log.error("compaction failed; it continues later", exc_info=error)
            if self._timer is None and not done:
                self._start_quiet_timer()

    async def work(self, quiet: bool) -> None:
        """Merge all groups that the plan finds now; concurrent calls wait for each other.

        Args: ``quiet``: plan as if nothing had been committed for a while.
        Raises: StoreError once the log has failed.
        """
        async with self.working:
            while await self._round(quiet):
                pass

    def erase(self, erased: Mapping[int, SeqRanges]) -> None:
        """Leave these sequences out of all merges from now on, as far as they are removed; by stream."""
        self._source.erased = erased

    async def empty(self, keys: Collection[ObjectKey]) -> list[StoredFile]:
        """Move all live blocks out of these objects, whatever it costs, as far as they can be read.

        The caller holds ``working``. Returns: the runs that were made; ``not_emptied`` are the objects that have live
        blocks left, because these are damaged. Raises: StoreError once the log has failed.
        """
        made: list[StoredFile] = []
        self._made = made
        try:
            while True:
                objects = await self._inventory(self._source.damaged, only=keys)
                moved = False
                for group in cut(objects, self.settings.merge_bytes):
                    while not self._may_work():
                        if self._log.failure is not None:
                            raise self._log.failure
                        await asyncio.sleep(1.0)
                    try:
                        moved = await self._merge(group, forced=True) or moved
                    except Damaged as error:
                        self._source.damaged.add(error.block)
                        moved = True
                        _log.warning("erasure cannot move a damaged block: %s", error)
                if not moved:
                    left = await self._inventory((), only=keys)
                    self.not_emptied = {one.key for one in left}
                    return made
        finally:
            self._made = None

    def release_orphans(self, keys: Iterable[str]) -> None:
        """Release those of ``keys`` that are runs of streams of this shard and that no table names.

        The caller holds ``working``, so none of them is about to be adopted. Staged runs are left to the inbox. An
        owner of an earlier shard of the stream may have put such a run and been killed; its epoch says nothing here.
        """
        state, orphans = self._log.state, []
        released = frozenset().union(*(one.runs for one in state.released.values()))
        for text in keys:
            key = parse(text)
            if (text in released or key is None or key.kind is not ObjectKind.RUN or key.incarnation is None
                    or key.position is None or key.position.epoch == STAGED_EPOCH):
                continue
            stream, run = state.streams.get(key.incarnation), (*key.position, key.object_id, key.incarnation)
            if (stream is not None and stream.departed is None and stream.offline is None
                    and not state.counts.has_counted(run)):
                orphans.append(text)
        self._sweeper.release_runs(orphans)

    async def isolate(self, stream_id: int, *, hurried: bool = False) -> int:
        """Move the blocks of a stream that there are now out of objects that it shares with other streams.

        The caller holds ``working``. Args: ``hurried``: without pauses. Returns: the bytes of the blocks.
        Raises: FormatError: one of them cannot be read; StoreError once the log has failed.
        """
        moved_bytes, moved = 0, True
        self._hurried = hurried
        try:
            objects = await self._inventory(shared_of=stream_id)
            for group in cut(objects, self.settings.merge_bytes):
                if self._log.failure is not None:
                    raise self._log.failure
                moved = await self._merge(group, forced=True, alone=True)
                moved_bytes += sum(one.live_bytes for one in group)
            if not moved:  # all messages were removed while they were read, or they cannot be read
                for one in await self._inventory(shared_of=stream_id):
                    if one.key in {before.key for before in objects}:
                        raise Corrupt(f"stream {stream_id:016x}", "blocks", 0,
                                      f"those of object {one.key} cannot be read")
            return moved_bytes
        except Damaged as error:
            raise error.why from None
        finally:
            self._hurried = False

    @asynccontextmanager
    async def without_rounds(self) -> AsyncIterator[None]:
        """Let no checkpoint round run in the body, so that ``isolate`` waits for none."""
        async with self._checkpointer.paused():
            yield

    async def _round(self, quiet: bool) -> bool:
        """Make one inventory, and merge the groups that it gives; return True if there may be more."""
        began_ns = self._clock.monotonic_ns()
        source = self._source
        stored_bytes: dict[int, int] = {}
        objects = await self._inventory(source.damaged, self._adopter.excluded(), stored_bytes)
        emptiable = source.keep_emptiable(objects)
        found = groups(objects, self.settings, quiet)
        if quiet and not found:
            # Measuring costs requests. These objects will not change, so each is measured only once.
            await source.measure([one for one in emptiable if one.live_bytes < self.settings.object_bytes])
            found = groups(objects, self.settings, quiet) or cut(await self._inventory(
                source.damaged, self._adopter.excluded(), mixed=True), self.settings.merge_bytes)
        self.stored_bytes = stored_bytes or self.stored_bytes
        await self._pause(self._clock.monotonic_ns() - began_ns)
        merged = False
        for group in found:
            if not self._may_work():
                return False
            try:
                merged = await self._merge(group) or merged
            except Damaged as error:
                self._source.damaged.add(error.block)
                merged = True  # the next round tries the other blocks of this group again, without the damaged one
                _log.warning("compaction leaves a damaged block where it is: %s", error)
        return merged

    async def _inventory(self, *args: Any, **more: Any) -> list[StoredObject]:
        return await make_inventory(self._log.state, self.settings, *args, **more, sealed=self._sealed,
                                    plain_before=self._log.settings.codec.plain_before)

    def _may_work(self) -> bool:
        """Return False once the lease has expired or the log has failed, and while the clock is not trusted."""
        log = self._log
        return not log.lease_expired and log.failure is None and self._clock_trusted()

    async def _pause(self, busy_ns: int, size: int = 0, puts: int = 0) -> None:
        """Sleep as long as the settings require after work of ``busy_ns``, ``size`` bytes of traffic and ``puts``."""
        if self._hurried:
            return
        settings = self.settings
        seconds = max(busy_ns / 1e9 * (1 / settings.cpu - 1), size / settings.bytes_per_second,
                      puts / settings.puts_per_second)
        await asyncio.sleep(seconds)

    # --- one group ----------------------------------------------------------------------------------------------------

    async def _merge(self, group: Sequence[StoredObject], *, forced: bool = False, alone: bool = False) -> bool:
        """Merge one group, and adopt its runs. ``forced``: even if that joins no blocks; ``alone``: each stream has a
        run of its own.

        Returns: True if a block was adopted, or if blocks were found to be unreadable, which changes the next
            inventory.
        Raises: Damaged; StoreError once the log has failed.
        """
        state = self._log.state
        position = state.position
        found: list[Found] = []
        for neighbours in self._source.find_blocks(group):
            found.append(neighbours)
            await self._source.yield_after(len(neighbours.entries))
        if not forced and sum(len(one.entries) for one in found) < 2 and not any(
                one.large_dead_bytes or one.mostly_dead or one.plain for one in group):
            return False
        damaged_before = len(self._source.damaged)
        pieces = await self._source.read(found)
        if not pieces:
            return len(self._source.damaged) > damaged_before
        adopted = False
        for stream_id, some in self._runs(pieces, 0 if alone else self.settings.object_bytes):
            adopted = await self._write(position, stream_id, some) or adopted
        self.merges += 1
        return adopted or len(self._source.damaged) > damaged_before

    def _runs(self, pieces: Sequence[Piece], least: int) -> Iterator[tuple[int, list[Piece]]]:
        """Yield the stream and the pieces of each run.

        A stream with ``least`` live bytes gets a run of its own. All others share one run, with 0 for the
        stream. The plan does not merge an object with ``object_bytes`` again. So at most one of the runs is merged
        again, and merging ends in any case, even if dead messages are kept.
        """
        shared: list[Piece] = []
        streams: defaultdict[int, list[Piece]] = defaultdict(list)
        for piece in pieces:
            streams[piece.stream_id].append(piece)
        for stream_id, some in streams.items():
            if sum(piece.live_bytes for piece in some) >= least:
                yield stream_id, some
            else:
                shared += some
        if shared:
            yield 0, shared

    async def _write(self, position: Position, stream_id: int, pieces: list[Piece]) -> bool:
        """Merge ``pieces`` into a run, put it and adopt its blocks; return True if a block was adopted."""
        run_id = self._rng.getrandbits(64) or 1
        key = self._paths.run(position, run_id)
        if stream_id:
            stream = self._log.state.streams.get(stream_id)
            if stream is None:
                return False
            key = StreamPaths(stream.account, stream.name, stream_id).run(position, run_id)
        began_ns = self._clock.monotonic_ns()
        run = await self._encode(pieces, position, run_id, BlockPlace.STREAM_RUN if stream_id else BlockPlace.RUN)
        busy_ns = self._clock.monotonic_ns() - began_ns
        adopted = False
        if run is not None:
            await self._put(key, run.data)
            self.written_bytes += run.size
            if any(self._log.settings.codec.plain_before(one.stream_id) > position.epoch for one in pieces):
                self._sealed.add((*position, run_id))
            if self._made is not None:
                self._made.append(StoredFile(key, run.size, _sha256(run.data)))
            # Live streams read from old and from new objects until the last record. Between two records the run may
            # have no live block, and must not be released nevertheless.
            self._sweeper.protect({*runs_of(run), *_objects_of(pieces)})
            adopted = await self._adopter.adopt(run, key)
            self._sweeper.protect(frozenset())
            self.blocks_in += sum(len(piece.inputs) for piece in pieces)
            self.blocks_out += len(run.blocks)
        read_bytes = sum(len(one.index_data) + len(one.frames_data) for piece in pieces for one in piece.inputs)
        await self._pause(busy_ns, read_bytes + (run.size if run is not None else 0), run is not None)
        return adopted

    async def _encode(self, pieces: list[Piece], position: Position, run_id: int, place: BlockPlace) -> Run | None:
        codec, nonce = self._log.settings.codec, self._log.nonce
        if self._executor is None:
            return merge(pieces, position, run_id, nonce, codec, self.settings, place)
        return await asyncio.get_running_loop().run_in_executor(
            self._executor, merge, pieces, position, run_id, nonce, codec, self.settings, place, _release_gil)

    async def _put(self, key: str, data: list[bytes]) -> None:
        async def put() -> None:
            holder = await put_ours(self._store, key, data, self._log.nonce)
            if holder is not None:
                raise key_taken_error(holder, key)

        try:
            await self._source.call_store(put, f"put {key}")
        except (StoreError, asyncio.CancelledError):
            self._sweeper.abandon_run(key)  # the run may be in the store, or may appear there later
            raise


def _sha256(data: Sequence[bytes]) -> bytes:
    digest = sha256()
    for part in data:
        digest.update(part)
    return digest.digest()


def _objects_of(pieces: Sequence[Piece]) -> Iterator[int | RunKey]:
    for piece in pieces:
        packed = [one.ref.pack() for one in piece.inputs]
        yield from log_keys(packed)
        yield from run_keys(piece.stream_id, packed)


def _release_gil() -> None:
    """Sleep for a moment, so that the loop's thread can run without waiting for a switch interval."""
    time.sleep(0.0005)
