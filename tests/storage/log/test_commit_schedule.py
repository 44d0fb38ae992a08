"""The rules for closing a segment and beginning a put, as a table of facts and decisions."""

from __future__ import annotations

import random
from typing import Any

import pytest

from broker.storage.log.commit_schedule import (
    BLOCKS_MANY,
    BURST_NS,
    BYTES_MANY,
    MESSAGES_MANY,
    PAUSE_NS,
    Action,
    CommitSchedule,
    Facts,
)
from broker.storage.log.settings import LogSettings

MS = 1_000_000
NOW = 1_000_000 * MS
LEASE = 30_000 * MS
THIRD = LEASE // 3
INTERVAL = 50 * MS
EVENLY = {"commit_interval_ns": INTERVAL}
LEASED = {"lease_ns": LEASE}
BEGIN, CUT, HEARTBEAT, WAIT = Action.BEGIN, Action.CUT, Action.HEARTBEAT, Action.WAIT

TABLE: list[tuple[str, dict[str, int], dict[str, Any], Action, int | None]] = [
    # name, settings, facts (``ago``: time since the last put began), action, time to wait
    ("nothing to store", {}, {}, WAIT, None),
    ("closed at once if nothing is in flight", {}, {"asked": True}, CUT, None),
    ("closed right after a put", {}, {"asked": True, "ago": 0}, CUT, None),
    ("not closed while a put is in flight", {}, {"asked": True, "in_flight": 1}, WAIT, None),
    ("not closed beside an encoded put without an interval", {}, {"asked": True, "in_flight": 1, "beside": True}, WAIT,
     None),
    ("many bytes are put beside an encoded put", {},
     {"asked": True, "in_flight": 1, "beside": True, "bytes": BYTES_MANY}, CUT, None),
    ("many bytes wait until the last put is encoded", {}, {"asked": True, "in_flight": 1, "bytes": BYTES_MANY}, WAIT,
     None),
    ("many bytes wait for the interval", EVENLY,
     {"asked": True, "in_flight": 1, "beside": True, "bytes": BYTES_MANY, "ago": 0}, WAIT, INTERVAL),
    ("many bytes wait for the bound on puts in flight", {},
     {"asked": True, "in_flight": 4, "beside": True, "bytes": BYTES_MANY}, WAIT, None),
    ("a full segment is closed at once", {}, {"full": True, "in_flight": 1}, CUT, None),
    ("a full segment is closed while no put may begin", {}, {"full": True, "in_flight": 4}, CUT, None),
    ("a full segment is closed while commits are paused", {}, {"full": True, "paused": True}, CUT, None),
    ("the put of a closed segment begins at once", {}, {"closed": True, "in_flight": 3}, BEGIN, None),
    ("the bound on puts in flight holds", {}, {"closed": True, "in_flight": 4}, WAIT, None),
    ("the bound on puts in flight is a setting", {"puts_in_flight": 1}, {"closed": True, "in_flight": 1}, WAIT, None),

    ("the interval is over", EVENLY, {"asked": True, "ago": INTERVAL}, CUT, None),
    ("the interval is not over", EVENLY, {"asked": True, "ago": INTERVAL - MS}, WAIT, MS),
    ("the interval delays no closed segment", EVENLY, {"closed": True, "ago": 0, "in_flight": 1}, BEGIN, None),
    ("the interval is over and the put in flight is encoded", EVENLY, {"asked": True, "in_flight": 1, "beside": True},
     CUT, None),
    ("the interval is over and the put in flight is not encoded", EVENLY, {"asked": True, "in_flight": 1}, WAIT, None),
    ("the interval is not over and the put is encoded", EVENLY,
     {"asked": True, "in_flight": 1, "beside": True, "ago": 0}, WAIT, INTERVAL),

    ("a hasty segment does not wait for the interval", EVENLY, {"asked": True, "hasty": True, "ago": 0}, CUT, None),
    ("a hasty segment waits for the put in flight", EVENLY,
     {"asked": True, "hasty": True, "ago": 0, "in_flight": 1, "beside": True}, WAIT, INTERVAL),
    ("nothing waits for a hasty segment", EVENLY, {"hasty": True, "ago": 0}, WAIT, None),
    ("a saved interval is used", {**EVENLY, "commit_burst": 1}, {"asked": True, "ago": 0}, CUT, None),
    ("a saved interval is not used beside a put in flight", {**EVENLY, "commit_burst": 1},
     {"asked": True, "ago": 0, "in_flight": 1, "beside": True}, WAIT, INTERVAL),

    ("many small blocks wait for more messages", {}, {"asked": True, "blocks": BLOCKS_MANY, "count": 300}, WAIT,
     PAUSE_NS),
    ("few small blocks do not wait", {}, {"asked": True, "blocks": BLOCKS_MANY - 1, "count": 300}, CUT, None),
    ("many large blocks do not wait", {}, {"asked": True, "blocks": BLOCKS_MANY, "count": 16 * BLOCKS_MANY}, CUT, None),
    ("blocks without messages do not wait", {}, {"asked": True, "blocks": BLOCKS_MANY}, CUT, None),

    ("a burst waits for its end", EVENLY, {"asked": True, "count": MESSAGES_MANY}, WAIT, PAUSE_NS),
    ("few messages do not wait", EVENLY, {"asked": True, "count": MESSAGES_MANY - 1}, CUT, None),
    ("a burst does not wait without an interval", {}, {"asked": True, "count": 999}, CUT, None),
    ("a burst does not wait beside a put", EVENLY, {"asked": True, "count": 999, "in_flight": 1, "beside": True}, CUT,
     None),
    ("a hasty burst does not wait", EVENLY, {"asked": True, "count": 999, "hasty": True}, CUT, None),
    ("a burst does not delay a heartbeat", {**EVENLY, **LEASED}, {"asked": True, "count": 999, "ago": THIRD}, HEARTBEAT,
     None),

    ("a heartbeat every third of the lease", LEASED, {"ago": THIRD}, HEARTBEAT, None),
    ("no heartbeat before a third of the lease", LEASED, {"ago": THIRD - MS}, WAIT, MS),
    ("a heartbeat stores what there is", LEASED, {"ago": THIRD, "asked": True}, HEARTBEAT, None),
    ("many blocks do not delay a heartbeat", LEASED, {"ago": THIRD, "asked": True, "blocks": 999, "count": 999},
     HEARTBEAT, None),
    ("a closed segment is a heartbeat too", LEASED, {"ago": THIRD, "closed": True, "paused": True}, BEGIN, None),
    ("a put in flight serves as heartbeat", LEASED, {"ago": THIRD, "in_flight": 1}, WAIT, THIRD),
    ("overdue after a pause of the process", LEASED, {"ago": 99 * LEASE, "in_flight": 1}, WAIT, THIRD),
    ("a requested proof does not wait for a heartbeat", LEASED, {"ago": 0, "asked": True}, CUT, None),
    ("the interval or the heartbeat, whichever comes first", {**LEASED, "commit_interval_ns": LEASE},
     {"ago": MS, "asked": True}, WAIT, THIRD - MS),

    ("paused: nothing is closed", {}, {"asked": True, "paused": True}, WAIT, None),
    ("paused: nothing begins", {}, {"closed": True, "paused": True}, WAIT, None),
    ("paused: heartbeats continue", LEASED, {"asked": True, "paused": True, "ago": THIRD}, HEARTBEAT, None),
    ("paused: wait until a heartbeat is due", LEASED, {"asked": True, "paused": True, "ago": MS}, WAIT, THIRD - MS),
]


