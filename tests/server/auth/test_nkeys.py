"""Login with keys of a configuration file, with jetblock and with the real server."""

from __future__ import annotations

import base64
import json
import signal
from pathlib import Path
from typing import Any

import pytest

from broker.base.nkeys import USER, encode_base64url
from tests.harness import BrokerProcess, NatsServerProcess, ServerProcess
from tests.keys import key, signed
from tests.server.raw_client import Wire

pytestmark = pytest.mark.shows("auth.nkeys")

BOTH = pytest.mark.parametrize("process", [BrokerProcess, NatsServerProcess], ids=["jetblock", "nats-server"])
A, R, W, N, B = (key(USER, name) for name in "ARWNB")
REFUSED = b"-ERR 'Authorization Violation'\r\n"

FILE = f"""
authorization {{
  timeout: 60
  default_permissions: {{ publish: "d.>" }}
  users: [
    {{ nkey: {A.public} }}
    {{ nkey: {R.public}, permissions: {{ publish: "r.>", subscribe: "r.>" }} }}
    {{ nkey: {W.public}, allowed_connection_types: [ WEBSOCKET ] }}
    {{ user: u, password: p }}
  ]
}}
accounts {{ B {{ users: [ {{ nkey: {B.public} }} ] }} }}
"""


def config(tmp_path: Path, text: str = FILE) -> str:
    path = tmp_path / "x.conf"
    path.write_text(text)
    return str(path)


async def answer(port: int, pair: Any, **fields: object) -> bytes:
    """Return the server's answer to a client with a signature by ``pair``."""
    async with Wire(port) as wire:
        wire.send(signed(wire.info, pair, **fields) + b"PING\r\n")
        return await wire.until(b"\r\n")


@BOTH
async def test_accepted_logins(process: type[ServerProcess], tmp_path: Path) -> None:
    """Only a key of the file that signs the nonce is admitted; the log names the key."""
    async with process("-c", config(tmp_path), monitor=False) as server:
        for pair in (A, R, B):
            assert await answer(server.port, pair, nkey=pair.public) == b"PONG\r\n"
        assert await answer(server.port, N, user="u", **{"pass": "p"}) == b"PONG\r\n"
        # A key in CONNECT precedes a user.
        assert await answer(server.port, A, nkey=A.public, user="u") == b"PONG\r\n"
        refused: list[dict[str, object]] = [
            {"nkey": N.public}, {"nkey": W.public}, {"nkey": A.public}, {"nkey": "U"},
            {"nkey": N.public, "user": "u", "pass": "p"},
            {"nkey": A.public, "sig": ""}, {"nkey": A.public, "sig": "AAAA"}, {"nkey": A.public, "sig": "?"}, {}]
        for fields in refused:
            pair = W if fields.get("nkey") == W.public else N
            assert await answer(server.port, pair, **fields) == REFUSED, fields
        async with Wire(server.port) as first, Wire(server.port) as second:
            assert json.loads(first.info[5:])["nonce"] != json.loads(second.info[5:])["nonce"]
            second.send(signed(first.info, A, nkey=A.public))
            assert await second.end() == REFUSED
        await server.wait_line(f'authentication error - Nkey "{N.public}"')
        async with Wire(server.port) as wire:
            nonce = json.loads(wire.info[5:])["nonce"].encode()
            sig = base64.b64encode(A.sign(nonce)).decode()  # standard base64 is accepted, too
            wire.send(signed(wire.info, A, nkey=A.public, sig=sig) + b"PING\r\n")
            assert await wire.until(b"\r\n") == b"PONG\r\n"
        assert not any(encode_base64url(A.sign(nonce)) in line or sig in line for line in server.stderr)


@BOTH
async def test_permissions_and_accounts(process: type[ServerProcess], tmp_path: Path) -> None:
    """A key has its own permissions, or the default ones; the second INFO names the account."""
    wanted = {A: b"r.x", R: b"d.x", B: None}
    async with process("-c", config(tmp_path)) as server:
        for pair, denied in wanted.items():
            async with Wire(server.port) as wire:
                wire.send(signed(wire.info, pair, nkey=pair.public, protocol=1, lang="x", name="n"))
                greeting = await wire.settled() + await wire.settled()
                wire.send(b"SUB r.> 1\r\nPUB d.x 0\r\n\r\nPUB r.x 0\r\n\r\n")
                answers = await wire.settled()
                assert (b"Publish to \"%s\"" % denied in answers if denied else b"-ERR" not in answers), answers
                assert b'"remote_account":"%s"' % (b"B" if pair is B else b"$G") in greeting + answers
                cid = json.loads(wire.info[5:])["client_id"]  # the previous connection may not have ended yet
                [row] = (await server.monitor(f"/connz?auth=1&cid={cid}"))["connections"]
                assert row["authorized_user"] == pair.public


