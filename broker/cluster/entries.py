"""What lies in a shard's log, seen by headers alone: who takes a shard and who waits for it look for the end of an epoch.

    present      1 1 1 1 … 1 1 1 | 0 1 0 0 S 0 …      up to the first number that is missing or a seal all are segments;
                               end                     beyond it, less than W further, orphans may lie, and seals of takers

The end is found by doubling steps, then by narrowing down, PROBES at once, whatever the length: some ten turns for a
million segments. That is sound since no writer begins number n + W before n landed: a segment at p means that all
up to p - W were there when its put began. The last W before the highest segment found are looked at one by one.

A number may be missing because it was swept, not because it was never put; then a checkpoint lies beyond it. Who needs
to know lists the checkpoints after it looked.
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
"""The same while the end is looked for from afar."""


async def end_of_segments(store: ObjectStore, paths: ShardPaths, first: Position, patience: Patience
                          ) -> tuple[int, ObjectHeader | None]:
    """The lowest number from ``first`` on that has no segment, and the header of the seal there, None: nothing is there.

    Raises: Corrupt for an entry that was looked at and cannot be read: it is never taken for a missing one.
    """
    epoch, number = first
    [header] = await entries(store, paths, epoch, [number], patience)
    if not _is_segment(header):
        return number, header
    # Between low, a segment, and high, which is none.
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
    """``low`` and ``high`` after a look at the numbers ``between``, rising; ``high`` 0: not known."""
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
    """The headers of log entries, all asked for at once; None for a number where there is none.

    Raises: Corrupt for an entry that is there and cannot be read: it is never taken for a missing one.
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
    """``header``, read from ``key``. Raises: Corrupt when it is no log entry's, or another one's."""
    if header.position != position or header.kind not in (ObjectKind.SEGMENT, ObjectKind.SEAL):
        raise Corrupt(key, "header", 8, f"it holds the bytes of {header.name}")
    return header


def _is_segment(header: ObjectHeader | None) -> bool:
    return header is not None and header.kind == ObjectKind.SEGMENT
