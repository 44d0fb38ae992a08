"""One consumer's position in its stream: the messages it gets next, and how many are pending.

Owns the next sequence to look at, the count of messages still to be delivered for the first time (``num_pending``), and
the list of a consumer that starts with the last message of each subject. Reads chunks from the stream and cuts columns
from them; it never waits: what is not in memory is a ``Loading``, to be awaited by the caller.

    ....delivered........│next_seq .... counted│......... persisted_seq
                         └──── num_pending ────┘ + count()  brings ``counted`` up to persisted_seq

Everything at or below ``counted`` is in ``pending``; ``removed`` subtracts what leaves the stream before it was
delivered. Where that number is unknown (a range, of a filtered consumer) ``pending`` is off until ``recount``.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from itertools import compress, takewhile
from typing import Protocol

from broker.jetstream.consumer.cursor.listed import Listed
from broker.jetstream.consumer.cursor.taken import Taken
from broker.jetstream.filters import Filters
from broker.storage.format.frame import Chunk

__all__ = ["Block", "Cursor", "Loading", "Readable"]

_TAIL_MAX = 65_536
"""Sequences not yet persisted among which matches are counted in one turn of the loop."""

_LOOK_MAX = 4096
"""The same where that is done for each of many requests."""

_JOINED_MAX = 256
"""Chunks of no more messages are joined to one delivery, which copies columns (0.1 µs a message) and saves 40 µs each."""

_COUNT_TRIES = 4
"""Tries of a count that removals or deliveries disturb; the last one is accepted as near enough."""


class Loading(Protocol):
    """A chunk being read from the store. ``ready`` may be awaited by several; then retry the call.

    The chunk stays in memory while the Loading is referenced.
    """

    @property
    def ready(self) -> Awaitable[object]: ...

    @property
    def seq(self) -> int:
        """Nothing that was asked for is below it."""


class _Seqs(Protocol):
    def __contains__(self, seq: int, /) -> bool: ...


class Block(Protocol):
    """The block that contains a chunk."""

    @property
    def dead(self) -> _Seqs | None:
        """Sequences of this block that were removed, below the stream's first_seq or not; None: none."""


class Readable(Protocol):
    """What a cursor needs from its stream, over messages at or below ``persisted_seq``."""

    @property
    def first_seq(self) -> int: ...

    @property
    def persisted_seq(self) -> int: ...

    @property
    def last_seq(self) -> int: ...

    def next_chunk(self, seq: int, filters: Filters | None) -> tuple[Chunk, Block, int] | Loading | None:
        """The chunk with the first message at or after ``seq``, and that message's index in it; None: nothing yet."""

    def known_seqs(self, filters: Filters, seq: int, most: int) -> Sequence[int] | None:
        """The first ``most`` messages at or after ``seq`` that match; None: not known without a look at chunks."""

    def chunk_of(self, seq: int) -> tuple[Chunk, Block, int] | None:
        """``next_chunk`` for a ``seq`` that ``known_seqs`` gave, if that needs no load."""

    def may_hold(self, seq: int) -> bool:
        """Whether ``seq`` may be live, as far as is known without reading."""

    async def count_from(self, seq: int, filters: Filters | None) -> tuple[int, int]:
        """How many messages match from ``seq`` on, and up to which sequence they were counted."""

    def tail_count(self, seq: int, filters: Filters) -> int:
        """How many messages at or after ``seq`` match and are not yet persisted."""