@BOTH
async def test_clients_without_credentials(process: type[ServerProcess], tmp_path: Path) -> None:
    """``no_auth_user`` may be a key; then it needs no signature, and other keys are checked as usual."""
    text = f"no_auth_user: {A.public}\n{FILE}"
    async with process("-c", config(tmp_path, text), monitor=False) as server:
        async with Wire(server.port) as wire:
            assert b"auth_required" not in wire.info
            wire.send(b"CONNECT {}\r\nPUB d.x 0\r\n\r\nPUB r.x 0\r\n\r\n")
            assert b'Permissions Violation for Publish to "r.x"' in await wire.settled()
        async with Wire(server.port) as wire:
            # A client may leave out CONNECT only if a user with a name is configured.
            wire.send(b"PUB d.x 0\r\n\r\n")
            assert await wire.end() == REFUSED
        assert await answer(server.port, N, nkey=A.public) == b"PONG\r\n"
        assert await answer(server.port, N, nkey=R.public) == REFUSED
        assert await answer(server.port, N, user="u", **{"pass": "x"}) == REFUSED


@BOTH
async def test_users_of_the_system_account_only(process: type[ServerProcess], tmp_path: Path) -> None:
    """Clients need no credentials if only the system account has users."""
    text = f"accounts {{ $SYS {{ users: [ {{ nkey: {A.public} }} ] }} }}"
    async with process("-c", config(tmp_path, text), monitor=False) as server:
        async with Wire(server.port) as wire:
            wire.send(b"CONNECT {}\r\n")
            assert await wire.until(b"\r\n") == b"+OK\r\n"
        assert await answer(server.port, A, nkey=A.public) == b"PONG\r\n"
        assert await answer(server.port, N, nkey=A.public) == REFUSED


@BOTH
async def test_info_names_the_system_account(process: type[ServerProcess], tmp_path: Path) -> None:
    """The second INFO has ``acc_is_sys`` for users of the system account only."""
    text = (f"authorization {{ timeout: 60 }}\n"
            f"accounts {{ $SYS {{ users: [ {{ nkey: {A.public} }} ] }}, B {{ users: [ {{ nkey: {B.public} }} ] }} }}")
    async with process("-c", config(tmp_path, text), monitor=False) as server:
        for pair, is_system in ((A, True), (B, None)):
            async with Wire(server.port) as wire:
                wire.send(signed(wire.info, pair, nkey=pair.public, protocol=1, lang="x", name="n") + b"PING\r\n")
                info = await wire.until(b'"connect_info":true') + await wire.until(b"\r\n")
                assert json.loads(info[info.index(b"INFO ") + 5:]).get("acc_is_sys") is is_system


@BOTH
async def test_removed_keys(process: type[ServerProcess], tmp_path: Path) -> None:
    """A reload closes connections of removed keys, and keeps the others."""
    path = config(tmp_path)
    async with process("-c", path, monitor=False) as server, Wire(server.port) as gone, Wire(server.port) as stays:
        gone.send(signed(gone.info, A, nkey=A.public))
        stays.send(signed(stays.info, R, nkey=R.public))
        await gone.settled()
        await stays.settled()
        config(tmp_path, FILE.replace(f"{{ nkey: {A.public} }}", ""))
        server.send_signal(signal.SIGHUP)
        assert await gone.end() == b""
        await server.wait_line("Reloaded server configuration")
        assert await stays.settled() == b"PONG\r\n"
        assert await answer(server.port, A, nkey=A.public) == REFUSED


async def test_a_signature_of_no_nonce_is_refused(tmp_path: Path) -> None:
    """A connection that was sent no nonce cannot log in with a key that a reload added."""
    path = config(tmp_path, "authorization { timeout: 60, users: [ { user: u, password: p } ] }")
    async with BrokerProcess("-c", path, monitor=False) as server, Wire(server.port) as early:
        assert b"nonce" not in early.info
        config(tmp_path)
        server.send_signal(signal.SIGHUP)
        await server.wait_line("Reloaded server configuration")
        early.send(signed(b'INFO {"nonce": ""}', A, nkey=A.public))
        assert await early.end() == REFUSED
