"""The contract of every object store and every wrapper: one suite, run on the backends in conftest.py."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable

import pytest

from broker.storage.objectstore.base import NotFound, ObjectInfo, ObjectStore, PreconditionFailed, Transient

ODD_KEYS = [
    "a b", "a+b", "a%2Fb", "a%", "a=b&c", "a?b", "a#b", "a~b", "a,b;c", "a'b\"c", "(a)[b]{c}", "a*", "a:b@c", "a!$b",
    "a<b>", "a^`b", "A", "ü/ß", "日本/語", "🙂", "x" * 250, "a.b", "a..b", "locks", "-", "_", "~0/~",
    "00000001-0000000000ff",
]


async def in_flight(calls: Iterable[Callable[[], Awaitable[object]]], count: int = 16) -> None:
    """Run the calls, ``count`` at a time; the first error ends it."""
    queue = iter(calls)

    async def worker() -> None:
        for call in queue:
            await call()

    async with asyncio.TaskGroup() as group:
        for _ in range(count):
            group.create_task(worker())


async def test_a_get_returns_the_put_bytes(store: ObjectStore) -> None:
    """Bytes are returned as they were put, from any number of buffers."""
    await store.put("v1/format", [b"one", b"", b" two", bytes(range(256))])
    assert await store.get("v1/format") == b"one two" + bytes(range(256))


async def test_a_key_is_put_once(store: ObjectStore) -> None:
    """A second put of a key is refused and changes nothing, whether its bytes are the same or not."""
    await store.put("k", [b"first"])
    for data in (b"second", b"first"):
        with pytest.raises(PreconditionFailed, match="k"):
            await store.put("k", [data])
    assert await store.get("k") == b"first"


async def test_an_object_is_replaced(store: ObjectStore) -> None:
    """Repairs replace an object, or put a missing one, in one call."""
    await store.put("a/k", [b"first"])
    await store.replace("a/k", [b"sec", b"ond"])
    await store.replace("b/new", [b"new"])
    assert await store.get("a/k") == b"second"
    assert await store.get("b/new") == b"new"
    assert await store.list("") == [ObjectInfo("a/k", 6), ObjectInfo("b/new", 3)]


async def test_of_sixteen_concurrent_puts_one_wins(store: ObjectStore, request: pytest.FixtureRequest) -> None:
    """Put-if-absent is what fencing depends on: of 16 concurrent puts one succeeds, 15 are refused, and the object has
    the winner's bytes."""
    # A round takes SeaweedFS five seconds, because it makes the sixteen puts wait for each other, one second at each
    # step.
    for round_ in range(1 if "seaweed" in request.node.name else 5):
        key = f"epochs/{round_:08x}"
        results = await asyncio.gather(*(store.put(key, [b"writer %d" % i]) for i in range(16)), return_exceptions=True)
        # A store may answer a conflict with 409, which accepts no put: such a put is retried.
        for i in range(16):
            while isinstance(results[i], Transient):
                results[i] = (await asyncio.gather(store.put(key, [b"writer %d" % i]), return_exceptions=True))[0]
        winners = [i for i, result in enumerate(results) if result is None]
        assert len(winners) == 1, results
        assert all(isinstance(result, PreconditionFailed) for i, result in enumerate(results) if i != winners[0])
        assert await store.get(key) == b"writer %d" % winners[0]


async def test_a_range_is_half_open_and_stops_at_the_end(store: ObjectStore) -> None:
    """Ranges are correct inside, across, at and past the object's end."""
    data = random.Random(1).randbytes(1000)
    await store.put("r", [data])
    for start, end in [(0, None), (0, 1), (0, 1000), (0, 5000), (10, 20), (990, 1010), (999, 1000), (999, None),
                       (1000, 1001), (1000, None), (5000, None), (5000, 6000), (7, 7), (500, 400)]:
        assert await store.get("r", start, end) == data[start:end], (start, end)


