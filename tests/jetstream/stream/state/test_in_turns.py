"""Sorting in turns: the same as ``sorted``, without a turn that takes long."""

from __future__ import annotations

import asyncio
import random

import pytest

from broker.jetstream.stream.state import in_turns
from broker.jetstream.stream.state.in_turns import merged_in_turns, sorted_in_turns


@pytest.mark.parametrize("shape", ["random", "ordered", "reversed", "nearly", "same", "zigzag"])
async def test_it_sorts(shape: str) -> None:
    """Any distribution of values is sorted, in many runs or one."""
    n, rng = 40_000, random.Random(1)
    values = {"random": [rng.randrange(10**9) for _ in range(n)], "ordered": list(range(n)),
              "reversed": list(range(n, 0, -1)), "nearly": [i + rng.randrange(5) for i in range(n)],
              "same": [7] * n, "zigzag": [i % 100 * n + i for i in range(n)]}[shape]
    assert await sorted_in_turns(values) == sorted(values)
    assert await sorted_in_turns([b"%d" % value for value in values]) == sorted(b"%d" % value for value in values)


async def test_other_work_has_its_turn_between_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """No slice merges more than a few times the number of values sorted at once, however many runs there are."""
    sizes: list[int] = []
    merged = in_turns._merged

    def spied(*args: object) -> list[int]:
        part = merged(*args)  # type: ignore[arg-type]
        sizes.append(len(part))
        return part  # type: ignore[return-value]

    monkeypatch.setattr(in_turns, "_merged", spied)
    values = list(range(200_000))
    random.Random(2).shuffle(values)
    turns, sorting = 0, asyncio.ensure_future(sorted_in_turns(values))
    while not sorting.done():
        turns += 1
        await asyncio.sleep(0)
    assert await sorting == list(range(200_000))
    assert turns > 80
    assert max(sizes) < 6 * 4096


async def test_runs_of_any_length_are_merged() -> None:
    """There may be no run, one run, empty runs, and one that is much longer than the others."""
    assert await merged_in_turns(list[list[int]]()) == []
    assert await merged_in_turns([[], [1, 3], []]) == [1, 3]
    long, short = list(range(0, 100_000, 2)), [1, 99_999]
    assert await merged_in_turns([short, long]) == sorted(short + long)
