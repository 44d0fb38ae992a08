"""One shard's log, as its owner writes it: gathers blocks into segments, puts them in order, answers when they persist.

    urgent() ───┐                          ┌─ sealing(block) of each owner with changes
    full ───────┼─> _commit_due ──> _cut ──┤
    1 s lazy ───┘       │                  └─ position fixed, the next open segment begins
                        └──> _write: seal_block on the loop, encode, put until it landed ──┐
            n persisted only when n-1 is  <── in log order: apply, owners' persisted, waiters ┘

Owns the order of everything that depends on a commit. Does not own when one begins (``commit_schedule``), the order of
segments (``segment_queue``), what blocks say (their owners), nor the ownership of the shard (``cluster``): an epoch is passed
in, and an owner that loses it finds out here, from a seal in the slot of one of its own puts.

What is sequenced is put until it lands: only fencing ends the tries. A segment's bytes and key are fixed before its first
put and the same in each try.

A stream that cannot give its outcome, or whose block cannot be encoded, goes offline alone: nothing of it is stored or
answered from that segment on. Other streams go on; a restart finds this one as its last good block left it.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Any

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
from broker.storage.log.waiters import ITEM_BYTES, Batch, Waiter, Waiters
from broker.storage.objectstore.base import ObjectStore, StoreError, StoreFull
from broker.storage.objectstore.reserving import ROOMY, StoreRoom
from broker.storage.put import Fenced
from broker.storage.state.applied import ShardState

__all__ = ["Log", "resolve"]

_log = logging.getLogger(__name__)


class Log:
    """One shard's log. Everything but ``persisted``, ``drain`` and ``close`` is synchronous, on one event loop."""

    def __init__(self, store: ObjectStore, key_of: Callable[[Position], str], epoch: int, nonce: bytes,
                 state: ShardState, clock: Clock, rng: random.Random, settings: LogSettings | None = None, *,
                 executor: Executor | None = None, began_ns: int | None = None,
                 clock_trusted: Callable[[], bool] = lambda: True) -> None:
        """A log that goes on after ``state.position``, which is in ``epoch``: the opening, at least.

        Args: key_of gives a segment's key. executor encodes large segments; None: everything on the loop.
            began_ns is when, by the outside clock, the put of the opening began, from which the lease counts.
            clock_trusted: while false, streams let no message expire (see ``clock.GuardedClock``).
        """
        if state.position.epoch != epoch:
            raise ValueError(f"a log of epoch {epoch} cannot go on after {state.position}")
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
        """Whether the store has room; call ``store_room_changed`` when that changes."""

        self.store_filled = asyncio.Event()
        """Set while the store is full."""

        self._clock = clock
        self._putter = Putter(store, key_of, nonce, clock, rng, self.settings, executor, self._encoded,
                              self._take_offline)
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
        """Whether ``_answer`` goes on in a later turn of the loop."""
        self._timers = CommitTimers(self._commit_due, self._lazy_due, self.settings.lazy_ns)
        now_ns = clock.monotonic_ns()
        self._segments = SegmentQueue(state.position, now_ns - (1 << 62))
        outside_ns = clock.outside_ns()
        self._lease = Lease(self.settings.lease_ns, clock, outside_ns if began_ns is None else began_ns)
        self._loop = asyncio.get_running_loop()
        if (renew_at_ns := self._lease.renew_at_ns) is not None:
            self._timers.set_in(renew_at_ns - outside_ns)

    def listen(self, listener: LogListener) -> None:
        """Notify ``listener`` of what happens from now on, after earlier listeners."""
        self._listeners = (*self._listeners, listener)

    # What streams call.

    def block(self, owner: BlockOwner) -> OpenBlock[Any]:
        """This stream's block in the open segment. Ask for it before each addition: segments are cut in between."""
        block = self._open.blocks.get(owner.stream_id)
        if block is None:
            block = self._open.add_block(owner)
            self._timers.set_lazy()
        if self._timers.soon is None and self._open.full(self.settings):
            self.schedule_commit()
        return block

    def urgent(self) -> None:
        """Commit what is sequenced so far as soon as the schedule allows: something waits for it.

        Call it when the stream's state is consistent: at twice a segment's bounds it cuts, asking owners for outcomes.
        """
        opened, settings = self._open, self.settings
        if not opened.urgent:
            opened.urgent, opened.urgent_ns = True, self._clock.monotonic_ns()
        # Not opened.full(): this is called for every publish.
        if opened.tally.bytes >= settings.segment_bytes or opened.tally.count >= settings.segment_count:
            if opened.full(settings, 2) and self.failure is None:
                self._cut(False)
            self.schedule_commit()
        elif self._timers.soon is None and (not self._segments.in_flight or self._segments.closed
                                            or settings.commit_interval_ns or opened.tally.bytes >= BYTES_MANY):
            self.schedule_commit()

    def lazy(self, owner: BlockOwner) -> None:
        """``owner`` has news that nothing waits for: it is asked when the next segment closes, within ``lazy_ns``."""
        self._open.lazy[owner.stream_id] = owner
        self._timers.set_lazy()

    def barrier(self, owner: BlockOwner | None = None) -> None:
        """Make lazy news urgent, of ``owner`` or of all; what ``wait`` is given next waits for it too."""
        if self._open.has_changes(owner):
            self._open.content = True
            self.urgent()

    def wait(self, fn: Callable[..., object], *args: Any, of: BlockOwner | None = None) -> None:
        """Call ``fn(*args)`` once everything sequenced so far is persisted, in log order; at once when it already is.

        Past the lease it waits for a put that renews it, of an empty segment if necessary: what was decided on a state
        that another owner may have changed since is no answer. Lazy news counts as sequenced only after ``barrier``.
        Once the log has failed ``fn`` is never called.

        Args: of is the stream that the call is about: if it goes offline, ``fn`` is not called either.
        """
        if of is not None and of.stream_id in self._failed:
            return
        waiter: Waiter = (fn, args, of)
        if self._open.has_content:
            self._waiters.append(waiter)
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

    def wait_batched(self, fn: Callable[[list[Any]], object], *items: Any) -> None:
        """As ``wait``, for what costs less for many at once: calls with one ``fn`` and no ``wait`` in between are one.

        ``fn`` gets the items of all of them, one after another, in one list; owners know theirs (``withdrawn``).
        """
        waiters = self._waiters
        if fn == waiters.batch_fn:  # as waiters.begin_batch left it: this is called for every publish
            waiters.batch += items
            waiters.bytes += ITEM_BYTES * len(items)
        else:
            batch = Batch(items)
            self.wait(fn, batch)
            if self._open.has_content:
                waiters.begin_batch(fn, batch)

    async def persisted(self) -> None:
        """Return once everything sequenced so far is persisted. Raises: Fenced, or whatever stopped the log."""
        if self.failure is not None:
            raise self.failure
        future: asyncio.Future[None] = self._loop.create_future()
        self._futures[future] = None
        try:
            self.wait(resolve, future)
            await future
        finally:
            del self._futures[future]

    @property
    def tail_bytes(self) -> int:
        """Raw bytes sequenced and not persisted."""
        return self._segments.raw_bytes + self._open.tally.bytes

    def room(self) -> bool:
        """Whether more may be sequenced: the tail, with all that waits for it, is below its bound, the store has room for the
        tail, and the log has not ended."""
        room = self.store_room
        tail_bytes = self._segments.raw_bytes + self._open.tally.bytes
        return (room.full is None and tail_bytes < room.bytes_free and tail_bytes + self._waiters.bytes < self.tail_bytes_max
                and self.failure is None and not self._stopped)

    @property
    def full(self) -> bool:
        """Whether the store has no room for messages: publishes are refused, and all else goes on."""
        return self.store_room.full is not None

    @property
    def stuck(self) -> bool:
        """Whether the store has no room for what is sequenced already, not even in its reserve: nothing is answered until
        it has."""
        return isinstance(self._putter.error, StoreFull)

    def store_room_changed(self) -> None:
        """The store is full, or no longer."""
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
        """Bytes held by calls that wait for a commit, also of those that added nothing to the tail, such as duplicates."""
        return self._waiters.bytes

    def when_room(self, fn: Callable[[], object]) -> None:
        """Call ``fn`` once there is room; at once when there is. Never after a failure."""
        if self.room():
            fn()
        else:
            self._room.append(fn)

    @property
    def lease_expired(self) -> bool:
        """Whether our last proof of owning the shard is too old to read, deliver or acknowledge by (S3 only)."""
        return self._lease.expired

    def lease_held(self) -> bool:
        """Whether the shard may be read now. If not, a put that renews the lease is asked for, unless one is in progress."""
        if not self.lease_expired:
            return True
        if self._segments.newest is None and not self._open.has_content:
            self._ask_for_proof([])
        return False

    @property
    def position(self) -> Position:
        """The last persisted position."""
        return self.state.position

    @property
    def idle(self) -> bool:
        """Whether all segments have landed."""
        return self._segments.newest is None

    @property
    def store_error(self) -> StoreError | None:
        """Why the oldest put has not landed yet; None when the store is well."""
        return self._putter.error

    @property
    def commit_count(self) -> int:
        """Segments put so far."""
        return self._putter.count

    @property
    def commit_bytes(self) -> int:
        """Their bytes."""
        return self._putter.bytes

    # What the shard calls.

    async def drain(self) -> None:
        """Persist all there is, lazy news too. Raises: as ``persisted``."""
        self.barrier()
        await self.persisted()

    def stop(self) -> Position:
        """Begin no further segment; returns the first number that was never used, for the seal.

        Drain first: what is still in the tail is dropped, and its waiters never run.
        """
        self._stopped = True
        self._timers.stop()
        return self._segments.next

    async def close(self) -> None:
        """Stop, and cancel the puts under way: they may have landed, or may still land."""
        self.stop()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self.failure is None:
            self.fail(Fenced("the log was closed"), notify=False)

    def notify_adopted(self, adopted: Sequence[Adopted]) -> list[Adopted]:
        """Pass on which blocks took the places of others; returns those to be told of again."""
        return [one for listener in self._listeners for one in listener.blocks_adopted(adopted)]

    def schedule_commit(self) -> None:
        """Ask the schedule once the current callback, and others that are ready, have run."""
        self._timers.set_soon()

    # Gathering.

    def _ask_for_proof(self, waiters: list[Waiter]) -> None:
        """Run ``waiters``, before all others, once a put has renewed the lease."""
        self._waiters.prepend(waiters)
        self._open.content = self._open.urgent = True
        self.schedule_commit()

    def _lazy_due(self) -> None:
        self._open.overdue = True

    def _commit_due(self) -> None:
        """Take the steps that the schedule decides on, until it decides to wait."""
        self._timers.clear_soon()
        if self._stopped or self.failure is not None:
            return
        now_ns = self._clock.monotonic_ns()
        ask = True
        while True:
            action, until_ns = self._schedule.decide(self._facts(ask), now_ns)
            if action is Action.WAIT:
                break
            if action is Action.BEGIN:
                self._begin(self._segments.begin(now_ns))
                continue
            self._cut(action is Action.HEARTBEAT)
            if self.failure is not None:
                return
            ask = bool(self._segments.closed)  # otherwise the lazy owners had no changes after all
        if until_ns is not None:
            self._timers.set_in(until_ns - now_ns)

    def _facts(self, ask: bool) -> Facts:
        opened, segments = self._open, self._segments
        last = segments.in_flight[-1] if segments.in_flight else None
        return Facts(segments.began_ns, len(segments.in_flight),
                     last is not None and last.encoded and len(last.sealed) < BLOCKS_MANY, bool(segments.closed),
                     opened.full(self.settings), ask and opened.asked,
                     any(listener.commits_paused() for listener in self._listeners), len(opened.blocks),
                     opened.tally.count, opened.tally.bytes)

    def _cut(self, heartbeat: bool) -> None:
        """Close the open segment: owners give their outcomes, and the position is fixed.

        Without anything to store there is no segment, except for a heartbeat or where calls wait for a proof of the lease.
        """
        try:
            said = self._open.finish(self._failed, lambda owner, error: self._take_offline(
                owner, self._segments.next.number, error))
        except Exception as error:
            _log.exception("sealing a segment failed")
            self.fail(error)
            return
        self._timers.clear_lazy()
        waiters = self._waiters.take()
        urgent_ns = self._open.urgent_ns
        self._open = OpenSegment(self._open.lazy)
        self._schedule.segment_closed()
        if self._open.lazy:
            self._timers.set_lazy()
        if not said and not heartbeat and not self.lease_expired:
            for fn, args, of in waiters:
                self._waiters.release(args)
                self.wait(fn, *args, of=of)
            return
        self._segments.close(said, waiters, urgent_ns)

    def _take_offline(self, owner: BlockOwner, number: int, error: Exception) -> None:
        """Store nothing of ``owner`` from segment ``number`` on, and answer nothing that depends on it since.

        Raises: ``error`` where the log cannot go on without the owner.
        """
        stream_id = owner.stream_id
        first = stream_id not in self._failed
        if first:
            owner.failed(error)
            self._failed.add(stream_id)
        # An earlier segment may fail later: it is encoded and put while the next ones are cut.
        number = self._putter.leave_out(stream_id, number)
        self._open.lazy.pop(stream_id, None)
        for segment in self._segments:
            if segment.position.number >= number:
                segment.waiters = self._waiters.without(segment.waiters, owner)
        self._waiters.withdraw(owner)
        if first:
            _log.error("a block of stream %016x cannot be stored in segment %d; it is offline, the others go on",
                       stream_id, number, exc_info=error)

    # Putting.

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
            self._take_offline(block.owner, segment.position.number, failure)
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

    # Persisted.

    def _persist(self, segment: Segment) -> None:
        segment.apply_to(self.state)
        self._segments.raw_bytes -= segment.raw_bytes
        for listener in self._listeners:
            listener.segment_applied(segment)
        for block in segment.sealed:
            try:
                block.owner.persisted(block)
            except Exception as error:
                # It is stored, so its waiters may be answered; but the stream in memory is not what it should be.
                self._take_offline(block.owner, segment.position.number + 1, error)
        self._waiters.persisted(segment.waiters)
        if not self._answering:
            self._answer()
        for listener in self._listeners:
            listener.segment_persisted(segment)
        segment.data = None

    def _answer(self) -> None:
        """Make calls whose segment is persisted: some now, and the others in later turns of the loop."""
        self._answering = False
        waiters = self._waiters
        if waiters.due and self.lease_expired:
            # The put landed, but it began too long ago to prove the lease: the process was suspended meanwhile. What
            # it decided since it resumed may rest on a state that another owner has changed.
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
        """Stop for good: what is not persisted never will be, and its waiters never run."""
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
        self._waiters.take()
        self._room.clear()
        self._segments.clear()
        for future in self._futures:
            if not future.done():
                future.set_exception(error)
        if notify:
            for listener in self._listeners:
                listener.log_failed(error)


def resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
