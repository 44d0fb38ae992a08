"""Pull requests: the meaning of each body, how messages are shared out, and how a request ends.

Each test builds a stream in memory and a consumer on a virtual loop, sends requests as a client would, and checks what
arrived in the inbox, status texts to the byte.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.jetstream.consumer.fakes import MS, SECOND, World, seqs, statuses


def world(count: int, **kwargs: Any) -> World:
    w = World(**kwargs)
    w.stream.add(*["a"] * count)
    return w


@pytest.mark.parametrize("body, expected", [
    (b"", 1), (b"3", 3), (b" 4 ", 4), (b"0", 1), (b"-2", 1), (b"many", 1), (b"1.5", 1), (b"{}", 1), (b'{"batch":2}', 2),
    (b'{"batch":0}', 1), (b'{"batch":3,"unknown":true}', 3), (b'{"BATCH":2}', 2), (b"\xff\xfe", 1), (b"9" * 30, 1),
])
def test_a_body_asks_for_a_number_of_messages(body: bytes, expected: int) -> None:
    """Empty, number, JSON and nonsense: the batch that each requests, answered by nothing but messages."""
    w = world(9)
    sent = w.pull(w.consumer(), body)
    assert seqs(sent) == list(range(1, expected + 1))
    assert not statuses(sent)


@pytest.mark.parametrize("body, text", [
    (b"{", "400 Bad Request - unexpected end of JSON input"),
    (b'{"batch":"x"}', "400 Bad Request - json: cannot unmarshal string into Go struct field"),
    (b'{"expires":1000000000,"idle_heartbeat":600000000}', "400 Bad Request - heartbeat value too large"),
    (b'{"min_pending":1}', "400 Bad Request - Not a Overflow Priority consumer"),
    (b'{"min_ack_pending":1}', "400 Bad Request - Not a Overflow Priority consumer"),
    (b'{"id":"x"}', "400 Bad Request - Not a Pinned Client Priority consumer"),
    (b'{"priority":10}', "400 Bad Request - Priority must be between 0 and 9"),
    (b'{"batch":6}', "409 Exceeded MaxRequestBatch of 5"),
    (b'{"expires":2000000000}', "409 Exceeded MaxRequestExpires of 1s"),
    (b'{"max_bytes":1001}', "409 Exceeded MaxRequestMaxBytes of 1000"),
])
def test_a_refused_request_says_why(body: bytes, text: str) -> None:
    """Bad JSON and requests over the consumer's limits get their exact status and no message."""
    w = world(9)
    sent = w.pull(w.consumer(max_batch=5, max_expires=SECOND, max_bytes=1000), body)
    assert len(sent) == 1
    assert sent[0].status.startswith(text)
    assert not seqs(sent)


@pytest.mark.shows("deliver.status_412")
@pytest.mark.parametrize("level, refused", [
    (b"5", False), (b"6", True), (b"x", True), (b"-1", False), (b"", False)])
def test_required_api_level(level: bytes, refused: bool) -> None:
    """A request that needs a newer API level than 5 is refused with 412; one without is not, as on nats-server."""
    w = world(1)
    sent = w.pull(w.consumer(), b"", headers=b"NATS/1.0\r\nNats-Required-Api-Level: " + level + b"\r\n\r\n")
    assert statuses(sent) == (["412 Required Api Level"] if refused else [])


def test_a_delivery_carries_subject_reply_and_counts() -> None:
    """The ack subject has the delivery count, stream and consumer sequence, time and number of pending messages."""
    w = World()
    w.stream.add("a.b", headers=b"NATS/1.0\r\nX: 1\r\n\r\n", payload=b"hello")
    w.stream.add("a.c")
    sent = w.pull(w.consumer(), b"5")
    first, second = sent
    assert (first.to, first.subject, first.headers, first.payload) == (
        b"_INBOX.a", b"a.b", b"NATS/1.0\r\nX: 1\r\n\r\n", b"hello")
    assert first.reply == b"$JS.ACK.S.C.1.1.1.%d.1" % w.stream.messages[1][3]
    assert (second.subject, second.count, second.seq, second.cseq, second.pending) == (b"a.c", 1, 2, 2, 0)


def test_a_single_request_gets_its_messages_in_one_batch() -> None:
    """A chunk is sent as one batch, not message by message, if one request is waiting."""
    w = world(100)
    assert seqs(w.pull(w.consumer(), b"100")) == list(range(1, 101))
    assert w.bus.batches == [100]


