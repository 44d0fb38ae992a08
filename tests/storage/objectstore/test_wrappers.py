"""The wrappers: the effect of each on the store behind it."""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path

import pytest

from broker.storage.objectstore import (
    NotFound,
    PreconditionFailed,
    StoreRefused,
    Transient,
)
from broker.storage.objectstore.file import FileStore
from broker.storage.objectstore.instrumented import SECONDS_BOUNDS, InstrumentedStore
from broker.storage.objectstore.memory import MemoryStore
from broker.storage.objectstore.retrying import RetryingStore
from tests.manual_clock import ManualClock
from tests.storage.objectstore.faulty import Faults, FaultyStore


class Waits:
    """A sleep that only moves the clock."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.seconds: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)
        self.clock.advance(int(seconds * 1e9))
        await asyncio.sleep(0)


def retrying(inner: FaultyStore, seed: int = 1, give_up_ns: int = 30_000_000_000) -> tuple[RetryingStore, Waits]:
    waits = Waits(ManualClock())
    return RetryingStore(inner, clock=waits.clock, rng=random.Random(seed), give_up_ns=give_up_ns, sleep=waits), waits


async def test_transient_errors_are_tried_again_with_growing_pauses() -> None:
    """A store that is down for six tries: pauses double from 50 ms, jittered downwards by at most half, up to 2 s."""
    faulty = FaultyStore(MemoryStore(), rng=random.Random(1))
    store, waits = retrying(faulty)
    tries = 0

    async def before(operation: str, key: str) -> None:
        nonlocal tries
        tries += 1
        if tries <= 8:
            raise Transient("not yet")

    faulty.before = before
    await store.put("k", [b"x"])
    assert await faulty.get("k") == b"x"
    assert store.retries == 8
    for seconds, ceiling in zip(waits.seconds, [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0], strict=True):
        assert ceiling / 2 <= seconds <= ceiling
    other, other_waits = retrying(faulty, seed=2)
    tries = 0
    await other.get("k")
    assert other_waits.seconds != waits.seconds, "brokers that were refused together must not retry together"


async def test_retrying_is_bounded_in_time_and_ends_in_the_last_error() -> None:
    """Retrying a store that stays down ends after the bound, never later."""
    faulty = FaultyStore(MemoryStore(), rng=random.Random(1))
    faulty.down = True
    store, waits = retrying(faulty, give_up_ns=10_000_000_000)
    for call in (store.put("k", [b"x"]), store.get("k"), store.list(""), store.delete("k")):
        waits.seconds.clear()
        with pytest.raises(Transient, match="connection refused"):
            await call
        assert 7 < sum(waits.seconds) <= 10


async def test_answers_are_not_tried_again() -> None:
    """NotFound, PreconditionFailed and StoreRefused are raised at once."""
    faulty = FaultyStore(MemoryStore(), rng=random.Random(1))
    store, waits = retrying(faulty)
    await store.put("k", [b"x"])
    with pytest.raises(PreconditionFailed):
        await store.put("k", [b"x"])
    with pytest.raises(NotFound):
        await store.get("l")

    async def refuse(operation: str, key: str) -> None:
        raise StoreRefused("no")

    faulty.before = refuse
    with pytest.raises(StoreRefused):
        await store.delete("k")
    assert waits.seconds == []


async def test_a_retried_put_may_meet_itself() -> None:
    """The first try takes effect without an answer, and the second is refused: PreconditionFailed, and the object is
    ours."""
    faulty = FaultyStore(MemoryStore(), rng=random.Random(1))
    store, _ = retrying(faulty)

    async def lose_the_answer(operation: str, key: str) -> None:
        faulty.after = None
        raise Transient("lost")

    faulty.after = lose_the_answer
    with pytest.raises(PreconditionFailed):
        await store.put("k", [b"ours"])
    assert await store.get("k") == b"ours"


async def test_counts(tmp_path: Path) -> None:
    """Calls, bytes, time and errors of each operation, puts by threads and calls in progress included."""
    clock = ManualClock()
    faulty = FaultyStore(MemoryStore(), rng=random.Random(1))
    store = InstrumentedStore(faulty, clock=clock)

    async def sleep_30_ms(operation: str, key: str) -> None:
        clock.advance(30_000_000)

    faulty.before = sleep_30_ms
    await store.put("a", [b"xx", b"yyy"])
    with pytest.raises(PreconditionFailed):
        await store.put("a", [b"zz"])
    await store.get("a", 1, 3)
    with pytest.raises(NotFound):
        await store.get("b")
    await store.list("")
    await store.delete("a")
    faulty.down = True
    with pytest.raises(Transient):
        await store.get("a")
    put, get = store.operations["put"], store.operations["get"]
    assert (put.count, put.bytes, put.ns, put.ns_max, put.in_flight) == (2, 5, 60_000_000, 30_000_000, 0)
    assert put.errors == {"PreconditionFailed": 1}
    assert (get.count, get.bytes, get.errors) == (3, 2, {"NotFound": 1, "Transient": 1})
    assert put.buckets[SECONDS_BOUNDS.index(0.05)] == 2
    assert sum(get.buckets) == 3
    assert store.operations["list"].bytes == 1
    assert store.errors == 1
    snapshot = store.snapshot()
    assert snapshot["url"] == "memory://"
    assert snapshot["delete"] == {"count": 1, "bytes": 0, "seconds": 0.03, "seconds_max": 0.03, "in_flight": 0,
                                  "errors": {}, "buckets": [0, 0, 0, 0, 0, 1] + [0] * 8}

    files = InstrumentedStore(FileStore(tmp_path), clock=clock)
    assert files.put_sync is not None
    await asyncio.gather(*(asyncio.to_thread(files.put_sync, f"k{i}", [b"abc"]) for i in range(20)))
    assert (files.operations["put"].count, files.operations["put"].bytes) == (20, 60)
    assert store.put_sync is None
    await files.close()


async def run_with_faults(seed: int) -> tuple[dict[str, int], list[str], dict[str, bytes]]:
    """A writer and reader with all faults: the injected faults, each call's result, the final content."""
    memory = MemoryStore()
    faults = Faults(slow=0.2, refused=0.1, unanswered=0.1, lost=0.1, late=0.1, torn=0.05, slow_ns_max=1000,
                    late_ns_max=1000, timeout_ns=1000)
    store = FaultyStore(memory, rng=random.Random(seed), faults=faults, sleep=lambda _s: asyncio.sleep(0))
    ends = []
    for i in range(100):
        try:
            await store.put(f"k{i}", [b"%d" % i])
            ends.append("put")
            assert memory.objects[f"k{i}"] == b"%d" % i
            assert await store.get(f"k{i}") == b"%d" % i
            ends.append("get")
        except Transient as e:
            ends.append(str(e))
    await store.late_puts_done()
    return store.injected, ends, memory.objects


