"""The connection that jetblock opens to a hub: logins, TLS, permissions, loops, errors and reconnecting."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import NoRespondersError

from broker.base.nkeys import ACCOUNT, USER, encode_base64url, seed_text
from tests import tokens
from tests.harness import BrokerProcess, NatsServerProcess, free_port
from tests.keys import key, secret
from tests.server.leaf.servers import connect, crossed, pair, write

pytestmark = pytest.mark.shows("cluster.leaf_spoke")

ACCOUNTS = "accounts { APP { users [ { user: app, password: app } ] }, OTHER { users [ { user: o, password: o } ] } }"


async def serve(client: Client, subject: str) -> None:
    async def answer(msg: Msg) -> None:
        await msg.respond(b"here")
    await client.subscribe(subject, cb=answer)


@pytest.mark.parametrize("way", ["user", "token", "nkey"])
async def test_logins(tmp_path: Path, way: str) -> None:
    """A remote logs in by user and password, by token, or by a signature; the hub's user decides the account."""
    remote, login, authorization = "account: APP", "", ""
    if way == "user":
        login, authorization = "leaf:pa%3Ass@", 'authorization { user: leaf, password: "pa:ss", account: APP }'
    elif way == "token":
        login = "app:app@"
    else:
        remote += f', nkey: {seed_text(USER, secret(USER, "leaf"))}'
        authorization = f'authorization {{ nkey: {key(USER, "leaf").public}, account: APP }}'
    async with pair(tmp_path, "nats-server", "jetblock", hub_settings=ACCOUNTS, spoke_settings=ACCOUNTS,
                    listener=authorization, remote=remote, login=login) as servers:
        here, there, other = (await connect(servers.hub, "app"), await connect(servers.spoke, "app"),
                              await connect(servers.spoke, "o"))
        await serve(there, "svc")
        await serve(other, "other")
        await crossed(there, here)
        assert (await here.request("svc", timeout=10)).data == b"here"
        with pytest.raises(NoRespondersError):
            await here.request("other", timeout=10)
        for client in (here, there, other):
            await client.close()


async def test_credentials(tmp_path: Path) -> None:
    """A remote logs in with a file of credentials, whose token the hub's account signed."""
    creds = write(tmp_path / "leaf.creds", f"""-----BEGIN NATS USER JWT-----
{tokens.user("leaf")}
------END NATS USER JWT------

-----BEGIN USER NKEY SEED-----
{seed_text(USER, secret(USER, "leaf"))}
------END USER NKEY SEED------
""")
    app, system = key(ACCOUNT, "A").public, key(ACCOUNT, "SYS").public
    hub_settings = f"""
        operator: {tokens.operator()}
        system_account: {system}
        resolver: MEMORY
        resolver_preload {{ {app}: {tokens.account("A")}, {system}: {tokens.account("SYS")} }}"""
    port = free_port()
    hub = write(tmp_path / "hub.conf", f'leafnodes {{ listen: "127.0.0.1:{port}" }}\n{hub_settings}')
    spoke = write(tmp_path / "spoke.conf", f"""
        server_name: spoke
        leafnodes {{ remotes [ {{ url: "nats-leaf://127.0.0.1:{port}", credentials: "{creds}" }} ] }}""")
    async with NatsServerProcess("-c", hub) as real, BrokerProcess("-c", spoke) as ours:
        [leaf] = (await real.monitor("/leafz"))["leafs"]
        assert (leaf["name"], leaf["account"]) == ("spoke", app)
        assert ours.running


async def test_denied_subjects(tmp_path: Path) -> None:
    """``deny_imports`` and ``deny_exports`` keep subjects, and parts of a wildcard, from crossing."""
    async with pair(tmp_path, "nats-server", "jetblock",
                    remote='deny_imports: ["in.secret", "only.>"], deny_exports: ["out.secret"]') as servers:
        here, there = await connect(servers.hub), await connect(servers.spoke)
        for subject in ("in.>", "in.secret", "only.this"):
            await serve(there, subject)
        for subject in ("out.>", "out.secret"):
            await serve(here, subject)
        await crossed(there, here)
        await crossed(here, there)
        assert (await here.request("in.open", timeout=10)).data == b"here"
        assert (await there.request("out.open", timeout=10)).data == b"here"
        for client, subject in ((here, "in.secret"), (here, "only.this"), (there, "out.secret")):
            with pytest.raises((NoRespondersError, asyncio.TimeoutError)):
                await client.request(subject, timeout=0.3)
        assert servers.spoke.running
        await here.close()
        await there.close()


