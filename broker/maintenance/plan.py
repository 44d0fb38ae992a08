"""The plan of a repair, made on an overlay of the store: substitutes for objects, and corrections of streams.

    substitutes    for the format, claims, log entries that a replay needs, and log entries that can be rebuilt whole
    corrections    messages that cannot be read are removed, as by a delete, so that consumers skip them
    checkpoints    damaged checkpoints and their pages are deleted once newer ones exist

A plan may leave out some parts: if one part cannot be carried out, the others can (``fsck``).
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from broker.inspect.problems import Problem
from broker.inspect.shardview import ShardView, key_of
from broker.inspect.source import Source
from broker.inspect.survey import ShardSurvey, Survey, read_survey
from broker.maintenance.overlay import Overlay
from broker.maintenance.owner import Correction
from broker.maintenance.quarantine import Unfinished
from broker.maintenance.substitute import Unrepairable, claim_for, format_for, header_of, log_entry_for
from broker.storage.format.block import Outcome, Removed
from broker.storage.format.errors import FormatError
from broker.storage.format.frames import decode_frame
from broker.storage.format.header import HEADER_BYTES, ObjectKind, Position, key_position
from broker.storage.format.index import Head, decode_index
from broker.storage.format.segment import DirectoryRow
from broker.storage.paths import FORMAT, ShardPaths, parse
from broker.storage.state.stream import StreamState
from broker.storage.state.table import BlockEntry

__all__ = ["Lost", "Part", "Plan", "make_plan"]

_SUBSTITUTES_MAX = 10_000
_WITNESSES = 32
"""The number of an epoch's objects whose headers are read to find the process run that wrote them."""


class Part(Enum):
    """A part that a plan may leave out. The format is in every plan."""

    LOG = "log entries without which a broker cannot start, and the streams that depend on them"
    CLAIMS = "claims"
    ENTRIES = "log entries that can be rebuilt whole, and seals"


class Lost(NamedTuple):
    """Messages of a stream that cannot be read. ``object`` is the key of their object, "" if it is not known."""

    account: str
    stream: str
    first_seq: int
    last_seq: int
    messages: int
    object: str

    def to_json(self) -> dict[str, Any]:
        """Return the row of the report."""
        return self._asdict()


