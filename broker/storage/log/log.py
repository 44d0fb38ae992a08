"""The log of one shard: gathers blocks into segments, puts them in order, and replies once they are persisted.

    urgent() ───┐                          ┌─ sealing(block) of each owner with changes
    full ───────┼─> _commit_due ──> _cut ──┤
    1 s lazy ───┘       │                  └─ position fixed, the next open segment begins
                        ├──> journal: the growth of the open segment is safe ─────────────────────> safe waiters
                        └──> _write: seal_block on the loop, encode, put until it is stored ──┐
         n persisted only after n-1 is  <── in log order: apply, owners' persisted, waiters ──┘

Owns the order of everything that depends on a commit. Does not own when a commit begins (``commit_schedule``), the
order of segments (``segment_queue``), the contents of blocks (their owners), nor the ownership of the shard
(``cluster``). The epoch is passed in. A process that has lost the shard learns it here: its next put finds a seal under
its key.

A closed segment is put until it is stored. The attempts end early only if its key holds a seal or another writer's
object, or if the log is closed. Its bytes and key are fixed before the first put and are the same in each attempt.

A stream that cannot give its outcome, or whose block cannot be encoded, goes offline alone: nothing of it is stored or
answered from that segment on. Other streams continue; a restart recovers this stream as of its last stored block.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Any, NamedTuple

from broker.base.clock import Clock
from broker.storage.format.header import Position
from broker.storage.format.records.adoption import Adopted
from broker.storage.log.commit_schedule import BLOCKS_MANY, BYTES_MANY, Action, CommitSchedule, Facts
from broker.storage.log.journal import Journal, JournalPlace
from broker.storage.log.journaling import Grown, Journaling
from broker.storage.log.lease import Lease
from broker.storage.log.listener import LogListener
from broker.storage.log.open_block import OpenBlock
from broker.storage.log.open_segment import OpenSegment
from broker.storage.log.owner import BlockOwner, ShardBlockOwner
from broker.storage.log.putter import Putter, Segment
from broker.storage.log.segment_queue import SegmentQueue
from broker.storage.log.settings import LogSettings
from broker.storage.log.timers import CommitTimers
from broker.storage.log.waiters import ITEM_BYTES, Batch, Waiter, Waiters, resolve
from broker.storage.objectstore.base import ObjectStore, StoreError, StoreFull
from broker.storage.objectstore.reserving import ROOMY, StoreRoom
from broker.storage.put import Fenced
from broker.storage.state.applied import ShardState

__all__ = ["Log"]

_log = logging.getLogger(__name__)

_GATHER_NS = 2_000_000
"""The longest time between a flush and the next commit while publishers send more. A commit and its flush cost 0.2 ms
of processor time, as much as a hundred messages."""


class _SafeCommit(NamedTuple):
    """A commit in the journal that is not safe yet: the calls that wait for it, and what it has of each stream."""

    waiters: list[Waiter]
    grown: list[Grown]


class Log:
    """The log of one shard. All methods are synchronous, except ``persisted``, ``safe``, ``drain`` and ``close``."""

    def __init__(self, store: ObjectStore, key_of: Callable[[Position], str], epoch: int, nonce: bytes,
                 state: ShardState, clock: Clock, rng: random.Random, settings: LogSettings | None = None, *,
                 executor: Executor | None = None, began_ns: int | None = None,
                 clock_trusted: Callable[[], bool] = lambda: True, journal: JournalPlace | None = None) -> None:
        """Continue the log after ``state.position``, which is the opening of ``epoch`` or a later segment of it.

        Args: key_of returns a segment's key. executor encodes large segments; None: the loop encodes all of them.
            began_ns is when, by the outside clock, the put of the opening began: the lease counts from then.
            clock_trusted returns False while streams must not let messages expire (see ``clock.GuardedClock``).
            journal is where the log keeps its journal; None: there is none.
        """
        if state.position.epoch != epoch:
            raise ValueError(f"a log of epoch {epoch} cannot continue after {state.position}")
        self.store = store
        self.state = state
        self.epoch = epoch
        self.nonce = nonce
        self.settings = settings or LogSettings()
        self.tail_bytes_max = self.settings.tail_bytes_max
        self.clock_trusted = clock_trusted
        self.failure: BaseException | None = None
        self.shard = ShardBlockOwner()
        self.store_room: StoreRoom = ROOMY
        """The free room of the store. Call ``store_room_changed`` after changing it."""

        self.store_filled = asyncio.Event()
        """Set while the store is full."""

        self._clock = clock
        self._putter = Putter(store, key_of, nonce, clock, rng, self.settings, executor, self._encoded,
                              self._set_offline)
        self._schedule = CommitSchedule(self.settings)
        self._open = OpenSegment()
        self._waiters = Waiters()
        self._failed: set[int] = set()
        self._journaling: Journaling | None = None
        """None: every commit is a segment."""

        self._gathering = False
        """True between a flush and the next commit, while ``_gather`` is to run in a later turn of the loop."""

        self._unflushed: deque[_SafeCommit] = deque()
        """The commits in the journal that are not safe yet, in order."""

        self._futures: dict[asyncio.Future[None], None] = {}
        self._room: list[Callable[[], object]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._listeners: tuple[LogListener, ...] = ()
        self._stopped = False
        self._answering = False
        """True while ``_answer`` is to run in a later turn of the loop."""
        self._timers = CommitTimers(self._commit_due, self._lazy_due, self.settings.lazy_ns)
        now_ns = clock.monotonic_ns()
        self._segments = SegmentQueue(state.position, now_ns - (1 << 62))
        outside_ns = clock.outside_ns()
        self._lease = Lease(self.settings.lease_ns, clock, outside_ns if began_ns is None else began_ns)
        self._renewed_ns = now_ns - (1 << 62)
        """When the lease was last renewed without a put."""

        self._loop = asyncio.get_running_loop()
        if journal is not None:
            if self.settings.lease_ns is not None:
                raise ValueError("a log with a journal has no lease")  # ``_commit_due`` relies on it
            file = Journal(journal, epoch, nonce, state.position.number, self.fail, self._flushed)
            self._journaling = Journaling(file, self._leave_out, self.settings.codec)
        if (renew_at_ns := self._lease.renew_at_ns) is not None:
            self._timers.set_in(renew_at_ns - outside_ns)

    def listen(self, listener: LogListener) -> None:
        """Notify ``listener`` of events from now on, after earlier listeners."""
        self._listeners = (*self._listeners, listener)

    # Methods for streams.

    def block(self, owner: BlockOwner) -> OpenBlock[Any]:
        """Return the owner's block in the open segment. Call this before each addition: the last one may be closed."""
        block = self._open.blocks.get(owner.stream_id)
        if block is None:
            block = self._open.add_block(owner)
            self._timers.set_lazy()
        block.touch()
        if self._timers.soon is None and self._open.full(self.settings):
            self.schedule_commit()
        return block

    def urgent(self) -> None:
        """Commit what is sequenced so far as soon as the schedule allows: something waits for it.

        Call this only while the stream's state is consistent: a segment of twice its bounds is closed within this call,
        and its owners give their outcomes.
        """
        opened, settings = self._open, self.settings
        if not opened.urgent:
            opened.urgent, opened.urgent_ns = True, self._clock.monotonic_ns()
        # opened.full() would cost a call for every publish.
        if opened.tally.bytes >= settings.segment_bytes or opened.tally.count >= settings.segment_count:
            if opened.full(settings, 2) and self.failure is None:
                self._cut(False)
            self.schedule_commit()
        elif self._timers.soon is None and (not self._segments.in_flight or self._segments.closed
                                            or settings.commit_interval_ns or opened.tally.bytes >= BYTES_MANY
                                            or (self._journaling is not None and self._journaling.ready)):
            self.schedule_commit()

    def skip_interval(self) -> None:
        """Let the open segment be closed before ``commit_interval`` is over, as soon as no put is in flight."""
        if not self._open.hasty:
            self._open.hasty = True
            self.schedule_commit()

    def lazy(self, owner: BlockOwner) -> None:
        """Let ``owner`` add lazy changes, which nothing waits for, when the next segment closes, within ``lazy_ns``."""
        self._open.lazy[owner.stream_id] = owner
        self._timers.set_lazy()

    def barrier(self, owner: BlockOwner | None = None) -> None:
        """Make lazy changes of ``owner``, or of all owners, urgent. Later calls of ``wait`` wait for them too."""
        if self._open.has_changes(owner):
            self._open.content = True
            self.urgent()

    def wait(self, fn: Callable[..., object], *args: Any, of: BlockOwner | None = None) -> None:
        """Call ``fn(*args)``, in log order, once everything sequenced so far is persisted; at once if it already is.

        If the lease has expired, the call waits for a put that renews it, if necessary of an empty segment: another
        owner may have changed the state that the call depends on. Lazy changes count as sequenced only after
        ``barrier``. ``fn`` is never called once the log has failed.

        Args: of is the stream that the call is about; ``fn`` is not called if that stream goes offline.
        """
        if of is not None and of.stream_id in self._failed:
            return
        waiter: Waiter = (fn, args, of, True)
        if self._open.has_content:
            self._waiters.append(waiter)
            self._make_urgent()
        elif (newest := self._segments.newest) is not None:
            newest.waiters.append(waiter)
        elif self.failure is not None:
            return
        elif self._waiters.due:
            self._waiters.due.append(waiter)
        elif self.lease_expired:
            self._ask_for_proof([waiter])
        else:
            fn(*args)
            return
        self._waiters.hold(args)

    def wait_safe(self, fn: Callable[..., object], *args: Any, of: BlockOwner | None = None) -> None:
        """Like ``wait``, but call ``fn(*args)`` once everything sequenced so far survives a kill.

        It is then in the journal or persisted, so the applied state may not have it yet. Without a journal this is
        ``wait``.
        """
        if not self._wait_in_open_segment(fn, args, of):
            self._wait_for_earlier(fn, args, of)

    def _wait_in_open_segment(self, fn: Callable[..., object], args: tuple[Any, ...], of: BlockOwner | None,
                              batch: Batch | None = None) -> bool:
        """Add a safe call for the open segment, if it has anything that is not in the journal; return whether it has.

        Later calls may join ``batch``, the argument of the call, until the segment is closed or its commit is in the
        journal. Either may happen in this call: a large message fills a segment.
        """
        opened, journaling = self._open, self._journaling
        if not opened.has_content or (of is not None and of.stream_id in self._failed) or (
                journaling is not None and journaling.commits and not opened.tally.grown and not opened.content):
            return False
        self._waiters.append((fn, args, of, journaling is None))
        self._waiters.hold(args)
        if batch is not None:
            self._waiters.begin_batch(fn, batch)
        self._make_urgent()
        return True

    def _make_urgent(self) -> None:
        """Make the open segment urgent again, for a call that waits for it: an earlier commit may be in the journal."""
        if self._journaling is not None and not self._open.urgent:
            self.urgent()

    def _wait_for_earlier(self, fn: Callable[..., object], args: tuple[Any, ...], of: BlockOwner | None) -> None:
        """Add a safe call that depends on commits in the journal and on closed segments, or make it."""
        journaling = self._journaling
        if of is not None and of.stream_id in self._failed:
            return
        if journaling is None:
            self.wait(fn, *args, of=of)
            return
        waiter: Waiter = (fn, args, of, False)
        if journaling.gaps and (newest := self._segments.newest) is not None:
            newest.waiters.append(waiter)  # while there are gaps, the newest segment is one
        elif self._unflushed:
            self._unflushed[-1].waiters.append(waiter)
        elif self.failure is not None:
            return
        elif self._waiters.due:
            self._waiters.due.append(waiter)
        else:
            fn(*args)
            return
        self._waiters.hold(args)

    def wait_batched(self, fn: Callable[[list[Any]], object], *items: Any) -> None:
        """Like ``wait_safe``, for calls that cost less together: successive calls with one ``fn`` become a single call.

        ``fn`` gets the items of all of them in one list, in order. ``BlockOwner.withdrawn`` removes a stream's items.
        """
        waiters = self._waiters
        if fn == waiters.batch_fn:  # begin_batch, inlined: this runs for every publish
            waiters.batch += items
            waiters.bytes += ITEM_BYTES * len(items)
        else:
            batch = Batch(items)
            if not self._wait_in_open_segment(fn, (batch,), None, batch):
                self._wait_for_earlier(fn, (batch,), None)

    async def wipe_journal(self) -> None:
        """Overwrite the commits in the journal, all of which are in segments then. Raises: as ``persisted``."""
        if self._journaling is not None:
            await self._journaling.journal.wipe(self.persisted)

    async def persisted(self) -> None:
        """Return once everything sequenced so far is persisted. Raises: Fenced, or whatever stopped the log."""
        await self._reached(self.wait)

    async def safe(self) -> None:
        """Return once everything sequenced so far survives a kill (see ``wait_safe``). Raises: as ``persisted``."""
        await self._reached(self.wait_safe)

    async def _reached(self, wait: Callable[[Callable[..., object], asyncio.Future[None]], None]) -> None:
        if self.failure is not None:
            raise self.failure
        future: asyncio.Future[None] = self._loop.create_future()
        self._futures[future] = None
        try:
            wait(resolve, future)
            await future
        finally:
            del self._futures[future]

    @property
    def tail_bytes(self) -> int:
        """Raw bytes that are sequenced and not persisted."""
        return self._segments.raw_bytes + self._open.tally.bytes

    def room(self) -> bool:
        """Return whether more may be sequenced.

        The tail and the calls that wait for it are below their bound, the store has room for the tail, and the log has
        not ended.
        """
        room = self.store_room
        tail_bytes = self._segments.raw_bytes + self._open.tally.bytes
        return (room.full is None and tail_bytes < room.bytes_free
                and tail_bytes + self._waiters.bytes < self.tail_bytes_max
                and self.failure is None and not self._stopped)

    @property
    def full(self) -> bool:
        """True if the store has no room for messages: publishes are refused, and everything else continues."""
        return self.store_room.full is not None

    @property
    def stuck(self) -> bool:
        """True if the store has no room for what is sequenced, not even in its reserve: nothing is answered."""
        return isinstance(self._putter.error, StoreFull)

    def store_room_changed(self) -> None:
        """Apply a change of ``store_room``: the store has become full, or has room again."""
        if self.full:
            self.store_filled.set()
        else:
            self.store_filled.clear()
        self._wake_for_room()

    def _wake_for_room(self) -> None:
        if self._room and self.room():
            waiting, self._room = self._room, []
            for wake in waiting:
                wake()

    @property
    def waiting_bytes(self) -> int:
        """Bytes of the calls that wait for a commit, including calls that added nothing to the tail (duplicates)."""
        return self._waiters.bytes

    def when_room(self, fn: Callable[[], object]) -> None:
        """Call ``fn`` once there is room; at once if there is. After a failure of the log, ``fn`` is never called."""
        if self.room():
            fn()
        else:
            self._room.append(fn)

    @property
    def lease_expired(self) -> bool:
        """True if our last proof of owning the shard is too old to read, deliver or acknowledge (S3 only)."""
        return self._lease.expired

    def lease_held(self) -> bool:
        """Return whether the shard may be read now. If not, request a put that renews the lease."""
        if not self.lease_expired:
            return True
        if self._segments.newest is None and not self._open.has_content:
            self._ask_for_proof([])
        return False

    def share_interval(self, shards: float) -> None:
        """Leave ``shards`` times the configured ``commit_interval`` between two puts."""
        self._schedule.share_interval(shards)

    @property
    def quiet(self) -> bool:
        """True if the newest put was of an empty segment: a heartbeat, which says that all before it is stored."""
        return self._segments.began_empty

    def renew_lease(self, began_ns: int) -> None:
        """Renew the lease without a put: a request that began at ``began_ns``, by the outside clock, has proved our
        ownership. As long as such requests come, an idle log puts no heartbeats.
        """
        if self._lease.prove(began_ns):
            self._loop.call_soon(self._lease_renewed)
        self._renewed_ns = self._clock.monotonic_ns()

    @property
    def position(self) -> Position:
        """The last persisted position."""
        return self.state.position

    @property
    def idle(self) -> bool:
        """True if all closed segments are persisted."""
        return self._segments.newest is None

    @property
    def store_error(self) -> StoreError | None:
        """The reason why the oldest put is not stored yet; None while the store works."""
        return self._putter.error

    @property
    def commit_count(self) -> int:
        """Number of segments stored so far."""
        return self._putter.count

    @property
    def commit_bytes(self) -> int:
        """Bytes of the segments stored so far."""
        return self._putter.bytes

    # Methods for the shard.

    async def drain(self) -> None:
        """Persist everything, including lazy changes. Raises: as ``persisted``."""
        self.barrier()
        await self.persisted()

    def stop(self) -> Position:
        """Close no further segment. Returns: the first position that no segment has used; the seal goes there.

        Call ``drain`` first: the rest of the tail is dropped, and its pending calls are never made.
        """
        self._stopped = True
        self._timers.stop()
        return self._segments.next

    async def close(self) -> None:
        """Stop, and cancel the puts in flight: each of them may be stored, even later."""
        self.stop()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        drained = self.idle and self.failure is None and not self._open.has_content
        if self.failure is None:
            self.fail(Fenced("the log was closed"), notify=False)
        if self._journaling is not None:
            journaling, self._journaling = self._journaling, None
            await journaling.journal.close(remove=drained)

    def notify_adopted(self, adopted: Sequence[Adopted]) -> list[Adopted]:
        """Notify listeners of an adoption. Returns: the adoptions to report again, see
        ``LogListener.blocks_adopted``."""
        return [one for listener in self._listeners for one in listener.blocks_adopted(adopted)]

    def schedule_commit(self) -> None:
        """Consult the schedule once the current callback, and others that are ready, have run."""
        self._timers.set_soon()

    # Gathering a segment.

    def _ask_for_proof(self, waiters: list[Waiter]) -> None:
        """Make the calls ``waiters``, before all others, once a put has renewed the lease."""
        self._waiters.prepend(waiters)
        self._open.content = self._open.urgent = True
        self.schedule_commit()

    def _lazy_due(self) -> None:
        self._open.overdue = True

    def _commit_due(self) -> None:
        """Take the schedule's steps until its decision is to wait."""
        self._timers.clear_soon()
        if self._stopped or self.failure is not None:
            return
        if self._journaling is not None and self._open.urgent:
            if self._gathers(self._journaling):
                return
            self._commit_to_journal(self._journaling)
            if self.failure is not None or not (self._open.asked or self._segments.closed):
                return  # a log with a journal has no lease, so the schedule's decision would be to wait
        now_ns = self._clock.monotonic_ns()
        may_close = True
        while True:
            action, until_ns = self._schedule.decide(self._facts(may_close), now_ns)
            if action is Action.WAIT:
                break
            if action is Action.BEGIN:
                self._begin(self._segments.begin(now_ns))
                continue
            self._cut(action is Action.HEARTBEAT)
            if self.failure is not None:
                return
            may_close = bool(self._segments.closed)  # False: the lazy owners had no changes, so no segment was made
        if until_ns is not None:
            self._timers.set_in(until_ns - now_ns)

    def _gathers(self, journaling: Journaling) -> bool:
        """Return whether the next commit waits for the end of a flush, because nothing needs more than the commit."""
        opened = self._open
        return ((self._gathering or journaling.journal.flushing) and journaling.ready and journaling.may_gather(opened)
                and not (opened.content or opened.overdue or self._waiters.persisted or self._segments.closed
                         or opened.full(self.settings)))

    def _flushed(self) -> None:
        """Prepare the next commit after a flush."""
        if self._open.urgent and not self._gathering:
            self._gathering = True
            self._gather(0, self._open.tally.count, self._clock.monotonic_ns() + _GATHER_NS)

    def _gather(self, quiet: int, count: int, until_ns: int) -> None:
        """Commit once no message was added in two turns of the loop: then publishers wait for their PubAcks.

        Args: ``quiet``: the number of such turns; ``count``: the number of messages in the last turn; ``until_ns``:
            when to commit in any case.
        """
        before, count = count, self._open.tally.count
        if quiet == 2 or not self._open.urgent or self._clock.monotonic_ns() >= until_ns:
            self._gathering = False
            self._commit_due()
        else:
            self._loop.call_soon(self._gather, 0 if count != before else quiet + 1, count, until_ns)

    def _commit_to_journal(self, journaling: Journaling) -> None:
        """Journal the growth of the open segment, if nothing needs a segment at once.

        The segment stays open for ``settings.journal_ns`` more (``synced_journal_ns`` if each commit is flushed), so
        that it has many commits. If the commit cannot be journaled, it remains urgent.
        """
        opened = self._open
        if opened.content or (self._waiters.persisted and not self._waiters.any_safe) or opened.full(self.settings):
            return
        if not journaling.ready:
            journaling.journal.start()
            return
        urgent_ns = opened.urgent_ns
        grown = journaling.commit(opened, self._segments.next.number, self._failed, lambda: self._safe(urgent_ns))
        if grown is None:
            return
        self._unflushed.append(_SafeCommit(self._waiters.pop_safe(), grown))
        if not self._waiters.persisted:
            opened.urgent, opened.urgent_ns = False, 0
            self._timers.set_close(self.settings.synced_journal_ns if journaling.journal.sync
                                   else self.settings.journal_ns)
        if not journaling.journal.sync:
            self._safe(urgent_ns)

    def _safe(self, urgent_ns: int) -> None:
        """Let readers see the oldest commit in ``_unflushed``, which is safe, and make its calls."""
        if self.failure is not None:
            return
        commit = self._unflushed.popleft()
        for owner, last_seq in commit.grown:
            try:
                owner.safe(last_seq)
            except Exception as error:
                self._set_offline(owner, self._segments.next.number, error)
        if self.failure is not None:
            return
        self._waiters.make_due(commit.waiters)
        if not self._answering:
            self._answer()
        if urgent_ns:
            for listener in self._listeners:
                listener.commit_safe(urgent_ns)

    def _facts(self, may_close: bool) -> Facts:
        opened, segments = self._open, self._segments
        last = segments.in_flight[-1] if segments.in_flight else None
        return Facts(segments.began_ns, len(segments.in_flight),
                     last is not None and last.encoded and len(last.sealed) < BLOCKS_MANY,
                     bool(segments.closed) and not (last is not None and last.partly_safe),
                     opened.full(self.settings), may_close and opened.asked,
                     any(listener.commits_paused() for listener in self._listeners), len(opened.blocks),
                     opened.tally.count, opened.tally.bytes, hasty=opened.hasty,
                     renewed_ns=self._renewed_ns if self.quiet else None)

    def _cut(self, heartbeat: bool) -> None:
        """Close the open segment: owners give their outcomes, and the position is fixed.

        If there is nothing to store, no segment is made, except for a heartbeat or for calls that wait for a proof of
        the lease.
        """
        opened = self._open
        try:
            blocks = opened.finish(self._failed, self._leave_out)
        except Exception as error:
            _log.exception("sealing a segment failed")
            self.fail(error)
            return
        if self.failure is not None:
            return
        self._timers.clear_lazy()
        self._timers.clear_close()
        waiters = self._waiters.pop_calls()
        urgent_ns = opened.urgent_ns
        self._open = OpenSegment(opened.lazy)
        self._schedule.segment_closed()
        if self._open.lazy:
            self._timers.set_lazy()
        if not blocks and not heartbeat and not self.lease_expired:
            for fn, args, of, persisted in waiters:
                self._waiters.release(args)
                (self.wait if persisted else self.wait_safe)(fn, *args, of=of)
            return
        segment = self._segments.close(blocks, waiters, urgent_ns)
        if self._journaling is not None:
            self._journal_rest(self._journaling, opened, segment)

    def _journal_rest(self, journaling: Journaling, opened: OpenSegment, segment: Segment) -> None:
        """Journal the rest of a segment that was closed; its safe calls are made then.

        Until the rest is safe, the put of the next segment does not begin beside this one's. So if this segment has
        commits in the journal and is lost, no later segment is in the store.
        """
        segment.journaled = segment.partly_safe = bool(journaling.commits)
        number, urgent_ns = segment.position.number, segment.urgent_ns

        def safe() -> None:
            segment.partly_safe = False
            self._safe(0 if segment.waiters else urgent_ns)
            if self._segments.closed:
                self.schedule_commit()

        grown = journaling.close(opened, number, segment.blocks, safe)
        if grown is not None:
            segment.journaled = segment.complete = segment.partly_safe = True
            self._unflushed.append(_SafeCommit([waiter for waiter in segment.waiters if not waiter[3]], grown))
            segment.waiters = [waiter for waiter in segment.waiters if waiter[3]]
            if not journaling.journal.sync:
                # This may be in the middle of a decision of a stream, which its readers must not interrupt.
                self._loop.call_soon(safe)

    def _leave_out(self, owner: BlockOwner, error: Exception) -> None:
        """Call ``_set_offline`` for an owner whose part of the open segment cannot be stored."""
        self._set_offline(owner, self._segments.next.number, error)

    def _set_offline(self, owner: BlockOwner, number: int, error: Exception) -> None:
        """Store nothing of ``owner`` from segment ``number`` on, and drop the calls that depend on it.

        Raises: ``error`` if the log cannot continue without the owner.
        """
        stream_id = owner.stream_id
        first = stream_id not in self._failed
        if first:
            owner.failed(error)
            self._failed.add(stream_id)
        # An earlier segment may fail after a later one was closed: segments are encoded while later ones are closed.
        number = self._putter.leave_out(stream_id, number)
        if self._journaling is not None and (self._journaling.has(stream_id) or any(
                segment.journaled and segment.position.number >= number for segment in self._segments)):
            # The journal may have messages of the stream that were acknowledged. The next owner stores them.
            self.fail(error)
            return
        self._open.lazy.pop(stream_id, None)
        for segment in self._segments:
            if segment.position.number >= number:
                segment.waiters = self._waiters.without(segment.waiters, owner)
        self._waiters.withdraw(owner)
        if first:
            _log.error("a block of stream %016x cannot be stored in segment %d; the stream is offline, others continue",
                       stream_id, number, exc_info=error)

    # Putting a segment.

    def _begin(self, segment: Segment) -> None:
        segment.stored_before = self.state.position.number
        task = self._loop.create_task(self._write(segment), name=f"commit {segment.position}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _write(self, segment: Segment) -> None:
        try:
            await self._putter.seal(segment)
            proved_ns = await self._putter.put(segment)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            if not isinstance(error, Fenced):
                _log.error("the log stops at %s: %s", segment.position, error)
            self.fail(error)
            return
        for block, failure in segment.failures:
            self._set_offline(block.owner, segment.position.number, failure)
        self._segments.mark_stored(segment, proved_ns)
        if self._lease.renew(self._segments.in_flight):
            self._loop.call_soon(self._lease_renewed)
        self._schedule.record_put(len(segment.sealed), self._clock.monotonic_ns() - segment.began_ns)
        try:
            for persisted in self._segments.pop_persisted():
                self._persist(persisted)
        except Exception as error:
            _log.exception("applying a segment failed")
            self.fail(error)
            return
        self._commit_due()

    def _encoded(self) -> None:
        if self._open.urgent:
            self.schedule_commit()

    # After a segment is persisted.

    def _persist(self, segment: Segment) -> None:
        segment.apply_to(self.state)
        self._segments.raw_bytes -= segment.raw_bytes
        if self._journaling is not None:
            self._journaling.persisted(segment.position.number, segment.complete)
        for listener in self._listeners:
            listener.segment_applied(segment)
        for block in segment.sealed:
            try:
                block.owner.persisted(block)
            except Exception as error:
                # The block is stored, so its waiters may be answered. But the stream's memory may be inconsistent.
                self._set_offline(block.owner, segment.position.number + 1, error)
        self._waiters.make_due(segment.waiters)
        if not self._answering:
            self._answer()
        for listener in self._listeners:
            listener.segment_persisted(segment)
        segment.data = None

    def _answer(self) -> None:
        """Make calls whose segment is persisted: some now, the others in later turns of the loop."""
        self._answering = False
        waiters = self._waiters
        if waiters.due and self.lease_expired:
            # The put is stored, but it began too long ago to prove the lease: the process was suspended meanwhile. Its
            # decisions since it resumed may depend on a state that another owner has changed.
            due = list(waiters.due)
            waiters.due.clear()
            later = next(iter(self._segments), None)
            if later is not None:
                later.waiters[:0] = due
            elif self.failure is None:
                self._ask_for_proof(due)
        else:
            waiters.answer_some()
            if waiters.due:
                self._answering = True
                self._loop.call_soon(self._answer)
        if self.tail_bytes + waiters.bytes <= self.tail_bytes_max * 3 // 4:
            self._wake_for_room()

    def _lease_renewed(self) -> None:
        for listener in self._listeners:
            listener.lease_renewed()

    def fail(self, error: BaseException, notify: bool = True) -> None:
        """Stop for good: the rest of the tail is never persisted, and its pending calls are never made."""
        if self.failure is not None:
            return
        self.failure = error
        self.stop()
        if not self.lease_expired:
            self._waiters.answer_all()
        self._waiters.due.clear()
        for task in self._tasks:
            if task is not asyncio.current_task():
                task.cancel()
        self._waiters.pop_calls()
        self._unflushed.clear()
        self._room.clear()
        self._segments.clear()
        for future in self._futures:
            if not future.done():
                future.set_exception(error)
        if notify:
            for listener in self._listeners:
                listener.log_failed(error)
