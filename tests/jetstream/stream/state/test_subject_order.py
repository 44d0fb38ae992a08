"""The subjects of an index in order, while subjects are added and removed."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.jetstream.filters import Filters
from broker.jetstream.stream.state.subject_index import SubjectIndex
from broker.jetstream.stream.state.subject_order import SubjectOrder


def _within(order: SubjectOrder, spans: tuple[tuple[bytes, bytes], ...]) -> list[bytes]:
    return [name for names, start, end in order.within(spans) for name in names[start:end]]


STEP = st.one_of(st.tuples(st.just("add"), st.integers(0, 12)), st.tuples(st.just("remove"), st.integers(0, 12)),
                 st.tuples(st.sampled_from(["merge", "merge, with the next steps meanwhile"]), st.just(0)))


@settings(max_examples=200, deadline=None)
@given(st.lists(STEP, max_size=40))
def test_every_subject_is_found_once(steps: list[tuple[str, int]]) -> None:
    """Each subject of the index is found once, even if it is removed and added again before, during or after a
    merge."""

    async def run() -> None:
        index, order, seq = SubjectIndex(True), SubjectOrder(), 0
        index.order = order
        merging: asyncio.Task[None] | None = None
        for what, number in steps:
            name = b"k.%d" % number
            if what == "add":
                if name not in index:
                    seq += 1
                    index.add(name, seq, 1)
            elif what == "remove":
                if name in index:
                    index.remove(name, index.last(name, 0) or 0)
            elif merging is None:
                merging = asyncio.ensure_future(order.merge())
                await asyncio.sleep(0)
            if what == "merge" and merging is not None:
                await merging
                merging = None
        if merging is not None:
            await merging
        found = [name for name in _within(order, Filters([b"k.*"]).spans) if name in index]
        assert sorted(found) == sorted(index)
        assert order.stale <= sum(name not in index for name in _within(order, ()))

    asyncio.run(run())


async def test_a_span_holds_its_subjects_in_order() -> None:
    """Merged names are found by their place; names added since then are not sorted."""
    order = SubjectOrder()
    await order.merge([b"a.%d" % i for i in range(1000)] + [b"b.%d" % i for i in range(1000)] + [b"b"])
    order.add(b"a.x")
    parts = order.within(Filters([b"b.>"]).spans)
    names, start, end = parts[0]
    assert names[start:end] == sorted(b"b.%d" % i for i in range(1000))
    assert parts[1] == ([b"a.x"], 0, 1)
    assert len(order.within(Filters([b"b.>", b"a.7", b"b.1"]).spans)) == 3


@pytest.mark.parametrize("tracked", [False, True])
def test_columns_agree_with_single_lookups(tracked: bool) -> None:
    """Counts, lasts and presence of many subjects at once, and the next messages of one, agree with single lookups.

    Some messages have left at the front.
    """
    index = SubjectIndex(tracked)
    for seq in range(1, 61):
        index.add(b"s.%d" % (seq % 7 + seq % 3), seq, 10)
    index.merged_seq = 60
    if not tracked:
        index.subtract(b"s.3", 1, index.last(b"s.3", 0) or 0)
    names = [b"s.%d" % i for i in range(12)]
    everything = {name: [seq for seq in range(1, 61) if b"s.%d" % (seq % 7 + seq % 3) == name] for name in names}
    for name in names if tracked else ():
        for first, last, most in ((1, 60, 100), (58, 60, 2), (20, 40, 100), (20, 40, 1), (61, 90, 3)):
            within = [seq for seq in everything[name] if first <= seq <= last]
            assert index.seqs(name, first, last, most) == within[:most]
            assert index.count_within(name, first, last) == len(within)
    for first_seq in (1, 58) if tracked else (1,):
        lasts = [-1 if (last := index.last(name, first_seq)) is None else last for name in names]
        assert index.lasts(names, first_seq) == lasts
        assert index.alive(names, first_seq) == [name for name in names if index.count(name, first_seq)]
        assert index.counts(names, first_seq) == [index.count(name, first_seq) for name in names]
    if tracked:
        for name in names:
            seqs = [seq for seq, _ in index.messages(name, 58)]
            assert [index.next(name, seq) for seq in range(58, 62)] == [
                min((one for one in seqs if one >= seq), default=0) for seq in range(58, 62)]
