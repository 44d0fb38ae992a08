"""The entries of a shard's log, seen by their headers alone: both taking a shard and waiting for it need an epoch's end.

    present      1 1 1 1 … 1 1 1 | 0 1 0 0 S 0 …      before the end all are segments; at the end nothing, or a seal;
                               end                     less than W beyond it there may be orphans, and seals of takers

The end is found by doubling steps, then by narrowing down, several headers at once: some ten round trips for a million
segments. That is sound because no writer begins number n + W before n landed: a segment at p means that all up to
p - W existed when its put began. The last W before the highest segment found are looked at one by one.

A number may be missing because it was swept, not because it was never put; then there is a checkpoint beyond it. A
caller that must know lists the checkpoints afterwards.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from broker.storage.format.errors import Corrupt
from broker.storage.format.header import HEADER_BYTES, ObjectHeader, ObjectKind, Position
from broker.storage.format.segment import PUTS_IN_FLIGHT_MAX
from broker.storage.objectstore.base import NotFound, ObjectStore
from broker.storage.paths import ShardPaths
from broker.storage.put import Patience

__all__ = ["BATCH", "end_of_segments", "entries", "expect_entry"]

BATCH = 32
"""Headers asked for at once."""
_PROBES = 16
"""The same while the end may still be far away."""


async def end_of_segments(store: ObjectStore, paths: ShardPaths, first: Position, patience: Patience
                          ) -> tuple[int, ObjectHeader | None]:
    """The lowest number from ``first`` on that has no segment, and the header of the seal there; None: there is no entry.

    Raises: Corrupt for an entry that cannot be read: it is never taken for a missing one.
    """
    epoch, number = first
    [header] = await entries(store, paths, epoch, [number], patience)
    if not _is_segment(header):
        return number, header
    # low is a segment, high is not; 0: not known.
    low, high, exponent = number, 0, 0
    while not high:
        steps = [number + (1 << (exponent + i)) for i in range(_PROBES)]
        low, high = await _narrowed(store, paths, epoch, low, high, steps, patience)
        exponent += _PROBES
    while high - low > BATCH:
        step = -(-(high - low) // (_PROBES + 1))
        low, high = await _narrowed(store, paths, epoch, low, high, range(low + step, high, step), patience)
    number = max(number, low - PUTS_IN_FLIGHT_MAX) + 1
    while True:
        for header in await entries(store, paths, epoch, range(number, number + BATCH), patience):
            if not _is_segment(header):
                return number, header
            number += 1


async def _narrowed(store: ObjectStore, paths: ShardPaths, epoch: int, low: int, high: int, between: Iterable[int],
                    patience: Patience) -> tuple[int, int]:
    """``low`` and ``high`` after looking at the numbers ``between``, ascending; ``high`` 0: not known."""
    between = list(between)
    for number, header in zip(between, await entries(store, paths, epoch, between, patience), strict=True):
        if _is_segment(header):
            low = number
        elif not high or number < high:
            high = number
            break
    return low, high


async def entries(store: ObjectStore, paths: ShardPaths, epoch: int, numbers: Iterable[int], patience: Patience
                  ) -> list[ObjectHeader | None]:
    """The headers of log entries, all asked for at once; None for a number without an entry.

    Raises: Corrupt for an entry that cannot be read: it is never taken for a missing one.
    """
    async def header(number: int) -> ObjectHeader | None:
        position = Position(epoch, number)
        key = paths.log(position)
        try:
            data = await patience.ask(lambda: store.get(key, 0, HEADER_BYTES), f"get {key}")
        except NotFound:
            return None
        return expect_entry(ObjectHeader.unpack(data, key), position, key)

    return list(await asyncio.gather(*[header(number) for number in numbers]))


def expect_entry(header: ObjectHeader, position: Position, key: str) -> ObjectHeader:
    """``header``, read from ``key``. Raises: Corrupt when it belongs to something else than this log entry."""
    if header.position != position or header.kind not in (ObjectKind.SEGMENT, ObjectKind.SEAL):
        raise Corrupt(key, "header", 8, f"it holds the bytes of {header.name}")
    return header


def _is_segment(header: ObjectHeader | None) -> bool:
    return header is not None and header.kind == ObjectKind.SEGMENT
