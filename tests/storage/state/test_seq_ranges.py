"""Sets of sequences as ranges, compared with sets of numbers."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from broker.storage.state.seq_ranges import SeqRanges

numbers = st.frozensets(st.integers(0, 40))


def seqs(ranges: SeqRanges) -> set[int]:
    """Return the sequences, after checking that the ranges neither overlap nor touch."""
    pairs = list(ranges)
    assert all(first <= last for first, last in pairs)
    assert all(last + 1 < after for (_, last), (after, _) in pairwise(pairs))
    return {seq for first, last in pairs for seq in range(first, last + 1)}


@example(frozenset((0, 22, 23)), frozenset(), frozenset(), 23, 22, 1)
@given(numbers, numbers, numbers, st.integers(0, 40), st.integers(0, 40), st.integers(1, 4))
def test_they_behave_as_sets(one: frozenset[int], other: frozenset[int], third: frozenset[int], first: int, last: int,
                             size: int) -> None:
    """Shows each operation, and that texts, packed values and parts give the same set."""
    a, b, c = map(SeqRanges.of, (one, other, third))
    assert seqs(a) == one
    assert seqs(a | b) == one | other
    assert seqs(a - b) == one - other
    assert seqs(SeqRanges.union((a, b, c))) == one | other | third
    assert seqs(a.cut(first, last)) == {seq for seq in one if first <= seq <= last}
    assert a.overlaps(first, last) == bool(a.cut(first, last))
    assert SeqRanges.unpack(a.pack()) == a
    assert a.count == len(one)
    parts = list(a.parts(size))
    assert all(len(part) <= size for part in parts)
    assert SeqRanges.union(parts) == a
    assert [seq in a for seq in range(42)] == [seq in one for seq in range(42)]


def test_texts_and_damaged_values() -> None:
    """Shows the text of a request, and that ranges which touch become one."""
    assert SeqRanges.of((9, 5, 7, 8)).text() == "5,7-9"
    assert SeqRanges.unpack([3, 0, 1, 0, 0, 2]) == SeqRanges(((3, 6),))
    for damaged in ([1], [1, -1], ["a", 1], 5, [True, 0]):
        try:
            SeqRanges.unpack(damaged)
        except ValueError:
            continue
        raise AssertionError(damaged)
