"""The verification of a store: every byte against its checksum, and all objects against each other.

    each object      header and key, sizes, all checksums, parts against each other; each epoch has one writer
    state and data   the block table agrees with the blocks; count, bytes and first sequence of each stream are those of
                     its messages
    checkpoint, log  the state replayed from each kept root, oldest first, and from the log's beginning if all of it
                     exists, equals the state replayed from the newest
    orphans          objects that nothing names; they are no fault, since a broker that crashes leaves some, and a
                     later broker deletes them

On a live store, an object deleted since it was listed is not a fault, unless a newer state names it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from broker.inspect.objects import Checked, Fault, check_object
from broker.inspect.problems import (
    DELETE,
    NEWER,
    NO_LIVE_MESSAGE,
    OLDER_START_DAMAGED,
    RESTORE,
    Problem,
    of_error,
)
from broker.inspect.repaired import new_problems
from broker.inspect.shardview import NAMED_AND_GONE, drive, key_of
from broker.inspect.source import Source, each
from broker.inspect.survey import ShardSurvey, Survey, cannot_be_read, entries, held_runs
from broker.storage.format.block import BlockCore, BlockPlace, BlockRef
from broker.storage.format.errors import CutOff, FormatError, VersionUnknown
from broker.storage.format.header import ObjectKind, Position, position_key
from broker.storage.format.index import Head
from broker.storage.format.staged import placed
from broker.storage.objectstore import ObjectInfo
from broker.storage.paths import FORMAT, STREAMS, ShardPaths, parse
from broker.storage.read.snapshot import replay_from
from broker.storage.state.applied import ShardState
from broker.storage.state.consumer import ConsumerState
from broker.storage.state.stream import StreamState
from broker.storage.state.table import BlockEntry

__all__ = ["Diagnosis", "Orphan", "Verified", "state_differences", "verify"]

_ROOTS_MAX = 16
_CUT_NEW = f"let a broker run until it has cut new ones; or {RESTORE}"
_SUBJECTS_LOST = "no message is lost: a broker finds the subjects in the blocks, which takes longer"
_SUBJECTS_REMEDY = "none is needed: a broker makes a new one"
_IDS_LOST = ("no message is lost: a broker finds message ids in the blocks; duplicates of messages that were removed "
             "are no longer recognised")
_IDS_REMEDY = "none is needed: the ids expire with the duplicate window"
_FOREIGN = "not a jetblock key: a broker neither reads nor deletes it"


class Orphan(NamedTuple):
    """An object that nothing names. ``what`` is the probable reason why it exists."""

    object: str
    bytes: int
    what: str


@dataclass(slots=True)
class Verified:
    """The outcome of a verification."""

    objects: int = 0
    """Number of objects that were read and checked so far."""
    bytes: int = 0
    on_progress: Callable[[Verified], object] = field(default=lambda _: None, repr=False, compare=False)
    roots: list[tuple[int, Position]] = field(default_factory=list)
    """The checkpoints whose replayed states were compared, by shard and position."""
    orphans: list[Orphan] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


async def verify(source: Source, survey: Survey,
                 progress: Callable[[int, int, int, int], object] = lambda *_: None) -> Verified:
    """Check everything that the survey found.

    Args: progress(objects, all objects, bytes, all bytes) is called after each object. The totals are those of the
        survey; a broker that writes meanwhile adds more.
    Raises: StoreError.
    """
    whole = survey.extent
    # The extent has neither the claims nor the format.
    whole.count += 1 + sum(epoch.claim is not None for shard in survey.shards for epoch in shard.epochs)
    done = Verified(on_progress=lambda verified: progress(verified.objects, whole.count, verified.bytes, whole.bytes))
    tallies = [_Tally(shard) for shard in survey.shards]
    for shard, tally in zip(survey.shards, tallies, strict=True):
        await _objects(source, _listed(source, shard), shard, tally, done)
        done.orphans += [Orphan(info.key, info.size, _FOREIGN) for info in shard.foreign]
    # The keys of single streams' runs name no shard.
    await _objects(source, _below(source, STREAMS, done), survey.shards[0], tallies[0], done, tallies)
    await _objects(source, _one(source, FORMAT), survey.shards[0], tallies[0], done)
    for shard, tally in zip(survey.shards, tallies, strict=True):
        done.problems += tally.differences()
        await _checkpoints(source, shard, survey.problems, done)
    known = {(problem.object, problem.section, problem.offset) for problem in survey.problems}
    unusable = {problem.object for problem in survey.problems if _is_root(problem.object)}
    done.problems = [problem for problem in new_problems(dict.fromkeys(done.problems), survey.repairs)
                     if (problem.object, problem.section, problem.offset) not in known
                     and problem.object not in unusable]
    return done


def _is_root(object_: str) -> bool:
    key = parse(object_)
    return key is not None and key.kind == ObjectKind.ROOT


# The check of each object.

async def _listed(source: Source, shard: ShardSurvey) -> AsyncIterator[ObjectInfo]:
    paths = shard.paths
    for epoch in shard.epochs:
        if epoch.claim is not None:
            async for info in _one(source, paths.epoch(epoch.number)):
                yield info
    for position, size in shard.log:
        yield ObjectInfo(paths.log(position), size)
    for position, size in shard.roots:
        yield ObjectInfo(paths.checkpoint(position), size)
    for position, size in shard.pages:
        yield ObjectInfo(paths.pages(position), size)
    for prefix in (paths.runs, paths.requests):
        async for info in source.folder(prefix):
            if parse(info.key) is not None:
                yield info


async def _one(source: Source, key: str) -> AsyncIterator[ObjectInfo]:
    for info in await source.list(key, limit=1):
        if info.key == key:
            yield info


async def _below(source: Source, prefix: str, done: Verified) -> AsyncIterator[ObjectInfo]:
    for info in await source.list(prefix):
        if parse(info.key) is not None:
            yield info
        else:
            done.orphans.append(Orphan(info.key, info.size, _FOREIGN))


async def _objects(source: Source, infos: AsyncIterator[ObjectInfo], shard: ShardSurvey, tally: _Tally, done: Verified,
                   tallies: list[_Tally] | None = None) -> None:
    def on_block(ref: BlockRef, core: BlockCore, head: Head) -> None:
        for one in tallies or (tally,):
            one.block(ref, core, head)

    async def check(info: ObjectInfo) -> Checked | None:
        key = parse(info.key)
        return None if key is None else await check_object(source, info, key, on_block)

    diagnosis = Diagnosis(shard)
    async for info, checked in each(infos, check, source.at_once):
        if checked is None or checked.gone:
            continue
        diagnosis.add_root(checked)
        done.objects += 1
        done.bytes += info.size
        done.on_progress(done)
        done.problems += [diagnosis.problem(checked, fault) for fault in checked.faults]
        if (other := diagnosis.other_writer(checked)) is not None:
            done.problems.append(other)
        if (why := diagnosis.orphan(checked)) is not None:
            done.orphans.append(Orphan(info.key, info.size, why))


class Diagnosis:
    """Finds the consequences of faults in one shard's objects, and finds the orphans among these objects."""

    def __init__(self, shard: ShardSurvey) -> None:
        self.paths: ShardPaths = shard.paths
        self.state = shard.view.state
        self.epochs = {epoch.number: epoch for epoch in shard.epochs}
        self.roots = [position for position, _ in shard.roots]
        snapshot = shard.view.snapshot
        self.root = snapshot.root if snapshot is not None else None
        self.released = {position for released in self.state.released.values() for position in released.segments}
        self.released_pages = {position for released in self.state.released.values() for position in released.pages}
        self.pages: set[Position] = set()
        """Page objects that some root needs."""
        self.subjects = {page.place.position for stream in self.state.streams.values() for page in stream.subjects}
        """Page objects with subjects, which a start does not read."""
        self.ids = {place.position for stream in self.state.streams.values() for place in stream.ids.places}
        """Page objects with message ids, which a start does not read."""
        self.held = {position for stream in self.state.streams.values() for position in stream.held}
        """Segments that a start applies to offline streams."""
        self.held_runs = held_runs(shard.view)
        self.unread_roots = False
        self.live: dict[str, list[tuple[StreamState, BlockEntry]]] = {}
        self.whole = shard.view.whole and snapshot is not None
        """True if the state was replayed to the log's end."""
        for stream, entry in entries(shard.view):
            self.live.setdefault(key_of(self.paths, stream, entry.ref), []).append((stream, entry))

    def add_root(self, checked: Checked) -> None:
        """Record the pages that a root needs, if the object is a root; roots are checked before pages."""
        if checked.key.kind != ObjectKind.ROOT:
            return
        if checked.root is None:
            self.unread_roots = True
            return
        self.pages.update(ref.position for ref in checked.root.pages)
        for _, objects in checked.root.extra.get("roots", ()):
            self.pages.update(Position(*at) for at in objects)

    def problem(self, checked: Checked, fault: Fault) -> Problem:
        """Make a problem of a fault, with its consequences."""
        kind, position, error = checked.key.kind, checked.key.position, fault.error
        key = checked.info.key
        if kind in (ObjectKind.SEGMENT, ObjectKind.RUN):
            return of_error(key, error, self._consequences(checked, fault),
                            NEWER if isinstance(error, VersionUnknown) else None)
        if kind == ObjectKind.CLAIM:
            return of_error(key, error, "the owner of this epoch, and the time of its claim, are unknown; nothing else "
                                        "needs it", "none is needed: only its key matters")
        if kind == ObjectKind.ROOT:
            others = [root for root in self.roots if root != position]
            means = ("a broker starts from another checkpoint" if others else
                     "a broker must replay the log from its beginning, and cannot start if that is gone")
            return of_error(key, error, means, _CUT_NEW)
        if kind == ObjectKind.PAGES:
            if position not in self.pages and not self.unread_roots:
                return of_error(key, error, "no checkpoint needs it any more", DELETE)
            if position in self.subjects:
                return of_error(key, error, _SUBJECTS_LOST, _SUBJECTS_REMEDY)
            if position in self.ids:
                return of_error(key, error, _IDS_LOST, _IDS_REMEDY)
            return of_error(key, error, "checkpoints that name this page cannot be used: a broker starts from an older "
                            "one, or replays the log", _CUT_NEW)
        if kind == ObjectKind.INBOX:
            return of_error(key, error, "the request will not be granted", f"ask again; {DELETE}")
        return of_error(key, error, "a broker will not start on this store")

    def _consequences(self, checked: Checked, fault: Fault) -> str:
        """Return the consequences of a fault in a segment or run."""
        position, row = checked.key.position, fault.row
        assert position is not None
        in_log = checked.key.kind == ObjectKind.SEGMENT
        found: list[str] = []
        needed = in_log and (fault.core or row is None) and self._replayed(position)
        if needed and isinstance(fault.error, VersionUnknown) and row is not None and row.stream_id:
            found.append(f"{self._name(row.stream_id)} is offline for this version")
        elif needed:
            found.append("the log cannot be read past it: a broker will not start on this store")
        for stream, entry in self.live.get(checked.info.key, ()):
            ref = entry.ref
            if row is None:
                # Blocks are read by their place, without the damaged directory, so these may be undamaged.
                found.append(cannot_be_read(stream, max(ref.first_seq, stream.first_seq), ref.last_seq, perhaps=True))
            elif row.core_offset == ref.core_offset and not fault.core:
                shift = ref.first_seq - row.first_seq  # the shift of a staged block, as in _live
                first, last = max(fault.first_seq + shift, stream.first_seq), fault.last_seq + shift
                if any(not entry.is_dead(seq) for seq in range(first, last + 1)):
                    found.append(cannot_be_read(stream, first, last))
        if found:
            return "; ".join(found)
        if in_log and self.roots and position > self.roots[0]:
            return OLDER_START_DAMAGED
        return NO_LIVE_MESSAGE

    def _name(self, stream_id: int) -> str:
        stream = self.state.streams.get(stream_id)
        return f"stream {stream.account}/{stream.name}" if stream is not None else f"stream {stream_id:016x}"

    def _replayed(self, position: Position) -> bool:
        """Return True if a start from the newest usable root reads this log entry."""
        if position in self.held:
            return True
        if self.root is not None and position <= self.root.replay_from:
            return False
        epoch = self.epochs.get(position.epoch)
        if epoch is not None and epoch.end is not None and position.number >= epoch.end:
            return position.number == epoch.end  # it is the seal, which a new owner reads
        return not self.whole or position <= self.state.position

    def other_writer(self, checked: Checked) -> Problem | None:
        """Return a problem if another process than the epoch's claimant wrote the object, unless it is a seal."""
        header = checked.header
        if header is None or checked.key.position is None or header.kind not in (
                ObjectKind.SEGMENT, ObjectKind.ROOT, ObjectKind.PAGES):
            return None
        if header.position != checked.key.position:
            return None  # it has the bytes of another object, which another problem reports
        epoch = self.epochs.get(checked.key.position.epoch)
        if epoch is None or epoch.claim is None or epoch.claim.run_id == header.nonce:
            return None
        return Problem(checked.info.key, f"process run {header.nonce.hex()} wrote it, and {epoch.claim.run_id.hex()} "
                       f"claimed its epoch", "two brokers wrote under one epoch: messages that either acknowledged may "
                                             "be lost",
                       "never run two brokers on copies of one store, nor on a store without put-if-absent", "header",
                       24)

    def orphan(self, checked: Checked) -> str | None:
        """Return the probable reason why this object exists although nothing names it; None if something names it."""
        kind, position, state = checked.key.kind, checked.key.position, self.state
        if not self.whole:
            return None  # a truncated state does not name all objects
        if kind == ObjectKind.RUN:
            if checked.info.key in self.live or checked.info.key in self.held_runs or (
                    state.is_offline(checked.key.incarnation or 0)):
                return None
            return "a run that no stream has adopted"
        if kind == ObjectKind.PAGES and position is not None:
            if position in self.pages or position in self.released_pages:
                return None
            if self.unread_roots:
                return "pages that no readable checkpoint names"
            return "pages that no checkpoint names: from a checkpoint in progress or abandoned"
        if kind != ObjectKind.SEGMENT or position is None or checked.seal is not None:
            return None
        if checked.header is not None and checked.header.kind == ObjectKind.SEAL:
            return None
        if position_key(position) in state.counts.segments or position in self.released:
            return None
        epoch = self.epochs.get(position.epoch)
        if position > state.position:
            return "beyond the log's end: in flight, or its writer died before earlier entries were stored"
        if epoch is not None and epoch.end is not None and position.number >= epoch.end:
            return "beyond the end of its epoch: never acknowledged"
        return "released, and not deleted"


