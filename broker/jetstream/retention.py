"""What leaves a stream, and when: limits, age, deletes and purges.

Owns: which messages a limit, the clock or a request takes out, and telling everybody: the live state, the subjects, the
open block (so that replay arrives at the same), the consumers.
Does not own: which publishes are refused (sequencer), what a roll-up takes out (rollup), that limits are carried out in the
end (enforcement), nor how the state changes (live).

A request that needs the rows of many blocks streams through them, and publishes go on meanwhile: what they bring has
higher sequences, and each step looks at what lives by then.

Removals at the front need no list: the next block's outcome says the new first_seq, and everything below it is dead.
Those inside the stream are written as ranges, block by block. Nothing is removed by age while the clock is not trusted.

Source: nats-server, server/filestore.go, enforceMsgLimit, enforceBytesLimit, expireMsgs, PurgeEx, compact.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING

from broker.jetstream.decision import decide
from broker.jetstream.filters import Filters
from broker.jetstream.front import after_bytes, after_msgs, front_of_most, most_leave, slice_below
from broker.jetstream.heads import blocks_from
from broker.jetstream.live import LiveBlock
from broker.jetstream.matching import matching_rows, may_match
from broker.jetstream.rows import Cold
from broker.protocol.subject import subset

if TYPE_CHECKING:
    from broker.jetstream.consumer import Consumer
    from broker.jetstream.stream import Stream
    from broker.jetstream.stream_config import StreamConfig

__all__ = ["Retention"]

_EXPIRY_APART_NS = 100_000_000
"""At least this long between two passes of expiry: a busy stream's front moves all the time."""

_TIMER_NS_MAX = 3_600_000_000_000
"""The wall clock may be set meanwhile, so it is looked at again at least this often."""

_BLOCKS_AT_ONCE = 64
_ROWS_AT_ONCE = 2000
"""Removed in one turn of the loop: about 2 ms."""


