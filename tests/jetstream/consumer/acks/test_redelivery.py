"""Timeouts of deliveries without an ack, and what a restart restores.

Virtual time throughout: ack waits, backoff, max_deliver, inactivity and pause end when the test advances the clock.
"""

from __future__ import annotations

from typing import Any

import pytest

from broker.base.gotime import format_time
from broker.jetstream.consumer.consumer import Consumer
from tests.jetstream.consumer.fakes import MS, SECOND, World, fresh_state, seqs, statuses


def restart(w: World, consumer: Consumer, state: Any, **config: Any) -> Consumer:
    """Return the consumer as a new broker finds it in ``state``."""
    consumer.stop()
    w.stream.consumers.remove(consumer)
    return w.consumer(state, **config)


def test_ack_wait_redelivers_in_sequence_before_new_messages() -> None:
    """Messages not acked in time are redelivered, by sequence, ahead of new ones."""
    w = World()
    w.stream.add(*["a"] * 4)
    consumer = w.consumer(ack_wait=SECOND)
    got = w.pull(consumer, b"4")
    w.ack(consumer, got[1])
    w.stream.add("a")
    assert not w.pass_time(SECOND + MS)
    again = w.pull(consumer, b"9")
    assert [(d.seq, d.count) for d in again] == [(1, 2), (3, 2), (4, 2), (5, 1)]
    assert [d.pending for d in again] == [1, 1, 1, 0]
    assert consumer.info()["num_redelivered"] == 3


def test_redeliveries_pass_max_ack_pending() -> None:
    """A full max_ack_pending stops new messages only."""
    w = World()
    w.stream.add(*["a"] * 4)
    consumer = w.consumer(ack_wait=SECOND, max_ack_pending=2)
    assert seqs(w.pull(consumer, b"9")) == [1, 2]
    assert seqs(w.pass_time(1500 * MS)) == [1, 2]


def test_backoff() -> None:
    """The wait after delivery n is backoff[n-1], the last one repeats forever."""
    w = World()
    w.stream.add("a")
    consumer = w.consumer(backoff=[SECOND, 3 * SECOND, 2 * SECOND])
    w.pull(consumer, b"100")
    at = []
    for tick in range(110):
        at += [tick] * len(seqs(w.pass_time(100 * MS)))
    assert at == [9, 39, 59, 79, 99]


@pytest.mark.shows("advisory.max_deliver")
@pytest.mark.parametrize("max_deliver", [1, 2, 3])
@pytest.mark.parametrize("nak", [False, True])
def test_max_deliver(max_deliver: int, nak: bool) -> None:
    """Shows one advisory after the last allowed delivery; the message leaves pending; a late ack is accepted."""
    w = World()
    w.stream.add("a", "a")
    consumer = w.consumer(ack_wait=SECOND, max_deliver=max_deliver)
    got = w.pull(consumer, b"2")
    w.ack(consumer, got[1])
    w.pull(consumer, b"99")
    last = got[0]
    for _ in range(max_deliver + 2):
        sent = w.ack(consumer, last, body=b"-NAK") if nak else w.pass_time(2 * SECOND)
        if seqs(sent):
            last = sent[-1]
    assert last.count == max_deliver
    events = w.events("MAX_DELIVERIES")
    assert [(e["stream_seq"], e["deliveries"]) for e in events] == [(1, max_deliver)]
    info = consumer.info()
    assert info["num_ack_pending"] == 0
    assert info["num_redelivered"] == (0 if max_deliver == 1 else 1)
    assert len(w.ack(consumer, last, reply=b"_INBOX.r")) == 1
    assert consumer.info()["num_redelivered"] == 0


@pytest.mark.shows("consumer.survives")
def test_waits_continue_after_a_restart() -> None:
    """Pending messages stay pending, with the rest of their ack wait and their delivery counts."""
    w = World()
    w.stream.add("a", "a", "a")
    consumer = w.consumer(ack_wait=2 * SECOND)
    first = w.pull(consumer, b"3")
    w.pass_time(SECOND)
    w.ack(consumer, first[1])
    state = w.stored(consumer, fresh_state(consumer))
    w.clock.advance(500 * MS)
    back = restart(w, consumer, state, ack_wait=2 * SECOND)
    info = back.info()
    assert (info["num_ack_pending"], info["delivered"]["consumer_seq"], info["ack_floor"]["stream_seq"]) == (2, 3, 0)
    w.pull(back, b"9")
    assert not w.pass_time(400 * MS)
    assert [(d.seq, d.count, d.cseq) for d in w.pass_time(200 * MS)] == [(1, 2, 4), (3, 2, 5)]


