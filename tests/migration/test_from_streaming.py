"""``jetblock migrate --from-streaming`` from the real nats-streaming-server: its clients continue at the target."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from broker.migration.cli import main
from tests.harness import BrokerProcess, NatsStreamingProcess, fetch
from tests.migration.test_migrate import Run, migrate
from tests.real import parts
from tests.real.s3 import MISSING
from tests.streaming.stan_client import FIRST, NEW, SEQUENCE, Delivery, StanClient
from tests.streaming.test_stock_clients import run

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.shows("streaming.migrate")]

_CONFIG = """
streaming {
  cluster_id: old
  store: file
  dir: "%s"
  store_limits {
    max_channels: 0
    channels { few: { max_msgs: 5 }, aged: { max_age: "1s" }, "many.>": { max_age: "24h" } }
  }
}
"""


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def source(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[NatsStreamingProcess]:
    folder = tmp_path_factory.mktemp("old")
    (folder / "old.conf").write_text(_CONFIG % (folder / "store"))
    async with NatsStreamingProcess("-c", str(folder / "old.conf")) as server:
        yield server


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def target(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[BrokerProcess]:
    store = tmp_path_factory.mktemp("new")
    async with BrokerProcess("--store", f"file://{store}", "-cid", "old", "-mc", "0") as server:
        yield server


def from_streaming(source: NatsStreamingProcess, to: str, *channels: str) -> list[str]:
    return ["--from-streaming", source.url, to, "--cluster-id", "old", "--monitoring",
            f"http://127.0.0.1:{source.http_port}", *(word for name in channels for word in ("--channel", name))]


async def page(server: BrokerProcess | NatsStreamingProcess, channel: str) -> dict[str, Any]:
    _, body = await fetch(f"http://127.0.0.1:{server.http_port}/streaming/channelsz?channel={channel}&subs=1")
    found: dict[str, Any] = json.loads(body)
    return found


async def shows(server: NatsStreamingProcess, channel: str, done: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Return the page of a channel once it shows something that the server does by itself."""
    async with asyncio.timeout(60):
        while not done(found := await page(server, channel)):  # noqa: ASYNC110  # the server does not announce it
            await asyncio.sleep(0.05)
    return found


@pytest_asyncio.fixture(loop_scope="module")
async def client(source: NatsStreamingProcess) -> AsyncIterator[Callable[[str], Awaitable[StanClient]]]:
    """Return a function that connects a client to the source."""
    opened: list[StanClient] = []

    async def connect(name: str) -> StanClient:
        opened.append(await StanClient.open(source.url, name, "old"))
        return opened[-1]

    yield connect
    for one in opened:
        await one.nc.close()


async def read(url: str, channel: str, count: int) -> list[tuple[Any, ...]]:
    """Return the first messages of a channel as a new client sees them, with times and reply subjects."""
    client = await StanClient.open(url, "reader", "old")
    sub = await client.subscribe(channel, FIRST, in_flight=10_000)
    found = []
    async with asyncio.timeout(60):
        for _ in range(count):
            msg = await sub.msgs.get()
            found.append((msg.sequence, msg.timestamp, msg.subject, msg.reply, msg.data, msg.redelivered))
    await client.close()
    await client.nc.close()
    return found


Connect = Callable[[str], Awaitable[StanClient]]


