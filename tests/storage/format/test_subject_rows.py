"""The rows of a page of subjects: live messages are read back, and damage is an error, never other rows."""

from __future__ import annotations

import random
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.storage.format import subject_rows
from broker.storage.format.codec import pack_value, unpack_value
from broker.storage.format.header import Position
from broker.storage.format.index import Head
from broker.storage.format.message_size import message_size
from broker.storage.format.subject_rows import SubjectRows, SubjectRowsWriter
from broker.storage.log.open_block import OpenBlock
from broker.storage.log.writer import seal_block

Msg = tuple[int, bytes, int, bytes]


@st.composite
def _blocks(draw: st.DrawFn) -> list[list[Msg]]:
    """Generate successive blocks of messages: sequence, subject, length of headers, body. There may be gaps."""
    seq, blocks = draw(st.sampled_from([0, 5, 1 << 33])), []
    for _ in range(draw(st.integers(1, 4))):
        some: list[Msg] = []
        for _ in range(draw(st.integers(1, 12))):
            seq += draw(st.sampled_from([1, 1, 1, 2, 300]))
            body = bytes(draw(st.integers(0, 40)))
            some.append((seq, b"s.%d" % draw(st.integers(0, 5)), draw(st.integers(0, min(3, len(body)))), body))
        blocks.append(some)
    return blocks


def _head(msgs: list[Msg]) -> Head:
    block: OpenBlock[None] = OpenBlock(7, None)
    for seq, subject, hlen, body in msgs:
        block.append_run(seq, [subject], [hlen] if hlen else None, [body], 1000 + seq)
    head = seal_block(block, Position(1, 2)).head
    assert head is not None
    return head


def _listed(rows: SubjectRows) -> list[tuple[int, bytes, int]]:
    return [(rows.seq_of(i), rows.subject_of(i), rows.size_of(i)) for i in range(rows.count)]


@given(_blocks(), st.sets(st.integers(0, 60)), st.data())
def test_rows_are_those_of_the_live_messages(blocks: list[list[Msg]], places: set[int], data: st.DataObject) -> None:
    """Shows the rows by way of heads and of earlier pages, packed and unpacked."""
    everything = [msg for msgs in blocks for msg in msgs]
    gone = sorted(everything[at][0] for at in places if at < len(everything))
    spans = [(seq, seq) for seq in gone]
    first = data.draw(st.integers(0, everything[0][0]))
    writer = SubjectRowsWriter(first)
    for msgs in blocks:
        writer.add_head(_head(msgs), msgs[0][0], msgs[-1][0], spans)
    expected = [(seq, subject, message_size(subject, hlen, body))
                for seq, subject, hlen, body in everything if seq not in gone]
    rows = writer.rows()
    if not expected:
        assert rows is None
        return
    assert rows is not None
    again = SubjectRows.unpack(unpack_value(pack_value(rows.pack())))
    for one in (rows, again):
        assert _listed(one) == expected
        assert (one.first_seq, one.last_seq, one.count) == (first, everything[-1][0], len(expected))
        assert list(one.names) == sorted({subject for _, subject, _ in expected})
        assert [one.ordinal_of(seq) for seq, _, _ in expected] == list(range(one.count))
        assert one.ordinal_of(everything[-1][0] + 1) == one.count
        subjects, ones, seqs = one.between(0, one.count)
        assert list(zip(seqs, subjects, strict=True)) == [(seq, subject) for seq, subject, _ in expected]
        assert list(ones) == [1] * one.count
    # Join a page of a part of them with a later block.
    cut = data.draw(st.integers(0, len(expected)))
    dead = [(seq, seq) for seq, _, _ in expected[:cut]]
    joined = SubjectRowsWriter(first)
    joined.add_rows(again, again.first_seq, again.last_seq, dead)
    joined.add_head(_head([(everything[-1][0] + 2, b"s.new", 0, b"x")]), 0, 1 << 62, [])
    rows = joined.rows()
    assert rows is not None
    assert _listed(rows) == [*expected[cut:], (everything[-1][0] + 2, b"s.new", message_size(b"s.new", 0, b"x"))]


@given(_blocks(), st.randoms())
def test_other_values_than_packed_rows_are_refused(blocks: list[list[Msg]], rng: random.Random) -> None:
    """Shows that a page with one replaced field is an error, or has rows within all bounds."""
    writer = SubjectRowsWriter(1)
    for msgs in blocks:
        writer.add_head(_head(msgs), 1, msgs[-1][0], [])
    rows = writer.rows()
    assert rows is not None
    packed = rows.pack()
    at = rng.randrange(len(packed))
    packed[at] = rng.choice([0, -1, 1 << 70, b"", b"xx", None, [], [0, 0, b""], [0, 1, b"\0"], [1, 9, b"\0"],
                             ["", 0, b""], "x"])
    try:
        found = SubjectRows.unpack(packed)
    except (TypeError, ValueError, IndexError, AttributeError, OverflowError):
        return
    listed = _listed(found)
    assert len(listed) == found.count
    assert all(found.first_seq <= seq <= found.last_seq for seq, _, _ in listed)


def test_a_count_costs_no_memory() -> None:
    """Shows that a page with a count of 2^60 equal messages is refused."""
    with pytest.raises(ValueError, match="out of bounds"):
        SubjectRows.unpack([1, 1 << 60, 1 << 60, [1, 0, b""], [0, 0, b""], [40, 0, b""], [1, 0, b""], 1, b"a"])


@pytest.mark.parametrize("change", [
    {"ids": array("B", [0, 7])}, {"seqs": array("Q", [6, 5])}, {"seqs": array("Q", [5, 99])}, {"names": [b"b", b"a"]},
    {"names": [b"a", b"a"]}], ids=["a subject that is missing", "sequences that descend",
                                   "a sequence beyond the range", "names that descend", "a name twice"])
def test_rows_out_of_bounds_are_refused(change: dict[str, object]) -> None:
    """Shows each bound."""
    sound = {"seqs": array("Q", [5, 7]), "ids": array("B", [0, 1]), "names": [b"a", b"b"]}
    given_: dict[str, object] = {**sound, **change}
    make = lambda some: SubjectRows(  # noqa: E731
        5, 9, 5, some["seqs"], some["ids"], array("I", [40, 40]), some["names"])
    assert SubjectRows.unpack(make(sound).pack()).count == 2
    with pytest.raises(ValueError, match="page of subjects"):
        SubjectRows.unpack(make(given_).pack())


def test_rows_of_many_are_made_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shows that more messages and names than one call processes give the same rows, and that no call sorts more."""
    monkeypatch.setattr(subject_rows, "_AT_ONCE", 7)
    longest = []
    monkeypatch.setattr(subject_rows, "sorted", lambda some: longest.append(len(some)) or sorted(some), raising=False)
    rng = random.Random(1)
    msgs = [(seq, b"s.%d" % rng.randrange(60), 0, bytes(rng.randrange(9))) for seq in range(1, 201)]
    writer = SubjectRowsWriter(1)
    for at in (0, 100):
        writer.add_head(_head(msgs[at:at + 100]), 1, msgs[at + 99][0], [(20, 40), (150, 150)])
    rows = writer.rows()
    assert rows is not None
    expected = [(seq, name, message_size(name, hlen, body))
                for seq, name, hlen, body in msgs if not 20 <= seq <= 40 and seq != 150]
    assert _listed(rows) == expected
    assert _listed(SubjectRows.unpack(rows.pack())) == expected
    assert list(rows.names) == sorted({name for _, name, _ in expected})
    assert max(longest) <= 7
