"""The position of one consumer in its stream: the messages it gets next, and how many are pending.

Owns the next sequence to deliver, and the count of messages that are yet to be delivered for the first time
(``num_pending``). Also owns the list of a consumer that starts with the last message of each subject. Reads chunks from
the stream and cuts columns from them. It never waits: for a chunk that is not in memory it returns a ``Loading``, which
the caller awaits.

    ....delivered........│next_seq .... counted│......... safe_seq
                         └──── num_pending ────┘ + count()  brings ``counted`` up to safe_seq

``pending`` counts all messages at or below ``counted``; ``removed`` subtracts messages that leave the stream before
they were delivered. If their number is unknown (a range, of a filtered consumer), ``pending`` is wrong until
``recount``.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from itertools import compress, takewhile
from typing import Protocol

from broker.jetstream.consumer.cursor.listed import Listed
from broker.jetstream.consumer.cursor.message_columns import MessageColumns
from broker.jetstream.filters import Filters
from broker.storage.format.frame import Chunk

__all__ = ["Block", "Cursor", "Loading", "Readable"]

_TAIL_MAX = 65_536
"""The largest number of unpersisted sequences among which matches are counted in one turn of the loop."""

_TAIL_MAX_EACH = 4096
"""The value of ``_TAIL_MAX`` for a count that is made for each of many requests."""

_JOINED_MAX = 256
"""The largest chunk that is joined with others to one delivery.

Joining copies columns (0.1 µs a message) and saves 40 µs for each chunk.
"""

_COUNT_TRIES = 4
"""The tries of a count that removals or deliveries disturb; the last result is accepted as nearly right."""


class Loading(Protocol):
    """A chunk being read from the store. Several callers may await ``ready``, and then retry their call.

    The chunk stays in memory while the Loading is referenced.
    """

    @property
    def ready(self) -> Awaitable[object]: ...

    @property
    def seq(self) -> int:
        """The lowest sequence that the wanted message can have."""


class _Seqs(Protocol):
    def __contains__(self, seq: int, /) -> bool: ...


class Block(Protocol):
    """The block that contains a chunk."""

    @property
    def dead(self) -> _Seqs | None:
        """The sequences of this block that were removed, below the stream's first_seq or not; None: none."""


class Readable(Protocol):
    """The parts of a stream that a cursor uses, over messages at or below ``safe_seq``."""

    @property
    def first_seq(self) -> int: ...

    @property
    def safe_seq(self) -> int: ...

    @property
    def last_seq(self) -> int: ...

    def next_chunk(self, seq: int, filters: Filters | None) -> tuple[Chunk, Block, int] | Loading | None:
        """Return the chunk with the first message at or after ``seq``, its block, and the message's index in the chunk.

        None: there is no such message yet.
        """

    def known_seqs(self, filters: Filters, seq: int, most: int) -> Sequence[int] | None:
        """Return the first ``most`` messages at or after ``seq`` that match; None: not known without reading chunks."""

    def chunk_of(self, seq: int) -> tuple[Chunk, Block, int] | None:
        """Return ``next_chunk`` of a ``seq`` that ``known_seqs`` returned, if that needs no load."""

    def may_hold(self, seq: int) -> bool:
        """Return whether ``seq`` may be live, as far as is known without reading."""

    async def count_from(self, seq: int, filters: Filters | None) -> tuple[int, int]:
        """Return how many messages match from ``seq`` on, and up to which sequence they were counted."""

    def tail_count(self, seq: int, filters: Filters) -> int:
        """Return how many messages at or after ``seq`` match and are not yet persisted."""


