"""The parser: one table, each case whole, byte by byte, and followed by bytes of the next operation."""

from __future__ import annotations

import pytest

from broker.protocol.framing import ProtocolError
from broker.protocol.operations import Connect, Err, Ping, Pong, Sub, Unsub
from broker.protocol.parser import Op, Parser

CASES: dict[str, tuple[bytes, list[Op]]] = {
    "pub": (b"PUB foo 3\r\nabc\r\n", [(b"foo", b"", 0, b"abc")]),
    "pub with reply": (b"PUB foo bar 3\r\nabc\r\n", [(b"foo", b"bar", 0, b"abc")]),
    "pub empty": (b"PUB foo 0\r\n\r\n", [(b"foo", b"", 0, b"")]),
    "pub zeros in front": (b"PUB foo 003\r\nabc\r\n", [(b"foo", b"", 0, b"abc")]),
    "pub lower case, tabs, LF": (b"pub\tfoo \t bar\t3 \nabc\r\n", [(b"foo", b"bar", 0, b"abc")]),
    "payload with newlines": (b"PUB foo 8\r\na\r\nPUB \n\r\n", [(b"foo", b"", 0, b"a\r\nPUB \n")]),
    "hpub": (b"HPUB foo 12 14\r\nNATS/1.0\r\n\r\nhi\r\n", [(b"foo", b"", 12, b"NATS/1.0\r\n\r\nhi")]),
    "hpub with reply": (b"hpub foo r 12 12\r\nNATS/1.0\r\n\r\n\r\n", [(b"foo", b"r", 12, b"NATS/1.0\r\n\r\n")]),
    "hpub of no headers": (b"HPUB foo 0 2\r\nhi\r\n", [(b"foo", b"", 0, b"hi")]),
    "the same line again": (b"PUB foo r 1\r\na\r\nPUB foo r 1\r\nb\r\nPUB foo 1\r\nc\r\nHPUB foo 1 1\r\nd\r\n"
                            b"HPUB foo 1 1\r\ne\r\n",
                            [(b"foo", b"r", 0, b"a"), (b"foo", b"r", 0, b"b"), (b"foo", b"", 0, b"c"),
                             (b"foo", b"", 1, b"d"), (b"foo", b"", 1, b"e")]),
    "sub": (b"SUB foo 1\r\n", [Sub(b"foo", b"", b"1")]),
    "sub queue": (b"SUB\t foo  q  22\n", [Sub(b"foo", b"q", b"22")]),
    "unsub": (b"UNSUB 1\r\n", [Unsub(b"1", -1)]),
    "unsub max": (b"unsub 1 5\r\n", [Unsub(b"1", 5)]),
    "unsub with a strange max": (b"UNSUB 1 x5\r\n", [Unsub(b"1", -1)]),
    "ping": (b"PING\r\n", [Ping()]),
    "ping with more behind it": (b"pinG and so on\r\n", [Ping()]),
    "pong": (b"PONG\r\n", [Pong()]),
    "connect": (b'CONNECT {"a": 1}\r\nPING\r\n', [Connect(b'{"a": 1}'), Ping()]),
    "connect without blank": (b"CONNECT{}\n", [Connect(b"{}")]),
    "connect empty": (b"CONNECT\r\n", [Connect(b"")]),
    "err": (b"-ERR 'no'\r\n", [Err(b"'no'")]),
    "ignored": (b"+OK\r\nINFO {}\r\n+ok!\n", []),
    "a bit of all": (b"SUB a 1\r\nPUB a 1\r\nx\r\nPING\r\nPUB b 0\r\n\r\nPUB c 1\r\ny\r\nUNSUB 1\r\n",
                     [Sub(b"a", b"", b"1"), (b"a", b"", 0, b"x"), Ping(), (b"b", b"", 0, b""), (b"c", b"", 0, b"y"),
                      Unsub(b"1", -1)]),
}

UNKNOWN = "Unknown Protocol Operation"
LINE = "maximum control line exceeded"
PAYLOAD = "Maximum Payload Violation"

