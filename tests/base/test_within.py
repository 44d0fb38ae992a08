"""A wait for a limited time ends by the event, by the time, or by a cancellation, which is never lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from broker.base.within import within
from broker.cluster.hold_off import HoldOff


async def cancel_after(turns: int, wake: Callable[[], object], waits: Coroutine[Any, Any, None]) -> None:
    """Wake a task, and cancel it so many turns of the loop later. It must end."""
    task = asyncio.create_task(waits)
    await asyncio.sleep(0.01)
    wake()
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait((task,), timeout=1)
    assert task.cancelled()


@pytest.mark.parametrize("turns", range(5))
async def test_a_cancellation_while_the_wait_ends(turns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many turns of the loop have passed since the event, the task is cancelled. Before, a broker that stopped
    could wait for ever for a task that stands by for a shard.
    """
    monkeypatch.setattr(asyncio, "wait_for", asyncio.tasks.wait_for)  # ``tests.wait_for`` replaces it in all tests
    event = asyncio.Event()

    async def wait_again_and_again() -> None:
        while True:
            await within(event.wait(), 10)
            event.clear()

    await cancel_after(turns, event.set, wait_again_and_again())


@pytest.mark.parametrize("turns", range(5))
async def test_a_standby_that_is_woken_and_cancelled(turns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for the pause between two polls, which a heartbeat or a message ends."""
    monkeypatch.setattr(asyncio, "wait_for", asyncio.tasks.wait_for)
    hold_off = HoldOff()

    async def stand_by() -> None:
        while True:
            await hold_off.sleep(10)

    await cancel_after(turns, hold_off.wake, stand_by())


async def test_the_event_and_the_time_end_the_wait() -> None:
    event = asyncio.Event()
    await within(event.wait(), 0.01)
    event.set()
    async with asyncio.timeout(5):
        await within(event.wait(), 60)