async def test_permissions_of_the_hub_are_kept(tmp_path: Path) -> None:
    """The spoke neither sends nor wants what the second INFO forbids, so the hub never closes the connection."""
    accounts = """accounts { APP { users [ { user: app, password: app },
        { user: leaf, password: leaf, permissions { publish: ["open.>", "_INBOX.>", "probe.>"],
                                                    subscribe: ["open.>", "_INBOX.>", "probe.>"] } } ] } }"""
    async with pair(tmp_path, "nats-server", "jetblock", hub_settings=accounts, spoke_settings=ACCOUNTS,
                    remote="account: APP", login="leaf:leaf@") as servers:
        here, there = await connect(servers.hub, "app"), await connect(servers.spoke, "app")
        for client in (here, there):
            for side in ("open", "closed"):
                await serve(client, f"{side}.{'hub' if client is here else 'spoke'}")
        await crossed(there, here)
        await crossed(here, there)
        assert (await here.request("open.spoke", timeout=10)).data == b"here"
        assert (await there.request("open.hub", timeout=10)).data == b"here"
        for client, subject in ((here, "closed.spoke"), (there, "closed.hub")):
            with pytest.raises((NoRespondersError, asyncio.TimeoutError)):
                await client.request(subject, timeout=0.3)
        assert not [line for line in servers.spoke.stderr if "Leafnode connection closed" in line]
        assert not [line for line in servers.hub.stderr if "Violation" in line]
        await here.close()
        await there.close()


async def test_reconnects(tmp_path: Path) -> None:
    """After the hub was killed, the spoke reconnects and sends its interest again; stored messages can be read."""
    async with pair(tmp_path, "nats-server", "jetblock") as servers:
        there = await connect(servers.spoke)
        await there.jetstream().add_stream(name="S", subjects=["s"])
        for attempt in range(1, 4):
            await servers.hub.restart()
            here = await connect(servers.hub)
            await crossed(there, here)
            ack = await here.jetstream(timeout=10).publish("s", b"x")
            assert (ack.domain, ack.seq) == ("bucket", attempt)
            await here.close()
        assert any("Leafnode connection closed" in line and "Remote: hub" in line for line in servers.spoke.stderr)
        await there.close()


async def test_a_loop_is_detected(tmp_path: Path) -> None:
    """A spoke with two connections into one account of the hub finds its own interest, and closes one of them."""
    port = free_port()
    hub = write(tmp_path / "hub.conf", f'server_name: hub\nleafnodes {{ listen: "127.0.0.1:{port}" }}')
    spoke = write(tmp_path / "spoke.conf", f"""
        server_name: spoke
        accounts {{ A {{ users [ {{ user: a, password: a }} ] }} }}
        leafnodes {{ remotes [ {{ url: "nats-leaf://127.0.0.1:{port}", account: A }},
                               {{ url: "nats-leaf://localhost:{port}", account: A }} ] }}""")
    async with NatsServerProcess("-c", hub) as _, BrokerProcess("-c", spoke) as ours:
        await ours.wait_line(r"Loop detected for leafnode account=\"A\"|Duplicate Remote LeafNode Connection")