ERRORS: dict[str, tuple[bytes, str | None]] = {
    "unknown": (b"FOO bar\r\n", UNKNOWN), "unknown at once": (b"Z", UNKNOWN), "unknown later": (b"PUK", UNKNOWN),
    "server's": (b"MSG a 1 2\r\n", UNKNOWN), "blank first": (b" PING\r\n", UNKNOWN), "empty line": (b"\r\n", UNKNOWN),
    "no blank": (b"PUB\r\n", UNKNOWN), "no blank, unfinished": (b"SUBx", UNKNOWN), "just LF": (b"\n", UNKNOWN),
    "pub of nothing": (b"PUB \r\n", None), "pub one": (b"PUB a\r\n", None), "pub four": (b"PUB a b c 1\r\n", None),
    "size text": (b"PUB a b\r\n", None), "size signed": (b"PUB a +1\r\n", None),
    "size negative": (b"PUB a -1\r\n", None),
    "size underscored": (b"PUB a 1_0\r\n", None), "ten digits": (b"PUB a 0000000001\r\n", None),
    "hpub two": (b"HPUB a 1\r\n", None), "hpub five": (b"HPUB a b c 1 2\r\n", None),
    "header size text": (b"HPUB a x 2\r\n", None), "header larger": (b"HPUB a 3 2\r\n", None),
    "header negative": (b"HPUB a -1 2\r\n", None),
    "sub one": (b"SUB a\r\n", None), "sub four": (b"SUB a b c d\r\n", None), "sub none": (b"SUB \r\n", None),
    "unsub none": (b"UNSUB \r\n", None), "unsub three": (b"UNSUB 1 2 3\r\n", None),
    "payload longer": (b"PUB a 1\r\nxy", UNKNOWN), "payload without CR": (b"PUB a 1\r\nx\n", UNKNOWN),
    "payload without LF": (b"PUB a 1\r\nx\rx", UNKNOWN),
    "too large": (b"PUB a 1025\r\n", PAYLOAD), "too large with headers": (b"HPUB a 1 1025\r\n", PAYLOAD),
    "line too long": (b"PUB " + b"a" * 64 + b" 1\r\n", LINE), "line too long, unfinished": (b"SUB " + b"a" * 80, LINE),
}


def parser() -> Parser:
    made = Parser(max_control_line=64, max_payload=1024)
    made.headers = True
    return made


def fed(made: Parser, data: bytes) -> list[Op]:
    """Feed one read, including the parts after a CONNECT. Returns: its operations."""
    ops: list[Op] = []
    batch = made.feed(data)
    while True:
        assert made.marks == [i for i, op in enumerate(batch) if not isinstance(op, tuple)]
        assert made.payload_bytes == sum(len(op[3]) for op in batch if isinstance(op, tuple))
        ops += batch
        if not made.held:
            return ops
        batch = made.feed(b"")


@pytest.mark.shows("core.pub")
@pytest.mark.parametrize("name", CASES)
def test_whole(name: str) -> None:
    """Each case is parsed in one read."""
    data, ops = CASES[name]
    made = parser()
    assert fed(made, data) == ops
    assert made.idle


@pytest.mark.shows("core.pub")
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("step", [1, 2, 3, 7])
def test_in_pieces(name: str, step: int) -> None:
    """Each case is parsed in reads of a few bytes; ``idle`` shows an incomplete operation."""
    data, ops = CASES[name]
    made = parser()
    seen: list[Op] = []
    for start in range(0, len(data), step):
        seen += fed(made, data[start:start + step])
    assert seen == ops
    assert made.idle


@pytest.mark.parametrize("name", CASES)
def test_with_more_behind(name: str) -> None:
    """The bytes of a next operation wait for the rest of it."""
    data, ops = CASES[name]
    made = parser()
    assert fed(made, data + b"PUB next 4\r\nab") == ops
    assert not made.idle
    assert fed(made, b"cd\r\n") == [(b"next", b"", 0, b"abcd")]


@pytest.mark.shows("core.errors")
@pytest.mark.parametrize("name", ERRORS)
@pytest.mark.parametrize("step", [1, 1000])
def test_error(name: str, step: int) -> None:
    """An error has its text and reason; complete operations before it are returned."""
    data, text = ERRORS[name]
    made = parser()
    before: list[Op] = []
    whole = b"PUB a 1\r\nx\r\n" + data

    def feed_all() -> None:
        nonlocal before
        for start in range(0, len(whole), step):
            before += fed(made, whole[start:start + step])

    with pytest.raises(ProtocolError) as caught:
        feed_all()
    assert caught.value.text == text
    assert before + caught.value.ops == [(b"a", b"", 0, b"x")]


def test_headers_must_be_negotiated() -> None:
    """HPUB ends the connection of a client that did not request headers."""
    with pytest.raises(ProtocolError) as caught:
        Parser().feed(b"HPUB a 1 1\r\nx\r\n")
    assert caught.value.text is None


def test_connect_ends_a_batch() -> None:
    """A setting that CONNECT changes applies to the bytes immediately after it."""
    made = Parser()
    assert made.feed(b"CONNECT {}\r\nHPUB a 1 1\r\nx\r\n") == [Connect(b"{}")]
    assert made.held
    made.headers = True
    assert made.feed(b"") == [(b"a", b"", 1, b"x")]
    assert not made.held


def test_large_message_in_many_reads() -> None:
    """A message of many reads is joined once, whatever else the reads contain."""
    made = Parser()
    body = bytes(range(256)) * 4000
    data = b"PUB a 1\r\nx\r\nPUB big %d\r\n%b\r\nPING\r\n" % (len(body), body)
    ops: list[Op] = []
    for start in range(0, len(data), 1000):
        ops += made.feed(data[start:start + 1000])
    assert ops == [(b"a", b"", 0, b"x"), (b"big", b"", 0, body), Ping()]


