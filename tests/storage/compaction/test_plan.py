"""The choice of the objects to merge: their number, and the bytes written, for loads of many kinds. Pure; counted,
not timed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import count, repeat

import pytest

from broker.storage.compaction.inventory import StoredObject
from broker.storage.compaction.plan import groups
from broker.storage.compaction.settings import CompactionSettings

SETTINGS = CompactionSettings()


class Shard:
    """Objects in order of age, given by the bytes of their small blocks."""

    def __init__(self) -> None:
        self.objects: list[StoredObject] = []
        self.arrived = self.written = self.most = self.puts = 0
        self._numbers = count(1)

    def arrive(self, size: int) -> None:
        self.objects.append(self._made(size))
        self.arrived += size

    def compact(self, quiet: bool) -> None:
        """Merge until the plan is empty, which must happen."""
        for _ in range(100):
            found = groups(self.objects, SETTINGS, quiet)
            if not found:
                break
            for group in found:
                assert len(group) > 1
                assert sum(one.live_bytes for one in group[2:]) <= SETTINGS.merge_bytes
                at = self.objects.index(group[0])
                for one in group:
                    self.objects.remove(one)
                made = self._made(sum(one.live_bytes for one in group))
                self.objects.insert(at, made)
                self.written += made.live_bytes
                self.puts += 1
        else:
            pytest.fail("it does not end")
        self.most = max(self.most, len([one for one in self.objects if one.live_bytes < SETTINGS.object_bytes]))

    def _made(self, size: int) -> StoredObject:
        made = StoredObject((1, 1, next(self._numbers), 0, 0))
        made.live_bytes = size
        return made


def alternating() -> Iterator[int]:
    """Yield large and small objects in turns, as by day and night."""
    while True:
        yield from repeat(500_000, 30)
        yield from repeat(300, 30)


def mixed() -> Iterator[int]:
    rng = random.Random(7)
    while True:
        yield int(10 ** rng.uniform(2, 6.5))


LOADS: dict[str, Callable[[], Iterator[int]]] = {
    "tiny": lambda: repeat(170), "a thousand streams": lambda: repeat(170_000),
    "half a megabyte": lambda: repeat(500_000), "alternating": alternating, "mixed": mixed}


@pytest.mark.parametrize("load", LOADS)
def test_a_busy_shard(load: str) -> None:
    """Twenty thousand commits leave at most 63 objects of each of four tiers, and the objects since the last plan.
    Each byte is written at most three times after the log, and there is at most one more put for 63 commits."""
    shard = Shard()
    for at, size in zip(range(20_000), LOADS[load](), strict=False):
        shard.arrive(size)
        if at % SETTINGS.segments == 0:
            shard.compact(False)
    assert shard.most <= 4 * 63
    assert shard.written <= 3 * shard.arrived
    assert shard.puts <= 20_000 / 63 or load not in ("tiny", "alternating")


@pytest.mark.parametrize("burst", [1, 3, 10, 100])
@pytest.mark.parametrize("load", ["tiny", "alternating", "mixed"])
def test_a_shard_that_pauses(load: str, burst: int) -> None:
    """Pauses after each few commits leave at most seven objects of each of eight tiers, and each byte is written at
    most 16 times."""
    shard = Shard()
    for at, size in zip(range(6000), LOADS[load](), strict=False):
        shard.arrive(size)
        if at % burst == 0:
            shard.compact(True)
    shard.compact(True)
    assert shard.most <= max(56, 2 * burst)
    assert shard.written <= 16 * shard.arrived


@pytest.mark.parametrize("quiet", [False, True])
def test_dead_messages_count_for_memory(quiet: bool) -> None:
    """Segments of 8 MB with few live bytes are read whole, so only a few are merged at a time."""
    objects: list[StoredObject] = []
    for number in range(64):
        one = StoredObject((0, 1, number, 0, 0))
        one.live_bytes, one.dead_bytes, one.last_time_ns = 1000, 8_000_000, number
        objects.append(one)
    settings = CompactionSettings()
    found = groups(objects, settings, quiet)
    assert found
    assert all(sum(one.live_bytes + one.dead_bytes for one in group) <= settings.merge_bytes for group in found)


@pytest.mark.parametrize("quiet", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_rewriting_dead_messages_costs_at_most_their_bytes(quiet: bool, seed: int) -> None:
    """Objects of up to 8 MB lose all or most of their messages, a few at a time, some all at once. Apart from the
    tiers' merges, at most the removed bytes are written, and few dead bytes are left once the shard is quiet."""
    rng = random.Random(seed)
    objects: list[StoredObject] = []
    arrived = removed = written = 0

    def lose(one: StoredObject, size: int) -> int:
        one.live_bytes -= size
        one.dead_bytes += size
        one.spare_bytes += size
        return size

    def compact(quiet: bool) -> int:
        put = 0
        while found := groups(objects, SETTINGS, quiet):
            for group in found:
                at = objects.index(group[0])
                for one in group:
                    objects.remove(one)
                made = StoredObject((1, 1, 1_000_000 + rng.getrandbits(40), 0, 0))
                made.live_bytes, made.last_time_ns = sum(one.live_bytes for one in group), group[-1].last_time_ns
                put += made.live_bytes
                objects.insert(at, made)
        return put

    for number in range(1500):
        one = StoredObject((0, 1, number, 0, 0))
        one.live_bytes, one.last_time_ns = int(10 ** rng.uniform(5, 6.9)), number * 20_000_000_000
        objects.append(one)
        arrived += one.live_bytes
        for other in rng.sample(objects, min(len(objects), 4)):
            removed += lose(other, int(other.live_bytes * rng.choice((0.1, 0.5, 0.9, 0.999))))
        objects[:] = [one for one in objects if one.live_bytes]
        if number % 64 == 0:
            written += compact(quiet)
    assert written <= removed + (16 if quiet else 3) * arrived
    compact(True)
    mostly = [one for one in objects if one.mostly_dead]
    assert sum(one.spare_bytes for one in mostly) < 64 << 10
    assert sum(one.dead_bytes for one in objects) <= sum(one.live_bytes for one in objects) + (64 << 10)


def test_the_front_of_a_busy_work_queue_is_not_rewritten() -> None:
    """The front of a busy work queue is mostly dead, and soon gone: it is not rewritten. Messages that are stuck
    there for minutes are moved, once that frees 4 MiB."""
    front = []
    for number in range(8):
        one = StoredObject((0, 1, number, 0, 0))
        one.live_bytes, one.dead_bytes, one.spare_bytes, one.last_time_ns = 9_000_000, 0, 0, number * 1_000_000_000
        front.append(one)
    for one in front[:3]:
        one.live_bytes, one.dead_bytes, one.spare_bytes = 1000, 8_000_000, 8_000_000
    assert groups(front, SETTINGS, False) == []
    assert groups(front, SETTINGS, True) == [front[:3]]
    front[-1].last_time_ns = 1_000_000_000_000
    assert groups(front, SETTINGS, False) == [front[:3]]
    for one in front[:3]:
        one.dead_bytes = one.spare_bytes = 1_000_000
    assert groups(front, SETTINGS, False) == []
    assert groups([front[0], front[-1]], SETTINGS, True) == [[front[0]]]