class Cursor:
    """The reads of one consumer from its stream.

    ``pending`` is usable when ``known``, and correct while ``exact``. ``ahead`` (shared with the ack state) holds
    sequences to skip because they were already acked, which ``pending`` no longer counts.
    """

    def __init__(self, stream: Readable, filters: Filters, next_seq: int, ahead: set[int],
                 deliver_notifications: Callable[[], None] = lambda: None) -> None:
        """Args: ``deliver_notifications`` calls ``removed`` for all removals so far."""
        self.stream = stream
        self._deliver_notifications = deliver_notifications
        self.filters = filters
        self.next_seq = next_seq
        self.ahead = ahead
        self.pending = 0
        self.known = False
        self.counted = next_seq - 1
        self.listed = Listed()
        self.resume = 0
        self._off = False  # known, except for removals that could not be counted
        self._disturbed = False  # a running count may be wrong, because messages were removed
        self._jumps = 0
        self._delivered = 0
        self._picked: tuple[Chunk, list[int] | None] | None = None
        self._loading_next: Loading | None = None
        self._loading_count: Loading | None = None
        """The chunk that ``count`` waits for, held until it is used.

        It is separate from ``_loading_next``, so that counting and delivering do not release each other's chunk.
        """

    @property
    def narrow(self) -> Filters | None:
        return None if self.filters.all else self.filters

    def list_first(self, seqs: Sequence[int], resume: int) -> None:
        """Deliver the rest of ``seqs`` (ascending), then continue after ``resume`` (last per subject)."""
        self.listed = Listed(seqs)
        self.listed.drop_below(self.next_seq)
        self.resume = resume
        if not self.listed:
            self.next_seq = resume + 1

    # ---- reading

    def next_messages(self, count_max: int, bytes_max: int) -> MessageColumns | Loading | None:
        """Return up to ``count_max`` next messages, at least one, with about ``bytes_max`` of bodies.

        A filtered consumer gets messages of one chunk, unless the stream knows where the next ones are. None: no
        persisted message is left. The cursor moves past the messages only in ``advance``.
        """
        if self.listed and (listed := self._next_listed(count_max, bytes_max)) is not None:
            return listed
        while (not self.filters.all
               and (seqs := self.stream.known_seqs(self.filters, self.next_seq, count_max)) is not None):
            if not seqs:
                self._loading_next = None
                self._ended()
                return None
            first = self.next_seq
            known = self._next_known(seqs, bytes_max)
            if known is not None:
                return known
            if self.next_seq == first:
                break
        while True:
            found = self.stream.next_chunk(self.next_seq, self.narrow)
            if found is None:
                self._loading_next = None
                self._ended()
                return None
            if not isinstance(found, tuple):
                self._loading_next = found
                if found.seq > self.next_seq:
                    self._move(found.seq)
                return found
            self._loading_next = None
            chunk, block, i = found
            msgs = self._cut(chunk, block, i, count_max, bytes_max)
            if msgs is not None:
                return self._with_following(msgs, chunk, count_max, bytes_max) if self.filters.all else msgs
            # Nothing in this chunk matches.
            self._move(min(chunk.last_seq, self.stream.safe_seq) + 1)

    def _next_known(self, seqs: Sequence[int], bytes_max: int) -> MessageColumns | Loading | None:
        """Return the first of ``seqs``, from one chunk after another, as far as these are in memory.

        None: these messages were acked already, or are not where the stream expects them. Messages of one key are far
        apart: a delivery for each chunk would cost too much.
        """
        stream, ahead, parts, at = self.stream, self.ahead, list[MessageColumns](), 0
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
                parts.append(MessageColumns.of(chunk, here))
                bytes_max -= sum(map(len, parts[-1].bodies))
            at = end
        self._loading_next = loading  # not earlier: nothing else may hold the chunk that was loaded for this call
        if at and not parts:
            # All of these were acked already. Asking for them again might load them again, without end.
            self._move(seqs[at - 1] + 1)
        return MessageColumns.joined(parts, seqs[at - 1] + 1) if parts else loading

    def _with_following(self, msgs: MessageColumns, chunk: Chunk, count_max: int, bytes_max: int) -> MessageColumns:
        """Return ``msgs``, which are of ``chunk``, with messages of the next chunks, if these are small and in memory.

        A chunk of messages of a kilobyte has about a hundred: a delivery for each chunk would cost as much as its
        messages.
        """
        parts = [msgs]
        while len(chunk) <= _JOINED_MAX and msgs.end > chunk.last_seq and msgs.end <= self.stream.safe_seq:
            count_max -= len(msgs)
            bytes_max -= sum(map(len, msgs.bodies))
            if count_max <= 0 or bytes_max <= 0 or (found := self.stream.chunk_of(msgs.end)) is None:
                break
            chunk, block, i = found
            following = self._cut(chunk, block, i, count_max, bytes_max)
            if following is None:
                break
            msgs = following
            parts.append(msgs)
        return MessageColumns.joined(parts, msgs.end) if len(parts) > 1 else msgs

    def _cut(self, chunk: Chunk, block: Block, i: int, count_max: int, bytes_max: int) -> MessageColumns | None:
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
            return MessageColumns.run(chunk, i, stop, end)
        if not picks:
            return None
        end = chunk.last_seq + 1
        if len(picks) >= limit:
            # Pass over nothing more, even if no other message of the chunk matches: the filters may change.
            picks = picks[:limit]
            end = chunk.seq(picks[-1]) + 1
        return MessageColumns.picked(chunk, picks, end)

    def _picks(self, chunk: Chunk) -> list[int] | None:
        """Return the indexes of matching messages in ``chunk``; None: all. Cached for the current chunk."""
        if self._picked is None or self._picked[0] is not chunk:
            if len(self.filters.literals) == len(self.filters.subjects) == 1:
                picks = list(_places(chunk.subjects, self.filters.subjects[0]))
                self._picked = chunk, None if len(picks) == len(chunk) else picks
            else:
                wanted = list(map(self.filters.match, chunk.subjects))
                self._picked = chunk, None if all(wanted) else list(compress(range(len(wanted)), wanted))
        return self._picked[1]

    def _next_listed(self, count_max: int, bytes_max: int) -> MessageColumns | Loading | None:
        """Return the next listed sequences (last message of each subject), as far as they are in one chunk.

        None: all others have left the stream, and the list has ended.
        """
        while self.listed:
            found = self.stream.next_chunk(self.listed.first, None)
            self._loading_next = None if isinstance(found, tuple) else found
            if isinstance(found, tuple):
                chunk, block, _ = found
                most = min(count_max, bytes_max * len(chunk) // (chunk.size + 1) + 1)
                seqs = self._first_present(chunk, block, self.listed.up_to(chunk.last_seq, max(most, 1)))
                if seqs:
                    return MessageColumns.of(chunk, seqs)
            elif found is not None and found.seq == self.listed.first:
                return found
            self.pending -= self.known
            self._unlist(1)
        return None

    def _first_present(self, chunk: Chunk, block: Block, seqs: Sequence[int]) -> Sequence[int]:
        """Return the first of ``seqs``, up to one that has left the stream. None of them is after the chunk."""
        if not seqs or seqs[0] < max(chunk.first_seq, self.stream.first_seq):
            return ()
        if block.dead is not None:
            dead = block.dead
            seqs = list(takewhile(lambda seq: seq not in dead, seqs))
        if (there := chunk.seqs) is not None:
            seqs = list(takewhile(lambda seq: there[bisect_left(there, seq)] == seq, seqs))
        return seqs

    def locate(self, seq: int) -> tuple[Chunk, Block, int] | Loading | None:
        """Return the chunk and block of the message ``seq``, and its index in the chunk; None:
        it has left the stream."""
        found = self._locate(seq)
        self._loading_next = None if isinstance(found, tuple) else found
        return found

    def _locate(self, seq: int) -> tuple[Chunk, Block, int] | Loading | None:
        found = self.stream.next_chunk(seq, None)
        if not isinstance(found, tuple):
            return found if found is not None and found.seq == seq else None
        chunk, block, i = found
        if chunk.seq(i) != seq or seq < self.stream.first_seq or (block.dead is not None and seq in block.dead):
            return None
        return found

    def advance(self, msgs: MessageColumns, n: int) -> None:
        """Move past the first ``n`` of ``msgs``, which were delivered."""
        if not n:
            return
        if self.listed:
            self.pending -= n
            self._unlist(n)
            return
        self.pending -= n
        self._delivered += n
        end = msgs.end if n == len(msgs) else msgs.seqs[n - 1] + 1
        self._move(end)

    def _unlist(self, n: int) -> None:
        self.next_seq = self.listed.drop(n) + 1
        if not self.listed:
            self.next_seq = self.resume + 1

    def _move(self, next_seq: int) -> None:
        self.next_seq = next_seq
        if next_seq > self.counted + 1:
            self.counted = next_seq - 1

    def _ended(self) -> None:
        """Record that no message is left at or after ``next_seq``: ``pending`` is 0, whatever was counted."""
        end = self.stream.safe_seq
        if end >= self.next_seq:
            self.next_seq = end + 1
        if end >= self.counted:
            self.counted = max(end, self.next_seq - 1)
            self.pending = 0
            self.known, self._off = True, False

    # ---- counting

    @property
    def exact(self) -> bool:
        """True if ``pending`` is correct, up to ``counted``."""
        return self.known and not self._off

    def count(self) -> Loading | None:
        """Bring ``pending`` up to ``safe_seq``; returns a Loading if that needs a read from the store."""
        self._deliver_notifications()
        stream = self.stream
        if self.known and self._off and not self.listed and stream.safe_seq - self.next_seq < _TAIL_MAX_EACH:
            # Few messages are left, so count them again at once: the next delivery shows the number.
            self.pending, self.counted, self._off = 0, self.next_seq - 1, False
        while self.known and self.counted < stream.safe_seq:
            found = stream.next_chunk(self.counted + 1, self.narrow)
            if not isinstance(found, tuple):
                self._loading_count = found
                if found is not None:
                    self.counted = max(self.counted, found.seq - 1)
                    return found
                self.counted = stream.safe_seq
                break
            self._loading_count = None
            chunk, block, i = found
            self.pending += self._matching(chunk, block, i) - self.count_ahead(self.counted + 1, chunk.last_seq)
            self.counted = chunk.last_seq
        return None

    def tail(self) -> int:
        """Return how many unpersisted messages match after those in ``pending``; call ``count`` first.

        0 if many messages would have to be examined (``long_tail``).
        """
        stream = self.stream
        if not self.known or not stream.safe_seq <= self.counted < stream.last_seq or self.long_tail:
            return 0
        return stream.tail_count(self.counted + 1, self.filters)

    @property
    def long_tail(self) -> bool:
        """True if finding matches among the messages that are not yet persisted would hold up the loop."""
        return not self.filters.all and self.stream.last_seq - self.stream.safe_seq > _TAIL_MAX

    def last_to_come(self) -> int:
        """Return ``last_seq`` if a match may be among the messages that are not yet persisted, else 0."""
        last_seq = self.stream.last_seq
        behind = last_seq - self.stream.safe_seq
        if behind <= 0:
            return 0
        return last_seq if behind > _TAIL_MAX_EACH or self.count() is not None or self.tail() else 0

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
            if self.listed:
                self.pending, self.counted = len(self.listed), self.resume
                self.known, self._off = True, False
                return
            self._disturbed = False
            start, jumps, passed, ahead = self.next_seq, self._jumps, self._delivered, set(self.ahead)
            n, end = await stream.count_from(start, self.narrow)
            self._deliver_notifications()
            tries += 1
            delivered = self._delivered - passed
            # Messages delivered meanwhile may have left the stream, for example by an ack, before they were counted.
            if jumps != self._jumps or ((self._disturbed or delivered) and tries < _COUNT_TRIES):
                continue
            self.pending = max(0, n - delivered - sum(1 for s in ahead | self.ahead if start <= s <= end))
            self.counted = max(end, self.next_seq - 1)
            self.known, self._off = True, False

    def removed(self, first: int, last: int, msgs: int, subject: bytes | None) -> None:
        """Subtract ``msgs`` messages within first..last that left the stream, all of ``subject`` if it is given."""
        if self.listed and first <= self.resume:
            # Listed messages are read one by one, and no message between them is pending.
            if last > self.resume:
                self._off = self._disturbed = True  # it is unknown how many of them were after the list
            return
        if last < self.next_seq:
            return
        self._disturbed = True  # a running count may reach further than ``counted``
        if not self.known or first > self.counted:
            return
        if subject is not None and not self.filters.match(subject):
            return
        if first <= self.next_seq and last >= self.counted and subject is None:
            self.pending = 0  # all counted messages were removed
            return
        low, high = max(first, self.next_seq), min(last, self.counted)
        whole = low == first and high == last
        if not (whole or msgs == last - first + 1) or not (self.filters.all or subject is not None):
            self._off = True
            return
        self.pending -= msgs if whole else high - low + 1
        self.pending += self.count_ahead(low, high)

    def forget_count(self) -> None:
        """Mark ``pending`` as not ``exact``; a running count starts over."""
        self._off = self._disturbed = True

    def is_to_come(self, seq: int) -> bool:
        """Return whether ``seq``, not delivered yet, exists and matches.

        A message whose subject is not in memory is assumed to match.
        """
        if not self.stream.may_hold(seq):
            return False
        found = self._locate(seq)
        if not isinstance(found, tuple):
            return found is not None
        chunk, _, i = found
        return self.filters.match(chunk.subjects[i])

    def acked_ahead(self, seq: int) -> None:
        """Subtract ``seq``, which was acked and is now in ``ahead``, from the pending messages."""
        if self.known and seq <= self.counted:
            self.pending -= 1

    def count_ahead(self, first: int, last: int) -> int:
        """Return how many messages of first..last need not be counted because they were acked ahead."""
        ahead = self.ahead
        if last - first < len(ahead):
            return sum(1 for s in range(first, last + 1) if s in ahead)
        return sum(1 for s in ahead if first <= s <= last)

    def refilter(self, filters: Filters) -> None:
        """Use other filters from here on; earlier messages are not delivered again."""
        self.filters = filters
        self._picked = None
        self._invalidate()

    def jump(self, next_seq: int) -> None:
        """Continue at ``next_seq``, forwards or backwards."""
        self.next_seq = next_seq
        self.listed = Listed()
        self._invalidate()

    def pass_over(self, next_seq: int) -> None:
        """Move to ``next_seq``, because no match is left below it.
        ``removed`` subtracts these messages from ``pending``."""
        if n := self.listed.below(next_seq):
            self.pending -= n * self.known
            self._unlist(n)
        if not self.listed and self.next_seq < next_seq:
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