async def test_channels_move_with_sequences_and_times(
        source: NatsStreamingProcess, target: BrokerProcess, client: Connect) -> None:
    """Each message has its sequence, time and reply subject; an empty channel goes on with its next sequence.

    That is so for a channel whose oldest messages were discarded, too. The limits are those of the source.
    """
    me = await client("me")
    for n in range(1500):
        await me.nc.publish(f"{me.connected.pub_prefix}.many.a", _pub(me, "many.a", n))
    await me.publish_all("few", *(b"%d" % n for n in range(12)))
    await me.publish("few", bytes(200_000), reply="answer.here")
    await me.publish_all("aged", b"1", b"2", b"3")
    await me.subscribe("empty")
    await me.subscribe("a:b")
    await me.publish_all("a:b", b"colon")
    await shows(source, "many.a", lambda found: found["msgs"] == 1500)
    await shows(source, "aged", lambda found: found["msgs"] == 0)
    channels = ("many.a", "few", "aged", "empty", "a:b")
    report = await migrate(*from_streaming(source, target.url, *channels), "--verify")
    assert [one["problems"] for one in report["streams"].values()] == [[]] * 5
    assert {name: (one["first_seq"], one["last_seq"], one["verified"]) for name, one in report["streams"].items()} == {
        "STAN_many:a": (1, 1500, 1500), "STAN_few": (9, 13, 5), "STAN_aged": (4, 3, 0), "STAN_empty": (1, 0, 0),
        "STAN_a%3Ab": (1, 1, 1)}
    for channel, count in (("many.a", 1500), ("few", 5), ("a:b", 1)):
        assert await read(target.url, channel, count) == await read(source.url, channel, count)
    moved = await StanClient.open(target.url, "writer", "old")
    info = await moved.nc.jetstream().stream_info("STAN_many:a")
    assert (info.config.max_age, info.config.max_msgs) == (24 * 3600, 1_000_000)
    await moved.publish_all("aged", b"4")
    sub = await moved.subscribe("aged", FIRST)
    assert (await sub.next()).seq == 4
    await moved.publish_all("few", b"14")
    assert (await page(target, "few"))["first_seq"] == 10
    await moved.nc.close()


def _pub(client: StanClient, channel: str, number: int) -> bytes:
    from broker.streaming.wire.stan_pb2 import PubMsg

    return PubMsg(client_id=client.id, conn_id=client.conn_id, guid=f"{channel}-{number}", subject=channel,
                  data=b"message %d" % number, reply="some.inbox" if number % 7 == 0 else "").SerializeToString()


async def test_durables_continue(source: NatsStreamingProcess, target: BrokerProcess, client: Connect) -> None:
    """An offline durable, and a durable queue group, get first what they have not acked, and then what is new to them.

    That is so for acks out of order, too; the counts of redeliveries go on.
    """
    me = await client("me")
    await me.publish_all("orders", *(b"%d" % n for n in range(1, 21)))
    durable = await me.subscribe("orders", FIRST, durable="d", in_flight=5)
    await durable.take(5, ack=False)
    await durable.ack(1, 2, 4)
    await durable.take(3, ack=False)
    assert await durable.close() == ""
    durable = await me.subscribe("orders", NEW, durable="d", in_flight=1)  # all five are redelivered once
    assert [one.seq for one in await durable.take(5, ack=False)] == [3, 5, 6, 7, 8]
    assert await durable.close() == ""
    group = await me.subscribe("orders", SEQUENCE, seq=10, queue="q", durable="d", in_flight=2)
    await group.take(1)
    await group.take(2, ack=False)
    assert await group.close() == ""
    tail = await me.subscribe("orders", NEW, durable="tail")
    assert await tail.close() == ""
    brief = await me.subscribe("orders", FIRST)
    await brief.take(20)
    assert await me.close() == ""
    report = await migrate(*from_streaming(source, target.url, "orders"))
    [orders] = report["streams"].values()
    assert (orders["consumers"], orders["notes"], orders["problems"]) == (3, [], [])
    moved = await StanClient.open(target.url, "me", "old")
    durable = await moved.subscribe("orders", FIRST, durable="d", in_flight=6)
    assert await durable.take(5) == [Delivery(seq, b"%d" % seq, 2) for seq in (3, 5, 6, 7, 8)]
    assert await durable.take(12) == [Delivery(seq, b"%d" % seq) for seq in range(9, 21)]
    other = await StanClient.open(target.url, "other", "old")
    group = await other.subscribe("orders", NEW, queue="q", durable="d", in_flight=20)
    assert await group.take(2) == [Delivery(seq, b"%d" % seq, 1) for seq in (11, 12)]
    assert await group.take(8) == [Delivery(seq, b"%d" % seq) for seq in range(13, 21)]
    tail = await moved.subscribe("orders", FIRST, durable="tail")
    await moved.publish_all("orders", b"21")
    assert (await tail.next()).seq == 21
    for one in (moved, other):
        await one.close()
        await one.nc.close()


