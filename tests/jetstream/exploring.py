"""Exploration of a protocol's model: all worlds that its steps reach, in any order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import TypeVar

__all__ = ["explore"]

W = TypeVar("W")


def explore(first: W, steps: Callable[[W], Iterable[W]], fault: Callable[[W], str]) -> tuple[int, str]:
    """Return the number of worlds, and the first fault; "" if no world has one."""
    seen, waiting = {first}, deque([first])
    while waiting:
        for world in steps(waiting.popleft()):
            if world not in seen:
                if found := fault(world):
                    return len(seen), found
                seen.add(world)
                waiting.append(world)
    return len(seen), ""
