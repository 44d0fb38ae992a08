"""The contents of a store, from listings, small objects and the replayed state; no payload is read.

The survey lists first, and reads the state afterwards. So a listed object existed before the state was read, and if the
state does not name it, it is an orphan, not a new object. An object that the state names but no listing contains is
checked again, with a newer state, before it is reported missing.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from broker.inspect.problems import OLDER_START_MISSING, RESTORE, Problem, of_error
from broker.inspect.repaired import Repaired, new_problems, read_repairs
from broker.inspect.shardview import ShardView, key_of, read_shard, shards
from broker.inspect.source import Source, each, read_format
from broker.storage.format.block import BlockPlace
from broker.storage.format.claim import Claim, Seal
from broker.storage.format.errors import FormatError
from broker.storage.format.header import NUMBER_BITS, NUMBER_MAX, ObjectKind, Position, key_position, position_key
from broker.storage.format.opening import decode_opening
from broker.storage.format.records.opening import Opening
from broker.storage.format.segment import HEAD_BYTES, PUTS_IN_FLIGHT_MAX, SegmentHead, decode_head
from broker.storage.format.store import StoreFormat
from broker.storage.objectstore import ObjectInfo
from broker.storage.paths import STREAMS, ShardPaths, parse, run_key
from broker.storage.read.places import places
from broker.storage.state.stream import StreamState
from broker.storage.state.table import BlockEntry

__all__ = ["Epoch", "Extent", "LogListing", "ShardSurvey", "StreamRow", "Survey", "cannot_be_read",
           "entries", "missing", "read_shard_survey", "read_survey", "stream_row"]


@dataclass(slots=True)
class Extent:
    """A number of objects and their bytes."""

    count: int = 0
    bytes: int = 0

    def add(self, size: int) -> None:
        self.count += 1
        self.bytes += size


class LogListing:
    """The entries of one shard's log as listed, 16 bytes each."""

    def __init__(self) -> None:
        self.keys = array("Q")
        """The ``position_key`` of each entry, ascending."""
        self.sizes = array("Q")

    def __len__(self) -> int:
        return len(self.keys)

    def __contains__(self, position: Position) -> bool:
        key = position_key(position)
        at = bisect_left(self.keys, key)
        return at < len(self.keys) and self.keys[at] == key

    def __iter__(self) -> Iterator[tuple[Position, int]]:
        for key, size in zip(self.keys, self.sizes, strict=True):
            yield key_position(key), size

    def add(self, position: Position, size: int) -> None:
        """Add an entry, in order."""
        self.keys.append(position_key(position))
        self.sizes.append(size)

    def of_epoch(self, epoch: int) -> slice:
        """Return the slice of the epoch's entries."""
        return slice(bisect_left(self.keys, epoch << NUMBER_BITS), bisect_left(self.keys, (epoch + 1) << NUMBER_BITS))

    @property
    def extent(self) -> Extent:
        return Extent(len(self.sizes), sum(self.sizes))


@dataclass(slots=True)
class Epoch:
    """An epoch of a shard."""

    number: int
    claim: Claim | None = None
    begun: str = "claimed"
    """``opened``: it has an opening; ``swept``: its first segments were deleted; ``sealed``: another process ended it
    before it began; ``claimed``: it was not opened."""
    opening: Opening | None = None
    end: int | None = None
    """The number of its seal, which is the first number past its segments."""
    sealed_by: str | None = None
    log: Extent = field(default_factory=Extent)
    first: int | None = None
    """The number of its first listed entry."""
    last: int | None = None


@dataclass(slots=True)
class ShardSurvey:
    """The contents of one shard."""

    paths: ShardPaths
    view: ShardView
    log: LogListing
    epochs: list[Epoch]
    roots: list[tuple[Position, int]]
    pages: list[tuple[Position, int]]
    runs: Extent
    requests: Extent
    live_bytes: int
    """The stored bytes of the log's blocks without their dead messages."""
    dead_bytes: int
    """The bytes of the log that are not ``live_bytes``."""
    held: Extent
    """The log's segments that are held for offline streams."""
    foreign: list[ObjectInfo]
    """Objects whose keys are not jetblock's."""
    problems: list[Problem]


