"""Removes messages from a stream: by limits, by age, and by requests to delete or purge.

Owns: which messages a limit, the clock or a request removes, and applying the removal to the live state, the subjects,
the open block (so that replay gives the same result) and the listeners.
Does not own: which publishes are refused (sequencer), the removals of a roll-up (rollup), the retry of a failed trim
(enforcement), the change of the live state (live).

A request that needs the rows of many blocks reads them one after the other, and publishes continue meanwhile. Messages
published meanwhile have higher sequences, and each step checks which messages are live then.

Removals at the front need no list: the next block's outcome has the new first_seq, and everything below it is dead.
Removals inside the stream are written as ranges, block by block. Nothing is removed by age while the clock is not
trusted.

Source: nats-server, server/filestore.go, enforceMsgLimit, enforceBytesLimit, expireMsgs, PurgeEx, compact.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Protocol

from broker.jetstream.filters import Filters
from broker.jetstream.stream.state.decision import decide
from broker.jetstream.stream.state.front import (
    after_bytes,
    after_msgs,
    listed_front,
    many_leave,
    most_leave,
    slice_below,
    whole_front,
)
from broker.jetstream.stream.state.heads import blocks_back, blocks_from
from broker.jetstream.stream.state.live import LiveBlock
from broker.jetstream.stream.state.matching import candidates, matching_rows
from broker.jetstream.stream.state.rows import NotLoaded, size_between

if TYPE_CHECKING:
    from broker.jetstream.config.stream import StreamConfig
    from broker.jetstream.stream.shared.stream_parts import StreamParts
    from broker.jetstream.stream.state.rows import Rows

__all__ = ["Retention"]

_EXPIRY_APART_NS = 100_000_000
"""Minimum time between two passes of expiry: a busy stream's front moves all the time."""

_SPAN_NS_MAX = 250_000_000
"""A block with at most this time span, whose head is not in memory, expires as a whole once its last message is due.

Otherwise each commit of a busy stream would cost a GET. nats-server does not check for expired messages more often.
"""

_TIMER_NS_MAX = 3_600_000_000_000
"""Maximum delay of the timer: the wall clock may be set in the meantime, so it is read again at least this often."""

_UNTRUSTED_NS = 1_000_000_000
"""Delay after which a clock that is not trusted is read again: it may be far behind, and right a moment later."""

_BLOCKS_AT_ONCE = 512
_MSGS_AT_ONCE = 25_000
"""Messages that expire in one turn of the loop as whole blocks: about 5 ms if all are in memory and freed one by
one."""

_ROWS_AT_ONCE = 2000
"""Messages removed in one turn of the loop: about 2 ms."""


class OneByOne(Protocol):
    """The part that applies max_age instead, if each message must be checked (``ttl``)."""

    @property
    def ages_one_by_one(self) -> bool: ...
    def arm(self) -> None: ...


