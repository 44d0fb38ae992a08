"""Deliveries for mirrors and sources: runs that are read at once are those that are read one by one."""

from __future__ import annotations

import random
from typing import Any

import pytest

from broker.jetstream.stream.upstream import deliveries
from broker.jetstream.stream.upstream.deliveries import Deliveries, FlowRequest, Lost
from broker.jetstream.stream.upstream.origin import Batch


class _Read(Deliveries):
    def _is_ours(self, names: list[bytes]) -> bool:
        return names == [b"S", b"C"]


class _ReadAll(_Read):
    KEEPS_EXPECTATIONS = True


def _read(kind: type[Deliveries], msgs: list[Any]) -> list[Any]:
    """Return each message and request that is read, and at the end the reason why no more is."""
    link: Any = None
    reader = kind(link, b"to")
    reader._waiting.extend(msgs)
    reader._bytes = sum(len(body) for _, _, _, body in msgs)
    found: list[Any] = []
    try:
        while reader._waiting:
            got = reader._next()
            if isinstance(got, FlowRequest):
                found.append(got)
            elif got is not None:
                assert got.end_seq == got.seqs[-1] + 1
                found += zip(got.seqs, got.subjects, got.hlens, got.bodies, got.times_ns, strict=True)
        found.append((reader.consumer_seq, reader.stream_seq, reader.lag, reader._bytes))
    except Lost as error:
        found.append(str(error))
    return found


def _messages(rng: random.Random) -> list[Any]:
    """Return deliveries with gaps and statuses, and sometimes with a fault."""
    msgs: list[Any] = []
    seq, head = 0, rng.choice((b"$JS.ACK.S.C", b"$JS.ACK.D.hash.S.C"))
    for cseq in range(1, rng.randrange(2, 400)):
        seq += rng.choice((1, 1, 1, 1, 5))
        reply = b"%b.1.%d.%d.%d.%d" % (head, seq, cseq, 10**18 + rng.randrange(10**17), 1000 - cseq)
        block = rng.choice((b"", b"", b"NATS/1.0\r\nA: 1\r\n\r\n",
                            b"NATS/1.0\r\nNats-Expected-Last-Sequence: 1\r\n\r\n"))
        msgs.append((b"s.%d" % seq, reply, len(block), block + bytes(rng.choice((0, 5, 9000)))))
        if rng.random() < 0.01:
            status = b"NATS/1.0 100 FlowControl Request\r\n\r\n"
            msgs.append((b"to", b"$JS.FC.x", len(status), status))
    if rng.random() < 0.5:
        at = rng.randrange(len(msgs))
        subject, reply, hlen, body = msgs[at]
        fault = rng.choice((b"", b"$JS.ACK.S.other.1.1.1.1.1", reply.replace(b".1.", b".2.", 1), reply + b"x",
                            reply.rpartition(b".")[0] + b".-1", b"$JS.ACK.S.C.1.1.%d.1.1" % rng.randrange(700)))
        msgs[at] = (subject, fault, hlen, body)
    return msgs


@pytest.mark.parametrize("kind", [_Read, _ReadAll])
def test_runs_are_read_as_their_messages(kind: type[Deliveries], monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages, requests, the position at the end and what is missing are the same."""
    rng = random.Random(3)
    many = [_messages(rng) for _ in range(40)]
    runs = 0
    alike = Deliveries._alike

    def count(reader: Deliveries) -> Batch | None:
        nonlocal runs
        found = alike(reader)
        runs += found is not None
        return found

    monkeypatch.setattr(Deliveries, "_alike", count)
    together = [_read(kind, msgs) for msgs in many]
    assert runs or kind is _Read  # most runs of this kind have a message with headers
    monkeypatch.setattr(deliveries, "_ALIKE_MIN", 1 << 60)
    assert together == [_read(kind, msgs) for msgs in many]
    assert any(isinstance(one[-1], str) for one in together)
