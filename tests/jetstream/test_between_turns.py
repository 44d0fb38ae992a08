"""Requests that take several turns of the loop, while other requests change the state that they read or change."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from broker.access.accounts import AccountLimits
from tests.jetstream.in_process import Inside

MANY = 200_000


@pytest.fixture
async def broker() -> AsyncIterator[Inside]:
    async with Inside() as broker:
        yield broker


async def test_deleted_details_beside_publishes(broker: Inside) -> None:
    """Messages that are stored while the deleted sequences are listed are not listed, and the numbers fit together."""
    await broker.ok("STREAM.CREATE.O", {"name": "O", "subjects": ["s"]})
    await broker.ok("STREAM.CREATE.S", {"name": "S", "mirror": {"name": "O"}})
    await broker.publish("s")
    await has(broker, 1)
    await broker.ok("STREAM.PURGE.O", {"seq": MANY})
    await broker.publish("s")
    await has(broker, 2)
    asked = asyncio.create_task(broker.ok("STREAM.INFO.S", {"deleted_details": True}))
    while not asked.done():
        await broker.client.publish("s", b"x")
        await broker.client.flush()
    state = (await asked)["state"]
    check_state(state)


async def has(broker: Inside, messages: int) -> None:
    while (await broker.ok("STREAM.INFO.S"))["state"]["messages"] < messages:
        pass


def check_state(state: dict[str, Any]) -> None:
    deleted = state.get("deleted", [])
    assert len(deleted) == state.get("num_deleted", 0)
    assert state["messages"] == state["last_seq"] - state["first_seq"] + 1 - len(deleted)
    assert all(state["first_seq"] < seq < state["last_seq"] for seq in (deleted[:1] + deleted[-1:]))


async def both(broker: Inside, *requests: tuple[str, Any]) -> list[dict[str, Any]]:
    """Return the answers of requests that are begun together."""
    return await asyncio.gather(*(broker.api(subject, body) for subject, body in requests))


async def test_of_two_overlapping_creates_one_wins(broker: Inside) -> None:
    """Two streams want two subjects in common, in a different order: one is created, and the other leaves nothing."""
    subjects = {}
    for name, first, last in (("A", "x", "y"), ("B", "y", "x")):
        own = [f"{name}.{i}" for i in range(12_000)]
        subjects[name] = [*own[:5000], first, *own[5000:], last]
    answers = await both(broker, *((f"STREAM.CREATE.{name}", {"name": name, "subjects": own})
                                   for name, own in subjects.items()))
    codes = [answer.get("error", {}).get("err_code", 0) for answer in answers]
    assert sorted(codes) == [0, 10065]
    lost = "AB"[codes.index(10065)]
    others = [one for one in subjects[lost] if one not in ("x", "y")]
    await broker.ok("STREAM.CREATE.C", {"name": "C", "subjects": others})


async def test_updates_at_once_reserve_no_more_than_there_is() -> None:
    """Two streams get new subjects and more bytes at once: together they may not reserve more than the account has."""
    async with Inside(limits=AccountLimits(max_storage=1000)) as broker:
        for name in "AB":
            await broker.ok(f"STREAM.CREATE.{name}", {"name": name, "subjects": [name], "max_bytes": 100})
        answers = await both(broker, *((f"STREAM.UPDATE.{name}", {
            "name": name, "subjects": [name, *(f"{name}.{i}" for i in range(3000))],
            "max_bytes": 800}) for name in "AB"))
        assert sorted(answer.get("error", {}).get("err_code", 0) for answer in answers) == [0, 10047]
        for name in "AB":
            await broker.ok(f"STREAM.DELETE.{name}")
        await broker.ok("STREAM.CREATE.C", {"name": "C", "subjects": ["A.>", "B.>"], "max_bytes": 1000})
