"""Marks for messages whose times are ahead of the clock, compared with a list of the real times of storing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.jetstream.stream.state.ahead import RELEASED_NS, AheadOfClock
from broker.jetstream.stream.state.live import Live
from tests.manual_clock import ManualClock

SECOND = 1_000_000_000
NOW = RELEASED_NS + 86_400 * SECOND
FUTURE = NOW + 10 * 365 * 86_400 * SECOND

STEPS = st.lists(st.tuples(st.sampled_from(("store", "wait", "restart")), st.integers(1, 40)), max_size=60)


def made(clock: ManualClock, last_seq: int, last_time_ns: int, extra: dict[str, Any]) -> tuple[Live, AheadOfClock]:
    live = Live(lambda block: None, clock=clock, extra=extra)
    live.last_seq, live.last_time_ns = last_seq, last_time_ns
    live.ahead.configure(80 * SECOND, 0)
    return live, live.ahead


@given(steps=STEPS)
def test_no_message_seems_older_or_much_younger_than_it_is(steps: Sequence[tuple[str, int]]) -> None:
    """Messages arrive, time passes, and brokers restart, with the marks that were recorded.

    A message counts as stored no earlier than it was, and at most an eighth of ``max_age`` later. If no mark for it was
    recorded, it counts as stored at the next start, if that is later still. There are never many marks.
    """
    clock = ManualClock(NOW)
    extra: dict[str, Any] = {}
    live, ahead = made(clock, 1, FUTURE, extra)
    stored = {1: NOW - SECOND}
    latest = {1: NOW}
    if ahead.restore():
        extra.update(ahead.pop_changes())
    for what, number in steps:
        if what == "wait":
            clock.advance(number * SECOND)
        elif what == "store":
            live.ahead.notice(clock.now_ns(), FUTURE)
            for _ in range(number):
                live.last_seq += 1
                stored[live.last_seq] = clock.now_ns()
                latest[live.last_seq] = clock.now_ns() + 10 * SECOND
            if ahead.mark():
                extra.update(ahead.pop_changes())
        else:
            live, ahead = made(clock, live.last_seq, FUTURE, dict(extra))
            for seq in range(extra["ahead"][-1][0] + 1, live.last_seq + 1):
                latest[seq] = max(latest[seq], clock.now_ns())
            if ahead.restore():
                extra.update(ahead.pop_changes())
        now_ns = clock.now_ns()
        for seq, at_ns in stored.items():
            found = ahead.stored_at(seq, FUTURE)
            assert at_ns <= found <= now_ns
            if at_ns > now_ns - 80 * SECOND:
                assert found <= latest[seq]
        for limit_ns in (now_ns - 80 * SECOND, now_ns - 20 * SECOND, now_ns):
            known = ahead.stored_by(limit_ns)
            assert all(stored[seq] <= limit_ns for seq in stored if seq <= known)
        assert len(extra.get("ahead") or ()) <= 12


def test_nothing_is_marked_while_times_are_near_the_clock() -> None:
    clock = ManualClock(NOW)
    _, ahead = made(clock, 5, NOW + 59 * SECOND, {})
    assert not ahead.restore()
    assert (ahead.decision_ns(NOW + 59 * SECOND), ahead.stored_at(5, NOW + 59 * SECOND)) == (NOW + 59 * SECOND,) * 2
    assert ahead.stored_by(FUTURE) == 0


def test_marks_end_when_the_clock_reaches_the_last_time() -> None:
    clock = ManualClock(NOW)
    _, ahead = made(clock, 5, NOW + 3600 * SECOND, {})
    assert ahead.restore()
    assert ahead.pop_changes() == {"ahead": [[5, NOW]]}
    assert ahead.decision_ns(NOW + 3600 * SECOND) == NOW
    clock.advance(3600 * SECOND)
    assert ahead.mark()
    assert (ahead.pop_changes(), ahead.active) == ({"ahead": None}, False)
    assert ahead.stored_at(5, NOW + 3600 * SECOND) == NOW + 3600 * SECOND


@pytest.mark.parametrize("now_ns", [0, RELEASED_NS - 1])
def test_a_clock_that_cannot_be_right_is_not_trusted(now_ns: int) -> None:
    clock = ManualClock(now_ns)
    _, ahead = made(clock, 5, NOW, {"ahead": [[3, NOW - SECOND]]})
    ahead.notice(now_ns, NOW)
    assert not ahead.restore()
    assert (ahead.decision_ns(NOW), ahead.stored_at(5, NOW), ahead.stored_by(NOW)) == (NOW, NOW, 0)


def test_a_year_of_marks_is_short() -> None:
    """A stream with a duplicate window of two minutes and a ``max_age`` of a year gets a message every ten seconds.

    Its marks are recorded whole each time. There are some hundreds, and no message seems younger by more than an
    eighth.
    """
    day = 86_400 * SECOND
    clock = ManualClock(NOW)
    live, ahead = made(clock, 1, FUTURE, {})
    ahead.configure(365 * day, 120 * SECOND)
    stored = {}
    assert ahead.restore()
    longest = 0
    for step in (10 * SECOND, 3600 * SECOND):
        for _ in range(6000):
            clock.advance(step)
            ahead.notice(clock.now_ns(), FUTURE)
            live.last_seq += 1
            stored[live.last_seq] = clock.now_ns()
            ahead.mark()
            if changes := ahead.pop_changes():
                longest = max(longest, len(changes["ahead"]))
    assert longest < 400
    now_ns = clock.now_ns()
    for seq, at_ns in stored.items():
        assert at_ns <= ahead.stored_at(seq, FUTURE) <= at_ns + max(15 * SECOND, (now_ns - at_ns) // 8) + 3600 * SECOND