def test_a_wait_that_ended_while_the_broker_was_down() -> None:
    """Shows a redelivery at once after the restart."""
    w = World()
    w.stream.add("a")
    consumer = w.consumer(ack_wait=2 * SECOND)
    w.pull(consumer, b"1")
    state = w.stored(consumer, fresh_state(consumer))
    w.clock.advance(10 * SECOND)
    back = restart(w, consumer, state, ack_wait=2 * SECOND)
    w.pull(back, b"1")
    assert seqs(w.pass_time(2 * MS)) == [1]


@pytest.mark.parametrize("ahead", [30 * SECOND, 10 * 365 * 86400 * SECOND])
def test_the_last_owners_clock_was_ahead(ahead: int) -> None:
    """A delivery counts as made no later than the restart, also at the second restart.

    A NAK's delay keeps its length, and the times of the last activity are not in the future.
    """
    w = World()
    w.stream.add("a", "a")
    consumer = w.consumer(ack_wait=2 * SECOND)
    first = w.pull(consumer, b"2")
    w.ack(consumer, first[1], body=b'-NAK {"delay": 20000000000}')
    state = w.stored(consumer, fresh_state(consumer))
    w.clock.leap(-ahead)
    w.clock.advance(SECOND)
    for _ in range(2):
        consumer = restart(w, consumer, state, ack_wait=2 * SECOND)
        assert consumer.info()["delivered"]["last_active"] == format_time(w.clock.now_ns())
        w.stored(consumer, state)
    w.pull(consumer, b"50")
    assert not w.pass_time(1990 * MS)
    assert seqs(w.pass_time(20 * MS)) == [1]
    assert 2 not in seqs(w.pass_time(15 * SECOND))
    assert 2 in seqs(w.pass_time(4 * SECOND))


def test_deliver_and_ack_between_two_deltas_costs_nothing() -> None:
    """The delta has the consumer's position, and nothing about messages that were delivered and acked in between."""
    w = World()
    w.stream.add(*["a"] * 100)
    consumer = w.consumer()
    consumer.pop_delta()
    got = w.pull(consumer, b"100")
    w.ack(consumer, *got)
    delta = consumer.pop_delta()
    assert delta is not None
    assert delta.delivered is not None
    assert delta.delivered[:2] == [100, 100]
    assert (delta.dropped, delta.pending, delta.redelivered, delta.extra) == (None, None, None, None)
    assert consumer.pop_delta() is None


def test_memory_consumers_store_nothing() -> None:
    w = World()
    w.stream.add("a")
    consumer = w.consumer(mem_storage=True)
    w.pull(consumer, b"1")
    assert consumer.pop_delta() is None


def test_removed_messages_are_terminated() -> None:
    """A pending message that leaves the stream: no redelivery, TERMINATED advisory, floor and num_pending follow."""
    w = World()
    w.stream.add("a", "b", "a", "b", "a")
    consumer = w.consumer(filter_subject="a", ack_wait=SECOND)
    w.pull(consumer, b"2")
    w.stream.remove(1, 2, 5)
    info = consumer.info()
    assert (info["num_pending"], info["num_ack_pending"], info["ack_floor"]["stream_seq"]) == (0, 1, 2)
    (event,) = w.events("MSG_TERMINATED")
    assert (event["stream_seq"], event["reason"]) == (1, "Unacknowledged message was deleted")
    w.pull(consumer, b"9")
    assert seqs(w.pass_time(1500 * MS)) == [3]


def test_a_purge_moves_the_consumer_without_advisories() -> None:
    w = World()
    w.stream.add(*["a"] * 6)
    consumer = w.consumer(ack_wait=SECOND)
    w.pull(consumer, b"2")
    w.stream.remove(1, 2, 3, 4, purged=True)
    w.stream.first_seq = 5
    consumer.purged(5)
    w.loop.settle()
    info = consumer.info()
    assert (info["num_pending"], info["num_ack_pending"]) == (2, 0)
    assert (info["delivered"]["stream_seq"], info["ack_floor"]["stream_seq"]) == (4, 4)
    assert not w.events("MSG_TERMINATED")
    assert [(d.seq, d.cseq) for d in w.pull(consumer, b"9")] == [(5, 3), (6, 4)]


