"""TLS between two servers: on the listener and by the remote, after INFO and before it, with and without certificates
of the spoke."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from nats.aio.msg import Msg

from tests.certificates import Authority
from tests.server.leaf.servers import Pair, connect, crossed, pair

pytestmark = pytest.mark.shows("cluster.leaf_tls")

ACCOUNTS = "accounts { APP { users [ { user: app, password: app } ] } }"
WAYS = [("nats-server", "jetblock"), ("jetblock", "nats-server"), ("jetblock", "jetblock")]


async def answered(servers: Pair, user: str = "") -> None:
    """Check that a client of the hub reaches a responder at the spoke."""
    here, there = await connect(servers.hub, user), await connect(servers.spoke)

    async def answer(msg: Msg) -> None:
        await msg.respond(b"x" * 100_000)

    await there.subscribe("svc", cb=answer)
    await crossed(there, here)
    assert len((await here.request("svc", timeout=30)).data) == 100_000
    await here.close()
    await there.close()


@pytest.mark.parametrize(("hub", "spoke"), WAYS)
@pytest.mark.parametrize("first", ["false", "true", "300ms"])
async def test_each_side_verifies_the_other(tmp_path: Path, hub: str, spoke: str, first: str) -> None:
    """TLS begins after INFO or before it; each side verifies the other's certificate. With a delay, the hub accepts
    both: here the spoke waits for INFO."""
    authority = Authority(tmp_path)
    server, client = authority.server(), authority.client("client")
    listener = (f'tls {{ cert_file: "{server.cert}", key_file: "{server.key}", ca_file: "{authority.ca}", '
                f"verify: true, handshake_first: {first} }}")
    remote = (f'tls {{ ca_file: "{authority.ca}", cert_file: "{client.cert}", key_file: "{client.key}", '
              f"handshake_first: {str(first == 'true').lower()} }}")
    async with pair(tmp_path, hub, spoke, listener=listener, remote=remote) as servers:
        await answered(servers)
        shown = (await servers.hub.monitor("/varz"))["leaf"]
        assert (shown["tls_required"], shown["tls_verify"], shown["auth_timeout"]) == (True, True, 3)
        assert shown["tls_cert_not_after"] == "2100-01-01T00:00:00Z"


@pytest.mark.parametrize(("hub", "spoke"), WAYS[:2])
async def test_a_certificate_names_the_user(tmp_path: Path, hub: str, spoke: str) -> None:
    """With ``verify_and_map``, the user of the listener, and so the account, is the one that the certificate names."""
    authority = Authority(tmp_path)
    server, client = authority.server(), authority.client("client", "CN=leaf,O=Shop")
    listener = (f'tls {{ cert_file: "{server.cert}", key_file: "{server.key}", ca_file: "{authority.ca}", '
                "verify_and_map: true }, "
                'authorization { users [ { user: other, account: APP }, { user: "CN=leaf,O=Shop", account: APP } ] }')
    remote = f'tls {{ ca_file: "{authority.ca}", cert_file: "{client.cert}", key_file: "{client.key}" }}'
    async with pair(tmp_path, hub, spoke, listener=listener, remote=remote, hub_settings=ACCOUNTS) as servers:
        await answered(servers, "app")


@pytest.mark.parametrize(("hub", "spoke"), WAYS[:2])
async def test_an_untrusted_hub_is_refused(tmp_path: Path, hub: str, spoke: str) -> None:
    """A hub whose certificate cannot be verified is not connected to; both logs say why."""
    authority = Authority(tmp_path)
    server = authority.server()
    listener = f'tls {{ cert_file: "{server.cert}", key_file: "{server.key}" }}'
    async with pair(tmp_path, hub, spoke, listener=listener) as servers:
        await servers.spoke.wait_line(r"tls: failed to verify certificate")
        await servers.hub.wait_line(r"lid:\d+ - TLS leafnode handshake error: remote error: tls: "
                                    "(bad certificate|unknown certificate authority)|TLS leafnode handshake error: EOF")


@pytest.mark.parametrize(("hub", "spoke"), WAYS[:2])
async def test_a_spoke_without_a_trusted_certificate_is_refused(tmp_path: Path, hub: str, spoke: str) -> None:
    """A hub that verifies certificates refuses a spoke without one, and a spoke whose certificate is not pinned."""
    authority = Authority(tmp_path)
    server, client = authority.server(), authority.client("client")
    tls = f'cert_file: "{server.cert}", key_file: "{server.key}", ca_file: "{authority.ca}", verify: true'
    trust = f'ca_file: "{authority.ca}"'
    async with pair(tmp_path, hub, spoke, listener=f"tls {{ {tls} }}", remote=f"tls {{ {trust} }}") as servers:
        await servers.hub.wait_line(r"TLS leafnode handshake error: tls: client didn't provide a certificate")
    own = f'cert_file: "{client.cert}", key_file: "{client.key}"'
    async with pair(tmp_path, hub, spoke, listener=f"tls {{ {tls}, pinned_certs: [{'a' * 64}] }}",
                    remote=f"tls {{ {trust}, {own} }}") as servers:
        await servers.hub.wait_line(r"TLS leafnode handshake error: certificate not pinned")


async def test_bytes_that_are_not_tls_do_no_harm(tmp_path: Path) -> None:
    """A peer that ignores TLS, and one that sends nothing, are disconnected; a spoke joins meanwhile."""
    authority = Authority(tmp_path)
    server = authority.server()
    listener = f'tls {{ cert_file: "{server.cert}", key_file: "{server.key}", timeout: 1 }}'
    async with pair(tmp_path, "jetblock", "nats-server", listener=listener,
                    remote=f'tls {{ ca_file: "{authority.ca}" }}') as servers:
        silent, _ = await asyncio.open_connection("127.0.0.1", servers.port)
        wrong, writer = await asyncio.open_connection("127.0.0.1", servers.port)
        writer.write(b'CONNECT {"user":"x"}\r\nLS+ a\r\n')
        assert (await wrong.readline()).startswith(b"INFO ")
        for reader in (wrong, silent):
            async with asyncio.timeout(30):
                await reader.read()
        writer.close()
        await answered(servers)
