"""The encoder's batches equal messages that are encoded one by one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker.protocol import encoder
from broker.protocol.run import DeliveryRun, MixedPubAckRun, Msg, PubAckRun, Run

words = st.sampled_from([b"a", b"a.b", b"100%", b"%b.%d", b"_INBOX.x.1"])
bodies = st.sampled_from([b"", b"x", b"\r\n", b"%s%d%%", b"y" * 200, b"z" * 10_000])
msgs = st.lists(st.tuples(words, st.one_of(st.just(b""), words), st.integers(0, 5), bodies).map(
    lambda msg: (msg[0], msg[1], min(msg[2], len(msg[3])), msg[3])), min_size=1, max_size=8)


def one(msg: Msg, sid: bytes) -> bytes:
    subject, reply, hlen, body = msg
    line = [b"HMSG" if hlen else b"MSG", subject, sid, *([reply] if reply else []),
            *([b"%d" % hlen] if hlen else []), b"%d" % len(body)]
    return b" ".join(line) + b"\r\n" + body + b"\r\n"


@given(msgs, words, words)
def test_run(batch: list[Msg], sid: bytes, other: bytes) -> None:
    """A run may be any mixture, for several subscriptions in turn, with headers and without."""
    run = Run(batch)
    for to in (sid, other, sid):
        assert b"".join(encoder.encode(run, to)) == b"".join(one(msg, to) for msg in batch)
    stripped = [(subject, reply, 0, body[hlen:]) for subject, reply, hlen, body in batch]
    assert b"".join(encoder.encode(run.without_headers(), sid)) == b"".join(one(msg, sid) for msg in stripped)
    assert run.bytes == sum(len(msg[3]) for msg in batch)


@given(words, st.lists(st.tuples(st.integers(1, 5), bodies.filter(bool)), min_size=1, max_size=8), words)
def test_answers_to_one_request(to: bytes, answers: list[tuple[int, bytes]], sid: bytes) -> None:
    """Messages of one subject all have headers; a body may end like the line that follows it."""
    batch = [(to, b"", min(hlen, len(body)), body + b"HMSG %b " % to) for hlen, body in answers]
    assert b"".join(encoder.encode(Run(batch), sid)) == b"".join(one(msg, sid) for msg in batch)


@given(st.lists(words, min_size=1, max_size=30), words, words, words, st.sampled_from([1, 7, 95, 9_999, 10**15]))
def test_pub_acks(replies: list[bytes], sid: bytes, prefix: bytes, suffix: bytes, first_seq: int) -> None:
    """Numbers that gain a digit on the way change the size in the control line."""
    wanted = b"".join(one((reply, b"", 0, b"%b%d%b" % (prefix, first_seq + i, suffix)), sid)
                      for i, reply in enumerate(replies))
    run = PubAckRun(replies, prefix, first_seq, suffix)
    assert b"".join(encoder.encode(run, sid)) == b"".join(one(msg, sid) for msg in run.msgs) == wanted
    assert run.bytes == sum(len(msg[3]) for msg in run.msgs)


@given(st.lists(st.tuples(words, words, st.integers(0, 10**15)), min_size=1, max_size=30), words, words)
def test_mixed_pub_acks(acks: list[tuple[bytes, bytes, int]], sid: bytes, suffix: bytes) -> None:
    """Each PubAck has its own prefix and number."""
    replies, prefixes, seqs = zip(*acks, strict=True)
    run = MixedPubAckRun(replies, prefixes, seqs, suffix)
    wanted = [(reply, b"", 0, b"%b%d%b" % (prefix, seq, suffix)) for reply, prefix, seq in acks]
    assert run.msgs == wanted
    assert b"".join(encoder.encode(run, sid)) == b"".join(one(msg, sid) for msg in wanted)
    assert run.bytes == sum(len(msg[3]) for msg in wanted)


@given(msgs, words)
def test_one_message(batch: list[Msg], sid: bytes) -> None:
    """Messages may be encoded one by one."""
    for msg in batch:
        assert encoder.encode_one(sid, msg) == one(msg, sid)


@given(msgs, st.lists(words, min_size=1, max_size=8))
def test_a_message_for_many_subscriptions(batch: list[Msg], sids: list[bytes]) -> None:
    """A message is repeated for each sid."""
    assert encoder.encode_for_all(Run(batch[:1]), sids) == b"".join(one(batch[0], sid) for sid in sids)


@given(msgs, words, st.one_of(st.just(b""), words), st.booleans())
def test_deliveries(batch: list[Msg], sid: bytes, prefix: bytes, with_headers: bool) -> None:
    """Deliveries may have replies, headers and large bodies, or not."""
    count = len(batch)
    numbers = [list(range(at, at + count)) for at in (1, 90, 9, 10**18, 0)]
    hlens = [msg[2] for msg in batch] if with_headers else None
    wanted = b"".join(
        one((msg[0], b"%b%d.%d.%d.%d.%d" % (prefix, *(column[i] for column in numbers))  # type: ignore[str-format]
             if prefix else b"", hlens[i] if hlens else 0, msg[3]), sid) for i, msg in enumerate(batch))
    run = DeliveryRun(prefix, [msg[0] for msg in batch], hlens, [msg[3] for msg in batch], numbers)
    assert b"".join(encoder.encode(run, sid)) == b"".join(one(msg, sid) for msg in run.msgs) == wanted
    plain = run.without_headers()
    assert plain.bytes == sum(len(msg[3]) - (msg[2] if with_headers else 0) for msg in batch)
    assert b"".join(encoder.encode(plain, sid)) == b"".join(one((*msg[:2], 0, msg[3][msg[2]:]), sid)
                                                            for msg in run.msgs)
