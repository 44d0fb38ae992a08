"""Brokers hand their shards over to each other: on request, to balance them, and before they stop.

Publishers try each message for two seconds at most, and each acknowledged message is there once.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import nats
import pytest
from nats.js.api import StorageType

from broker.runtime.shards_cli import main as shards
from tests.adversity.clients import until
from tests.adversity.lives import again
from tests.adversity.owners import QUIET, Cluster, Publisher, T, add_all, cluster, messages
from tests.stores import Store, make_store

pytestmark = pytest.mark.shows("cluster.several_owners")

KINDS = ["directory", pytest.param("minio", marks=pytest.mark.soak)]
KEY = {"JETBLOCK_KEY": "the master key of these tests: 32 bytes"}


async def has(one: Cluster, **shards: list[int]) -> None:
    """Wait until the brokers have these shards."""
    async def holds() -> bool:
        found = await one.shards()
        return all(found.get(name) == numbers for name, numbers in shards.items())

    await until(holds, 60)


async def check(one: Cluster, publishers: list[Publisher]) -> None:
    """Stop the publishers: each message is there once, and none took longer than two seconds."""
    acked = [await publisher.stop() for publisher in publishers]
    assert [count - 1 for count in await messages(one)] == acked  # each stream had one message before
    longest = [round(publisher.longest, 2) for publisher in publishers]
    assert max(longest) < (2 if QUIET else 20), longest
    log = "\n".join(line for broker in one.brokers.values() for line in broker.stderr)
    assert not re.search(r"Traceback|cannot be kept|were dropped|has it since", log)


@asynccontextmanager
async def asking_about(one: Cluster, name: str) -> AsyncIterator[None]:
    """Request a stream's info again and again in the body. Raises: APIError, if a broker answers so."""
    ended = asyncio.Event()

    async def ask() -> None:
        while not ended.is_set():
            with suppress(TimeoutError):  # the machine may be busy
                await one.js.stream_info(name)

    tasks = [asyncio.create_task(ask()) for _ in range(8)]
    try:
        yield
    finally:
        ended.set()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in tasks:
        task.result()


@pytest.mark.parametrize("environ", [{}, KEY], ids=["plain", "encrypted"])
@pytest.mark.parametrize("kind", KINDS)
async def test_on_request(
        kind: str, environ: dict[str, str], tmp_path: Path, request: pytest.FixtureRequest,
        capsys: pytest.CaptureFixture[str]) -> None:
    """Each shard goes to the broker that the request names, while its stream is used, and stays there. A broker that
    has just got shard 0 refuses no request about a stream of another broker.
    """
    store = make_store(kind, tmp_path, request)
    async with cluster(tmp_path, Store(store.url, {**store.environ, **environ}), a="0", b="1", c="2") as one:
        await add_all(one)
        pull = await one.js.pull_subscribe("s1", durable="pull", stream="S1")
        await has(one, a=[0], b=[1], c=[2])
        publishers = [Publisher(one, f"S{shard}") for shard in range(3)]
        assert await one.step_down(1, "c") == {"success": True, "shard": 1, "owner": "c"}
        async with asking_about(one, "S1"):
            assert (await one.step_down(0, "b"))["owner"] == "b"
        assert (await one.step_down(2))["owner"] == "a"  # which has the fewest
        await has(one, a=[2], b=[0], c=[1])
        for to, why in (("c", "c owns shard 1 already"), ("x", 'preferred server "x" not known')):
            error = (await one.step_down(1, to))["error"]
            assert (error["err_code"], error["description"]) == (10005, why)
        await one.js.add_stream(name="MEMORY", subjects=["memory"], storage=StorageType.MEMORY)
        assert "streams in memory would be lost: APP/MEMORY" in (await one.step_down(0, "c"))["error"]["description"]
        await one.js.delete_stream("MEMORY")
        for _ in range(3):
            for msg in await pull.fetch(5, timeout=10):
                await msg.ack()
        await again(lambda: one.js.update_stream(name="S1", subjects=["s1", "more"]))
        await check(one, publishers)
        login = ("--server", one.hub.url, "--user", "sys", "--password", "s", "--json")
        assert await asyncio.to_thread(shards, ["step-down", "2", "--preferred", "c", *login]) == 0
        assert await asyncio.to_thread(shards, ["step-down", "2", "--preferred", "x", *login]) == 2
        captured = capsys.readouterr()
        assert json.loads(captured.out)["owner"] == "c"
        assert 'preferred server "x" not known' in captured.err
        assert await asyncio.to_thread(shards, ["list", *login[:-1]]) == 0
        assert [line.split()[1:3] for line in capsys.readouterr().out.splitlines()] == [
            ["SHARD", "OWNER"], ["0", "b"], ["1", "c"], ["2", "c"], ["shard:", "a"]]