async def test_an_empty_object(store: ObjectStore) -> None:
    """An empty object is an object, too: it can be read and listed, and cannot be put again."""
    await store.put("e/empty", [])
    assert await store.get("e/empty") == b""
    assert await store.get("e/empty", 0, 10) == b""
    assert await store.get("e/empty", 5) == b""
    assert await store.list("e/") == [ObjectInfo("e/empty", 0)]
    with pytest.raises(PreconditionFailed):
        await store.put("e/empty", [b""])


async def test_a_segment_of_eight_mib(store: ObjectStore) -> None:
    """A large object in many buffers is one put; the whole and its ranges are returned."""
    data = random.Random(2).randbytes(8 << 20)
    await store.put("big", [data[i:i + 3001] for i in range(0, len(data), 3001)])
    assert await store.list("big") == [ObjectInfo("big", 8 << 20)]
    assert await store.get("big") == data
    for start, end in [(0, 65536), (5_000_000, 5_131_072), (8_000_000, None), (1, (8 << 20) - 1)]:
        assert await store.get("big", start, end) == data[start:end]


async def test_many_ranges_at_once(store: ObjectStore) -> None:
    """Concurrent gets do not mix up their answers."""
    data = random.Random(3).randbytes(1 << 20)
    await store.put("many", [data])
    ranges = [(start, start + 4096) for start in range(0, len(data), 8192)]
    parts = await asyncio.gather(*(store.get("many", *r) for r in ranges))
    assert all(part == data[start:end] for part, (start, end) in zip(parts, ranges, strict=True))


async def test_a_missing_key(store: ObjectStore) -> None:
    """A missing object is NotFound with its name, in a folder that exists and in one that does not."""
    await store.put("there/x", [b"x"])
    for key in ("there/y", "nowhere/at/all", "there"):
        with pytest.raises(NotFound, match=key):
            await store.get(key)
        with pytest.raises(NotFound, match=key):
            await store.get(key, 10, 20)


async def test_delete_is_idempotent_and_frees_the_key(store: ObjectStore) -> None:
    """A delete succeeds once, twice, and for a key that never existed; the key can be put again; other objects stay."""
    await store.put("d/a", [b"1"])
    await store.put("d/b", [b"2"])
    for _ in range(2):
        await store.delete("d/a")
    await store.delete("never/was")
    with pytest.raises(NotFound):
        await store.get("d/a")
    assert await store.list("d/") == [ObjectInfo("d/b", 1)]
    await store.delete("d/b")
    assert await store.list("") == []
    await store.put("d/a", [b"again"])
    assert await store.get("d/a") == b"again"


async def test_odd_keys(store: ObjectStore) -> None:
    """Keys that URLs, XML, shells and file systems tend to change are returned unchanged, sorted by their bytes."""
    for key in ODD_KEYS:
        await store.put(f"odd/{key}", [key.encode()])
    assert [info.key for info in await store.list("odd/")] == sorted(f"odd/{key}" for key in ODD_KEYS)
    for key in ODD_KEYS:
        assert await store.get(f"odd/{key}") == key.encode()
        assert f"odd/{key}" in [info.key for info in await store.list(f"odd/{key}")]
    await store.delete("odd/a%2Fb")
    with pytest.raises(NotFound):
        await store.get("odd/a%2Fb")


async def test_invalid_keys(store: ObjectStore) -> None:
    """Strings that one of the stores could not store, or that leave the prefix, are refused by all."""
    for key in ("", "/", "/a", "a/", "a//b", ".", "..", "a/../b", "../a", ".tmp/a", "a/.b", "lock", "shards/0/lock",
                "a\0b", "a\nb", "a\x7f", "\ud800", "x" * 256, "ü" * 128):
        for call in (store.put, store.replace):
            with pytest.raises(ValueError):
                await call(key, [b"x"])
        for call in (store.get, store.delete):
            with pytest.raises(ValueError):
                await call(key)  # type: ignore[call-arg]
        assert await store.list("") == [], key


