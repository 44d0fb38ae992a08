"""The plan: pure decisions over an inventory about the objects to merge next.

    tiers    Objects belong to one tier if the bytes of their small blocks have the same logarithm (whole part), to the
             base ``segments``. The oldest ``segments`` objects of a tier become one object of a higher tier, so each
             message is written once per tier. An object with ``object_bytes`` is not merged again.
    quiet    While nothing is written, ``few`` objects are enough: the newest one, and older ones as long as each is at
             most eight times as large as all newer ones together. So large old objects are not rewritten because of a
             few small ones. If these are too few, the objects of one tier, to the base ``few``.
             Then large blocks of several subjects that are still in the log, however few: a merge groups their
             messages by subject. So a byte of a large block is written once more, and only by an idle shard.
    dead     Large blocks with many dead bytes are rewritten once there are enough of those bytes. The live blocks of
             objects that are mostly dead are moved, too. While the shard is busy, only old objects count as mostly
             dead, since more messages of the others will die soon.

    plain    Objects from before the store was encrypted are rewritten once, whatever their size.

Rewriting because of dead bytes writes at most as many bytes as are dead, so over all times at most the bytes that were
removed. The number of objects with small blocks is at most (segments - 1) for each of the four tiers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from math import log

from broker.storage.compaction.inventory import StoredObject
from broker.storage.compaction.settings import CompactionSettings

__all__ = ["cut", "groups"]

_DEAD_BYTES_MIN = 4 << 20
"""The dead bytes from which on a rewrite is made while the shard is busy."""
_DEAD_BYTES_QUIET = 64 << 10
"""The bound while the shard is quiet: reading this many bytes takes about as long as a request."""
_DEAD_AGE_NS = 300_000_000_000
"""An object that is older than the newest one by this much is old: its live messages will probably stay."""
_GROWTH = 8
_BLOCKS_MAX = 16_384
"""The most blocks of one merge: a block costs a kilobyte of memory meanwhile, and a tenth of a millisecond."""


def groups(objects: Sequence[StoredObject], settings: CompactionSettings, quiet: bool) -> list[list[StoredObject]]:
    """Return groups of objects to merge, each into one object or a few; no object is in two groups.

    Args: objects are in order of age, the oldest first.
    """
    found: list[list[StoredObject]] = []
    old_ns = objects[-1].last_time_ns - _DEAD_AGE_NS if objects else 0
    rewritten = [one for one in objects
                 if one.large_dead_bytes or (one.mostly_dead and (quiet or one.last_time_ns <= old_ns))]
    if sum(one.spare_bytes for one in rewritten) >= (_DEAD_BYTES_QUIET if quiet else _DEAD_BYTES_MIN):
        found += cut(rewritten, settings.merge_bytes)
    taken = {one.key for group in found for one in group}
    found += cut([one for one in objects if one.plain and one.key not in taken], settings.merge_bytes)
    taken = {one.key for group in found for one in group}
    small = [one for one in objects if one.key not in taken and one.live_bytes < settings.object_bytes]
    for members in _tiers(small, settings.segments):
        while len(members) >= settings.segments or sum(one.live_bytes for one in members) >= settings.merge_bytes:
            group = _first(members[:settings.segments], settings.merge_bytes)
            del members[:len(group)]
            found.append(group)
    if quiet and not found:
        newest = _newest(small, settings)
        enough = [members for members in (newest, *_tiers(small, settings.few)) if len(members) >= settings.few]
        found += [_first(members, settings.merge_bytes) for members in enough[:1]]
    return [group for group in found if len(group) > 1 or group[0].large_dead_bytes or group[0].mostly_dead
            or group[0].plain]


def _tiers(small: Sequence[StoredObject], base: int) -> list[list[StoredObject]]:
    """Return the objects of each tier, the lowest tier first."""
    tiers: defaultdict[int, list[StoredObject]] = defaultdict(list)
    for one in small:
        tiers[int(log(max(one.live_bytes, 1), base))].append(one)
    return [tiers[tier] for tier in sorted(tiers)]


def _first(members: Sequence[StoredObject], most: int) -> list[StoredObject]:
    """Return the first members with up to ``most`` bytes, live and dead, and no more blocks than one merge takes.

    They are at least two members, or all.
    """
    size = blocks = 0
    for at, one in enumerate(members):
        size += one.live_bytes + one.dead_bytes
        blocks += one.count
        if at >= 2 and (size > most or blocks > _BLOCKS_MAX):
            return list(members[:at])
    return list(members)


def cut(members: Sequence[StoredObject], most: int) -> list[list[StoredObject]]:
    """Cut these objects into groups with up to ``most`` bytes each, though of at least two objects."""
    found: list[list[StoredObject]] = []
    while members:
        found.append(_first(members, most))
        members = members[len(found[-1]):]
    return found


def _newest(small: Sequence[StoredObject], settings: CompactionSettings) -> list[StoredObject]:
    """Return the newest objects that are worth merging, in order of age."""
    size = at = 0
    for at, one in enumerate(reversed(small)):
        if at and (one.live_bytes > _GROWTH * size or size + one.live_bytes > settings.merge_bytes):
            break
        size += one.live_bytes
    else:
        at = len(small)
    return list(small[len(small) - at:])
