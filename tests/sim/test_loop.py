"""The simulation's event loop: work for threads runs in it, so that neither its time nor its order is random."""

from __future__ import annotations

import asyncio
import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.manual_clock import ManualClock
from tests.sim.loop import SimLoop


def test_virtual_time_waits_for_work_in_a_thread() -> None:
    """The clock advances no further than the work's virtual time, however long the machine needs for it."""
    clock = ManualClock()
    loop = SimLoop(clock, random.Random(1))

    async def main() -> list[int]:
        asyncio.get_running_loop().call_later(3600, lambda: None)
        return [await asyncio.to_thread(threading.get_ident) for _ in range(20)]

    assert set(loop.run_until_complete(main())) == {threading.get_ident()}
    assert 0 < clock.monotonic_ns() < 20 * 8 * 10**9
    loop.end()


def test_each_seed_has_its_order() -> None:
    """A seed gives the same order each time, in which the first to begin is not always the first to end."""
    def order(seed: int) -> list[int]:
        loop = SimLoop(ManualClock(), random.Random(seed))
        done: list[int] = []

        async def work(number: int) -> None:
            await asyncio.to_thread(int)
            done.append(number)

        async def main() -> None:
            await asyncio.gather(*map(work, range(20)))

        loop.run_until_complete(main())
        loop.end()
        return done

    assert order(1) == order(1) != list(range(20))
    assert order(2) != order(1)


def test_work_that_fails_or_is_cancelled() -> None:
    """An error of the work reaches the caller; work that is cancelled before it begins is not done."""
    loop = SimLoop(ManualClock())
    done: list[int] = []

    async def main() -> None:
        with pytest.raises(ValueError, match="invalid literal"):
            await asyncio.to_thread(int, "x")
        task = asyncio.create_task(asyncio.to_thread(done.append, 1))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.sleep(1)

    loop.run_until_complete(main())
    loop.end()
    assert done == loop.errors == []


def test_a_real_thread_is_an_error() -> None:
    """A call from a real thread into the loop would make a history that cannot be repeated."""
    loop = SimLoop(ManualClock())

    async def main() -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(loop.call_soon_threadsafe, int).result()

    loop.run_until_complete(main())
    loop.end()
    assert [error["message"] for error in loop.errors] == ["a thread calls <class 'int'> in a simulation"]
