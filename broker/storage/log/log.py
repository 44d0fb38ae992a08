"""One shard's log, as its owner writes it: gathers blocks into segments, puts them in order, answers when they persist.

    urgent() ──┐                   ┌─ sealing(block) of each owner that has something to say
    full ──────┼─> pump ──> cut ───┤
    1 s lazy ──┘     │             └─ position fixed, the next open segment begins
                     └──> write: seal_block on the loop, encode, put until it landed ──┐
         n persisted only when n-1 is  <── in log order: apply, owners' persisted, waiters ┘

Owns the order of everything that depends on a commit. Does not own what blocks say (their owners), nor who owns the
shard (``cluster``): an epoch is passed in, and whoever loses it learns so here, by a seal in the slot of one of his
own puts.

    persisted position < every position in flight < every closed segment < the open one
    a put begins when fewer than W segments are unpersisted, and either none is, or the segment is full, or
    commit_interval > 0 has passed since the last began, whose bytes are there and whose blocks are few; full ones
    excepted, never sooner than that after the last began

What is sequenced is put until it lands: a put has no final failure but being fenced. A segment's bytes and key are
fixed before its first put and the same in each try.

A stream that cannot say how it stands, or whose block cannot be encoded, is the only one that goes off line: from that
segment on nothing of it is stored, and nothing that it promised is told. The others' blocks and answers go on; a restart
finds the stream as its last good block left it.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, Protocol

from broker.clock import Clock
from broker.storage.format.block import Outcome
from broker.storage.format.header import Position
from broker.storage.log.putter import Putter, Segment, Waiter
from broker.storage.log.settings import LogSettings
from broker.storage.log.writer import OpenBlock, SealedBlock, Tally
from broker.storage.objectstore.base import ObjectStore, StoreError
from broker.storage.put import Fenced
from broker.storage.state.applied import ShardState

__all__ = ["BlockOwner", "Log", "LogSettings", "Segment", "ShardOwner", "resolve"]

_log = logging.getLogger(__name__)

_WAITER_BYTES = 400
"""What a call that waits for a commit holds in memory, beside the bytes that it is given."""

_ITEM_BYTES = 50
"""The same of each item that was gathered."""

_MANY_BLOCKS = 256
"""With so many blocks a segment's cost is theirs, whatever they hold: the next one waits until it has landed, and shares
that cost among more messages. A thousand streams in turn were 30 to 50 % faster so than with puts side by side."""

_MESSAGES_A_BLOCK = 8
"""Of so many, a block's cost is no longer most of theirs."""

_PAUSE_NS = 2_000_000
"""Publishers that brought nothing for so long wait for us, we no longer for them."""


class BlockOwner(Protocol):
    """A live stream, seen from the log. Both calls are synchronous."""

    @property
    def stream_id(self) -> int: ...

    def sealing(self, block: OpenBlock[Any]) -> None:
        """The segment closes: set ``block.outcome`` as of everything sequenced so far, add lazy records."""

    def persisted(self, block: SealedBlock[Any]) -> None:
        """``block`` is in the store and in the applied state; waiters run after all owners of the segment know."""

    def failed(self, error: Exception) -> None:
        """Nothing of this stream is stored any more, from a block on that was sequenced and not persisted. Called once;
        it may be in the middle of a decision, so change nothing but what keeps others out."""

    def withdrawn(self, fn: Callable[..., object], items: list[Any]) -> list[Any]:
        """``items`` that ``fn`` was to be called with (see ``Log.wait_batched``), without those about this stream."""


class ShardOwner:
    """Owner of the shard's own block, stream 0: openings and what is let go."""

    stream_id = 0

    def __init__(self) -> None:
        self.on_persisted: Callable[[SealedBlock[Any]], None] | None = None

    def sealing(self, block: OpenBlock[Any]) -> None:
        block.outcome = Outcome()

    def persisted(self, block: SealedBlock[Any]) -> None:
        if self.on_persisted is not None:
            self.on_persisted(block)

    def failed(self, error: Exception) -> None:
        raise error

    def withdrawn(self, fn: Callable[..., object], items: list[Any]) -> list[Any]:
        return items


