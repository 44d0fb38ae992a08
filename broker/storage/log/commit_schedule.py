"""When the log closes its open segment and when it begins a put: the rules alone. No I/O, no clock.

Owns the choice between the next steps and until when to wait. Does not own segments or timers (``log``), which gathers
the facts, asks, acts on the answer and asks again.

    a segment that is full is closed, and one that is closed is put, as soon as a put may begin
    a put begins while fewer than ``puts_in_flight`` are under way
    the open segment is closed when something waits for it, and
        no put is in flight; or the last one's bytes are there and its blocks are few, and ``commit_interval`` has passed
            since it began or, where there is none, this segment is large. Never sooner than that interval after the last
        and its blocks are few, or hold many messages each, or have stopped growing
    with a lease of T, a segment is put every T/3, an empty one if necessary
    while commits are paused, no other put begins
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from broker.storage.log.settings import LogSettings

__all__ = ["BLOCKS_MANY", "BYTES_MANY", "PAUSE_NS", "Action", "CommitSchedule", "Decision", "Facts"]

BLOCKS_MANY = 256
"""With this many blocks, they dominate a segment's cost, whatever they hold: the next one waits until it has landed,
and spreads that cost over more messages. With a thousand streams this was 30 to 50 % faster than puts side by side."""

BYTES_MANY = 1 << 20
"""So many bytes are worth a put beside the one in flight: they take longer to write than a put costs. An object's chunks, 32 of
them in flight, reached a directory on a busy disk 10 to 60 % faster."""

_MESSAGES_A_BLOCK = 8
"""With this many messages in each, blocks no longer dominate the cost."""

PAUSE_NS = 2_000_000
"""Publishers that sent nothing for this long are waiting for answers: stop waiting for them."""


@dataclass(slots=True)
class Facts:
    """What the log knows when it asks. Instants are of the monotonic clock."""

    began_ns: int
    """When the last put began."""
    in_flight: int = 0
    """Puts that have begun and are not persisted."""
    beside: bool = False
    """Whether the last of them is encoded and has few blocks, so that another may begin beside it."""
    closed: bool = False
    """Whether a closed segment waits for its put."""
    full: bool = False
    """Whether the open segment is."""
    asked: bool = False
    """Whether something in the open segment is waited for, or has been put off long enough."""
    paused: bool = False
    """Whether commits are paused."""
    blocks: int = 0
    """In the open segment."""
    count: int = 0
    """Its messages."""
    bytes: int = 0
    """Theirs."""


class Action(Enum):
    """The next step."""

    BEGIN = "begin the put of the oldest closed segment"
    CUT = "close the open segment"
    HEARTBEAT = "close the open segment, even if it is empty"
    WAIT = "do nothing until something changes, or until the time given"


class Decision(NamedTuple):
    """The next step, and for WAIT when to ask again; None: no timer is needed."""

    action: Action
    until_ns: int | None = None


_BEGIN, _CUT, _HEARTBEAT = Decision(Action.BEGIN), Decision(Action.CUT), Decision(Action.HEARTBEAT)


class CommitSchedule:
    """The rules above. Beside the facts it remembers how the open segment grows."""

    def __init__(self, settings: LogSettings) -> None:
        self._puts_max = settings.puts_in_flight
        self._interval_ns = settings.commit_interval_ns
        self._heartbeat_ns = None if settings.lease_ns is None else settings.lease_ns // 3
        self._lease_ns = settings.lease_ns or 0
        self._took_ns = 0
        self._grown = 0
        self._growing_ns = 0
        self._grown_at_ns = 0

    def decide(self, facts: Facts, now_ns: int) -> Decision:
        """What to do now. Ask again after each step but WAIT."""
        if facts.full:
            return _CUT
        if facts.in_flight >= self._puts_max:
            return self._wait(facts, now_ns)
        since_ns = now_ns - facts.began_ns
        heartbeat = self._heartbeat_ns is not None and not facts.in_flight and since_ns >= self._heartbeat_ns
        if facts.paused and not heartbeat:
            return self._wait(facts, now_ns)
        if facts.closed:
            return _BEGIN
        if not heartbeat and not facts.asked:
            return self._wait(facts, now_ns)
        if since_ns < self._interval_ns:
            return self._wait(facts, now_ns, facts.began_ns + self._interval_ns)
        if facts.in_flight and not (facts.beside and (self._interval_ns or facts.bytes >= BYTES_MANY)):
            return self._wait(facts, now_ns)
        if heartbeat:
            return _HEARTBEAT
        if self._growing(facts, now_ns):
            return self._wait(facts, now_ns, now_ns + PAUSE_NS)
        return _CUT

    def segment_closed(self) -> None:
        """The open segment was closed: the next one grows from nothing."""
        self._grown = 0

    def record_put(self, blocks: int, took_ns: int) -> None:
        """A segment of ``blocks`` blocks landed, ``took_ns`` after its put began."""
        if blocks >= BLOCKS_MANY:
            self._took_ns = took_ns

    def _wait(self, facts: Facts, now_ns: int, until_ns: int | None = None) -> Decision:
        """Until ``until_ns`` or the next heartbeat, whichever comes first."""
        if self._heartbeat_ns is not None:
            heartbeat_ns = max(facts.began_ns, now_ns - self._lease_ns) + self._heartbeat_ns
            until_ns = heartbeat_ns if until_ns is None else min(until_ns, heartbeat_ns)
            if until_ns <= now_ns:  # it is due, but something in flight holds it up, and landing asks again
                until_ns = now_ns + self._heartbeat_ns
        return Decision(Action.WAIT, until_ns)

    def _growing(self, facts: Facts, now_ns: int) -> bool:
        """Whether to wait a little, since many blocks of a few messages each are gathering and more keep coming.

        At most as long as the last such segment took to land, so a message's wait doubles at most.
        """
        blocks, count = facts.blocks, facts.count
        if blocks < BLOCKS_MANY or not count or count >= _MESSAGES_A_BLOCK * blocks:
            return False
        if not self._grown:
            self._growing_ns = now_ns
        elif now_ns - self._growing_ns >= self._took_ns:
            return False
        elif count == self._grown:
            return now_ns - self._grown_at_ns < PAUSE_NS
        self._grown, self._grown_at_ns = count, now_ns
        return True
