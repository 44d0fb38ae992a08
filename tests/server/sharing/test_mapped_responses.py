"""Responses of the server's own services under an account's mappings, beside the real nats-server.

On nats-server these services are imported from the system account, so the requesting account's mappings apply to their
responses. Responses of streams and consumers keep their subject.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.harness import BrokerProcess, NatsServerProcess
from tests.server.raw_client import Wire

CONFIG = """
system_account: SYS
accounts {
  A { users: [ {user: a, password: a} ], mappings: { "r.*": "m.$1" }, jetstream: enabled }
  SYS { users: [ {user: s, password: s} ], mappings: { "r.*": "m.$1" } }
}
"""
CREATE = '{"name": "X", "subjects": ["x.*"], "allow_direct": true, "storage": "memory"}'
CONSUMER = '{"stream_name": "X", "config": {"durable_name": "C", "ack_policy": "none"}}'
REQUESTS = [
    ("a", "$SYS.REQ.USER.INFO", "", "m"), ("s", "$SYS.REQ.USER.INFO", "", "m"),
    ("s", "$SYS.REQ.SERVER.PING.IDZ", "", "r"),
    ("a", "$SYS.REQ.ACCOUNT.PING.CONNZ", "", "m"), ("a", "$SYS.REQ.ACCOUNT.PING.STATZ", "", "m"),
    ("a", "$JS.API.INFO", "", "m"), ("a", "$JS.API.STREAM.INFO.X", "", "m"),
    ("a", "$JS.API.STREAM.CREATE.X", CREATE, "m"),
    ("a", "x.1", "", "r"), ("a", "$JS.API.DIRECT.GET.X.x.1", "", "r"),
    ("a", "$JS.API.STREAM.MSG.GET.X", '{"seq": 1}', "m"),
    ("a", "$JS.API.CONSUMER.CREATE.X.C", CONSUMER, "m"), ("a", "$JS.API.CONSUMER.MSG.NEXT.X.D", "", "r"),
    ("a", "$JS.API.STREAM.DELETE.X", "", "m")]
"""A request: user, subject, body, and the first token of the response's subject."""


@pytest.mark.parametrize("kind", [NatsServerProcess, BrokerProcess], ids=["real", "ours"])
async def test_responses_are_mapped(kind: Any, tmp_path: Path) -> None:
    """Each server answers every request once, under the same subject."""
    path = tmp_path / "x.conf"
    path.write_text(f'{CONFIG}\njetstream {{ store_dir: "{tmp_path / "store"}" }}\n')
    async with kind("-c", str(path), monitor=False) as server, Wire(server.port) as a, Wire(server.port) as b:
        wires = {"a": a, "s": b}
        for user, wire in wires.items():
            wire.send(f'CONNECT {{"user":"{user}","pass":"{user}","verbose":false,"headers":true,"no_responders":true}}'
                      "\r\nSUB r.* 1\r\nSUB m.* 2\r\nPING\r\n".encode())
            await wire.until(b"PONG\r\n")
        for number, (user, subject, body, expected) in enumerate(REQUESTS):
            wires[user].send(f"PUB {subject} r.{number} {len(body)}\r\n{body}\r\n".encode())
            received = await wires[user].until(f".{number} ".encode())
            assert received.endswith(f"MSG {expected}.{number} ".encode()), subject
