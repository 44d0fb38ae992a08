"""The applied state of a shard: its streams and consumers after a replay of its persisted segments.

Owns the state of a shard, which recovery, checkpoints and readers without a broker share. ``stream``, ``consumer``,
``released`` and ``reference_counts`` define its parts, and ``stream_records`` the effect of a record on one stream.

Does not own decisions: a block lists the messages that limits, expiry and acks removed. So any version and any reader
arrives at the same state, without a clock.

A block is applied in this order:

    1. its create record makes the stream, or its arrival record, if it comes from another shard
    2. staged blocks that it appends join the table, then the block itself
    3. ranges that were removed meanwhile are marked dead
    4. the other records follow, in their order
    5. the outcome replaces the stream's numbers

Every step is an assignment or a union. So if blocks are applied again to a state that includes them, the final state
is the same. Pages of a checkpoint may therefore be copied at different times, each with its own position. A replay
begins at the lowest of these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from broker.storage.format.block import (
    COUNT,
    FIRST_SEQ,
    LAST_SEQ,
    LAST_TIME_NS,
    STREAM_ID,
    BlockCore,
    BlockPlace,
    BlockRef,
    Outcome,
    PackedRef,
    checked_ref,
)
from broker.storage.format.errors import Corrupt
from broker.storage.format.header import Position
from broker.storage.format.index import Head
from broker.storage.format.record import Record
from broker.storage.format.records.adoption import Adopted, Adoption
from broker.storage.format.records.append import Append
from broker.storage.format.records.arrival import Arrival
from broker.storage.format.records.catalogue import Catalogue, CatalogueEntry
from broker.storage.format.records.departure import Departure
from broker.storage.format.records.message_ids import MessageIds
from broker.storage.format.records.opening import Opening
from broker.storage.format.records.release import Release
from broker.storage.format.records.remains import Remains
from broker.storage.format.records.stream_create import StreamCreate
from broker.storage.format.records.stream_delete import StreamDelete
from broker.storage.state.erasures import REMAINS
from broker.storage.state.extra import update_extra
from broker.storage.state.ids import WINDOW, BlockIds
from broker.storage.state.reference_counts import ReferenceCounts
from broker.storage.state.released import Released
from broker.storage.state.stream import DEPARTED, START, StreamState
from broker.storage.state.stream_entry import DAMAGED
from broker.storage.state.stream_records import CHANGES, OWNER_CHANGES, arrived_by, created_by
from broker.storage.state.swap import dead_in, is_newer
from broker.storage.state.table import BlockEntry, BlockTable, Kept, RunKey, pages_of, run_keys

__all__ = ["ShardState"]


class ShardState:
    """The state of a shard at ``position``; for a reader, only the streams that are ``wanted``."""

    __slots__ = (
        "_changes",
        "_deleted",
        "_only",
        "_unmade",
        "catalogue",
        "counts",
        "ids_unlisted_ns",
        "names",
        "opening",
        "position",
        "released",
        "replaying",
        "streams",
        "unwanted",
        "wanted",
        "whole",
    )

    def __init__(self, wanted: Callable[[str, str], bool] | None = None, *, whole: bool = False) -> None:
        self.wanted = wanted
        """wanted(account, name) returns whether a stream is loaded; None: all are."""
        self.whole = whole or wanted is None
        """True if streams have the parts that only an owner needs: due times and message ids."""
        self.unwanted: dict[int, tuple[str, str]] = {}
        """Account and name of the streams that are not wanted, by incarnation, possibly including deleted ones. Their
        blocks are not applied."""
        self.streams: dict[int, StreamState] = {}
        self.names: dict[tuple[str, str], int] = {}
        """Maps (account, name) to stream_id."""
        self.released: dict[Position, Released] = {}
        """Released objects that are not known to be deleted, by the position of the release record."""
        self.counts = ReferenceCounts()
        """The numbers of live blocks in segments and runs, once the replay is finished. A reader has none."""
        self.ids_unlisted_ns = 0
        """Message ids up to this time may be in blocks only. See ``StreamIds.unlisted_ns``."""
        self.catalogue: dict[int, CatalogueEntry] = {}
        """In shard 0: the streams of other shards, by incarnation."""
        self.position = START
        self.opening: Opening | None = None
        """The newest opening; None: none was replayed yet."""
        self.replaying = wanted is not None
        """True until ``finish_replay``; in a reader's state, always."""
        self._changes = OWNER_CHANGES if self.whole else CHANGES
        self._unmade: dict[int, Position] = {}
        """Streams with messages before any create record, and where; a later delete record explains them."""
        self._deleted: set[int] = set()
        """Streams that were deleted during this replay."""
        self._only = 0
        """The only stream to which segments are applied at the moment; 0: all streams."""

    def stream(self, account: str, name: str) -> StreamState | None:
        """Return the stream of that name, or None."""
        stream_id = self.names.get((account, name))
        return None if stream_id is None else self.streams[stream_id]

    def is_elsewhere(self, shard: int, stream_id: int) -> bool:
        """Return whether objects of an incarnation are not the business of ``shard``, which has this state.

        Shard 0 is responsible for its streams, and for every incarnation that is not in the catalogue; another shard
        for its streams alone. A stream that moves has an entry until it has arrived in shard 0.
        """
        stream = self.streams.get(stream_id)
        if stream is not None:
            return stream.departed is not None
        return bool(shard) or stream_id in self.catalogue

    def is_offline(self, stream_id: int) -> bool:
        """Return whether a stream is offline.

        If it is, records that could not be applied may name runs below the stream's own prefix.
        """
        stream = self.streams.get(stream_id)
        return stream is not None and stream.offline is not None

    def apply_segment(self, position: Position) -> None:
        """Begin a segment. Call this before its blocks are applied, and also if it has none."""
        if position <= self.position:
            raise ValueError(f"{position} applied after {self.position}")
        self.position = position
        self.counts.add_segment(position)

    def apply_block(self, core: BlockCore, ref: BlockRef | None, head: Head | None = None,
                    ids: BlockIds | None = None) -> None:
        """Apply one block of the segment at ``position``.

        Args: ref is where its messages are stored, None if it has none. head is its index, if that is in memory. ids
            are the message ids of its record, if they are packed already.
        """
        if core.stream_id == 0:
            self._apply_shard_records(core.records)
            return
        stream = self.streams.get(core.stream_id)
        if stream is not None and stream.departed is not None and self.position > stream.position:
            self._apply_to_departed(stream, core)
            return
        if stream is None and (stream := self._created(core)) is None:
            return
        if self.position <= stream.position:
            return  # a page of the checkpoint included this block
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
            self.set_offline(core.stream_id, f"segment {self.position} is damaged: {why}")

    def apply_small(self, packed: PackedRef, outcome: Outcome) -> None:
        """Apply a block of messages only: a faster ``apply_block``, since an owner writes very many."""
        stream = self.streams.get(packed[STREAM_ID])
        if stream is None or self.position <= stream.position:
            return
        if stream.offline is not None:
            self._hold(stream)
            return
        try:
            if stream.blocks.append(packed):
                self.counts.add_to_segment(self.position)
            self._apply_outcome(stream, outcome, packed[LAST_TIME_NS])
        except Corrupt as error:  # the first page of the table cannot be unpacked
            self.set_offline(stream.stream_id, f"segment {self.position} cannot be applied: {error}")

    def set_offline(self, stream_id: int, reason: str) -> None:
        """Stop replaying a stream, because a block of it in the segment at ``position`` cannot be applied."""
        stream = self.streams.get(stream_id)
        if stream is None:  # the create record cannot be used, so the stream's name is not known
            stream = StreamState(stream_id, "", f"unknown-{stream_id:016x}", {}, 0)
            self.streams[stream_id] = stream
        if stream.offline is None:
            stream.offline = reason
        self._hold(stream)

    def apply_held(self, position: Position, stream_id: int, apply: Callable[[], object]) -> None:
        """Call ``apply``, which applies one stream's part of the segment at an earlier ``position``.

        The checkpoint does not include that part, because the stream was offline.
        """
        now, self.position, self._only = self.position, position, stream_id
        try:
            apply()
        finally:
            self.position, self._only = now, 0

    def _hold(self, stream: StreamState, runs: Iterable[RunKey] = ()) -> None:
        """Record that an offline stream needs the segment at ``position`` for its repair, and ``runs``, which a record
        there names for it."""
        if not stream.held or stream.held[-1] != self.position:
            stream.held.append(self.position)
            stream.dirty = True
            if not self.replaying:
                self.counts.add_to_segment(self.position)
        for run in runs:
            stream.held_runs.append(run)
            if not self.replaying:
                self.counts.add_to_run(run)

    def finish_replay(self) -> None:
        """End a replay: make names and counts. Raises: Corrupt for blocks of a stream that was never created."""
        if self._unmade:
            stream_id, position = next(iter(self._unmade.items()))
            raise Corrupt(f"segment {position}", "blocks", 0,
                          f"it speaks of stream {stream_id:016x}, which neither checkpoint nor log created or deleted")
        self.names = {(s.account, s.name): s.stream_id for s in self.streams.values() if s.departed is None}
        if self.wanted is not None:
            return
        self.replaying = False
        self._deleted.clear()
        self.counts.rebuild(self.streams.values(), self.position)

    def _created(self, core: BlockCore) -> StreamState | None:
        """Return the stream that this block creates.

        Returns: None if the stream was deleted later, is not wanted, or its create record is damaged.
        """
        for record in core.records:
            if record.kind in (StreamCreate.KIND, Arrival.KIND):
                break
        else:
            if any(record.kind == StreamDelete.KIND for record in core.records):
                self._unmade.pop(core.stream_id, None)
                self._deleted.add(core.stream_id)
            elif core.count and core.stream_id not in self._deleted:
                self._unmade.setdefault(core.stream_id, self.position)
            return None
        try:
            if record.kind == StreamCreate.KIND:
                stream = created_by(record, core.stream_id)
            else:
                stream = arrived_by(record, core.stream_id, whole=self.whole)
                if not self.replaying:
                    self.counts.add_arrived(stream)
        except DAMAGED as error:
            why = str(error) if isinstance(error, Corrupt) else repr(error)
            self.set_offline(core.stream_id, f"segment {self.position} is damaged: {why}")
            return None
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
            self.counts.add_to_segment(ref.position)
        left: list[Kept] = []
        below = _trimmed_below(blocks, core) if len(core.removed) > 1 else 0
        # Skip ranges in blocks that leave by the outcome: a thousand steps of expiry would mark a thousand blocks.
        ranges = [removed for removed in core.removed if removed[1] >= below] if below else core.removed
        left += blocks.remove_all(ranges)
        for due in filter(None, (stream.expiries, stream.schedules)):
            for removed in ranges:
                due.remove(removed[0], removed[1])
        if left and counting:
            self.counts.remove(stream, pages_of(left))
        deleted, departed, remains = False, None, None
        with_ids: Record | None = None
        for record in core.records:
            kind = record.kind
            if (change := self._changes.get(kind)) is not None:
                change(stream, record.body)
            elif kind == MessageIds.KIND:
                with_ids = record
            elif kind == StreamDelete.KIND:
                deleted = True
            elif kind == Departure.KIND:
                departed = Departure.decode(record.body).to
            elif kind == Remains.KIND:
                remains = record
        if with_ids is not None and self.whole and stream.config.get(WINDOW, 0):
            stream.ids.record(core, ids or BlockIds.of(core, with_ids, head))
        self._apply_outcome(stream, core.outcome, core.last_time_ns if core.count else stream.last_time_ns)
        if departed is not None:
            self._depart(stream, departed)
            if remains is not None:
                self._clear_remains(stream, remains)
        if deleted:
            self._drop(stream)

    def _depart(self, stream: StreamState, to: int) -> None:
        """Keep a stream as it was when it left for shard ``to``. Its objects are that shard's business from now on."""
        stream.extra[DEPARTED] = to
        if self.names.get((stream.account, stream.name)) == stream.stream_id:
            del self.names[stream.account, stream.name]
        if not self.replaying:
            self.counts.remove_departed(stream)

    def _apply_to_departed(self, stream: StreamState, core: BlockCore) -> None:
        """Apply a block to a stream that has left: its bytes are removed, it comes back, or it is forgotten."""
        kinds = [record.kind for record in core.records]
        for record in core.records:
            if record.kind == Remains.KIND:
                try:
                    self._clear_remains(stream, record)
                except DAMAGED as error:
                    self.set_offline(stream.stream_id, f"segment {self.position} is damaged: {error!r}")
        if StreamDelete.KIND in kinds or Arrival.KIND in kinds:
            self._drop(stream)
        if Arrival.KIND in kinds:
            self.apply_block(core, None)

    def _clear_remains(self, stream: StreamState, record: Record) -> None:
        """Keep nothing of a stream that has left except the erasure of its bytes. Raises: one of ``DAMAGED``."""
        packed = Remains.decode(record.body).erasure
        if REMAINS not in stream.extra:
            stream.clear_remains()
        stream.extra = {**stream.extra, REMAINS: packed}
        stream.position, stream.dirty = self.position, True

    def _append(self, stream: StreamState, record: Record) -> None:
        """Add the staged blocks of an append record. Raises: Corrupt; ValueError if they cannot follow."""
        if record.after_seq:
            raise ValueError("staged blocks join before a block's own messages, not after them")
        append = Append.decode(record.body)
        refs = [checked_ref(packed) for packed in append.blocks]
        for ref in refs:  # there may be thousands of them, applied in one turn of the loop
            if (ref[STREAM_ID] != stream.stream_id or ref[0] != BlockPlace.STAGED
                    or ref[LAST_SEQ] - ref[FIRST_SEQ] + 1 != ref[COUNT]):
                raise ValueError(f"{BlockRef.of(ref)!r} is no staged block of this stream")
            if stream.blocks.append(ref) and not self.replaying:
                self.counts.add_to_run((ref[1], ref[2], ref[3], stream.stream_id))
        if refs:
            stream.last_time_ns = max(stream.last_time_ns, refs[-1][LAST_TIME_NS])
            if self.whole and stream.config.get(WINDOW, 0):
                stream.ids.in_blocks(refs[0][FIRST_SEQ], refs[-1][LAST_SEQ], refs[-1][LAST_TIME_NS])
        for first, last, msgs, size, *bits in append.dead:
            if bits:
                stream.blocks.mark(first, last, bits[0], size)
                continue
            left = stream.blocks.remove(first, last, msgs, size)
            if left and not self.replaying:
                self.counts.remove(stream, pages_of(left))
        update_extra(stream.extra, append.extra)

    def _apply_outcome(self, stream: StreamState, outcome: Outcome, last_time_ns: int) -> None:
        trims = outcome[0] != stream.first_seq or self.replaying
        stream.first_seq, stream.last_seq, stream.msgs, stream.bytes, stream.first_time_ns = outcome
        stream.last_time_ns = last_time_ns
        if trims:
            if (left := stream.blocks.trim(outcome[0])) and not self.replaying:
                self.counts.remove(stream, left)
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
                self.counts.release_segments(released.segments)
                if released.segments or released.pages or released.roots or released.runs:
                    earlier = self.released.setdefault(self.position, released)
                    if earlier is not released:  # two rounds ended within one segment
                        earlier.segments += released.segments
                        earlier.pages += released.pages
                        earlier.roots += released.roots
                        earlier.runs += released.runs
            elif record.kind == Adoption.KIND:
                self._adopt(Adoption.decode(record.body))
            elif record.kind == Catalogue.KIND:
                changed = Catalogue.decode(record.body)
                self.catalogue.update({entry.stream_id: entry for entry in changed.entries})
                for stream_id in changed.gone:
                    self.catalogue.pop(stream_id, None)
            elif record.kind == Opening.KIND:
                self.opening = Opening.decode(record.body)

    def _adopt(self, adoption: Adoption) -> None:
        """Replace blocks by blocks of runs, except of deleted streams; keep the runs for offline streams."""
        for adopted in adoption.blocks:
            ref = BlockRef.unpack(adopted.ref)
            stream = self.streams.get(ref.stream_id)
            if self._only not in (0, ref.stream_id):
                continue
            if stream is None or stream.departed is not None:
                continue
            if stream.offline is None:
                try:
                    self._swap(stream, adopted, ref)
                    continue
                except (Corrupt, ValueError) as error:
                    self.set_offline(stream.stream_id, f"segment {self.position} is damaged: {error}")
            self._hold(stream, run_keys(stream.stream_id, [ref.pack()]))

    def _swap(self, stream: StreamState, adopted: Adopted, ref: BlockRef) -> None:
        """Replace blocks by the run's block ``ref``. Raises: ValueError if the table has other blocks."""
        if ref.place is BlockPlace.LOG or not adopted.first_seq <= ref.first_seq <= ref.last_seq <= adopted.last_seq:
            raise ValueError(f"{ref!r} replaces {adopted.first_seq}..{adopted.last_seq}")
        parts = stream.blocks.within(adopted.first_seq, adopted.last_seq)
        if not parts or any(part.ref.position == ref.position and part.ref == ref for part in parts):
            return  # all of it was removed meanwhile, or a page of the checkpoint included this already
        if any(is_newer(part.ref, ref) for part in parts):
            raise ValueError(f"{ref!r} was made before a block that it replaces")
        entry = BlockEntry(ref)
        entry.dead = dead_in(ref, parts)
        if entry.dead is not None:
            # These are exact if those of the parts are: the run's block has every message that is live in them.
            entry.dead_count = max(0, ref.count - sum(part.live_msgs for part in parts))
            entry.dead_bytes = max(0, ref.bytes - sum(part.ref.bytes - part.dead_bytes for part in parts))
        stays = entry.dead_count < ref.count
        stream.blocks.swap(parts, entry if stays else None)
        stream.dirty = True
        if not self.replaying:
            self.counts.add_to_run(next(run_keys(stream.stream_id, [ref.pack()])))
            self.counts.remove(stream, pages_of([*parts] if stays else [*parts, entry]))

    def _drop(self, stream: StreamState) -> None:
        del self.streams[stream.stream_id]
        name = (stream.account, stream.name)
        if self.names.get(name) == stream.stream_id:
            del self.names[name]
        if self.replaying:
            self._deleted.add(stream.stream_id)
        else:
            self.counts.remove_deleted(stream)
        stream.blocks.clear()


def _trimmed_below(blocks: BlockTable, core: BlockCore) -> int:
    """Return the sequence below which all messages are in blocks that leave once ``core`` is applied."""
    first_seq = core.outcome[0]
    stays = blocks.find(first_seq)
    return first_seq if stays is None else stays.first_seq
