"""The rules for when the log closes its open segment and when it begins a put. No I/O, no clock.

Owns the choice of the next step and how long to wait for it. Does not own segments or timers: the log gathers the
facts, calls ``decide``, takes the step and calls ``decide`` again.

    Close the open segment        if it is full
    Begin a put                   if a closed segment waits, and fewer than ``puts_in_flight`` puts are in flight
    Close the open segment        if something waits for it, and all of these hold:
                                    ``commit_interval`` has passed since the last put began; or no put is in
                                      flight, and the segment is hasty or ``commit_burst`` allows it
                                    no put is in flight; or the last one is encoded, has few blocks, and there is a
                                      ``commit_interval`` or the open segment is large
                                    its blocks are few, or hold many messages each, or have stopped growing
                                    it is not the beginning of a burst, or the burst has ended
    Put a segment, even empty     if a lease of T is to be renewed: T/3 after the last put began, and T/2 after the
                                    lease was last renewed without a put if the last put was empty: it says that the
                                    entries before it are stored
    Begin no other put            while commits are paused

Each put uses up one ``commit_interval``. Up to ``commit_burst`` intervals in which no put began are saved for later
puts, which need not wait. So the number of puts in a time T is at most T / ``commit_interval`` + ``commit_burst``, not
counting full and hasty segments.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from broker.storage.log.settings import LogSettings

__all__ = ["BLOCKS_MANY", "BURST_NS", "BYTES_MANY", "MESSAGES_MANY", "PAUSE_NS", "Action", "CommitSchedule", "Decision",
           "Facts"]

BLOCKS_MANY = 256
"""A segment with this many blocks costs more for its blocks than for its messages. The next put begins only after such
a segment is stored, so that the blocks of the next segment gather more messages. With a thousand streams this was 30 to
50 % faster than concurrent puts."""

BYTES_MANY = 1 << 20
"""Start another put beside the one in flight once the open segment has this many bytes: writing them takes longer than
a put's fixed cost. 32 concurrent chunks of an object reached a directory on a busy disk 10 to 60 % faster."""

_MESSAGES_A_BLOCK = 16
"""Blocks with this many messages each no longer dominate the cost of a segment: a block costs as much as 9."""

PAUSE_NS = 2_000_000
"""Publishers that sent nothing for this long are waiting for answers, so the segment is closed."""

_PAUSE_SHARE = 8
"""The pause is at least this part, an eighth, of the time that the last put of many blocks took. A publisher with
thousands of answers needs longer than ``PAUSE_NS`` to send the next messages, and so may the loop that reads them."""

MESSAGES_MANY = 16
"""The number of messages that, if they arrive while nothing delays a put, are the beginning of a burst. Its publisher
waits for the answers to all of it, so one put for all is sooner than one for its beginning and, an interval later, one
for the rest."""

BURST_NS = 20_000_000
"""The longest wait for the end of a burst: about the time of a put, also where the interval is longer."""


@dataclass(slots=True)
class Facts:
    """The state of the log on which ``decide`` depends. Instants are of the monotonic clock."""

    began_ns: int
    """The instant at which the last put began."""
    in_flight: int = 0
    """The number of puts that have begun and are not persisted."""
    beside: bool = False
    """True if the last put is encoded and has few blocks, so that another put may begin beside it."""
    closed: bool = False
    """True if a closed segment waits for its put."""
    full: bool = False
    """True if the open segment has reached a segment's bounds."""
    asked: bool = False
    """True if something waits for the open segment, or it has lazy changes that were put off long enough."""
    paused: bool = False
    """True while commits are paused."""
    blocks: int = 0
    """Blocks in the open segment."""
    count: int = 0
    """Messages in the open segment."""
    bytes: int = 0
    """Raw bytes in the open segment."""
    hasty: bool = False
    """True if something waits for the open segment that must not wait for the interval."""
    renewed_ns: int | None = None
    """The instant at which the lease was last renewed without a put; None: that does not replace the next heartbeat."""


class Action(Enum):
    """The next step."""

    BEGIN = "begin the put of the oldest closed segment"
    CUT = "close the open segment"
    HEARTBEAT = "close the open segment, even if it is empty"
    WAIT = "do nothing until something changes, or until the time given"


class Decision(NamedTuple):
    """The next step. For WAIT, ``until_ns`` is when to call ``decide`` again; None: no timer is needed."""

    action: Action
    until_ns: int | None = None


_BEGIN, _CUT, _HEARTBEAT = Decision(Action.BEGIN), Decision(Action.CUT), Decision(Action.HEARTBEAT)


