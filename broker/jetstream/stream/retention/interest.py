"""Removes messages that no consumer of the stream waits for any more, and decides which publishes are stored.

Owns: finding the messages of an interest stream or a work queue that no consumer waits for, and removing them.
Does not own: which messages a consumer waits for (the consumer, asked through ``Listeners``), and how messages are
removed (retention).

    retention   a publish is stored         a message leaves
    limits      always                      never because of consumers
    workqueue   always                      once it is acked
    interest    if some consumer gets it    once it is acked, or its last consumer leaves or changes its filters

There are no counts by message. Consumers are asked whether they wait for a sequence; their own state is bounded by the
messages that they have delivered and that are not acked. If a consumer waits for all messages that another one acked,
it is asked first the next time.

    ack ──> acked ──┬─ the heads are in memory: the message is removed at once; ack and removal are stored in one block
                    └─ otherwise: the message is removed once the head has been loaded, and then the ack is answered

When consumers are removed, a *sweep* over the stream finds messages that no consumer waits for any more. The sequence
at which unfinished work begins is stored in the stream's extra members (``sweep``, ``leaving``) until all of it is
done. Unfinished work is sweeps, and acked messages whose heads are being loaded. A restart sweeps from that sequence
on, so no crash leaves a message that is acked and not removed. The opposite order is harmless: no consumer waits for a
removed message.

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
"""Extra member of an interest stream: the sequence at which unfinished work begins, and the kind of sweep that does
it."""

LEAVING = "leaving"
"""Extra member of a work queue, like ``sweep``.

