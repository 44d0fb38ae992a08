"""Trusted proxies, beside the real nats-server: clients that may or must come through one, and the effect of a
reload."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from broker.base.nkeys import OPERATOR, SERVER, USER, encode_base64url
from tests.harness import BrokerProcess, NatsServerProcess, ServerProcess
from tests.keys import key
from tests.server.raw_client import Wire

pytestmark = [pytest.mark.asyncio, pytest.mark.shows("auth.proxies")]

ONE, OTHER, STRANGER, NKEY = key(SERVER, "one"), key(OPERATOR, "other"), key(USER, "stranger"), key(USER, "user")

USERS = f"""authorization {{ timeout: 60, users: [
  {{user: free, password: p}}, {{user: bound, password: p, proxy_required: true}}
  {{nkey: {NKEY.public}, proxy_required: true}} ] }}"""
KEYS = f"\nproxies {{ trusted: [ {{key: {ONE.public}}}, {{public_key: {OTHER.public}}} ] }}"

ACCESS = {
    "users": USERS + KEYS, "users, no proxy is trusted": USERS,
    "one user": "authorization { timeout: 60, user: free, password: p, proxy_required: true }" + KEYS,
    "a token": "authorization { timeout: 60, token: t, proxy_required: true }" + KEYS,
    "anybody": KEYS,
}

LOGINS: list[tuple[str, dict[str, Any], Any]] = [
    (f"{what} by {how}", fields, signer)
    for what, fields in (("free", {"user": "free", "pass": "p"}), ("bound", {"user": "bound", "pass": "p"}),
                         ("wrong", {"user": "bound", "pass": "x"}), ("nkey", {"nkey": NKEY.public}),
                         ("token", {"auth_token": "t"}), ("nobody", {}))
    for how, signer in (("no proxy", None), ("one", ONE), ("other", OTHER), ("a stranger", STRANGER), ("nonsense", "!"),
                        ("nothing", ""))]


async def _log_in(server: ServerProcess, name: str, fields: dict[str, Any], signer: Any) -> Any:
    """Log in. Returns: whether INFO has a nonce; the server's answer; the proxy or the close reason on /connz."""
    async with Wire(server.port) as wire:
        nonce = json.loads(wire.info.removeprefix(b"INFO ")).get("nonce", "").encode()
        fields = {"verbose": False, "name": name, **fields}
        if "nkey" in fields:
            fields["sig"] = encode_base64url(NKEY.sign(nonce))
        if signer is not None:
            fields["proxy_sig"] = signer if isinstance(signer, str) else encode_base64url(signer.sign(nonce))
        wire.send(b"CONNECT " + json.dumps(fields).encode() + b"\r\nPING\r\n")
        answer = await wire.until(b"\r\n")
        if answer == b"PONG\r\n":
            shown = (await server.monitor("/connz"))["connections"][-1].get("proxy")
        else:
            answer += await wire.end()
            shown = (await _closed(server, name))[0]
        return bool(nonce), answer, shown


async def _closed(server: ServerProcess, name: str) -> list[str]:
    """Return why connections of this name ended; wait for the first, which is listed a moment after its end."""
    async with asyncio.timeout(30):
        while not (rows := [  # noqa: ASYNC110 - a server notifies nobody
                row for row in (await server.monitor("/connz?state=closed"))["connections"]
                if row.get("name") == name]):
            await asyncio.sleep(0.01)
    return [row["reason"] for row in rows]


@pytest.mark.parametrize("access", list(ACCESS))
async def test_logins_as_on_nats_server(access: str, tmp_path: Path) -> None:
    """Users who must come through a proxy, and others; signatures by trusted and by other keys."""
    config = tmp_path / "proxies.conf"
    config.write_text('http: "127.0.0.1:-1"\n' + ACCESS[access])
    found = []
    for server in (NatsServerProcess("-c", str(config)), BrokerProcess("-c", str(config))):
        async with server:
            found.append([(name, *await _log_in(server, name, fields, signer)) for name, fields, signer in LOGINS])
    assert [pair for pair in zip(*found, strict=True) if pair[0] != pair[1]] == []


async def test_a_reload_closes_clients_of_a_proxy_no_longer_trusted(tmp_path: Path) -> None:
    """Other clients stay."""
    config = tmp_path / "proxies.conf"
    for server in (NatsServerProcess("-c", str(config)), BrokerProcess("-c", str(config))):
        config.write_text('http: "127.0.0.1:-1"\n' + USERS + KEYS)
        async with server, Wire(server.port) as gone, Wire(server.port) as stays, Wire(server.port) as free:
            for wire, signer in ((gone, ONE), (stays, OTHER), (free, None)):
                nonce = json.loads(wire.info.removeprefix(b"INFO "))["nonce"].encode()
                by = {"user": "bound",
                      "proxy_sig": encode_base64url(signer.sign(nonce))} if signer else {"user": "free"}
                wire.send(b"CONNECT " + json.dumps({"verbose": False, "pass": "p", "name": "n",
                                                    **by}).encode() + b"\r\n")
                assert await wire.settled() == b"PONG\r\n"
            config.write_text('http: "127.0.0.1:-1"\n' + USERS
                              + f"\nproxies {{ trusted: [ {{key: {OTHER.public}}} ] }}")
            os.kill(server.pid, signal.SIGHUP)
            assert b"-ERR 'Authorization Violation'\r\n" in await gone.end()
            for wire in (stays, free):
                assert (await wire.settled()).endswith(b"PONG\r\n")
            assert await _closed(server, "n") == ["Proxy Not Trusted"]
