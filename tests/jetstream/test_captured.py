"""Streams that capture the broker's own messages: replies, refusals, advisories, deliveries.

No message enters a stream during that stream's own decision, so every sequence sent to a client names its own message.
All tests use real sockets, also of the real nats-server, whose behaviour this is.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import nats
import pytest
import pytest_asyncio
from nats.aio.client import Client
from nats.aio.msg import Msg

from tests.harness import BrokerProcess, NatsServerProcess, ServerProcess

SECONDS = 30.0
NOT_GONE_YET = 10049
"""The code of nats-server's "error creating store": it removes the directory of a deleted stream after answering."""
STORAGES: dict[str, dict[str, Any]] = {"file": {}, "memory": {"storage": "memory"}, "async": {"persist_mode": "async"}}
every_storage = pytest.mark.parametrize("config", STORAGES.values(), ids=STORAGES)


pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.shows("publish.own_subjects")]


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=[BrokerProcess, NatsServerProcess],
                        ids=["jetblock", "nats-server"])
async def server(request: pytest.FixtureRequest,
                 tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ServerProcess]:
    async with request.param("-js", "-sd", str(tmp_path_factory.mktemp("captured"))) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def client(server: ServerProcess) -> AsyncIterator[Client]:
    """A client of a server without streams."""
    connected = await nats.connect(server.url)
    yield connected
    for name in (await api(connected, "STREAM.NAMES"))["streams"] or ():
        await api(connected, f"STREAM.DELETE.{name}")
    await connected.close()
    # nats-server removes the files of a deleted stream after it has answered, and a new stream of that name may find
    # them.
    files = Path(server.flags[-1]) / "jetstream" / "$G" / "streams"
    async with asyncio.timeout(SECONDS):
        while files.exists() and list(files.iterdir()):  # noqa: ASYNC110  # it is the server's
            await asyncio.sleep(0.01)


async def request(client: Client, subject: str, body: dict[str, Any]) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads((await client.request(f"$JS.API.{subject}", json.dumps(body).encode(),
                                                              SECONDS)).data)
    return answer


async def api(client: Client, subject: str, **body: Any) -> dict[str, Any]:
    answer = await request(client, subject, body)
    assert "error" not in answer, answer
    return answer


async def until(client: Client, subject: str, so: Callable[[dict[str, Any]], bool], **body: Any) -> dict[str, Any]:
    """Poll until the condition holds."""
    async with asyncio.timeout(SECONDS):
        while True:
            answer = await request(client, subject, body)
            if so(answer):
                return answer
            await asyncio.sleep(0.01)


async def create(client: Client, name: str, *subjects: str, **config: Any) -> None:
    answer = await until(client, f"STREAM.CREATE.{name}",
                         lambda answer: answer.get("error", {}).get("err_code") != NOT_GONE_YET,
                         name=name, subjects=list(subjects), **config)
    assert "error" not in answer, answer


async def stored(client: Client, stream: str, seq: int) -> tuple[str, bytes]:
    """Return subject and body of one message."""
    message = (await api(client, f"STREAM.MSG.GET.{stream}", seq=seq))["message"]
    return message["subject"], base64.b64decode(message.get("data", ""))