@asynccontextmanager
async def scripted(info: dict[str, object] | bytes,
                   then: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]] | None = None,
                   ) -> AsyncIterator[int]:
    """Run a server that sends ``info``, and goes on with ``then``; yield its port."""
    async def serve_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = info if isinstance(info, bytes) else b"INFO " + json.dumps(info).encode() + b"\r\n"
        writer.write(line)
        try:
            if then is not None:
                await then(reader, writer)
            await reader.read()
        except ConnectionError:
            pass
        writer.close()

    server = await asyncio.start_server(serve_one, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


def remote_config(tmp_path: Path, port: int, more: str = "") -> str:
    return write(tmp_path / "spoke.conf", f"""
        server_name: spoke
        leafnodes {{ reconnect: 50ms, remotes [ {{ url: "nats-leaf://127.0.0.1:{port}", {more} }} ] }}""")


LEAF_PORT = {"client_id": 1, "leafnode_urls": ["127.0.0.1:1"], "headers": True, "proto": 1, "server_name": "scripted"}


@pytest.mark.parametrize(("info", "why"), [
    ({"client_id": 1}, "attempted to connect to wrong port"),
    ({"leafnode_urls": []}, "attempted to connect to wrong port"),
    (b"HTTP/1.1 400 Bad Request\r\n", "expected INFO, got something else"),
    (b"INFO [1]\r\n", "expected INFO, got something else"),
    (b"-ERR 'Go away'\r\n", "-ERR 'Go away'"),
    (b"", "i/o timeout"),
])
async def test_wrong_servers_are_reported(tmp_path: Path, info: dict[str, object] | bytes, why: str) -> None:
    """A server that is no leaf node listener is reported in the log, and tried again; clients are served meanwhile."""
    async with scripted(info) as port, BrokerProcess("-D", "-c", remote_config(
            tmp_path, port, "first_info_timeout: 200ms")) as ours:
        await ours.wait_line(rf"\[ERR\] Error trying to connect .*\(attempt 1\): .*{why}")
        await ours.wait_line(r"\[DBG\] Error trying to connect .*\(attempt 2\)")
        client = await connect(ours)
        await client.close()


async def test_a_silent_hub_is_stale(tmp_path: Path) -> None:
    """A hub that promises a second INFO and does not send it is disconnected after two seconds."""
    got: asyncio.Queue[bytes] = asyncio.Queue()

    async def then(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        got.put_nowait(await reader.readline())
        got.put_nowait(await reader.readline())

    async with scripted({**LEAF_PORT, "info_on_connect": True}, then) as port, BrokerProcess(
            "-c", remote_config(tmp_path, port)):
        assert (await asyncio.wait_for(got.get(), 10)).startswith(b"CONNECT {")
        assert await asyncio.wait_for(got.get(), 10) == b"-ERR 'Stale Leaf Node Connection - Closing'\r\n"


async def test_connect_fields(tmp_path: Path) -> None:
    """CONNECT has the fields that nats-server sends, and the hub's nonce signed."""
    got: asyncio.Queue[bytes] = asyncio.Queue()

    async def then(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        got.put_nowait(await reader.readline())

    seed = seed_text(USER, secret(USER, "leaf"))
    async with scripted({**LEAF_PORT, "nonce": "abc"}, then) as port, BrokerProcess(
            "-c", remote_config(tmp_path, port, f"nkey: {seed}, request_isolation: true, deny_imports: [x]")):
        fields = json.loads((await asyncio.wait_for(got.get(), 10)).removeprefix(b"CONNECT "))
    server_id = fields.pop("server_id")
    assert len(server_id) == 56
    assert fields == {
        "version": "2.15.1", "nkey": key(USER, "leaf").public,
        "sig": encode_base64url(key(USER, "leaf").sign(b"abc")), "name": "spoke", "cluster": "spoke", "headers": True,
        "deny_pub": ["x"], "isolate": True, "compress_mode": "off", "remote_account": "$G", "protocol": 3}


async def test_an_old_hub_without_second_info(tmp_path: Path) -> None:
    """Interest follows CONNECT at once if the hub sends no second INFO; a hub without headers gets none."""
    got: asyncio.Queue[bytes] = asyncio.Queue()

    async def then(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert (await reader.readline()).startswith(b"CONNECT")
        assert (await reader.readline()).startswith(b"LS+ ")
        writer.write(b"LS+ foo\r\n")
        while not (line := await reader.readline()).startswith(b"LMSG foo "):
            if line.startswith(b"PING"):
                writer.write(b"PONG\r\n")
        got.put_nowait(line + await reader.readline())

    info = {name: value for name, value in LEAF_PORT.items() if name != "headers"}
    async with scripted(info, then) as port, BrokerProcess("-c", remote_config(tmp_path, port)) as ours:
        client = await connect(ours)
        while got.empty():
            await client.publish("foo", b"body", headers={"A": "b"})
            await client.flush()
        assert got.get_nowait() == b"LMSG foo 4\r\nbody\r\n"
        await client.close()


async def test_a_hub_may_require_a_newer_version(tmp_path: Path) -> None:
    """The hub's refusal of this version is logged."""
    async with pair(tmp_path, "nats-server", "jetblock", listener="min_version: 2.99.0") as servers:
        await servers.spoke.wait_line("Leafnode Error 'connection rejected since minimum version required is")


async def test_an_account_of_an_operator(tmp_path: Path) -> None:
    """In operator mode, a remote's account is loaded by its key before the hub is connected."""
    account = key(ACCOUNT, "A").public
    async with pair(tmp_path, "nats-server", "jetblock", remote=f"account: {account}",
                    spoke_settings=tokens.configuration({"A": tokens.account("A")})) as servers:
        [leaf] = (await servers.spoke.monitor("/leafz"))["leafs"]
        assert (leaf["account"], leaf["name"]) == (account, "hub")


async def test_a_standby_does_not_connect(tmp_path: Path) -> None:
    """A standby joins the hub after it has taken over; when it is ready, the hub knows its interest."""
    port = free_port()
    hub = write(tmp_path / "hub.conf", f'leafnodes {{ listen: "127.0.0.1:{port}" }}')

    def spoke(name: str) -> BrokerProcess:
        return BrokerProcess("-c", write(tmp_path / f"{name}.conf", f"""
            server_name: {name}
            jetstream {{ store_dir: "{tmp_path}/store", domain: bucket }}
            leafnodes {{ remotes [ {{ url: "nats-leaf://127.0.0.1:{port}" }} ] }}"""))

    async with NatsServerProcess("-c", hub) as real, spoke("one") as first, spoke_waiting(spoke("two")) as second:
        client = await connect(real)
        await client.jetstream(domain="bucket", timeout=10).add_stream(name="S", subjects=["s"])
        assert [leaf["name"] for leaf in (await real.monitor("/leafz"))["leafs"]] == ["one"]
        await first.kill()
        await second.wait_ready()
        there = await connect(second)
        await crossed(there, client)
        await there.close()
        ack = await client.jetstream(timeout=10).publish("s", b"x")
        assert (ack.domain, ack.seq) == ("bucket", 1)
        assert [leaf["name"] for leaf in (await real.monitor("/leafz"))["leafs"]] == ["two"]
        await client.close()


@asynccontextmanager
async def spoke_waiting(standby: BrokerProcess) -> AsyncIterator[BrokerProcess]:
    """Start a broker, and yield it when it waits as a standby."""
    await standby.start(ready=False)
    try:
        await standby.wait_line("standby|another broker")
        yield standby
    finally:
        await standby.close()


async def test_a_hub_that_changes_permissions_again_and_again(tmp_path: Path) -> None:
    """Clients are served while a hub sends many INFOs; at the end the last one applies to interest and to messages."""
    done = asyncio.Event()
    told: dict[bytes, bool] = {}
    got: list[bytes] = []

    async def then(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await started.wait()
        for i in range(201):
            allowed = {"allow": ["last.>"] if i == 200 else ["b.>" if i % 2 else "a.>"]}
            writer.write(b"INFO " + json.dumps({**LEAF_PORT, "import": allowed, "export": allowed}).encode() + b"\r\n")
            if not i:
                writer.write(b"".join(b"LS+ %s.%d.*\r\n" % (name, j)
                                      for name in (b"a", b"b", b"last") for j in range(800)))
        while line := await reader.readline():
            verb, subject, *_ = [*line.split(), b"", b""]
            if verb in (b"LS+", b"LS-"):
                told[subject] = verb == b"LS+"
            elif verb == b"LMSG":
                got.append(subject)
            elif verb == b"PING":
                writer.write(b"PONG\r\n")
            if {one for one, known in told.items() if known} & {b"a.x", b"b.x", b"last.x"} == {b"last.x"}:
                done.set()

    started = asyncio.Event()
    async with scripted(LEAF_PORT, then) as port, BrokerProcess("-c", remote_config(tmp_path, port)) as ours:
        client = await connect(ours)
        for name in ("a.x", "b.x", "last.x"):
            await serve(client, name)
        await client.flush()
        started.set()
        async with asyncio.timeout(60):
            while not done.is_set() or b"last.7.x" not in got:
                for name in ("a.7.x", "b.7.x", "last.7.x"):
                    await client.publish(name, b"")
                await client.flush(30)
        for name in ("a.8.x", "b.8.x", "last.8.x"):
            await client.publish(name, b"")
        async with asyncio.timeout(60):
            while b"last.8.x" not in got:
                await client.flush(30)
        assert not {b"a.8.x", b"b.8.x"} & set(got)
        await client.close()