@pytest.mark.parametrize(("settings", "facts", "action", "wait_ns"), [row[1:] for row in TABLE],
                         ids=[row[0] for row in TABLE])
def test_decides(settings: dict[str, int], facts: dict[str, Any], action: Action, wait_ns: int | None) -> None:
    """Shows one row of the table, with a new schedule."""
    facts = dict(facts)
    given = Facts(NOW - facts.pop("ago", THIRD - MS), **facts)
    until_ns = None if wait_ns is None else NOW + wait_ns
    assert CommitSchedule(LogSettings(**settings)).decide(given, NOW) == (action, until_ns)  # type: ignore[arg-type]


@pytest.mark.parametrize("burst", [0, 1, 7])
@pytest.mark.parametrize("seed", range(20))
def test_a_burst_bounds_the_number_of_puts(burst: int, seed: int) -> None:
    """In any time T, at most T / interval + burst + 1 puts begin, and full segments delay no later put."""
    rng = random.Random(seed)
    schedule = CommitSchedule(LogSettings(commit_interval_ns=INTERVAL, commit_burst=burst))
    now_ns, began, last_ns = NOW, [], NOW - 99 * INTERVAL
    for _ in range(400):
        now_ns += rng.choice((MS, 3 * MS, INTERVAL, 0 if rng.random() < 0.95 else 5 * INTERVAL))
        decision = schedule.decide(Facts(last_ns, asked=True), now_ns)
        if decision.action is WAIT:
            assert decision.until_ns == last_ns + INTERVAL
            continue
        assert schedule.decide(Facts(last_ns, closed=True), now_ns).action is BEGIN
        last_ns = now_ns
        began.append(now_ns)
        for count, earlier_ns in enumerate(reversed(began), 1):
            assert count <= (now_ns - earlier_ns) // INTERVAL + burst + 1
    for _ in range(1000):  # full segments
        assert schedule.decide(Facts(now_ns, closed=True), now_ns).action is BEGIN
    assert schedule.decide(Facts(now_ns, asked=True), now_ns + INTERVAL).action is CUT


