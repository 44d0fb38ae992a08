"""The cache: it keeps a bound in bytes, values that are used again survive a full scan, and newest or referenced
values are found."""

from __future__ import annotations

import random
from collections.abc import Hashable

import pytest

from broker.storage.read.cache import Cache


class Part:
    """A value that can be referenced weakly, like a chunk or a head."""


def put(cache: Cache, key: Hashable, size: int = 10) -> None:
    cache.put(key, Part(), size)


def found(cache: Cache, keys: range) -> int:
    return sum(cache.get(key) is not None for key in keys)


def forget_newest(cache: Cache) -> None:
    """Put two values that are too large to be cached: they replace the newest values."""
    for key in ("large", "larger"):
        cache.put(key, Part(), cache.bytes_max + 1)


def test_a_working_set_survives_a_full_scan() -> None:
    """40 hot blocks in a cache of 100 are used twice and are all found after a scan of ten times the cache, which
    stays in the small queue. Blocks that were not used twice are gone."""
    cache = Cache(1000)
    for key in range(100):
        put(cache, key)
    assert found(cache, range(40)) == 40
    for key in range(1000, 1100):
        put(cache, key)
    before = cache.hits
    assert found(cache, range(40)) == 40
    for key in range(2000, 3000):
        put(cache, key)
        assert cache.bytes <= 1000
    assert found(cache, range(40)) == 40
    assert cache.hits == before + 80
    assert found(cache, range(40, 100)) == 0
    assert (cache.promotions, cache.main_bytes, cache.main_evictions, cache.small_evictions) == (40, 400, 0, 1100)


def test_a_scan_beside_random_gets_costs_few_hits() -> None:
    """Random gets from a hot set of half the cache, in turn with a scan of ten times the cache, find nearly
    everything once they are warm. A cache that evicts the least recently used value would find hardly half."""
    rng = random.Random(7)
    cache = Cache(10_000)

    def hot(n: int) -> int:
        hits = 0
        for _ in range(n):
            key = rng.randrange(500)
            if cache.get(key) is None:
                put(cache, key)
            else:
                hits += 1
        return hits

    hot(10_000)
    alone = hot(2000) / 2000
    for key in range(1000, 2000):
        hot(1)
        put(cache, key)
    with_scan = 0
    for key in range(2000, 12_000):
        with_scan += hot(1)
        put(cache, key)
    assert alone == 1.0
    assert with_scan / 10_000 > 0.98


def test_small_pulls_are_one_use() -> None:
    """A scan that uses each part fifty times in a row does not make room for itself in the main queue."""
    cache = Cache(10_000)
    for key in range(5000):
        put(cache, key)
        for _ in range(50):
            assert cache.get(key) is not None
    assert (cache.promotions, cache.main_bytes) == (0, 0)


def test_a_value_put_again_soon_goes_to_the_main_queue() -> None:
    """An entry that is put again soon after its eviction goes to the main queue; one that was evicted long ago does
    not."""
    cache = Cache(1000)
    for key in range(110):
        put(cache, key)
    assert cache.get(0) is None
    put(cache, 0)
    assert (cache.ghost_hits, cache.promotions, cache.main_bytes) == (1, 1, 10)
    for key in range(1000, 2000):
        put(cache, key)
    assert found(cache, range(1)) == 1
    put(cache, 1)
    assert cache.ghost_hits == 1


def test_the_main_queue_evicts_unused_values() -> None:
    """A new working set replaces the old one."""
    cache = Cache(1000)
    for start in (0, 1000):
        for _ in range(6):
            for key in range(start, start + 60):
                if cache.get(key) is None:
                    put(cache, key)
            for _ in range(50):
                put(cache, object())
    assert found(cache, range(1000, 1060)) == 60
    assert cache.main_evictions > 0
    assert cache.bytes <= 1000


def test_a_value_larger_than_the_cache_evicts_nothing() -> None:
    """The value is found while it is among the newest; the main queue stays."""
    cache = Cache(1000)
    for _ in range(2):
        for key in range(110):
            if cache.get(key) is None:
                put(cache, key)
    held = cache.main_bytes
    assert held > 500
    for _ in range(3):
        put(cache, "large", 100_000)
        assert cache.get("large") is not None
        put(cache, "other")
        put(cache, "another")
        assert cache.get("large") is None
    assert (cache.main_bytes, len(cache)) == (held, 100)
    put(cache, "other", 100_000)
    assert len(cache) == 99


@pytest.mark.parametrize("bytes_max", [0, 1, 7, 100, 1000, 4096])
def test_the_bound_holds_over_any_history(bytes_max: int) -> None:
    """The history has random puts, puts again with another size and gets, on caches smaller and larger than a value.
    The sums are exact and within the bound, also those of the main queue."""
    rng = random.Random(bytes_max)
    cache = Cache(bytes_max)
    sizes: dict[int, int] = {}
    for _ in range(5000):
        key = rng.randrange(60)
        if rng.random() < 0.5:
            cache.get(key)
        else:
            sizes[key] = rng.randrange(0, 200)
            cache.put(key, key, sizes[key])  # numbers cannot be referenced weakly, so a reference does not find them
        sizes = {one: size for one, size in sizes.items() if one in cache}
        assert cache.bytes == sum(sizes.values())
        assert 0 <= cache.main_bytes <= cache.bytes <= bytes_max
    cache.clear()
    assert (cache.bytes, cache.main_bytes, len(cache)) == (0, 0, 0)


def test_a_referenced_value_is_found() -> None:
    """An evicted part is found while it is in use, or one of the two newest, without counting; then it is gone."""
    cache = Cache(0)
    held: Part | None = Part()
    cache.put("held", held, 10)
    for key in "abc":
        put(cache, key)
    assert (cache.get("held") is held, "held" in cache, cache.bytes, len(cache)) == (True, True, 0, 0)
    assert (cache.get("a"), cache.get("b") is None, cache.get("c") is None) == (None, False, False)
    held = None
    assert cache.get("held") is None
    forget_newest(cache)
    assert cache.get("c") is None
