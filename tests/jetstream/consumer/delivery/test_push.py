"""Push consumers: interest, groups, flow control, heartbeats, rate limit."""

from __future__ import annotations

from typing import Any

import pytest

from broker.jetstream.consumer.delivery.flow_control import FlowWindow, RateLimit
from tests.jetstream.consumer.fakes import MS, SECOND, Delivered, World, fresh_state, seqs, statuses

WINDOW = 2 << 20


def test_delivers_only_while_somebody_listens() -> None:
    """Nothing is read or counted as delivered without interest; push_bound shows it."""
    w = World()
    w.stream.add("a", "a")
    consumer = w.consumer(deliver_subject="d")
    assert not w.bus.pop_sent()
    assert "push_bound" not in consumer.info()
    w.bus.listen(b"d")
    w.loop.settle()
    assert [(d.to, d.subject, d.seq) for d in w.bus.pop_sent()] == [(b"d", b"a", 1), (b"d", b"a", 2)]
    assert consumer.info()["push_bound"] is True
    w.bus.listen(b"d", False)
    w.stream.add("a")
    w.loop.settle()
    assert not w.bus.pop_sent()
    w.bus.listen(b"d")
    w.loop.settle()
    assert seqs(w.bus.pop_sent()) == [3]


@pytest.mark.shows("deliver.stored_first")
def test_woken_by_a_commit() -> None:
    w = World()
    w.consumer(deliver_subject="d", ack_policy="none")
    w.bus.listen(b"d")
    for seq in range(1, 4):
        w.stream.add("a")
        w.loop.settle()
        assert seqs(w.bus.pop_sent()) == [seq]


def test_redelivers_to_the_subject() -> None:
    """ack_wait works as for pulls; acks keep messages from coming back."""
    w = World()
    w.stream.add("a", "a")
    consumer = w.consumer(deliver_subject="d", ack_wait=SECOND)
    w.bus.listen(b"d")
    w.loop.settle()
    got = w.bus.pop_sent()
    w.ack(consumer, got[0])
    assert [(d.seq, d.count) for d in w.pass_time(1500 * MS)] == [(2, 2)]


def test_a_new_deliver_subject_gets_what_is_pending() -> None:
    """Moving to another subject redelivers everything that was not acked."""
    w = World()
    w.stream.add("a", "a")
    consumer = w.consumer(deliver_subject="d")
    w.bus.listen(b"d")
    w.loop.settle()
    w.bus.pop_sent()
    config = consumer.config.copy()
    config.deliver_subject = "e"
    w.bus.listen(b"e")
    consumer.update(config)
    w.loop.settle()
    assert [(d.to, d.seq, d.count) for d in w.bus.pop_sent()] == [(b"e", 1, 2), (b"e", 2, 2)]


def test_idle_heartbeats() -> None:
    """Heartbeats are sent only after an idle interval and while there is interest; they carry the last sequences."""
    w = World()
    w.consumer(deliver_subject="d", idle_heartbeat=SECOND, ack_policy="none")
    assert not w.pass_time(3 * SECOND)
    w.bus.listen(b"d")
    w.stream.add("a")
    assert seqs(w.pass_time(100 * MS)) == [1]
    assert not w.pass_time(800 * MS)
    (beat,) = w.pass_time(200 * MS)
    assert beat.headers == b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: 1\r\nNats-Last-Stream: 1\r\n\r\n"
    assert statuses(w.pass_time(3 * SECOND)) == ["100 Idle Heartbeat"] * 3


def test_flow_control_stops_and_resumes() -> None:
    """A request is sent at half the window; above the window delivery stops, which heartbeats report;
    the answer resumes it."""
    w = World(chunk_messages=8)
    for _ in range(40):
        w.stream.add("a", payload=b"x" * 100_000)
    w.consumer(deliver_subject="d", flow_control=True, idle_heartbeat=SECOND, ack_policy="none")
    w.bus.listen(b"d")
    w.loop.settle()
    sent = w.bus.pop_sent()
    requests = [d for d in sent if not d.is_message]
    assert [d.status for d in requests] == ["100 FlowControl Request"]
    fc = requests[0].reply
    assert fc.startswith(b"$JS.FC.S.C.")
    assert len(fc.split(b".")[-1]) == 4
    assert sent.index(requests[0]) == 11  # just above 1 MiB
    assert len(seqs(sent)) == 21  # just above 2 MiB
    (beat,) = w.pass_time(1100 * MS)
    assert b"Nats-Consumer-Stalled: " + fc in beat.headers
    w.bus.subscriptions[b"$JS.FC.S.C.*"]([(b"$JS.FC.S.C.nope", b"", 0, b"")], 0, 1, None, 0)
    w.loop.settle()
    assert not w.bus.pop_sent()
    handler = w.bus.subscriptions[b"$JS.FC.S.C.*"]
    handler([(fc, b"", 0, b"")], 0, 1, None, 0)
    w.loop.settle()
    sent = w.bus.pop_sent()
    assert len(seqs(sent)) == 19
    assert [d.status for d in sent if not d.is_message] == ["100 FlowControl Request"]


def _flow(w: World, request: Delivered, headers: bytes = b"") -> list[Delivered]:
    """Answer a flow control request; returns the messages sent as a result."""
    block = b"NATS/1.0\r\n" + headers + b"\r\n" if headers else b""
    w.bus.subscriptions[b"$JS.FC.S.C.*"]([(request.reply, b"", len(block), block)], 0, 1, None, w.clock.now_ns())
    w.loop.settle()
    return w.bus.pop_sent()