class Retention:
    """The leaving side of one stream. ``configure`` follows each change of its configuration."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._timer: asyncio.TimerHandle | None = None
        self._expiring: asyncio.Task[None] | None = None

    def configure(self, config: StreamConfig) -> None:
        """Take the limits of ``config``; ``Enforcement`` then carries them out on what is there."""
        self._max_msgs = config.max_msgs if config.max_msgs > 0 else 0
        self._max_bytes = config.max_bytes if config.max_bytes > 0 else 0
        self._max_age_ns = config.max_age if config.max_age > 0 else 0
        self._per_subject = config.max_msgs_per_subject if config.max_msgs_per_subject > 0 else 0
        self.close()

    def close(self) -> None:
        """Stop the clockwork."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # --- max_msgs, max_bytes ------------------------------------------------------------------------------------------

    @property
    def over(self) -> bool:
        """Whether the stream holds more than max_msgs or max_bytes allow."""
        stream = self._stream
        return bool((self._max_msgs and stream.msgs > self._max_msgs)
                    or (self._max_bytes and stream.bytes > self._max_bytes))

    def enforce(self) -> None:
        """Take the oldest messages out until max_msgs and max_bytes hold; when that needs the store, soon."""
        if not self.over:
            return
        try:
            self.trim()
        except Cold:
            self._stream.enforcement.soon()
        else:
            if self.over:  # a slice has left
                self._stream.enforcement.soon()

    def trim(self) -> None:
        """Take the oldest messages out until max_msgs and max_bytes hold, or a slice of them: see ``over``. Raises: Cold."""
        live = self._stream.live
        # Mostly what pushed them out goes into the same block; not so after a trim that had to wait, or a refusal.
        record = live.open is None or live.open.empty
        if self._max_msgs and live.msgs > self._max_msgs:
            self.remove_front(slice_below(live, after_msgs(live, live.msgs - self._max_msgs)), record=record)
        if self._max_bytes and live.bytes > self._max_bytes:
            self.remove_front(slice_below(live, after_bytes(live, live.bytes - self._max_bytes)), record=record)

    # --- max_age ------------------------------------------------------------------------------------------------------

    def arm(self) -> None:
        """See to it that the first message leaves when it is too old."""
        stream = self._stream
        if self._timer is None and self._expiring is None and self._max_age_ns and stream.live.msgs:
            due_ns = stream.first_time_ns + self._max_age_ns - stream.clock.now_ns()
            self._arm(min(max(due_ns, 0), _TIMER_NS_MAX))

    def arm_at(self, first_time_ns: int) -> None:
        """As ``arm``, for a stream whose blocks were not looked at since the restart."""
        due_ns = first_time_ns + self._max_age_ns - self._stream.clock.now_ns()
        self._arm(min(max(due_ns, _EXPIRY_APART_NS), _TIMER_NS_MAX))

    def _arm(self, delay_ns: int) -> None:
        self._timer = asyncio.get_running_loop().call_later(delay_ns / 1e9, self.expire)

    def expire(self) -> None:
        """Take out what is older than max_age: whole blocks by their last time, the one at the edge by its head.

        The timer's call; what a pass leaves for want of a head, or of time, is taken up by the next.
        """
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        stream = self._stream
        live = stream.live
        if not self._max_age_ns or not live.msgs:
            return
        if not stream.log.clock_trusted():
            self._arm(1_000_000_000)
            return
        if not live.looked:
            if self._expiring is None:
                self._expiring = stream.start(self._expire_after(None), "expiry")
            return
        limit_ns = stream.clock.now_ns() - self._max_age_ns
        end_seq, more, whole = 0, False, 0
        for block in live.blocks:
            if block.last_time_ns <= limit_ns:
                if whole == _BLOCKS_AT_ONCE:
                    more = True
                    break
                whole += 1
                end_seq = block.last_seq + 1
                continue
            if block.first_time_ns <= limit_ns:
                rows = live.hot(block)
                if rows is None:
                    self._load_edge(block)
                else:
                    end_seq = rows.seq_of(rows.ordinal_at(limit_ns + 1))
            break
        if end_seq > live.first_seq:
            try:
                self.remove_front(end_seq, record=True)
            except Cold as cold:
                self._load_edge(cold.blocks[0])
                return
        if live.msgs and self._timer is None and self._expiring is None:
            due_ns = live.first_time[0] + self._max_age_ns - stream.clock.now_ns()
            self._arm(0 if more else min(max(due_ns, _EXPIRY_APART_NS), _TIMER_NS_MAX))

    def _load_edge(self, block: LiveBlock) -> None:
        """Bring in the head of the block in which the age limit lies, then look again."""
        if self._expiring is None:
            self._expiring = self._stream.start(self._expire_after(block), "expiry")

    async def _expire_after(self, block: LiveBlock | None) -> None:
        rows = None
        try:
            await self._stream.look()
            if block is not None:
                rows = await self._stream.heads.of(block)
        except Exception as error:
            self._stream.warn("messages past max_age stay for now: %s", error)
            self._expiring = None
            if self._timer is None:
                self._arm(1_000_000_000)
            return
        self._expiring = None
        # At once, while the rows are held, unless the block has gone.
        self.expire()
        del rows

    # --- removing -----------------------------------------------------------------------------------------------------

    def remove_front(self, end_seq: int, *, record: bool = False, purged: bool = False) -> int:
        """Take out everything below ``end_seq``; returns how many messages that were. Raises: Cold.

        Args: record: nothing else is going into the open block, so it must say something for its outcome to be stored.
        """
        stream = self._stream
        live = stream.live
        if most_leave(live, end_seq):
            return self._remove_most(end_seq, record, purged)
        gone = live.front(end_seq)
        if not gone:
            return 0
        stream.subjects.removing_front(gone)
        live.remove_front(gone, end_seq)
        if record:
            # Of the last block alone; those before it are below the outcome's first_seq, like all of this one's.
            _, first, last, msgs, size = gone[-1]
            stream.log.block(stream).remove(first, last, msgs, size)
        stream.removed(gone, None, purged)
        return sum(removal.msgs for removal in gone)

    def _remove_most(self, end_seq: int, record: bool, purged: bool) -> int:
        """``remove_front`` that names what stays and not what leaves, however many blocks that is. Raises: Cold."""
        stream = self._stream
        live = stream.live
        front, last = front_of_most(live, end_seq)
        if not front.msgs:
            return 0
        first_seq = live.first_seq
        # Of what stays it is made anew sooner than what leaves is taken out.
        stream.subjects.forget()
        live.remove_front_of_most(front)
        if record:
            stream.log.block(stream).remove(last.first, last.last, last.msgs, last.size)
        stream.tell_removed(((first_seq, front.end_seq - 1, front.msgs),), None, purged)
        return front.msgs

    def take_out(self, found: Iterable[tuple[int, int]]) -> None:
        """Remove these live (sequence, size) messages, which the subjects have already forgotten."""
        live = self._stream.live
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

    def remove(self, block: LiveBlock, seqs: Sequence[int], size: int, subject: bytes | None, purged: bool = False) -> None:
        """Remove live messages of one block, ``size`` user bytes in all, of ``subject`` if they are all of one; the
        subjects have already forgotten them."""
        stream = self._stream
        ranges = stream.live.remove_seqs(block, seqs, size)
        record = stream.log.block(stream).remove
        for removal in ranges:
            record(removal.first, removal.last, removal.msgs, removal.size)
        stream.removed(ranges, subject, purged)

    # --- requests -----------------------------------------------------------------------------------------------------

    async def delete(self, seq: int) -> bool:
        """Remove one message; False when there is none."""
        stream = self._stream
        live = stream.live
        block = live.find(seq)
        if block is None:
            return False
        rows = await stream.heads.of(block)
        if rows is None:
            return False
        at = rows.ordinal_of(seq)
        if live.find(seq) is not block or at >= block.count or rows.seq_of(at) != seq:
            return False
        subject, size = rows.subject_of(at), rows.user_bytes(at)
        stream.subjects.removed(subject, seq)
        self.remove(block, (seq,), size, subject)
        stream.log.urgent()
        return True

    async def purge_front(self, seq: int, keep: int) -> int:
        """Remove all messages below ``seq`` (0: all) but the ``keep`` newest; returns how many. Needs a head or two."""
        stream = self._stream
        live = stream.live
        purged = 0
        if not keep or keep < live.msgs:
            more = True
            while more:
                count, end_seq, more = await decide(live, stream.heads, lambda: self._cut_front(seq, keep))
                purged += count
                if more:
                    stream.log.urgent()
                    await asyncio.sleep(0)
            if not live.msgs and end_seq > live.first_seq:
                # Up to a sequence that is yet to come: the stream goes on there. Also what gives a new stream its first_seq.
                if not purged and end_seq - 1 > live.last_seq:
                    # Sequences that no message will have; without a word on them the outcome would not be stored.
                    stream.log.block(stream).remove(live.last_seq + 1, end_seq - 1, 0, 0)
                    stream.log.urgent()
                live.skip_to(end_seq - 1)
                stream.sequencer.renumbered()
        if purged:
            stream.log.urgent()
        self.tell_purged(Filters(()), 0)
        return purged

    def _cut_front(self, seq: int, keep: int) -> tuple[int, int, bool]:
        """Take out all below ``seq`` but the ``keep`` newest, or a slice of it: how many, up to where, whether more is left."""
        live = self._stream.live
        end_seq = after_msgs(live, max(live.msgs - keep, 0)) if keep else seq or live.last_seq + 1
        slice_seq = slice_below(live, end_seq)
        return self.remove_front(slice_seq, record=True, purged=True), end_seq, slice_seq != end_seq

    async def purge_matching(self, filters: Filters, seq: int, keep: int) -> int:
        """Remove the messages that match and are there now, below ``seq`` (0: no bound), but the ``keep`` newest.

        Returns how many that were. Publishes go on meanwhile.
        """
        stream = self._stream
        live = stream.live
        end = live.last_seq if not seq else min(seq - 1, live.last_seq)
        left = 1 << 63
        if keep or (filters.literal and stream.subjects.index is not None):
            # Of one subject it is then known when the last message was found.
            left = await stream.reading.count(filters) - keep
        purged = 0
        blocks = (block for block in blocks_from(live, live.first_seq, end) if may_match(block, filters))
        if left > 0:
            async with aclosing(stream.heads.each(blocks)) as walk:
                async for block, rows in walk:
                    found = [one for one in matching_rows(rows, block, filters)
                             if one[0] <= end and live.is_live(block, one[0])]
                    for at in range(0, len(found), _ROWS_AT_ONCE):
                        part = [one for one in found[at:at + _ROWS_AT_ONCE] if live.is_live(block, one[0])][:left]
                        if not part:
                            continue
                        for one, subject in part:
                            stream.subjects.removed(subject, one)
                        size = sum(rows.user_bytes(rows.ordinal_of(one)) for one, _ in part)
                        shared = part[0][1] if len(part) == 1 or filters.literal else None
                        self.remove(block, [one for one, _ in part], size, shared, purged=True)
                        purged += len(part)
                        left -= len(part)
                        stream.log.urgent()
                        await asyncio.sleep(0)
                    if left <= 0:
                        break
        first_seq = 0
        if any(_within(consumer, filters) for consumer in stream.consumers.values()):
            first_seq = await stream.reading.first_seq_of(filters)
        self.tell_purged(filters, first_seq)
        return purged

    def tell_purged(self, filters: Filters, first_seq: int) -> None:
        """Tell consumers where they go on after a purge; ``first_seq``: the first message left that matches, or 0.

        One that got nothing but what was purged goes on at what is left of it; one that gets more moves with the front.
        nats-server passes over all before ``first_seq`` once a single filter of several was purged; here that is not
        done, since messages of the other filters would be lost.

        Source: nats-server, server/stream.go, purgeLocked.
        """
        live = self._stream.live
        front = max(live.first_seq, 1)
        for consumer in list(self._stream.consumers.values()):
            if filters.all:
                consumer.purged(front)
            elif _within(consumer, filters):
                consumer.purged(first_seq or live.last_seq + 1)
            elif not consumer.config.filters or any(subset(filters.subjects[0], one.encode())
                                                    for one in consumer.config.filters):
                consumer.purged(front)


def _within(consumer: Consumer, filters: Filters) -> bool:
    """Whether all that ``consumer`` gets matches ``filters``, which are one."""
    own = consumer.config.filters
    return bool(own) and all(subset(subject.encode(), filters.subjects[0]) for subject in own)