@pytest.mark.parametrize("cut", range(-4, 3))
def test_a_large_message_cut_near_its_end(cut: int) -> None:
    """Its payload, its line end and the next bytes may be in any reads."""
    body = bytes(range(256)) * 100
    data = b"PUB big 25600\r\n%b\r\nPUB big 25600\r\n%b\r\nPUB a 1\r\nx\r\nPING\r\n" % (body, body[::-1])
    end = data.index(b"\r\nPUB big", 10) + cut
    for step in (1, 5, 30_000):
        made = Parser()
        ops = made.feed(data[:9_000]) + made.feed(data[9_000:end])
        assert made.missing > 0 or len(ops) == 1
        for start in range(end, len(data), step):
            ops += made.feed(data[start:start + step])
        assert ops == [(b"big", b"", 0, body), (b"big", b"", 0, body[::-1]), (b"a", b"", 0, b"x"), Ping()]
        assert made.idle
        assert made.missing == 0


@pytest.mark.parametrize(("fine", "wrong"), [(b"", b"xx"), (b"", b"x"), (b"\r", b"x"), (b"", b"\rx"), (b"", b"\n\r")])
def test_a_large_message_that_does_not_end(fine: bytes, wrong: bytes) -> None:
    """Bytes other than a line end after a payload are refused as soon as they arrive."""
    made = Parser()
    assert made.feed(b"PUB big 25600\r\n" + bytes(25_000)) == []
    assert made.missing == 602
    assert made.feed(bytes(600)) == []
    assert not fine or made.feed(fine) == []
    with pytest.raises(ProtocolError):
        made.feed(wrong)


def test_size_limit_needs_no_payload() -> None:
    """The control line suffices to refuse a payload; a message of exactly the limit is accepted."""
    made = Parser(max_payload=10)
    assert made.feed(b"PUB a 10\r\n0123456789\r\n") == [(b"a", b"", 0, b"0123456789")]
    with pytest.raises(ProtocolError):
        made.feed(b"PUB a 11\r\n")


def test_reserved_replies() -> None:
    """A batch that may contain a reserved reply has the flag, even if only a repeated line has the reply."""
    made = Parser()
    made.feed(b"PUB a _INBOX.x 0\r\n\r\n")
    assert not made.reserved_replies
    made.feed(b"PUB a _R_.x 0\r\n\r\n")
    assert made.reserved_replies
    made.feed(b"PUB a _R_.x 0\r\n\r\nPUB a _INBOX.y 0\r\n\r\n")
    assert made.reserved_replies
    made.feed(b"PUB a 0\r\n\r\n")
    made.feed(b"PUB a 0\r\n\r\n")
    assert not made.reserved_replies


def test_endless_lines_are_not_kept() -> None:
    """PING, PONG and +OK may continue for ever without a newline; memory does not grow."""
    made = Parser()
    for _ in range(100):
        assert made.feed(b"PING " + b"x" * 10_000 if made.idle else b"x" * 10_000) == []
    assert len(made._rest) < 100
    assert made.feed(b"\r\n") == [Ping()]
    made.feed(b"SUB ")
    for _ in range(100):
        made.feed(b" " * 1000)
    assert made.feed(b"a 1\r\n") == [Sub(b"a", b"", b"1")]


@pytest.mark.parametrize("tail",
                         [b" 0\r\n\r\n", b"  0\r\n\r\n", b" 4\r\n+ACK\r\n", b"  4\r\n+ACK\r\n", b" 4\r\n-NAK\r\n",
                                  b" _INBOX.x.1 0\r\n\r\n", b" 0\n\r\n", b" 1\r\n\n\r\n"])
@pytest.mark.parametrize("different",
                         [b"", b"PING\r\n", b"PUB $JS.ACK.S.C.1.9.9.9.9 0\r\n\r\n", b"PUB a 14\r\nPUB $JS.ACK. 0\r\n",
                                 b"PUB\t$JS.ACK.S.C.1.9.9.9.9 0\r\n\r\n", b"PUB $JS.ACK.S.C.1.9.9.9.9 0 \r\n\r\n",
                                 b"PUB $JS.ACK.", b"PUB $JS.ACK.S.C.1.9.9.9.9 0\r\n"])
def test_bursts_of_acks_equal_single_acks(tail: bytes, different: bytes) -> None:
    """Many acks in one read take a fast path; whatever else is among them, the result equals that of the slow path."""
    acks = [b"PUB $JS.ACK.S.C.1.%d.%d.1700000000000000000.%d" % (i, i, 100 - i) + tail for i in range(60)]
    for at in (0, 1, 30, 60):
        data = b"".join(acks[:at]) + different + b"".join(acks[at:])
        whole, slow = Parser(), Parser()
        outcome = [_fed(whole, [data]), _fed(slow, [data[i:i + 7] for i in range(0, len(data), 7)])]
        assert outcome[0] == outcome[1]


def _fed(parser: Parser, pieces: list[bytes]) -> tuple[list[object], str]:
    ops: list[object] = []
    try:
        for piece in pieces:
            ops += parser.feed(piece)
    except ProtocolError as error:
        return ops + error.ops, error.reason
    return ops, ""
