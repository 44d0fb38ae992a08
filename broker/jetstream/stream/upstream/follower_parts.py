"""The parts that an account gives to its followers, in a module of its own, which loads fast: few accounts have
followers."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from broker.base.clock import Clock
    from broker.jetstream.bus import Bus
    from broker.jetstream.stream.upstream.origin import Find

__all__ = ["FollowerParts"]


class FollowerParts(NamedTuple):
    """The parts that all followers of an account share."""

    find: Find
    clock: Clock
    bus: Bus
    rng: random.Random
    opening: asyncio.Semaphore
    """Bounds the consumers that are reset or created at the same time."""