# The state against the stored blocks.

class _Tally:
    """Counts the messages in stored blocks that are live according to the state."""

    def __init__(self, shard: ShardSurvey) -> None:
        self._shard = shard
        self._wanted: dict[tuple[int, Position, int, int], tuple[StreamState, BlockEntry]] = {}
        self._left: dict[int, int] = {}
        self._found: dict[int, list[int]] = {}
        self._problems: list[Problem] = []
        for stream, entry in entries(shard.view):
            self._wanted[_id(entry.ref)] = stream, entry
            self._left[stream.stream_id] = self._left.get(stream.stream_id, 0) + 1

    def block(self, ref: BlockRef, core: BlockCore, head: Head) -> None:
        """Count the live messages of an undamaged block, if the state has it."""
        wanted = self._wanted.pop(_id(ref), None)
        if wanted is None:
            return
        stream, entry = wanted
        self._left[stream.stream_id] -= 1
        if ref.place is BlockPlace.STAGED:
            ref = placed(ref, entry.ref.first_seq, entry.ref.first_time_ns, entry.ref.last_time_ns)
        if entry.ref != ref:
            self._problems.append(Problem(
                key_of(self._shard.paths, stream, ref), f"the block table of {stream.account}/{stream.name} has "
                f"{entry.ref!r}, and the object has {ref!r}", "checkpoint and object disagree", RESTORE,
                "block core", ref.core_offset))
        msgs, size, first = _live(head, core, entry, stream.first_seq)
        found = self._found.setdefault(stream.stream_id, [0, 0, 0])
        found[0] += msgs
        found[1] += size
        if msgs and (not found[2] or first < found[2]):
            found[2] = first

    def differences(self) -> list[Problem]:
        """Return problems of streams whose figures differ from their messages.

        Streams with a damaged or missing block are skipped: that block is reported as another problem.
        """
        problems = list(self._problems)
        for stream in self._shard.view.state.streams.values():
            if stream.departed is not None:
                continue
            if stream.offline is not None:
                problems.append(Problem(f"stream {stream.account}/{stream.name}", stream.offline,
                                        "the stream is offline: a broker does not serve it", NEWER))
                continue
            for name, consumer in stream.consumers.items():
                if consumer.floor_sseq > consumer.delivered_sseq or consumer.floor_cseq > consumer.delivered_cseq:
                    problems.append(_wrong_state(stream, f"the ack floor of consumer {name} is above what was "
                                                         f"delivered"))
            if self._left.get(stream.stream_id):
                continue
            msgs, size, first = self._found.get(stream.stream_id, (0, 0, 0))
            if (msgs, size) != (stream.msgs, stream.bytes):
                problems.append(_wrong_state(stream, f"its state has {stream.msgs} messages of {stream.bytes} "
                                                     f"bytes; its blocks have {msgs} of {size} bytes"))
            elif msgs and first != stream.first_seq:
                problems.append(_wrong_state(stream, f"its first_seq is {stream.first_seq}; the first message in "
                                                     f"its blocks is {first}"))
        return problems


