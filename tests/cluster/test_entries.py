"""The end of an epoch is found in a few round trips, at the same number as by a linear scan."""

from __future__ import annotations

import random

import pytest

from broker.cluster.entries import end_of_segments
from broker.storage.format.claim import Seal
from broker.storage.format.errors import Corrupt
from broker.storage.format.header import Position
from broker.storage.format.segment import PUTS_IN_FLIGHT_MAX
from broker.storage.log.writer import encode_segment
from broker.storage.objectstore.memory import MemoryStore
from broker.storage.put import StoreRetry
from tests.manual_clock import ManualClock
from tests.storage.rig import PATHS, Counting, in_virtual_time

NONCE = bytes(16)


def log_of(segments: list[int], seals: list[int]) -> MemoryStore:
    shared = MemoryStore()
    for number in segments:
        position = Position(1, number)
        shared.objects[PATHS.log(position)] = b"".join(encode_segment(position, NONCE, []))
    for number in seals:
        position = Position(1, number)
        shared.objects[PATHS.log(position)] = Seal(position, "x", 2, NONCE, 0).encode()
    shared._keys[:] = sorted(shared.objects)
    return shared


@pytest.mark.parametrize("seed", range(40))
def test_as_a_linear_scan(seed: int) -> None:
    """Make logs of all lengths, with orphans and seals beyond their end as owners and takers leave them."""
    async def main(clock: ManualClock) -> None:
        rng = random.Random(seed)
        end = rng.choice((0, 1, 2, 15, 16, 17, 31, 32, 33, 100, 1000, 3000)) + rng.randrange(3)
        first = rng.randint(0, end)
        sealed = rng.random() < 0.5
        orphans = [n for n in range(end + 1, end + PUTS_IN_FLIGHT_MAX) if rng.random() < 0.3]
        ahead = [n for n in (end + 4, end + 8) if n not in orphans and rng.random() < 0.3]
        shared = log_of([*range(first, end), *orphans], [*([end] if sealed else []), *ahead])
        counting = Counting(shared)
        retry = StoreRetry(counting, clock, rng)
        for gently in (False, True):
            number, header = await end_of_segments(counting, PATHS, Position(1, first), retry, gently=gently)
            assert number == end
            assert (header is not None) == sealed
    in_virtual_time(main)


@pytest.mark.parametrize("gently", [False, True])
@pytest.mark.parametrize("segments", [33, 100, 1000])
def test_an_owner_that_goes_on_is_followed(segments: int, gently: bool) -> None:
    """If the owner puts each entry before the next headers are read, all numbers before the answer have entries."""
    class Growing(MemoryStore):
        async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
            try:
                return await super().get(key, start, end)
            finally:
                if len(self.objects) < segments + 500:
                    position = Position(1, len(self.objects))
                    await self.put(PATHS.log(position), encode_segment(position, NONCE, []))

    async def main(clock: ManualClock) -> None:
        store = Growing()
        for number in range(segments):
            await store.put(PATHS.log(Position(1, number)), encode_segment(Position(1, number), NONCE, []))
        retry = StoreRetry(store, clock, random.Random(1))
        number, header = await end_of_segments(store, PATHS, Position(1, 0), retry, gently=gently)
        assert segments <= number <= segments + 500
        assert header is None
        assert all(PATHS.log(Position(1, n)) in store.objects for n in range(number))
    in_virtual_time(main)


def test_a_long_log_costs_a_few_round_trips_and_an_idle_one_a_get() -> None:
    async def main(clock: ManualClock) -> None:
        counting = Counting(log_of(list(range(20_000)), []))
        retry = StoreRetry(counting, clock, random.Random(1))
        assert await end_of_segments(counting, PATHS, Position(1, 0), retry) == (20_000, None)
        assert len(counting.calls) < 200
        counting.calls.clear()
        assert await end_of_segments(counting, PATHS, Position(1, 20_000), retry) == (20_000, None)
        assert len(counting.calls) == 1
    in_virtual_time(main)


@pytest.mark.parametrize(("grown", "gets"), [(0, 1), (1, 2), (2, 5), (10, 14), (200, 100)])
def test_a_standby_pays_for_few_gets(grown: int, gets: int) -> None:
    """A poll costs about the same after one heartbeat of an idle owner and after ten commits of a busy one."""
    async def main(clock: ManualClock) -> None:
        counting = Counting(log_of(list(range(100 + grown)), []))
        retry = StoreRetry(counting, clock, random.Random(1))
        assert await end_of_segments(counting, PATHS, Position(1, 100), retry, gently=True) == (100 + grown, None)
        assert len(counting.calls) <= gets
    in_virtual_time(main)


def test_an_entry_that_cannot_be_read_is_not_the_end() -> None:
    async def main(clock: ManualClock) -> None:
        shared = log_of(list(range(10)), [])
        shared.objects[PATHS.log(Position(1, 8))] = b"\0" * 200
        with pytest.raises(Corrupt):
            await end_of_segments(shared, PATHS, Position(1, 0), StoreRetry(shared, clock, random.Random(1)))
    in_virtual_time(main)