@dataclass(slots=True)
class Survey:
    """The contents of a store."""

    url: str
    format: StoreFormat | None
    shards: list[ShardSurvey]
    stream_runs: Extent
    problems: list[Problem]
    """The problems of the store and of all shards, without those that a repair has solved."""
    repairs: list[Repaired] = field(default_factory=list)

    @property
    def extent(self) -> Extent:
        """The extent of all listed objects except claims and the format, which are small."""
        whole = Extent(self.stream_runs.count, self.stream_runs.bytes)
        for shard in self.shards:
            for part in (shard.log.extent, shard.runs, shard.requests):
                whole.count += part.count
                whole.bytes += part.bytes
            for _, size in (*shard.roots, *shard.pages):
                whole.add(size)
        return whole

    @property
    def streams(self) -> list[tuple[ShardSurvey, StreamState]]:
        """All streams by account and name."""
        shards = {shard.paths.shard: shard for shard in self.shards}
        catalogue = shards[0].view.state.catalogue if 0 in shards else None
        rows = [(shards[number], stream) for number, stream in places(
            ((number, shard.view.state) for number, shard in shards.items()), catalogue)]
        return sorted(rows, key=lambda row: (row[1].account, row[1].name, row[1].stream_id))


class StreamRow(NamedTuple):
    """Figures from a stream's block table."""

    blocks: int
    stored_bytes: int
    """The stored bytes of the blocks, dead messages included."""
    dead_messages: int
    dead_stored_bytes: int
    """The approximate bytes of dead messages in ``stored_bytes``."""


def stream_row(stream: StreamState, *, log_only: bool = False) -> StreamRow:
    """Add up the figures of a stream's blocks, or only of those in the log."""
    blocks = stored = dead = dead_stored = 0
    for entry in stream.blocks:
        ref = entry.ref
        if log_only and ref.place != BlockPlace.LOG:
            continue
        gone = entry.dead_count
        if ref.first_seq < stream.first_seq:
            gone = min(ref.count, gone + stream.first_seq - ref.first_seq)
        blocks += 1
        stored += ref.core_bytes + ref.index_bytes + ref.frames_bytes
        dead += gone
        dead_stored += ref.frames_bytes * gone // ref.count
    return StreamRow(blocks, stored, dead, dead_stored)


async def read_survey(source: Source, shard: int | None = None) -> Survey:
    """Survey the whole store, or one shard. Raises: CannotInspect; StoreError."""
    store_format, problems = await read_format(source)
    numbers = [shard] if shard is not None else await shards(source)
    surveys = [await read_shard_survey(source, ShardPaths(number)) for number in numbers]
    runs = Extent()
    for info in await source.list(STREAMS):
        runs.add(info.size)
    repairs = await read_repairs(source)
    for one in surveys:
        one.problems = new_problems(one.problems, repairs)
        problems += one.problems
    return Survey(source.url, store_format, surveys, runs, problems, repairs)


async def read_shard_survey(source: Source, paths: ShardPaths) -> ShardSurvey:
    """Survey one shard. Raises: StoreError."""
    foreign: list[ObjectInfo] = []

    async def positions(prefix: str) -> list[tuple[Position, int]]:
        found = []
        async for info in source.folder(prefix):
            key = parse(info.key)
            if key is None or key.position is None:
                foreign.append(info)
            else:
                found.append((key.position, info.size))
        return found

    log = LogListing()
    async for info in source.folder(paths.logs):
        key = parse(info.key)
        if key is None or key.position is None:
            foreign.append(info)
        else:
            log.add(key.position, info.size)
    pages = await positions(paths.page_objects)
    roots = await positions(paths.checkpoints)
    runs, requests = Extent(), Extent()
    for prefix, extent in ((paths.runs, runs), (paths.requests, requests)):
        async for info in source.folder(prefix):
            if parse(info.key) is None:
                foreign.append(info)
            else:
                extent.add(info.size)
    claims = [position.epoch for position, _ in await positions(paths.epochs)]
    view = await read_shard(source, paths)
    problems = list(view.problems)
    epochs = await _epochs(source, paths, claims, log, view, problems)
    _holes(paths, log, epochs, view, problems)
    problems += await missing(source, view, log, {position for position, _ in roots})
    rows = [stream_row(stream, log_only=True) for stream in view.state.streams.values()]
    live_bytes = sum(row.stored_bytes - row.dead_stored_bytes for row in rows)
    return ShardSurvey(paths, view, log, epochs, roots, pages, runs, requests, live_bytes,
                       max(0, log.extent.bytes - live_bytes), _held(view, log), foreign, problems)


def _held(view: ShardView, log: LogListing) -> Extent:
    """Return the extent of the listed segments that are held for offline streams."""
    held = {position_key(position) for stream in view.state.streams.values() for position in stream.held}
    extent = Extent()
    for key, size in zip(log.keys, log.sizes, strict=True) if held else ():
        if key in held:
            extent.add(size)
    return extent