async def test_a_seed_is_a_run() -> None:
    """A seed gives the same faults and results; each kind of fault happens; acknowledged puts are always
    there."""
    first, second = await run_with_faults(7), await run_with_faults(7)
    assert first == second
    assert set(first[0]) == {"slow", "refused", "unanswered", "lost", "late", "torn"}
    assert (await run_with_faults(8))[1] != first[1]


async def test_the_effects_of_each_fault() -> None:
    """Refused and lost puts leave nothing, unanswered puts leave the object, and late puts leave it afterwards."""
    for name, at_once, in_the_end in [("refused", False, False), ("lost", False, False), ("torn", False, False),
                                      ("unanswered", True, True), ("late", False, True)]:
        memory = MemoryStore()
        store = FaultyStore(memory, rng=random.Random(1), faults=Faults(**{name: 1.0}, timeout_ns=0, late_ns_max=0))
        with pytest.raises(Transient):
            await store.put("k", [b"x"])
        assert ("k" in memory.objects) is at_once, name
        await store.late_puts_done()
        assert ("k" in memory.objects) is in_the_end, name
        assert store.injected == {name: 1}


async def test_a_late_put_that_meets_its_retry_changes_nothing() -> None:
    """The retry succeeds, the store refuses the late put, and no caller notices it."""
    memory = MemoryStore()
    retried = asyncio.Event()

    async def sleep(seconds: float) -> None:
        await (retried.wait() if seconds else asyncio.sleep(0))

    store = FaultyStore(memory, rng=random.Random(1), faults=Faults(late=1.0, timeout_ns=0), sleep=sleep)
    with pytest.raises(Transient):
        await store.put("k", [b"first"])
    store.faults = Faults()
    await store.put("k", [b"retry"])
    retried.set()
    await store.late_puts_done()
    assert memory.objects == {"k": b"retry"}


async def test_a_torn_put_on_a_directory_is_swept(tmp_path: Path) -> None:
    """Half an object stays in a temporary file, is never listed or read, and the next open removes it."""
    files = FileStore(tmp_path)
    store = FaultyStore(files, rng=random.Random(1), faults=Faults(torn=1.0, timeout_ns=0))
    with pytest.raises(Transient):
        await store.put("k", [b"0123456789"])
    [run] = os.listdir(tmp_path / ".tmp")
    torn = tmp_path / ".tmp" / run / "0"
    assert torn.read_bytes() == b"01234"
    assert await files.list("") == []
    await files.close()
    await FileStore(tmp_path).close()
    assert not torn.exists()


async def test_a_put_is_stalled_at_its_number_and_released() -> None:
    """The second put is stalled before it reaches the store while the third overtakes it."""
    memory = MemoryStore()
    store = FaultyStore(memory, rng=random.Random(1))
    stall = store.stall_put(1)
    puts = [asyncio.create_task(store.put(f"k{i}", [b"x"])) for i in range(3)]
    await stall.reached.wait()
    await asyncio.gather(puts[0], puts[2])
    assert stall.key == "k1"
    assert list(memory.objects) == ["k0", "k2"]
    stall.release()
    await puts[1]
    assert "k1" in memory.objects


async def test_halt_is_the_end_of_the_process() -> None:
    """No call reaches the store after ``halt``, and none is answered; another process's connection is unaffected."""
    memory = MemoryStore()
    dead, living = FaultyStore(memory, rng=random.Random(1)), FaultyStore(memory, rng=random.Random(2))
    stall = dead.stall_put(0)
    calls = [asyncio.create_task(call) for call in (dead.put("k", [b"x"]), dead.get("k"), dead.list(""))]
    await stall.reached.wait()
    dead.halt()
    await living.put("l", [b"x"])
    for _ in range(20):
        await asyncio.sleep(0)
    assert not any(call.done() for call in calls)
    assert list(memory.objects) == ["l"]
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
