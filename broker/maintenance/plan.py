"""What a repair does to a store, worked out on an overlay of it: substitutes for objects, and corrections of streams.

    substitutes    the format; a log entry that replay needs and cannot read; claims; any log entry that can be rebuilt whole
    corrections    messages that no longer can be read are removed, as a delete would, so that consumers go past them
    checkpoints    damaged ones, and their pages, leave the store once newer ones are there

A plan has all parts of this, or some: where one cannot be carried out, the others still can (``fsck``).
"""

from __future__ import annotations

import random
import re
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
from broker.storage.format.header import HEADER_BYTES, ObjectKind, Position, key_position
from broker.storage.format.index import Head, decode_frame, decode_index
from broker.storage.format.segment import DirectoryRow
from broker.storage.paths import FORMAT, ShardPaths, parse
from broker.storage.state.stream import StreamState
from broker.storage.state.table import BlockEntry

__all__ = ["Lost", "Part", "Plan", "make_plan"]

_OPENING_GONE = re.compile(r"\bepoch (\d+) was opened")
_SUBSTITUTES_MAX = 10_000
_WITNESSES = 32
"""Objects of an epoch whose headers are read to learn who wrote them."""


class Part(Enum):
    """What a plan may leave out. The format is always in it."""

    LOG = "log entries without which a broker cannot start, and the streams that depend on them"
    CLAIMS = "claims"
    ENTRIES = "log entries that can be rebuilt whole, and seals"


class Lost(NamedTuple):
    """Messages of a stream that cannot be read. object: where they were, "" if it is not known."""

    account: str
    stream: str
    first_seq: int
    last_seq: int
    messages: int
    object: str

    def to_json(self) -> dict[str, Any]:
        """The report's row."""
        return self._asdict()


@dataclass(slots=True)
class Plan:
    """damaged: objects of which a copy is kept. settle: shards of which new checkpoints are cut. notes: what is lost beside
    messages."""

    damaged: list[str] = field(default_factory=list)
    substitutes: dict[str, bytes] = field(default_factory=dict)
    checkpoints: list[str] = field(default_factory=list)
    corrections: dict[int, list[Correction]] = field(default_factory=dict)
    settle: list[int] = field(default_factory=list)
    lost: list[Lost] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.substitutes or self.checkpoints or self.corrections)


