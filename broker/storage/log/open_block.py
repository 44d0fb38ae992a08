"""The part of the open segment that one stream has added: growing lists and their sizes. No I/O."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate, repeat
from operator import itemgetter
from typing import Final, Generic, TypeVar

from broker.storage.format.block import Outcome, Removed
from broker.storage.format.frame import FRAME_BYTES, Chunk
from broker.storage.format.record import Record
from broker.storage.format.records.body import RecordBody

__all__ = ["BODY_BYTES_MAX", "NAMES_BYTES", "OpenBlock", "Owner", "Tally"]

TIME_NS_MAX: Final = (1 << 63) - 1
"""The last time that the format can store, in the year 2262."""

BODY_BYTES_MAX: Final = 128 << 20
"""No message is larger: max_payload is at most 64 MiB, and headers count in it."""

NAMES_BYTES: Final = 256
"""The bytes of a message's subject and reply that do not count towards a segment: at most 10 MB in a segment of 2 * 20
000 messages. Names may be as long as max_control_line, 1 MiB; an index may have 256 MiB."""

_CHUNK_MESSAGES: Final = 1024
"""The most messages in a chunk of an open block: a reader at another place needs a chunk of its own, which copies
them."""

Owner = TypeVar("Owner")

_NO_OUTCOME: Final = Outcome()
_NO_CRCS: Final[dict[int, int]] = {}


class Tally:
    """Raw bytes and messages of all blocks of one segment.

    Attributes: ``grown``: the streams whose blocks may have changed since the journal took this list (``journaling``),
        by id: the blocks themselves would be in a cycle, and kept in memory until a collection of all garbage.
    """

    __slots__ = ("bytes", "count", "grown")

    def __init__(self) -> None:
        self.bytes = 0
        self.count = 0
        self.grown: list[int] = []


class OpenBlock(Generic[Owner]):
    """The part of the open segment that one stream has added.

    ``raw_bytes`` is its size so far (bodies, records, removed ranges, long names) and decides when a segment is full.
    ``first_seq`` and ``last_seq`` are 0 while it has no message. The owner sets ``outcome`` before the block is sealed.
    Each addition also counts in ``tally``. ``grown`` is True if the stream is in the list of that name.
    """

    __slots__ = ("_hlens", "_starts", "bodies", "count", "crcs", "first_seq", "grown", "last_seq", "outcome", "owner",
                 "raw_bytes", "records", "removed", "runs", "stream_id", "subjects", "tally")

    def __init__(self, stream_id: int, owner: Owner, tally: Tally | None = None) -> None:
        self.stream_id = stream_id
        self.owner = owner
        self.tally = tally if tally is not None else Tally()
        self.outcome = _NO_OUTCOME
        self.grown = False
        self.count = 0
        self.raw_bytes = 0
        self.first_seq = 0
        self.last_seq = 0
        self.subjects: list[bytes] = []
        self.bodies: list[bytes] = []
        # Most blocks have neither, and each list would be one more object for the garbage collector to scan.
        self.records: list[Record] | tuple[()] = ()
        self.removed: list[Removed] | tuple[()] = ()
        self.crcs: dict[int, int] = _NO_CRCS
        """The checksums of some large bodies, by ordinal: the journal has computed them."""
        self.runs: list[tuple[int, int, int]] = []
        """Runs of messages with one time each: first_seq, number of messages, time_ns."""
        self._starts: list[int] | tuple[()] = ()
        """The first ordinal of each run, computed on demand and only for a block with gaps: a mirror may have a run for
        each message."""
        self._hlens: list[int] | None = None

    @property
    def empty(self) -> bool:
        """True if there is nothing to store. An outcome alone needs no block."""
        return not (self.count or self.records or self.removed)

    @property
    def hlens(self) -> Sequence[int] | None:
        """Header bytes of each message; None while none has headers."""
        return self._hlens

    def touch(self) -> None:
        """Record that the block, or only the outcome of its stream, is about to change."""
        if not self.grown:
            self.grown = True
            self.tally.grown.append(self.stream_id)

    def run_of(self, ordinal: int) -> tuple[int, int, int]:
        """Return the run that message ``ordinal`` was appended in: its first ordinal, its first sequence, its time."""
        place, start = self._run_at(ordinal)
        first_seq, _, time_ns = self.runs[place]
        return start, first_seq, time_ns

    def _run_at(self, ordinal: int) -> tuple[int, int]:
        """Return the place in ``runs`` of the run with message ``ordinal``, and the run's first ordinal."""
        runs = self.runs
        if self.last_seq - self.first_seq + 1 == self.count:
            place = bisect_right(runs, self.first_seq + ordinal, key=itemgetter(0)) - 1
            return place, runs[place][0] - self.first_seq
        if not 0 <= ordinal < self.count:
            raise IndexError(ordinal)
        starts = self._starts
        if isinstance(starts, tuple):
            starts = self._starts = [0]
        for _, count, _ in runs[len(starts) - 1:-1]:
            starts.append(starts[-1] + count)
        place = bisect_right(starts, ordinal) - 1
        return place, starts[place]

    def chunk(self, start: int, end: int) -> Chunk:
        """Return messages from ordinal ``start`` on, at least one: those before ``end`` that fit in one chunk."""
        end = min(end, start + _CHUNK_MESSAGES)
        lens = list(map(len, self.bodies[start:end]))
        if sum(lens) > FRAME_BYTES:
            lens = lens[:max(1, bisect_right(list(accumulate(lens)), FRAME_BYTES))]
            end = start + len(lens)
        place, at = self._run_at(start)
        times = array("q")
        seqs: list[int] = []
        gapless = self.last_seq - self.first_seq + 1 == self.count
        while at < end:
            first_seq, count, time_ns = self.runs[place]
            low, high = max(at, start), min(at + count, end)
            times.extend(repeat(time_ns, high - low))
            if not gapless:
                seqs += range(first_seq + low - at, first_seq + high - at)
            at += count
            place += 1
        if gapless or seqs[-1] - seqs[0] + 1 == len(seqs):
            first, of_message = (self.first_seq + start if gapless else seqs[0]), None
        else:
            first, of_message = seqs[0], seqs
        hlens = None if self._hlens is None else self._hlens[start:end]
        return Chunk(start, first, of_message, self.subjects[start:end], hlens if hlens and any(hlens) else None,
                     self.bodies[start:end], times, sum(lens))

    def append_run(self, first_seq: int, subjects: Sequence[bytes], hlens: Sequence[int] | None,
                   bodies: Sequence[bytes], time_ns: int, names_bytes: int | None = None) -> None:
        """Add messages with the sequences from ``first_seq`` on, all at ``time_ns`` (UTC, from 1970 to 2262).

        ``first_seq`` is above every sequence before it, with or without a gap. hlens None: no message has headers.
        ``names_bytes`` counts the subjects and all else that is kept in memory for these messages until they are
        stored.
        """
        if bodies:
            self._extend(first_seq, subjects, hlens, bodies, time_ns, time_ns, names_bytes)
            self.runs.append((first_seq, len(bodies), time_ns))

    def append_timed(self, first_seq: int, subjects: Sequence[bytes], hlens: Sequence[int] | None,
                     bodies: Sequence[bytes], times_ns: Sequence[int], names_bytes: int | None = None) -> None:
        """Add messages like ``append_run``, each with a time of its own; the times never decrease."""
        if not bodies:
            return
        self._extend(first_seq, subjects, hlens, bodies, times_ns[0], times_ns[-1], names_bytes)
        runs, start = self.runs, 0
        for at in range(1, len(bodies) + 1):
            if at == len(bodies) or times_ns[at] != times_ns[start]:
                runs.append((first_seq + start, at - start, times_ns[start]))
                start = at

    def _extend(self, first_seq: int, subjects: Sequence[bytes], hlens: Sequence[int] | None, bodies: Sequence[bytes],
                first_time_ns: int, last_time_ns: int, names_bytes: int | None) -> None:
        count = len(bodies)
        if (first_seq <= self.last_seq or not 0 <= first_time_ns <= last_time_ns <= TIME_NS_MAX
                or len(subjects) != count or (hlens is not None and len(hlens) != count)):
            raise ValueError(f"{count} messages from {first_seq} at {first_time_ns} cannot follow {self.last_seq}")
        if hlens is not None:
            if self._hlens is None:
                self._hlens = [0] * self.count
            self._hlens += hlens
        elif self._hlens is not None:
            self._hlens += repeat(0, count)
        if not self.count:
            self.first_seq = first_seq
        self.subjects += subjects
        self.bodies += bodies
        size = sum(map(len, bodies))
        if names_bytes is None:
            names_bytes = sum(map(len, subjects))
        if names_bytes > NAMES_BYTES * count:
            size += names_bytes - NAMES_BYTES * count
        self.raw_bytes += size
        self.count += count
        self.tally.bytes += size
        self.tally.count += count
        self.last_seq = first_seq + count - 1

    def append_one(self, seq: int, subject: bytes, body: bytes, time_ns: int) -> None:
        """Append one message without headers, whose names have at most ``NAMES_BYTES``: a faster ``append_run``."""
        if seq <= self.last_seq or not 0 <= time_ns <= TIME_NS_MAX:
            raise ValueError(f"message {seq} at {time_ns} cannot follow {self.last_seq}")
        if self._hlens is not None:
            self._hlens.append(0)
        if not self.count:
            self.first_seq = seq
        if not self.grown:
            self.touch()
        self.subjects.append(subject)
        self.bodies.append(body)
        self.runs.append((seq, 1, time_ns))
        size = len(body)
        self.raw_bytes += size
        self.count += 1
        tally = self.tally
        tally.bytes += size
        tally.count += 1
        self.last_seq = seq

    def add_crcs(self, crcs: Mapping[int, int]) -> None:
        """Keep checksums of bodies, by ordinal, for the segment."""
        if self.crcs is _NO_CRCS:
            self.crcs = {}
        self.crcs.update(crcs)

    def add(self, body: RecordBody) -> None:
        """Add a record that applies after the messages appended so far. It is packed at once."""
        self.add_record(Record.pack(body, self.last_seq))

    def add_record(self, record: Record) -> None:
        """Add a record that was packed before."""
        if isinstance(self.records, tuple):
            self.records = []
        self.records.append(record)
        self.raw_bytes += record.size
        self.tally.bytes += record.size

    def remove(self, first_seq: int, last_seq: int, msgs: int, size: int) -> None:
        """Record that ``msgs`` messages of ``size`` user bytes in all, in first_seq..last_seq, were removed.

        They may be in this block or in an earlier one of the stream.
        """
        if not 1 <= first_seq <= last_seq:
            raise ValueError(f"no range of sequences: {first_seq}..{last_seq}")
        if isinstance(self.removed, tuple):
            self.removed = []
        self.removed.append(Removed(first_seq, last_seq, msgs, size))
        self.raw_bytes += 8
        self.tally.bytes += 8
        self.tally.count += 1  # applying a removal takes about as long as applying a message
