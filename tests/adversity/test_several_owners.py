"""Brokers that own shards of one store, as leaf nodes of a real nats-server: a shard whose owner dies, or is paused,
is taken over by another broker, and the other shards serve meanwhile.
"""

from __future__ import annotations

import asyncio
import random
import re
import signal
from pathlib import Path

import nats
import pytest
from nats.js.api import StreamSource
from nats.js.errors import APIError

from tests.adversity.clients import until
from tests.adversity.lives import Life, again
from tests.adversity.owners import QUIET, Cluster, T, add_all, cluster, messages
from tests.adversity.test_moves import until_moved
from tests.harness import free_port
from tests.real.proxy import TcpProxy
from tests.stores import make_store

pytestmark = pytest.mark.shows("cluster.several_owners")

TAKING = 1.0 if QUIET else 20.0
"""Time that a take-over may take beyond T, on a machine with nothing else to do."""


@pytest.mark.parametrize("kind", ["directory", pytest.param("minio", marks=pytest.mark.soak)])
async def test_the_shard_of_a_dead_broker_is_taken_over(
        kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """A killed broker's shard is served by another within T + 1 s, and its other streams go on; it gets it back."""
    async with cluster(tmp_path, make_store(kind, tmp_path, request), a="0", b="1", c="2") as one:
        await add_all(one)
        assert await messages(one) == [1, 1, 1]
        await one.brokers["b"].kill()
        for name in ("S0", "S2"):
            assert await one.until_published(name) < T / 2 + TAKING
        with pytest.raises((APIError, TimeoutError, nats.errors.Error)):
            await one.js.stream_info("S1")
        assert await one.until_published("S1") < T + TAKING
        assert await messages(one) == [2, 2, 2]
        await one.brokers["b"].restart()  # it is ready as a standby, and gets its own shard back

        async def is_back() -> bool:
            return (await one.shards())["b"] == [1]

        await until(is_back, 60)
        await one.js.update_stream(name="S1", subjects=["s1", "more"])
        await one.js.delete_stream("S1")
        await one.js.add_stream(name="S1", subjects=["s1"], metadata={"jetblock.shard": "1"})
        await one.brokers["a"].kill()  # shard 0: the streams of the others go on
        assert await one.until_published("S2") < T / 2 + TAKING
        assert await one.until_published("S0") < T + TAKING
        await until(lambda: lists(one, [3, 1, 3]), 60)
        assert sum(broker.running for broker in one.brokers.values()) == 2


async def test_a_broker_that_is_cut_off_gives_its_shards_up(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Nobody can reach a broker, though it runs and its store answers: after two leases it seals its shard, and another
    broker serves it. A broker with a client of its own keeps its shard. When they are back, each has its own again, and
    the broker that was cut off keeps the next shard that it gets.
    """
    async with TcpProxy("127.0.0.1", free_port()) as proxy, cluster(
            tmp_path, make_store("directory", tmp_path, request), leaf_port=proxy.target_port,
            through={"b": proxy.port, "c": proxy.port}, a="0", b="1", c="2") as one:
        await add_all(one)
        client = await nats.connect(one.brokers["c"].url, user="app", password="a")
        proxy.refuse()
        assert await one.until_published("S1") < 3 * T + 1 + TAKING
        assert (await client.jetstream(domain="jb").publish("s2", b"from a client of its own")).seq == 2
        assert not await one.publishes("S2")
        proxy.resume()
        await client.close()

        async def is_back() -> bool:
            return await one.shards() == {"a": [0], "b": [1], "c": [2]}

        await until(is_back, 60)
        await until(lambda: lists(one, [1, 2, 2]), 30)
        assert one.brokers["b"].running
        assert (await one.step_down(0, "b"))["owner"] == "b"
        assert await one.until_published("S0") < TAKING
        assert not [line for line in one.brokers["b"].stderr if "is lost" in line]


async def test_streams_of_other_brokers(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Mirrors and sources copy streams of other brokers, also after a move, and a client of one broker reaches the
    streams of all."""
    async with cluster(tmp_path, make_store("directory", tmp_path, request), a="0", b="1", c="2") as one:
        await add_all(one)
        for name, shard, origin in (("M0", 0, {"mirror": StreamSource(name="S1")}),
                                    ("M1", 1, {"sources": [StreamSource(name="S0"), StreamSource(name="S2")]})):
            await one.js.add_stream(name=name, metadata={"jetblock.shard": str(shard)}, **origin)

        async def are_copied() -> bool:
            return [(await one.js.stream_info(name)).state.messages for name in ("M0", "M1")] == [1, 2]

        await until(are_copied, 30)
        await until_moved(one, "S1", 2)
        await one.until_published("S1")
        await until(lambda: has_messages(one, "M0", 2), 30)
        client = await nats.connect(one.brokers["b"].url, user="app", password="a")
        js = client.jetstream(domain="jb")
        assert [(await js.stream_info(f"S{shard}")).state.messages for shard in range(3)] == [1, 2, 1]
        await client.close()


async def has_messages(one: Cluster, name: str, count: int) -> bool:
    return (await one.js.stream_info(name)).state.messages == count


async def lists(one: Cluster, wanted: list[int]) -> bool:
    """Return whether the streams have these messages; publish to S1 until it has one."""
    if (await one.js.stream_info("S1")).state.messages == 0:
        await one.publishes("S1")
    try:
        return await messages(one) == wanted
    except (nats.errors.Error, TimeoutError):
        return False


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["directory", "minio"])
@pytest.mark.parametrize("seed", range(3))
async def test_kills_and_pauses_while_streams_live(
        kind: str, seed: int, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Brokers are killed and paused while streams are created, changed and deleted in all shards: each acknowledged
    message is there once, and each stream in one place.
    """
    rng = random.Random(seed)
    async with cluster(tmp_path, make_store(kind, tmp_path, request), a="0", b="1", c="2") as one:
        streams = [Life(one.client.jetstream(domain="jb", timeout=5), number) for number in range(5)]
        ended = asyncio.Event()

        async def keep_living(life: Life) -> None:
            while not ended.is_set():
                await life.live()

        tasks = [asyncio.create_task(keep_living(life)) for life in streams]
        for number in range(12):
            await asyncio.sleep(rng.uniform(1, 2 * T))
            broker = rng.choice(list(one.brokers.values()))
            if number % 2:
                broker.send_signal(signal.SIGSTOP)
                await asyncio.sleep(rng.uniform(0.5, 2 * T))
                broker.send_signal(signal.SIGCONT)
            else:
                await broker.kill()
                await asyncio.sleep(rng.choice((0, 1.5 * T)))
                await broker.restart()
            for task in tasks:
                if task.done():
                    task.result()
        ended.set()
        await asyncio.gather(*tasks)
        assert all(life.lives > 3 for life in streams)
        for life in streams:
            await again(lambda life=life: one.js.add_stream(name=life.name, subjects=[life.name]))  # type: ignore[misc]
        names = [info.config.name for info in await one.js.streams_info()]
        assert names == sorted(life.name for life in streams)
        log = "\n".join(line for broker in one.brokers.values() for line in broker.stderr)
        assert not re.search(r"Traceback|cannot be kept|has it since", log)