class _Gathered(list[Any]):
    """The items of several calls of ``Log.wait_batched``."""


class Log:
    """One shard's log. Everything but ``persisted``, ``drain`` and ``close`` is synchronous, on one event loop."""

    def __init__(self, store: ObjectStore, key_of: Callable[[Position], str], epoch: int, nonce: bytes,
                 state: ShardState, clock: Clock, rng: random.Random, settings: LogSettings | None = None, *,
                 executor: Executor | None = None, began_ns: int | None = None) -> None:
        """A log that goes on after ``state.position``, which is in ``epoch``: the opening, at least.

        Args: key_of gives a segment's key. executor encodes large segments; None: everything on the loop.
            began_ns is when, by the monotonic clock, the put of the opening began, from which the lease counts.
        """
        if state.position.epoch != epoch:
            raise ValueError(f"a log of epoch {epoch} cannot go on after {state.position}")
        self.store = store
        self.state = state
        self.epoch = epoch
        self.nonce = nonce
        self.settings = settings or LogSettings()
        self.tail_bytes_max = self.settings.tail_bytes_max
        self.failure: BaseException | None = None
        self.on_failure: Callable[[BaseException], None] | None = None
        """Called once, when the log is fenced or must stop; nothing that was not acknowledged by then ever will be."""
        self.on_persisted: Callable[[Segment], None] | None = None
        """Called after each segment's waiters: the checkpointer counts."""
        self.on_small_segment: Callable[[Position, bytes], object] = _nothing
        """Given each persisted segment that is mostly small blocks: whoever reads one of them finds it there."""
        self.commits_paused: Callable[[], bool] = _never
        """While it says so no put begins but what proves our life: checkpoints are too far behind. Call ``schedule_commit``
        when that ends."""
        self.on_lease_renewed: Callable[[], object] = _nothing
        """Called when a put has proved again that the shard is ours, after a time in which nothing was served."""
        self.clock_trusted: Callable[[], bool] = _always
        """While it says no, nothing is expired: see ``clock.GuardedClock``."""
        self.shard = ShardOwner()
        self._clock = clock
        self._putter = Putter(store, key_of, nonce, clock, rng, self.settings, executor, self._encoded,
                              self._take_off_line)
        self._next = state.position.number + 1
        self._blocks: dict[int, OpenBlock[Any]] = {}
        self._lazy: dict[int, BlockOwner] = {}
        self._waiters: list[Waiter] = []
        self._failed: set[int] = set()
        self._last: Segment | None = None
        self._futures: set[asyncio.Future[None]] = set()
        self._room: list[Callable[[], object]] = []
        self._closed: deque[Segment] = deque()
        self._in_flight: deque[Segment] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._open = Tally()
        self._gathers: Callable[[list[Any]], object] | None = None
        self._gathered: list[Any] = []
        self._grown = self._growing_ns = self._looked_ns = 0
        self._took_ns = 0
        self._cut_bytes = self._waiting_bytes = 0
        self._content = self._urgent = self._overdue = False
        self._stopped = False
        self._pumping: asyncio.Handle | None = None
        self._lazy_timer: asyncio.TimerHandle | None = None
        self._timer: asyncio.TimerHandle | None = None
        now_ns = clock.monotonic_ns()
        self._began_ns = now_ns - (1 << 62)
        self._leased_ns = now_ns if began_ns is None else began_ns
        self._loop = asyncio.get_running_loop()
        if self.settings.lease_ns is not None:
            self._arm(self._leased_ns + self.settings.lease_ns // 3 - now_ns)

    # What streams call.

    def block(self, owner: BlockOwner) -> OpenBlock[Any]:
        """This stream's block in the open segment. Ask for it before each addition: segments are cut in between."""
        block = self._blocks.get(owner.stream_id)
        if block is None:
            block = self._blocks[owner.stream_id] = OpenBlock(owner.stream_id, owner, self._open)
            if self._lazy_timer is None:
                self._arm_lazy()
        if self._pumping is None and self._full:
            self.schedule_commit()
        return block

    def urgent(self) -> None:
        """Someone waits for what is sequenced so far.

        Call it when your state is whole: at twice a segment's bound it cuts, and asks each owner for its outcome.
        """
        self._urgent = True
        if self._full:
            tally, settings = self._open, self.settings
            if (tally.bytes >= 2 * settings.segment_bytes or tally.count >= 2 * settings.segment_count
                    ) and self.failure is None:
                self._cut(False)
            self.schedule_commit()
        elif self._pumping is None and (not self._in_flight or self._closed or self.settings.commit_interval_ns):
            self.schedule_commit()

    def lazy(self, owner: BlockOwner) -> None:
        """``owner`` has news that nobody waits for: it is asked for it when the next segment closes, within 1 s."""
        self._lazy[owner.stream_id] = owner
        self._arm_lazy()

    def barrier(self, owner: BlockOwner | None = None) -> None:
        """Make lazy news urgent, of ``owner`` or of all; what ``wait`` is given next waits for it too."""
        if owner is None:
            pending = bool(self._lazy) or self._has_content()
        else:
            block = self._blocks.get(owner.stream_id)
            pending = owner.stream_id in self._lazy or (block is not None and not block.empty)
        if pending:
            self._content = True
            self.urgent()

    def wait(self, fn: Callable[..., object], *args: Any, of: BlockOwner | None = None) -> None:
        """Call ``fn(*args)`` once everything sequenced so far is persisted, in log order; at once when it already is.

        Past the lease it waits for a put that proves the shard ours, an empty segment's where there is nothing to say:
        what was decided on a state that another owner may have changed since is no answer. Lazy news counts as
        sequenced after ``barrier`` only. Once the log has failed ``fn`` is never called.

        Args: of is the stream that this speaks of: should it have to go off line, ``fn`` is not called either.
        """
        if of is not None and of.stream_id in self._failed:
            return
        if self._has_content():
            self._waiters.append((fn, args, of))
            self._gathers = None
        elif self._closed:
            self._closed[-1].waiters.append((fn, args, of))
        elif self._in_flight:
            self._in_flight[-1].waiters.append((fn, args, of))
        elif self.failure is not None:
            return
        elif self.lease_expired:
            self._ask_for_proof([(fn, args, of)])
        else:
            fn(*args)
            return
        self._waiting_bytes += _held_by(args)

    def wait_batched(self, fn: Callable[[list[Any]], object], *items: Any) -> None:
        """As ``wait``, for what costs less for many at once: calls with one ``fn`` and no ``wait`` in between are one.

        ``fn`` gets the items of all of them, one after another, in one list; owners know theirs (``withdrawn``).
        """
        if fn == self._gathers:
            self._gathered += items
            self._waiting_bytes += _ITEM_BYTES * len(items)
        else:
            gathered = _Gathered(items)
            self.wait(fn, gathered)
            if self._has_content():
                self._gathers, self._gathered = fn, gathered

    async def persisted(self) -> None:
        """Return once everything sequenced so far is persisted. Raises: Fenced, or whatever stopped the log."""
        if self.failure is not None:
            raise self.failure
        future: asyncio.Future[None] = self._loop.create_future()
        self._futures.add(future)
        try:
            self.wait(resolve, future)
            await future
        finally:
            self._futures.discard(future)

    @property
    def tail_bytes(self) -> int:
        """Raw bytes sequenced and not persisted."""
        return self._cut_bytes + self._open.bytes

    def room(self) -> bool:
        """Whether more may be sequenced: the tail, with all that waits for it, is below its bound and the log lives."""
        return (self._cut_bytes + self._open.bytes + self._waiting_bytes < self.tail_bytes_max and self.failure is None
                and not self._stopped)

    @property
    def waiting_bytes(self) -> int:
        """Bytes held by calls that wait for a commit: answers that took nothing into the tail, duplicates among them."""
        return self._waiting_bytes

    def when_room(self, fn: Callable[[], object]) -> None:
        """Call ``fn`` once there is room; at once when there is. Never after a failure."""
        if self.room():
            fn()
        else:
            self._room.append(fn)

    @property
    def lease_expired(self) -> bool:
        """Whether our last proof of owning the shard is too old to read, deliver or acknowledge on (S3 only)."""
        lease_ns = self.settings.lease_ns
        return lease_ns is not None and self._clock.monotonic_ns() - self._leased_ns > lease_ns

    @property
    def position(self) -> Position:
        """The last persisted position."""
        return self.state.position

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

        Drain first: what is still in the tail is dropped, its waiters never run.
        """
        self._stopped = True
        for timer in (self._pumping, self._lazy_timer, self._timer):
            if timer is not None:
                timer.cancel()
        return Position(self.epoch, self._next)

    async def close(self) -> None:
        """Stop, and end the puts under way: they may have landed, or may land yet."""
        self.stop()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self.failure is None:
            self.fail(Fenced("the log was closed"), tell=False)

    def schedule_commit(self) -> None:
        """Look for something to put once the present callback, and others that are ready, have run."""
        if self._pumping is None and not self._stopped:
            self._pumping = self._loop.call_soon(self._commit_due)

    # Gathering.

    @property
    def _full(self) -> bool:
        return self._open.bytes >= self.settings.segment_bytes or self._open.count >= self.settings.segment_count

    def _ask_for_proof(self, waiters: list[Waiter]) -> None:
        """Run ``waiters``, which come before all others, once a put has proved that the shard is ours."""
        self._waiters[:0] = waiters
        self._gathers = None
        self._content = self._urgent = True
        self.schedule_commit()

    def _has_content(self) -> bool:
        return self._content or self._open.bytes > 0 or self._open.count > 0

    def _arm_lazy(self) -> None:
        if self._lazy_timer is None and not self._stopped:
            self._lazy_timer = self._loop.call_later(self.settings.lazy_ns / 1e9, self._lazy_due)

    def _lazy_due(self) -> None:
        self._lazy_timer = None
        self._overdue = True
        self._commit_due()

    def _arm(self, delay_ns: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(max(0, delay_ns) / 1e9, self._timed)

    def _timed(self) -> None:
        self._timer = None
        self._commit_due()

    def _commit_due(self) -> None:
        """Cut and begin whatever the rules allow now; arm a timer for what they will allow later."""
        if self._pumping is not None:
            self._pumping.cancel()
            self._pumping = None
        if self._stopped or self.failure is not None:
            return
        settings = self.settings
        interval_ns = settings.commit_interval_ns
        now_ns = self._clock.monotonic_ns()
        wake_ns: int | None = None
        if self._full:
            self._cut(False)
        heartbeat_ns = settings.lease_ns // 3 if settings.lease_ns is not None else None
        while len(self._in_flight) < settings.puts_in_flight:
            beat = heartbeat_ns is not None and not self._in_flight and now_ns - self._began_ns >= heartbeat_ns
            if not beat and self.commits_paused():
                break
            if self._closed:
                self._begin(self._closed.popleft(), now_ns)
                continue
            due = beat or ((self._urgent or self._overdue) and (self._has_content() or bool(self._lazy)))
            if not due:
                break
            if now_ns - self._began_ns < interval_ns:
                wake_ns = self._began_ns + interval_ns
                break
            if self._in_flight and not (interval_ns and self._in_flight[-1].encoded
                                     and len(self._in_flight[-1].sealed) < _MANY_BLOCKS):
                break  # gather until it lands; with an interval and few blocks, until its bytes are there
            if not beat and self._grows(now_ns):
                wake_ns = now_ns + _PAUSE_NS
                break
            self._cut(beat)
            if not self._closed:
                break  # the lazy owners had nothing to say after all
        if self.failure is not None:
            return
        if settings.lease_ns is not None:
            beat_ns = max(self._began_ns, now_ns - settings.lease_ns) + settings.lease_ns // 3
            wake_ns = beat_ns if wake_ns is None else min(wake_ns, beat_ns)
            if wake_ns <= now_ns:  # it is due, but something in flight keeps it: landing pumps again
                wake_ns = now_ns + settings.lease_ns // 3
        if wake_ns is not None:
            self._arm(wake_ns - now_ns)

    def _grows(self, now_ns: int) -> bool:
        """Whether to wait a little, since many blocks of a few messages each are gathering, and more keep coming.

        No longer than the last such segment took to land: what a message waits at most doubles.
        """
        blocks, count = len(self._blocks), self._open.count
        if blocks < _MANY_BLOCKS or not count or count >= _MESSAGES_A_BLOCK * blocks:
            return False
        if not self._grown:
            self._growing_ns = now_ns
        elif now_ns - self._growing_ns >= self._took_ns:
            return False
        elif count == self._grown:
            return now_ns - self._looked_ns < _PAUSE_NS
        self._grown, self._looked_ns = count, now_ns
        return True

    def _cut(self, heartbeat: bool) -> None:
        """Close the open segment: owners say their last, the position is fixed.

        Nothing to say, no segment, but for a heartbeat, or where somebody waits for a proof that the shard is ours.
        """
        lazy, self._lazy = self._lazy, {}
        blocks = self._blocks
        for owner in lazy.values():
            if owner.stream_id not in blocks:
                blocks[owner.stream_id] = OpenBlock(owner.stream_id, owner, self._open)
        asked: set[int] = set(self._failed)
        while asking := [block for stream_id, block in blocks.items()
                         if stream_id not in asked and (stream_id in lazy or not block.empty)]:
            for block in asking:
                asked.add(block.stream_id)
                try:
                    block.owner.sealing(block)
                except Exception as error:
                    try:
                        self._take_off_line(block.owner, self._next, error)
                    except Exception:
                        _log.exception("sealing a segment failed")
                        self.fail(error)
                        return
        if self._lazy_timer is not None:
            self._lazy_timer.cancel()
            self._lazy_timer = None
        waiters, self._waiters = self._waiters, []
        self._blocks = {}
        self._open = Tally()
        self._gathers = None
        self._grown = 0
        self._content = self._urgent = self._overdue = False
        if self._lazy:
            self._arm_lazy()
        said = [block for block in blocks.values() if not block.empty]
        if self._failed:
            said = [block for block in said if block.stream_id not in self._failed]
        if not said and not heartbeat and not (waiters and self.lease_expired):
            for fn, args, of in waiters:
                self._waiting_bytes -= _held_by(args)
                self.wait(fn, *args, of=of)  # type: ignore[arg-type]
            return
        raw_bytes = sum(block.raw_bytes for block in said)
        self._cut_bytes += raw_bytes
        segment = Segment(Position(self.epoch, self._next), said, waiters, raw_bytes)
        if self._last is not None and not self._last.encoded:
            segment.before = self._last
        self._last = segment
        self._closed.append(segment)
        self._next += 1

    def _take_off_line(self, owner: BlockOwner, number: int, error: Exception) -> None:
        """Store nothing of ``owner`` from segment ``number`` on, and tell nothing that it promised since.

        Raises: ``error`` where nothing goes on without the owner.
        """
        stream_id = owner.stream_id
        if stream_id in self._failed:
            return
        owner.failed(error)
        self._failed.add(stream_id)
        self._putter.broken.setdefault(stream_id, number)
        self._lazy.pop(stream_id, None)
        for segment in (*self._in_flight, *self._closed):
            if segment.position.number >= number:
                segment.waiters = self._without(segment.waiters, owner)
        self._waiters = self._without(self._waiters, owner)
        self._gathers = None
        _log.error("a block of stream %016x cannot be stored in segment %d; it is off line, the others go on",
                   stream_id, number, exc_info=error)

    def _without(self, waiters: list[Waiter], owner: BlockOwner) -> list[Waiter]:
        """``waiters`` but those that speak of ``owner``."""
        kept: list[Waiter] = []
        for fn, args, of in waiters:
            held = _held_by(args)
            if of is not owner:
                if args and type(args[0]) is _Gathered:
                    args = (_Gathered(owner.withdrawn(fn, args[0])),)
                if not args or args[0] != []:
                    kept.append((fn, args, of))
                    held -= _held_by(args)
            self._waiting_bytes -= held
        return kept

    # Putting.

    def _begin(self, segment: Segment, now_ns: int) -> None:
        segment.began_ns = self._began_ns = now_ns
        self._in_flight.append(segment)
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
            self._take_off_line(block.owner, segment.position.number, failure)
        segment.landed = True
        if self._last is segment:
            self._last = None
        segment.proved_ns = proved_ns
        lease_expired = self.lease_expired
        for landed in self._in_flight:
            # Beyond one that has not landed may be beyond a seal: what lands there never existed, and proves nothing.
            if not landed.landed:
                break
            self._leased_ns = max(self._leased_ns, landed.proved_ns)
        if lease_expired and not self.lease_expired:
            self._loop.call_soon(self.on_lease_renewed)
        if len(segment.sealed) >= _MANY_BLOCKS:
            self._took_ns = self._clock.monotonic_ns() - segment.began_ns
        try:
            while self._in_flight and self._in_flight[0].landed:
                self._persist(self._in_flight.popleft())
        except Exception as error:
            _log.exception("applying a segment failed")
            self.fail(error)
            return
        self._commit_due()

    def _encoded(self) -> None:
        if self._urgent:
            self.schedule_commit()

    # Persisted.

    def _persist(self, segment: Segment) -> None:
        state = self.state
        state.apply_segment(segment.position)
        sealed = segment.sealed
        for block in sealed:
            if block.opened is not None:
                assert block.packed is not None
                state.apply_small(block.packed, block.opened.outcome)
            else:
                state.apply_block(block.core, block.ref)
        self._cut_bytes -= segment.raw_bytes
        if segment.whole is not None:
            self.on_small_segment(segment.position, segment.whole)
        for block in sealed:
            try:
                block.owner.persisted(block)
            except Exception as error:
                # It is stored, so what waits for it may be told; the stream in memory is not what it should be.
                self._take_off_line(block.owner, segment.position.number + 1, error)
        if segment.waiters and self.lease_expired:
            # The put landed, but it began too long ago to say whose the shard is now: a process that was stopped
            # meanwhile. What was decided since it woke would be answered from a state that may be another owner's.
            later = self._in_flight or self._closed
            if later:
                later[0].waiters[:0] = segment.waiters
            else:
                self._ask_for_proof(segment.waiters)
        else:
            self._answer(segment.waiters)
        if self._room and self.tail_bytes + self._waiting_bytes <= self.tail_bytes_max * 3 // 4:
            waiting, self._room = self._room, []
            for wake in waiting:
                wake()
        if self.on_persisted is not None:
            self.on_persisted(segment)

    def _answer(self, waiters: list[Waiter]) -> None:
        for fn, args, _ in waiters:
            self._waiting_bytes -= _held_by(args)
            try:
                fn(*args)
            except Exception as error:  # one reply that could not be made must not keep the others waiting
                self._loop.call_exception_handler({"message": "a reply that waited for a commit failed",
                                                   "exception": error})

    def fail(self, error: BaseException, tell: bool = True) -> None:
        """Stop for good: what is not persisted never is, waiters never run."""
        if self.failure is not None:
            return
        self.failure = error
        self.stop()
        for task in self._tasks:
            if task is not asyncio.current_task():
                task.cancel()
        self._waiters.clear()
        self._gathers = None
        self._room.clear()
        self._closed.clear()
        self._in_flight.clear()
        for future in self._futures:
            if not future.done():
                future.set_exception(error)
        if tell and self.on_failure is not None:
            self.on_failure(error)


def _held_by(args: tuple[Any, ...]) -> int:
    return _WAITER_BYTES + sum([len(arg) if type(arg) is bytes else _ITEM_BYTES * len(arg)
                                for arg in args if type(arg) is bytes or type(arg) is _Gathered])


def resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _never() -> bool:
    return False


def _always() -> bool:
    return True


def _nothing(*_: object) -> None:
    pass