def _wrong_state(stream: StreamState, what: str) -> Problem:
    return Problem(f"stream {stream.account}/{stream.name}", what, "state and messages disagree, though every "
                   "checksum is right: a bug in jetblock", "keep a copy of the store and report it")


def _id(ref: BlockRef) -> tuple[int, Position, int, int]:
    return ref.stream_id, ref.position, ref.object_id, ref.core_offset


def _live(head: Head, core: BlockCore, entry: BlockEntry, first_seq: int) -> tuple[int, int, int]:
    """Return the number of a block's live messages, their bytes, and the first one's sequence."""
    shift = entry.ref.first_seq - head.first_seq  # the index of a staged block counts from 1
    if entry.dead is None and entry.ref.first_seq >= first_seq:
        return core.count, core.bytes, entry.ref.first_seq
    msgs = size = first = 0
    for ordinal in range(head.ordinal_of(first_seq - shift), head.count):
        seq = head.seq_of(ordinal) + shift
        if not entry.is_dead(seq):
            msgs += 1
            size += head.size_of(ordinal)
            first = first or seq
    return msgs, size, first


# The check of checkpoints against the log.

async def _checkpoints(source: Source, shard: ShardSurvey, known: list[Problem], done: Verified) -> None:
    """Replay from each root to the end of the newest state, and compare the states."""
    view, paths = shard.view, shard.paths
    if view.snapshot is None or not view.snapshot.state.position.epoch:
        return
    state = view.snapshot.state
    newest = view.snapshot.root.position if view.snapshot.root is not None else None
    roots: list[Position | None] = [position for position, _ in shard.roots
                                    if position != newest and position <= state.position]
    roots = roots[:_ROOTS_MAX - 1] + roots[_ROOTS_MAX - 1:][-1:]
    if newest is not None and position_key(Position(1, 0)) in state.counts.segments:
        roots.insert(0, None)  # no segment was deleted, so the whole log exists
    kept = {newest}
    if view.snapshot.root is not None:
        done.roots.append((paths.shard, view.snapshot.root.position))
        kept |= {Position(*at) for at, _ in view.snapshot.root.extra.get("roots", ())}
        await _check_unread_pages(source, shard, view.snapshot.root.position, state, done)
    for root in roots:
        key = paths.checkpoint(root) if root is not None else paths.logs
        try:
            snapshot = await drive(source, replay_from(paths, root, state.position), state.position)
        except (FormatError, CutOff) as error:
            if root is None or await source.find(key, 0, 1) is None:
                continue  # it was deleted meanwhile; damage in the log was found above
            if root not in kept and newest is not None and root < newest:
                # A delayed put may create the object again after it was deleted.
                done.orphans.append(Orphan(key, dict(shard.roots)[root], "a checkpoint no longer kept; what it needs "
                                           "is gone"))
                continue
            text = str(error)
            if any(problem.object.rpartition("/")[2] in text or problem.object == key
                   for problem in (*known, *done.problems)):
                continue  # the cause is listed already
            if text.endswith(NAMED_AND_GONE):
                page = text.removesuffix(NAMED_AND_GONE).rpartition(" ")[2]
                done.problems.append(Problem(page, "it is missing, and a checkpoint names it", f"a start from {key}, "
                                             "should newer ones be damaged, would fail", _CUT_NEW))
                continue
            done.problems.append(Problem(key, f"the state cannot be replayed from it: {text}",
                                         "a start from this checkpoint, should newer ones be damaged, would fail",
                                         _CUT_NEW))
            continue
        if root is not None:
            done.roots.append((paths.shard, root))
            if root in kept:
                await _check_unread_pages(source, shard, root, snapshot.state, done)
        for what in state_differences(snapshot.state, state)[:8]:
            done.problems.append(Problem(
                key, f"replayed from here, the state differs from that of the newest checkpoint: {what}",
                "checkpoint and log disagree, though every checksum is right: a bug in jetblock",
                "keep a copy of the store and report it"))


