"""Deliveries are denied by the subject of the message, by jetblock and by the real server alike."""

from __future__ import annotations

import json
from pathlib import Path

import nats
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from tests.harness import BrokerProcess, NatsServerProcess, ServerProcess

pytestmark = pytest.mark.asyncio

FILE = """
accounts { A {
  jetstream: enabled
  users [ {user: free, password: p}, {user: denied, password: p, permissions { subscribe { deny: "secret.>" } }} ]
} }
"""
STREAM = {"name": "S", "subjects": ["secret.>", "open.>"]}
SUBJECTS = ("open.1", "secret.1", "open.2", "secret.2", "secret.3", "open.3")


async def ask(client: Client, api: str, request: dict[str, object]) -> None:
    reply = json.loads((await client.request(f"$JS.API.{api}", json.dumps(request).encode(), timeout=30)).data)
    assert "error" not in reply, reply


async def delivered_subjects(client: Client, deliver: str, pull: bool) -> list[str]:
    """Return the subjects that ``client`` gets from a consumer of the whole stream, up to the last one."""
    found: list[str] = []
    sub = await client.subscribe(deliver)
    config: dict[str, object] = {"name": "C", "ack_policy": "none", "mem_storage": True}
    if not pull:
        config["deliver_subject"] = deliver
    await ask(client, "CONSUMER.CREATE.S.C", {"stream_name": "S", "config": config})
    if pull:
        await client.publish("$JS.API.CONSUMER.MSG.NEXT.S.C", b'{"batch": 6, "expires": 20000000000}', reply=deliver)
    while "open.3" not in found:
        msg: Msg = await sub.next_msg()
        found.append(msg.subject)
    await ask(client, "CONSUMER.DELETE.S.C", {})
    await sub.unsubscribe()
    return found


@pytest.mark.shows("auth.permissions")
@pytest.mark.parametrize("pull", [False, True], ids=["push", "pull"])
@pytest.mark.parametrize("process", [BrokerProcess, NatsServerProcess], ids=["jetblock", "nats-server"])
async def test_denied_subjects_are_not_delivered(process: type[ServerProcess], pull: bool, tmp_path: Path) -> None:
    """A client with a subscription that covers a denied subject gets no denied message; other clients get all."""
    path = tmp_path / "x.conf"
    path.write_text(FILE)
    async with process("-c", str(path), "-js", "-sd", str(tmp_path / "store")) as broker:
        free, denied = [await nats.connect(broker.url, user=user, password="p") for user in ("free", "denied")]
        await ask(free, "STREAM.CREATE.S", STREAM)
        for subject in SUBJECTS:
            await free.request(subject, b"", timeout=30)
        wide = await denied.subscribe("*.1")
        assert await delivered_subjects(denied, "d.x", pull) == ["open.1", "open.2", "open.3"]
        assert await delivered_subjects(free, "d.x", pull) == list(SUBJECTS)
        await free.publish("secret.1")
        await free.flush()
        await denied.flush()
        assert wide.pending_msgs == 0
        for client in (free, denied):
            await client.close()
