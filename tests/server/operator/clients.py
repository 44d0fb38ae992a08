"""nats-py with a token; configurations of both servers with a resolver's directory."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client

from broker.base.nkeys import ACCOUNT, USER, encode_base64url
from tests import tokens
from tests.harness import BrokerProcess, NatsServerProcess, ServerProcess
from tests.keys import key

__all__ = ["BOTH", "ask", "connected", "directory", "write"]

BOTH = pytest.mark.parametrize("process", [BrokerProcess, NatsServerProcess], ids=["jetblock", "nats-server"])


@asynccontextmanager
async def connected(server: ServerProcess, token: str, name: str = "u", **options: Any) -> AsyncIterator[Client]:
    """Connect a client with that token, which does not reconnect."""
    def sign(nonce: str) -> bytes:
        return encode_base64url(key(USER, name).sign(nonce.encode())).encode()

    while True:
        try:
            client = await nats.connect(server.url, user_jwt_cb=lambda: bytearray(token.encode()), signature_cb=sign,
                                        allow_reconnect=False, **options)
            break
        except nats.errors.Error as error:
            if "Authentication Timeout" not in str(error):  # on a busy machine the server may read a CONNECT too late
                raise
    try:
        yield client
    finally:
        await client.close()


async def ask(client: Client, subject: str, body: str | bytes = b"") -> dict[str, Any]:
    """Return the answer to a request, without its part about the server."""
    answer = await client.request(subject, body.encode() if isinstance(body, str) else body, timeout=30)
    fields: dict[str, Any] = json.loads(answer.data)
    fields.pop("server", None)
    return fields


def write(tmp_path: Path, text: str) -> str:
    path = tmp_path / "x.conf"
    path.write_text(text)
    return str(path)


def directory(tmp_path: Path, *lines: str, resolver: str = "type: full, allow_delete: true", operator: str = "",
              **accounts: str) -> str:
    """Return a configuration with a resolver's directory that has the tokens of the system account and ``accounts``."""
    folder = tmp_path / "jwts"
    folder.mkdir(exist_ok=True)
    for name, token in {"SYS": tokens.account("SYS"), **accounts}.items():
        (folder / f"{key(ACCOUNT, name).public}.jwt").write_text(token)
    return "\n".join([f"operator: {operator or tokens.operator()}", f"system_account: {key(ACCOUNT, 'SYS').public}",
                      tokens.LOGIN,
                      f'resolver: {{ dir: "{folder}", {resolver} }}', *lines, ""])
