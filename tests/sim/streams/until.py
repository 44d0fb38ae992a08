"""Waiting for a promised state, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tests.sim.streams.record import Lost

if TYPE_CHECKING:
    from tests.sim.streams.world import World

__all__ = ["PROGRESS_SECONDS", "until"]

PROGRESS_SECONDS = 120
"""Virtual time within which a live broker on a live store serves, and its consumers have delivered everything."""


async def until(world: World, done: Callable[[], Any], what: str | Callable[[], str]) -> Any:
    """Return the first true result of ``done()``, awaited if need be. Raises: Lost after PROGRESS_SECONDS."""
    end_ns = world.clock.monotonic_ns() + PROGRESS_SECONDS * 1_000_000_000
    while True:
        given = done()
        if asyncio.iscoroutine(given):
            given = await given
        if given:
            return given
        if world.clock.monotonic_ns() >= end_ns:
            raise Lost(f"not within {PROGRESS_SECONDS} s: {what if isinstance(what, str) else what()}")
        await asyncio.sleep(0.5)
