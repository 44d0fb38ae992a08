"""Merges small and half-dead blocks of one shard into runs, in the background.

    enough small objects, or quiet ──> inventory ──> groups ──┐
      ┌───────────────────────────────────────────────────────┘
      └─ a group: look up its blocks ──> read ──> merge (in a thread) ──> put the run ──> one record adopts its blocks
           record persisted: applied ──> live streams told ──> old objects released by a round, deleted after the grace

Nothing is lost at any step, whenever the process ends: until the record is persisted the old blocks are the stream's, and
the run is an orphan, which the next owner finds; from then on the new ones are. What is removed between reading and the
record stays removed, since applying the record marks as dead what the old blocks no longer have (``storage.state.swap``). A
fenced owner's record is never persisted, and no other owner adopts its runs.

Owns: when to work, how fast, and the order of the steps. Does not own: which objects (``plan``), how blocks are joined
(``merge``), what the record does (``storage.state``), deleting (``storage.checkpoint.sweeper``).
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Executor
from typing import NamedTuple, TypeVar

from broker.clock import Clock
from broker.storage.checkpoint.checkpointer import Checkpointer
from broker.storage.checkpoint.sweeper import Sweeper
from broker.storage.compaction.inventory import StoredObject, take_inventory
from broker.storage.compaction.merge import Damaged, Input, Piece, Run, merge
from broker.storage.compaction.plan import groups
from broker.storage.compaction.settings import CompactionSettings
from broker.storage.format.block import BlockPlace, BlockRef
from broker.storage.format.header import Position
from broker.storage.format.records.adoption import Adopted, Adoption
from broker.storage.log.listener import LogListener
from broker.storage.log.log import Log
from broker.storage.log.putter import Segment
from broker.storage.objectstore.base import NotFound, StoreError
from broker.storage.paths import ShardPaths, StreamPaths, block_key
from broker.storage.put import describe, put_ours, until_answered
from broker.storage.state.dead import DeadSet
from broker.storage.state.stream import StreamState
from broker.storage.state.table import BlockEntry, RunKey, log_keys, run_keys

__all__ = ["Compactor"]

_log = logging.getLogger(__name__)

T = TypeVar("T")

_REPLACED_AT_ONCE = 1024
"""Blocks that one record replaces, so that applying it takes some milliseconds. More need more records."""
_READS_AT_ONCE = 8
_TURN_WEIGHT = 512
_GAP_BYTES = 64 << 10
"""Parts of an object that are less far apart are read together."""
_TELL_SECONDS, _TELL_SECONDS_MAX = 0.02, 1.0
_DEDUPE_MARGIN_NS = 60_000_000_000
_DUPLICATE_WINDOW_NS = 120_000_000_000
"""Of a stream whose configuration does not say."""


class _Found(NamedTuple):
    """Neighbouring blocks of one stream, as the applied state has them now."""

    stream: StreamState
    entries: list[BlockEntry]


class Compactor(LogListener):
    """Compaction of one shard, by its owner.

    Attributes: ``merges``, ``read_bytes``, ``written_bytes``, ``blocks_in``, ``blocks_out``: since the start.
    """

    def __init__(self, log: Log, paths: ShardPaths, checkpointer: Checkpointer, sweeper: Sweeper, clock: Clock,
                 rng: random.Random, settings: CompactionSettings, *, executor: Executor | None = None,
                 clock_trusted: Callable[[], bool] = lambda: True) -> None:
        self.settings = settings
        self.merges = self.read_bytes = self.written_bytes = self.blocks_in = self.blocks_out = 0
        self._log = log
        self._store = log.store
        self._paths = paths
        self._checkpointer = checkpointer
        self._sweeper = sweeper
        self._clock = clock
        self._rng = rng
        self._executor = executor
        self._clock_trusted = clock_trusted
        self._segments = 0
        """Persisted since the last inventory."""
        self._before_quiet = 0
        self._quiet = False
        self._timer: asyncio.TimerHandle | None = None
        self._wake = asyncio.Event()
        self._working = asyncio.Lock()
        self._in_use: set[int | RunKey] = set()
        """Segments and runs of a merge that is being adopted: live streams read from the old or from the new ones."""
        self._weight = 0
        self._damaged: set[tuple[int, int]] = set()
        """Blocks that cannot be read, by stream and first sequence: left where they are."""
        self._dead_kept: dict[tuple[int, int], int] = {}
        """Blocks that were rewritten and are as dead as before, by stream and first sequence: until when they are left."""
        self._task: asyncio.Task[None] | None = None

    def figures(self) -> dict[str, int]:
        """For monitoring."""
        return {"merges": self.merges, "blocks_in": self.blocks_in, "blocks_out": self.blocks_out,
                "read_bytes": self.read_bytes, "written_bytes": self.written_bytes}

    def start(self) -> None:
        """Work from now on; what was there before the start is looked at once it is quiet."""
        self._log.listen(self)
        self._sweeper.in_use = lambda: self._in_use
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
        """Count it towards the next merge."""
        if any(block.stream_id for block in segment.sealed):
            self._segments += 1
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
        leave = self._damaged | self._still_kept()
        found = groups(await take_inventory(self._log.state, self.settings, leave), self.settings, quiet)
        await self._pause(self._clock.monotonic_ns() - began_ns, 0)
        merged = False
        for group in found:
            if not self._may_work():
                return False
            try:
                merged = await self._merge(group) or merged
            except Damaged as error:
                self._damaged.add(error.block)
                merged = True  # the others of its group are to be tried again, without it
                _log.warning("compaction leaves a damaged block where it is: %s", error)
        return merged

    def _may_work(self) -> bool:
        """Not past the lease, nor while the clock is not believed; nor while a stream is offline, as nothing is deleted
        then."""
        log = self._log
        return (not log.lease_expired and log.failure is None and self._clock_trusted()
                and all(stream.offline is None for stream in log.state.streams.values()))

    async def _turn(self, weight: int) -> None:
        """Let the loop turn after a millisecond or two of work, ``weight`` times some microseconds."""
        self._weight += weight
        if self._weight >= _TURN_WEIGHT:
            self._weight = 0
            await asyncio.sleep(0)

    async def _pause(self, busy_ns: int, size: int) -> None:
        """Make up for work of ``busy_ns`` and for ``size`` bytes of traffic."""
        settings = self.settings
        seconds = max(busy_ns / 1e9 * (1 / settings.cpu - 1), size / settings.bytes_per_second)
        await asyncio.sleep(seconds)

    # --- one group ----------------------------------------------------------------------------------------------------

    async def _merge(self, group: Sequence[StoredObject]) -> bool:
        """Returns whether it came to something. Raises: Damaged; StoreError once the log has failed."""
        state = self._log.state
        position = state.position
        found: list[_Found] = []
        for one in self._look_up(group):
            found.append(one)
            await self._turn(len(one.entries))
        if sum(len(one.entries) for one in found) < 2 and not any(stored.large_dead_bytes for stored in group):
            return False
        readable = len(self._damaged)
        pieces = await self._read(found)
        if not pieces:
            return len(self._damaged) > readable
        adopted = False
        for stream_id, some in self._runs(pieces):
            adopted = await self._write(position, stream_id, some) or adopted
        self.merges += 1
        return adopted or len(self._damaged) > readable

    def _runs(self, pieces: Sequence[Piece]) -> Iterator[tuple[int, list[Piece]]]:
        """The pieces of each run, and the stream that it belongs to alone: those that have enough for one; 0: the rest."""
        shared: list[Piece] = []
        streams: defaultdict[int, list[Piece]] = defaultdict(list)
        for piece in pieces:
            streams[piece.stream_id].append(piece)
        for stream_id, some in streams.items():
            if sum(one.ref.bytes for piece in some for one in piece.inputs) >= self.settings.object_bytes:
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
            # Until the last record: between two of them the run may have no live block, and is needed all the same.
            self._in_use = {*_runs_of(run), *_objects_of(pieces)}
            adopted = await self._adopt(run, key)
            self._in_use = set()
            self.blocks_in += sum(len(piece.inputs) for piece in pieces)
            self.blocks_out += len(run.blocks)
        read_bytes = sum(len(one.index_data) + len(one.frames_data) for piece in pieces for one in piece.inputs)
        await self._pause(busy_ns, read_bytes + (run.size if run is not None else 0))
        return adopted

    def _look_up(self, group: Sequence[StoredObject]) -> Iterator[_Found]:
        """The blocks of ``group`` that are still there, neighbours together."""
        streams: defaultdict[int, list[int]] = defaultdict(list)
        for one in group:
            for stream_id, first_seq in zip(one.blocks[::2], one.blocks[1::2], strict=True):
                streams[stream_id].append(first_seq)
        keys = {one.key[:4] for one in group}
        for stream_id, firsts in streams.items():
            stream = self._log.state.streams.get(stream_id)
            if stream is None or stream.offline is not None:
                continue
            near: list[BlockEntry] = []
            for first_seq in sorted(firsts):
                entry = stream.blocks.find(first_seq)
                if (entry is None or entry.first_seq != first_seq or (stream_id, first_seq) in self._damaged
                        or (int(entry.ref.place), *entry.ref.position, entry.ref.object_id) not in keys):
                    continue
                if near and not stream.blocks.follows(near[-1].first_seq, first_seq):
                    yield _Found(stream, near)
                    near = []
                near.append(entry)
            if near:
                yield _Found(stream, near)

    async def _read(self, found: Sequence[_Found]) -> list[Piece]:
        """The pieces with their bytes; one with a block whose object has gone is left out, and the block from now on."""
        now_ns = self._clock.now_ns()
        wanted: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        pieces: list[tuple[_Found, bool, list[tuple[BlockRef, DeadSet | None, str]]]] = []
        for one in found:
            stream = one.stream
            since_ns = now_ns - _window_ns(stream)
            last = one.entries[-1].ref
            inputs = []
            for entry in one.entries:
                ref = entry.ref
                key = block_key(self._paths, stream.account, stream.name, ref)
                inputs.append((ref, _copy_of(entry), key))
                wanted[key] += [(ref.core_offset, ref.core_offset + ref.core_bytes),
                                (ref.index_offset, ref.index_offset + ref.index_bytes),
                                (ref.frames_offset, ref.frames_offset + ref.frames_bytes)]
            await self._turn(4 * len(inputs))
            pieces.append((one, last.last_time_ns >= since_ns or last.last_seq >= stream.last_seq, inputs))
        together: dict[str, list[tuple[int, int]]] = {}
        for key, parts in wanted.items():
            together[key] = _together(parts)
            await self._turn(len(parts) // 4)
        ranges = [(key, start, end) for key, parts in together.items() for start, end in parts]
        stored: defaultdict[str, list[tuple[int, bytes]]] = defaultdict(list)
        for at in range(0, len(ranges), _READS_AT_ONCE):
            some = ranges[at:at + _READS_AT_ONCE]
            for (key, start, _), data in zip(some, await asyncio.gather(*[self._get(*one) for one in some]), strict=True):
                if data is not None:
                    stored[key].append((start, data))
                    self.read_bytes += len(data)
        out: list[Piece] = []
        for one, keep_ids, inputs in pieces:
            await self._turn(2 * len(inputs))
            missing = [(ref, key) for ref, _, key in inputs if len(stored[key]) != len(together[key])]
            self._leave_missing(one.stream, missing)
            if not missing:
                out.append(Piece(one.stream.stream_id, keep_ids, [
                    Input(ref, dead, _slice(stored[key], ref.core_offset, ref.core_bytes),
                          _slice(stored[key], ref.index_offset, ref.index_bytes),
                          _slice(stored[key], ref.frames_offset, ref.frames_bytes), key) for ref, dead, key in inputs]))
        return out

    def _leave_missing(self, stream: StreamState, missing: Sequence[tuple[BlockRef, str]]) -> None:
        """Leave these blocks where they are: with them, a merge of the same objects would be tried again and again."""
        for ref, key in missing:
            self._damaged.add((stream.stream_id, ref.first_seq))
            entry = stream.blocks.find(ref.first_seq)
            if entry is not None and entry.ref == ref:  # otherwise it was removed while the others were read
                _log.warning("compaction passes over messages %d to %d of stream %s: %s is missing", ref.first_seq, ref.last_seq,
                             stream.name, key)

    async def _get(self, key: str, start: int, end: int) -> bytes | None:
        try:
            return await self._asked(lambda: self._store.get(key, start, end), f"read {key}")
        except NotFound:
            return None

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
                raise describe(holder, key)

        try:
            await self._asked(put, f"put {key}")
        except (StoreError, asyncio.CancelledError):
            self._sweeper.abandon_run(key)  # it may have landed, or may land yet
            raise

    async def _asked(self, ask: Callable[[], Awaitable[T]], what: str) -> T:
        """The store's answer, however long that takes. Raises: NotFound; StoreError once the log has failed."""
        return await until_answered(
            ask, self._rng, lambda: self._log.failure is not None,
            lambda error: _log.warning("compaction waits for the store: cannot %s: %s", what, error))

    # --- adopting -----------------------------------------------------------------------------------------------------

    async def _adopt(self, run: Run, key: str) -> bool:
        """Record that the run's blocks take their places, wait until that is persisted, and tell live streams; returns
        whether any of them does."""
        adopted = 0
        for some, last in _records(run):
            recorded: list[Adopted] = []

            def record(some: Sequence[Adopted] = some, recorded: list[Adopted] = recorded) -> None:
                recorded += filter(self._fits, some)
                if recorded:
                    self._log.block(self._log.shard).add(Adoption(recorded))

            await self._checkpointer.between_rounds(record)
            if recorded:
                adopted += len(recorded)
                if not last:
                    self._log.urgent()  # otherwise it rides along, or goes within a second
                await self._log.persisted()
                await self._tell(recorded)
        state, runs = self._log.state, set(_runs_of(run))
        if runs.isdisjoint(state.runs) and runs.isdisjoint(state.freed_runs):
            # Nobody counts it: when a record was applied, all that it replaces had been removed, or its stream deleted.
            self._sweeper.abandon_run(key)
        self._note_dead(run)
        return adopted > 0

    def _note_dead(self, run: Run) -> None:
        """Which blocks of ``run`` are to be left for a while: of those within the duplicate window the dead messages stay for
        their ids, and a large one would be rewritten again at once."""
        for adopted in run.blocks:
            ref = BlockRef.of(tuple(adopted.ref))
            stream = self._log.state.streams.get(ref.stream_id)
            entry = stream.blocks.find(ref.first_seq) if stream is not None else None
            if stream is None or entry is None or ref.bytes - entry.dead_bytes < self.settings.large_bytes:
                continue
            if entry.dead_bytes >= self.settings.dead_share * ref.bytes:
                self._dead_kept[ref.stream_id, ref.first_seq] = self._clock.now_ns() + _window_ns(stream)

    def _still_kept(self) -> set[tuple[int, int]]:
        """Those of ``_dead_kept`` of which no more could be left out now."""
        now_ns, streams = self._clock.now_ns(), self._log.state.streams
        kept: dict[tuple[int, int], int] = {}
        for (stream_id, first_seq), until_ns in self._dead_kept.items():
            stream = streams.get(stream_id)
            entry = stream.blocks.find(first_seq) if stream is not None else None
            if stream is not None and entry is not None and (now_ns < until_ns or entry.last_seq >= stream.last_seq):
                kept[stream_id, first_seq] = until_ns
        self._dead_kept = kept
        return set(kept)

    def _fits(self, adopted: Adopted) -> bool:
        """Whether something of what the block was made of is still there, and nothing else."""
        ref = BlockRef.of(tuple(adopted.ref))
        stream = self._log.state.streams.get(ref.stream_id)
        if stream is None or stream.offline is not None:
            return False
        try:
            parts = stream.blocks.within(adopted.first_seq, adopted.last_seq)
        except ValueError:
            _log.exception("compaction made a block of others than stream %s has", stream.name)
            return False
        return bool(parts) and all(part.ref.position <= ref.position for part in parts)

    async def _tell(self, adopted: Sequence[Adopted]) -> None:
        """Have the live streams read from the new blocks. Those in the middle of something are told again."""
        delay = _TELL_SECONDS
        while adopted := self._log.tell_adopted(adopted):
            await asyncio.sleep(delay)
            delay = min(2 * delay, _TELL_SECONDS_MAX)