async def test_a_stock_client_continues(source: NatsStreamingProcess, target: BrokerProcess) -> None:
    """stan-sub with a durable name reads on at the target where it stopped at the source."""
    try:
        publish, subscribe = (str(parts.stan_program(name)) for name in ("stan-pub", "stan-sub"))
    except parts.PartMissing as missing:
        pytest.skip(MISSING + str(missing))
    for text in ("one", "two"):
        await run(publish, "-s", source.url, "-c", "old", "stock", text)
    durable = ("-c", "old", "-id", "stock-client", "--all", "--durable", "d", "stock")
    assert 'data:"two"' in await run(subscribe, "-s", source.url, *durable, until="[#2]")
    await run(publish, "-s", source.url, "-c", "old", "stock", "three")
    await migrate(*from_streaming(source, target.url, "stock"))
    await run(publish, "-s", target.url, "-c", "old", "stock", "four")
    found = await run(subscribe, "-s", target.url, *durable, until="[#2]")
    assert '[#1] Received: sequence:3 subject:"stock" data:"three"' in found
    assert '[#2] Received: sequence:4 subject:"stock" data:"four"' in found


async def test_running_it_again(source: NatsStreamingProcess, target: BrokerProcess, client: Connect) -> None:
    """A second run changes nothing; ``--replace`` moves again what has advanced at the source.

    A channel that is in use at the target, or was made there, is left alone.
    """
    me = await client("me")
    await me.publish_all("again", b"1", b"2", b"3", b"4")
    durable = await me.subscribe("again", FIRST, durable="d", in_flight=2)
    await durable.take(2, ack=False)
    await durable.ack(2)
    assert await durable.close() == ""
    await me.close()
    command = from_streaming(source, target.url, "again")
    assert (await migrate(*command))["streams"]["STAN_again"]["status"] == "moved"
    for flags in ((), ("--replace",)):
        [again] = (await migrate(*command, *flags))["streams"].values()
        assert (again["status"], again["notes"]) == ("there before", [])
    assert await me.register() == ""
    durable = await me.subscribe("again", NEW, durable="d", in_flight=3)
    assert [one.seq for one in await durable.take(3)] == [1, 3, 4]
    await me.publish_all("again", b"5")
    await durable.take(1)
    await durable.close()
    await me.close()
    [again] = (await migrate(*command, status=1))["streams"].values()
    assert "--replace deletes it there and moves it again" in again["problems"][0]
    assert (await migrate(*command, "--replace"))["streams"]["STAN_again"]["status"] == "moved"
    moved = await StanClient.open(target.url, "me", "old")
    durable = await moved.subscribe("again", FIRST, durable="d")
    await moved.publish_all("again", b"6")
    assert [one.seq for one in await durable.take(1)] == [6]
    [again] = (await migrate(*command, "--replace", status=1))["streams"].values()
    assert "is in use there, and is left alone" in again["problems"][0]
    await moved.publish_all("theirs", b"a")
    await me.register()
    await me.publish_all("theirs", b"b", b"c")
    [theirs] = (await migrate(*from_streaming(source, target.url, "theirs"), "--replace",
                              status=1))["streams"].values()
    assert "was not moved from this source; delete it" in theirs["problems"][0]
    await moved.close()
    await moved.nc.close()


async def test_a_durable_in_use(source: NatsStreamingProcess, target: BrokerProcess, client: Connect) -> None:
    """While a client uses a durable, its last messages count as unacknowledged, and the run says so."""
    me = await client("busy")
    await me.publish_all("used", b"1", b"2", b"3")
    durable = await me.subscribe("used", FIRST, durable="d", in_flight=3)
    await durable.take(3, ack=False)
    await durable.ack(1)
    await shows(source, "used", lambda found: found["subscriptions"][0]["pending_count"] == 2)
    [used] = (await migrate(*from_streaming(source, target.url, "used"), status=1))["streams"].values()
    assert "durable d is in use by client busy" in used["problems"][0]
    moved = await StanClient.open(target.url, "busy", "old")
    sub = await moved.subscribe("used", FIRST, durable="d")
    assert [one.seq for one in await sub.take(2)] == [2, 3]
    await moved.close()
    await moved.nc.close()