async def _check_unread_pages(source: Source, shard: ShardSurvey, root: Position, state: ShardState,
                              done: Verified) -> None:
    """Find missing pages of subjects and of ids that a root names; a replay does not read these pages."""
    paths = shard.paths
    named = {page.place.position: (_SUBJECTS_LOST, _SUBJECTS_REMEDY) for stream in state.streams.values()
             for page in stream.subjects}
    named |= {place.position: (_IDS_LOST, _IDS_REMEDY) for stream in state.streams.values()
              for place in stream.ids.places}
    for position in sorted(named.keys() - {position for position, _ in shard.pages}):
        key = paths.pages(position)
        if (all(problem.object != key for problem in done.problems) and await source.find(key, 0, 1) is None
                and await source.find(paths.checkpoint(root), 0, 1) is not None):  # else both were deleted meanwhile
            done.problems.append(Problem(key, "it is missing, and a checkpoint names it", *named[position]))


def state_differences(one: ShardState, other: ShardState) -> list[str]:
    """Return the differences of two replayed states, in words. Estimates (bytes of dead messages) are not compared."""
    found: list[str] = []
    if one.position != other.position:
        found.append(f"it ends at {one.position}, not at {other.position}")
    for name, first, second in (("segments", one.counts.segments, other.counts.segments),
                                ("unreferenced segments", one.counts.unreferenced, other.counts.unreferenced),
                                ("opening", one.opening, other.opening), ("names", one.names, other.names)):
        if first != second:
            found.append(f"{name} differ")
    if {p: x.to_record() for p, x in one.released.items()} != {p: x.to_record() for p, x in other.released.items()}:
        found.append("released objects differ")
    for stream_id in sorted(one.streams.keys() | other.streams.keys()):
        a, b = one.streams.get(stream_id), other.streams.get(stream_id)
        if a is None or b is None:
            there = a or b
            assert there is not None
            found.append(f"stream {there.account}/{there.name} is in one of them only")
            continue
        name = f"stream {a.account}/{a.name}"
        for what in _STREAM_FIELDS:
            if getattr(a, what) != getattr(b, what):
                found.append(f"{name}: {what} {getattr(a, what)!r}, not {getattr(b, what)!r}")
        if [_entry(e) for e in a.blocks] != [_entry(e) for e in b.blocks]:
            found.append(f"{name}: its blocks, or what is dead in them, differ")
        for consumer in sorted(a.consumers.keys() | b.consumers.keys()):
            if _consumer(a.consumers.get(consumer)) != _consumer(b.consumers.get(consumer)):
                found.append(f"{name}: consumer {consumer} differs")
    return found


_STREAM_FIELDS = ("account", "name", "config", "created_ns", "first_seq", "last_seq", "msgs", "bytes", "first_time_ns",
                  "last_time_ns", "ceiling", "extra", "position", "offline")


def _entry(entry: BlockEntry) -> Any:
    return entry.ref.pack(), entry.dead_count, list(entry.dead.seqs()) if entry.dead is not None else []


def _consumer(consumer: ConsumerState | None) -> Any:
    if consumer is None:
        return None
    return (consumer.config, consumer.created_ns, consumer.delivered_cseq, consumer.delivered_sseq,
            consumer.floor_cseq, consumer.floor_sseq, consumer.last_active_ns, consumer.last_ack_ns,
            list(consumer.pending.items()), consumer.redelivered, consumer.extra)

