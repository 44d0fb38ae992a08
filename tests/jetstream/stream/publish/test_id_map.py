"""Ids in several containers behave like ids in one container."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.jetstream.stream.publish import id_map
from broker.jetstream.stream.publish.id_map import IdMap, IdSet

IDS = st.sampled_from([b"%d" % i for i in range(20)])


@pytest.fixture(autouse=True, scope="module")
def small() -> Iterator[None]:
    """Limit containers to three ids."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(id_map, "_MAP_IDS_MAX", 3)
        patch.setattr(id_map, "_SET_IDS_MAX", 3)
        yield


@settings(deadline=None)
@given(st.lists(st.lists(IDS, max_size=6), max_size=20), st.integers(0, 12))
def test_a_map_of_several_parts_agrees_with_a_dictionary(runs: list[list[bytes]], window: int) -> None:
    """Ids are added, and removed from the front as a window moves on; some are used again before that.

    Removed ids leave no containers.
    """
    ids, model, seq = IdMap(), dict[bytes, int](), 0
    kept: list[tuple[list[bytes], int]] = []
    for run in runs:
        for msg_id in run:
            seq += 1
            ids.update({msg_id: seq})
            model[msg_id] = seq
        kept.append((run, seq))
        while len(kept) > window:
            old, last_seq = kept.pop(0)
            for msg_id in old:
                ids.forget(msg_id, last_seq)
                if model.get(msg_id, last_seq + 1) <= last_seq:
                    del model[msg_id]
        ids.shrink()
        assert {msg_id: ids.get(msg_id) for msg_id in map(b"%d".__mod__, range(20)) if ids.get(msg_id)} == model
        assert ids.has_none_of([b"0", b"1"]) == model.keys().isdisjoint([b"0", b"1"])
        assert ids.has_none_of(iter([b"none"]))
    for run, last_seq in kept:
        for msg_id in run:
            ids.forget(msg_id, last_seq)
    ids.shrink()
    assert len(ids) == 0
    assert ids._parts == [{}]


def test_an_id_that_is_put_is_there_once() -> None:
    """It replaces the id in whichever container has it: a restart loads the newest ids first."""
    ids = IdMap()
    for at in range(10):
        ids.put(b"%d" % at, 100 - at)
    ids.put(b"1", 5)
    assert (len(ids), ids.get(b"1"), ids.get(b"9")) == (10, 5, 91)
    ids.forget(b"1", 5)
    assert ids.get(b"1") == 0


@settings(deadline=None)
@given(st.lists(st.lists(IDS, max_size=8), max_size=8))
def test_a_set_returns_the_ids_that_it_had(runs: list[list[bytes]]) -> None:
    """The result has the places of ids that were in the set, or come twice in one call."""
    ids, model = IdSet(), set[bytes]()
    for some in runs:
        expected = []
        for at, msg_id in enumerate(some):
            if msg_id in model:
                expected.append(at)
            model.add(msg_id)
        assert ids.add_new(some) == expected
        assert all((msg_id in ids) == (msg_id in model) for msg_id in map(b"%d".__mod__, range(20)))
