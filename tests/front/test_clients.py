"""Stock clients of ``jetblock --workers 1``: they notice no difference to one broker."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import nats
import nats.micro
import pytest
import pytest_asyncio
from nats.aio.client import Client
from nats.js.api import ConsumerConfig
from nats.js.errors import NotFoundError
from nats.micro.request import Request

from tests.front.fronted import FrontedProcess
from tests.harness import fetch

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.shows("cluster.workers_clients")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fronted(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[FrontedProcess]:
    """Start one process for all tests of this module."""
    folder: Path = tmp_path_factory.mktemp("fronted")
    config = folder / "c.conf"
    config.write_text('cluster { name: c, port: -1 }\nwebsocket { listen: "127.0.0.1:-1", no_tls: true }\n')
    async with FrontedProcess("-c", str(config), "-js", "-sd", str(folder / "js"), "-n", "fronted") as process:
        yield process


@pytest_asyncio.fixture(loop_scope="module")
async def client(fronted: FrontedProcess) -> AsyncIterator[Client]:
    """Connect a client."""
    connected = await nats.connect(fronted.url)
    yield connected
    await connected.close()


async def test_the_client_connects_to_a_nats_server(client: Client) -> None:
    """INFO is nats-server's own, with the name of this server."""
    assert client._server_info["server_name"] == "fronted"
    assert client._server_info["go"].startswith("go")


async def test_the_ports_file_has_all_ports(fronted: FrontedProcess) -> None:
    """The ports that nats-server chose are in the ports file; WebSocket clients use JetStream, too."""
    assert fronted.ports.keys() == {"nats", "monitoring", "cluster", "websocket"}
    assert fronted.ports["monitoring"] == [fronted.monitor_url]
    client = await nats.connect(fronted.ports["websocket"][0])
    await client.jetstream().account_info()
    await client.close()


async def test_streams_and_consumers(client: Client) -> None:
    """Publishing, pull, push and ordered consumers, double acks and information work without a domain."""
    js = client.jetstream()
    await js.add_stream(name="ORDERS", subjects=["orders.>"])
    acks = [await js.publish(f"orders.{number}", b"%d" % number) for number in range(20)]
    assert [ack.seq for ack in acks] == list(range(1, 21))
    assert acks[0].domain is None
    pull = await js.pull_subscribe("orders.>", durable="pull")
    for message in await pull.fetch(20, timeout=10):
        assert message.subject == f"orders.{message.data.decode()}"
        await message.ack_sync()
    assert (await js.consumer_info("ORDERS", "pull")).ack_floor.stream_seq == 20
    push = await js.subscribe("orders.>", durable="push", config=ConsumerConfig(max_ack_pending=3))
    for number in range(20):
        message = await push.next_msg(10)
        assert message.data == b"%d" % number
        await message.ack()
    ordered = await js.subscribe("orders.>", ordered_consumer=True)
    assert [(await ordered.next_msg(10)).metadata.sequence.stream for _ in range(20)] == list(range(1, 21))
    assert (await js.account_info()).streams == 1
    with pytest.raises(NotFoundError):
        await js.stream_info("MISSING")


async def test_a_queue_group_shares_deliveries(client: Client) -> None:
    """Members of a queue group of a push consumer get each message once."""
    js = client.jetstream()
    await js.add_stream(name="WORK", subjects=["work"])
    got: list[bytes] = []
    subs = [await js.subscribe("work", queue="members", durable="members", manual_ack=True) for _ in range(2)]
    for number in range(30):
        await js.publish("work", b"%d" % number)

    async def take(sub: nats.js.JetStreamContext.PushSubscription) -> None:
        while len(got) < 30:
            message = await sub.next_msg(10)
            got.append(message.data)
            await message.ack()

    takers = [asyncio.create_task(take(sub)) for sub in subs]
    await asyncio.wait(takers, return_when=asyncio.FIRST_COMPLETED)
    for taker in takers:
        taker.cancel()
    await asyncio.gather(*takers, return_exceptions=True)
    assert sorted(got, key=int) == [b"%d" % number for number in range(30)]


async def test_key_value_and_object_store(client: Client) -> None:
    """Buckets, watchers and large objects work, though ``$KV`` and ``$OBJ`` cross the leaf connection."""
    js = client.jetstream()
    bucket = await js.create_key_value(bucket="settings", history=3)
    await bucket.put("color", b"red")
    watcher = await bucket.watchall()
    entry = await watcher.updates(10)
    assert entry is not None
    assert (entry.key, entry.value) == ("color", b"red")
    await bucket.update("color", b"blue", last=1)
    assert (await bucket.get("color")).value == b"blue"
    await bucket.delete("color")
    objects = await js.create_object_store("files")
    await objects.put("large", bytes(1_000_000))
    assert (await objects.get("large")).data == bytes(1_000_000)


async def test_services_and_requests(client: Client) -> None:
    """Core NATS is nats-server's: services answer, a request that nobody serves fails at once."""
    service = await nats.micro.add_service(client, name="echo", version="1.0.0")

    async def echo(request: Request) -> None:
        await request.respond(request.data)

    await service.add_endpoint(name="echo", handler=echo)
    assert (await client.request("echo", b"hello", timeout=10)).data == b"hello"
    assert json.loads((await client.request("$SRV.INFO", b"", timeout=10)).data)["name"] == "echo"
    await service.stop()
    with pytest.raises(nats.errors.NoRespondersError):
        await client.request("nobody", b"", timeout=10)


async def test_pages_add_up(fronted: FrontedProcess, client: Client) -> None:
    """The pages have nats-server's clients and the worker's streams; neither the links nor the secret path show."""
    await client.jetstream().add_stream(name="PAGES", subjects=["pages"])
    varz = await fronted.monitor("/varz")
    assert varz["server_name"] == "fronted"
    assert varz["connections"] == 1
    assert varz["leafnodes"] == 0
    assert "remotes" not in varz["leaf"]
    assert varz["http_base_path"] == "/"
    assert varz["http_port"] == fronted.http_port
    assert varz["jetstream"]["stats"]["api"]["total"] > 0
    jsz = await fronted.monitor("/jsz?streams=true&accounts=true")
    assert jsz["server_id"] == varz["server_id"]
    assert "PAGES" in [stream["name"] for account in jsz["account_details"] for stream in account["stream_detail"]]
    assert await fronted.monitor("/healthz") == {"status": "ok"}
    assert (await fronted.monitor("/leafz"))["leafs"] == []
    connz = await fronted.monitor("/connz")
    assert [row["kind"] for row in connz["connections"]] == ["Client"]
    assert connz["num_connections"] == 1
    status, metrics = await fetch(fronted.monitor_url + "/metrics")
    assert status == 200
    lines = dict(line.rsplit(" ", 1) for line in metrics.decode().splitlines() if not line.startswith("#"))
    assert float(lines["jetblock_connections"]) == 1
    assert float(lines["jetblock_leaf_nodes"]) == 0
    assert float(lines["jetblock_jetstream_streams"]) >= 1
    assert float(lines['jetblock_account_connections{account="$G"}']) == 1
    for path in ("/", "/accountz", "/subsz", "/routez", "/gatewayz"):
        status, body = await fetch(fronted.monitor_url + path)
        assert status == 200, path
        assert b"jetblock-" not in body
    assert (await fetch(fronted.monitor_url + "/nothing"))[0] == 404