async def ask(client: Client, subject: str, body: bytes, **headers: str) -> dict[str, Any]:
    """Publish, and return the PubAck."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    answer: dict[str, Any] = json.loads((await client.request(subject, body, SECONDS, headers=named or None)).data)
    return answer


def hpub(subject: bytes, reply: bytes, body: bytes, **headers: str) -> bytes:
    block = b"NATS/1.0\r\n" + b"".join(
        b"%b: %b\r\n" % (name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()) + b"\r\n"
    return b"HPUB %b %b %d %d\r\n%b%b\r\n" % (subject, reply, len(block), len(block) + len(body), block, body)


async def in_one_read(server: ServerProcess, data: bytes) -> None:
    """Send ``data`` at once, over a connection of its own; return when the server has read it all."""
    reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(server.url).port)
    writer.write(b'CONNECT {"verbose":false,"pedantic":false,"headers":true}\r\n' + data + b"PING\r\n")
    async with asyncio.timeout(SECONDS):
        await reader.readuntil(b"PONG\r\n")
    writer.close()


@every_storage
@pytest.mark.parametrize("reply", [b"s.replies", b"s.b", b"_INBOX.x.1"])
async def test_a_stream_captures_its_own_replies(server: ServerProcess, client: Client, config: dict[str, Any],
                                                    reply: bytes) -> None:
    """Shows good publishes, refused ones and duplicates in one read, all answered into the stream.

    A retry gets the sequence of its own message, and all messages are stored once.
    """
    await create(client, "S", "s.>", "_INBOX.x.>", **config)
    ids = [f"order-{n}" for n in range(40)]
    run, refused = b"", 0
    for n, msg_id in enumerate(ids):
        if not n % 3:
            run += hpub(b"s.a", reply, b"refused", Nats_Expected_Last_Sequence="99999")
            refused += 1
        run += hpub(b"s.b", reply, msg_id.encode(), Nats_Msg_Id=msg_id, Nats_Expected_Stream="S")
        if not n % 7:
            run += hpub(b"s.c", reply, b"again", Nats_Msg_Id=msg_id)
    await in_one_read(server, run)
    for msg_id in ids:
        ack = await ask(client, "s.other", msg_id.encode(), Nats_Msg_Id=msg_id)
        assert ack.get("duplicate"), ack
        assert await stored(client, "S", ack["seq"]) == ("s.b", msg_id.encode())
    again = sum(1 for n in range(len(ids)) if not n % 7)
    replies = len(ids) + again + refused
    state = (await until(client, "STREAM.INFO.S",
                         lambda info: info["state"]["messages"] >= len(ids) + replies))["state"]
    if isinstance(server, BrokerProcess):
        # nats-server sometimes answers an asynchronous stream's refusals and duplicates twice.
        assert (state["messages"], state["last_seq"]) == (len(ids) + replies,) * 2


@every_storage
async def test_a_stream_captures_its_own_advisories(client: Client, config: dict[str, Any]) -> None:
    """A publish removes a pending message, which causes an advisory, which removes the next, and so on.

    This ends with the last pending one, and the stream continues.
    """
    count = 300
    subject = "$JS.EVENT.ADVISORY.CONSUMER."
    await create(client, "E", f"{subject}MSG_TERMINATED.>", f"{subject}test", max_msgs=count, **config)
    await asyncio.gather(*(ask(client, f"{subject}test", b"%d" % n) for n in range(count)))
    await api(client, "CONSUMER.CREATE.E.C", stream_name="E", config={
        "name": "C", "durable_name": "C", "ack_policy": "explicit", "max_ack_pending": -1})
    await pull(client, "E.C", count)
    ack = await ask(client, f"{subject}test", b"one more")
    assert ack["seq"] == count + 1
    # nats-server removes a message from the pending ones before it stores its advisory.
    await until(client, "STREAM.INFO.E", lambda info: info["state"]["last_seq"] > 2 * count)
    assert not (await api(client, "CONSUMER.INFO.E.C"))["num_ack_pending"]
    ack = await ask(client, f"{subject}test", b"and another")
    state = (await api(client, "STREAM.INFO.E"))["state"]
    assert (state["messages"], state["last_seq"], ack["seq"]) == (count, 2 * count + 2, 2 * count + 2)
    assert await stored(client, "E", ack["seq"]) == (f"{subject}test", b"and another")
    name, body = await stored(client, "E", ack["seq"] - 1)
    assert name == f"{subject}MSG_TERMINATED.E.C"
    assert json.loads(body)["stream_seq"] <= count


@every_storage
async def test_a_stream_captures_an_inbox(client: Client, config: dict[str, Any]) -> None:
    """Many publishers get the right PubAcks, and the PubAcks are stored."""
    await create(client, "I", "_INBOX.>", **config)
    await create(client, "P", "p.>", **config)
    acks = await asyncio.gather(*(ask(client, f"p.{n % 7}", b"%d" % n, Nats_Msg_Id=str(n)) for n in range(500)))
    assert sorted(ack["seq"] for ack in acks) == list(range(1, 501))
    for n in (0, 99, 499):
        assert await stored(client, "P", acks[n]["seq"]) == (f"p.{n % 7}", b"%d" % n)
    # There are answers to the two creations, to the publishes, to the gets, and to the creation of the consumer.
    kept = await everything(client, "I", "_INBOX.*.*", 2 + 500 + 3 + 1)
    bodies = [json.loads(msg.data) for msg in kept]
    assert sorted(one["seq"] for one in bodies if one.get("stream") == "P" and "seq" in one) == list(range(1, 501))


async def test_a_stream_of_everything(client: Client) -> None:
    """``>`` without PubAcks keeps requests, answers, advisories and its own deliveries, and still serves."""
    await create(client, "ALL", ">", no_ack=True)
    answered = asyncio.Event()

    async def answer(msg: Msg) -> None:
        await msg.respond(b"pong")
        answered.set()

    await client.subscribe("service", cb=answer)
    for _ in range(20):
        assert (await client.request("service", b"ping", timeout=30)).data == b"pong"
    await api(client, "CONSUMER.CREATE.ALL.C", stream_name="ALL", config={
        "name": "C", "durable_name": "C", "ack_policy": "explicit", "filter_subject": "service"})
    # Each delivery is a message of the stream under the same subject, and so is delivered next.
    await pull(client, "ALL.C", 100)
    before = (await api(client, "STREAM.INFO.ALL"))["state"]
    assert before["last_seq"] == before["messages"]
    assert before["num_subjects"] > 20


async def test_deliveries_into_a_stream(client: Client) -> None:
    """A pull whose inbox is a subject of the same stream: each delivery becomes a message, which is delivered next."""
    await create(client, "S", "s.>")
    ack = await ask(client, "s.x", b"one")
    await api(client, "CONSUMER.CREATE.S.C", stream_name="S", config={
        "name": "C", "durable_name": "C", "ack_policy": "explicit"})
    await client.publish("$JS.API.CONSUMER.MSG.NEXT.S.C", json.dumps({"batch": 50}).encode(), reply="s.in")
    state = (await until(client, "STREAM.INFO.S", lambda info: info["state"]["last_seq"] >= 51))["state"]
    assert (state["messages"], state["last_seq"], ack["seq"]) == (51, 51, 1)
    # Consumers of nats-server learn of a message some time after it is stored.
    info = await until(client, "CONSUMER.INFO.S.C", lambda info: info["num_pending"])
    assert (info["delivered"]["stream_seq"], info["num_ack_pending"], info["num_pending"]) == (50, 50, 1)


async def pull(client: Client, names: str, count: int) -> list[Msg]:
    """Pull ``count`` messages of a consumer, without acking them."""
    got: list[Msg] = []
    done = asyncio.Event()

    async def note(msg: Msg) -> None:
        got.append(msg)
        if len(got) == count:
            done.set()

    subscription = await client.subscribe("taken", cb=note)
    await client.publish(f"$JS.API.CONSUMER.MSG.NEXT.{names}", json.dumps({"batch": count}).encode(), reply="taken")
    async with asyncio.timeout(SECONDS):
        await done.wait()
    await subscription.unsubscribe()
    return got


async def everything(client: Client, stream: str, subject: str, count: int) -> list[Msg]:
    """Return the first ``count`` messages of a stream that match."""
    await api(client, f"CONSUMER.CREATE.{stream}.all", stream_name=stream, config={
        "name": "all", "durable_name": "all", "ack_policy": "none", "filter_subject": subject})
    return await pull(client, f"{stream}.all", count)
