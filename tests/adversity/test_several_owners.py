"""Brokers that own shards of one store, as leaf nodes of a real nats-server: a shard whose owner dies, or is paused,
is taken over by another broker, and the other shards serve meanwhile.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import nats
import pytest
from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.errors import APIError

from tests.adversity.clients import until
from tests.adversity.lives import Life, again
from tests.harness import BrokerProcess, NatsServerProcess, free_port
from tests.stores import Store, make_store

pytestmark = pytest.mark.shows("cluster.several_owners")

T = 3.0
"""The lease in these tests, in seconds."""
TAKING = 1.0 if os.getloadavg()[0] <= (os.cpu_count() or 1) and "PYTEST_XDIST_WORKER" not in os.environ else 20.0
"""Time that a take-over may take beyond T, on a machine with nothing else to do."""


def hub_config(port: int) -> str:
    """Return the configuration of a nats-server for clients and brokers."""
    return f"""
        server_name: hub
        leafnodes {{ listen: "127.0.0.1:{port}" }}
        accounts {{
          APP {{ users: [ {{ user: app, password: a }} ] }}
          SYS {{ users: [ {{ user: sys, password: s }} ] }} }}
        system_account: SYS
        no_auth_user: app"""


def broker_config(name: str, own: str, port: int, store: Store) -> str:
    """Return the configuration of a broker with these shards of 3."""
    return f"""
        server_name: {name}
        jetstream {{ domain: jb }}
        jetblock {{ store: "{store.url}", shards: 3, own: [{own}], lease: {T:g}s, put_timeout: 1s }}
        accounts {{ APP {{ jetstream: enabled }}, SYS {{}} }}
        system_account: SYS
        leafnodes {{ reconnect: 100ms, remotes [
          {{ url: "nats-leaf://app:a@127.0.0.1:{port}", account: APP }}
          {{ url: "nats-leaf://sys:s@127.0.0.1:{port}", account: SYS }} ] }}"""


class Cluster:
    """A nats-server and brokers behind it."""

    def __init__(self, hub: NatsServerProcess, brokers: dict[str, BrokerProcess], client: Client) -> None:
        self.hub = hub
        self.brokers = brokers
        self.client = client
        self.js: JetStreamContext = client.jetstream(domain="jb", timeout=2)

    async def publishes(self, name: str) -> bool:
        """Return whether a stream takes a message now."""
        try:
            return (await self.js.publish(name.lower(), b"more")).stream == name
        except (nats.errors.Error, TimeoutError):
            return False

    async def until_published(self, name: str) -> float:
        """Return the seconds until a stream takes a message."""
        began = time.monotonic()
        await until(lambda: self.publishes(name), 60)
        return time.monotonic() - began


@asynccontextmanager
async def cluster(tmp_path: Path, store: Store, **owns: str) -> AsyncIterator[Cluster]:
    """Start a nats-server, and a broker for each of ``owns``, which says its shards."""
    config = tmp_path / "hub.conf"
    brokers: dict[str, BrokerProcess] = {}
    leaf_port = free_port()
    config.write_text(hub_config(leaf_port))
    async with NatsServerProcess("-c", str(config), monitor=False) as hub:
        try:
            for name, own in owns.items():
                path = tmp_path / f"{name}.conf"
                path.write_text(broker_config(name, own, leaf_port, store))
                brokers[name] = BrokerProcess("-c", str(path), environ={
                    key: value for key, value in store.environ.items() if key != "JETBLOCK_SERVER_NAME"})
            await asyncio.gather(*(broker.start() for broker in brokers.values()))
            client = await nats.connect(hub.url, max_reconnect_attempts=-1)
            try:
                yield Cluster(hub, brokers, client)
            finally:
                await client.close()
        finally:
            await asyncio.gather(*(broker.close() for broker in brokers.values()))


async def add_all(one: Cluster) -> None:
    """Create the streams S0 to S2, one in each shard, with a message each."""
    for shard in range(3):
        async def is_added(shard: int = shard) -> bool:
            try:
                await one.js.add_stream(name=f"S{shard}", subjects=[f"s{shard}"],
                                        metadata={"jetblock.shard": str(shard)})
            except (nats.errors.Error, TimeoutError):
                return False  # the connections of the brokers are being made
            return True

        await until(is_added, 60)
        await one.until_published(f"S{shard}")


async def messages(one: Cluster) -> list[int]:
    return [info.state.messages for info in await one.js.streams_info()]


@pytest.mark.parametrize("kind", ["directory", pytest.param("minio", marks=pytest.mark.soak)])
async def test_the_shard_of_a_dead_broker_is_taken_over(
        kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """A killed broker's shard is served by another within T + 1 s, and its other streams go on; then it stands by."""
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
        await one.brokers["b"].restart()  # it is ready as a standby
        await one.js.update_stream(name="S1", subjects=["s1", "more"])
        await one.js.delete_stream("S1")
        await one.js.add_stream(name="S1", subjects=["s1"], metadata={"jetblock.shard": "1"})
        await one.brokers["a"].kill()  # shard 0: the streams of the others go on
        assert await one.until_published("S2") < T / 2 + TAKING
        assert await one.until_published("S0") < T + TAKING
        await until(lambda: lists(one, [3, 1, 3]), 60)
        assert sum(broker.running for broker in one.brokers.values()) == 2


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