def _runs_of(run: Run) -> Iterator[RunKey]:
    for adopted in run.blocks:
        yield from run_keys(BlockRef.of(tuple(adopted.ref)).stream_id, [tuple(adopted.ref)])


def _objects_of(pieces: Sequence[Piece]) -> Iterator[int | RunKey]:
    for piece in pieces:
        packed = [one.ref.pack() for one in piece.inputs]
        yield from log_keys(packed)
        yield from run_keys(piece.stream_id, packed)


def _window_ns(stream: StreamState) -> int:
    """For how long the ids of a message may be asked for."""
    window_ns = stream.config.get("duplicate_window", _DUPLICATE_WINDOW_NS)
    return (window_ns if isinstance(window_ns, int) else _DUPLICATE_WINDOW_NS) + _DEDUPE_MARGIN_NS


def _records(run: Run) -> Iterator[tuple[list[Adopted], bool]]:
    """The blocks of a run, as many at a time as one record adopts; and whether they are the last."""
    some: list[Adopted] = []
    replaced = 0
    for adopted, inputs in zip(run.blocks, run.inputs, strict=True):
        if some and replaced + inputs > _REPLACED_AT_ONCE:
            yield some, False
            some, replaced = [], 0
        some.append(adopted)
        replaced += inputs
    yield some, True


def _give_way() -> None:
    """Let the loop's thread run, if it has something to do: it would otherwise wait for a switch interval, again and again."""
    time.sleep(0.0005)


def _copy_of(entry: BlockEntry) -> DeadSet | None:
    """What is dead of it now."""
    if entry.dead is None:
        return None
    copy = DeadSet(entry.ref.first_seq, entry.ref.last_seq, entry.ref.count)
    copy.load(entry.dead.pack())
    return copy


def _together(parts: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ranges in order, near ones as one."""
    out: list[tuple[int, int]] = []
    for start, end in sorted(part for part in parts if part[1] > part[0]):
        if out and start - out[-1][1] <= _GAP_BYTES:
            out[-1] = (out[-1][0], max(end, out[-1][1]))
        else:
            out.append((start, end))
    return out


def _slice(stored: Sequence[tuple[int, bytes]], offset: int, size: int) -> bytes:
    for start, data in stored:
        if start <= offset and offset + size <= start + len(data):
            return data[offset - start:offset - start + size]
    return b""