def test_pause() -> None:
    """Nothing is delivered while paused, redeliveries included, but pulls get heartbeats and expire, and acks work.

    Then delivery resumes.
    """
    w = World()
    w.stream.add("a", "a")
    consumer = w.consumer(ack_wait=SECOND)
    first = w.pull(consumer, b"1")
    config = consumer.config.copy()
    config.pause_until = w.clock.now_ns() + 10 * SECOND
    consumer.update(config)
    assert consumer.info()["paused"] is True
    assert consumer.info()["pause_remaining"] == 10 * SECOND
    sent = w.pull(consumer, {"batch": 1, "expires": 3 * SECOND, "idle_heartbeat": SECOND}) + w.pass_time(4 * SECOND)
    assert statuses(sent) == ["100 Idle Heartbeat", "100 Idle Heartbeat", "408 Request Timeout"]
    w.ack(consumer, first[0])
    w.pull(consumer, b"1")
    assert not w.pass_time(5 * SECOND)
    assert seqs(w.pass_time(2 * SECOND)) == [2]
    assert "paused" not in consumer.info()
    assert [e["paused"] for e in w.events("CONSUMER.PAUSE")] == [True, False]


def test_inactive_pull_consumer_is_given_up() -> None:
    """Requests and acks keep it alive; so does an outstanding ack wait; then the owner is notified once."""
    w = World()
    w.stream.add("a")
    consumer = w.consumer(inactive_threshold=5 * SECOND, ack_wait=20 * SECOND)
    inactive: list[Consumer] = []
    consumer.on_inactive = inactive.append
    w.pass_time(4 * SECOND)
    w.pull(consumer, b"1")
    w.pass_time(24 * SECOND)
    assert not inactive
    w.pass_time(3 * SECOND)
    assert inactive == [consumer]


def test_a_waiting_request_keeps_a_consumer() -> None:
    w = World()
    consumer = w.consumer(inactive_threshold=SECOND)
    inactive: list[Consumer] = []
    consumer.on_inactive = inactive.append
    w.pull(consumer, b"1")
    w.pass_time(60 * SECOND)
    assert not inactive
    w.bus.deaf.add(b"_INBOX.a")
    w.pass_time(5 * SECOND)
    assert inactive == [consumer]


def test_reset() -> None:
    """Back to a sequence, or to the ack floor; deliveries count from 1 again and nothing is pending."""
    w = World()
    w.stream.add(*["a"] * 5)
    consumer = w.consumer()
    got = w.pull(consumer, b"4")
    w.ack(consumer, got[0])
    from tests.jetstream.consumer.fakes import run

    assert run(w.loop, consumer.reset(0)) == 2
    info = consumer.info()
    assert (info["num_pending"], info["num_ack_pending"], info["delivered"]["consumer_seq"]) == (4, 0, 0)
    assert [(d.seq, d.cseq, d.count) for d in w.pull(consumer, b"2")] == [(2, 1, 1), (3, 2, 1)]
    assert run(w.loop, consumer.reset(5)) == 5
    assert [(d.seq, d.cseq) for d in w.pull(consumer, b"2")] == [(5, 1)]


@pytest.mark.parametrize("policy, extra, expected", [
    ("all", {}, [1, 2, 3, 4, 5, 6]),
    ("new", {}, [6]),
    ("last", {}, [5, 6]),
    ("last", {"filter_subject": "b"}, [4]),
    ("last_per_subject", {"filter_subject": ">"}, [3, 4, 5, 6]),
    ("last_per_subject", {"filter_subjects": ["a", "c"]}, [3, 5, 6]),
    ("by_start_sequence", {"opt_start_seq": 4}, [4, 5, 6]),
    ("by_start_sequence", {"opt_start_seq": 6}, [6]),
    ("by_start_time", {"opt_start_time": 1_700_000_000_000_000_000 + 3 * SECOND}, [4, 5, 6]),
    ("by_start_time", {"opt_start_time": 1_800_000_000_000_000_000}, [6]),
])
def test_deliver_policies(policy: str, extra: dict[str, Any], expected: list[int]) -> None:
    """Shows the start of each policy, with a message published after the consumer was made; num_pending agrees."""
    w = World()
    for subject in "ababc":
        w.stream.add(subject)
        w.clock.advance(SECOND)
    w.stream.messages[4] = (b"b", *w.stream.messages[4][1:])
    consumer = w.consumer(deliver_policy=policy, **extra)
    before = len([s for s in expected if s < 6])
    assert consumer.info()["num_pending"] == before
    w.stream.add("a")
    w.clock.advance(SECOND)
    got = seqs(w.pull(consumer, b"1")) + seqs(w.pull(consumer, b"9"))
    assert got == (expected if "filter_subject" not in extra or extra["filter_subject"] == ">" else
                   [s for s in expected if w.stream.messages[s][0] == b"b"])
    assert consumer.info()["num_pending"] == 0


