"""Answers to deliveries: the effect of each payload, its reply, and the ack floor.

A consumer on a virtual loop gets messages by one pull; the answers are sent as a client would send them.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from broker.jetstream.consumer.acks.protocol import AckInfo, AckKind, parse_answer, parse_delay, parse_subject
from broker.jetstream.consumer.consumer import Consumer
from tests.jetstream.consumer.fakes import MS, SECOND, Delivered, World, fresh_state, seqs


def start(count: int = 5, **config: Any) -> tuple[World, Consumer, list[Delivered]]:
    """Return a world whose consumer has just delivered ``count`` messages."""
    w = World()
    w.stream.add(*["a"] * count)
    consumer = w.consumer(**config)
    return w, consumer, w.pull(consumer, b"%d" % count)


def state(consumer: Consumer) -> tuple[int, int, int]:
    """Return ack floor, ack pending and redelivered."""
    info = consumer.info()
    return info["ack_floor"]["stream_seq"], info["num_ack_pending"], info["num_redelivered"]


@pytest.mark.parametrize("subject, expected", [
    (b"$JS.ACK.S.C.2.7.9.1700.3", AckInfo(2, 7, 9)),
    (b"$JS.ACK._.hash.S.C.2.7.9.1700.3", AckInfo(2, 7, 9)),
    (b"$JS.ACK.dom.hash.S.C.2.7.9.1700.3.more.still", AckInfo(2, 7, 9)),
    (b"$JS.ACK.x.S.C.2.7.9.1700.3", AckInfo(-1, -1, -1)),  # ten tokens are neither form
    (b"$JS.ACK.S.C.2.7", AckInfo(-1, -1, -1)),
    (b"$JS.ACK.S.C.2.-7.9.1700.3", AckInfo(2, -1, 9)),
    (b"$JS.ACK.S.C.2.x.9.1700.3", AckInfo(2, -1, 9)),
    (b"$JS.ACK.S.C.2..9.1700.3", AckInfo(2, -1, 9)),
    (b"", AckInfo(-1, -1, -1)),
])
def test_ack_subjects(subject: bytes, expected: AckInfo) -> None:
    """Both forms are parsed; anything else yields no numbers."""
    assert parse_subject(subject) == expected


@pytest.mark.parametrize("payload, expected", [
    (b"", (AckKind.ACK, b"")), (b"+ACK", (AckKind.ACK, b"")), (b"+OK", (AckKind.ACK, b"")),
    (b"-NAK", (AckKind.NAK, b"")), (b"-NAK 5s", (AckKind.NAK, b" 5s")), (b"-NAKx", (AckKind.NAK, b"x")),
    (b"+WPI", (AckKind.PROGRESS, b"")), (b"+WPI ", (AckKind.UNKNOWN, b"")),
    (b"+NXT", (AckKind.NEXT, b"")), (b"+NXT 5", (AckKind.NEXT, b" 5")),
    (b"+TERM", (AckKind.TERM, b"")), (b"+TERM bad", (AckKind.TERM, b" bad")),
    (b"+ACK ", (AckKind.UNKNOWN, b"")), (b"hello", (AckKind.UNKNOWN, b"")), (b"+TER", (AckKind.UNKNOWN, b"")),
])
def test_payloads(payload: bytes, expected: tuple[AckKind, bytes]) -> None:
    """NAK, NXT and TERM are recognized by prefix, the others only as a whole."""
    assert parse_answer(payload) == expected


@pytest.mark.parametrize("argument, expected", [
    (b"", None), (b"  ", None), (b"5s", 5 * SECOND), (b" 1.5s ", 1500 * MS), (b"1m30s", 90 * SECOND),
    (b"2h", 7200 * SECOND),
    (b"10us", 10_000), ("10µs".encode(), 10_000), (b"3ns", 3), (b".5s", 500 * MS), (b"1.s", SECOND), (b"-1s", -SECOND),
    (b"0", 0), (b"5", None), (b"s", None), (b"1x", None), (b"1s ago", None), (b".s", None), (b"9999999h", None),
    (b'{"delay":250000000}', 250 * MS), (b'{"Delay":7}', 7), (b"{}", 0), (b'{"delay":null}', 0),
    (b'{"delay":"1s"}', None),
    (b'{"delay":1.5}', None), (b'{"delay":', None), (b'{"delay":true}', None), (b"[", None), (b"\xff", None),
    (b"{" * 100_000, None), (b"9" * 5000 + b"s", None),
])
def test_nak_delays(argument: bytes, expected: int | None) -> None:
    """JSON or a Go duration; anything unreadable means no delay."""
    assert parse_delay(argument) == expected


@pytest.mark.parametrize("body", [b"", b"+ACK", b"+OK"])
def test_acks_move_the_floor_over_a_prefix(body: bytes) -> None:
    """The floor is just below the lowest message that is not acked, whatever the order of acks."""
    w, consumer, got = start()
    w.ack(consumer, got[1], got[3], body=body)
    assert state(consumer) == (0, 3, 0)
    w.ack(consumer, got[0], body=body)
    assert state(consumer) == (2, 2, 0)
    w.ack(consumer, got[4], got[2], body=body)
    assert state(consumer) == (5, 0, 0)
    assert consumer.info()["ack_floor"]["consumer_seq"] == 5


def test_floor_over_a_filter_and_redeliveries() -> None:
    """Consumer sequences of the floor are those of first deliveries; when everything is acked it equals `delivered`."""
    w = World()
    w.stream.add("x", "a", "x", "a", "x", "a", "x")
    consumer = w.consumer(filter_subject="a", ack_wait=SECOND)
    first = w.pull(consumer, b"3")
    assert [(d.seq, d.cseq, d.pending) for d in first] == [(2, 1, 2), (4, 2, 1), (6, 3, 0)]
    w.ack(consumer, first[0])
    info = consumer.info()
    assert info["ack_floor"]["consumer_seq"] == 1
    assert info["ack_floor"]["stream_seq"] == 3
    w.pass_time(2 * SECOND)
    again = w.pull(consumer, b"5")
    assert [(d.seq, d.cseq, d.count) for d in again] == [(4, 4, 2), (6, 5, 2)]
    w.ack(consumer, again[1])
    assert consumer.info()["ack_floor"]["consumer_seq"] == 1
    w.ack(consumer, first[1])
    info = consumer.info()
    assert (info["ack_floor"]["consumer_seq"], info["ack_floor"]["stream_seq"]) == (5, 6)
    assert (info["delivered"]["consumer_seq"], info["delivered"]["stream_seq"]) == (5, 6)


@pytest.mark.shows("deliver.double_ack")
def test_double_acks_are_answered_once_persisted() -> None:
    """An ack with a reply is answered with an empty message, after the log has what it changed; also when repeated."""
    w, consumer, got = start(3)
    w.stream.log.held = True
    dirtied = w.stream.dirtied
    assert not w.ack(consumer, got[0], reply=b"_INBOX.r")
    assert (w.stream.dirtied, w.stream.log.barriers) == (dirtied + (0 if dirtied else 1), 1)
    w.stream.log.persist()
    answers = w.bus.pop_sent()
    assert [(d.to, d.payload, d.headers) for d in answers] == [(b"_INBOX.r", b"", b"")]
    w.stream.log.held = False
    assert [d.to for d in w.ack(consumer, got[0], reply=b"_INBOX.r")] == [b"_INBOX.r"]


@pytest.mark.parametrize("body", [b"-NAK", b"-NAK 1s", b"+WPI", b"+TERM", b"nonsense"])
def test_every_well_formed_answer_with_a_reply_is_answered(body: bytes) -> None:
    w, consumer, got = start(1)
    assert b"_INBOX.r" in [d.to for d in w.ack(consumer, got[0], body=body, reply=b"_INBOX.r")]


def test_an_ack_beyond_what_was_delivered_is_ignored() -> None:
    """Shows that such an ack does nothing and gets no answer: without a crash no delivery is forgotten."""
    w = World()
    consumer = w.consumer()
    w.stream.add("a", "a", "a")
    got = w.pull(consumer, b"1")
    for seq in (2, 3, 4, 1 << 62):
        got[0].reply = b"$JS.ACK.S.C.1.%d.%d.0.0" % (seq, seq)
        assert not w.ack(consumer, got[0], reply=b"_INBOX.r")
    assert state(consumer) == (0, 1, 0)


@pytest.mark.parametrize("subject", [b"$JS.ACK.S.C.1.0.1.1.1", b"$JS.ACK.S.C.1.-1.1.1.1", b"$JS.ACK.S.C.1.x.1.1.1",
                                     b"$JS.ACK.S.C.1.99999999999999999999999.1.1.1", b"$JS.ACK.S.C.x.1.x.y.z",
                                     b"$JS.ACK"])
@pytest.mark.parametrize("body", [b"", b"+ACK", b"-NAK", b"-NAK {", b"+WPI", b"+TERM \xff", b"+NXT {", b"\xff\xff"])
def test_bad_answers_do_nothing(subject: bytes, body: bytes) -> None:
    """Any bytes in subject or payload: no exception, and nothing that was pending is acked."""
    w, consumer, _ = start(2)
    consumer.on_ack([(subject, b"", 0, body)], 0, 1, None, w.clock.now_ns())
    consumer.on_ack([(subject, b"_INBOX.r", 0, body)], 0, 1, None, w.clock.now_ns())
    consumer.on_ack([(subject, b"", 3, b"xyz" + body)], 0, 1, None, w.clock.now_ns())
    w.loop.settle()
    pending = consumer.info()["num_ack_pending"]
    assert pending == 2 or subject == b"$JS.ACK.S.C.x.1.x.y.z"


def test_ack_all() -> None:
    """Shows that one ack acks everything up to it; at or below the floor it is answered and does nothing."""
    w, consumer, got = start(5, ack_policy="all")
    assert state(consumer) == (0, 5, 0)
    w.ack(consumer, got[2])
    assert state(consumer) == (3, 2, 0)
    assert len(w.ack(consumer, got[1], reply=b"_INBOX.r")) == 1
    assert state(consumer) == (3, 2, 0)
    w.ack(consumer, got[4])
    assert state(consumer) == (5, 0, 0)


def test_ack_none_counts_as_acked_when_delivered() -> None:
    _, consumer, got = start(5, ack_policy="none")
    assert seqs(got) == [1, 2, 3, 4, 5]
    assert state(consumer) == (5, 0, 0)


@pytest.mark.shows("advisory.nak")
def test_nak_delivers_again_at_once_with_advisory() -> None:
    """Shows -NAK: to the tail of the redelivery queue, ahead of new messages, with one delivery more,
    and an advisory each."""
    w, consumer, got = start(3)
    w.stream.add("a")
    w.ack(consumer, got[1], body=b"-NAK")
    w.ack(consumer, got[0], body=b"-NAK")
    w.ack(consumer, got[0], body=b"-NAK")
    again = w.pull(consumer, b"5")
    assert [(d.seq, d.count, d.cseq) for d in again] == [(2, 2, 4), (1, 2, 5), (4, 1, 6)]
    naks = w.events("MSG_NAKED")
    assert [(e["stream_seq"], e["consumer_seq"], e["deliveries"]) for e in naks] == [(2, 2, 1), (1, 1, 1), (1, 1, 1)]
    assert naks[0]["type"] == "io.nats.jetstream.advisory.v1.nak"


@pytest.mark.parametrize("body", [b"-NAK 2s", b'-NAK {"delay": 2000000000}'])
def test_nak_with_delay(body: bytes) -> None:
    """The message comes back after the delay and not before."""
    w, consumer, got = start(1)
    w.pull(consumer, b"5")
    assert not w.ack(consumer, got[0], body=body)
    assert not w.pass_time(2 * SECOND - MS)
    assert [(d.seq, d.count) for d in w.pass_time(5 * MS)] == [(1, 2)]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("policy", ["explicit", "all"])
@pytest.mark.parametrize("kinds", [[b"-NAK", b"-NAK", b"-NAK", b"", b"+ACK", b"-NAK 1s", b"+WPI"], [b"-NAK"], [b""]])
def test_answers_in_one_run_do_what_they_do_one_by_one(kinds: list[bytes], policy: str, seed: int) -> None:
    """Shows acks and negative acks in any order, some invalid: the same advisories, floors,
    redeliveries and records."""
    rng = random.Random(seed)
    results = []
    bodies = [rng.choice(kinds) for _ in range(60)]
    answered = [rng.randrange(30) for _ in bodies]
    wrong = [rng.random() < 0.1 for _ in bodies]
    for together in (True, False):
        w, consumer, got = start(30, ack_policy=policy)
        ops = [(got[i].reply.replace(b".%d.%d." % (i + 1, i + 1), b".%d.99." % (i + 1)) if bad else got[i].reply, b"",
                0, body)
               for i, body, bad in zip(answered, bodies, wrong, strict=True)]
        runs = [ops] if together else [[op] for op in ops]
        for run in runs:
            consumer.on_ack(run, 0, len(run), None, w.clock.now_ns())
        w.loop.settle()
        assert not w.bus.pop_sent()
        naked = [(e["stream_seq"], e["consumer_seq"], e["deliveries"]) for e in w.events("MSG_NAKED")]
        again = w.pull(consumer, b"100")
        results.append((state(consumer), naked, [(d.seq, d.count, d.cseq) for d in again],
                        consumer.acks.pop_delta("C")))
        ops = [(d.reply, b"", 0, b"") for d in again[::2]]
        for run in [ops] * bool(ops) if together else [[op] for op in ops]:
            consumer.on_ack(run, 0, len(run), None, w.clock.now_ns())
        results[-1] += state(consumer), consumer.acks.pop_delta("C")
    assert results[0] == results[1]
    assert results[0][1] or policy == "all" or b"-NAK" not in kinds  # where an early ack may have covered them


def test_naks_in_one_run_come_back_in_their_order() -> None:
    """Shows it for messages of several chunks; a message that has left the stream meanwhile does not come back."""
    w = World(chunk_messages=3)
    w.stream.add(*["a"] * 20)
    consumer = w.consumer()
    got = w.pull(consumer, b"20")
    order = random.Random(2).sample(range(20), 20)
    w.stream.remove(5)
    w.stream.remove(17)
    w.ack(consumer, *[got[i] for i in order], body=b"-NAK")
    assert [(d.seq, d.count) for d in w.pull(consumer, b"30")] == [(i + 1, 2) for i in order if i + 1 not in (5, 17)]


def test_a_nak_of_what_is_not_pending_is_ignored() -> None:
    w, consumer, got = start(2)
    w.ack(consumer, got[0])
    w.ack(consumer, got[0], body=b"-NAK")
    assert not w.pull(consumer, {"batch": 5, "expires": SECOND})
    assert not w.events("MSG_NAKED")


def test_progress_starts_the_wait_anew() -> None:
    """+WPI: the full ack_wait from now, the delivery count unchanged."""
    w, consumer, got = start(1, ack_wait=SECOND)
    w.pull(consumer, b"5")
    w.pass_time(900 * MS)
    w.ack(consumer, got[0], body=b"+WPI")
    assert not w.pass_time(900 * MS)
    assert [(d.seq, d.count) for d in w.pass_time(200 * MS)] == [(1, 2)]


@pytest.mark.shows("advisory.terminated")
def test_term_acks_with_an_advisory() -> None:
    """+TERM: no redelivery; the advisory has the reason; also for a message that is not pending."""
    w, consumer, got = start(1, ack_wait=SECOND)
    w.ack(consumer, got[0], body=b"+TERM  poison ")
    w.ack(consumer, got[0], body=b"+TERM")
    assert not w.pass_time(5 * SECOND)
    first, second = w.events("MSG_TERMINATED")
    assert first["reason"] == "poison"
    assert "reason" not in second
    assert state(consumer) == (1, 0, 0)


@pytest.mark.parametrize("body, expected", [(b"+NXT", [2]), (b"+NXT 2", [2, 3]), (b'+NXT {"batch":3}', [2, 3, 4])])
def test_next_acks_and_pulls(body: bytes, expected: list[int]) -> None:
    """+NXT acks, then its rest is a pull whose inbox is the ack's reply; the ack itself is not answered."""
    w = World()
    w.stream.add(*["a"] * 4)
    consumer = w.consumer()
    got = w.pull(consumer, b"1")
    sent = w.ack(consumer, got[0], body=body, reply=b"_INBOX.n")
    assert [(d.to, d.seq) for d in sent] == [(b"_INBOX.n", s) for s in expected]
    assert state(consumer)[0] == 1