@dataclass(slots=True)
class Plan:
    """The changes of a repair."""

    damaged: list[str] = field(default_factory=list)
    """The keys of the objects of which the quarantine keeps a copy."""
    substitutes: dict[str, bytes] = field(default_factory=dict)
    checkpoints: list[str] = field(default_factory=list)
    """The keys of damaged roots and pages, to be deleted."""
    corrections: dict[int, list[Correction]] = field(default_factory=dict)
    """The corrections by shard."""
    shards: list[int] = field(default_factory=list)
    """The shards that get new checkpoints."""
    lost: list[Lost] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Texts about losses other than messages."""

    def __bool__(self) -> bool:
        return bool(self.substitutes or self.checkpoints or self.corrections)


async def make_plan(overlay: Overlay, problems: list[Problem], unfinished: Unfinished, rng: random.Random, now_ns: int,
                    parts: frozenset[Part] = frozenset(Part)) -> Plan:
    """Plan the repair of these problems, and the rest of interrupted repairs; put the substitutes into ``overlay``.

    Raises: Unrepairable; StoreError.
    """
    return await _Planner(overlay, problems, unfinished, rng, now_ns, parts).make()


class _Planner:
    def __init__(self, overlay: Overlay, problems: list[Problem], unfinished: Unfinished, rng: random.Random,
                 now_ns: int, parts: frozenset[Part]) -> None:
        self.unfinished = unfinished
        self.parts = parts
        self.substituted = set(unfinished.replaced)
        self.overlay = overlay
        self.source = Source(overlay)
        self.rng = rng
        self.now_ns = now_ns
        self.plan = Plan()
        self.dropped: dict[int, list[tuple[str, DirectoryRow]]] = {}
        """By stream id: the object keys and directory rows of blocks that no substitute contains."""
        self.bad = dict.fromkeys(problem.object for problem in problems)

    async def make(self) -> Plan:
        plan = self.plan
        if FORMAT in self.bad:
            await self._substitute(FORMAT, format_for(await self.source.find(FORMAT) or b"", self.rng, self.now_ns))
        if Part.CLAIMS in self.parts:
            # Claims are first, because a substitute for a log entry names the process run of its epoch's claim.
            for shard in (await read_survey(self.source)).shards:
                await self._substitute_claims(shard)
        survey = await self._make_whole()
        for shard in survey.shards:
            if Part.ENTRIES in self.parts:
                await self._rebuild_entries(shard)
        if Part.LOG not in self.parts:
            return plan
        survey = await self._make_whole()
        for shard in survey.shards:
            number = shard.paths.shard
            corrections = [one for stream in shard.view.state.streams.values()
                           if stream.offline is None and stream.departed is None
                           and (one := await self._correction(shard, stream)) is not None]
            if corrections:
                plan.corrections[number] = corrections
            for key in self.bad:
                parsed = parse(key)
                if (parsed is not None and parsed.shard == number and parsed.kind in (ObjectKind.ROOT, ObjectKind.PAGES)
                        and await self.source.find(key, 0, 1) is not None):
                    plan.checkpoints.append(key)
        plan.shards = [shard.paths.shard for shard in survey.shards if plan]
        for key in self.bad:
            if parse(key) is not None and key not in plan.damaged and await self.source.find(key, 0, 1) is not None:
                plan.damaged.append(key)
        return plan

    # Objects.

    async def _make_whole(self) -> Survey:
        """Substitute log entries until a replay reaches the log's end and no further entry exists."""
        for _ in range(_SUBSTITUTES_MAX):
            survey = await read_survey(self.source)
            if Part.LOG not in self.parts:
                return survey
            broken = next((shard for shard in survey.shards if not shard.view.whole), None)
            if broken is not None:
                await self._substitute_entry(broken, _first_break(broken.view))
                continue
            hole = next(((shard, problem) for shard in survey.shards for problem in shard.problems
                         if _is_hole(shard, problem)), None)
            if hole is None:
                return survey
            try:
                await self._substitute_entry(*hole)
            except Unrepairable as error:
                self.plan.notes.append(f"later log entries are not read: {error}")
                return survey
        raise Unrepairable(f"more than {_SUBSTITUTES_MAX} log entries cannot be read")

    async def _substitute_entry(self, shard: ShardSurvey, problem: Problem) -> None:
        position = _position_of(problem)
        if position is None:
            raise Unrepairable(f"{problem}: no substitute for a log entry would repair this")
        key = shard.paths.log(position)
        if key in self.plan.substitutes:
            raise Unrepairable(f"{problem}: the missing data is in none of the remaining objects")
        data = await self.source.find(key) or b""
        new, dropped = log_entry_for(data, position, shard, self.rng, self.now_ns)
        await self._substitute(key, new)
        if dropped is None:
            self.plan.notes.append(f"{key}: only messages of streams with later messages are known to be "
                                   f"lost; a stream without later messages gives the lost sequences to new messages")
        for row in dropped or ():
            if row.messages:
                self.dropped.setdefault(row.stream_id, []).append((key, row))
        if dropped is None or any(row.stream_id for row in dropped):
            self.plan.notes.append(f"{key}: the changes of consumers and configurations, message ids and removals in "
                                   f"its unreadable blocks are lost: messages may be delivered again, and removed "
                                   "messages may reappear")

    async def _substitute_claims(self, shard: ShardSurvey) -> None:
        newest = max((epoch.number for epoch in shard.epochs), default=0)
        claims = {epoch.number for epoch in shard.epochs if epoch.claim is not None}
        for number in range(1, newest + 1):
            if number not in claims:
                key = shard.paths.epoch(number)
                data = await self.source.find(key) or b""
                writer = await self._find_writer(shard, number)
                await self._substitute(key, claim_for(data, number, writer, self.rng, self.now_ns))

    async def _find_writer(self, shard: ShardSurvey, epoch: int) -> bytes | None:
        """Find the process run that wrote the epoch's objects, by the headers of some of them.

        The headers are those of log entries, roots and pages; if there are none, of runs. The most frequent process run
        wins, since a few objects may be damaged or have other writers. None: the epoch has no objects.
        """
        paths = shard.paths
        where = shard.log.of_epoch(epoch)
        step = max(1, (where.stop - where.start) // _WITNESSES)
        names = [(paths.log(key_position(shard.log.keys[at])), ObjectKind.SEGMENT)
                 for at in range(where.start, where.stop, step)]
        names += [(paths.checkpoint(at), ObjectKind.ROOT) for at, _ in shard.roots if at.epoch == epoch]
        names += [(paths.pages(at), ObjectKind.PAGES) for at, _ in shard.pages if at.epoch == epoch][:_WITNESSES]
        found = await self._nonces(names)
        if not found:
            names = []
            async for info in self.source.folder(paths.runs):
                key = parse(info.key)
                if (key is not None and key.position is not None and key.position.epoch == epoch
                        and len(names) < _WITNESSES):
                    names.append((info.key, ObjectKind.RUN))
            found = await self._nonces(names)
        return max(found, key=found.__getitem__) if found else None

    async def _nonces(self, names: list[tuple[str, ObjectKind]]) -> Counter[bytes]:
        """Count these objects by the process run in their headers."""
        found: Counter[bytes] = Counter()
        for name, kind in names:
            key, header = parse(name), header_of(await self.source.find(name, 0, HEADER_BYTES) or b"")
            if key is not None and header is not None and header.kind == kind and header.position == key.position:
                found[header.nonce] += 1
        return found

    async def _rebuild_entries(self, shard: ShardSurvey) -> None:
        """Substitute lost seals, and damaged log entries without missing blocks: references to them stay valid."""
        ends = {(epoch.number, epoch.end) for epoch in shard.epochs}
        for key in self.bad:
            parsed = parse(key)
            if (parsed is None or parsed.kind != ObjectKind.SEGMENT or parsed.shard != shard.paths.shard
                    or parsed.position is None or key in self.plan.substitutes):
                continue
            data = await self.source.find(key)
            if data is None and parsed.position not in ends:
                continue
            data = data or b""
            try:
                new, dropped = log_entry_for(data, parsed.position, shard, self.rng, self.now_ns)
            except Unrepairable:
                continue
            # If only an undamaged header differs, another process wrote the entry, which is kept as evidence.
            foreign = header_of(data) is not None and new[HEADER_BYTES:] == data[HEADER_BYTES:]
            if (len(new) == len(data) or parsed.position in ends) and not foreign and not dropped:
                await self._substitute(key, new)

    async def _substitute(self, key: str, new: bytes) -> None:
        if await self.source.find(key, 0, 1) is not None:
            self.plan.damaged.append(key)
        await self.overlay.replace(key, [new])
        self.plan.substitutes[key] = new
        self.substituted.add(key)

    # Streams.

    async def _correction(self, shard: ShardSurvey, stream: StreamState) -> Correction | None:
        """Find the stream's lost messages; None if there are none and the stream's figures are right."""
        paths = shard.paths
        lost: list[Lost] = []
        removed: list[Removed] = []
        msgs = size = first = first_time_ns = 0
        suspects = self.bad.keys() | self.substituted
        substituted = self._substituted_entries()
        hidden: list[int] = []
        """Sequences that a run has and the state does not: removed messages, and messages of a substituted entry."""
        for entry in stream.blocks:
            ref = entry.ref
            suspect = key_of(paths, stream, ref) in suspects
            if not suspect and entry.dead is None and ref.first_seq >= stream.first_seq:
                live = [(ref.count, ref.bytes, ref.first_seq, ref.first_time_ns)]
            else:
                head, gone = await self._read(paths, stream, entry, check=suspect)
                for start, end in gone:
                    count, its_bytes = _live_in(head, entry, stream.first_seq, start, end)
                    if count:
                        lost.append(Lost(stream.account, stream.name, max(start, stream.first_seq), end, count,
                                         key_of(paths, stream, ref)))
                        removed.append(Removed(start, end, count, its_bytes))
                if head is not None and ref.object_id and any(at < ref.position for at in substituted):
                    seqs = (head.seq_of(at) for at in range(head.ordinal_of(stream.first_seq), head.count))
                    hidden += [seq for seq in seqs if entry.is_dead(seq)]
                live = [] if head is None else [
                    (1, head.size_of(at), seq, head.time_of(at)) for at,
                    seq in _live_seqs(head, entry, stream.first_seq)
                    if not any(start <= seq <= end for start, end in gone)]
            for count, its_bytes, seq, time_ns in live:
                msgs, size = msgs + count, size + its_bytes
                if not first:
                    first, first_time_ns = seq, time_ns
        last_seq = stream.last_seq
        ended = [Lost(stream.account, stream.name, row.first_seq, row.last_seq, row.messages, key)
                 for key, row in self.dropped.get(stream.stream_id, ())]
        ended += [row for row in (Lost(**row) for row in self.unfinished.lost)
                  if (row.account, row.stream) == (stream.account, stream.name)]
        for row in ended:
            if row.first_seq > stream.last_seq:
                # No later log entry has these sequences; the correction prevents that new messages get them.
                last_seq = max(last_seq, row.last_seq)
                lost.append(row)
                removed.append(Removed(row.first_seq, row.last_seq, row.messages, 0))
        if not removed and not self.substituted:
            return None  # wrong figures without damage are a bug, and are kept as evidence
        if left := max(0, stream.msgs - msgs - sum(one.messages for one in lost if one.last_seq <= stream.last_seq)):
            # These messages were in log entries that have a substitute, so no block has them.
            gaps = list(self._gaps(stream))
            for start, end in gaps:
                count = min(left, end - start + 1)
                left -= count
                removed.append(Removed(start, end, count, 0))
                if count:
                    lost.append(Lost(stream.account, stream.name, start, end, count, ""))
            if left and hidden:
                lost.append(Lost(stream.account, stream.name, min(hidden), max(hidden), min(left, len(hidden)), ""))
        outcome = (Outcome(first, last_seq, msgs, size, first_time_ns) if msgs else
                   Outcome(last_seq + 1, last_seq, 0, 0, 0))
        if not removed and outcome == stream.outcome:
            return None
        self.plan.lost += lost
        return Correction(stream.stream_id, removed, outcome)

    def _gaps(self, stream: StreamState) -> Iterator[tuple[int, int]]:
        """Yield ranges of sequences that may have been in substituted entries. (A mirror may have other gaps, too.)"""
        substituted = self._substituted_entries()
        after, at = stream.first_seq, Position(0, 0)
        for entry in stream.blocks:
            ref = entry.ref
            if ref.first_seq > after and any(at < position < ref.position for position in substituted):
                yield after, ref.first_seq - 1
            after, at = ref.last_seq + 1, ref.position
        if after <= stream.last_seq:
            yield after, stream.last_seq

    def _substituted_entries(self) -> list[Position]:
        return [parsed.position for key in self.substituted if (parsed := parse(key)) is not None
                and parsed.kind == ObjectKind.SEGMENT and parsed.position is not None]

    async def _read(self, paths: ShardPaths, stream: StreamState, entry: BlockEntry, *, check: bool
                    ) -> tuple[Head | None, list[tuple[int, int]]]:
        """Read a block's index, and find the ranges of its sequences that cannot be read.

        Args: check reads the frames, too; otherwise only the index is read.
        Returns: None as the index if no message of the block can be read.
        """
        ref, key = entry.ref, key_of(paths, stream, entry.ref)
        everything = [(ref.first_seq, ref.last_seq)]
        data = await self.source.find(key, ref.index_offset, ref.index_offset + ref.index_bytes)
        if data is None:
            return None, everything
        try:
            head = decode_index(data, ref, key)
        except FormatError:
            return None, everything
        gone: list[tuple[int, int]] = []
        for number, frame in enumerate(head.frames if check else ()):
            start = ref.frames_offset + frame.offset
            try:
                decode_frame(head, number, await self.source.find(key, start, start + frame.stored_bytes) or b"", key)
            except FormatError:
                gone.append((head.seq_of(frame.start), head.seq_of(frame.start + frame.messages - 1)))
        return head, gone


def _live_seqs(head: Head, entry: BlockEntry, first_seq: int) -> Iterator[tuple[int, int]]:
    """Yield ordinal and sequence of each live message."""
    for ordinal in range(head.ordinal_of(first_seq), head.count):
        seq = head.seq_of(ordinal)
        if not entry.is_dead(seq):
            yield ordinal, seq


def _live_in(head: Head | None, entry: BlockEntry, first_seq: int, start: int, end: int) -> tuple[int, int]:
    """Count the live messages of a block from ``start`` to ``end`` and their bytes; estimate them without an index."""
    if head is None:
        ref = entry.ref
        alive = range(max(ref.first_seq, first_seq), ref.last_seq + 1)
        count = (sum(not entry.is_dead(seq) for seq in alive) if ref.gapless and entry.dead is not None else
                 min(len(alive), ref.count))
        return max(1, count), ref.bytes * count // ref.count  # a block without live messages is in no table
    live = [at for at, seq in _live_seqs(head, entry, first_seq) if start <= seq <= end]
    return len(live), sum(map(head.size_of, live))


def _first_break(view: ShardView) -> Problem:
    """Return the problem that ended the replay: the last one in the list that is about a log entry."""
    for problem in reversed(view.problems):
        if _position_of(problem) is not None:
            return problem
    return view.problems[-1]


def _is_hole(shard: ShardSurvey, problem: Problem) -> bool:
    """Return True for a missing entry that readers take for the log's end.

    The entry is after the end of the replay, and no later opening gives the epoch an end before it.
    """
    position = _position_of(problem)
    return position is not None and position not in shard.log and position > shard.view.state.position and all(
        epoch.end is None or position.number < epoch.end for epoch in shard.epochs if epoch.number == position.epoch)


def _position_of(problem: Problem) -> Position | None:
    """Return the position of the log entry that a problem is about; None if it is about none."""
    parsed = parse(problem.object)
    return parsed.position if parsed is not None and parsed.kind == ObjectKind.SEGMENT else None
