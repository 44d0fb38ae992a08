"""The two formats of reply subjects of deliveries and flow control requests: compared with the real nats-server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import nats
import pytest
import pytest_asyncio
from nats.aio.client import Client

from tests.harness import BrokerProcess, NatsServerProcess


@pytest_asyncio.fixture(params=[BrokerProcess, NatsServerProcess], ids=["jetblock", "nats-server"])
async def client(request: pytest.FixtureRequest, tmp_path: Path, config: str) -> AsyncIterator[Client]:
    file = tmp_path / "server.conf"
    file.write_text(config)
    async with request.param("-js", "-sd", str(tmp_path / "data"), "-c", str(file)) as server:
        connected = await nats.connect(server.url)
        yield connected
        await connected.close()


async def ask(client: Client, subject: str, body: dict[str, object]) -> dict[str, object]:
    answer: dict[str, object] = json.loads((await client.request(f"$JS.API.{subject}", json.dumps(body).encode(),
                                                                 30)).data)
    assert "error" not in answer, answer
    return answer


@pytest.mark.shows("api.ack_subjects")
@pytest.mark.asyncio
@pytest.mark.parametrize(("config", "origin"), [
    ("debug: false", ""),
    ("feature_flags { js_ack_fc_v2: false }", ""),
    ("feature_flags { js_ack_fc_v2: true, js_raft_delete_range: true }", "_.szMpdrwD."),
    ("feature_flags { js_ack_fc_v2: true }\njetstream { domain: hub }", "hub.szMpdrwD."),
], ids=["unset", "off", "on", "domain"])
async def test_reply_subjects(client: Client, origin: str) -> None:
    await ask(client, "STREAM.CREATE.S", {"name": "S", "subjects": ["s"]})
    flowing = {"durable_name": "P", "deliver_subject": "p", "ack_policy": "none", "flow_control": True,
               "idle_heartbeat": 10**9}
    messages = await client.subscribe("p")
    await ask(client, "CONSUMER.CREATE.S.P", {"stream_name": "S", "config": flowing})
    await ask(client, "CONSUMER.CREATE.S.C", {"stream_name": "S",
                                              "config": {"durable_name": "C", "ack_policy": "explicit"}})
    for _ in range(3):
        await client.request("s", bytes(800_000), timeout=30)
    asked = ""
    async with asyncio.timeout(30):
        while not asked.startswith("$JS.FC."):
            asked = (await messages.next_msg(timeout=30)).reply
    assert asked.startswith(f"$JS.FC.{origin}S.P."), asked

    inbox = client.new_inbox()
    pulled = await client.subscribe(inbox)
    await client.publish("$JS.API.CONSUMER.MSG.NEXT.S.C", b"3", reply=inbox)
    replies = [(await pulled.next_msg(timeout=30)).reply for _ in range(3)]
    assert all(reply.startswith(f"$JS.ACK.{origin}S.C.") for reply in replies), replies
    # Answers to both formats are accepted, whichever is sent.
    short, long = (f"$JS.ACK.{tokens}S.C." + reply.split("S.C.")[1]
                   for tokens, reply in zip(("", origin or "_.szMpdrwD."), replies, strict=False))
    for reply in (short, long):
        await client.request(reply, b"+ACK", timeout=30)
    assert (await ask(client, "CONSUMER.INFO.S.C", {}))["num_ack_pending"] == 1