async def test_a_store_and_a_kill(source: NatsStreamingProcess, client: Connect, tmp_path: Path) -> None:
    """A killed run is simply run again; a broker that is started on the store then accepts the durables."""
    me = await client("me")
    for channel in ("kill.a", "kill.b"):
        await me.publish_all(channel, *(b"%d" % n for n in range(1, 6)))
        durable = await me.subscribe(channel, FIRST, durable="d", in_flight=3)
        await durable.take(3, ack=False)
        await durable.ack(2)
        await durable.take(1, ack=False)
        assert await durable.close() == ""
    await me.close()
    store = f"file://{tmp_path / 'store'}"
    command = from_streaming(source, store, "kill.a", "kill.b")
    killed = await Run.begin(*command)
    await killed.line("STAN_kill:a: moved")
    await killed.kill()
    report = await migrate(*command, "--verify")
    assert report["streams"]["STAN_kill:a"]["status"] == "there before"
    assert [one["verified"] for one in report["streams"].values()] == [5, 5]
    async with BrokerProcess("--store", store, "-cid", "old") as broker:
        moved = await StanClient.open(broker.url, "me", "old")
        for channel in ("kill.a", "kill.b"):
            durable = await moved.subscribe(channel, NEW, durable="d")
            assert [(one.seq, one.redelivered) for one in await durable.take(4)] == [(1, 1), (3, 1), (4, 1), (5, 0)]
        await moved.nc.close()


async def test_without_monitoring(source: NatsStreamingProcess, target: BrokerProcess, client: Connect) -> None:
    """Without the monitoring port, channels that are named move without durables, and the report says so."""
    me = await client("me")
    await me.publish_all("plain", b"1", b"2", b"3")
    report = await migrate("--from-streaming", source.url, target.url, "--cluster-id", "old", "--channel", "plain",
                           "--verify")
    plain = report["streams"]["STAN_plain"]
    assert (plain["last_seq"], plain["verified"]) == (3, 3)
    assert plain["notes"] == ["its durable positions and its limits are not known; give --monitoring"]


@pytest.mark.parametrize(("flags", "text"), [
    (("--monitoring", "http://h:1"), "--monitoring is for a nats-streaming-server; give --from-streaming, too"),
    (("--from-streaming",), "only its monitoring port shows which channels"),
    (("--from-streaming", "--stream", "A"), "name channels with --channel"),
    (("--from-streaming", "--monitoring", "h:8222"), "is no address of a monitoring port"),
])
async def test_arguments(capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], text: str) -> None:
    """Flags that do not fit each other are refused, and the text says what to do."""
    assert main(["nats://127.0.0.1:1", "nats://127.0.0.1:2", *flags]) == 2
    assert text in capsys.readouterr().err


async def test_refusals(source: NatsStreamingProcess, target: BrokerProcess) -> None:
    """A wrong cluster ID, channel or monitoring port ends the run before anything moves."""
    pages = f"http://127.0.0.1:{source.http_port}"
    for flags, text in (
            (("--cluster-id", "other", "--monitoring", pages), "no nats-streaming-server with cluster ID 'other'"),
            (("--cluster-id", "old", "--monitoring", pages, "--channel", "nothere"), "has no channel nothere"),
            (("--cluster-id", "old", "--monitoring", f"http://127.0.0.1:{source.port}"), "cannot be read"),
            (("--cluster-id", "old", "--monitoring", pages + "/elsewhere"), "status 404")):
        report = await migrate("--from-streaming", source.url, target.url, *flags, status=2)
        assert text in report["error"]
