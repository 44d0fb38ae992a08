"""Header blocks: untrusted ones are read safely, and built ones can be read back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker.protocol import headers

BLOCK = b"NATS/1.0\r\nA: 1\r\nAB:2\r\nA: 3\r\n Nats-X: no\r\nb:  spaced \r\n\r\n"


def test_get() -> None:
    """The result is the first value of exactly that name, not one inside a value or inside another name."""
    assert headers.get(BLOCK, b"A") == b"1"
    assert headers.get(BLOCK, b"AB") == b"2"
    assert headers.get(BLOCK, b"B") is None
    assert headers.get(BLOCK, b"a") is None
    assert headers.get(BLOCK, b"Nats-X") is None
    assert headers.get(BLOCK, b"b") == b"spaced "
    assert headers.get(b"NATS/1.0\r\nA:", b"A") == b""
    assert headers.get(b"", b"A") is None


def test_status() -> None:
    """The result is the status line's text, if there is one."""
    assert headers.status(headers.build(status=b"404 No Messages")) == b"404 No Messages"
    assert headers.status(BLOCK) == b""
    assert headers.status(b"junk") == b""


def test_remove() -> None:
    """All occurrences are removed. A block without headers becomes empty, unless it has a status."""
    assert headers.items(headers.remove(BLOCK, b"A", b"AB"))[0][1] == b"no"
    assert headers.remove(headers.build([(b"A", b"1"), (b"A", b"2")]), b"A") == b""
    assert headers.remove(headers.build([(b"A", b"1")], b"100 Idle"), b"A") == b"NATS/1.0 100 Idle\r\n\r\n"
    assert headers.remove(BLOCK, b"C") == BLOCK
    mixed = headers.build([(b"A", b"1"), (b"B", b"x"), (b"A", b""), (b"A", b"2"), (b"C", b"y"), (b"B", b"z"),
                           (b"D", b"")])
    assert headers.remove(mixed, b"A", b"C") == headers.build([(b"B", b"x"), (b"B", b"z"), (b"D", b"")])
    assert headers.remove(b"NATS/1.0\r\nA: 1\r\nA: cut", b"A", b"B") == b"NATS/1.0\r\nA: cut"


def test_set() -> None:
    """A header is replaced in place, or appended; an empty block becomes a new one."""
    assert headers.items(headers.set(BLOCK, b"A", b"9"))[0] == (b"A", b"9")
    assert headers.set(b"", b"A", b"1") == b"NATS/1.0\r\nA: 1\r\n\r\n"
    assert headers.items(headers.set(headers.build([(b"A", b"1")]), b"B", b"2")) == [(b"A", b"1"), (b"B", b"2")]


names = st.binary(min_size=1, max_size=5).filter(lambda name: not set(name) & set(b"\r\n: "))
values = st.binary(max_size=8).filter(lambda value: b"\r\n" not in value).map(lambda value: value.strip(b" \r\n"))


@given(st.lists(st.tuples(names, values)))
def test_round_trip(pairs: list[tuple[bytes, bytes]]) -> None:
    """Pairs of a built block are read back, one by one and by name."""
    block = headers.build(pairs)
    assert headers.items(block) == pairs
    for name, _ in pairs:
        assert headers.get(block, name) == next(value for other, value in pairs if other == name)


@given(st.binary(), names, values)
def test_any_bytes(block: bytes, name: bytes, value: bytes) -> None:
    """No bytes raise an exception."""
    headers.get(block, name)
    headers.items(block)
    headers.status(block)
    headers.remove(block, name)
    headers.set(block, name, value)