def grown(count: int) -> Facts:
    return Facts(0, asked=True, blocks=BLOCKS_MANY, count=count)


def test_small_blocks_wait_while_they_grow() -> None:
    """Shows that the wait lasts while more messages arrive, and ends when none arrived for a pause."""
    schedule = CommitSchedule(LogSettings())
    schedule.record_put(BLOCKS_MANY, 10 * MS)
    assert [schedule.decide(grown(300 + i), NOW + i * MS).action for i in range(5)] == [WAIT] * 5
    assert schedule.decide(grown(304), NOW + 5 * MS).action is WAIT
    assert schedule.decide(grown(304), NOW + 4 * MS + PAUSE_NS).action is CUT


def test_the_pause_is_longer_where_puts_take_long() -> None:
    """Shows that a publisher that is slow to send after many answers does not split its messages over two segments."""
    schedule = CommitSchedule(LogSettings())
    schedule.record_put(BLOCKS_MANY, 80 * MS)
    assert schedule.decide(grown(300), NOW).action is WAIT
    assert schedule.decide(grown(300), NOW + 9 * MS).action is WAIT
    assert schedule.decide(grown(301), NOW + 9 * MS).action is WAIT
    assert schedule.decide(grown(301), NOW + 18 * MS).action is WAIT
    assert schedule.decide(grown(301), NOW + 19 * MS).action is CUT


def test_small_blocks_wait_no_longer_than_the_last_such_segment_took() -> None:
    """Shows that a message's latency at most doubles, and that a segment of few blocks is no measurement."""
    schedule = CommitSchedule(LogSettings())
    schedule.record_put(BLOCKS_MANY, 3 * MS)
    schedule.record_put(1, 100 * MS)
    assert [schedule.decide(grown(300 + i), NOW + i * MS).action for i in range(4)] == [WAIT, WAIT, WAIT, CUT]


def test_the_next_segment_grows_from_nothing() -> None:
    """Shows that closing a segment ends only its own wait, not that of the next."""
    schedule = CommitSchedule(LogSettings())
    schedule.record_put(BLOCKS_MANY, MS)
    assert schedule.decide(grown(300), NOW).action is WAIT
    assert schedule.decide(grown(301), NOW + MS).action is CUT
    schedule.segment_closed()
    assert schedule.decide(grown(300), NOW + 2 * MS).action is WAIT