def test_last_per_subject_continues_after_a_restart() -> None:
    """The list of last messages is resumed where it stopped."""
    w = World()
    w.stream.add("a", "b", "c", "a", "d")
    consumer = w.consumer(deliver_policy="last_per_subject", filter_subject=">")
    state = fresh_state(consumer)
    state.extra["resume"] = 5
    assert seqs(w.pull(consumer, b"2")) == [2, 3]
    back = restart(w, consumer, w.stored(consumer, state), deliver_policy="last_per_subject", filter_subject=">")
    assert back.info()["num_pending"] == 2
    w.stream.add("b")
    assert seqs(w.pull(back, b"9")) == [4, 5, 6]


def test_filters_can_be_changed() -> None:
    """num_pending is recounted from the consumer's position; earlier messages are not delivered again."""
    w = World()
    w.stream.add("a", "b", "a", "b", "c", "a")
    consumer = w.consumer(filter_subject="a")
    assert seqs(w.pull(consumer, b"2")) == [1, 3]
    config = consumer.config.copy()
    config.filter_subject, config.filter_subjects = "", ["b", "c"]
    consumer.update(config)
    w.loop.settle()
    assert consumer.info()["num_pending"] == 2
    assert seqs(w.pull(consumer, b"9")) == [4, 5]


def test_headers_only() -> None:
    """Payloads are left out; their length joins the headers."""
    w = World()
    w.stream.add("a", headers=b"NATS/1.0\r\nX: 1\r\n\r\n", payload=b"hello")
    w.stream.add("a", payload=b"")
    got = w.pull(w.consumer(headers_only=True), b"2")
    assert [(d.headers, d.payload) for d in got] == [
        (b"NATS/1.0\r\nX: 1\r\nNats-Msg-Size: 5\r\n\r\n", b""), (b"NATS/1.0\r\nNats-Msg-Size: 0\r\n\r\n", b"")]


def test_replay_at_the_original_pace() -> None:
    """Gaps between stored messages are waited out, up to the last message when the consumer began."""
    w = World()
    for gap in (0, 2, 0, 3):
        w.clock.advance(gap * SECOND)
        w.stream.add("a")
    consumer = w.consumer(replay_policy="original", ack_policy="none")
    assert seqs(w.pull(consumer, b"99")) == [1]
    assert not w.pass_time(1900 * MS)
    assert seqs(w.pass_time(200 * MS)) == [2, 3]
    assert not w.pass_time(2800 * MS)
    assert seqs(w.pass_time(200 * MS)) == [4]
    w.clock.advance(10 * SECOND)
    w.stream.add("a")
    w.loop.settle()
    assert seqs(w.bus.pop_sent()) == [5]


def test_ack_wait_can_be_changed() -> None:
    """Pending messages use the new ack_wait, counted from their delivery."""
    w = World()
    w.stream.add("a")
    consumer = w.consumer(ack_wait=60 * SECOND)
    w.pull(consumer, b"9")
    config = consumer.config.copy()
    config.ack_wait = SECOND
    consumer.update(config)
    assert seqs(w.pass_time(1100 * MS)) == [1]


def test_a_count_that_fails_is_tried_again_later() -> None:
    """A failed count of num_pending is retried after a delay; deliveries continue once the store answers."""
    w = World()
    w.stream.add("a", "b", "a")
    consumer = w.consumer(filter_subject="a")
    count_from, asked = w.stream.count_from, []

    async def fail(seq: int, filters: Any) -> tuple[int, int]:
        asked.append(seq)
        raise OSError("no store")

    w.stream.count_from = fail  # type: ignore[method-assign]
    config = consumer.config.copy()
    config.filter_subject = "b"
    consumer.update(config)
    w.pull(consumer, b"9")
    w.loop.settle()
    assert len(asked) == 1
    w.pass_time(10 * SECOND)
    assert 2 <= len(asked) <= 10
    w.stream.count_from = count_from  # type: ignore[method-assign]
    assert seqs(w.pass_time(20 * SECOND)) == [2]