class Cursor:
    """Reads a stream for one consumer.

    ``pending`` is usable when ``known``, and correct while ``exact``; ``ahead`` (shared with the ack state) holds
    sequences to skip because they were already acked, which ``pending`` no longer counts.
    """

    def __init__(self, stream: Readable, filters: Filters, next_seq: int, ahead: set[int],
                 deliver_notifications: Callable[[], None] = lambda: None) -> None:
        """``deliver_notifications`` calls ``removed`` for what has been removed by now."""
        self.stream = stream
        self._deliver_notifications = deliver_notifications
        self.filters = filters
        self.next_seq = next_seq
        self.ahead = ahead
        self.pending = 0
        self.known = False
        self.counted = next_seq - 1
        self.skip = Listed()
        self.resume = 0
        self._off = False  # known, except for removals that could not be counted
        self._void = False
        self._jumps = 0
        self._passed = 0
        self._picked: tuple[Chunk, list[int] | None] | None = None
        self._to_take: Loading | None = None
        self._to_count: Loading | None = None
        """Held until its chunk is used; separate, so that counting and taking do not release each other's chunk."""

    @property
    def narrow(self) -> Filters | None:
        return None if self.filters.all else self.filters

    def list_first(self, seqs: Sequence[int], resume: int) -> None:
        """Deliver those of ``seqs`` (ascending) still to come, then continue after ``resume`` (last per subject)."""
        self.skip = Listed(seqs)
        self.skip.drop_below(self.next_seq)
        self.resume = resume
        if not self.skip:
            self.next_seq = resume + 1

    # ---- reading

    def take(self, count_max: int, bytes_max: int) -> Taken | Loading | None:
        """Up to ``count_max`` next messages, at least one; about ``bytes_max`` of bodies. A filtered consumer gets those of one
        chunk, unless the stream knows where they are.

        Returns None at the end of what is persisted. The cursor moves past them only in ``passed``.
        """
        if self.skip and (listed := self._take_listed(count_max, bytes_max)) is not None:
            return listed
        while not self.filters.all and (seqs := self.stream.known_seqs(self.filters, self.next_seq, count_max)) is not None:
            if not seqs:
                self._to_take = None
                self._ended()
                return None
            first = self.next_seq
            known = self._take_known(seqs, bytes_max)
            if known is not None:
                return known
            if self.next_seq == first:
                break
        while True:
            found = self.stream.next_chunk(self.next_seq, self.narrow)
            if found is None:
                self._to_take = None
                self._ended()
                return None
            if not isinstance(found, tuple):
                self._to_take = found
                if found.seq > self.next_seq:
                    self._move(found.seq)
                return found
            self._to_take = None
            chunk, block, i = found
            taken = self._cut(chunk, block, i, count_max, bytes_max)
            if taken is not None:
                return self._with_following(taken, chunk, count_max, bytes_max) if self.filters.all else taken
            # Nothing in this chunk matches.
            self._move(min(chunk.last_seq, self.stream.persisted_seq) + 1)

    def _take_known(self, seqs: Sequence[int], bytes_max: int) -> Taken | Loading | None:
        """The first of ``seqs``, from one chunk after another, as far as these are in memory; None: what is there was
        acked already, or is not where it should be.

        The values of a key are far apart: chunk by chunk, each of them would cost a delivery of its own.
        """
        stream, ahead, parts, at = self.stream, self.ahead, list[Taken](), 0
        loading: Loading | None = None
        while at < len(seqs) and bytes_max > 0:
            found = stream.chunk_of(seqs[at])
            if found is None:
                asked = stream.next_chunk(seqs[at], self.narrow)
                if not isinstance(asked, tuple):
                    loading = asked
                    break
                found = asked
            chunk, block, i = found
            if chunk.seq(i) != seqs[at]:
                break
            end = bisect_right(seqs, chunk.last_seq, at)
            here = seqs[at:end]
            if ahead:
                here = [seq for seq in here if seq not in ahead]
            if block.dead is not None:
                here = [seq for seq in here if seq not in block.dead]
            if here:
                parts.append(Taken.of(chunk, here))
                bytes_max -= sum(map(len, parts[-1].bodies))
            at = end
        self._to_take = loading  # not before: what was loaded for this call may be nowhere else
        if at and not parts:
            # All of these were acked already. If they were asked for again, they might have to be loaded again, without end.
            self._move(seqs[at - 1] + 1)
        return Taken.joined(parts, seqs[at - 1] + 1) if parts else loading

    def _with_following(self, taken: Taken, chunk: Chunk, count_max: int, bytes_max: int) -> Taken:
        """``taken``, which is of ``chunk``, with messages of the chunks after it, as far as these are small and in memory.

        A chunk of messages of a kilobyte has about a hundred: each would cost a delivery of its own, as much as its messages.
        """
        parts = [taken]
        while len(chunk) <= _JOINED_MAX and taken.end > chunk.last_seq and taken.end <= self.stream.persisted_seq:
            count_max -= len(taken)
            bytes_max -= sum(map(len, taken.bodies))
            if count_max <= 0 or bytes_max <= 0 or (found := self.stream.chunk_of(taken.end)) is None:
                break
            chunk, block, i = found
            following = self._cut(chunk, block, i, count_max, bytes_max)
            if following is None:
                break
            taken = following
            parts.append(taken)
        return Taken.joined(parts, taken.end) if len(parts) > 1 else taken

    def _cut(self, chunk: Chunk, block: Block, i: int, count_max: int, bytes_max: int) -> Taken | None:
        n = len(chunk)
        picks: list[int] | None = None
        if not self.filters.all:
            picks = self._picks(chunk)
            if picks is not None:
                picks = picks[bisect_left(picks, i):]
        dead, ahead = block.dead, self.ahead
        first = self.stream.first_seq
        if dead is not None or ahead or chunk.first_seq < first:
            seq = chunk.seq
            picks = [k for k in (range(i, n) if picks is None else picks)
                     if (s := seq(k)) >= first and (dead is None or s not in dead) and s not in ahead]
        limit = max(1, min(count_max, bytes_max * len(chunk) // (chunk.size + 1) + 1))
        if picks is None:
            stop = i + limit
            if stop >= n:
                stop, end = n, chunk.last_seq + 1
            else:
                end = chunk.seq(stop - 1) + 1
            return Taken.run(chunk, i, stop, end)
        if not picks:
            return None
        end = chunk.last_seq + 1
        if len(picks) > limit:
            picks = picks[:limit]
            end = chunk.seq(picks[-1]) + 1
        return Taken.picked(chunk, picks, end)

    def _picks(self, chunk: Chunk) -> list[int] | None:
        """The indexes of matching messages in ``chunk``; None: all. Cached for the current chunk."""
        if self._picked is None or self._picked[0] is not chunk:
            if len(self.filters.literals) == len(self.filters.subjects) == 1:
                picks = list(_places(chunk.subjects, self.filters.subjects[0]))
                self._picked = chunk, None if len(picks) == len(chunk) else picks
            else:
                wanted = list(map(self.filters.match, chunk.subjects))
                self._picked = chunk, None if all(wanted) else list(compress(range(len(wanted)), wanted))
        return self._picked[1]

    def _take_listed(self, count_max: int, bytes_max: int) -> Taken | Loading | None:
        """The next of the listed sequences (last message of each subject), as far as they are in one chunk; None: the others are
        gone, too, and the list has ended."""
        while self.skip:
            found = self.stream.next_chunk(self.skip.first, None)
            self._to_take = None if isinstance(found, tuple) else found
            if isinstance(found, tuple):
                chunk, block, _ = found
                most = min(count_max, bytes_max * len(chunk) // (chunk.size + 1) + 1)
                seqs = self._listed(chunk, block, self.skip.up_to(chunk.last_seq, max(most, 1)))
                if seqs:
                    return Taken.of(chunk, seqs)
            elif found is not None and found.seq == self.skip.first:
                return found
            self.pending -= self.known
            self._unlist(1)
        return None

    def _listed(self, chunk: Chunk, block: Block, seqs: Sequence[int]) -> Sequence[int]:
        """The first of ``seqs``, none of them behind the chunk, until one is gone."""
        if not seqs or seqs[0] < max(chunk.first_seq, self.stream.first_seq):
            return ()
        if block.dead is not None:
            dead = block.dead
            seqs = list(takewhile(lambda seq: seq not in dead, seqs))
        if (there := chunk.seqs) is not None:
            seqs = list(takewhile(lambda seq: there[bisect_left(there, seq)] == seq, seqs))
        return seqs

    def locate(self, seq: int) -> tuple[Chunk, Block, int] | Loading | None:
        """The one message ``seq``: its chunk, and its place in it; None when it is gone."""
        found = self._locate(seq)
        self._to_take = None if isinstance(found, tuple) else found
        return found

    def _locate(self, seq: int) -> tuple[Chunk, Block, int] | Loading | None:
        found = self.stream.next_chunk(seq, None)
        if not isinstance(found, tuple):
            return found if found is not None and found.seq == seq else None
        chunk, block, i = found
        if chunk.seq(i) != seq or seq < self.stream.first_seq or (block.dead is not None and seq in block.dead):
            return None
        return found

    def passed(self, taken: Taken, n: int) -> None:
        """The first ``n`` of ``taken`` were delivered."""
        if not n:
            return
        if self.skip:
            self.pending -= n
            self._unlist(n)
            return
        self.pending -= n
        self._passed += n
        end = taken.end if n == len(taken) else taken.seqs[n - 1] + 1
        self._move(end)

    def _unlist(self, n: int) -> None:
        self.next_seq = self.skip.drop(n) + 1
        if not self.skip:
            self.next_seq = self.resume + 1

    def _move(self, next_seq: int) -> None:
        self.next_seq = next_seq
        if next_seq > self.counted + 1:
            self.counted = next_seq - 1

    def _ended(self) -> None:
        """Nothing is left at or after ``next_seq``: ``pending`` is 0, whatever was counted."""
        end = self.stream.persisted_seq
        if end >= self.next_seq:
            self.next_seq = end + 1
        if end >= self.counted:
            self.counted = max(end, self.next_seq - 1)
            self.pending = 0
            self.known, self._off = True, False

    # ---- counting

    @property
    def exact(self) -> bool:
        """Whether ``pending`` is correct, up to ``counted``."""
        return self.known and not self._off

    def count(self) -> Loading | None:
        """Bring ``pending`` up to ``persisted_seq``; returns a Loading when that needs a read from the store."""
        self._deliver_notifications()
        stream = self.stream
        if self.known and self._off and not self.skip and stream.persisted_seq - self.next_seq < _LOOK_MAX:
            # So few that they are counted again at once: the next delivery shows the number.
            self.pending, self.counted, self._off = 0, self.next_seq - 1, False
        while self.known and self.counted < stream.persisted_seq:
            found = stream.next_chunk(self.counted + 1, self.narrow)
            if not isinstance(found, tuple):
                self._to_count = found
                if found is not None:
                    self.counted = max(self.counted, found.seq - 1)
                    return found
                self.counted = stream.persisted_seq
                break
            self._to_count = None
            chunk, block, i = found
            self.pending += self._matching(chunk, block, i) - self.count_ahead(self.counted + 1, chunk.last_seq)
            self.counted = chunk.last_seq
        return None

    def tail(self) -> int:
        """How many matches follow those in ``pending``, sequenced and not yet persisted; call ``count`` first.

        0 where many messages would have to be examined (``long_tail``).
        """
        stream = self.stream
        if not self.known or not stream.persisted_seq <= self.counted < stream.last_seq or self.long_tail:
            return 0
        return stream.tail_count(self.counted + 1, self.filters)

    @property
    def long_tail(self) -> bool:
        """Whether so many messages are not yet persisted that to find the matches among them would hold up the loop."""
        return not self.filters.all and self.stream.last_seq - self.stream.persisted_seq > _TAIL_MAX

    def last_to_come(self) -> int:
        """``last_seq`` if a match may be among the messages that are not yet persisted, else 0."""
        last_seq = self.stream.last_seq
        behind = last_seq - self.stream.persisted_seq
        if behind <= 0:
            return 0
        return last_seq if behind > _LOOK_MAX or self.count() is not None or self.tail() else 0

    def _matching(self, chunk: Chunk, block: Block, i: int) -> int:
        n = len(chunk)
        dead, first = block.dead, self.stream.first_seq
        if dead is None and chunk.first_seq >= first:
            if self.filters.all:
                return n - i
            return sum(map(self.filters.match, chunk.subjects[i:]))
        match, subjects = self.filters.match, chunk.subjects
        return sum(1 for k in range(i, n) if (s := chunk.seq(k)) >= first and (dead is None or s not in dead)
                   and match(subjects[k]))

    async def recount(self) -> None:
        """Recount, through the stream's indexes, until ``exact``. Deliveries and removals may continue meanwhile."""
        stream = self.stream
        self._deliver_notifications()
        tries = 0
        while not self.exact:
            if self.skip:
                self.pending, self.counted = len(self.skip), self.resume
                self.known, self._off = True, False
                return
            self._void = False
            start, jumps, passed, ahead = self.next_seq, self._jumps, self._passed, set(self.ahead)
            n, end = await stream.count_from(start, self.narrow)
            self._deliver_notifications()
            tries += 1
            delivered = self._passed - passed
            # What was delivered meanwhile may have left the stream, as by its ack, before it was counted.
            if jumps != self._jumps or ((self._void or delivered) and tries < _COUNT_TRIES):
                continue
            self.pending = max(0, n - delivered - sum(1 for s in ahead | self.ahead if start <= s <= end))
            self.counted = max(end, self.next_seq - 1)
            self.known, self._off = True, False

    def removed(self, first: int, last: int, msgs: int, subject: bytes | None) -> None:
        """``msgs`` messages within first..last left the stream, all of ``subject`` if it is given."""
        if self.skip and first <= self.resume:
            # Listed ones are looked up one by one, and nothing between them is pending.
            if last > self.resume:
                self._off = self._void = True  # how many of them were behind the list is unknown
            return
        if last < self.next_seq:
            return
        self._void = True  # a running count may reach further than ``counted``
        if not self.known or first > self.counted:
            return
        if subject is not None and not self.filters.match(subject):
            return
        if first <= self.next_seq and last >= self.counted and subject is None:
            self.pending = 0  # it was all that was counted
            return
        low, high = max(first, self.next_seq), min(last, self.counted)
        whole = low == first and high == last
        if not (whole or msgs == last - first + 1) or not (self.filters.all or subject is not None):
            self._off = True
            return
        self.pending -= msgs if whole else high - low + 1
        self.pending += self.count_ahead(low, high)

    def forget_count(self) -> None:
        """``pending`` may be wrong: it is no longer ``exact``, and a running count starts over."""
        self._off = self._void = True

    def is_to_come(self, seq: int) -> bool:
        """Whether ``seq``, not delivered yet, exists and matches; assumed to match if its subject is not in memory."""
        if not self.stream.may_hold(seq):
            return False
        found = self._locate(seq)
        if not isinstance(found, tuple):
            return found is not None
        chunk, _, i = found
        return self.filters.match(chunk.subjects[i])

    def acked_ahead(self, seq: int) -> None:
        """``seq`` is no longer pending: it was acked, and is now in ``ahead``."""
        if self.known and seq <= self.counted:
            self.pending -= 1

    def count_ahead(self, first: int, last: int) -> int:
        """How many messages of first..last need not be counted because they were acked ahead."""
        ahead = self.ahead
        if last - first < len(ahead):
            return sum(1 for s in range(first, last + 1) if s in ahead)
        return sum(1 for s in ahead if first <= s <= last)

    def refilter(self, filters: Filters) -> None:
        """Use other filters from here on; earlier messages are not revisited."""
        self.filters = filters
        self._picked = None
        self._invalidate()

    def jump(self, next_seq: int) -> None:
        """Continue at ``next_seq``, forwards or backwards."""
        self.next_seq = next_seq
        self.skip = Listed()
        self._invalidate()

    def pass_over(self, next_seq: int) -> None:
        """Nothing that matches is left below ``next_seq``; ``removed`` takes it out of ``pending``."""
        if n := self.skip.below(next_seq):
            self.pending -= n * self.known
            self._unlist(n)
        if not self.skip and self.next_seq < next_seq:
            self._move(next_seq)

    def _invalidate(self) -> None:
        self.known = False
        self._jumps += 1
        self.pending = 0
        self.counted = self.next_seq - 1


def _places(values: Sequence[bytes], wanted: bytes) -> Iterator[int]:
    at = -1
    with suppress(ValueError):
        while True:
            yield (at := values.index(wanted, at + 1))