def burst(count: int, **facts: Any) -> Facts:
    return Facts(0, asked=True, blocks=1, count=count, **facts)


def test_a_burst_is_one_segment() -> None:
    """Shows that a burst is stored once its publisher has paused."""
    schedule = CommitSchedule(LogSettings(**EVENLY))
    assert [schedule.decide(burst(100 + i), NOW + i * MS).action for i in range(15)] == [WAIT] * 15
    assert schedule.decide(burst(114), NOW + 15 * MS).action is WAIT
    assert schedule.decide(burst(114), NOW + 14 * MS + PAUSE_NS).action is CUT


@pytest.mark.parametrize("interval_ns", [INTERVAL, BURST_NS // 2])
def test_a_burst_without_end(interval_ns: int) -> None:
    """Shows that publishers that never pause put off the first put for a bounded time, and no later one."""
    schedule = CommitSchedule(LogSettings(commit_interval_ns=interval_ns))
    most_ns = min(BURST_NS, interval_ns)
    times_ns = range(NOW, NOW + most_ns, MS)
    assert {schedule.decide(burst(100 + i), time_ns).action for i, time_ns in enumerate(times_ns)} == {WAIT}
    assert schedule.decide(burst(999), NOW + most_ns).action is CUT
    schedule.segment_closed()
    began_ns, now_ns = NOW + most_ns, NOW + most_ns + interval_ns
    assert schedule.decide(Facts(began_ns, asked=True, count=50), now_ns - MS).action is WAIT  # for the interval
    assert schedule.decide(Facts(began_ns, asked=True, count=99), now_ns).action is CUT
    schedule.segment_closed()
    assert schedule.decide(burst(50, in_flight=1), now_ns + interval_ns).action is WAIT  # for the put
    assert schedule.decide(burst(99), now_ns + interval_ns).action is CUT


@pytest.mark.parametrize("blocked", [{"in_flight": 2}, {"paused": True}, {"in_flight": 1}, {"began_ns": NOW - 1}])
def test_a_burst_that_waited_anyway_waits_no_longer(blocked: dict[str, Any]) -> None:
    """Shows that whatever delayed the put of a burst, the put begins as soon as that is over."""
    schedule = CommitSchedule(LogSettings(**EVENLY, puts_in_flight=2))
    assert schedule.decide(Facts(**{"began_ns": 0, **blocked}, asked=True, count=1), NOW).action is WAIT
    assert schedule.decide(burst(999), NOW + INTERVAL).action is CUT


@pytest.mark.parametrize("seed", range(30))
def test_the_wait_for_growth_is_bounded(seed: int) -> None:
    """Shows, for any growth and any instants, that it ends when the schedule said it would, or after the next growth.

    It is at most ``BURST_NS`` and at most the interval for a burst, and at most the last put's time for many blocks.
    """
    rng = random.Random(seed)
    interval_ns, took_ns = rng.choice((MS // 10, MS, INTERVAL)), rng.choice((MS, 30 * MS))
    schedule = CommitSchedule(LogSettings(commit_interval_ns=interval_ns))
    schedule.record_put(BLOCKS_MANY, took_ns)
    now_ns = NOW
    for _ in range(50):
        blocks = rng.choice((1, BLOCKS_MANY))
        most_ns = took_ns if blocks >= BLOCKS_MANY else min(interval_ns, BURST_NS)
        began_ns, count = now_ns, MESSAGES_MANY
        decision = schedule.decide(Facts(0, asked=True, blocks=blocks, count=count), now_ns)
        while decision.action is WAIT:
            assert decision.until_ns is not None
            assert now_ns < decision.until_ns <= min(began_ns + most_ns, now_ns + PAUSE_NS)
            if rng.random() < 0.8:  # more messages
                now_ns, count = rng.randint(now_ns, decision.until_ns), count + rng.randrange(3)
            else:
                now_ns = decision.until_ns
            decision = schedule.decide(Facts(0, asked=True, blocks=blocks, count=count), now_ns)
        assert decision.action is CUT
        schedule.segment_closed()
