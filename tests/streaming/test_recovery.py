"""Registrations, positions and unacknowledged messages survive kill -9, on a directory and on S3."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.harness import BrokerProcess, fetch
from tests.real.s3 import S3Server
from tests.streaming.stan_client import FIRST, NEW, StanClient

pytestmark = pytest.mark.shows("streaming.recovery")

STORES = ["file", "s3"]
Start = Callable[..., BrokerProcess]


@pytest.fixture
def start(tmp_path: Path, request: pytest.FixtureRequest) -> Start:
    """Return a function that makes a broker with the gateway on a directory or in a bucket, the same each time."""
    stores: dict[str, tuple[str, dict[str, str]]] = {"file": (f"file://{tmp_path / 'store'}", {})}

    def start(kind: str, name: str = "one") -> BrokerProcess:
        if kind not in stores:
            minio: S3Server = request.getfixturevalue("minio")
            stores[kind] = minio.new_url(), minio.env
        url, environ = stores[kind]
        return BrokerProcess("--store", url, "-cid", "test-cluster", "-n", name, environ=environ)
    return start


@pytest.mark.parametrize("kind", STORES)
async def test_a_client_continues_after_a_kill(start: Start, kind: str) -> None:
    """A client that was connected publishes, acks and gets messages after the restart, without connecting again.

    What it has acked is not redelivered, and what it has not acked is redelivered first.
    """
    async with start(kind) as broker:
        client = await StanClient.open(broker.url, "me")
        await client.publish_all("orders", b"1", b"2", b"3")
        sub = await client.subscribe("orders", FIRST, in_flight=2)
        assert [one.data for one in await sub.take(2, ack=False)] == [b"1", b"2"]
        await sub.ack(1)
        assert (await sub.next()).data == b"3"
        await client.publish_all("orders", b"4")  # its PubAck comes after the ack is stored
        await broker.restart()
        redelivered = [await sub.next(), await sub.next()]
        assert [(one.seq, one.redelivered > 0) for one in redelivered] == [(2, True), (3, True)]
        await sub.ack(2, 3)
        assert (await sub.next()).data == b"4"
        await client.publish_all("orders", b"5")
        assert (await sub.next()).data == b"5"
        assert await client.ping() == ""
        assert await client.close() == ""
        await client.nc.close()


async def test_durables_and_queue_groups_survive_a_kill(start: Start) -> None:
    """Offline durables, durable queue groups and queue groups with members continue where they were."""
    async with start("file") as broker:
        client = await StanClient.open(broker.url, "me")
        await client.publish_all("c", b"1", b"2", b"3")
        durable = await client.subscribe("c", FIRST, durable="d", in_flight=1)
        await durable.take(1)
        assert (await durable.next()).seq == 2
        assert await durable.close() == ""
        group = await client.subscribe("c", FIRST, queue="q", durable="d", in_flight=2)
        await group.take(1)
        assert [one.seq for one in await group.take(2, ack=False)] == [2, 3]
        assert await group.close() == ""
        member = await client.subscribe("c", FIRST, queue="r", in_flight=2)
        assert [one.seq for one in await member.take(2, ack=False)] == [1, 2]
        await broker.restart()
        assert [one.seq for one in await member.take(2)] == [1, 2]
        assert [one.seq for one in await member.take(1)] == [3]
        again = await client.subscribe("c", NEW, durable="d")
        assert [one.seq for one in await again.take(2)] == [2, 3]
        again = await client.subscribe("c", NEW, queue="q", durable="d")
        assert [one.seq for one in await again.take(2)] == [2, 3]
        await client.nc.close()


async def active(server: BrokerProcess) -> int:
    """Return the status of the page that tells which server of a group is active."""
    async with asyncio.timeout(30):
        while True:
            try:
                return (await fetch(f"http://127.0.0.1:{server.http_port}/streaming/isFTActive"))[0]
            except OSError:  # a standby's pages are served some moments after its port is bound
                await asyncio.sleep(0.05)


async def test_a_standby_continues(tmp_path: Path) -> None:
    """After the owner of the store is killed, a client continues on the standby, without registering again."""
    store = ("--store", f"file://{tmp_path / 'store'}", "-cid", "test-cluster")
    async with BrokerProcess(*store, "-n", "one") as owner, AsyncExitStack() as stack:
        standby = BrokerProcess(*store, "-n", "two")
        await standby.start(ready=False)
        stack.push_async_callback(standby.close)
        await standby.wait_line("standby: another broker holds")
        assert [await active(one) for one in (owner, standby)] == [200, 204]
        client = await StanClient.open([owner.url, f"nats://127.0.0.1:{standby.port}"], "me")
        await client.publish_all("orders", b"1", b"2", b"3")
        sub = await client.subscribe("orders", FIRST, durable="d")
        assert [one.seq for one in await sub.take(3, ack=False)] == [1, 2, 3]
        await sub.ack(1, 2)
        await client.publish_all("orders", b"4")
        assert (await sub.next()).seq == 4
        await owner.kill()
        await standby.wait_ready()
        assert await active(standby) == 200
        # The delivery of 4 may not be stored yet: then it counts as the first one.
        third, fourth = await sub.take(2)
        assert (third.seq, third.redelivered > 0, fourth.seq) == (3, True, 4)
        await client.publish_all("orders", b"5")
        assert (await sub.next()).data == b"5"
        assert await client.ping() == ""
        await client.nc.close()


async def test_the_cluster_id_belongs_to_the_store(tmp_path: Path) -> None:
    """A store of another cluster ID is refused: its clients would not find their subscriptions."""
    store = f"file://{tmp_path / 'store'}"
    async with BrokerProcess("--store", store, "-cid", "one"):
        pass
    other = BrokerProcess("--store", store, "-cid", "two")
    await other.start(ready=False)
    assert await other.wait_end() == 1
    assert "Cluster ID 'two' does not match recovered value of 'one'" in other.tail()
    await other.close()


async def test_registrations_that_cannot_be_read(start: Start) -> None:
    """Whoever may publish to the gateway's stream does not keep a broker from starting."""
    async with start("file") as broker:
        client = await StanClient.open(broker.url, "me")
        js = client.nc.jetstream()
        for key, record in (("client.a", b"{}"), ("client.b", b"1"), ("client.c", b"x"), ("sub.d", b'{"channel":1}'),
                            ("client.e", b'{"heartbeat_inbox":1,"protocol":[],"conn_id":"00"}'), ("other", b"")):
            await js.publish(f"$STAN.{key}", record)
        await broker.restart()
        assert await client.ping() == ""
        await client.nc.close()
