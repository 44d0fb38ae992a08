"""The table of expiries against a plain dictionary, and restored from a checkpoint."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import broker.storage.state.expiries as expiries
from broker.storage.state.expiries import NEVER, Expiries, ExpiryPage, expires_at


@pytest.fixture(autouse=True, scope="module")
def small_pages() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(expiries, "PAGE_ROWS", 4)
        yield


times = st.integers(1, 20) | st.just(NEVER)
steps = st.lists(st.one_of(
    st.tuples(st.just("add"), st.lists(st.tuples(st.integers(1, 3), times), min_size=1, max_size=9)),
    st.tuples(st.just("remove"), st.integers(0, 60), st.integers(0, 10)),
    st.tuples(st.just("trim"), st.integers(0, 60)),
    st.tuples(st.just("ask"))), max_size=25)


@given(steps)
def test_against_a_dictionary(history: list[Any]) -> None:
    """Shows that any history of additions and removals leaves the same rows, earliest time and counts."""
    table, model, last = Expiries(), dict[int, int](), 0
    for verb, *what in history:
        if verb == "add":
            rows = []
            for gap, time_ns in what[0]:
                last += gap
                rows.append((last, time_ns))
            model.update(rows)
            table.add([seq for seq, _ in rows], [time_ns for _, time_ns in rows])
        elif verb == "remove":
            first, count = what
            table.remove(first, first + count)
            model = {seq: time_ns for seq, time_ns in model.items() if not first <= seq <= first + count}
        elif verb == "trim":
            table.trim(what[0])
            model = {seq: time_ns for seq, time_ns in model.items() if seq >= what[0]}
        else:
            assert table.next_ns == min(model.values(), default=NEVER)
    _same(table, model)
    again = Expiries()
    for page in table.pages:
        again.load(ExpiryPage.unpack(page.pack()))
    _same(again, model)
    _same(table.copy(), model)


def _same(table: Expiries, model: dict[int, int]) -> None:
    assert len(table) == len(model)
    assert table.nevers == list(model.values()).count(NEVER)
    assert table.next_ns == min(model.values(), default=NEVER)
    for first, last in ((0, 99), (5, 20), (30, 30)):
        seqs, found = table.rows(first, last)
        expected = sorted((seq, time_ns) for seq, time_ns in model.items() if first <= seq <= last)
        assert list(zip(seqs, found, strict=True)) == expected
        assert table.never(first, last) == {seq for seq, time_ns in expected if time_ns == NEVER}
    for now_ns in (0, 7, 20):
        due = sorted(seq for seq, time_ns in model.items() if time_ns <= now_ns)
        assert table.due(now_ns, 1000) == due
        assert table.count_due(now_ns, 5, 20) == sum(5 <= seq <= 20 for seq in due)
        some = table.due(now_ns, 1)
        assert some == due[:len(some)]
        assert bool(some) == bool(due)


def test_known_messages_are_not_added_twice() -> None:
    """Shows that a replay over a newer page changes nothing."""
    table = Expiries()
    table.add([1, 2, 3], [5, 6, 7])
    table.remove(2, 2)
    table.add([1, 2, 3, 4], [5, 6, 7, 8])
    assert [list(column) for column in table.rows(0, 9)] == [[1, 3, 4], [5, 7, 8]]


def test_pages_that_overlap_are_refused() -> None:
    table = Expiries()
    table.add([1, 9], [1, 1])
    with pytest.raises(ValueError, match="overlap"):
        table.load(ExpiryPage.unpack(table.pages[0].pack()))
    with pytest.raises(ValueError, match="length"):
        ExpiryPage.unpack([4, [1, 2], [1]])


@pytest.mark.parametrize("ttl, expected", [(1, 1_000_000_005), (-1, NEVER), (1 << 62, NEVER - 1)])
def test_when_a_message_expires(ttl: int, expected: int) -> None:
    """Shows that a TTL of centuries differs from never: max_age applies."""
    assert expires_at(5, ttl) == expected