def test_waiting_requests_take_turns() -> None:
    """Several requests get one message each in turn; a request whose batch is complete leaves the rotation."""
    w = World()
    consumer = w.consumer()
    for inbox, batch in ((b"_INBOX.a", b"2"), (b"_INBOX.b", b"5"), (b"_INBOX.c", b"9")):
        assert not w.pull(consumer, batch, inbox=inbox)
    w.stream.add(*["a"] * 12)
    w.loop.settle()
    got = w.bus.pop_sent()
    assert {to: [d.seq for d in got if d.to == to] for to in (b"_INBOX.a", b"_INBOX.b", b"_INBOX.c")} == {
        b"_INBOX.a": [1, 4], b"_INBOX.b": [2, 5, 7, 9, 11], b"_INBOX.c": [3, 6, 8, 10, 12]}
    assert [d.cseq for d in sorted(got, key=lambda d: d.seq)] == list(range(1, 13))


def test_turns_continue_where_they_stopped() -> None:
    """Messages that come one at a time go round robin too."""
    w = World()
    consumer = w.consumer()
    for inbox in (b"_INBOX.a", b"_INBOX.b"):
        w.pull(consumer, b"3", inbox=inbox)
    for _ in range(5):
        w.stream.add("a")
        w.loop.settle()
    assert [d.to[-1:] for d in w.bus.pop_sent()] == [b"a", b"b", b"a", b"b", b"a"]


def test_expires_ends_a_request_with_what_was_left() -> None:
    """An expired request gets 408 with the rest of batch and bytes;
    a request that was served in full gets nothing more."""
    w = world(2)
    consumer = w.consumer()
    assert seqs(w.pull(consumer, {"batch": 2, "expires": SECOND})) == [1, 2]
    assert not w.pull(consumer, {"batch": 5, "expires": SECOND, "max_bytes": 1000})
    assert not w.pass_time(SECOND - 1)
    sent = w.pass_time(MS)
    assert statuses(sent) == ["408 Request Timeout"]
    assert sent[0].headers.endswith(b"Nats-Pending-Messages: 5\r\nNats-Pending-Bytes: 1000\r\n\r\n")
    assert consumer.info()["num_waiting"] == 0


def test_no_wait_with_nothing_there() -> None:
    """A request without expires gets 404 at once; one with expires waits, and gets 408 at the end."""
    w = World()
    consumer = w.consumer()
    assert statuses(w.pull(consumer, {"batch": 1, "no_wait": True})) == ["404 No Messages"]
    assert not w.pull(consumer, {"batch": 1, "no_wait": True, "expires": SECOND})
    assert statuses(w.pass_time(SECOND)) == ["408 Request Timeout"]


def test_no_wait_ends_when_the_stream_does() -> None:
    """A one-shot takes the available messages and ends with 404, with or without expires."""
    for extra in ({}, {"expires": SECOND}):
        w = world(3)
        sent = w.pull(w.consumer(), {"batch": 10, "no_wait": True, **extra})
        assert seqs(sent) == [1, 2, 3]
        assert statuses(sent) == ["404 No Messages"]


def test_no_wait_behind_requests_that_want_it_all() -> None:
    """The available messages are already promised to earlier requests: 408 Requests Pending."""
    w = world(3)
    consumer = w.consumer(max_ack_pending=1)
    assert seqs(w.pull(consumer, b"5")) == [1]
    assert statuses(w.pull(consumer, {"batch": 1, "no_wait": True}, inbox=b"_INBOX.b")) == ["408 Requests Pending"]


def test_max_ack_pending_keeps_one_shots_waiting() -> None:
    """A no_wait request that max_ack_pending blocks gets no answer until there is room."""
    w = world(3)
    consumer = w.consumer(max_ack_pending=2)
    first = w.pull(consumer, b"2")
    assert not w.pull(consumer, {"batch": 1, "no_wait": True})
    sent = w.ack(consumer, first[0])
    assert seqs(sent) == [3]


