"""Finds the end of an epoch by the headers of its log's entries, for taking a shard and for waiting for it.

    present      1 1 1 1 … 1 1 1 | 0 1 0 0 S 0 …      before the end all are segments; at the end nothing, or a seal;
                               end                     less than W beyond it there may be orphans, and seals of takers

The end is mostly near, so the first numbers are read one by one, several headers at once. After that, the end is found
by doubling steps and by narrowing down, in some ten round trips for a million segments. This is sound because no writer
begins number n + W before n is stored: if there is a segment at p, all numbers up to p - W existed when its put began.
The last W numbers before the highest segment found are read one by one.

A standby searches for as long as it runs, and each time finds one heartbeat of an idle owner. So it searches
``gently``, with fewer headers in more round trips, because each request costs money.

A number may be missing because it was swept, not because it was never put; then there is a checkpoint beyond it. A
caller that must know lists the checkpoints afterwards.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from broker.storage.format.errors import Corrupt
from broker.storage.format.header import HEADER_BYTES, ObjectHeader, ObjectKind, Position
from broker.storage.format.log_end import PROOF_BYTES, proves
from broker.storage.format.segment import PUTS_IN_FLIGHT_MAX
from broker.storage.objectstore.base import NotFound, ObjectStore
from broker.storage.paths import ShardPaths
from broker.storage.put import StoreRetry

__all__ = ["BATCH", "end_of_segments", "entries", "expect_entry", "proof_of"]

BATCH = 32
"""Headers requested at the same time."""
_PROBES = 16
"""Headers requested at the same time while the end may be far away."""
_NEAR = (1, BATCH)
"""The numbers that are read one by one in each of the first round trips, before the doubling steps."""
_GENTLE_PROBES = 4
_GENTLE_NEAR = (1, 1, 3, 9, 18)


async def end_of_segments(store: ObjectStore, paths: ShardPaths, first: Position, retry: StoreRetry, *,
                          gently: bool = False) -> tuple[int, ObjectHeader | None]:
    """The lowest number from ``first`` on that has no segment, and the header of the seal there; None: there is no
    entry.

    Raises: Corrupt for an entry that cannot be read: it is never taken for a missing one.
    """
    epoch, number = first
    for count in _GENTLE_NEAR if gently else _NEAR:
        for header in await entries(store, paths, epoch, range(number, number + count), retry):
            if not _is_segment(header):
                return number, header
            number += 1
    # There is a segment at low, and none at high; high 0: not known.
    probes = _GENTLE_PROBES if gently else _PROBES
    low, high, exponent = number - 1, 0, 0
    while not high:
        steps = [number + (1 << (exponent + i)) for i in range(probes)]
        low, high = await _narrowed(store, paths, epoch, low, high, steps, retry)
        exponent += probes
    while high - low > BATCH:
        step = -(-(high - low) // (probes + 1))
        low, high = await _narrowed(store, paths, epoch, low, high, range(low + step, high, step), retry)
    number = max(number, low - PUTS_IN_FLIGHT_MAX + 1)
    while True:
        # A live owner may have put the missing number in the meantime.
        beyond = number + BATCH if number > high else min(number + BATCH, high + 1)
        for header in await entries(store, paths, epoch, range(number, beyond), retry):
            if not _is_segment(header):
                return number, header
            number += 1


async def _narrowed(store: ObjectStore, paths: ShardPaths, epoch: int, low: int, high: int, between: Iterable[int],
                    retry: StoreRetry) -> tuple[int, int]:
    """Narrow ``low`` and ``high`` by reading the numbers ``between``, ascending; ``high`` 0: not known."""
    between = list(between)
    for number, header in zip(between, await entries(store, paths, epoch, between, retry), strict=True):
        if _is_segment(header):
            low = number
        elif not high or number < high:
            high = number
            break
    return low, high


async def entries(store: ObjectStore, paths: ShardPaths, epoch: int, numbers: Iterable[int], retry: StoreRetry
                  ) -> list[ObjectHeader | None]:
    """Read the headers of log entries, all at the same time; None for a number without an entry.

    Raises: Corrupt for an entry that cannot be read: it is never taken for a missing one.
    """
    async def header(number: int) -> ObjectHeader | None:
        position = Position(epoch, number)
        key = paths.log(position)
        try:
            data = await retry.call(lambda: store.get(key, 0, HEADER_BYTES), f"get {key}")
        except NotFound:
            return None
        return expect_entry(ObjectHeader.unpack(data, key), position, key)

    return list(await asyncio.gather(*[header(number) for number in numbers]))


async def proof_of(store: ObjectStore, paths: ShardPaths, missing: Position, retry: StoreRetry) -> str | None:
    """Return the key of a later entry which proves that ``missing`` had an entry; None: there is none."""
    async def proof(later: Position) -> str | None:
        key = paths.log(later)
        try:
            data = await retry.call(lambda: store.get(key, 0, PROOF_BYTES), f"get {key}")
        except NotFound:
            return None
        return key if proves(data, later, missing) else None

    # An owner begins no other put before its opening is stored.
    last = missing.number + (PUTS_IN_FLIGHT_MAX if missing.number else 1)
    found = await asyncio.gather(*[proof(Position(missing.epoch, number))
                                   for number in range(missing.number + 1, last + 1)])
    return next((key for key in found if key is not None), None)


def expect_entry(header: ObjectHeader, position: Position, key: str) -> ObjectHeader:
    """Return ``header``, read from ``key``. Raises: Corrupt if it is not the header of this log entry."""
    if header.position != position or header.kind not in (ObjectKind.SEGMENT, ObjectKind.SEAL):
        raise Corrupt(key, "header", 8, f"it holds the bytes of {header.name}")
    return header


def _is_segment(header: ObjectHeader | None) -> bool:
    return header is not None and header.kind == ObjectKind.SEGMENT
