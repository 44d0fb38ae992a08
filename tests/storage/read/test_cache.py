"""The cache: a bound in bytes, least recently used out first, the two newest always kept."""

from __future__ import annotations

import random

from broker.storage.read.cache import Cache


def test_least_recently_used_is_evicted_first() -> None:
    """Reading an entry keeps it; the one not read for longest is evicted."""
    cache = Cache(30)
    for key in "abc":
        cache.put(key, key.upper(), 10)
    assert cache.get("a") == "A"
    cache.put("d", "D", 10)
    assert [key in cache for key in "abcd"] == [True, False, True, True]
    assert cache.get("b") is None
    assert (cache.hits, cache.misses, cache.bytes, len(cache)) == (1, 1, 30, 3)


def test_the_two_newest_stay_however_large() -> None:
    """An entry larger than the bound evicts all but the one before it, and stays until two others are added."""
    cache = Cache(30)
    for key in "abc":
        cache.put(key, 1, 10)
    cache.put("large", 2, 1000)
    assert [key in cache for key in "abc"] == [False, False, True]
    assert cache.get("large") == 2
    assert (len(cache), cache.bytes) == (2, 1010)
    cache.put("d", 3, 10)
    assert (cache.get("c"), cache.get("large"), cache.get("d"), cache.bytes) == (None, 2, 3, 1010)
    cache.put("e", 4, 10)
    assert (cache.get("large"), cache.get("d"), cache.get("e"), cache.bytes) == (None, 3, 4, 20)


def test_the_bound_holds_over_any_history() -> None:
    """Random puts, puts again with another size and gets: the sum is exact and within the bound."""
    rng = random.Random(3)
    cache = Cache(1000)
    sizes: dict[int, int] = {}
    for _ in range(5000):
        key = rng.randrange(60)
        if rng.random() < 0.5:
            cache.get(key)
        else:
            sizes[key] = rng.randrange(1, 200)
            cache.put(key, key, sizes[key])
        assert cache.bytes == sum(size for key, size in sizes.items() if key in cache)
        assert cache.bytes <= 1000
    cache.clear()
    assert (cache.bytes, len(cache)) == (0, 0)


def test_a_referenced_value_is_found() -> None:
    """An evicted part is still found while it is in use, without counting; then it is gone."""
    class Part:
        pass

    cache = Cache(0)
    held: Part | None = Part()
    cache.put("held", held, 10)
    for key in "abc":
        cache.put(key, Part(), 10)
    assert (cache.get("held") is held, "held" in cache, cache.bytes, len(cache)) == (True, True, 20, 2)
    assert (cache.get("a"), "a" in cache) == (None, False)
    held = None
    assert cache.get("held") is None
