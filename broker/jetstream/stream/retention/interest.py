"""What the consumers of a stream still wait for, where that decides what the stream keeps.

Owns: which messages of an interest stream or a work queue no consumer waits for any more, and removing them.
Does not own: what a consumer waits for (its ack state, asked through ``Listeners``), nor how messages leave (retention).

    retention   a publish is stored         a message leaves
    limits      always                      never because of consumers
    workqueue   always                      once it is acked
    interest    if some consumer gets it    once it is acked, or its last consumer leaves or changes its filters

There are no counts by message: consumers are asked whether they wait for a sequence, and their own state is bounded by
what they have delivered and not seen acked. One that waits for what another has acked is asked first the next time.

    ack ──> acked ──┬─ the heads are in memory: the message leaves at once, and ack and removal are stored in one block
                    └─ otherwise: it leaves once the head has been loaded, and then the ack is answered

When consumers leave, a *sweep* over the stream looks for messages that no one waits for any more. Where unfinished work
begins is stored in the stream's extra members (``sweep``, ``leaving``) until all of it is done: of sweeps, and of acked
messages whose heads are being loaded. A restart sweeps from there on, so no crash leaves behind a message that is acked and
not removed.
The other order is harmless: no consumer waits for what has been removed.

Source: nats-server, server/stream.go: ackMsg, checkForInterestWithSubject; server/consumer.go: needAck,
cleanupNoInterestMessages, checkStateForInterestStream.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from contextlib import aclosing
from itertools import islice
from operator import lt
from typing import TYPE_CHECKING, Any

from broker.base.backoff import Backoff
from broker.jetstream.filters import Filters, filters_of
from broker.jetstream.stream.state.decision import decide
from broker.jetstream.stream.state.heads import blocks_from
from broker.jetstream.stream.state.rows import NotLoaded
from broker.storage.format.errors import FormatError
from broker.storage.objectstore.base import NotFound, StoreError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from broker.jetstream.config.stream import StreamConfig
    from broker.jetstream.stream.retention.retention import Retention
    from broker.jetstream.stream.shared.listeners import Listener
    from broker.jetstream.stream.shared.stream_parts import StreamParts
    from broker.jetstream.stream.state.block import LiveBlock
    from broker.jetstream.stream.state.rows import Rows

__all__ = ["Interest"]

SWEEP = "sweep"
"""The extra member of an interest stream that says where unfinished work begins, and what kind of sweep does it."""

LEAVING = "leaving"
"""The same for a work queue. Earlier releases, whose sweeps would empty one that has no consumers, pass over this one."""

_ROWS_AT_ONCE = 2000
"""Messages a sweep looks at in one turn of the loop: about 2 ms."""

_REMEMBERED_MAX = 65_536
"""Subjects whose wanted is remembered."""

_RETRY_SECONDS = 1.0
_RETRY_SECONDS_MAX = 30.0


class Interest:
    """The interest of one stream's consumers. ``configure`` follows each change of its configuration, ``changed`` each change
    of its consumers.

    Attributes: ``active``: acks remove messages; ``selective``: only what some consumer gets is stored; ``moved``: whether
        ``pop_changes`` may have something to return.
    """

    def __init__(self, parts: StreamParts, retention: Retention) -> None:
        self._parts = parts
        self._retention = retention
        self._live, self._heads, self._log, self._tasks = parts.live, parts.heads, parts.log, parts.tasks
        self._listeners = parts.listeners
        self.active = False
        self.selective = False
        self._unknown = False
        self._subjects: frozenset[str] = frozenset()
        self._filtered: list[tuple[Listener, Filters | None]] | None = None
        """The consumers with their filters (None: all that the stream gets); None: not asked yet."""
        # There may be ten thousand streams, most of which need none of these.
        self._filters: dict[tuple[str, ...], Filters] | None = None
        self._wanted_by_subject: dict[bytes, bool] | None = None
        self._waiting: dict[int, None] | None = None
        """Acked sequences whose heads have to be loaded first, for the task to take up next."""
        self._removal: asyncio.Future[None] | None = None
        """Done once those have been removed."""
        self._loading = False
        self._leaving_seq = 0
        """The lowest of all acked sequences since something had to be loaded; 0: nothing has."""
        self._joining_seq = 0
        """The first sequence of messages that join, of which no consumer may get some."""
        self._sweeps: list[tuple[int, bool]] | None = None
        self.moved = False
        self._stored: list[Any] | None = None
        """``sweep`` as the store has it, or is to have it."""
        self._working: tuple[asyncio.Task[None], ...] = ()

    def configure(self, config: StreamConfig) -> None:
        """Follow ``config``; what a change from limits to interest removes is left to ``sweep``."""
        self.active = config.retention != "limits"
        self.selective = config.retention == "interest"
        self._subjects = frozenset(config.subjects) if self.active else frozenset()
        self.changed()

    def changed(self) -> None:
        """A consumer came or went, or changed its filters."""
        self._filtered = self._wanted_by_subject = None

    def keep_all(self) -> None:
        """There is a consumer that cannot be served and may wait for anything: keep all."""
        self._unknown = True

    async def finished(self) -> None:
        """Return once all messages that nobody waits for now have been removed."""
        while working := [task for task in self._working if not task.done()]:
            await asyncio.wait(working)

    # --- publishing ---------------------------------------------------------------------------------------------------

    def wants(self, subject: bytes) -> bool:
        """Whether a message of this subject is to be stored."""
        if not self.selective:
            return True
        wanted_by_subject = self._wanted_by_subject
        if wanted_by_subject is None or len(wanted_by_subject) > _REMEMBERED_MAX:
            wanted_by_subject = self._wanted_by_subject = {}
        wanted = wanted_by_subject.get(subject)
        if wanted is None:
            wanted = wanted_by_subject[subject] = self._unknown or any(
                filters is None or filters.decide(subject) for _, filters in self._filtered_listeners())
        return wanted

    def wants_all(self, subjects: Iterable[bytes]) -> bool:
        """Whether all messages of a run are to be stored."""
        return not self.selective or all(map(self.wants, subjects))

    def _start(self, work: Coroutine[Any, Any, None], what: str) -> asyncio.Task[None]:
        task = self._tasks.start(work, what)
        self._working = (*(one for one in self._working if not one.done()), task)
        return task

    def drop_unwanted(self, first_seq: int) -> None:
        """Take out what is stored from ``first_seq`` on and no consumer gets: messages of a batch, which are stored together."""
        if self.selective:
            self.acked(range(first_seq, self._live.last_seq + 1))

    # --- acks ---------------------------------------------------------------------------------------------------------

    def acked(self, seqs: Sequence[int]) -> asyncio.Future[None] | None:
        """A consumer no longer waits for ``seqs``: remove those that nobody waits for.

        Returns: None when that is done; otherwise a future that completes then, and after all that were returned before.
        """
        if not self.active or self._unknown or not seqs:
            return None
        if not _rising(seqs):
            seqs = sorted(set(seqs))
        try:
            left = self._remove_unwaited(seqs)
        except NotLoaded:  # the stream's blocks
            left = seqs
        if not left:
            return None
        if self._waiting is None:
            self._waiting = {}
        self._waiting.update(dict.fromkeys(left))
        if not 0 < self._leaving_seq <= left[0]:
            self._leaving_seq = left[0]
            self._mark_moved()
        if self._removal is None:
            self._removal = asyncio.get_running_loop().create_future()
        if not self._loading:
            self._loading = True
            self._start(self._load(), "acked messages")
        return self._removal

    def acked_from(self, seq: int) -> asyncio.Future[None] | None:
        """``acked``, for more messages than are to be named one by one: look at all from ``seq`` on, in slices."""
        return self.sweep(seq, acked=True) if self.active and not self._unknown else None

    def _remove_unwaited(self, seqs: Sequence[int]) -> Sequence[int]:
        """Take out those of ``seqs``, rising, that nobody waits for. Returns: those that need heads which are not in memory.

        Raises: NotLoaded, and nothing has changed.
        """
        live = self._live
        live.ensure_blocks()
        for listener, filters in self._filtered_listeners():
            if filters is None and (waits := listener.waits_for(seqs)):
                seqs = _without(seqs, waits)
                if not seqs:
                    self._check_first(listener)
                    return ()
        left: list[int] = []
        at, count = 0, len(seqs)
        while at < count:
            block = self._block_at(seqs[at])
            if block is None:
                at += 1
                continue
            end = at + 1
            while end < count and seqs[end] <= block.last_seq:
                end += 1
            part = seqs[at:end]
            at = end
            rows = live.resident(block)
            if rows is None:
                left += part
            elif part := self._unwaited(block, rows, self._alive(block, rows, part)):
                self._retention.remove_unneeded(block, part, rows)
        return left

    def _block_at(self, seq: int) -> LiveBlock | None:
        live = self._live
        i = live.index_at(seq)
        if i == len(live.blocks) or live.blocks[i].first_seq > seq:
            return None
        return live.blocks[i]

    def _alive(self, block: LiveBlock, rows: Rows, seqs: Sequence[int]) -> Sequence[int]:
        """Those of ``seqs``, within the range of ``block``, that are live messages."""
        live = self._live
        if seqs[-1] - seqs[0] + 1 == len(seqs):
            return live.live_seqs(block, rows, seqs[0], seqs[-1])
        return [seq for seq in seqs if live.is_live(block, seq) and (
            block.gapless or ((at := rows.ordinal_of(seq)) < block.count and rows.seq_of(at) == seq))]

    def _unwaited(self, block: LiveBlock, rows: Rows, seqs: Sequence[int]) -> Sequence[int]:
        """Those of ``seqs``, live messages of ``block``, that nobody waits for."""
        for listener, filters in self._filtered_listeners():
            if not seqs:
                break
            waits = listener.waits_for(seqs)
            if waits and filters is not None:
                match = filters.match
                if block.subjects is not None and not any(match(one[0]) for one in block.subjects):
                    continue
                waits = [seq for seq in waits if match(rows.subject_of(rows.ordinal_of(seq)))]
            if waits:
                seqs = _without(seqs, waits)
        return seqs

    def _filtered_listeners(self) -> list[tuple[Listener, Filters | None]]:
        filtered = self._filtered
        if filtered is None:
            filtered = self._filtered = [(listener, self._narrow(listener.filters))
                                       for listener in self._listeners.by_name.values()]
            used = {filters for _, filters in filtered if filters is not None}
            self._filters = {key: filters for key, filters in (self._filters or {}).items() if filters in used} or None
        return filtered

    def _narrow(self, subjects: Sequence[str]) -> Filters | None:
        """Filters that leave something of the stream out; None: there are none.

        Source: nats-server, server/consumer.go, isFiltered.
        """
        if not subjects or (len(subjects) == len(self._subjects) and self._subjects.issuperset(subjects)):
            return None
        if self._filters is None:
            self._filters = {}
        filters = self._filters.get(key := tuple(subjects))
        if filters is None:
            filters = self._filters[key] = filters_of(subjects)
        return None if filters.all else filters

    def _check_first(self, listener: Listener) -> None:
        """``listener`` waited for all that was asked: with many consumers that is usually the slowest one."""
        filtered = self._filtered_listeners()
        if filtered[0][0] is not listener:
            at = next(i for i, (one, _) in enumerate(filtered) if one is listener)
            filtered[0], filtered[at] = filtered[at], filtered[0]

    async def _load(self) -> None:
        """Load the heads of the messages in ``_waiting``, and remove them."""
        backoff = Backoff(_RETRY_SECONDS, _RETRY_SECONDS_MAX)
        while self._waiting:
            seqs: Sequence[int] = sorted(self._waiting)
            removal, self._removal, self._waiting = self._removal, None, None
            while seqs:
                try:
                    seqs = await self._load_first(seqs)
                    backoff.reset()
                except (StoreError, FormatError) as error:
                    if isinstance(error, (NotFound, FormatError)):
                        # What cannot be read cannot be removed either; the ack holds all the same.
                        self._tasks.warn("acked messages stay: %s", error)
                        seqs = seqs[1:]
                        continue
                    delay = backoff.next()
                    self._tasks.warn("acked messages stay for now, trying again in %g s: %s", delay, error)
                    await asyncio.sleep(delay)
            if removal is not None and not removal.done():
                removal.set_result(None)
        self._loading = False
        self._leaving_seq = 0
        self._mark_moved()

    async def _load_first(self, seqs: Sequence[int]) -> Sequence[int]:
        """Take out those of ``seqs`` in the first of their blocks; returns the others. Raises: StoreError; FormatError."""
        live = self._live
        await live.load_blocks()
        block = self._block_at(seqs[0])
        if block is None:
            return seqs[1:]
        rows = await self._heads.of(block)
        here = next((i for i, seq in enumerate(seqs) if seq > block.last_seq), len(seqs))
        if rows is not None and live.holds(block) and (
                part := self._unwaited(block, rows, self._alive(block, rows, seqs[:here]))):
            self._retention.remove_unneeded(block, part, rows)
            self._log.lazy(self._parts.stream)
        return seqs[here:]

    # --- sweeps -------------------------------------------------------------------------------------------------------

    def consumer_left(self, above_seq: int) -> asyncio.Task[None] | None:
        """A consumer, which waited for messages above ``above_seq`` at most, is gone or has other filters. Returns: the sweep
        that this calls for, which is under way, or None."""
        self.changed()
        return self.sweep(above_seq + 1) if self.selective else None

    def sweep(self, start: int, *, acked: bool = False) -> asyncio.Task[None] | None:
        """Look from ``start`` on for messages that nobody waits for any more, and remove them.

        Args: ``acked``: only what some consumer got, not what no consumer's filters match; without consumers all of an interest
            stream, and nothing of a work queue.
        Returns: the task that does it; None: there is nothing to do.
        """
        if not self._live.msgs:
            return None
        sweep = max(start, 1), acked
        if self._sweeps is None:
            self._sweeps = []
        self._sweeps.append(sweep)
        self._mark_moved()
        return self._start(self._sweep(sweep), "sweep of interest")

    def joining_record(self, start: int) -> dict[str, Any]:
        """What is to be recorded with messages from ``start`` on, which come without a look at who waits for them: ``joined``
        when they are there."""
        if not self.selective:
            return {}
        self._joining_seq = start
        self._stored = self._unfinished()
        return {SWEEP: self._stored}

    def joined(self, start: int) -> asyncio.Task[None] | None:
        """The messages from ``start`` on are there: remove those of them that no consumer gets. Returns: as ``sweep``."""
        sweep = self.sweep(start) if self.selective else None
        self._joining_seq = 0
        return sweep

    def resume(self, extra: Mapping[str, Any]) -> asyncio.Task[None] | None:
        """Do what a crash interrupted; ``extra`` has the extra members of the stream's records. Returns: as ``sweep``."""
        begun = extra.get(SWEEP)
        if not self.selective and isinstance(leaving := extra.get(LEAVING), int):
            begun = [leaving, True]
        if isinstance(begun, list) and len(begun) == 2 and isinstance(begun[0], int):
            self._stored = begun
            if self.active:
                return self.sweep(begun[0], acked=bool(begun[1]))
        return None

    def pop_changes(self) -> dict[str, Any]:
        """The extra members to store so that a restart begins early enough; {}: none."""
        self.moved = False
        wanted, stored = self._unfinished(), self._stored
        if wanted == stored or (wanted and stored and stored[0] <= wanted[0] and stored[1] <= wanted[1]):
            return {}
        self._stored = wanted
        return {SWEEP: wanted} if self.selective else {SWEEP: None, LEAVING: wanted and wanted[0]}

    def _unfinished(self) -> list[Any] | None:
        """All unfinished work as one sweep."""
        sweeps = list(self._sweeps or ())
        if self._leaving_seq:
            sweeps.append((self._leaving_seq, not self.selective))
        if self._joining_seq:
            sweeps.append((self._joining_seq, False))
        return [min(start for start, _ in sweeps), all(acked for _, acked in sweeps)] if sweeps else None

    def _mark_moved(self) -> None:
        """What is unfinished has changed."""
        if self._parts.stored:
            self.moved = True
            self._log.lazy(self._parts.stream)

    async def _sweep(self, sweep: tuple[int, bool]) -> None:
        backoff = Backoff(_RETRY_SECONDS, _RETRY_SECONDS_MAX)
        while True:
            try:
                await self._swept(*sweep)
            except (StoreError, FormatError) as error:
                delay = backoff.next()
                self._tasks.warn("messages without interest stay for now, trying again in %g s: %s", delay, error)
                await asyncio.sleep(delay)
            else:
                break
        if self._sweeps is not None:
            self._sweeps.remove(sweep)
        self._mark_moved()

    async def _swept(self, start: int, acked: bool) -> None:
        live, log = self._live, self._log
        await live.load_blocks()
        end = live.last_seq
        if not self._listeners.by_name and not self._unknown:
            if self.selective:  # a work queue keeps what the next consumer gets
                await self._remove_all(end)
            return
        blocks = (block for block in blocks_from(live, start, end) if not self._all_waited_for(block))
        async with aclosing(self._heads.each(blocks)) as walk:
            async for block, rows in walk:
                first, last = max(block.first_seq, start), min(block.last_seq, end)
                while first <= last and self.active and not self._unknown:
                    seqs = live.live_seqs(block, rows, first, min(last, first + _ROWS_AT_ONCE - 1))
                    first += _ROWS_AT_ONCE
                    if acked and seqs:
                        seqs = self._wanted(rows, seqs)
                    if seqs and (seqs := self._unwaited(block, rows, seqs)):
                        self._retention.remove_unneeded(block, seqs, rows)
                        log.urgent()
                    await asyncio.sleep(0)
                    if not live.holds(block):
                        break

    async def _remove_all(self, end: int) -> None:
        """No consumer is left: remove everything up to ``end``, unless one is added meanwhile."""
        live = self._live
        while live.first_seq <= end and live.msgs and not self._listeners.by_name:
            await decide(live, self._heads, lambda: self._retention.remove_slice(end + 1))
            self._log.urgent()
            await asyncio.sleep(0)

    def _all_waited_for(self, block: LiveBlock) -> bool:
        """Whether a consumer that gets all messages has yet to get those of ``block``, as for most of a backlog."""
        return any(filters is None and listener.waits_from(block.first_seq) for listener, filters in self._filtered_listeners())

    def _wanted(self, rows: Rows, seqs: Sequence[int]) -> Sequence[int]:
        """Those of ``seqs`` that some consumer gets."""
        filtered = self._filtered_listeners()
        if any(filters is None for _, filters in filtered):
            return seqs
        matches = [filters.match for _, filters in filtered if filters is not None]
        return [seq for seq in seqs if any(match(rows.subject_of(rows.ordinal_of(seq))) for match in matches)]


def _rising(seqs: Sequence[int]) -> bool:
    return isinstance(seqs, range) or len(seqs) == 1 or all(map(lt, seqs, islice(seqs, 1, None)))


def _without(seqs: Sequence[int], others: Sequence[int]) -> Sequence[int]:
    """``seqs`` less ``others``, which are among them."""
    if len(others) == len(seqs):
        return ()
    excluded = set(others)
    return [seq for seq in seqs if seq not in excluded]
