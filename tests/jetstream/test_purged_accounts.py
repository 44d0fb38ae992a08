"""Purging an account: all its streams are deleted, including those that are only in the store,
and no other account's."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from broker.access.accounts import AccountLimits
from broker.jetstream.wire.errors import ApiError
from broker.server.routing.router import Router
from tests.jetstream.archives import begin_restore, restore, take_snapshot
from tests.jetstream.caller import Caller
from tests.jetstream.in_process import Inside

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def broker() -> AsyncIterator[Inside]:
    async with Inside() as inside:
        yield inside


def begin_to_add(broker: Inside, name: str) -> tuple[Caller, asyncio.Future[None]]:
    """Add an account with JetStream; return a client of it, and a future that is done when its streams are there."""
    router = Router(broker.clock, random.Random(1), asyncio.get_running_loop().call_soon)
    return Caller(router), broker.js.add_account(name, router, AccountLimits())


async def add(broker: Inside, name: str) -> Caller:
    caller, restored = begin_to_add(broker, name)
    await restored
    return caller


async def fill(caller: Caller, streams: int = 2) -> None:
    """Make streams with a message and a consumer each."""
    for n in range(streams):
        answers = [await caller.api(f"STREAM.CREATE.S{n}", {"name": f"S{n}", "subjects": [f"s{n}"]}),
                   await caller.api(f"CONSUMER.CREATE.S{n}.C", {"stream_name": f"S{n}", "config": {
                       "durable_name": "C", "ack_policy": "explicit"}}),
                   await caller.request(f"s{n}")]
        assert all("error" not in answer for answer in answers)


async def is_new(caller: Caller) -> None:
    """Check that nothing is left of earlier streams."""
    assert (await caller.api("STREAM.NAMES"))["streams"] is None
    info = await caller.api("INFO")
    assert (info["storage"], info["streams"], info["consumers"]) == (0, 0, 0)
    await fill(caller, 1)
    assert (await caller.request("s0"))["seq"] == 2


@pytest.mark.shows("accounts.purge")
async def test_streams_in_use(broker: Inside) -> None:
    a, b = await add(broker, "A"), await add(broker, "B")
    await fill(a, 3)
    await a.api("STREAM.CREATE.M", {"name": "M", "storage": "memory"})
    await fill(b)
    await broker.js.purge("A")
    assert {state.account for state in broker.state.streams.values()} == {"B"}
    await is_new(a)
    assert (await b.api("STREAM.NAMES"))["streams"] == ["S0", "S1"]


@pytest.mark.shows("accounts.purge")
async def test_streams_of_an_account_that_does_not_exist_any_more(broker: Inside) -> None:
    a = await add(broker, "A")
    await fill(a)
    await broker.js.remove_account("A")
    await broker.restart()
    assert len(broker.state.streams) == 2
    await broker.js.purge("A")
    assert not broker.state.streams
    await broker.restart()
    a = await add(broker, "A")
    await is_new(a)


async def test_an_account_that_comes_back_meanwhile(broker: Inside) -> None:
    """Its streams are not restored while they are being deleted, and streams that it makes then are not deleted."""
    a = await add(broker, "A")
    await fill(a)
    removed = broker.js.remove_account("A")
    purged = broker.js.purge("A")
    a, restored = begin_to_add(broker, "A")
    again = broker.js.purge("A")
    await asyncio.gather(removed, purged, restored, again)
    await is_new(a)
    assert len(broker.state.streams) == 1


async def test_an_account_that_goes_meanwhile(broker: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shows that its streams are deleted, in use or not."""
    monkeypatch.setattr("broker.jetstream.purging._AT_ONCE", 1)
    a = await add(broker, "A")
    await fill(a, 3)
    purged = broker.js.purge("A")
    for _ in range(3):
        await asyncio.sleep(0)
    await broker.js.remove_account("A")
    await purged
    a = await add(broker, "A")
    await is_new(a)


async def test_a_stream_that_cannot_be_used(broker: Inside) -> None:
    """A newer version's stream is deleted too, and gives its name and subjects back."""
    await broker.ok("STREAM.CREATE.S", {"name": "S", "subjects": ["s"]})
    await broker.log.persisted()
    next(iter(broker.state.streams.values())).config["from_the_future"] = True
    await broker.restart()
    assert await broker.error("STREAM.INFO.S") == 10194
    await broker.js.purge("$G")
    assert not broker.state.streams
    await broker.ok("STREAM.CREATE.S", {"name": "S", "subjects": ["s"]})
    assert await broker.publish("s") == 1


async def test_a_restore_continues(broker: Inside) -> None:
    await broker.ok("STREAM.CREATE.S", {"name": "S", "subjects": ["s"]})
    await broker.publish("s")
    backup = await take_snapshot(broker.client, "S")
    to = await begin_restore(broker.client, backup, name="T", subjects=["t"])
    half = len(backup.archive) // 2
    await broker.client.request(to, backup.archive[:half], timeout=30)
    await broker.js.purge("$G")
    await broker.client.request(to, backup.archive[half:], timeout=30)
    await broker.client.request(to, b"", timeout=30)
    assert (await broker.ok("STREAM.INFO.T"))["state"]["messages"] == 1
    assert (await restore(broker.client, backup))["state"]["messages"] == 1


async def test_a_standby_purges_nothing() -> None:
    async with Inside(opened=False) as broker:
        with pytest.raises(ApiError) as refused:
            await broker.js.purge("$G")
        assert refused.value.err_code == 10008