def test_acks_after_a_crash_that_forgot_the_delivery() -> None:
    """Shows a restart from a state older than the deliveries: their acks are accepted,
    and they are not delivered again."""
    w, consumer, got = start(6)
    old = fresh_state(consumer)
    consumer.stop()
    w.stream.consumers.clear()
    back = w.consumer(old)
    assert back.info()["num_pending"] == 6
    assert [d.to for d in w.ack(back, got[1], got[3], reply=b"_INBOX.r")] == [b"_INBOX.r"] * 2
    assert back.info()["num_pending"] == 4
    stored = w.stored(back, fresh_state(back))
    assert seqs(w.pull(back, b"9")) == [1, 3, 5, 6]
    back.stop()
    w.stream.consumers.clear()
    again = w.consumer(stored)
    assert again.info()["num_pending"] == 4
    assert seqs(w.pull(again, b"9")) == [1, 3, 5, 6]


def test_ack_all_after_a_crash_that_forgot_the_delivery() -> None:
    """Shows that with ack all such an ack moves the consumer past everything up to it."""
    w, consumer, got = start(6, ack_policy="all")
    old = fresh_state(consumer)
    consumer.stop()
    w.stream.consumers.clear()
    back = w.consumer(old, ack_policy="all")
    w.ack(back, got[3])
    assert state(back) == (4, 0, 0)
    assert [(d.seq, d.cseq) for d in w.pull(back, b"9")] == [(5, 5), (6, 6)]


@pytest.mark.shows("advisory.ack_metric")
def test_sampled_acks_send_a_metric() -> None:
    """sample_freq 100: each ack of a pending message sends deliveries and the time since it was delivered."""
    w, consumer, got = start(2, sample_freq="100%")
    w.pass_time(SECOND)
    w.ack(consumer, got[0], got[0])
    (metric,) = w.events("METRIC.CONSUMER.ACK")
    assert metric["type"] == "io.nats.jetstream.metric.v1.consumer_ack"
    assert (metric["stream_seq"], metric["consumer_seq"], metric["deliveries"], metric["ack_time"]) == (1, 1, 1, SECOND)


def test_the_stream_is_notified_of_acks() -> None:
    """The stream is notified of each acknowledged sequence: plain, terminated, and everything under an ack all."""
    for policy, expected in (("explicit", [3, 2, 5]), ("all", [1, 2, 3, 4, 5])):
        w, consumer, got = start(5, ack_policy=policy)
        w.ack(consumer, got[2])
        w.ack(consumer, got[1], body=b"+TERM")
        w.ack(consumer, got[4])
        assert w.stream.acknowledged == expected
