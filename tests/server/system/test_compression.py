"""Compressed answers of the system account, beside the real nats-server: the same encoding for each request."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import cramjam
import nats
import pytest
from nats.aio.client import Client

from tests.harness import BrokerProcess, NatsServerProcess

pytestmark = [pytest.mark.asyncio, pytest.mark.shows("monitoring.requests")]

CONFIG = """
server_name: s
jetstream {{ store_dir: "{}" }}
accounts {{ SYS: {{ users: [ {{user: s, password: s}} ] }}, A: {{ users: [ {{user: a, password: a}} ] }} }}
system_account: SYS
"""

REQUESTS = [("s", "$SYS.REQ.SERVER.PING.VARZ", b""), ("s", "$SYS.REQ.SERVER.PING", b""),
            ("s", "$SYS.REQ.SERVER.PING.IDZ", b""),
            ("s", "$SYS.REQ.SERVER.PING.VARZ", b"x"), ("s", "$SYS.REQ.ACCOUNT.A.CONNS", b""),
            ("s", "$SYS.REQ.ACCOUNT.A.INFO", b""),
            ("a", "$SYS.REQ.USER.INFO", b""), ("a", "$SYS.REQ.ACCOUNT.PING.CONNZ", b""),
            ("a", "$SYS.REQ.SERVER.PING.CONNZ", b"")]


async def _ask(client: Client, subject: str, body: bytes, accepted: str) -> tuple[str, list[str]]:
    msg = await client.request(subject, body, headers={"Accept-Encoding": accepted}, timeout=30)
    encoding = (msg.headers or {}).get("Content-Encoding", "")
    decode: dict[str, Any] = {"snappy": cramjam.snappy.decompress, "gzip": gzip.decompress}
    return encoding, sorted(json.loads(bytes(decode.get(encoding, bytes)(msg.data))))


async def _play(port: int) -> list[Any]:
    clients = {name: await nats.connect(f"nats://{name}:{name}@127.0.0.1:{port}") for name in "as"}
    played = [(subject, body, accepted, await _ask(clients[user], subject, body, accepted))
              for user, subject, body in REQUESTS for accepted in ("snappy", "S2, gzip", "gzip", "br")]
    for client in clients.values():
        await client.close()
    return played


async def test_encodings_are_those_of_nats_server(tmp_path: Path) -> None:
    """Requests accept Snappy, gzip or something else; some are refused, or their answers are never compressed."""
    for name in ("real", "ours"):
        (tmp_path / f"{name}.conf").write_text(CONFIG.format(tmp_path / name))
    async with NatsServerProcess("-c", str(tmp_path / "real.conf")) as real:
        theirs = await _play(real.port)
    async with BrokerProcess("-c", str(tmp_path / "ours.conf")) as mine:
        assert await _play(mine.port) == theirs
    assert {encoding for _, _, _, (encoding, _) in theirs} == {"", "snappy", "gzip", "identity"}
