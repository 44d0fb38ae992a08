"""Decision times for messages whose stored times are ahead of the clock.

If the broker once runs while the clock is ahead, it dates messages with a future time, perhaps years ahead. Times in a
stream never decrease, so every later message gets the last of these times until the clock reaches it. Decisions about
these messages (age, duplicate window, TTL, schedules) cannot use their times. They use the clock, and marks:

    mark      a sequence, and a time of the clock by which all messages up to that sequence were stored

                       mark (40, 9:10)      mark (55, 9:20)        clock 9:25
    messages   … 38 39 40 │ 41 … 55         │ 56 57                 all of them dated 2036
    stored     by 9:10    │ by 9:20         │ by now

A mark is set when a block is stored, at most one per eighth of ``max_age`` or of the duplicate window. Older marks are
thinned out: the older they are, the larger the distance between them, so that a year leaves some hundreds of marks. A
decision therefore underestimates the age of a message by at most an eighth of that age or of the shorter span. Marks
are persisted with the stream's configuration, in update records, so that a restart does not make messages younger.

The opposite case is a clock that was right before and is in the past now. A clock that shows a time before this
version's release is not trusted here, and marks count only while the stream's last time is ahead. So no message is
lost.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from itertools import pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from broker.base.clock import Clock

__all__ = ["AHEAD_NS", "AheadOfClock"]

AHEAD_NS: Final = 60_000_000_000
"""A time at most this far ahead is used as it is: it comes from a small correction of the clock or from another
broker."""

RELEASED_NS: Final = 1_793_491_200_000_000_000
"""2026-11-01, the release of this version: a correct clock never shows an earlier time."""

_MARKS: Final = "ahead"
"""Key of a stream's extra values: [[sequence, time], …], both rising."""

_APART_NS_MIN: Final = 100_000_000
_APART_NS_MAX: Final = 3_600_000_000_000
_PARTS: Final = 8
"""Number of marks within the shorter of ``max_age`` and the duplicate window, and within the age of an older mark."""


class Stream(Protocol):
    """The stream's last message."""

    last_seq: int
    last_time_ns: int


class AheadOfClock:
    """The marks of one stream.

    Attributes: ``active``: True once the last message's time was found to be ahead of the clock.
    """

    __slots__ = ("_apart_ns", "_changed", "_clock", "_live", "_marks", "_span_ns", "active")

    def __init__(self, live: Stream, clock: Clock, extra: Mapping[str, Any]) -> None:
        self._live = live
        self._clock = clock
        self._marks: list[tuple[int, int]] = [(seq, at_ns) for seq, at_ns in extra.get(_MARKS) or ()]
        """A later mark may replace the last one, until the last one is far enough from the one before it."""
        self._changed = False
        self._span_ns = 0
        self._apart_ns = _APART_NS_MAX
        self.active = bool(self._marks)

    def configure(self, max_age_ns: int, window_ns: int) -> None:
        """Set the spans for which the marks must be exact enough: ``max_age`` and the duplicate window; 0: none."""
        spans = [span for span in (max_age_ns, window_ns) if span > 0]
        self._span_ns = max(spans, default=0)
        self._apart_ns = min(max(min(spans, default=_APART_NS_MAX) // _PARTS, _APART_NS_MIN), _APART_NS_MAX)

    def restore(self) -> bool:
        """Mark all messages that a start has found, if their time is ahead. Returns: whether marks must be stored."""
        if self._live.last_seq and self._live.last_time_ns:
            self.notice(self._clock.now_ns(), self._live.last_time_ns)
        return self.active and self.mark()

    def notice(self, now_ns: int, time_ns: int) -> None:
        """Activate the marks if a message that arrives at ``now_ns`` is dated ``time_ns``, far after it."""
        self.active = self.active or _far(time_ns, now_ns)

    def mark(self) -> bool:
        """Mark all messages up to the last one as stored by now. Returns: whether marks must be stored."""
        now_ns = self._clock.now_ns()
        if not _far(self._live.last_time_ns, now_ns):
            if now_ns >= RELEASED_NS and self._live.last_time_ns <= now_ns:
                self.active = False
                self._changed = self._changed or bool(self._marks)
                self._marks = []
            return self._changed
        marks, last_seq = self._marks, self._live.last_seq
        # The clock was set back, so the removed marks came from a clock that was ahead: those messages are not older
        # than now.
        while marks and marks[-1][1] > now_ns:
            marks.pop()
            self._changed = True
        kept = marks[-1] if marks else (0, 0)
        if last_seq > kept[0]:
            if len(marks) > 1 and now_ns - marks[-2][1] < self._apart_ns:
                marks[-1] = (last_seq, now_ns)
            else:
                marks.append((last_seq, now_ns))
                self._changed = True
                marks[:] = _thinned(marks, now_ns)
        # Of the marks that are older than every span, only the newest is needed.
        old = bisect_right(marks, now_ns - self._span_ns, key=itemgetter(1)) - 1
        if old > 0:
            del marks[:old]
        return self._changed

    def pop_changes(self) -> dict[str, Any]:
        """Return the marks to be recorded if they have changed since the last call; otherwise an empty dictionary."""
        if not self._changed:
            return {}
        self._changed = False
        return {_MARKS: [list(mark) for mark in self._marks] or None}

    # --- decisions ----------------------------------------------------------------------------------------------------

    def decision_ns(self, time_ns: int) -> int:
        """Return the time for decisions about a message that comes now and is dated ``time_ns``."""
        if not self.active:
            return time_ns
        now_ns = self._clock.now_ns()
        return now_ns if _far(time_ns, now_ns) else time_ns

    def stored_by(self, limit_ns: int) -> int:
        """Return the last message that was surely stored by ``limit_ns`` though it is dated later; 0 if there is
        none."""
        if not self.active or not _far(self._live.last_time_ns, self._clock.now_ns()):
            return 0
        at = bisect_right(self._marks, limit_ns, key=itemgetter(1))
        return self._marks[at - 1][0] if at else 0

    def stored_at(self, seq: int, time_ns: int) -> int:
        """Return the latest time at which message ``seq``, dated ``time_ns``, can have been stored."""
        if not self.active:
            return time_ns
        now_ns = self._clock.now_ns()
        if not _far(time_ns, now_ns):
            return time_ns
        at = bisect_left(self._marks, seq, key=itemgetter(0))
        return min(self._marks[at][1], now_ns) if at < len(self._marks) else now_ns

    def all_stored_at(self, seqs: Sequence[int], times: Sequence[int]) -> Sequence[int]:
        """Return ``stored_at`` for each message."""
        return list(map(self.stored_at, seqs, times)) if self.active else times


def _thinned(marks: Sequence[tuple[int, int]], now_ns: int) -> list[tuple[int, int]]:
    """Return the marks without those whose two neighbours are close together, compared with the age of the mark."""
    kept = list(marks[:1])
    for one, after in pairwise(marks[1:]):
        if (after[1] - kept[-1][1]) * _PARTS > now_ns - after[1]:
            kept.append(one)
    return [*kept, *marks[-1:]] if len(marks) > 1 else kept


def _far(time_ns: int, now_ns: int) -> bool:
    """Return whether a time is far ahead of the clock while the clock itself may be right."""
    return time_ns - now_ns > AHEAD_NS and now_ns >= RELEASED_NS