@pytest.mark.parametrize("kind", KINDS)
async def test_a_rolling_upgrade(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Three brokers share six shards, and are stopped and started again one after the other: each gives its shards away
    before it stops, and gets its share when it is back.
    """
    async with cluster(tmp_path, make_store(kind, tmp_path, request), shards=6, a="auto", b="auto", c="auto") as one:
        await add_all(one, 6)

        async def balanced() -> bool:
            return sorted(map(len, (await one.shards()).values())) == [2, 2, 2]

        await until(balanced, 60)
        publishers = [Publisher(one, f"S{shard}") for shard in range(6)]
        for name in ("a", "b", "c"):
            await one.brokers[name].stop()
            assert sorted(map(len, (await one.shards()).values())) == [3, 3]
            await one.brokers[name].restart()
            await until(balanced, 60)
        await check(one, publishers)


async def kill_during_hand_overs(tmp_path: Path, kind: str, request: pytest.FixtureRequest, kills: int, seed: int,
                                 ) -> None:
    """Hand a shard over again and again, and kill one of the two brokers meanwhile."""
    rng = random.Random(seed)
    async with cluster(tmp_path, make_store(kind, tmp_path, request), a="0", b="1", c="2") as one:
        await add_all(one)
        publishers = [Publisher(one, f"S{shard}") for shard in range(3)]
        for number in range(kills):
            shard = rng.randrange(3)
            owners = {shard: name for name, shards in (await one.shards()).items() for shard in shards}
            if shard not in owners:
                await asyncio.sleep(T / 3)
                continue
            to = rng.choice([name for name in one.brokers if name != owners[shard]])
            request_ = asyncio.create_task(one.step_down(shard, to, 2 * T))
            await asyncio.sleep(rng.choice((0.0, 0.02, 0.05, 0.1, 0.2)))
            victim = one.brokers[to if number % 2 else owners[shard]]
            await victim.kill()
            await asyncio.gather(request_, return_exceptions=True)
            await victim.restart()
            counts = [publisher.acked for publisher in publishers]

            async def all_go_on(counts: list[int] = counts) -> bool:
                return all(one.acked > count for one, count in zip(publishers, counts, strict=True))

            await until(all_go_on, 60)
        acked = [await publisher.stop() for publisher in publishers]
        await until(lambda: are(one, [count + 1 for count in acked]), 30)


async def are(one: Cluster, wanted: list[int]) -> bool:
    """Return whether the streams have so many messages."""
    try:
        return await messages(one) == wanted
    except (nats.errors.Error, TimeoutError):
        return False


async def test_kills_in_between(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """The broker that gives a shard, or the one that takes it, is killed between the steps."""
    await kill_during_hand_overs(tmp_path, "directory", request, 2, 1)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["directory", "minio"])
@pytest.mark.parametrize("seed", range(3))
async def test_many_kills_in_between(kind: str, seed: int, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """The same for longer."""
    await kill_during_hand_overs(tmp_path, kind, request, 20, seed)