async def missing(source: Source, view: ShardView, log: LogListing, roots: Collection[Position]) -> list[Problem]:
    """Find missing objects that the state names. Raises: StoreError.

    The result is empty if the state is not whole, because the unreadable part of the log may have released objects.
    """
    if not view.whole:
        return []
    absent = {key async for key, data in each(_unlisted(view, log, roots), lambda key: source.find(key, 0, 1),
                                              source.at_once) if data is None}
    if not absent:
        return []
    # The missing objects may have been released after the state was read, so a newer state is read.
    again = await read_shard(source, view.paths)
    if not again.whole:
        return []
    absent.intersection_update(_unlisted(again, LogListing(), ()))
    affected: dict[str, list[str]] = {key: [] for key in sorted(absent)}
    for stream, entry in entries(again):
        key = key_of(view.paths, stream, entry.ref)
        if key in affected:
            affected[key].append(cannot_be_read(stream, max(entry.ref.first_seq, stream.first_seq), entry.ref.last_seq))
    return [Problem(key, "it is missing, and it holds live messages" if blocks else
                    "it is missing, and was not released", "; ".join(blocks) or
                    OLDER_START_MISSING, RESTORE)
            for key, blocks in affected.items()]


def _unlisted(view: ShardView, log: LogListing, roots: Collection[Position]) -> set[str]:
    """Return keys in the state and not in the listings: objects of blocks, unreleased segments, kept checkpoints."""
    paths = view.paths
    keys = {paths.log(position) for key in view.state.counts.segments
            if (position := key_position(key)) not in log}
    for stream, entry in entries(view):
        ref = entry.ref
        if ref.place != BlockPlace.LOG:
            keys.add(key_of(paths, stream, ref))
        elif ref.position not in log and (not stream.held or position_key(ref.position) in view.state.counts.segments):
            # A newer broker may have released segments after a record that could not be applied to this stream.
            keys.add(key_of(paths, stream, ref))
    keys |= held_runs(view)
    root = view.snapshot.root if view.snapshot is not None else None
    if root is not None:
        kept = [Position(*at) for at, _ in root.extra.get("roots", ())]
        keys.update(paths.checkpoint(position) for position in kept if position not in roots)
    return keys


def entries(view: ShardView) -> Iterator[tuple[StreamState, BlockEntry]]:
    """Yield every block of the state, with its stream, except those of streams that have left for other shards."""
    for stream in view.state.streams.values():
        if stream.departed is None:
            for entry in stream.blocks:
                yield stream, entry


def held_runs(view: ShardView) -> set[str]:
    """Return the keys of the runs in records that could not be applied to offline streams."""
    return {run_key(view.paths, run, stream.account, stream.name)
            for stream in view.state.streams.values() for run in stream.held_runs if stream.account or not run[3]}


def cannot_be_read(stream: StreamState, first_seq: int, last_seq: int, *, perhaps: bool = False) -> str:
    """Return the consequence of damage to these messages; ``perhaps``: the damage may be in other parts of their
    object."""
    which = f"message {first_seq}" if first_seq == last_seq else f"messages {first_seq} to {last_seq}"
    return f"{which} of stream {stream.account}/{stream.name} {'perhaps ' if perhaps else ''}cannot be read"


async def _epochs(source: Source, paths: ShardPaths, claims: list[int], log: LogListing, view: ShardView,
                  problems: list[Problem]) -> list[Epoch]:
    """Find all epochs by their claims and log entries; add the problems of claims and seals to ``problems``."""
    claimed = set(claims)
    epochs = {number: Epoch(number) for number in sorted({*claims, *(key >> NUMBER_BITS for key in _firsts(log))})}
    for number, epoch in epochs.items():
        where = log.of_epoch(number)
        sizes = log.sizes[where]
        if sizes:
            epoch.log = Extent(len(sizes), sum(sizes))
            epoch.first, epoch.last = log.keys[where.start] & NUMBER_MAX, log.keys[where.stop - 1] & NUMBER_MAX
    before = 0
    for number in epochs:
        gap = range(before + 1, number if number in claimed else number + 1)
        before = number
        if gap:
            others = f", nor are those up to {gap[-1]}" if len(gap) > 1 else ""
            problems.append(Problem(
                paths.epoch(gap[0]), f"the claim is missing{others}", "claims are never deleted: the owner of this "
                "epoch is unknown, and nothing keeps another broker from claiming it again", RESTORE))
    async for number, data in each(claims, lambda e: source.find(paths.epoch(e)), source.at_once):
        if data is not None:
            try:
                epochs[number].claim = Claim.decode(data, number)
            except FormatError as error:
                problems.append(of_error(paths.epoch(number), error, "the owner of this epoch, and the time of its "
                                                                     "claim, "
                                         "are unknown; nothing else needs it", "none is needed: only its key matters"))
    async for number, data in each(epochs, lambda e: source.find(paths.log(Position(e, 0)), 0, HEAD_BYTES),
                                   source.at_once):
        await _read_opening(source, paths, epochs[number], data, view)
    for number, epoch in epochs.items():
        for end in (epoch.opening.ends if epoch.opening is not None else ()):
            if end.epoch in epochs and end.epoch < number:
                epochs[end.epoch].end = end.number
    async for epoch, seal in each(list(epochs.values()), lambda e: _find_seal(source, paths, e, log), source.at_once):
        if isinstance(seal, Problem):
            problems.append(seal)
        elif seal is not None:
            epoch.sealed_by = seal.sealer
            if epoch.end is None:
                epoch.end = seal.position.number
    return list(epochs.values())


