"""The parser on arbitrary bytes: it raises ProtocolError or nothing, however the bytes are split."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from broker.protocol.framing import ProtocolError
from broker.protocol.parser import Op, Parser

LIMIT = 48

pieces = st.sampled_from([
    b"PUB ", b"HPUB ", b"SUB ", b"UNSUB ", b"CONNECT ", b"PING", b"PONG", b"+OK", b"-ERR ", b"INFO ", b"pub\t", b"foo",
    b" ", b"\t", b"\r\n", b"\n", b"\r", b"0", b"1", b"3", b"12", b"999999999", b"-1", b"{}", b"abc",
    b"PUB a 3\r\nabc\r\n", b"PUB a b 0\r\n\r\n", b"HPUB a 1 3\r\nabc\r\n", b"SUB a 1\r\n", b"CONNECT {}\r\n",
    b"x" * 60, b"\x00", b"\xff",
])
streams = st.lists(st.one_of(pieces, pieces, pieces, st.binary(max_size=4)), max_size=30).map(b"".join)


def outcome(chunks: list[bytes]) -> tuple[list[Op], str | None, bool]:
    """Return all operations, and how the input ended."""
    parser = Parser(max_control_line=LIMIT, max_payload=1000)
    parser.headers = True
    ops: list[Op] = []
    try:
        for chunk in chunks:
            ops += parser.feed(chunk)
            while parser.held:
                ops += parser.feed(b"")
    except ProtocolError as error:
        return ops + error.ops, error.text, True
    return ops, None, False


@example(b"PING" + b"x" * 60 + b"PUB a 3\r\nabc\r\n", [1])
@settings(max_examples=400)
@given(streams, st.lists(st.integers(1, 9), min_size=1))
def test_only_protocol_errors_however_cut(data: bytes, steps: list[int]) -> None:
    """Input in pieces of any size has the same operations and the same end as whole input."""
    chunks = []
    at = turn = 0
    while at < len(data):
        step = steps[turn % len(steps)]
        chunks.append(data[at:at + step])
        at += step
        turn += 1
    assert outcome(chunks) == outcome([data])


@given(st.binary(max_size=200))
def test_any_bytes(data: bytes) -> None:
    outcome([data])
