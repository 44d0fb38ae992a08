"""Merges small and half-dead blocks of one shard into runs, in the background.

    enough small objects, or quiet ──> inventory ──> groups ──┐
      ┌───────────────────────────────────────────────────────┘
      └─ a group: look up its blocks ──> read ──> merge (in a thread) ──> put the run ──> one record adopts its blocks
           record persisted: applied ──> live streams told ──> old objects released by a round, deleted after the grace

Nothing is lost at any step, whenever the process ends: until the record is persisted the old blocks are the stream's, and
the run is an orphan, which the next owner finds; from then on the new ones are. What is removed between reading and the
record stays removed, since applying the record marks as dead what the old blocks no longer have (``storage.state.swap``). A
fenced owner's record is never persisted, and no other owner adopts its runs.

Owns: when to work, how fast, and the order of the steps. Does not own: which objects (``plan``), reading (``source``), how
blocks are joined (``merge``), the records (``adopter``), deleting (``storage.checkpoint.sweeper``).
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor

from broker.base.clock import Clock
from broker.storage.checkpoint.checkpointer import Checkpointer
from broker.storage.checkpoint.sweeper import Sweeper
from broker.storage.compaction.adopter import Adopter, runs_of
from broker.storage.compaction.inventory import StoredObject, take_inventory
from broker.storage.compaction.merge import Damaged, Piece, Run, merge
from broker.storage.compaction.plan import groups
from broker.storage.compaction.recent import RecentSegments
from broker.storage.compaction.settings import CompactionSettings
from broker.storage.compaction.source import Found, Source
from broker.storage.format.block import BlockPlace
from broker.storage.format.header import Position
from broker.storage.log.listener import LogListener
from broker.storage.log.log import Log
from broker.storage.log.putter import Segment
from broker.storage.objectstore.base import StoreError
from broker.storage.paths import ShardPaths, StreamPaths
from broker.storage.put import key_taken_error, put_ours
from broker.storage.state.table import RunKey, log_keys, run_keys

__all__ = ["Compactor"]

_log = logging.getLogger(__name__)

class Compactor(LogListener):
    """Compaction of one shard, by its owner.

    Attributes: ``merges``, ``written_bytes``, ``blocks_in``, ``blocks_out``: since the start.
    """

    def __init__(self, log: Log, paths: ShardPaths, checkpointer: Checkpointer, sweeper: Sweeper, clock: Clock,
                 rng: random.Random, settings: CompactionSettings, *, executor: Executor | None = None,
                 clock_trusted: Callable[[], bool] = lambda: True) -> None:
        self.settings = settings
        self.stored_bytes: dict[int, int] = {}
        """By stream, what its blocks took in the store at the last look: after some segments, or once it was quiet."""
        self.merges = self.written_bytes = self.blocks_in = self.blocks_out = 0
        self._log = log
        self._store = log.store
        self._paths = paths
        self._adopter = Adopter(log, checkpointer, sweeper, clock, settings)
        self._sweeper = sweeper
        self._clock = clock
        self._rng = rng
        self._executor = executor
        self._clock_trusted = clock_trusted
        self._recent = RecentSegments(settings.recent_bytes)
        self._source = Source(log, paths, clock, rng, self._recent)
        self._segments = 0
        """Persisted since the last inventory."""
        self._before_quiet = 0
        self._quiet = False
        self._timer: asyncio.TimerHandle | None = None
        self._wake = asyncio.Event()
        self._working = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    @property
    def read_bytes(self) -> int:
        """Since the start."""
        return self._source.read_bytes

    def figures(self) -> dict[str, int]:
        """For monitoring."""
        return {"merges": self.merges, "blocks_in": self.blocks_in, "blocks_out": self.blocks_out,
                "read_bytes": self.read_bytes, "written_bytes": self.written_bytes}

    def start(self) -> None:
        """Work from now on; what was there before the start is looked at once it is quiet."""
        self._log.listen(self)
        self._arm()
        self._task = asyncio.get_running_loop().create_task(self._run(), name="compaction")

    async def stop(self) -> None:
        """End; what was merged and not adopted is an orphan."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)

    # --- when ---------------------------------------------------------------------------------------------------------

    def segment_persisted(self, segment: Segment) -> None:
        """Count it towards the next merge, which needs its bytes."""
        if any(block.stream_id for block in segment.sealed):
            self._segments += 1
            if segment.data is not None and segment.raw_bytes < self.settings.large_bytes:
                self._recent.add(self._paths.log(segment.position), segment.data)
            if self._segments >= self.settings.segments:
                self._wake.set()
            if self._timer is None:
                self._arm()

    def _arm(self) -> None:
        self._before_quiet = self._segments
        self._timer = asyncio.get_running_loop().call_later(self.settings.quiet_ns / 1e9, self._quiet_due)

    def _quiet_due(self) -> None:
        self._timer = None
        if self._segments == self._before_quiet:
            self._quiet = True
            self._wake.set()
        else:
            self._arm()

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
                _log.warning("compaction goes on later: %s", error)
            except Exception as error:
                if self._log.failure is not None:
                    return
                _log.error("compaction failed; it goes on later", exc_info=error)
            if self._timer is None and not done:
                self._arm()

    async def work(self, quiet: bool) -> None:
        """Merge what there is to merge now; ``quiet``: as if nothing had been committed for a while. Not more than one at a
        time. Raises: StoreError once the log has failed."""
        async with self._working:
            while await self._round(quiet):
                pass

    async def _round(self, quiet: bool) -> bool:
        """Carry out what there is to merge now; returns whether there may be more."""
        began_ns = self._clock.monotonic_ns()
        source = self._source
        stored_bytes: dict[int, int] = {}
        objects = await take_inventory(self._log.state, self.settings, source.damaged, self._adopter.still_kept(), stored_bytes)
        whole = source.settle(objects)
        found = groups(objects, self.settings, quiet)
        if quiet and not found:
            # What is left now stays as it is, so it is looked at once.
            await source.measure([one for one in whole if one.live_bytes < self.settings.object_bytes])
            found = groups(objects, self.settings, quiet)
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
                merged = True  # the others of its group are to be tried again, without it
                _log.warning("compaction leaves a damaged block where it is: %s", error)
        return merged

    def _may_work(self) -> bool:
        """Not past the lease, nor while the clock is not believed."""
        log = self._log
        return not log.lease_expired and log.failure is None and self._clock_trusted()

    async def _pause(self, busy_ns: int, size: int = 0, puts: int = 0) -> None:
        """Make up for work of ``busy_ns``, for ``size`` bytes of traffic and for ``puts``."""
        settings = self.settings
        seconds = max(busy_ns / 1e9 * (1 / settings.cpu - 1), size / settings.bytes_per_second, puts / settings.puts_per_second)
        await asyncio.sleep(seconds)

    # --- one group ----------------------------------------------------------------------------------------------------

    async def _merge(self, group: Sequence[StoredObject]) -> bool:
        """Returns whether it came to something. Raises: Damaged; StoreError once the log has failed."""
        state = self._log.state
        position = state.position
        found: list[Found] = []
        for neighbours in self._source.look_up(group):
            found.append(neighbours)
            await self._source.turn(len(neighbours.entries))
        if sum(len(one.entries) for one in found) < 2 and not any(one.large_dead_bytes or one.mostly_dead for one in group):
            return False
        readable = len(self._source.damaged)
        pieces = await self._source.read(found)
        if not pieces:
            return len(self._source.damaged) > readable
        adopted = False
        for stream_id, some in self._runs(pieces):
            adopted = await self._write(position, stream_id, some) or adopted
        self.merges += 1
        return adopted or len(self._source.damaged) > readable

    def _runs(self, pieces: Sequence[Piece]) -> Iterator[tuple[int, list[Piece]]]:
        """The pieces of each run, and the stream that it belongs to alone: those that have enough for one; 0: the rest.

        Enough is what the inventory calls enough. So at most one of the runs is merged again, and a merge of objects without
        end is not possible, also where the dead stay.
        """
        shared: list[Piece] = []
        streams: defaultdict[int, list[Piece]] = defaultdict(list)
        for piece in pieces:
            streams[piece.stream_id].append(piece)
        for stream_id, some in streams.items():
            if sum(piece.live_bytes for piece in some) >= self.settings.object_bytes:
                yield stream_id, some
            else:
                shared += some
        if shared:
            yield 0, shared

    async def _write(self, position: Position, stream_id: int, pieces: list[Piece]) -> bool:
        """Merge ``pieces`` into a run, put it and adopt its blocks; returns whether any was."""
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
            # Live streams read from the old or from the new objects until the last record. Between two records the run may
            # have no live block, and is needed all the same.
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
            self._executor, merge, pieces, position, run_id, nonce, codec, self.settings, place, _give_way)

    async def _put(self, key: str, data: list[bytes]) -> None:
        async def put() -> None:
            holder = await put_ours(self._store, key, data, self._log.nonce)
            if holder is not None:
                raise key_taken_error(holder, key)

        try:
            await self._source.asked(put, f"put {key}")
        except (StoreError, asyncio.CancelledError):
            self._sweeper.abandon_run(key)  # it may have landed, or may land yet
            raise

def _objects_of(pieces: Sequence[Piece]) -> Iterator[int | RunKey]:
    for piece in pieces:
        packed = [one.ref.pack() for one in piece.inputs]
        yield from log_keys(packed)
        yield from run_keys(piece.stream_id, packed)


def _give_way() -> None:
    """Let the loop's thread run, if it has something to do: it would otherwise wait for a switch interval, again and again."""
    time.sleep(0.0005)
