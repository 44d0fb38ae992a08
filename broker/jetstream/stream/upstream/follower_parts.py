"""What is around the followers of an account: apart from them, because an account is made before any stream has an upstream."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from broker.base.clock import Clock
    from broker.jetstream.bus import Bus
    from broker.jetstream.stream.upstream.origin import Find

__all__ = ["FollowerParts"]


class FollowerParts(NamedTuple):
    """What is around the followers of an account."""

    find: Find
    clock: Clock
    bus: Bus
    rng: random.Random
