"""Which objects to merge next: pure decisions over an inventory.

    tiers    objects are of one tier if the bytes of their small blocks have the same logarithm, to the base of how many are
             merged. So many of one tier, the oldest, become one object, which is of a higher tier: each message is written
             once a tier. From ``object_bytes`` on an object is left alone.
    quiet    while nothing is written, ``few`` objects are enough: the newest, and each older one that is at most
             eight times as large as all newer ones together, so that the old are not written again for the sake of a few;
             else those of one tier, to the base of ``few``
    dead     large blocks of which much is dead are rewritten once there is enough of that, or while it is quiet; and what lives
             of objects that are mostly dead: while the shard is busy only of old ones, since of others more dies soon

What is written for the sake of dead bytes is at most as much as they are, so over all times at most what was removed.
The number of objects with small blocks is thus at most (segments - 1) for each tier, of which there are four.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from math import log

from broker.storage.compaction.inventory import StoredObject
from broker.storage.compaction.settings import CompactionSettings

__all__ = ["groups"]

_DEAD_BYTES_MIN = 4 << 20
"""Dead bytes that are worth a rewrite while the shard is busy."""
_DEAD_BYTES_QUIET = 64 << 10
"""While it is quiet: so many take about as long to read as a request."""
_DEAD_AGE_NS = 300_000_000_000
"""How much older than the newest objects are those whose live messages are left over, not on their way out."""
_GROWTH = 8
_BLOCKS_MAX = 16_384
"""In one merge: a block costs a kilobyte of memory meanwhile, and a tenth of a millisecond."""


def groups(objects: Sequence[StoredObject], settings: CompactionSettings, quiet: bool) -> list[list[StoredObject]]:
    """Objects to merge, each group into one object or a few; none is in two groups. ``objects`` are in order of age."""
    found: list[list[StoredObject]] = []
    old_ns = objects[-1].last_time_ns - _DEAD_AGE_NS if objects else 0
    rewritten = [one for one in objects
                 if one.large_dead_bytes or (one.mostly_dead and (quiet or one.last_time_ns <= old_ns))]
    if sum(one.spare_bytes for one in rewritten) >= (_DEAD_BYTES_QUIET if quiet else _DEAD_BYTES_MIN):
        found += _cut(rewritten, settings.merge_bytes)
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
    return [group for group in found if len(group) > 1 or group[0].large_dead_bytes or group[0].mostly_dead]


def _tiers(small: Sequence[StoredObject], base: int) -> list[list[StoredObject]]:
    """Objects of one tier together, the smallest first."""
    tiers: defaultdict[int, list[StoredObject]] = defaultdict(list)
    for one in small:
        tiers[int(log(max(one.live_bytes, 1), base))].append(one)
    return [tiers[tier] for tier in sorted(tiers)]


def _first(members: Sequence[StoredObject], most: int) -> list[StoredObject]:
    """As many from the beginning as have ``most`` bytes together, of which the dead are read, too, and no more blocks than one
    merge takes; at least two."""
    size = blocks = 0
    for at, one in enumerate(members):
        size += one.live_bytes + one.dead_bytes
        blocks += one.count
        if at >= 2 and (size > most or blocks > _BLOCKS_MAX):
            return list(members[:at])
    return list(members)


def _cut(members: Sequence[StoredObject], most: int) -> list[list[StoredObject]]:
    found: list[list[StoredObject]] = []
    while members:
        found.append(_first(members, most))
        members = members[len(found[-1]):]
    return found


def _newest(small: Sequence[StoredObject], settings: CompactionSettings) -> list[StoredObject]:
    """The newest that are worth merging, the oldest of them first."""
    size = at = 0
    for at, one in enumerate(reversed(small)):
        if at and (one.live_bytes > _GROWTH * size or size + one.live_bytes > settings.merge_bytes):
            break
        size += one.live_bytes
    else:
        at = len(small)
    return list(small[len(small) - at:])