Earlier releases ignore it; their sweeps would empty a work queue without consumers.
"""

_ROWS_AT_ONCE = 2000
"""Messages that a sweep examines in one turn of the loop: about 2 ms."""

_REMEMBERED_MAX = 65_536
"""Maximum number of subjects for which ``wants`` caches its result."""

_RETRY_SECONDS = 1.0
_RETRY_SECONDS_MAX = 30.0


class Interest:
    """The interest of one stream's consumers.

    Call ``configure`` after each change of its configuration, and ``changed`` after each change of its consumers.

    Attributes: ``active``: True if acks remove messages; ``selective``: True if only messages that some consumer
        receives are stored; ``moved``: True if ``pop_changes`` may have something to return.
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
        """The consumers with their filters (None: all messages of the stream); None: not determined yet."""
        # These are created when needed: there may be ten thousand streams, and most of them need none.
        self._filters: dict[tuple[str, ...], Filters] | None = None
        self._wanted_by_subject: dict[bytes, bool] | None = None
        self._waiting: dict[int, None] | None = None
        """Acked sequences whose heads must be loaded first; the loading task handles them next."""
        self._removal: asyncio.Future[None] | None = None
        """Future that is done once the messages in ``_waiting`` have been removed."""
        self._loading = False
        self._leaving_seq = 0
        """The lowest acked sequence whose message may remain because its head is being loaded; 0: none."""
        self._joining_seq = 0
        """The first sequence of messages that are joining; some of them may have no interested consumer."""
        self._sweeps: list[tuple[int, bool]] | None = None
        """The start and the argument ``acked`` of each running sweep."""
        self.moved = False
        self._stored: list[Any] | None = None
        """The member ``sweep`` as it is in the store, or will be."""
        self._working: tuple[asyncio.Task[None], ...] = ()

    def configure(self, config: StreamConfig) -> None:
        """Apply ``config``; after a change from limits to interest, the caller must start ``sweep``."""
        self.active = config.retention != "limits"
        self.selective = config.retention == "interest"
        self._subjects = frozenset(config.subjects) if self.active else frozenset()
        self.changed()

    def changed(self) -> None:
        """Reset the cached filters, because a consumer was added or removed, or changed its filters."""
        self._filtered = self._wanted_by_subject = None

    def keep_all(self) -> None:
        """Remove nothing from now on: a stored consumer cannot be used here, and may wait for any message."""
        self._unknown = True

    async def finished(self) -> None:
        """Wait until all messages that no consumer waits for now have been removed."""
        while working := [task for task in self._working if not task.done()]:
            await asyncio.wait(working)

    # --- publishing ---------------------------------------------------------------------------------------------------

    def wants(self, subject: bytes) -> bool:
        """Return whether a message of this subject must be stored."""
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
        """Return whether all messages of a run must be stored."""
        return not self.selective or all(map(self.wants, subjects))

    def _start(self, work: Coroutine[Any, Any, None], what: str) -> asyncio.Task[None]:
        task = self._tasks.start(work, what)
        self._working = (*(one for one in self._working if not one.done()), task)
        return task

    def drop_unwanted(self, first_seq: int) -> None:
        """Remove messages from ``first_seq`` on that no consumer receives.

        A batch is stored whole, so it may have some.
        """
        if self.selective:
            self.acked(range(first_seq, self._live.last_seq + 1))

    # --- acks ---------------------------------------------------------------------------------------------------------

    def acked(self, seqs: Sequence[int]) -> asyncio.Future[None] | None:
        """Remove the messages of ``seqs``, which a consumer no longer waits for, if no other consumer waits for them.

        Returns: None if that is done; otherwise a future that completes when it is done, after all futures returned
            before.
        """
        if not self.active or self._unknown or not seqs:
            return None
        if not _rising(seqs):
            seqs = sorted(set(seqs))
        try:
            left = self._remove_unwaited(seqs)
        except NotLoaded:  # the stream's blocks are not loaded
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
        """Do the same as ``acked`` for too many messages to list: sweep all messages from ``seq`` on, in slices."""
        return self.sweep(seq, acked=True) if self.active and not self._unknown else None

    def _remove_unwaited(self, seqs: Sequence[int]) -> Sequence[int]:
        """Remove the messages of ``seqs``, in rising order, that no consumer waits for.

        Returns: the sequences that need heads which are not in memory. Raises: NotLoaded; then nothing has changed.
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
        """Return the live messages of ``seqs``, all within the range of ``block``."""
        live = self._live
        if seqs[-1] - seqs[0] + 1 == len(seqs):
            return live.live_seqs(block, rows, seqs[0], seqs[-1])
        return [seq for seq in seqs if live.is_live(block, seq) and (
            block.gapless or ((at := rows.ordinal_of(seq)) < block.count and rows.seq_of(at) == seq))]

    def _unwaited(self, block: LiveBlock, rows: Rows, seqs: Sequence[int]) -> Sequence[int]:
        """Return the messages of ``seqs``, live messages of ``block``, that no consumer waits for."""
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
        """Return filters that exclude some message of the stream; None if ``subjects`` exclude none.

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
        """Check ``listener`` first from now on: it waits for everything checked, as usually the slowest consumer
        does."""
        filtered = self._filtered_listeners()
        if filtered[0][0] is not listener:
            at = next(i for i, (one, _) in enumerate(filtered) if one is listener)
            filtered[0], filtered[at] = filtered[at], filtered[0]

    async def _load(self) -> None:
        """Load the heads for the messages in ``_waiting``, and remove these messages."""
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
                        # A message whose head cannot be read cannot be removed; its ack is answered nevertheless.
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
        """Remove the messages of ``seqs`` in their first block; return the others. Raises: StoreError; FormatError."""
        live = self._live
        await live.load_blocks()
        block = self._block_at(seqs[0])
        if block is None:
            return seqs[1:]
        rows = await self._heads.load(block)
        here = next((i for i, seq in enumerate(seqs) if seq > block.last_seq), len(seqs))
        if rows is not None and live.holds(block) and (
                part := self._unwaited(block, rows, self._alive(block, rows, seqs[:here]))):
            self._retention.remove_unneeded(block, part, rows)
            self._log.lazy(self._parts.stream)
        return seqs[here:]

    # --- sweeps -------------------------------------------------------------------------------------------------------

    def consumer_left(self, above_seq: int) -> asyncio.Task[None] | None:
        """Start a sweep after a consumer was removed or got other filters.

        Args: ``above_seq``: the consumer waited only for messages above this sequence.
        Returns: the task of the sweep; None if none is needed.
        """
        self.changed()
        return self.sweep(above_seq + 1) if self.selective else None

    def sweep(self, start: int, *, acked: bool = False) -> asyncio.Task[None] | None:
        """Start to remove, from ``start`` on, the messages that no consumer waits for any more.

        Args: ``acked``: keep messages that no consumer's filters match. Without consumers, a sweep removes everything
            from an interest stream, and nothing from a work queue.
        Returns: the task that does it; None if there is nothing to do.
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
        """Return the members to be recorded with messages from ``start`` on, which are stored without checking
        interest.

        Call ``joined`` when these messages are in the stream.
        """
        if not self.selective:
            return {}
        self._joining_seq = start
        self._stored = self._unfinished()
        return {SWEEP: self._stored}

    def joined(self, start: int) -> asyncio.Task[None] | None:
        """Sweep the messages from ``start`` on, which have joined, for those that no consumer gets.

        Returns: as ``sweep``.
        """
        sweep = self.sweep(start) if self.selective else None
        self._joining_seq = 0
        return sweep

    def resume(self, extra: Mapping[str, Any]) -> asyncio.Task[None] | None:
        """Continue work that a crash interrupted; ``extra``: extra members of the stream's records.

        Returns: as ``sweep``.
        """
        begun = extra.get(SWEEP)
        if not self.selective and isinstance(leaving := extra.get(LEAVING), int):
            begun = [leaving, True]
        if isinstance(begun, list) and len(begun) == 2 and isinstance(begun[0], int):
            self._stored = begun
            if self.active:
                return self.sweep(begun[0], acked=bool(begun[1]))
        return None

    def pop_changes(self) -> dict[str, Any]:
        """Return the extra members to store so that a restart sweeps from early enough; {} if they have not changed."""
        self.moved = False
        wanted, stored = self._unfinished(), self._stored
        if wanted == stored or (wanted and stored and stored[0] <= wanted[0] and stored[1] <= wanted[1]):
            return {}
        self._stored = wanted
        return {SWEEP: wanted} if self.selective else {SWEEP: None, LEAVING: wanted and wanted[0]}

    def _unfinished(self) -> list[Any] | None:
        """Return all unfinished work as one sweep; None if there is none."""
        sweeps = list(self._sweeps or ())
        if self._leaving_seq:
            sweeps.append((self._leaving_seq, not self.selective))
        if self._joining_seq:
            sweeps.append((self._joining_seq, False))
        return [min(start for start, _ in sweeps), all(acked for _, acked in sweeps)] if sweeps else None

    def _mark_moved(self) -> None:
        """Mark that the unfinished work has changed."""
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
            if self.selective:  # a work queue keeps its messages for the next consumer
                await self._remove_all(end)
            return
        blocks = (block for block in blocks_from(live, start, end) if not self._all_waited_for(block))
        async with aclosing(self._heads.walk(blocks)) as walk:
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
        """Remove everything up to ``end``, because no consumer is left; stop if one is added meanwhile."""
        live = self._live
        while live.first_seq <= end and live.msgs and not self._listeners.by_name:
            await decide(live, self._heads, lambda: self._retention.remove_slice(end + 1))
            self._log.urgent()
            await asyncio.sleep(0)

    def _all_waited_for(self, block: LiveBlock) -> bool:
        """Return whether a consumer that receives all messages has not received any of ``block``, as in a backlog."""
        return any(filters is None and listener.waits_from(block.first_seq)
                   for listener, filters in self._filtered_listeners())

    def _wanted(self, rows: Rows, seqs: Sequence[int]) -> Sequence[int]:
        """Return the messages of ``seqs`` that some consumer receives."""
        filtered = self._filtered_listeners()
        if any(filters is None for _, filters in filtered):
            return seqs
        matches = [filters.match for _, filters in filtered if filters is not None]
        return [seq for seq in seqs if any(match(rows.subject_of(rows.ordinal_of(seq))) for match in matches)]


def _rising(seqs: Sequence[int]) -> bool:
    return isinstance(seqs, range) or len(seqs) == 1 or all(map(lt, seqs, islice(seqs, 1, None)))


def _without(seqs: Sequence[int], others: Sequence[int]) -> Sequence[int]:
    """Return ``seqs`` without ``others``, all of which are in ``seqs``."""
    if len(others) == len(seqs):
        return ()
    excluded = set(others)
    return [seq for seq in seqs if seq not in excluded]
