"""The message ids that a stream has seen within its ``duplicate_window``, and the id of its last message.

Owns: the window's ids in memory, their expiry, and the list of ids that the open block must record.
Does not own: the handling of a duplicate (duplicates), the place where ids are stored (MSG_IDS records).

Times never decrease, so ids are ordered by both time and sequence: they are kept in runs, and expire from the front.
Removing messages does not remove their ids: an id stays for the window in any case.

There may be millions of ids, so no operation touches all of them at once. Each call to ``expire`` removes a limited
number of old ids; the other old ids count as removed. A restart reloads the ids in slices, the newest first, up to the
memory bound. If the bound is too low for all, ids are refused (``full``) until the missing ones have left the window: a
duplicate is never stored.

Memory: about 140 bytes plus the id itself for each id; ``bytes_max`` bounds it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from itertools import islice
from math import inf
from operator import itemgetter

from broker.jetstream.stream.publish.id_map import IdMap

__all__ = ["Dedupe"]

_ENTRY_BYTES = 140
"""A dictionary entry, the id's bytes object, its sequence and its place in the queue, as measured."""

_ALWAYS = -inf
"""Earlier than every time, even than the window's first times: the window may be longer than Unix time."""

_EXPIRED_AT_ONCE = 256
"""Ids removed by one publish: more than it adds, and at most 25 µs of work."""


class _Run:
    """Ids that arrived at one time; ``last_seq`` is the sequence of the last one's message."""

    __slots__ = ("ids", "last_seq", "time_ns")

    def __init__(self, time_ns: int, last_seq: int, ids: list[bytes]) -> None:
        self.time_ns = time_ns
        self.last_seq = last_seq
        self.ids = ids


