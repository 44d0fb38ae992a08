"""Assignment of a run's messages to the members of a queue group."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

from broker.server.routing.subscription import Peer, Subscription

__all__ = ["assign"]

_FIRST: Final = range(1)


def assign(group: Sequence[Subscription], count: int, silent: Peer | None,
           rng: random.Random) -> list[tuple[Subscription, Sequence[int]]]:
    """Assign each of ``count`` messages to a member of ``group`` that may still receive it and does not belong to
    ``silent``.

    The shares are as equal as possible, in random order. A share is contiguous, so that it is delivered as one run, at
    a third of the cost of messages picked one by one.
    """
    if silent is not None:
        group = [sub for sub in group if sub.peer is not silent]
    size = len(group)
    if not size:
        return []
    if size == 1:
        room = group[0].room(count)
        return [(group[0], range(room))] if room else []
    rooms = [sub.room(count) for sub in group]
    if min(rooms) == count:
        if count == 1:
            return [(rng.choice(group), _FIRST)]
        share, more = divmod(count, size)
        end = 0
        shares: list[tuple[Subscription, Sequence[int]]] = []
        for place, sub in enumerate(rng.sample(group, min(count, size))):
            start, end = end, end + share + (place < more)
            shares.append((sub, range(start, end)))
        return shares
    chosen: dict[int, list[int]] = {}
    randrange = rng.randrange
    for i in range(count):
        first = randrange(size)
        for step in range(size):
            at = (first + step) % size
            if rooms[at]:
                rooms[at] -= 1
                chosen.setdefault(at, []).append(i)
                break
    return [(group[at], indexes) for at, indexes in chosen.items()]