def test_max_bytes_ends_a_request_before_the_message_that_does_not_fit() -> None:
    """Sizes count subject, ack subject, headers and payload; then 409 with the rest of both."""
    w = World()
    for _ in range(3):
        w.stream.add("a", payload=b"x" * 100)
    size = 1 + len(b"$JS.ACK.S.C.1.1.1.%d.2" % w.clock.now_ns()) + 100
    sent = w.pull(w.consumer(), {"batch": 10, "max_bytes": 2 * size + 5})
    assert seqs(sent) == [1, 2]
    assert statuses(sent) == ["409 Message Size Exceeds MaxBytes"]
    assert sent[-1].headers.endswith(b"Nats-Pending-Messages: 8\r\nNats-Pending-Bytes: 5\r\n\r\n")


def test_max_bytes_used_up_exactly_ends_in_silence() -> None:
    """A message that just fits is the last one; no status follows."""
    w = World()
    for _ in range(3):
        w.stream.add("a", payload=b"x" * 100)
    size = 1 + len(b"$JS.ACK.S.C.1.1.1.%d.2" % w.clock.now_ns()) + 100
    consumer = w.consumer()
    sent = w.pull(consumer, {"batch": 10, "max_bytes": 2 * size})
    assert seqs(sent) == [1, 2]
    assert not statuses(sent)
    assert consumer.info()["num_waiting"] == 0


def test_a_batch_completed_with_bytes_left_says_so() -> None:
    """409 Batch Completed follows the last message, with 0 messages and the bytes that were left."""
    w = World()
    w.stream.add("a", payload=b"x" * 10)
    size = 1 + len(b"$JS.ACK.S.C.1.1.1.%d.0" % w.clock.now_ns()) + 10
    sent = w.pull(w.consumer(), {"batch": 1, "max_bytes": 1000})
    assert seqs(sent) == [1]
    assert statuses(sent) == ["409 Batch Completed"]
    assert sent[-1].headers.endswith(b"Nats-Pending-Messages: 0\r\nNats-Pending-Bytes: %d\r\n\r\n" % (1000 - size))


def test_a_message_too_large_for_one_goes_to_the_next() -> None:
    """The request that is too small for the message ends; the one behind it gets the message."""
    w = World()
    consumer = w.consumer()
    w.pull(consumer, {"batch": 5, "max_bytes": 50})
    w.pull(consumer, b"5", inbox=b"_INBOX.b")
    w.stream.add("a", payload=b"x" * 100)
    w.loop.settle()
    sent = w.bus.pop_sent()
    assert [(d.to, d.status if not d.is_message else d.seq) for d in sent] == [
        (b"_INBOX.a", "409 Message Size Exceeds MaxBytes"), (b"_INBOX.b", 1)]


def test_heartbeats_while_a_request_waits() -> None:
    """100 Idle Heartbeat each interval, counted from the last delivery on that request."""
    w = World()
    consumer = w.consumer()
    w.pull(consumer, {"batch": 5, "expires": 10 * SECOND, "idle_heartbeat": SECOND})
    assert not w.pass_time(900 * MS)
    w.stream.add("a")
    assert seqs(w.pass_time(900 * MS)) == [1]
    sent = w.pass_time(200 * MS)
    assert statuses(sent) == ["100 Idle Heartbeat"]
    assert b"Nats-Last-Consumer: 1\r\nNats-Last-Stream: 1\r\n" in sent[0].headers
    assert statuses(w.pass_time(3 * SECOND)) == ["100 Idle Heartbeat"] * 3


def test_max_waiting() -> None:
    """The queue is full: 409, unless the request has a heartbeat; requests that ended make room."""
    w = World()
    consumer = w.consumer(max_waiting=1)
    assert not w.pull(consumer, b"1")
    assert statuses(w.pull(consumer, b"1", inbox=b"_INBOX.b")) == ["409 Exceeded MaxWaiting"]
    assert not w.pull(consumer, {"batch": 1, "expires": 4 * SECOND, "idle_heartbeat": SECOND}, inbox=b"_INBOX.b")
    w.bus.deaf.add(b"_INBOX.a")
    w.pass_time(2 * SECOND)
    assert not w.pull(consumer, b"1", inbox=b"_INBOX.b")
    w.stream.add("a")
    w.loop.settle()
    assert [d.to for d in w.bus.pop_sent()] == [b"_INBOX.b"]


