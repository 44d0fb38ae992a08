"""The parser of leaf nodes: one table, each case whole, byte by byte, and with the next operation behind it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.protocol.framing import ProtocolError
from broker.protocol.leaf.encoder import connect, encode, interest
from broker.protocol.leaf.parser import Info, Interest, LeafOp, LeafParser, split_route
from broker.protocol.operations import Connect, Err, Ping, Pong
from broker.protocol.run import Msg

HEADERS = b"NATS/1.0\r\n\r\n"

CASES: dict[str, tuple[bytes, list[LeafOp]]] = {
    "message": (b"LMSG plain.one 5\r\nhello\r\n", [(b"plain.one", b"", 0, b"hello")]),
    "message with reply": (b"LMSG a _INBOX.b 1\r\nx\r\n", [(b"a", b"_INBOX.b", 0, b"x")]),
    "one queue group": (b"LMSG svc | q 1\r\nx\r\n", [(b"svc", b"| q", 0, b"x")]),
    "queue groups": (b"LMSG work.x | qb qa 3\r\nabc\r\n", [(b"work.x", b"| qb qa", 0, b"abc")]),
    "reply and queue groups": (b"LMSG svc + _INBOX.r q 4\r\nabcd\r\n", [(b"svc", b"+ _INBOX.r q", 0, b"abcd")]),
    "the sign as a reply": (b"LMSG svc | 1\r\nx\r\n", [(b"svc", b"|", 0, b"x")]),
    "headers": (b"HMSG plain.two 12 14\r\n" + HEADERS + b"hi\r\n", [(b"plain.two", b"", 12, HEADERS + b"hi")]),
    "headers, reply": (b"HMSG a r 12 12\r\n" + HEADERS + b"\r\n", [(b"a", b"r", 12, HEADERS)]),
    "headers, queue groups": (b"HMSG w + my.reply qb qa 12 15\r\n" + HEADERS + b"abc\r\n",
                              [(b"w", b"+ my.reply qb qa", 12, HEADERS + b"abc")]),
    "the same line again": (b"LMSG a | q 1\r\nx\r\nLMSG a | q 1\r\ny\r\n",
                            [(b"a", b"| q", 0, b"x"), (b"a", b"| q", 0, b"y")]),
    "interest": (b"LS+ foo.*\r\n", [Interest(b"foo.*", b"", 1)]),
    "interest of a group": (b"LS+ foo q 3\r\n", [Interest(b"foo", b"q", 3)]),
    "no interest": (b"LS- foo\r\nls- foo q\r\n", [Interest(b"foo", b"", 0), Interest(b"foo", b"q", 0)]),
    "info": (b'INFO {"connect_info":true} \r\n', [Info(b'{"connect_info":true} ')]),
    "connect": (b"CONNECT {}\r\nPING\r\n", [Connect(b"{}"), Ping()]),
    "others": (b"PING\r\nPONG\r\n+OK\r\n-ERR 'x'\r\n", [Ping(), Pong(), Err(b"'x'")]),
}

UNKNOWN = "Unknown Protocol Operation"

ERRORS: dict[str, tuple[bytes, str | None]] = {
    "unknown": (b"FOO bar\r\n", UNKNOWN), "a client's verb": (b"PUB a 1\r\n", None), "SUB": (b"SUB a 1\r\n", None),
    "a route's verb": (b"RS+ a b\r\n", None), "two arguments": (b"LS+ a b\r\n", None), "none": (b"LS- \r\n", None),
    "weight 0": (b"LS+ a q 0\r\n", None), "weight text": (b"LS+ a q x\r\n", None),
    "wrong sign": (b"LMSG a ! q 1\r\n", None), "no queue": (b"LMSG a + r 1\r\n", None),
    "too few": (b"LMSG a\r\n", None), "too few for headers": (b"HMSG a 1\r\n", None),
    "wrong sign with headers": (b"HMSG a x q 1 2\r\n", None), "size": (b"LMSG a x\r\n", None),
    "too large": (b"LMSG a 1001\r\n", "Maximum Payload Violation"),
}


def parsed(chunks: list[bytes]) -> list[LeafOp]:
    parser = LeafParser(max_payload=1000)
    parser.headers = True
    ops: list[LeafOp] = []
    for chunk in chunks:
        ops += parser.feed(chunk)
        while parser.held:
            ops += parser.feed(b"")
    return ops


@pytest.mark.parametrize("name", CASES)
def test_operations(name: str) -> None:
    """Each case gives its operations, however its bytes arrive."""
    data, ops = CASES[name]
    assert parsed([data]) == ops
    assert parsed([data[i:i + 1] for i in range(len(data))]) == ops
    assert parsed([data + b"LS+ next\r\n"]) == [*ops, Interest(b"next", b"", 1)]


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name: str) -> None:
    """Each case ends the connection, with nats-server's error or without a word."""
    data, text = ERRORS[name]
    for chunks in ([data], [data[i:i + 1] for i in range(len(data))]):
        with pytest.raises(ProtocolError) as caught:
            parsed(chunks)
        assert caught.value.text == text


def test_headers_must_be_negotiated() -> None:
    """A message with headers ends the connection if the other server cannot send them."""
    with pytest.raises(ProtocolError):
        LeafParser().feed(b"HMSG a 12 12\r\n")


TOKEN = st.text("abc$_", min_size=1, max_size=4).map(str.encode)
SUBJECT = st.lists(TOKEN, min_size=1, max_size=3).map(b".".join)
MSG = st.tuples(SUBJECT, st.one_of(st.just(b""), SUBJECT), st.booleans(), st.binary(max_size=40))


@given(st.lists(MSG, max_size=6), st.lists(TOKEN, max_size=3), st.one_of(st.just(b""), SUBJECT),
       st.lists(st.integers(1, 50), max_size=8))
def test_encoded_messages_come_back(rows: list[tuple[bytes, bytes, bool, bytes]], queues: list[bytes], to: bytes,
                                    cuts: list[int]) -> None:
    """The parser reads what the encoder wrote, wherever it is cut; the subject of a delivery is in its reply."""
    msgs: list[Msg] = [(subject, reply, len(HEADERS) if rich else 0, HEADERS * rich + body)
                       for subject, reply, rich, body in rows]
    data = b"".join(encode(msgs, queues, to))
    chunks, at = [], 0
    for cut in cuts:
        chunks.append(data[at:at + cut])
        at += cut
    back = []
    for op in parsed([*chunks, data[at:]]):
        assert type(op) is tuple
        subject, routed, hlen, body = op
        reply, names = split_route(routed)
        assert names == tuple(queues)
        back.append((subject, reply, hlen, body))
    assert back == [(to or subject, b"%b@%b" % (reply, subject) if to and reply else reply, hlen, body)
                    for subject, reply, hlen, body in msgs]


def test_encoded_lines() -> None:
    """Interest and CONNECT have nats-server's form, as captured between two of its servers."""
    assert interest(b"foo.*", b"", 1) == b"LS+ foo.*\r\n"
    assert interest(b"svc.q", b"g", 2) == b"LS+ svc.q g 2\r\n"
    assert interest(b"svc.q", b"g", 0) == b"LS- svc.q g\r\n"
    assert interest(b"foo.*", b"", 0) == b"LS- foo.*\r\n"
    assert connect({"name": "a", "protocol": 3}) == b'CONNECT {"name":"a","protocol":3}\r\n'
    large = b"x" * 8192
    assert encode([(b"a", b"", 0, large)]) == [b"LMSG a 8192\r\n", large, b"\r\n"]