async def make_plan(overlay: Overlay, problems: list[Problem], unfinished: Unfinished, rng: random.Random, now_ns: int,
                    parts: frozenset[Part] = frozenset(Part)) -> Plan:
    """The repair for these problems, and the rest of interrupted ones. Puts the substitutes into ``overlay``.

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
        """Blocks with messages that no substitute has, by stream."""
        self.bad = dict.fromkeys(problem.object for problem in problems)

    async def make(self) -> Plan:
        plan = self.plan
        if FORMAT in self.bad:
            await self._substitute(FORMAT, format_for(await self.source.find(FORMAT) or b"", self.rng, self.now_ns))
        if Part.CLAIMS in self.parts:
            # First, because a substitute for a log entry names the process run that its epoch's claim names.
            for shard in (await read_survey(self.source)).shards:
                await self._claims(shard)
        survey = await self._make_whole()
        for shard in survey.shards:
            if Part.ENTRIES in self.parts:
                await self._rebuilt(shard)
        if Part.LOG not in self.parts:
            return plan
        survey = await self._make_whole()
        for shard in survey.shards:
            number = shard.paths.shard
            corrections = [one for stream in shard.view.state.streams.values()
                           if stream.offline is None and (one := await self._correction(shard, stream)) is not None]
            if corrections:
                plan.corrections[number] = corrections
            for key in self.bad:
                parsed = parse(key)
                if (parsed is not None and parsed.shard == number and parsed.kind in (ObjectKind.ROOT, ObjectKind.PAGES)
                        and await self.source.find(key, 0, 1) is not None):
                    plan.checkpoints.append(key)
        plan.settle = [shard.paths.shard for shard in survey.shards if plan]
        for key in self.bad:
            if parse(key) is not None and key not in plan.damaged and await self.source.find(key, 0, 1) is not None:
                plan.damaged.append(key)
        return plan

    # Objects.

    async def _make_whole(self) -> Survey:
        """Substitute log entries until replay comes to the log's end, past which there is nothing."""
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
                self.plan.notes.append(f"what lies behind it stays unread: {error}")
                return survey
        raise Unrepairable(f"more than {_SUBSTITUTES_MAX} log entries cannot be read")

    async def _substitute_entry(self, shard: ShardSurvey, problem: Problem) -> None:
        position = _position_of(problem)
        if position is None:
            raise Unrepairable(f"{problem}: no log entry can be named that would mend this")
        key = shard.paths.log(position)
        if key in self.plan.substitutes:
            raise Unrepairable(f"{problem}: what it needs is in none of the objects that are left")
        data = await self.source.find(key) or b""
        new, dropped = log_entry_for(data, position, shard, self.rng, self.now_ns)
        await self._substitute(key, new)
        if dropped is None:
            self.plan.notes.append(f"{key}: which messages were in it can be told only for streams that go on after it; a stream "
                                   f"that ended in it gives their sequences again")
        for row in dropped or ():
            if row.messages:
                self.dropped.setdefault(row.stream_id, []).append((key, row))
        if dropped is None or any(row.stream_id for row in dropped):
            self.plan.notes.append(f"{key}: what its unreadable blocks said of consumers, configurations, message ids and removed "
                                   f"messages is lost: messages may be delivered again, and removed ones be back")

    async def _claims(self, shard: ShardSurvey) -> None:
        newest = max((epoch.number for epoch in shard.epochs), default=0)
        claims = {epoch.number for epoch in shard.epochs if epoch.claim is not None}
        for number in range(1, newest + 1):
            if number not in claims:
                key = shard.paths.epoch(number)
                data = await self.source.find(key) or b""
                await self._substitute(key, claim_for(data, number, await self._writer(shard, number), self.rng, self.now_ns))

    async def _writer(self, shard: ShardSurvey, epoch: int) -> bytes | None:
        """The process run that wrote what there is of an epoch: of its log, checkpoints and pages, else of its runs. None: there
        is nothing. The first entries of an epoch are swept after some checkpoints, and any of the others tells as well.

        If a few of them say something else, they are other writers', or damaged.
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
                if key is not None and key.position is not None and key.position.epoch == epoch and len(names) < _WITNESSES:
                    names.append((info.key, ObjectKind.RUN))
            found = await self._nonces(names)
        return max(found, key=found.__getitem__) if found else None

    async def _nonces(self, names: list[tuple[str, ObjectKind]]) -> Counter[bytes]:
        """How many of these objects each process run wrote, by their headers."""
        found: Counter[bytes] = Counter()
        for name, kind in names:
            key, header = parse(name), header_of(await self.source.find(name, 0, HEADER_BYTES) or b"")
            if key is not None and header is not None and header.kind == kind and header.position == key.position:
                found[header.nonce] += 1
        return found

    async def _rebuilt(self, shard: ShardSurvey) -> None:
        """Substitute damaged log entries of which nothing is missing, so that no reference to them changes, and lost seals."""
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
            # Bytes that differ in their header alone, and have a sound one, are another writer's: that stays to be seen.
            sound = header_of(data) is not None and new[HEADER_BYTES:] == data[HEADER_BYTES:]
            if (len(new) == len(data) or parsed.position in ends) and not sound and not dropped:
                await self._substitute(key, new)

    async def _substitute(self, key: str, new: bytes) -> None:
        if await self.source.find(key, 0, 1) is not None:
            self.plan.damaged.append(key)
        await self.overlay.replace(key, [new])
        self.plan.substitutes[key] = new
        self.substituted.add(key)

    # Streams.

    async def _correction(self, shard: ShardSurvey, stream: StreamState) -> Correction | None:
        """None if all messages of the stream are there and its figures are theirs."""
        paths = shard.paths
        lost: list[Lost] = []
        removed: list[Removed] = []
        msgs = size = first = first_time_ns = 0
        suspects = self.bad.keys() | self.substituted
        substituted = self._substituted_entries()
        hidden: list[int] = []
        """Sequences that a run has and the state has not: removed ones, and those that a substituted entry was to bring."""
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
                    (1, head.size_of(at), seq, head.time_of(at)) for at, seq in _live_seqs(head, entry, stream.first_seq)
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
                # Nothing after it says that these sequences were given; they must not be given again.
                last_seq = max(last_seq, row.last_seq)
                lost.append(row)
                removed.append(Removed(row.first_seq, row.last_seq, row.messages, 0))
        if not removed and not self.substituted:
            return None  # figures that are wrong for another reason are a bug, and stay to be looked at
        if left := max(0, stream.msgs - msgs - sum(one.messages for one in lost if one.last_seq <= stream.last_seq)):
            # They were in log entries that have a substitute, so no block has them.
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
        """The sequences that may have been in substituted entries; some gaps, of a mirror, may have been there before."""
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
        return [parsed.position for key in self.substituted
                if (parsed := parse(key)) is not None and parsed.kind == ObjectKind.SEGMENT and parsed.position is not None]

    async def _read(self, paths: ShardPaths, stream: StreamState, entry: BlockEntry, *, check: bool
                    ) -> tuple[Head | None, list[tuple[int, int]]]:
        """A block's index, and the sequences of it that cannot be read; None: not one can."""
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
    """Ordinal and sequence of each live message."""
    for ordinal in range(head.ordinal_of(first_seq), head.count):
        seq = head.seq_of(ordinal)
        if not entry.is_dead(seq):
            yield ordinal, seq


def _live_in(head: Head | None, entry: BlockEntry, first_seq: int, start: int, end: int) -> tuple[int, int]:
    """Live messages and their bytes in start..end of a block; without an index, about as many as the table says."""
    if head is None:
        ref = entry.ref
        alive = range(max(ref.first_seq, first_seq), ref.last_seq + 1)
        count = (sum(not entry.is_dead(seq) for seq in alive) if ref.gapless and entry.dead is not None else
                 min(len(alive), ref.count))
        return max(1, count), ref.bytes * count // ref.count  # a block without live messages is in no table
    live = [at for at, seq in _live_seqs(head, entry, first_seq) if start <= seq <= end]
    return len(live), sum(map(head.size_of, live))


def _first_break(view: ShardView) -> Problem:
    """Why the replay ended: the problem named last is the earliest in the log."""
    for problem in reversed(view.problems):
        if _position_of(problem) is not None:
            return problem
    return view.problems[-1]


def _is_hole(shard: ShardSurvey, problem: Problem) -> bool:
    """Whether a missing entry makes readers stop, and take it for the log's end: no broker ends one before there is an opening, or
    has so many puts in flight."""
    position = _position_of(problem)
    return position is not None and position not in shard.log and position > shard.view.state.position and all(
        epoch.end is None or position.number < epoch.end for epoch in shard.epochs if epoch.number == position.epoch)


def _position_of(problem: Problem) -> Position | None:
    """The log entry that a problem is about."""
    parsed = parse(problem.object)
    if parsed is not None and parsed.kind == ObjectKind.SEGMENT:
        return parsed.position
    match = _OPENING_GONE.search(problem.what)
    return Position(int(match[1]), 0) if match is not None else None