def _firsts(log: LogListing) -> Iterable[int]:
    """Yield the first key of each epoch that has entries."""
    at = 0
    while at < len(log.keys):
        yield log.keys[at]
        at = bisect_left(log.keys, ((log.keys[at] >> NUMBER_BITS) + 1) << NUMBER_BITS)


async def _read_opening(source: Source, paths: ShardPaths, epoch: Epoch, data: bytes | None, view: ShardView) -> None:
    position = Position(epoch.number, 0)
    if data is None:
        if epoch.number < view.state.position.epoch:
            epoch.begun = "swept"
        return
    if len(data) > 8 and data[8] == ObjectKind.SEAL:
        epoch.begun, epoch.end = "sealed", 0
        return
    epoch.begun = "opened"
    try:
        head: SegmentHead | int = decode_head(data, position)
        if isinstance(head, int):
            head = decode_head(await source.find(paths.log(position), 0, head) or b"", position)
        if isinstance(head, int):
            return  # the opening is truncated
        epoch.opening = decode_opening(head, paths.log(position))
    except FormatError:
        pass  # a replay that needs the opening stops there and reports it; --verify reports it in any case


async def _find_seal(source: Source, paths: ShardPaths, epoch: Epoch, log: LogListing) -> Seal | Problem | None:
    """Find the seal of an epoch: at its known end, otherwise the lowest seal among its last entries."""
    if epoch.end is not None:
        position = Position(epoch.number, epoch.end)
        data = await source.find(paths.log(position))
        if data is None:
            return Problem(paths.log(position), "the seal is missing", "seals are never deleted: a former owner that "
                                                                       "still "
                           "runs could acknowledge messages that no reader will see",
                           "make sure that no older broker runs on this store; let the newest one continue")
        try:
            return Seal.decode(data, position)
        except FormatError as error:
            return of_error(paths.log(position), error, f"the end of epoch {epoch.number} cannot be read")
    where = log.of_epoch(epoch.number)
    found: Seal | None = None
    for at in range(where.stop - 1, max(where.start, where.stop - 1 - 2 * PUTS_IN_FLIGHT_MAX) - 1, -1):
        position = Position(epoch.number, log.keys[at] & NUMBER_MAX)
        data = await source.find(paths.log(position), 0, 4096)
        if data is None or len(data) <= 8 or data[8] != ObjectKind.SEAL:
            if found is not None or at < where.stop - 1 - PUTS_IN_FLIGHT_MAX:
                break
            continue
        try:
            seal = Seal.decode(data, position)
        except FormatError:
            continue
        if seal.landed is None or seal.landed == position.number - 1:
            found = seal  # other seals were put ahead of an owner that continued, so the log may end before them
    return found


def _holes(paths: ShardPaths, log: LogListing, epochs: list[Epoch], view: ShardView, problems: list[Problem]) -> None:
    """Find holes: a missing number in the last epoch seems to be the log's end, but later entries or the seal exist."""
    if not view.whole or view.snapshot is None:
        return
    end = view.state.position
    for epoch in epochs:
        if epoch.number > end.epoch and epoch.first:
            problems.append(Problem(paths.log(Position(epoch.number, 0)), "it is missing, and later entries of its "
                                    "epoch exist", "without its opening an epoch is not read: what was "
                                    "acknowledged in it is not seen", f"start no broker; {RESTORE}"))
    epoch = next((epoch for epoch in epochs if epoch.number == end.epoch), Epoch(0))
    beyond = epoch.last is not None and epoch.last > end.number + 1 + PUTS_IN_FLIGHT_MAX
    sealed = epoch.end is not None and epoch.end > end.number + 1
    if (beyond or sealed) and Position(end.epoch, end.number + 1) not in log:
        key = paths.log(Position(end.epoch, end.number + 1))
        problems.append(Problem(key, f"it is missing, and the log continues to {epoch.last:012x}",
                                "a reader takes it for the log's end: what was acknowledged after it is not seen, and "
                                "the next broker to start would discard it for good",
                                f"start no broker; {RESTORE}"))