def test_acks_by_flow_control_survive_a_restart_and_never_time_out() -> None:
    """A full max_ack_pending requests an ack; acked messages stay acked after a restart, others are requested again."""
    config: dict[str, Any] = {"deliver_subject": "d", "flow_control": True, "idle_heartbeat": SECOND,
                              "ack_policy": "flow_control", "max_ack_pending": 3, "ack_wait": 0}
    w = World()
    w.stream.add(*["a"] * 5)
    consumer = w.consumer(**config)
    w.bus.listen(b"d")
    w.loop.settle()
    sent = w.bus.pop_sent()
    assert seqs(sent) == [1, 2, 3]
    sent = _flow(w, sent[-1], b"Nats-Last-Stream: 2\r\nNats-Last-Consumer: 2\r\n")
    assert seqs(sent) == [4, 5]
    assert not seqs(w.pass_time(3600 * SECOND))
    state = w.stored(consumer, fresh_state(consumer))
    assert (state.floor_sseq, sorted(state.pending)) == (2, [3, 4, 5])
    consumer.stop()
    w.bus.listen(b"d", on=False)
    w.stream.consumers.remove(consumer)
    w.bus.subscriptions.clear()

    again = w.consumer(state, **config)
    w.bus.listen(b"d")
    sent = w.pass_time(1500 * MS)
    assert not seqs(sent)
    assert statuses(sent) == ["100 Idle Heartbeat", "100 FlowControl Request"]
    _flow(w, sent[-1], b"Nats-Last-Stream: 5\r\nNats-Last-Consumer: 5\r\n")
    assert again.info()["num_ack_pending"] == 0
    assert again.info()["ack_floor"]["stream_seq"] == 5


@pytest.mark.parametrize("headers", [b"Nats-Last-Stream: 9\r\nNats-Last-Consumer: 9\r\n", b"Nats-Last-Stream: x\r\n",
                                     b"Nats-Last-Stream: -1\r\n", b"Nats-Last-Consumer: 2\r\n"])
def test_an_answer_that_acks_nothing_still_opens_the_window(headers: bytes) -> None:
    """Acks beyond the last delivery and headers without information move no floor; the next request goes out."""
    w = World()
    w.stream.add(*["a"] * 5)
    consumer = w.consumer(deliver_subject="d", flow_control=True, idle_heartbeat=SECOND, ack_policy="flow_control",
                          max_ack_pending=3, ack_wait=0)
    w.bus.listen(b"d")
    w.loop.settle()
    _flow(w, w.bus.pop_sent()[-1], headers)
    assert consumer.info()["ack_floor"]["stream_seq"] == 0
    assert statuses(w.pass_time(1500 * MS)) == ["100 Idle Heartbeat", "100 FlowControl Request"]


def test_flow_window_doubles_to_its_bound() -> None:
    """2 MiB, doubled by each answer, up to 32 MiB; an answer to anything but the outstanding request does nothing."""
    flow = FlowWindow()
    for expected in (4, 8, 16, 32, 32):
        assert flow.send([flow.window]) == (1, True)
        flow.asked(b"fc")
        assert not flow.answered(b"other")
        assert flow.answered(b"fc")
        assert not flow.answered(b"fc")
        assert flow.window == expected << 20
        assert flow.unanswered == 0


def test_rate_limit() -> None:
    """Bits per second over subject, reply, headers and payload, with a burst of one largest message."""
    w = World()
    w.stream.config.max_msg_size = 2000
    for _ in range(5):
        w.stream.add("a", payload=b"x" * 950)
    w.consumer(deliver_subject="d", ack_policy="none", rate_limit_bps=8 * 1000)
    w.bus.listen(b"d")
    w.loop.settle()
    assert seqs(w.bus.pop_sent()) == [1, 2]
    assert not w.pass_time(900 * MS)
    assert seqs(w.pass_time(3200 * MS)) == [3, 4, 5]


def test_a_message_above_the_burst_still_goes() -> None:
    limit = RateLimit(8000, 100, 0)
    assert limit.send([500], 0) == (1, 0)
    n, due = limit.send([500], 1)
    assert n == 0
    assert limit.send([500], due)[0] == 1


def test_a_deliver_group_is_asked_for() -> None:
    """Shows that only interest of the group counts."""
    w = World()
    w.stream.add("a")
    asked = []
    deliver = w.bus.deliver

    def remember(to: bytes, batch: object, *, queue: bytes = b"") -> int:
        asked.append((to, queue))
        return deliver(to, batch, queue=queue)

    w.bus.deliver = remember  # type: ignore[method-assign,assignment]
    w.consumer(deliver_subject="d", deliver_group="g")
    w.bus.listen(b"d")
    w.loop.settle()
    assert asked == [(b"d", b"g")]


def test_inactive_push_consumer_is_given_up() -> None:
    """The threshold counts from when the last subscriber left."""
    w = World()
    consumer = w.consumer(deliver_subject="d", inactive_threshold=5 * SECOND)
    inactive: list[object] = []
    consumer.on_inactive = inactive.append
    w.pass_time(4 * SECOND)
    w.bus.listen(b"d")
    w.pass_time(60 * SECOND)
    assert not inactive
    w.bus.listen(b"d", False)
    w.pass_time(4 * SECOND)
    assert not inactive
    w.pass_time(2 * SECOND)
    assert inactive == [consumer]


def test_nothing_is_delivered_past_the_lease() -> None:
    """While the lease is expired nothing is sent; the commit that renews it wakes the consumer."""
    w = World()
    w.consumer(deliver_subject="d")
    w.bus.listen(b"d")
    w.stream.log.lease_expired = True
    w.stream.add("a")
    w.loop.settle()
    assert not w.bus.pop_sent()
    w.stream.log.lease_expired = False
    w.stream.add("a")
    w.loop.settle()
    assert seqs(w.bus.pop_sent()) == [1, 2]
