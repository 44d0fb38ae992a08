"""The state of a shard's streams and consumers by its persisted segments: the replay of outcomes.

Owns the state of a shard (``stream``, ``consumer`` and ``released`` hold its parts), which recovery, checkpoints and
readers without a broker share. Decides nothing: a block lists what its stream's limits, expiry and acks removed, so any
version and any reader arrives at the same state, without a clock.

A block is applied as follows: a stream is made by its create record; blocks that it appends join the table, then the block
itself; ranges removed meanwhile are marked dead; the other records follow in their order; the outcome replaces the
stream's numbers.

Every step is an assignment or a union, so applying once more what a state already holds changes nothing in the end.
Pages of a checkpoint may therefore be copied at different times, each with its own position: replay begins at the
lowest.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence

from broker.storage.format.block import LAST_TIME_NS, STREAM_ID, BlockCore, BlockPlace, BlockRef, Outcome, PackedRef
from broker.storage.format.errors import Corrupt
from broker.storage.format.header import Position, key_position, position_key
from broker.storage.format.index import Head
from broker.storage.format.record import Record
from broker.storage.format.records.adoption import Adopted, Adoption
from broker.storage.format.records.append import Append
from broker.storage.format.records.ceiling import Ceiling
from broker.storage.format.records.consumer_create import ConsumerCreate
from broker.storage.format.records.consumer_delete import ConsumerDelete
from broker.storage.format.records.consumer_state import ConsumerDelta
from broker.storage.format.records.consumer_update import ConsumerUpdate
from broker.storage.format.records.expiry import Expiry
from broker.storage.format.records.message_ids import MessageIds
from broker.storage.format.records.opening import Opening
from broker.storage.format.records.release import Release
from broker.storage.format.records.schedule import Schedule
from broker.storage.format.records.stream_create import StreamCreate
from broker.storage.format.records.stream_delete import StreamDelete
from broker.storage.format.records.stream_update import StreamUpdate
from broker.storage.state.consumer import ConsumerState
from broker.storage.state.extra import update_extra
from broker.storage.state.held import HeldPart, held_parts
from broker.storage.state.ids import WINDOW, BlockIds
from broker.storage.state.released import Released
from broker.storage.state.stream import START, StreamState
from broker.storage.state.swap import dead_in
from broker.storage.state.table import BlockEntry, BlockTable, Kept, RunKey, TablePage, pages_of, run_keys

__all__ = ["ShardState"]

_RECORDS_MAX = 16
_LEFT_AT_ONCE = 1024
"""Blocks that left, taken out of the counts in one go: less than a millisecond."""


class ShardState:
    """All of a shard, as of ``position``; or, for a reader, those streams of it that are ``wanted``.

    ``segments`` counts, for each segment that is not released, the live blocks in it; 0: nothing refers to it. ``runs``
    counts the live blocks in runs; a run without any is in ``freed_runs``, not here. What an offline stream needs for its
    repair (``held``) is counted like blocks.
    While a replay runs the counts are not kept; ``finish_replay`` makes them. In a reader's state they never are.

    Blocks leave by the million when a stream is deleted or purged: they leave their tables at once, and the counts a slice
    at a time, by ``tidy``. Until then a count is too high, which keeps a segment and never loses one.
    """

    __slots__ = (
        "_deleted",
        "_leaving",
        "_only",
        "_removal_observer",
        "_uncounted",
        "_unmade",
        "freed",
        "freed_runs",
        "ids_unlisted_ns",
        "names",
        "opening",
        "position",
        "released",
        "replaying",
        "runs",
        "segments",
        "streams",
        "unnamed",
        "unwanted",
        "wanted",
    )

    def __init__(self, wanted: Callable[[str, str], bool] | None = None) -> None:
        self.wanted = wanted
        """wanted(account, name): whether a stream is kept; None: all are."""
        self.unwanted: dict[int, tuple[str, str]] = {}
        """Account and name of the streams that are not, by incarnation; some may be deleted by now. Their blocks are not
        to be applied."""
        self.streams: dict[int, StreamState] = {}
        self.names: dict[tuple[str, str], int] = {}
        """(account, name) → stream_id"""
        self.released: dict[Position, Released] = {}
        """What may be deleted and is not known to be, by the record's position."""
        self.segments: dict[int, int] = {}
        """position_key → live blocks stored there"""
        self.unnamed: set[int] = set()
        """Those of ``segments`` with no live block."""
        self.freed = START
        """``position`` when a segment last lost its last live block: what a root at or beyond it no longer needs."""
        self.runs: dict[RunKey, int] = {}
        """Run → live blocks stored there."""
        self.freed_runs: dict[RunKey, tuple[str, str]] = {}
        """Runs that lost their last live block while this process applied; account and name of the stream that had it."""
        self.ids_unlisted_ns = 0
        """The ids of messages up to this time may be in blocks alone. See ``StreamIds.unlisted_ns``."""
        self._removal_observer: Callable[[], object] | None = None
        self._leaving: deque[tuple[StreamState, TablePage | HeldPart]] = deque()
        self.position = START
        self.opening: Opening | None = None
        """The newest opening; None: none was replayed yet."""
        self.replaying = False
        self._unmade: dict[int, Position] = {}
        self._deleted: set[int] = set()
        self._only = 0
        """The stream whose part of a segment is applied alone; 0: all of each segment is."""
        self._uncounted: dict[int, int] = {}
        """Offline streams with a damaged table, whose blocks are not in the counts. All of these blocks are in segments and runs up
        to this ``position_key``, or in runs below the stream's own prefix."""

    def stream(self, account: str, name: str) -> StreamState | None:
        """The stream of that name, or None."""
        stream_id = self.names.get((account, name))
        return None if stream_id is None else self.streams[stream_id]

    def is_offline(self, stream_id: int) -> bool:
        """Whether a stream is offline. Then any run below its prefix may be named by a record that could not be applied."""
        stream = self.streams.get(stream_id)
        return stream is not None and stream.offline is not None

    @property
    def uncounted_to(self) -> int:
        """The last ``position_key`` of segments and runs that may have live blocks which are not in the counts; -1: none have."""
        return max(self._uncounted.values(), default=-1)

    def apply_segment(self, position: Position) -> None:
        """Begin a segment: called before its blocks are applied, also when it has none."""
        if position <= self.position:
            raise ValueError(f"{position} applied after {self.position}")
        self.position = position
        key = position_key(position)
        self.segments.setdefault(key, 0)
        self.unnamed.add(key)

    def apply_block(self, core: BlockCore, ref: BlockRef | None, head: Head | None = None,
                    ids: BlockIds | None = None) -> None:
        """Apply one block of the segment at ``position``; ref is where its messages are stored, None when it has none; head
        is its index, where that is in memory; ids are those that its record has, if they are packed already."""
        if core.stream_id == 0:
            self._apply_shard_records(core.records)
            return
        stream = self.streams.get(core.stream_id)
        if stream is None and (stream := self._made(core)) is None:
            return
        if self.position <= stream.position:
            return  # a page of the checkpoint held this already
        if stream.offline is not None:
            if any(record.kind == StreamDelete.KIND for record in core.records):
                self._drop(stream)
            else:
                self._hold(stream)
            return
        try:
            self._apply_to_stream(stream, core, ref, head, ids)
        except (Corrupt, ValueError, TypeError, LookupError, AttributeError, OverflowError) as error:
            why = str(error) if isinstance(error, Corrupt) else repr(error)
            self.take_offline(core.stream_id, f"segment {self.position} is damaged: {why}")

    def apply_small(self, packed: PackedRef, outcome: Outcome) -> None:
        """``apply_block`` for one that has messages and nothing else, as the log's owner writes them by the hundred."""
        stream = self.streams.get(packed[STREAM_ID])
        if stream is None or self.position <= stream.position:
            return
        if stream.offline is not None:
            self._hold(stream)
            return
        try:
            if stream.blocks.append(packed):
                key = position_key(self.position)
                self.segments[key] += 1
                self.unnamed.discard(key)
            self._take_outcome(stream, outcome, packed[LAST_TIME_NS])
        except Corrupt as error:  # what leaves at the front is in a page that cannot be unpacked
            self.take_offline(stream.stream_id, f"segment {self.position} cannot be applied: {error}")

    def take_offline(self, stream_id: int, reason: str) -> None:
        """Stop replaying a stream: a record of it in the segment at ``position`` cannot be used."""
        stream = self.streams.get(stream_id)
        if stream is None:  # the create record itself: only its existence is known
            stream = StreamState(stream_id, "", f"unknown-{stream_id:016x}", {}, 0)
            self.streams[stream_id] = stream
        if stream.offline is None:
            stream.offline = reason
        self._hold(stream)

    def apply_held(self, position: Position, stream_id: int, apply: Callable[[], object]) -> None:
        """Call ``apply``, which applies what the segment at an earlier ``position`` has of a stream that was offline when the
        checkpoint was cut."""
        now, self.position, self._only = self.position, position, stream_id
        try:
            apply()
        finally:
            self.position, self._only = now, 0

    def _hold(self, stream: StreamState, runs: Iterable[RunKey] = ()) -> None:
        """Note that the segment at ``position`` has something of an offline stream, and that a record there names ``runs`` for
        the stream: it needs them for its repair."""
        counting = not self.replaying and self.wanted is None
        if not stream.held or stream.held[-1] != self.position:
            stream.held.append(self.position)
            stream.dirty = True
            if counting:
                key = position_key(self.position)
                self.segments[key] += 1
                self.unnamed.discard(key)
        for run in runs:
            stream.held_runs.append(run)
            if counting:
                self.runs[run] = self.runs.get(run, 0) + 1
                self.freed_runs.pop(run, None)

    def finish_replay(self) -> None:
        """End a replay: make names and counts. Raises: Corrupt for blocks of a stream that nothing created."""
        if self._unmade:
            stream_id, position = next(iter(self._unmade.items()))
            raise Corrupt(f"segment {position}", "blocks", 0,
                          f"it speaks of stream {stream_id:016x}, which neither checkpoint nor log created or deleted")
        self.names = {(s.account, s.name): s.stream_id for s in self.streams.values()}
        if self.wanted is not None:
            return
        self.replaying = False
        self._deleted.clear()
        segments: Counter[int] = Counter()
        runs: dict[RunKey, int] = {}
        for stream in self.streams.values():
            if stream.offline is not None:
                self._count_offline(stream, segments, runs)
                continue
            try:
                for page in stream.blocks.pages:
                    segments.update(page.log_keys())
                    for run, count in page.run_counts(stream.stream_id):
                        runs[run] = runs.get(run, 0) + count
            except (ValueError, TypeError, OverflowError) as error:
                raise Corrupt(f"stream {stream.name}", "block table", 0, f"a page's summary is damaged: {error}") from None
        if not segments.keys() <= self.segments.keys():
            self._refuse_released()
        self.segments = dict.fromkeys(self.segments, 0)
        self.segments.update(segments)
        self.runs = runs
        self.unnamed = {key for key, count in self.segments.items() if not count}
        # Which of them had blocks is no longer known: a few pass for records, of which each owner leaves some.
        self.freed = self.position if len(self.unnamed) > _RECORDS_MAX else START

    def _count_offline(self, stream: StreamState, segments: Counter[int], runs: dict[RunKey, int]) -> None:
        """Count what an offline stream needs for its repair: its blocks as of the last segment that was applied, and what it
        holds. When it is deleted, all of this is taken out of the counts."""
        parts: list[TablePage | HeldPart] = [*held_parts(stream.held, stream.held_runs)]
        try:
            for page in stream.blocks.pages:
                deque(page.log_keys(), 0)
                deque(page.run_counts(stream.stream_id), 0)
            parts += stream.blocks.pages
        except (ValueError, TypeError, OverflowError):
            self._uncounted[stream.stream_id] = position_key(stream.held[0] if stream.held else self.position)
        for part in parts:
            # A newer broker may have released some segments after records that could not be applied here.
            segments.update(key for key in part.log_keys() if key in self.segments)
            for run, count in part.run_counts(stream.stream_id):
                runs[run] = runs.get(run, 0) + count

    def _refuse_released(self) -> None:
        """Raises: Corrupt, with the stream that has a block in a segment that was released."""
        for stream in self.streams.values():
            for page in stream.blocks.pages if stream.offline is None else ():
                for key in page.log_keys():
                    if key not in self.segments:
                        raise Corrupt(f"stream {stream.name}", "block table", 0,
                                      f"it names segment {key_position(key)}, which was released")

    def _made(self, core: BlockCore) -> StreamState | None:
        """The stream that this block creates; None for a block of one that is gone by now, as a newer page has it."""
        for record in core.records:
            if record.kind == StreamCreate.KIND:
                break
        else:
            if any(record.kind == StreamDelete.KIND for record in core.records):
                self._unmade.pop(core.stream_id, None)
                self._deleted.add(core.stream_id)
            elif core.count and core.stream_id not in self._deleted:
                self._unmade.setdefault(core.stream_id, self.position)
            return None
        try:
            made = StreamCreate.decode(record.body)
        except Corrupt as error:
            self.take_offline(core.stream_id, f"segment {self.position} is damaged: {error}")
            return None
        stream = StreamState(core.stream_id, made.account, made.name, made.config, made.created_ns)
        stream.ceiling = made.ceiling
        update_extra(stream.extra, made.extra)
        if self.wanted is not None and not self.wanted(stream.account, stream.name):
            self.unwanted[core.stream_id] = (stream.account, stream.name)
            return None
        self.streams[core.stream_id] = stream
        self.names[stream.account, stream.name] = stream.stream_id
        return stream

    def _apply_to_stream(self, stream: StreamState, core: BlockCore, ref: BlockRef | None, head: Head | None,
                         ids: BlockIds | None) -> None:
        blocks = stream.blocks
        counting = not self.replaying
        for record in core.records:
            if record.kind == Append.KIND:
                self._append(stream, record)
        if core.count and ref is not None and blocks.append(ref.pack()) and counting and ref.place == BlockPlace.LOG:
            key = position_key(ref.position)
            self.segments[key] += 1
            self.unnamed.discard(key)
        left: list[Kept] = []
        below = _trimmed_below(blocks, core) if len(core.removed) > 1 else 0
        # Expiry in a thousand steps would mark a thousand blocks that leave by the outcome.
        ranges = [removed for removed in core.removed if removed[1] >= below] if below else core.removed
        left += blocks.remove_all(ranges)
        for due in filter(None, (stream.expiries, stream.schedules)):
            for removed in ranges:
                due.remove(removed[0], removed[1])
        if left and counting:
            self._left(stream, pages_of(left))
        deleted = False
        with_ids: Record | None = None
        for record in core.records:
            kind = record.kind
            if kind == MessageIds.KIND:
                with_ids = record
            elif kind == ConsumerDelta.KIND:
                delta = ConsumerDelta.decode(record.body)
                consumer = stream.consumers.get(delta.name)
                if consumer is not None:
                    consumer.apply_delta(delta)
                    consumer.place = None
            elif kind == ConsumerCreate.KIND:
                made = ConsumerState.created(ConsumerCreate.decode(record.body))
                stream.consumers[made.name] = made
            elif kind == ConsumerUpdate.KIND:
                changed = ConsumerUpdate.decode(record.body)
                consumer = stream.consumers.get(changed.name)
                if consumer is None:
                    raise Corrupt("record", f"record {kind}", 0, f"there is no consumer {changed.name}")
                consumer.config = dict(changed.config)
                update_extra(consumer.extra, changed.extra)
                consumer.place = None
            elif kind == ConsumerDelete.KIND:
                stream.consumers.pop(ConsumerDelete.decode(record.body).name, None)
            elif kind == StreamUpdate.KIND:
                update = StreamUpdate.decode(record.body)
                stream.config = dict(update.config)
                update_extra(stream.extra, update.extra)
            elif kind == StreamDelete.KIND:
                deleted = True
            elif kind == Ceiling.KIND:
                stream.ceiling = Ceiling.decode(record.body).seq
            elif kind == Expiry.KIND and self.wanted is None:
                expiry = Expiry.decode(record.body)
                stream.expiries.add(expiry.seqs, expiry.expires_at_ns)
            elif kind == Schedule.KIND and self.wanted is None:
                schedule = Schedule.decode(record.body)
                for seq, due_ns in zip(schedule.seqs, schedule.due_at_ns, strict=True):
                    if due_ns:
                        stream.schedules.put(seq, due_ns)
                    else:
                        stream.schedules.remove(seq, seq)
        if with_ids is not None and self.wanted is None and stream.config.get(WINDOW, 0):
            stream.ids.record(core, ids or BlockIds.of(core, with_ids, head))
        self._take_outcome(stream, core.outcome, core.last_time_ns if core.count else stream.last_time_ns)
        if deleted:
            self._drop(stream)

    def _append(self, stream: StreamState, record: Record) -> None:
        """Raises: Corrupt; ValueError when the blocks cannot follow what the stream has."""
        if record.after_seq:
            raise ValueError("staged blocks join before a block's own messages, not after them")
        append = Append.decode(record.body)
        for packed in append.blocks:
            ref = BlockRef.unpack(packed)
            if ref.stream_id != stream.stream_id or ref.place is not BlockPlace.STAGED or not ref.gapless:
                raise ValueError(f"{ref!r} is no staged block of this stream")
            if stream.blocks.append(ref.pack()) and not self.replaying and self.wanted is None:
                run = next(run_keys(stream.stream_id, [ref.pack()]))
                self.runs[run] = self.runs.get(run, 0) + 1
                self.freed_runs.pop(run, None)
            stream.last_time_ns = max(stream.last_time_ns, ref.last_time_ns)
            if self.wanted is None and stream.config.get(WINDOW, 0):
                stream.ids.in_blocks(ref.first_seq, ref.last_seq, ref.last_time_ns)
        for first, last, msgs, size, *bits in append.dead:
            if bits:
                stream.blocks.mark(first, last, bits[0], size)
                continue
            left = stream.blocks.remove(first, last, msgs, size)
            if left and not self.replaying:
                self._left(stream, pages_of(left))
        update_extra(stream.extra, append.extra)

    def _take_outcome(self, stream: StreamState, outcome: Outcome, last_time_ns: int) -> None:
        trims = outcome[0] != stream.first_seq or self.replaying
        stream.first_seq, stream.last_seq, stream.msgs, stream.bytes, stream.first_time_ns = outcome
        stream.last_time_ns = last_time_ns
        if trims:
            if (left := stream.blocks.trim(outcome[0])) and not self.replaying:
                self._left(stream, left)
            if stream.expiries:
                stream.expiries.trim(outcome[0])
            if stream.schedules:
                stream.schedules.trim(outcome[0])
        stream.position = self.position
        stream.dirty = True

    def _apply_shard_records(self, records: Sequence[Record]) -> None:
        for record in records:
            if self._only and record.kind != Adoption.KIND:
                continue
            if record.kind == Release.KIND:
                release = Release.decode(record.body)
                released = Released.of(self.position, release)
                for done in release.done or ():
                    self.released.pop(done, None)
                for position in released.segments:
                    key = position_key(position)
                    self.segments.pop(key, None)
                    self.unnamed.discard(key)
                if released.segments or released.pages or released.roots or released.runs:
                    earlier = self.released.setdefault(self.position, released)
                    if earlier is not released:  # two rounds ended within one segment
                        earlier.segments += released.segments
                        earlier.pages += released.pages
                        earlier.roots += released.roots
                        earlier.runs += released.runs
            elif record.kind == Adoption.KIND:
                self._adopt(Adoption.decode(record.body))
            elif record.kind == Opening.KIND:
                self.opening = Opening.decode(record.body)

    def _adopt(self, adoption: Adoption) -> None:
        """Let blocks of runs take the places of others. Streams that are gone, or offline here, are left as they are."""
        for adopted in adoption.blocks:
            ref = BlockRef.unpack(adopted.ref)
            stream = self.streams.get(ref.stream_id)
            if self._only not in (0, ref.stream_id):
                continue
            if stream is None:
                continue
            if stream.offline is None:
                try:
                    self._swap(stream, adopted, ref)
                    continue
                except (Corrupt, ValueError) as error:
                    self.take_offline(stream.stream_id, f"segment {self.position} is damaged: {error}")
            self._hold(stream, run_keys(stream.stream_id, [ref.pack()]))

    def _swap(self, stream: StreamState, adopted: Adopted, ref: BlockRef) -> None:
        """Raises: ValueError when the table does not have what the record replaces."""
        if ref.place is BlockPlace.LOG or not adopted.first_seq <= ref.first_seq <= ref.last_seq <= adopted.last_seq:
            raise ValueError(f"{ref!r} takes the place of {adopted.first_seq}..{adopted.last_seq}")
        parts = stream.blocks.within(adopted.first_seq, adopted.last_seq)
        if not parts or any(part.ref.position == ref.position and part.ref == ref for part in parts):
            return  # all of it was removed meanwhile; or a page of the checkpoint held this already
        if any(part.ref.position > ref.position for part in parts):
            raise ValueError(f"{ref!r} was made before a block that it takes the place of")
        entry = BlockEntry(ref)
        entry.dead = dead_in(ref, parts)
        if entry.dead is not None:
            # Exact where those of the parts are: the run's block has every message that lives in them.
            entry.dead_count = max(0, ref.count - sum(part.live_msgs for part in parts))
            entry.dead_bytes = max(0, ref.bytes - sum(part.ref.bytes - part.dead_bytes for part in parts))
        stays = entry.dead_count < ref.count
        stream.blocks.swap(parts, entry if stays else None)
        stream.dirty = True
        if not self.replaying and self.wanted is None:
            run = next(run_keys(stream.stream_id, [ref.pack()]))
            self.runs[run] = self.runs.get(run, 0) + 1
            self.freed_runs.pop(run, None)  # an earlier record has adopted others of its blocks, which left since
            self._left(stream, pages_of([*parts] if stays else [*parts, entry]))

    def _drop(self, stream: StreamState) -> None:
        del self.streams[stream.stream_id]
        if self.replaying:
            self._deleted.add(stream.stream_id)
        name = (stream.account, stream.name)
        if self.names.get(name) == stream.stream_id:
            del self.names[name]
        left: list[TablePage | HeldPart] = [*held_parts(stream.held, stream.held_runs)]
        table = stream.blocks.clear()
        if self._uncounted.pop(stream.stream_id, None) is None:
            left += table
        else:
            self.freed = self.position  # what was kept for it may be free now
        if left and not self.replaying:
            self._left(stream, left)

    def _left(self, stream: StreamState, pages: Sequence[TablePage | HeldPart]) -> None:
        self._leaving += [(stream, page) for page in pages]
        if self._removal_observer is not None:
            self._removal_observer()
        else:
            while self.tidy(_LEFT_AT_ONCE):
                pass

    def observe_removals(self, observer: Callable[[], object]) -> None:
        """Call ``observer`` when blocks were removed from their streams, and leave it to the observer to update the counts:
        it calls ``tidy`` until nothing is left to do. Without an observer, the counts are updated at once."""
        assert self._removal_observer is None, "two observers would update the counts twice"
        self._removal_observer = observer

    def stop_observing_removals(self) -> None:
        """Update the counts at once from now on."""
        self._removal_observer = None

    def tidy(self, count: int) -> bool:
        """Take up to ``count`` of the blocks that left out of the counts, or one page of them; returns whether there are
        more."""
        leaving, segments = self._leaving, self.segments
        taken = 0
        while leaving and (not taken or taken + len(leaving[-1][1]) <= count):
            stream, page = leaving.pop()
            taken += len(page)
            for key in page.log_keys():
                live = segments.get(key)
                if live is None:
                    continue  # a newer broker released it after records that could not be applied here
                segments[key] = live - 1
                if live == 1:
                    self.unnamed.add(key)
                    self.freed = self.position
            for run, blocks in page.run_counts(stream.stream_id):
                live = self.runs.get(run, 0)
                if live > blocks:
                    self.runs[run] = live - blocks
                elif live:
                    del self.runs[run]
                    self.freed_runs[run] = (stream.account, stream.name)
                    self.freed = self.position
        return bool(leaving)


def _trimmed_below(blocks: BlockTable, core: BlockCore) -> int:
    """The sequence below which no message is in a block that stays, once ``core`` is applied."""
    first_seq = core.outcome[0]
    stays = blocks.find(first_seq)
    return first_seq if stays is None else stays.first_seq
