"""``broker.base.shielded``: several callers wait for one task."""

from __future__ import annotations

import asyncio

import pytest

from broker.base.shielded import shielded


async def test_a_cancelled_waiter_leaves_the_task_to_the_others() -> None:
    """The task goes on, and its error reaches the other waiters alone: the loop reports none (see ``conftest``)."""
    go_on = asyncio.Event()

    async def fail() -> None:
        await go_on.wait()
        raise ValueError("of the task")

    task = asyncio.create_task(fail())
    first, second = (asyncio.create_task(shielded(task)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    go_on.set()
    with pytest.raises(ValueError, match="of the task"):
        await second
    with pytest.raises(ValueError, match="of the task"):
        await shielded(task)


async def test_a_result_is_there_at_once() -> None:
    task = asyncio.create_task(asyncio.sleep(0, "found"))
    assert await shielded(task) == "found"
    turns: list[int] = []
    asyncio.get_running_loop().call_soon(turns.append, 1)
    assert await shielded(task) == "found"
    assert not turns


async def test_a_cancelled_task_cancels_its_waiters() -> None:
    task = asyncio.create_task(asyncio.sleep(3600))
    waiter = asyncio.create_task(shielded(task))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