class CommitSchedule:
    """The rules above. Remembers how the open segment grows."""

    def __init__(self, settings: LogSettings) -> None:
        self._puts_max = settings.puts_in_flight
        self._settings = settings
        self.share_interval(1.0)
        self._paid_ns = -1 << 62
        """The end of the intervals that are used up: from then on a put may begin."""
        self._heartbeat_ns = None if settings.lease_ns is None else settings.lease_ns // 3
        self._lease_ns = settings.lease_ns or 0
        self._took_ns = 0
        """The duration of the last put of a segment with many blocks."""
        self._grown = 0
        """Messages in the open segment when it was last seen to have grown; 0: not measured yet."""
        self._growing_ns = 0
        """The instant of the first measurement of the open segment."""
        self._grown_at_ns = 0
        """The instant of the measurement ``_grown``."""
        self._delayed = False
        """True if the open segment has waited for anything but its growth."""

    def share_interval(self, shards: float) -> None:
        """Leave ``shards`` times ``commit_interval`` between two puts: so many shards share it."""
        self._interval_ns = round(self._settings.commit_interval_ns * shards)
        self._burst_ns = self._settings.commit_burst * self._interval_ns

    def decide(self, facts: Facts, now_ns: int) -> Decision:
        """Return the next step. Call it again after each step except WAIT."""
        if facts.full:
            return _CUT
        since_ns = now_ns - facts.began_ns
        heartbeat = not facts.in_flight and (due_ns := self._heartbeat_due_ns(facts)) is not None and due_ns <= now_ns
        if facts.in_flight >= self._puts_max or (facts.paused and not heartbeat):
            self._delayed |= facts.asked
            return self._wait(facts, now_ns)
        if facts.closed:
            # A full segment may begin before the intervals are over, but later segments do not wait longer for that.
            self._paid_ns = min(max(self._paid_ns, now_ns - self._burst_ns), now_ns) + self._interval_ns
            return _BEGIN
        if not heartbeat and not facts.asked:
            return self._wait(facts, now_ns)
        if since_ns < self._interval_ns and (facts.in_flight or not (facts.hasty or self._saved(now_ns))):
            self._delayed = True
            return self._wait(facts, now_ns, facts.began_ns + self._interval_ns)
        if facts.in_flight and not (facts.beside and (self._interval_ns or facts.bytes >= BYTES_MANY)):
            self._delayed = True
            return self._wait(facts, now_ns)
        if heartbeat:
            return _HEARTBEAT
        until_ns = self._growing_until(facts, now_ns)
        return _CUT if until_ns <= now_ns else self._wait(facts, now_ns, until_ns)

    def _saved(self, now_ns: int) -> bool:
        """Return True if a saved interval is left, so that a put may begin now."""
        return self._burst_ns > 0 and self._paid_ns <= now_ns

    def segment_closed(self) -> None:
        """Measure the growth of the next open segment from zero."""
        self._grown, self._delayed = 0, False

    def record_put(self, blocks: int, took_ns: int) -> None:
        """Record that a segment of ``blocks`` blocks was stored ``took_ns`` after its put began."""
        if blocks >= BLOCKS_MANY:
            self._took_ns = took_ns

    def _wait(self, facts: Facts, now_ns: int, until_ns: int | None = None) -> Decision:
        """Wait until ``until_ns`` or the next heartbeat, whichever comes first."""
        if self._heartbeat_ns is not None and (due_ns := self._heartbeat_due_ns(facts)) is not None:
            heartbeat_ns = max(due_ns, now_ns - self._lease_ns + self._heartbeat_ns)
            until_ns = heartbeat_ns if until_ns is None else min(until_ns, heartbeat_ns)
            if until_ns <= now_ns:  # It is due, but a put in flight delays it. ``decide`` is called when that put ends.
                until_ns = now_ns + self._heartbeat_ns
        return Decision(Action.WAIT, until_ns)

    def _heartbeat_due_ns(self, facts: Facts) -> int | None:
        """Return when the next heartbeat is due; None: never."""
        if self._heartbeat_ns is None:
            return None
        due_ns = facts.began_ns + self._heartbeat_ns
        return due_ns if facts.renewed_ns is None else max(due_ns, facts.renewed_ns + self._lease_ns // 2)

    def _growing_until(self, facts: Facts, now_ns: int) -> int:
        """Return until when to wait, because many blocks of few messages each, or a burst, still receive more.

        The wait is at most as long as the put of the last such segment, or ``BURST_NS`` for a burst, so a message's
        latency at most doubles.
        """
        blocks, count = facts.blocks, facts.count
        if blocks >= BLOCKS_MANY and 0 < count < _MESSAGES_A_BLOCK * blocks:
            most_ns, pause_ns = self._took_ns or PAUSE_NS, max(PAUSE_NS, self._took_ns // _PAUSE_SHARE)
        elif self._interval_ns and count >= MESSAGES_MANY and not (facts.in_flight or facts.hasty or self._delayed):
            most_ns, pause_ns = min(self._interval_ns, BURST_NS), PAUSE_NS
        else:
            return now_ns
        if not self._grown:
            self._growing_ns = now_ns
        if count != self._grown:
            self._grown, self._grown_at_ns = count, now_ns
        return min(self._growing_ns + most_ns, self._grown_at_ns + pause_ns, now_ns + PAUSE_NS)