class Retention:
    """The removals of one stream. Call ``configure`` after each change of its configuration."""

    def __init__(self, parts: StreamParts) -> None:
        self._stream, self._stored = parts.stream, parts.stored
        self._live, self._heads, self._subjects, self._queries = parts.live, parts.heads, parts.subjects, parts.queries
        self._listeners, self._log, self._tasks, self._clock = parts.listeners, parts.log, parts.tasks, parts.clock
        self.one_by_one: OneByOne | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._expiring: asyncio.Task[None] | None = None

    def configure(self, config: StreamConfig) -> None:
        """Set the limits of ``config``; ``Enforcement`` then applies them to the present messages."""
        # A stream that discards new messages keeps the present ones, even if they exceed its limits.
        keeps = config.discard == "new"
        self._max_msgs = 0 if keeps else max(config.max_msgs, 0)
        self._max_bytes = 0 if keeps else max(config.max_bytes, 0)
        self._max_age_ns = config.max_age if config.max_age > 0 else 0
        self._per_subject = config.max_msgs_per_subject if config.max_msgs_per_subject > 0 else 0
        self.close()

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # --- max_msgs, max_bytes ------------------------------------------------------------------------------------------

    @property
    def over(self) -> bool:
        """True if the stream has more messages or bytes than max_msgs or max_bytes allow."""
        return bool((self._max_msgs and self._live.msgs > self._max_msgs)
                    or (self._max_bytes and self._live.size_bytes > self._max_bytes))

    def enforce(self) -> None:
        """Remove the oldest messages until max_msgs and max_bytes hold; if that needs the store, schedule it."""
        if not self.over:
            return
        try:
            self.trim()
        except NotLoaded:
            self._stream.trim_soon()
        else:
            if self.over:  # only a slice was removed
                self._stream.trim_soon()

    def trim(self) -> None:
        """Remove the oldest messages until max_msgs and max_bytes hold, or a slice of them (see ``over``).

        Raises: NotLoaded.
        """
        live = self._live
        # Usually the open block has the messages that caused the trim, so its outcome is stored anyway. After a delayed
        # trim or a refused publish, the block may be empty.
        record = live.open is None or live.open.empty
        if self._max_msgs and live.msgs > self._max_msgs:
            self.remove_front(self._slice_below(after_msgs(live, live.msgs - self._max_msgs)), record=record)
        if self._max_bytes and live.size_bytes > self._max_bytes:
            self.remove_front(self._slice_below(after_bytes(live, live.size_bytes - self._max_bytes)), record=record)

    # --- max_age ------------------------------------------------------------------------------------------------------

    def arm(self) -> None:
        """Set the timer for the time when the first message reaches max_age."""
        if self._timer is None and self._expiring is None and self._max_age_ns and self._live.msgs:
            if self.one_by_one is not None and self.one_by_one.ages_one_by_one:
                self.one_by_one.arm()
                return
            self._arm(max(self._left_ns(self._stream.first_time_ns), 0))

    def arm_at(self, first_time_ns: int) -> None:
        """Set the timer as ``arm`` does, for a stream whose blocks have not been loaded since the restart."""
        self._arm(max(self._left_ns(first_time_ns), _EXPIRY_APART_NS))

    def _left_ns(self, first_time_ns: int) -> int:
        """Return the time until the first message reaches max_age; 0 or less: it has."""
        live = self._live
        return live.ahead.stored_at(live.first_seq, first_time_ns) + self._max_age_ns - self._clock.now_ns()

    def _arm(self, delay_ns: int) -> None:
        delay_ns = min(delay_ns, _TIMER_NS_MAX if self._log.clock_trusted() else _UNTRUSTED_NS)
        self._timer = asyncio.get_running_loop().call_later(delay_ns / 1e9, self.expire)

    def expire(self) -> None:
        """Remove messages older than max_age: whole blocks by their last time, and part of the next block by its head.

        Called by the timer. Messages that remain because a head must be loaded, or because there are very many, are
        removed by the next pass.
        """
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        live = self._live
        if not self._max_age_ns or not live.msgs:
            return
        if self.one_by_one is not None and self.one_by_one.ages_one_by_one:
            self.one_by_one.arm()
            return
        if not self._log.clock_trusted():
            self._arm(_UNTRUSTED_NS)
            return
        if not live.blocks_loaded:
            if self._left_ns(live.first_time_ns) > 0:
                self.arm_at(live.first_time_ns)
            elif self._expiring is None:
                self._expiring = self._tasks.start(self._expire_after(None), "expiry")
            return
        limit_ns = self._clock.now_ns() - self._max_age_ns
        stored_by = live.ahead.stored_by(limit_ns)
        end_seq, more, whole, msgs = 0, False, 0, 0
        for block in live.blocks:
            if block.last_time_ns <= limit_ns or block.last_seq <= stored_by:
                if whole == _BLOCKS_AT_ONCE or msgs >= _MSGS_AT_ONCE:
                    more = True
                    break
                whole += 1
                msgs += block.live_msgs
                end_seq = block.last_seq + 1
                continue
            if block.first_seq <= stored_by:
                end_seq = stored_by + 1
            elif block.first_time_ns <= limit_ns:
                rows = live.resident(block)
                if rows is None:
                    if block.last_time_ns - block.first_time_ns > _SPAN_NS_MAX:
                        self._load_edge(block)
                else:
                    end_seq = rows.seq_of(rows.ordinal_at(limit_ns + 1))
            break
        if end_seq > live.first_seq:
            try:
                self.remove_front(end_seq, record=True)
            except NotLoaded as not_loaded:
                self._load_edge(not_loaded.blocks[0])
                return
        if live.msgs and self._timer is None and self._expiring is None:
            self._arm(0 if more else max(self._left_ns(live.first_time[0]), _EXPIRY_APART_NS))

    def _load_edge(self, block: LiveBlock) -> None:
        """Load the head of the block in which the age limit falls, then expire again."""
        if self._expiring is None:
            self._expiring = self._tasks.start(self._expire_after(block), "expiry")

    async def _expire_after(self, block: LiveBlock | None) -> None:
        rows = None
        try:
            await self._live.load_blocks()
            if block is not None:
                # Other streams' messages in the same object expire at the same time, so their heads are needed soon.
                rows = await self._heads.load(block, neighbours=True)
        except Exception as error:
            self._tasks.warn("messages past max_age stay for now: %s", error)
            self._expiring = None
            if self._timer is None:
                self._arm(1_000_000_000)
            return
        self._expiring = None
        # Expire at once, while the rows are held, unless the block was removed.
        self.expire()
        del rows

    # --- removing -----------------------------------------------------------------------------------------------------

    def remove_front(self, end_seq: int, *, record: bool = False, purged: bool = False) -> int:
        """Remove everything below ``end_seq``; return the number of removed messages. Raises: NotLoaded.

        Args: ``record``: add a removed range to the open block. A block without contents is not stored, and the outcome
            with the new first_seq would be lost with it.
        """
        live = self._live
        if most_leave(live, end_seq) or (not self._listed and many_leave(live, end_seq)):
            return self._remove_whole(end_seq, record, purged)
        gone = listed_front(live, end_seq)
        if not gone:
            return 0
        self._subjects.removing_front(gone)
        live.remove_front(gone, end_seq)
        if record:
            # Record the last block's range alone: all removed messages are below the outcome's first_seq anyway.
            _, first, last, msgs, size = gone[-1]
            self._log.block(self._stream).remove(first, last, msgs, size)
        self._stream.removed(gone, None, purged)
        return sum(removal.msgs for removal in gone)

    @property
    def _listed(self) -> bool:
        """True if removals at the front must be listed by block, unless most blocks are removed.

        A memory stream frees the chunks of these blocks, and a plain index of subjects subtracts their messages.
        """
        return not self._stored or self._subjects.subtracts

    def _slice_below(self, end_seq: int) -> int:
        return slice_below(self._live, end_seq, listed=self._listed)

    def _remove_whole(self, end_seq: int, record: bool, purged: bool) -> int:
        """Do the same as ``remove_front`` without listing the removals, however many blocks they are.

        Raises: NotLoaded.
        """
        live = self._live
        front, last = whole_front(live, end_seq)
        if not front.msgs:
            return 0
        first_seq = live.first_seq
        if most_leave(live, end_seq):
            # Rebuilding the index from the remaining messages is faster than subtracting the removed ones.
            self._subjects.forget()
        live.remove_whole_front(front)
        if record:
            self._log.block(self._stream).remove(last.first, last.last, last.msgs, last.size)
        self._stream.notify_removed(((first_seq, front.end_seq - 1, front.msgs),), None, purged)
        return front.msgs

    async def yield_to_consumers(self) -> None:
        """Give the loop a turn, and wait until all consumers are notified of the removals."""
        await asyncio.sleep(0)
        await self._listeners.delivered()

    def remove_listed(self, found: Iterable[tuple[int, int]]) -> None:
        """Remove these live messages, (sequence, size), which are already subtracted from the subjects."""
        live = self._live
        block: LiveBlock | None = None
        seqs: list[int] = []
        total = 0
        for seq, size in sorted(found):
            if seq < live.first_seq:
                continue
            if block is None or seq > block.last_seq:
                if block is not None and seqs:
                    self.remove(block, seqs, total, None)
                block, seqs, total = live.find(seq), [], 0
            if block is not None:
                seqs.append(seq)
                total += size
        if block is not None and seqs:
            self.remove(block, seqs, total, None)

    def remove(self, block: LiveBlock, seqs: Sequence[int], size: int, subject: bytes | None,
               purged: bool = False) -> None:
        """Remove live messages of one block, ``size`` user bytes in all, which are already subtracted from the
        subjects.

        Args: ``subject``: the subject of all of them, or None.
        """
        ranges = self._live.remove_seqs(block, seqs, size)
        record = self._log.block(self._stream).remove
        for removal in ranges:
            record(removal.first, removal.last, removal.msgs, removal.size)
        self._stream.removed(ranges, subject, purged)

    def remove_unneeded(self, block: LiveBlock, seqs: Sequence[int], rows: Rows) -> None:
        """Remove live messages of one block, in rising order, without notifying consumers.

        No consumer counts these messages or waits for them. ``rows`` are the rows of the block.
        """
        start, end = rows.ordinal_of(seqs[0]), rows.ordinal_of(seqs[-1]) + 1
        ordinals = range(start, end) if end - start == len(seqs) else list(map(rows.ordinal_of, seqs))
        size = size_between(rows, start, end) if isinstance(ordinals, range) else sum(map(rows.size_of, ordinals))
        if self._subjects.index is not None:
            for seq, at in zip(seqs, ordinals, strict=True):
                self._subjects.removed(rows.subject_of(at), seq)
        ranges = self._live.remove_seqs(block, seqs, size)
        record = self._log.block(self._stream).remove
        for removal in ranges:
            record(removal.first, removal.last, removal.msgs, removal.size)
        self._stream.removed(ranges, None, False, notify=False)

    def remove_slice(self, end_seq: int) -> int:
        """Remove everything below ``end_seq``, or a slice if there are very many blocks. Raises: NotLoaded."""
        return self.remove_front(self._slice_below(end_seq), record=True)

    # --- requests -----------------------------------------------------------------------------------------------------

    async def delete(self, seq: int) -> bool:
        """Remove one message; return False if there is none."""
        live, rows = self._live, None
        while (block := live.find(seq)) is not None:
            rows = await self._heads.load(block)
            if rows is not None and live.find(seq) is block:
                break
        if block is None or rows is None:
            return False
        at = rows.ordinal_of(seq)
        if at >= block.count or rows.seq_of(at) != seq:
            return False
        subject, size = rows.subject_of(at), rows.size_of(at)
        self._subjects.removed(subject, seq)
        self.remove(block, (seq,), size, subject)
        self._log.urgent()
        return True

    async def purge_front(self, seq: int, keep: int) -> tuple[int, int, bool]:
        """Remove all messages below ``seq`` (0: all) except the ``keep`` newest, or a slice of them. This loads at most
        a few heads.

        Returns: the number of removed messages; the sequence below which all are to be removed; and whether a next call
            must continue. The next call gets that sequence as ``seq``, and no ``keep``, so messages published meanwhile
            are not removed.
        """
        live = self._live
        if keep and keep >= live.msgs:
            self.notify_purged(Filters(()), 0)
            return 0, seq, False
        purged, end_seq, more = await decide(live, self._heads, lambda: self._cut_front(seq, keep))
        if purged:
            self._log.urgent()
        if more:
            return purged, end_seq, True
        if not live.msgs and end_seq > live.first_seq:
            # The purge reaches a future sequence: the stream continues there. This also sets a new stream's first_seq.
            if not purged and end_seq - 1 > live.last_seq:
                # No message will have these sequences. Without this range the outcome would not be stored.
                self._log.block(self._stream).remove(live.last_seq + 1, end_seq - 1, 0, 0)
                self._log.urgent()
            live.skip_to(end_seq - 1)
            self._stream.reset_checks()
        self.notify_purged(Filters(()), 0)
        return purged, end_seq, False

    def _cut_front(self, seq: int, keep: int) -> tuple[int, int, bool]:
        """Remove all below ``seq`` except the ``keep`` newest, or a slice. Returns: as ``purge_front``."""
        live = self._live
        end_seq = after_msgs(live, max(live.msgs - keep, 0)) if keep else seq or live.last_seq + 1
        slice_seq = self._slice_below(end_seq)
        return self.remove_front(slice_seq, record=True, purged=True), end_seq, slice_seq != end_seq

    async def purge_matching(self, filters: Filters, seq: int, keep: int) -> int:
        """Remove the present messages that match, below ``seq`` (0: no bound), except the ``keep`` newest.

        Returns: the number of removed messages. Publishes continue meanwhile.
        """
        live = self._live
        end = live.last_seq if not seq else min(seq - 1, live.last_seq)
        left = 1 << 63
        if keep:
            end = await self._kept_from(filters, keep, end) - 1
        elif filters.literal and self._subjects.index is not None:
            # For one subject, the count shows when the last message was found.
            left = await self._queries.count(filters)
        purged = 0
        blocks = candidates(blocks_from(live, live.first_seq, end), filters)
        if left and end >= live.first_seq:
            async with aclosing(self._heads.walk(blocks)) as walk:
                async for block, rows in walk:
                    found = [one for one in matching_rows(rows, block, filters)
                             if one[0] <= end and live.is_live(block, one[0])]
                    for at in range(0, len(found), _ROWS_AT_ONCE):
                        part = [one for one in found[at:at + _ROWS_AT_ONCE] if live.is_live(block, one[0])][:left]
                        if not part:
                            continue
                        for one, subject in part:
                            self._subjects.removed(subject, one)
                        size = sum(rows.size_of(rows.ordinal_of(one)) for one, _ in part)
                        shared = part[0][1] if len(part) == 1 or filters.literal else None
                        self.remove(block, [one for one, _ in part], size, shared, purged=True)
                        purged += len(part)
                        left -= len(part)
                        self._log.urgent()
                        await self.yield_to_consumers()
                    if left <= 0:
                        break
        first_seq = 0
        if self._listeners.any_within(filters):
            # Messages published while the store was read may match, too.
            next_seq = live.last_seq + 1
            first_seq = await self._queries.first_seq_of(filters) or next_seq
        self.notify_purged(filters, first_seq)
        return purged

    async def _kept_from(self, filters: Filters, keep: int, end: int) -> int:
        """Return the first of the ``keep`` newest matches up to ``end``; all matches below it may be removed.

        Messages that are removed meanwhile must not change this. If there are no more than ``keep`` matches, the result
        is the stream's first sequence.
        """
        live, found = self._live, 0
        if filters.literal and self._subjects.index is not None and await self._queries.count(filters) <= keep:
            return live.first_seq
        async with aclosing(self._heads.walk(candidates(blocks_back(live, end, live.first_seq), filters))) as walk:
            async for block, rows in walk:
                seqs = [one for one, _ in matching_rows(rows, block, filters)
                        if one <= end and live.is_live(block, one)]
                found += len(seqs)
                if found >= keep:
                    return seqs[found - keep]
        return live.first_seq

    def notify_purged(self, filters: Filters, first_seq: int) -> None:
        """Notify consumers where to continue after a purge; ``first_seq``: the first remaining match, or 0."""
        live = self._live
        self._listeners.purged(filters, first_seq or live.last_seq + 1, max(live.first_seq, 1))