def test_an_inbox_that_is_gone_costs_no_delivery() -> None:
    """A request whose inbox has no subscriber is dropped silently; the message goes to another request, uncounted."""
    w = World()
    consumer = w.consumer()
    w.pull(consumer, b"5")
    w.pull(consumer, b"5", inbox=b"_INBOX.b")
    w.bus.deaf.add(b"_INBOX.a")
    w.stream.add("a", "a")
    w.loop.settle()
    sent = w.bus.pop_sent()
    assert [(d.to, d.seq, d.count, d.cseq) for d in sent] == [(b"_INBOX.b", 1, 1, 1), (b"_INBOX.b", 2, 1, 2)]


@pytest.mark.parametrize("several", [False, True])
def test_messages_without_a_receiver_are_delivered_again_as_new(several: bool) -> None:
    """Shows a receiver that vanishes within a batch: the next request gets the rest, with a delivery count of 1."""
    w = world(6)
    consumer = w.consumer()
    consumer.update(_with(consumer.config, pause_until=w.clock.now_ns() + SECOND))
    w.bus.room[b"_INBOX.a"] = 1
    assert not w.pull(consumer, b"4")
    if several:
        assert not w.pull(consumer, b"9", inbox=b"_INBOX.b")
    sent = w.pass_time(2 * SECOND)
    sent += [] if several else w.pull(consumer, b"9", inbox=b"_INBOX.b")
    assert [d.seq for d in sent if d.to == b"_INBOX.a"] == [1]
    assert sorted(d.seq for d in sent if d.to == b"_INBOX.b") == [2, 3, 4, 5, 6]
    assert all(d.count == 1 for d in sent)
    info = consumer.info()
    assert (info["num_ack_pending"], info["num_pending"], info["num_redelivered"]) == (6, 0, 0)


def _with(config: Any, **changes: Any) -> Any:
    changed = config.copy()
    for name, value in changes.items():
        setattr(changed, name, value)
    return changed


def test_deleting_a_consumer_ends_its_requests() -> None:
    """Every waiting request gets 409 Consumer Deleted; afterwards the consumer ignores requests."""
    w = World()
    consumer = w.consumer()
    w.pull(consumer, b"5")
    w.pull(consumer, b"5", inbox=b"_INBOX.b")
    consumer.delete()
    assert [(d.to, d.status) for d in w.bus.pop_sent()] == [
        (b"_INBOX.a", "409 Consumer Deleted"), (b"_INBOX.b", "409 Consumer Deleted")]
    assert not w.pull(consumer, b"5")


@pytest.mark.shows("deliver.shutdown")
def test_a_shutdown_reports_what_was_left() -> None:
    """409 Server Shutdown carries the rest of the batch."""
    w = World()
    consumer = w.consumer()
    w.pull(consumer, b"5")
    consumer.shutdown()
    sent = w.bus.pop_sent()
    assert statuses(sent) == ["409 Server Shutdown"]
    assert b"Nats-Pending-Messages: 5" in sent[0].headers


def test_push_consumers_refuse_pulls() -> None:
    w = World()
    assert statuses(w.pull(w.consumer(deliver_subject="d"), b"")) == ["409 Consumer is push based"]


def test_cold_chunks_are_loaded_and_then_delivered() -> None:
    """Messages not in memory are loaded; the request waits, is not ended as a one-shot, and then gets all of them."""
    w = world(250)
    w.stream.not_loaded = True
    sent = w.pull(w.consumer(), {"batch": 250, "no_wait": True, "expires": SECOND})
    assert seqs(sent) == list(range(1, 251))
    assert not statuses(sent)


def test_a_slow_receiver_is_left_alone() -> None:
    """While too many bytes are unsent to an inbox, delivery to it pauses; it resumes once they are sent."""
    w = world(10)
    consumer = w.consumer()
    w.bus.pending[b"_INBOX.a"] = 1 << 30
    assert not w.pull(consumer, b"10")
    assert not w.pass_time(20 * MS)
    w.bus.pending.clear()
    assert len(seqs(w.pass_time(20 * MS))) == 10


def test_a_large_pull_gives_others_their_turn() -> None:
    """The delivery stops after a bounded number of messages and continues in a later turn of the loop."""
    w = world(5000, chunk_messages=1000)
    consumer = w.consumer(ack_policy="none")
    consumer.on_next([(b"n", b"_INBOX.a", 0, b"5000")], 0, 1, None, w.clock.now_ns())
    turns = []
    while w.loop.ready:
        callback, args = w.loop.ready.pop(0)
        callback(*args)
        turns.append(len(w.bus.pop_sent()))
    assert sum(turns) == 5000
    assert max(turns) <= 1000
