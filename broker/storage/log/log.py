"""The log of one shard: gathers blocks into segments, puts them in order, and replies once they are persisted.

    urgent() ───┐                          ┌─ sealing(block) of each owner with changes
    full ───────┼─> _commit_due ──> _cut ──┤
    1 s lazy ───┘       │                  └─ position fixed, the next open segment begins
                        └──> _write: seal_block on the loop, encode, put until it is stored ──┐
         n persisted only after n-1 is  <── in log order: apply, owners' persisted, waiters ──┘

Owns the order of everything that depends on a commit. Does not own when a commit begins (``commit_schedule``), the
order of segments (``segment_queue``), the contents of blocks (their owners), the commits in a journal
(``journaled_log``), nor the ownership of the shard (``cluster``). The epoch is passed in. A process that has lost the
shard learns it here: its next put finds a seal under its key.

A closed segment is put until it is stored. The attempts end early only if its key holds a seal or another writer's
object, or if the log is closed. Its bytes and key are fixed before the first put and are the same in each attempt.

A stream that cannot give its outcome, or whose block cannot be encoded, goes offline alone: nothing of it is stored or
answered from that segment on. Other streams continue; a restart recovers this stream as of its last stored block.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Any, ClassVar

from broker.base.clock import Clock
from broker.storage.format.header import Position
from broker.storage.format.records.adoption import Adopted
from broker.storage.log.commit_schedule import BLOCKS_MANY, BYTES_MANY, Action, CommitSchedule, Facts
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


class Log:
    """The log of one shard, each commit of which is a segment.

    All methods are synchronous, except ``persisted``, ``safe``, ``wipe_journal``, ``drain`` and ``close``.
    """

    _safe_is_persisted: ClassVar[bool] = True
    """True if what is sequenced survives a kill only once its segment is persisted."""

    def __init__(self, store: ObjectStore, key_of: Callable[[Position], str], epoch: int, nonce: bytes,
                 state: ShardState, clock: Clock, rng: random.Random, settings: LogSettings | None = None, *,
                 executor: Executor | None = None, began_ns: int | None = None,
                 clock_trusted: Callable[[], bool] = lambda: True) -> None:
        """Continue the log after ``state.position``, which is the opening of ``epoch`` or a later segment of it.

        Args: key_of returns a segment's key. executor encodes large segments; None: the loop encodes all of them.
            began_ns is when, by the outside clock, the put of the opening began: the lease counts from then.
            clock_trusted returns False while streams must not let messages expire (see ``clock.GuardedClock``).
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
                                            or self._commits_beside_puts()):
            self.schedule_commit()

    def _commits_beside_puts(self) -> bool:
        """Return whether the open segment may be committed now, whatever is in flight."""
        return False

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
        """Add a safe call for the open segment, if it has anything that is not safe; return whether it has.

        Later calls may join ``batch``, the argument of the call, until the segment is closed or committed to the
        journal. Either may happen in this call: a large message fills a segment.
        """
        if not self._has_unsafe() or (of is not None and of.stream_id in self._failed):
            return False
        self._waiters.append((fn, args, of, self._safe_is_persisted))
        self._waiters.hold(args)
        if batch is not None:
            self._waiters.begin_batch(fn, batch)
        self._make_urgent()
        return True

    def _has_unsafe(self) -> bool:
        """Return whether the open segment has anything that is not safe."""
        return self._open.has_content

    def _make_urgent(self) -> None:
        """Make the open segment urgent for a call that waits for it. It is already, unless a journal has some of it."""

    def _wait_for_earlier(self, fn: Callable[..., object], args: tuple[Any, ...], of: BlockOwner | None) -> None:
        """Add a safe call that depends only on earlier segments and commits, or make it."""
        self.wait(fn, *args, of=of)

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
        """Overwrite the commits in the journal, if there is one: all of them are in segments then. Raises: as
        ``persisted``."""

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

    async def close(self) -> bool:
        """Stop, and cancel the puts in flight: each of them may be stored, even later. Returns: whether everything
        sequenced is persisted."""
        self.stop()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        drained = self.idle and self.failure is None and not self._open.has_content
        if self.failure is None:
            self.fail(Fenced("the log was closed"), notify=False)
        return drained

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
        self._timers.clear_soon()
        if not self._stopped and self.failure is None:
            self._follow_schedule()

    def _follow_schedule(self) -> None:
        """Take the schedule's steps until its decision is to wait."""
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
        self._segment_closed(opened, self._segments.close(blocks, waiters, urgent_ns))

    def _segment_closed(self, opened: OpenSegment, segment: Segment) -> None:
        """Note that ``opened`` was closed and is ``segment`` now."""

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
        if self._may_be_journaled(stream_id, number):
            # Messages of the stream may have been acknowledged. The next owner stores them.
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

    def _may_be_journaled(self, stream_id: int, number: int) -> bool:
        """Return whether a journal may have something of the stream in segment ``number`` or a later one."""
        return False

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
        self._room.clear()
        self._segments.clear()
        for future in self._futures:
            if not future.done():
                future.set_exception(error)
        if notify:
            for listener in self._listeners:
                listener.log_failed(error)