class Dedupe:
    """The ids of one stream. With ``window_ns`` 0 only the last id is kept.

    Attributes:
        last_id: id of the stream's last message, b"" if it had none; None: not loaded yet after a restart.
        known: False after a restart, until ``restored`` is called because the window's ids are loaded.
        bytes: estimate of the memory used; ``full`` is True once it reaches ``bytes_max``.
    """

    __slots__ = ("_begin", "_limit_ns", "_older", "_runs", "_seqs", "_staged", "_unheld_ns", "bytes", "bytes_max",
                 "known", "last_id", "recorded", "window_ns")

    def __init__(self, window_ns: int, *, bytes_max: int = 256 << 20, known: bool = True) -> None:
        self.window_ns = window_ns
        self.bytes_max = bytes_max
        self.bytes = 0
        self.known = known or window_ns <= 0
        self.last_id: bytes | None = b"" if known else None
        self.recorded: list[tuple[int, bytes]] = []
        self._seqs = IdMap()
        self._runs: list[_Run] = []
        self._begin = 0
        """Index of the first run that is not removed."""
        self._limit_ns: float = _ALWAYS
        """Ids of this time or earlier have left the window, whether removed or not."""
        self._older: list[_Run] = []
        """Runs loaded so far after a restart, the newest first."""
        self._staged: list[tuple[int, int]] = []
        """(-last, first) of the staged messages whose ids are loaded so far, the newest first."""
        self._unheld_ns: float = _ALWAYS
        """Time of the newest id of the window that did not fit after a restart; ``_ALWAYS``: all ids fitted."""

    def __len__(self) -> int:
        return len(self._seqs)

    @property
    def full(self) -> bool:
        return self.bytes >= self.bytes_max or self._unheld_ns > self._limit_ns

    @property
    def next_expiry_ns(self) -> int | None:
        """Time at which the oldest id leaves the window; None if there is no id."""
        return self._runs[self._begin].time_ns + self.window_ns if self._begin < len(self._runs) else None

    @property
    def behind(self) -> bool:
        """True if some ids that have left the window are not removed yet."""
        runs, begin = self._runs, self._begin
        return begin < len(runs) and runs[begin].time_ns <= self._limit_ns

    def seen(self, msg_id: bytes) -> int:
        """Return the sequence of the message with this id, or 0. Call ``expire`` first."""
        seq = self._seqs.get(msg_id)
        if seq and self.behind:
            run = self._runs[bisect_left(self._runs, seq, self._begin, key=_last_seq)]
            return seq if run.time_ns > self._limit_ns else 0
        return seq

    def add(self, ids: Mapping[bytes, int], last_id: bytes, time_ns: int, *, stored: bool = True) -> None:
        """Remember the ids of messages sequenced at ``time_ns``, with their sequences.

        Args: ``last_id``: the last message's id, b"" if it had none. ``stored``: the open block must record the ids.
        """
        self.last_id = last_id
        if not ids:
            return
        if stored:
            self.recorded += [(seq, msg_id) for msg_id, seq in ids.items()]
        if self.window_ns > 0:
            self._seqs.update(ids)
            self.bytes += _ENTRY_BYTES * len(ids) + sum(map(len, ids))
            self._append(_Run(time_ns, max(ids.values()), list(ids)))

    def all_new(self, ids: Sequence[bytes]) -> bool:
        """Return whether no id in ``ids`` (b"": none) was seen before or occurs twice; False if uncertain."""
        given = [msg_id for msg_id in ids if msg_id]
        return self._seqs.has_none_of(given) and len(set(given)) == len(given)

    @property
    def newest_seq(self) -> int:
        """The last sequence of a message that has one of the ids; 0: there are no ids."""
        return self._runs[-1].last_seq if self._runs else 0

    def since(self, seq: int) -> list[Sequence[bytes]]:
        """Return the ids of messages after ``seq``; no message of the same run as ``seq`` is among them.

        The caller must read the lists in this turn of the loop, or copy them part by part, because they expire.
        """
        newer: list[Sequence[bytes]] = []
        for run in islice(reversed(self._runs), len(self._runs) - self._begin):
            if run.last_seq <= seq:
                break
            newer.append(run.ids)
        return newer

    def add_run(self, ids: Sequence[bytes], first_seq: int, time_ns: int) -> None:
        """Call ``add`` for all messages from ``first_seq`` on, at least one of which has an id (b"": none)."""
        self.last_id = ids[-1]
        pairs = [(seq, msg_id) for seq, msg_id in enumerate(ids, first_seq) if msg_id]
        self.recorded += pairs
        if self.window_ns > 0:
            given = [msg_id for _, msg_id in pairs]
            self._seqs.update(zip(given, (seq for seq, _ in pairs), strict=True))
            self.bytes += _ENTRY_BYTES * len(given) + sum(map(len, given))
            self._append(_Run(time_ns, pairs[-1][0], given))

    def _append(self, run: _Run) -> None:
        """Add a run. If the clock was set back, reduce newer times of earlier runs to its time: they leave with it."""
        runs = self._runs
        if runs and runs[-1].time_ns > run.time_ns:
            for earlier in islice(reversed(runs), len(runs) - self._begin):
                if earlier.time_ns <= run.time_ns:
                    break
                earlier.time_ns = run.time_ns
        runs.append(run)

    def expire(self, now_ns: int, count: int = _EXPIRED_AT_ONCE) -> None:
        """Set the end of the window from ``now_ns``, and remove up to ``count`` ids that are too old."""
        limit_ns = self._limit_ns = now_ns - self.window_ns
        runs, seqs, left = self._runs, self._seqs, count
        while self._begin < len(runs) and (run := runs[self._begin]).time_ns <= limit_ns and left > 0:
            ids, last_seq = run.ids, run.last_seq
            some = ids[-left:]
            for msg_id in some:
                self.bytes -= _ENTRY_BYTES + len(msg_id)
                seqs.forget(msg_id, last_seq)  # except an id that a later message has, too
            left -= len(some)
            if len(some) < len(ids):
                del ids[-len(some):]
            else:
                self._begin += 1
        if left == count:
            return
        seqs.shrink()
        if not len(seqs):
            self._runs, self._begin = [], 0
        elif self._begin > _BEGIN_MAX and self._begin > len(runs) // 16:
            del runs[:self._begin]
            self._begin = 0

    def pop_recorded(self) -> list[tuple[int, bytes]]:
        """Return (sequence, id) of the messages with ids since the last call, in order: the open block's MSG_IDS."""
        recorded, self.recorded = self.recorded, []
        return recorded

    def recorded_from(self, first_seq: int) -> list[tuple[int, bytes]]:
        """Return the part of ``pop_recorded`` from ``first_seq`` on, and keep it."""
        recorded = self.recorded
        return recorded[bisect_left(recorded, (first_seq,)):]

    def restore(self, ids: Sequence[tuple[int, bytes, int]], now_ns: int) -> bool:
        """Load ids that stored blocks recorded. Returns: whether older ids are needed, too.

        Called after a restart, before the first id is looked up: publishes with ids wait for ``restored``.

        Args: ``ids``: (sequence, id, time_ns) in order of sequence, a few thousand at most, all before the previous
            call's.
        """
        seqs, older, limit_ns = self._seqs, self._older, now_ns - self.window_ns
        for seq, msg_id, time_ns in reversed(ids):
            if time_ns <= limit_ns:
                return False
            if self.bytes >= self.bytes_max:
                self._unheld_ns = time_ns
                return False
            if newer := seqs.get(msg_id):
                # The newer message was staged, and dropped as a duplicate; or the window was shorter when it came.
                if not self._was_staged(newer):
                    continue
                seqs.put(msg_id, seq)
            else:
                seqs.update(((msg_id, seq),))
            self.bytes += _ENTRY_BYTES + len(msg_id)
            if older and older[-1].time_ns == time_ns:
                older[-1].ids.append(msg_id)
            else:
                older.append(_Run(time_ns, seq, [msg_id]))
        return True

    def restore_staged(self, first_seq: int, last_seq: int) -> None:
        """Mark the messages first_seq..last_seq, whose ids are restored next, as staged.

        A staged message may have been dropped as a duplicate when it joined. The range is before all previous ones.
        """
        self._staged.append((-last_seq, first_seq))

    def restored(self) -> None:
        """Finish the restoring: all ids of the window are loaded."""
        older, self._older, self._staged = self._older, [], []
        older.reverse()
        older += self._runs[self._begin:]
        self._runs, self._begin = older, 0
        self.known = True

    def _was_staged(self, seq: int) -> bool:
        """Return whether the message, whose id is loaded, was staged."""
        at = bisect_right(self._staged, -seq, key=itemgetter(0)) - 1
        return at >= 0 and self._staged[at][1] <= seq


def _last_seq(run: _Run) -> int:
    return run.last_seq


_BEGIN_MAX = 1024
"""Up to this many removed runs stay in the list, or a sixteenth of a long list: deleting them moves all others."""
