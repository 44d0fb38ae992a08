"""Long answers are the same JSON as short ones, made in slices."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.jetstream.wire import long_answers
from broker.jetstream.wire.fields import dump
from broker.jetstream.wire.long_answers import dump_in_turns, is_long
from tests.jetstream.in_process import Inside

VALUES = st.recursive(st.integers() | st.text(max_size=4) | st.none(),
                      lambda inner: st.lists(inner, max_size=7) | st.dictionaries(
    st.text(max_size=3), inner, max_size=7), max_leaves=40)


@given(VALUES)
def test_slices_are_the_whole(value: Any) -> None:
    """Shows nested mappings and lists, long ones among them and in them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(long_answers, "_AT_ONCE", 3)
        assert asyncio.run(dump_in_turns(value)) == dump(value)


def test_long_values_are_recognised() -> None:
    assert not is_long({"state": {"subjects": {"a": 1}}, "error": None})
    assert is_long({"state": {"subjects": dict.fromkeys(map(str, range(10_000)), 1)}})
    assert is_long({"state": {"deleted": list(range(10_000))}})


async def test_subjects_of_a_stream_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shows STREAM.INFO of 500 subjects with slices of 50: no encoding is longer, and all subjects are shown."""
    monkeypatch.setattr(long_answers, "_AT_ONCE", 50)
    dumped: list[int] = []

    def counted(value: Any) -> bytes:
        dumped.append(len(value) if isinstance(value, dict | list) else 1)
        return dump(value)

    monkeypatch.setattr(long_answers, "dump", counted)
    async with Inside() as broker:
        await broker.ok("STREAM.CREATE.S", {"name": "S", "subjects": ["s.*"]})
        for i in range(499):
            await broker.client.publish(f"s.{i:03}", b"x")
        await broker.publish("s.499")
        shown = await broker.ok("STREAM.INFO.S", {"subjects_filter": ">"})
        assert shown["state"]["subjects"] == {f"s.{i:03}": 1 for i in range(500)}
        assert max(dumped) == 50
        assert dumped.count(50) == 10
