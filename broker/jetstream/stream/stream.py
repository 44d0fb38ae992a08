"""A live stream: the object that owns all parts of one stream.

Owns: the connections between its parts, its side of the log (sealing, persisted), restart, and its info.
Does not own: the set of streams, their creation records and subscriptions (account).

    publish ──> queue ──> sequencer ──> appender ──> live ──> open block ──> log
                             │            ^
              dedupe, subject_state   retention (limits, age, deletes, purges)
    consumers <── chunks, gets <── queries <── live, storage.reader

Two layers: ``live`` is the sequenced state, from which every decision is made at once; ``log.state`` is the persisted
state. A reply that shows live state goes through ``log.wait``, so no client sees anything that a crash could undo.

    ceiling     an async stream assigns only sequences below a persisted ceiling. After a crash it continues at the
                ceiling, after a clean stop (``prepare_shutdown``) at its sequence, so no sequence names two messages.

A restart does no heavy work: blocks are loaded from the applied state at first use, subjects and message ids when a
publish or a request first needs them.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from broker.base.clock import Clock
from broker.base.garbage import discarded
from broker.jetstream.filters import Filters
from broker.jetstream.stream.appending import Appending
from broker.jetstream.stream.erasures import Erasures
from broker.jetstream.stream.info import StreamInfo
from broker.jetstream.stream.publish.appender import Appender
from broker.jetstream.stream.publish.batching import Batching
from broker.jetstream.stream.publish.blocked import BlockedPublish
from broker.jetstream.stream.publish.ceiling import SequenceCeiling
from broker.jetstream.stream.publish.context import CheckContext
from broker.jetstream.stream.publish.copies import Copies
from broker.jetstream.stream.publish.dedupe import Dedupe
from broker.jetstream.stream.publish.msg_ids import MsgIds
from broker.jetstream.stream.publish.replies import Replies
from broker.jetstream.stream.publish.sequencer import Sequencer
from broker.jetstream.stream.publish.ttl import delete_marker
from broker.jetstream.stream.retention.enforcement import Enforcement
from broker.jetstream.stream.retention.interest import Interest
from broker.jetstream.stream.retention.retention import Retention
from broker.jetstream.stream.retention.rollup import Rollups
from broker.jetstream.stream.retention.ttl import MessageTtls
from broker.jetstream.stream.scheduler import Scheduler
from broker.jetstream.stream.shared.chunks import Chunks, Loading
from broker.jetstream.stream.shared.listeners import Changed, Listener, Listeners
from broker.jetstream.stream.shared.queries import Queries
from broker.jetstream.stream.shared.queue import PublishQueue
from broker.jetstream.stream.shared.references import References
from broker.jetstream.stream.shared.stream_parts import StreamParts
from broker.jetstream.stream.state.decision import WAIT_SECONDS
from broker.jetstream.stream.state.heads import Heads
from broker.jetstream.stream.state.live import Live, LiveBlock
from broker.jetstream.stream.state.memory_blocks import MemoryBlocks
from broker.jetstream.stream.state.removal import Removal, joined
from broker.jetstream.stream.state.rows import OpenRows, Rows
from broker.jetstream.stream.state.stored import StoredMsg, StoredMsgs
from broker.jetstream.stream.state.subject_pages import SubjectPages
from broker.jetstream.stream.state.subject_search import SubjectSearch
from broker.jetstream.stream.state.subject_state import SubjectState
from broker.jetstream.stream.state.tasks import Tasks
from broker.jetstream.stream.upstream.positions import Positions
from broker.jetstream.usage import Usage
from broker.jetstream.wire.error_table import ApiErrors
from broker.jetstream.wire.errors import ApiError
from broker.jetstream.wire.numbers import SEQ_MAX
from broker.storage.format.record import Record
from broker.storage.format.records.message_ids import MessageIds
from broker.storage.format.records.stream_update import StreamUpdate

if TYPE_CHECKING:
    from broker.jetstream.bus import Bus, Msg, Source
    from broker.jetstream.config.stream import StreamConfig
    from broker.jetstream.inflight import Inflight
    from broker.jetstream.stream.publish.pub_ack_receiver import PubAckReceiver
    from broker.storage.format.frame import Chunk
    from broker.storage.format.records.body import RecordBody
    from broker.storage.log.open_block import OpenBlock
    from broker.storage.log.stream_log import StreamLog
    from broker.storage.log.writer import SealedBlock
    from broker.storage.read.reader import BlockReader
    from broker.storage.state.seq_ranges import SeqRanges
    from broker.storage.state.stream import StreamState

__all__ = ["Stream"]

T = TypeVar("T")

_log = logging.getLogger(__name__)


class Stream:
    """A live stream.

    Args:
        state: the state of the stream after its persisted blocks; None for a new stream.
        usage: counts the bytes of all streams of the same storage.
        inflight: counts the open batches of all streams.
        listeners: the stream's consumers by name, a mapping that the owner maintains.
        bytes_max: maximum bytes of the queue while the stream waits for the store.
        dedupe_bytes_max: maximum bytes of its window of message ids.
    Attributes: ``offline``: the reason why it cannot be used, or None.
    """

    offline: str | None = None

    def __init__(self, config: StreamConfig, state: StreamState | None, *, account: str, stream_id: int,
                 created_ns: int, log: StreamLog, reader: BlockReader, bus: Bus, clock: Clock, rng: random.Random,
                 domain: str = "", usage: Usage | None = None, inflight: Inflight | None = None,
                 listeners: Mapping[str, Listener] | None = None, bytes_max: int = 16 << 20,
                 dedupe_bytes_max: int = 256 << 20) -> None:
        self.name = config.name
        self.account = account
        self.config = config
        self.stream_id = stream_id
        self.created_ns = created_ns
        self.log = log
        self.reader = reader
        self.bus = bus
        self.clock = clock
        self.rng = rng
        self.domain = domain
        self.listeners = Listeners(self.name, {} if listeners is None else listeners)
        self.on_failed: Callable[[Stream], object] = lambda stream: stream.close()
        """Called when the stream can no longer store anything; ``offline`` has the reason."""
        self.on_loaded: Callable[[], object] = lambda: None
        """Called when blocks have been loaded into memory."""
        self.stored = config.storage != "memory"
        extra: Mapping[str, Any] = {} if state is None else state.extra
        self.live = live = Live(self._cached_head, self.applied if self.stored else None, self._on_blocks_loaded, usage,
                                clock, extra)
        self.heads = Heads(live, reader)
        self.positions = Positions(extra)
        self.tasks = Tasks(self.name)
        self.memory_blocks = MemoryBlocks(live, self._blocks_held) if not self.stored else None
        self.subjects = SubjectState(live, self.heads, config.max_msgs_per_subject > 0,
                                     SubjectPages(self.applied, reader) if self.stored else None)
        self.chunks = Chunks(live, self.subjects, reader, self.tasks)
        search = SubjectSearch(live, self.subjects)
        self.queries = Queries(live, self.heads, self.subjects, search, reader, self.chunks)
        self.queue = PublishQueue(log, bytes_max=bytes_max)
        parts = StreamParts(self, account, self.name, stream_id, created_ns, domain, self.stored, log, reader, bus,
                            clock, rng, self.tasks, self.listeners, live, self.heads, self.subjects, search,
                            self.queries, self.queue)
        self._info = StreamInfo(parts)
        self.ceiling = SequenceCeiling(parts, state.ceiling if state is not None else 0)
        self.retention = Retention(parts)
        self.rollups = Rollups(parts, self.retention)
        self.enforcement = Enforcement(parts, self.retention, config, empty=state is None)
        self.interest = Interest(parts, self.retention)
        self.ttls = self.retention.one_by_one = MessageTtls(parts, self.retention)
        self.scheduler = Scheduler(parts)
        self.dedupe = Dedupe(config.duplicate_window, bytes_max=dedupe_bytes_max, known=state is None)
        self.msg_ids = MsgIds(self.dedupe, live, reader, clock, self.applied,
                              state.last_seq if state is not None else 0)
        context = CheckContext(parts, self.dedupe, self.msg_ids, self.retention, self.rollups, self.enforcement,
                               self.interest, self.ttls, self.scheduler)
        self.appending = Appending(parts, context, extra)
        self.erasures = Erasures(parts, self.retention, extra)
        self.references = References(live, reader, stream_id, stored=self.stored)
        replies = Replies(parts)
        self._batching = Batching(parts, context, replies, self.appending, inflight)
        self.sequencer = Sequencer(parts, context, self.ceiling, Appender(parts, context, replies, self._batching.lost),
                                   BlockedPublish(parts, replies), self._batching, replies)
        self.queue.connect(self.sequencer.run, replies.turn_away)
        self.copies = Copies(parts, self.sequencer)
        self._configure(config)
        if state is None:
            if config.first_seq:
                self.live.first_seq, self.live.last_seq = config.first_seq, config.first_seq - 1
                self.live.safe_seq = config.first_seq - 1
            if self._asynchronous():
                self.ceiling.request(self.live.last_seq)
        else:
            self._restore(state)
        self.reset_checks()

    def _configure(self, config: StreamConfig) -> None:
        self.config = config
        self.live.ahead.configure(config.max_age, config.duplicate_window)
        self.sequencer.configure(config)
        self.retention.configure(config)
        self.ttls.configure(config, delete_marker(config))
        self.interest.configure(config)

    # --- restart ------------------------------------------------------------------------------------------------------

    def _restore(self, state: StreamState) -> None:
        """Restore the counters; the blocks are loaded at first use."""
        live = self.live
        live.first_seq, live.last_seq = state.first_seq, state.last_seq
        live.msgs, live.size_bytes = state.msgs, state.bytes
        live.usage.size_bytes += state.bytes
        live.first_time_ns, live.last_time_ns = state.first_time_ns, state.last_time_ns
        if state.ceiling > live.last_seq + 1 and self.config.mirror is None:
            # After a crash, clients may know sequences below the ceiling: the next message gets the ceiling.
            live.skip_to(max(live.last_seq, min(state.ceiling - 1, SEQ_MAX)))
        live.safe_seq = live.last_seq
        if live.ahead.restore():
            self.log.lazy(self)
        # A crash may have happened between an update and its removals.
        self.enforcement.resume(state.extra, state.msgs, self.interest.resume(state.extra))
        self.ttls.restore(state.expiries)
        self.scheduler.restore(state.schedules)
        if self.config.max_age > 0 and state.msgs:
            # This does not load the blocks; the timer's own check is exact.
            self.retention.arm_at(state.first_time_ns)

    def applied(self) -> StreamState | None:
        return self.log.state.streams.get(self.stream_id)

    def _on_blocks_loaded(self, blocks: Sequence[LiveBlock]) -> None:
        self.msg_ids.blocks_loaded(blocks)
        self.on_loaded()

    async def load_blocks(self) -> None:
        """Load the blocks into ``live``: await this before anything but a publish. See ``Live.load_blocks``."""
        if not self.live.blocks_loaded:
            await self.live.load_blocks()

    # --- numbers ------------------------------------------------------------------------------------------------------

    @property
    def first_seq(self) -> int:
        return self.live.first_seq

    @property
    def last_seq(self) -> int:
        return self.live.last_seq

    @property
    def msgs(self) -> int:
        return self.live.msgs

    @property
    def size_bytes(self) -> int:
        return self.live.size_bytes

    @property
    def first_time_ns(self) -> int:
        """Time of the first live message, or its block's first time if its head is not in memory. Loads nothing."""
        live = self.live
        return live.first_time[0] if live.blocks_loaded else live.first_time_ns if live.msgs else 0

    @property
    def last_time_ns(self) -> int:
        return self.live.last_time_ns

    @property
    def safe_seq(self) -> int:
        """The highest sequence that consumers may see."""
        return self.live.safe_seq

    # --- publishing ---------------------------------------------------------------------------------------------------

    def publish(self, ops: Sequence[Msg], start: int, end: int, source: Source | None, now_ns: int) -> None:
        """Handle publishes from the bus (a BatchHandler).

        Never waits: publishes that must wait are queued or refused.
        """
        if self.queue.closed or not self.log.room():
            self.queue.enqueue(ops, start, end, source, now_ns)
        elif end - start > 1 or not self.sequencer.run_one(ops[start], now_ns):
            self.sequencer.run(ops, start, end, source, now_ns)

    def publish_for(self, receiver: PubAckReceiver, msgs: Sequence[Msg]) -> None:
        """Handle publishes of another protocol, whose PubAcks go to ``receiver``."""
        if self.queue.closed or not self.log.room():
            self.queue.enqueue(msgs, 0, len(msgs), receiver, self.clock.now_ns())
        else:
            self.sequencer.run(msgs, 0, len(msgs), receiver, self.clock.now_ns())

    def publish_own(self, msgs: Sequence[Msg], source: Source | None = None) -> None:
        """Publish messages of the stream's own."""
        self.publish(msgs, 0, len(msgs), source, self.clock.now_ns())

    # --- the log (BlockOwner) -----------------------------------------------------------------------------------------

    def sealing(self, block: OpenBlock[Any]) -> None:
        """Add the stream's outcome, and the records that no reply waits for, when the segment closes."""
        recorded = self.dedupe.pop_recorded()
        if recorded:
            block.add(_message_ids(block, recorded))
            self.msg_ids.expire_later()
        if self.stored and self.ttls.expiries and (expiry := self.ttls.record(block)) is not None:
            block.add(expiry)
        if (schedule := self.scheduler.pop_record()) is not None and self.stored:
            block.add(schedule)
        self._add_changes(block)
        self.live.cut(block)

    def journaling(self, block: OpenBlock[Any], start: int) -> Sequence[Record]:
        """Add the outcome and other records like ``sealing``, to a block that stays open.

        Returns: the records that list messages, for those from ordinal ``start`` on.
        """
        listed: list[RecordBody] = []
        if self.dedupe.recorded or self.ttls.expiries or self.scheduler.changed:
            first_seq = OpenRows(block).seq_of(start) if start < block.count else block.last_seq + 1
            if recorded := self.dedupe.recorded_from(first_seq):
                listed.append(_message_ids(block, recorded))
            if (expiry := self.ttls.record(block, first_seq)) is not None:
                listed.append(expiry)
            if (schedule := self.scheduler.record()) is not None:
                listed.append(schedule)
        self._add_changes(block)
        return [Record.pack(body, block.last_seq) for body in listed]

    def _add_changes(self, block: OpenBlock[Any]) -> None:
        """Add the outcome, and the records of what has changed since the last call."""
        live = self.live
        for delta in self.listeners.pop_deltas():
            block.add(delta)
        extra = self.interest.pop_changes() if self.interest.moved else {}
        if self.positions.moved:
            extra |= self.positions.pop_changes()
        if live.ahead.active and live.ahead.mark():
            extra |= live.ahead.pop_changes()
        if extra:
            block.add(StreamUpdate(self.config.to_json(), extra))
        block.outcome = live.outcome(self.first_time_ns)

    def safe(self, last_seq: int) -> None:
        """Handle that everything up to ``last_seq`` is in the journal: consumers may see it."""
        live = self.live
        if last_seq > live.safe_seq and live.joining is None:  # messages join once their record is persisted
            live.safe_seq = last_seq
            self.listeners.wake()

    def persisted(self, block: SealedBlock[Any]) -> None:
        """Handle a block that is in the store and in the applied state: consumers may see it."""
        live = self.live
        mine = live.pop_in_flight()
        if mine is not None:
            dead = isinstance(mine, LiveBlock) and not mine.live_msgs
            if self.stored and not dead and (self.listeners.any or not block.kept) and (ref := block.ref) is not None:
                self.reader.admit(ref, block.head, block.chunks)
            if isinstance(mine, LiveBlock):
                live.persisted(mine, block, not self.stored)
        if self.memory_blocks is not None:
            self.memory_blocks.tidy()
        if live.joining is not None:
            self.appending.persisted(block)
        last_seq = block.outcome.last_seq
        if last_seq > live.safe_seq:
            live.safe_seq = last_seq
            self.listeners.wake()

    def _blocks_held(self) -> bool:
        """Return whether a running operation relies on the present blocks."""
        return bool(self.queue.busy or self.heads.walks)

    def failed(self, error: Exception) -> None:
        """Go offline because the records cannot be stored: accept nothing more, and close after the current
        decision."""
        self.offline = f"it cannot be stored: {error!r}"
        self.queue.shut()
        asyncio.get_running_loop().call_soon(self.on_failed, self)

    def withdrawn(self, fn: Callable[..., object], items: list[Any]) -> list[Any]:
        """See ``BlockOwner``."""
        return self.sequencer.replies.withdrawn(fn, items)

    def dirty(self, consumer: Changed) -> None:
        """Record that a consumer's state changed: its delta is stored when the next segment closes, within a second."""
        self.listeners.dirty(consumer)
        self.log.lazy(self)

    def acked(self, seqs: Sequence[int]) -> asyncio.Future[None] | None:
        """Handle that a consumer no longer waits for ``seqs``. See ``Interest.acked``."""
        return self.interest.acked(seqs) if self.interest.active else None

    def acked_from(self, seq: int) -> asyncio.Future[None] | None:
        """Handle that a consumer no longer waits for messages from ``seq`` on. See ``Interest.acked_from``."""
        return self.interest.acked_from(seq) if self.interest.active else None

    # --- start and stop of async streams ------------------------------------------------------------------------------

    def _asynchronous(self) -> bool:
        # A mirror has its origin's sequences. If it continued at a ceiling, it would never get the messages below that.
        return self.config.persist_mode == "async" and self.stored and self.config.mirror is None

    def prepare_shutdown(self) -> None:
        """Lower the ceiling before a clean stop, after the last publish: the next start continues at this sequence."""
        if self._asynchronous():
            self.ceiling.lower(self.live.last_seq + 1)

    # --- reading ------------------------------------------------------------------------------------------------------

    def next_chunk(self, seq: int, filters: Filters | None) -> tuple[Chunk, LiveBlock, int] | Loading | None:
        """See ``Chunks.next_chunk``."""
        return self.chunks.next_chunk(seq, filters)

    def known_seqs(self, filters: Filters, seq: int, most: int) -> Sequence[int] | None:
        """See ``Chunks.known_seqs``."""
        return self.chunks.known_seqs(filters, seq, most)

    def chunk_of(self, seq: int) -> tuple[Chunk, LiveBlock, int] | None:
        """See ``Chunks.chunk_of``."""
        return self.chunks.chunk_of(seq)

    def may_hold(self, seq: int) -> bool:
        """Return whether ``seq`` is live, as far as that is known without reading: a gap in a block may seem live."""
        return self.live.find(seq) is not None

    async def count_from(self, seq: int, filters: Filters | None) -> tuple[int, int]:
        """Return the number of safe live matches (None: all) from ``seq`` on, and the last sequence counted."""
        await self.load_blocks()
        return await self.queries.count_from(seq, filters)

    def tail_count(self, seq: int, filters: Filters) -> int:
        """Return the number of matches at or after ``seq`` in blocks that are not persisted yet."""
        return self.queries.tail_count(seq, filters)

    async def get(self, seq: int) -> StoredMsg | None:
        """Return the message ``seq``, or None. Raises: ApiError 10008 past the lease; StoreError; FormatError."""
        await self._readable_blocks()
        return await self.queries.get(seq)

    def peek(self, seq: int) -> StoredMsg | None:
        """Return the same as ``get``, from memory alone. Raises: NotLoaded; ApiError 10008 past the lease."""
        self._readable()
        return self.queries.peek(seq)

    def peek_some(self, seqs: Sequence[int], bytes_max: int) -> tuple[StoredMsgs, Sequence[int], int]:
        """Return the first of ``seqs`` from memory: see ``Queries.peek_some``.

        Raises: ApiError 10008 past the lease.
        """
        self._readable()
        return self.queries.peek_some(seqs, bytes_max)

    def peek_last(self, subject: bytes) -> StoredMsg | None:
        """Return the same as ``get_last`` for a literal ``subject``, from memory alone. Raises: as ``peek``."""
        self._readable()
        return self.queries.peek_last(subject)

    async def get_last(self, wanted: bytes) -> StoredMsg | None:
        """Return the last message whose subject matches ``wanted``, or None. Raises: as ``get``."""
        await self._readable_blocks()
        return await self.queries.get_last(wanted)

    async def get_next(self, wanted: bytes, seq: int, start_time_ns: int | None = None) -> StoredMsg | None:
        """Return the first match at or after a sequence, or a time, or None. Raises: as ``get``."""
        await self._readable_blocks()
        return await self.queries.get_next(wanted, seq, start_time_ns)

    async def next_msgs(self, filters: Filters, seq: int, most: int) -> StoredMsgs:
        """Return up to ``most`` matches, from the first one at or after ``seq`` on; none if there is none.

        Raises: as ``get``.
        """
        await self._readable_blocks()
        return await self.queries.next_msgs(filters, seq, most)

    async def last_seqs(self, filters: Filters | None) -> list[int]:
        """Return the last matching sequence in a list, or an empty list. Raises: as ``get``."""
        await self._readable_blocks()
        return await self.queries.last_seqs(filters)

    async def last_seqs_by_subject(self, filters: Filters, up_to_seq: int) -> list[int]:
        """Return the last sequence at or below ``up_to_seq`` of each matching subject, ascending.

        Raises: as ``get``.
        """
        await self._readable_blocks()
        return await self.queries.last_seqs_by_subject(filters, up_to_seq)

    async def seq_at(self, time_ns: int) -> int:
        """Return the first sequence at or after a time; last_seq + 1 if there is none. Raises: as ``get``."""
        await self._readable_blocks()
        return await self.queries.seq_at(time_ns)

    def _readable(self) -> None:
        if not self.log.lease_held():
            raise ApiError(ApiErrors.CLUSTER_NOT_AVAIL)

    async def _readable_blocks(self) -> None:
        self._readable()
        await self.load_blocks()

    # --- changing -----------------------------------------------------------------------------------------------------

    async def delete_msg(self, seq: int, erase: bool) -> bool:
        """Remove one message; return False if it does not exist. ``erase``: its bytes must leave the store, too.

        Returns once the removal is sequenced: the caller answers through ``log.wait``.
        """
        await self.queue.quiet()
        await self.load_blocks()
        deleted = await self.retention.delete(seq)
        if deleted and erase:
            self.erasures.removed(seq)  # in the same turn: the removal and the mark are in one block
        await self._notified()
        return deleted

    async def erase_removed(self, seqs: SeqRanges, erasure_id: str) -> None:
        """Let the bytes of those of ``seqs`` that are no messages of the stream any more leave the store."""
        await self.load_blocks()
        self.erasures.mark_removed(seqs, erasure_id)

    async def erase(self, seqs: SeqRanges, erasure_id: str) -> int:
        """Remove these messages, and let their bytes leave the store; return how many were in the stream.

        Returns once the removals are sequenced: the caller answers through ``log.wait``.
        """
        await self.queue.quiet()
        removed = await self.erasures.erase(seqs, erasure_id)
        await self._notified()
        return removed

    async def purge(self, wanted: bytes | None, seq: int = 0, keep: int = 0) -> int:
        """Remove matches of ``wanted`` (None: all) below ``seq`` (0: no bound) except the ``keep`` newest; return how
        many.

        Returns once the removal is sequenced: the caller answers through ``log.wait``.
        """
        await self.load_blocks()
        filters = Filters(() if wanted is None else (wanted,))
        if seq == 1:
            return 0
        if filters.all:
            purged, more = 0, True
            while more:
                async with self.queue.turn():
                    try:
                        async with asyncio.timeout(WAIT_SECONDS):
                            count, seq, more = await self.retention.purge_front(seq, keep)
                    except TimeoutError:
                        # Publishes wait for each slice, and must not wait as long as a store may take.
                        raise ApiError(ApiErrors.CLUSTER_NOT_AVAIL) from None
                purged, keep = purged + count, 0
                await asyncio.sleep(0)
        else:
            await self.queue.quiet()
            purged = await self.retention.purge_matching(filters, seq, keep)
        await self._notified()
        return purged

    async def _notified(self) -> None:
        """Wait until all consumers are notified of removals, so that the reply waits for their records, too."""
        if self.listeners.queued:
            await self.listeners.delivered()
            self.log.barrier(self)

    def update(self, config: StreamConfig) -> asyncio.Future[None]:
        """Apply a new configuration at once; exceeding messages are removed before anything else is published.

        Returns: a future that is done once all limits hold. It fails if the store fails; then enforcing is retried.
        """
        self._configure(config)
        self.retention.arm()
        self.ttls.arm()  # set the timer even if enforcing the limits has to wait for the store
        self.subjects.set_tracked(config.max_msgs_per_subject > 0)
        self.dedupe.window_ns = config.duplicate_window
        return self.enforcement.updated()

    def removed(self, gone: Sequence[Removal], subject: bytes | None, purged: bool, *, notify: bool = True) -> None:
        """Handle removed messages, which all have ``subject`` if it is given; ``notify``: notify the consumers."""
        if self.memory_blocks is not None:
            self.memory_blocks.removed(gone)
        if notify and (self.listeners.by_name or self.ttls.expiries or self.scheduler.schedules):
            self.notify_removed(joined(gone), subject, purged)
        else:
            for removal in gone:
                self._forget_times(removal.first, removal.last)

    def notify_removed(self, ranges: Sequence[tuple[int, int, int]], subject: bytes | None, purged: bool) -> None:
        """Notify consumers of blocks removed as a whole, (first, last, messages); not called for memory streams."""
        for first, last, _ in ranges:
            self._forget_times(first, last)
        self.listeners.removed(ranges, subject, purged)

    def _forget_times(self, first: int, last: int) -> None:
        if self.ttls.expiries:
            self.ttls.removed(first, last)
        if self.scheduler.schedules:
            self.scheduler.removed(first, last)

    def reset_checks(self) -> None:
        """Select the checks again, after the last sequence was set instead of counted up."""
        self.sequencer.reset_checks()

    def trim_soon(self) -> None:
        """Continue a trim in the next turn, because it needs the store or is incomplete."""
        self.enforcement.schedule_trim()

    def close(self) -> None:
        """Stop at once: nothing more is written or answered.

        Queued publishes are dropped without an answer; if the stream went offline, they are refused.
        """
        if self.offline is not None:
            error = ApiError(ApiErrors.STREAM_OFFLINE_REASON, err=self.offline)
            self.queue.refuse_all(lambda source, run: self.sequencer.replies.fail(source, run, error))
        self.queue.close()
        self._batching.close()
        self.retention.close()
        self.ttls.close()
        self.scheduler.close()
        self.live.stop_counting()
        if self.memory_blocks is not None:
            self.memory_blocks.close()
        self.msg_ids.close()
        self.tasks.cancel()
        discarded(self)

    # --- info ---------------------------------------------------------------------------------------------------------

    async def info_state(self, deleted_details: bool = False, subjects_filter: bytes = b"",
                         subjects_offset: int = 0) -> dict[str, Any]:
        """Return JetStream's StreamState as JSON values without ``consumer_count``; ``subjects`` is a
        ``SubjectCounts``.

        Raises: ApiError 10008 past the lease; StoreError; FormatError.

        Source: nats-server, server/store.go, StreamState.
        """
        self._readable()
        await self.queue.quiet()
        await self.load_blocks()
        return await self._info.state(deleted_details, subjects_filter, subjects_offset)

    # --- loading ------------------------------------------------------------------------------------------------------

    def _cached_head(self, block: LiveBlock) -> Rows | None:
        return self.reader.cached_head(block) if block.ref is not None else None


def _message_ids(block: OpenBlock[Any], recorded: Sequence[tuple[int, bytes]]) -> MessageIds:
    ordinals = OpenRows(block).ordinals_of([seq for seq, _ in recorded])
    return MessageIds(ordinals, [msg_id for _, msg_id in recorded])