async def test_key_order_is_byte_order_across_folders(store: ObjectStore) -> None:
    """A slash sorts as the byte it is: a-b < a/c < a0, which a walk by folders gets wrong if it sorts bare names."""
    keys = ["a-b", "a/c", "a0", "a.d/x", "a/c-", "b", "aa/b/c", "aa/b-/c", "aa/b0", "é", "z"]
    for key in keys:
        await store.put(key, [b"x"])
    order = sorted(keys, key=str.encode)
    assert [info.key for info in await store.list("")] == order
    for prefix in ["a", "a/", "a.", "aa/b", "aa/b/", "aa/b/c", "b", "nope", "nope/", "a/c/", "..", "../", "/", "//a",
                   ".tmp/", "a/.", "\0", "lock", "lock/"]:
        assert [info.key for info in await store.list(prefix)] == [k for k in order if k.startswith(prefix)], prefix


async def test_after_any_string(store: ObjectStore) -> None:
    """"After" takes any string, a key or not, longer or shorter than all, and a limit cuts what follows."""
    keys = sorted(["f/a", "f/a-", "f/aa", "f/b", "f/b.c", "f/é", "f/z"], key=str.encode)
    for key in keys:
        await store.put(key, [b"x"])
    for after in [*keys, "f", "f/", "f/a.", "f/aaa", "f/\x7f", "f/zz", "g", "0", "f0"]:
        expected = [key for key in keys if key > after]
        assert [info.key for info in await store.list("f/", after)] == expected, after
        assert [info.key for info in await store.list("f/", after, 2)] == expected[:2], after


async def test_listing_2500_keys(store: ObjectStore) -> None:
    """A listing longer than the pages of S3 (1000) is complete and in order, from after any key, and cut at any
    limit."""
    keys = [f"log/00000007-{number:012x}" for number in range(0, 2500 * 3, 3)]
    shuffled = [*keys, "log0", "lo", "checkpoint/1"]
    random.Random(4).shuffle(shuffled)
    await in_flight(lambda key=key: store.put(key, [b"x" * (len(key) % 7)]) for key in shuffled)
    found = await store.list("log/")
    assert [info.key for info in found] == keys
    assert {info.size for info in found} == {len(keys[0]) % 7}
    for after, limit in [(keys[0], None), (keys[1234], 10), (keys[999], 1000), (keys[999] + "0", 1001), (keys[-1], 5),
                         ("log/", 1), ("a", 2), ("", 2499), ("m", None), (keys[3], 0)]:
        expected = [key for key in keys if key > after][:limit]
        assert [info.key for info in await store.list("log/", after, limit)] == expected, (after, limit)


async def test_a_listing_shows_what_was_put_and_deleted_just_before(store: ObjectStore) -> None:
    """Listing is strongly consistent: an answered put or delete shows in the next listing."""
    for i in range(20):
        await store.put(f"c/{i:02}", [b"x"])
        assert [info.key for info in await store.list("c/")] == [f"c/{j:02}" for j in range(i + 1)]
    for i in range(20):
        await store.delete(f"c/{i:02}")
        assert [info.key for info in await store.list("c/")] == [f"c/{j:02}" for j in range(i + 1, 20)]


async def test_a_closed_store_is_transient(store: ObjectStore) -> None:
    """A closed store raises Transient, and may be closed twice."""
    await store.put("k", [b"x"])
    await store.close()
    await store.close()
    for call in (store.put("l", [b"x"]), store.get("k"), store.list(""), store.delete("k")):
        with pytest.raises(Transient, match="closed"):
            await call


async def test_its_name_and_its_clock(store: ObjectStore) -> None:
    """The store has the operator's URL, and a clock near ours or none."""
    import time

    await store.put("k", [b"x"])
    assert "://" in store.url
    now_ns = store.now_ns()
    assert now_ns is None or abs(now_ns - time.time_ns()) < 10_000_000_000
