"""Sorts very many values in slices, so that no turn of the event loop takes long.

A slice is sorted, and later merged, by ``list.sort``, which finds runs that are in order already and merges them in C.
To merge many runs, the values are cut at *pivots* into ranges of a few thousand values each, however they are
distributed.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Sequence
from typing import TypeVar

__all__ = ["merged_in_turns", "sorted_in_turns"]

T = TypeVar("T", int, bytes)

_AT_ONCE = 4096
"""Number of values sorted in one turn of the loop: about 2 ms at worst."""


async def sorted_in_turns(values: Sequence[T]) -> list[T]:
    """Return ``sorted(values)``; nearly sorted values take a tenth of the time.

    ``values`` must not change meanwhile.
    """
    if len(values) <= _AT_ONCE:
        return sorted(values)
    runs: list[list[T]] = []
    for at in range(0, len(values), _AT_ONCE):
        await asyncio.sleep(0)
        run = sorted(values[at:at + _AT_ONCE])
        if runs and runs[-1][-1] <= run[0]:
            runs[-1] += run
        else:
            runs.append(run)
    await asyncio.sleep(0)
    return await merged_in_turns(runs)


async def merged_in_turns(runs: Sequence[list[T]]) -> list[T]:
    """Return all values of ``runs`` in order; each run is in order already."""
    runs = [run for run in runs if run]
    if len(runs) <= 1:
        return runs[0] if runs else []
    # Between two pivots there are about _AT_ONCE values, and at most one step more of each run.
    step = max(1, 4 * _AT_ONCE // len(runs))
    samples = sorted(value for run in runs for value in run[::step])
    pivots = samples[max(1, _AT_ONCE // step)::max(1, _AT_ONCE // step)]
    starts = [0] * len(runs)
    merged: list[T] = []
    for pivot in pivots:
        ends = [bisect_left(run, pivot, start) for run, start in zip(runs, starts, strict=True)]
        merged += _merged(runs, starts, ends)
        starts = ends
        await asyncio.sleep(0)
    merged += _merged(runs, starts, [len(run) for run in runs])
    return merged


def _merged(runs: Sequence[list[T]], starts: Sequence[int], ends: Sequence[int]) -> list[T]:
    part: list[T] = []
    for run, start, end in zip(runs, starts, ends, strict=True):
        if start < end:
            part += run[start:end]
    part.sort()
    return part
