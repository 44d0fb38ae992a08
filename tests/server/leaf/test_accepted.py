"""The listener for leaf nodes: dialogues beside the real server, logins, permissions, duplicates, several spokes."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from nats.aio.msg import Msg
from nats.errors import NoRespondersError

from tests.harness import ServerProcess, free_port
from tests.keys import key, signed
from tests.server.leaf.raw import Raw, login
from tests.server.leaf.servers import KINDS, connect, crossed, pair, write

pytestmark = pytest.mark.shows("cluster.leaf_hub")

ACCOUNTS = """accounts {
    APP { users [ { user: app, password: app },
                  { user: leaf, password: leaf, permissions { publish { allow: ["out.>", "_INBOX.>"], deny: "out.no" }
                                                              subscribe { allow: ["in.>", "_INBOX.>"] } } } ] }
    SMALL { users [ { user: small, password: small } ], limits { max_leafnodes: 0 } } }"""


@asynccontextmanager
async def hub(tmp_path: Path, kind: str, listener: str = "",
              more: str = "") -> AsyncIterator[tuple[ServerProcess, int]]:
    port = free_port()
    path = write(tmp_path / f"{kind}.conf", f"""
        server_name: hub
        leafnodes {{ listen: "127.0.0.1:{port}", {listener} }}
        {more}""")
    async with KINDS[kind]("-c", path) as server:
        yield server, port


LEAF = {"user": "leaf", "pass": "leaf", "remote_account": "R"}
DIALOGUES: dict[str, bytes] = {
    "a client": login(lang="python", user="app", **{"pass": "app"}),
    "a gateway": login(gateway="g", **LEAF),
    "a wrong password": login(user="leaf", **{"pass": "x"}),
    "no login": login(),
    "no JSON": b"CONNECT x\r\n",
    "interest before CONNECT": b"LS+ a\r\n",
    "unknown verb": login(**LEAF) + b"FOO\r\n",
    "a client's verb": login(**LEAF) + b"SUB a 1\r\n",
    "wrong interest": login(**LEAF) + b"LS+ a b\r\n",
    "wrong sign": login(**LEAF) + b"LMSG out.a ! q 1\r\nx\r\n",
    "a forbidden literal": login(**LEAF) + b"LS+ foreign\r\n",
    "a forbidden publish": login(**LEAF) + b"LMSG other 1\r\nx\r\n",
    "a denied publish": login(**LEAF) + b"LMSG out.no 1\r\nx\r\n",
    "too large": login(**LEAF) + b"LMSG out.a 9999999\r\n",
    "a negative size": login(**LEAF) + b"LMSG out.a -1\r\nx\r\n",
    "a size that is no number": login(**LEAF) + b"LMSG out.a x\r\nx\r\n",
    "headers larger than the message": login(**LEAF) + b"HMSG out.a 10 5\r\nxxxxx\r\n",
    "a body that is too long": login(**LEAF) + b"LMSG out.a 1\r\nxyz\r\n",
    "an INFO that is no JSON": login(**LEAF) + b"INFO x\r\n",
    "deep JSON": b"CONNECT " + b"[" * 3000 + b"\r\n",
    "a cluster with a space": login(cluster="a b", **LEAF) + b"FOO\r\n",
    "a login of other types": b'CONNECT {"user":5}\r\n',
    "too many leafs": login(user="small", remote_account="R", **{"pass": "small"}),
}


async def test_dialogues_end_as_with_nats_server(tmp_path: Path) -> None:
    """Each wrong dialogue gets the real server's error text and ends as there."""
    seen = {}
    for kind in ("nats-server", "jetblock"):
        async with hub(tmp_path, kind, more=ACCOUNTS) as (_, port):
            for name, data in DIALOGUES.items():
                raw, info = await Raw.open(port)
                fields = json.loads(info.removeprefix(b"INFO "))
                assert fields["client_id"], kind
                assert fields["leafnode_urls"] == [f"127.0.0.1:{port}"]
                assert fields["nonce"]
                assert fields["info_on_connect"]
                raw.send(data)
                seen[kind, name] = await raw.rest()
                raw.close()
    assert {name: seen["jetblock", name] for name in DIALOGUES} == {
        name: seen["nats-server", name] for name in DIALOGUES}


async def test_fields_of_other_types_are_ignored(tmp_path: Path) -> None:
    """A spoke whose CONNECT has fields of the wrong types is served as if it had not sent them."""
    async with hub(tmp_path, "jetblock") as (server, port):
        raw, _ = await Raw.open(port)
        raw.send(login(deny_pub=5, remote_account=["R"], cluster={}) + b"PING\r\n")
        assert await raw.until(b"PONG")
        raw.close()
        assert not [line for line in server.stderr if "Traceback" in line]


@pytest.mark.parametrize("kind", KINDS)
async def test_second_info_and_permissions(tmp_path: Path, kind: str) -> None:
    """The second INFO names the account and the permissions; wildcards are filtered by them, message by message."""
    async with hub(tmp_path, kind, more=ACCOUNTS) as (server, port):
        raw, _ = await Raw.open(port)
        raw.send(login(**LEAF))
        info = json.loads((await raw.until(b"INFO")).removeprefix(b"INFO "))
        assert info["connect_info"]
        assert info["remote_account"] == "APP"
        assert info["import"] == {"allow": ["in.>", "_INBOX.>"]}
        assert info["export"] == {"allow": ["out.>", "_INBOX.>"], "deny": ["out.no"]}
        raw.send(b"LS+ in.*\r\nLS+ in.q q 2\r\nLS- unknown\r\nPING\r\n")
        await raw.until(b"PONG")
        client = await connect(server, "app")
        got = asyncio.Event()

        async def receive(msg: Msg) -> None:
            assert (msg.subject, msg.reply, msg.data) == ("out.a", "", b"x")
            got.set()

        await client.subscribe("out.a", cb=receive)
        assert await raw.until(b"LS+ out.a") == b"LS+ out.a\r\n"
        await client.publish("in.a", b"1", reply="r")
        await client.publish("in.b", b"2", headers={"K": "v"})
        assert await raw.until(b"LMSG") == b"LMSG in.a r 1\r\n"
        assert await raw.until(b"HMSG") == b"HMSG in.b 18 19\r\n"
        raw.send(b"LMSG out.a 1\r\nx\r\n")
        await asyncio.wait_for(got.wait(), 10)
        raw.close()
        await client.close()


async def test_nkey(tmp_path: Path) -> None:
    """A spoke logs in by a signature of the nonce."""
    pair_of_keys = key("U", "leaf")
    async with hub(tmp_path, "jetblock", f"authorization {{ nkey: {pair_of_keys.public}, account: APP }}",
                   ACCOUNTS) as (_, port):
        raw, info = await Raw.open(port)
        raw.send(signed(info, pair_of_keys, version="2.15.1", name="raw", nkey=pair_of_keys.public))
        assert json.loads((await raw.until(b"INFO")).removeprefix(b"INFO "))["remote_account"] == "APP"
        raw.close()


async def test_a_reload_closes_spokes_whose_user_changed(tmp_path: Path) -> None:
    """A removed, moved, or otherwise changed user has no connection any more; nats-server keeps such connections."""
    users = {name: f"{{ user: {name}, password: {name}, permissions {{ publish: {name} }} }}"
             for name in ("removed", "moved", "password", "permissions", "kept")}

    def accounts(here: Iterable[str], other: str) -> str:
        return f"accounts {{ A {{ users [ {', '.join(here)} ] }}, B {{ users [ {other} ] }} }}"

    async with hub(tmp_path, "jetblock", more=accounts(users.values(), "{ user: b, password: b }")) as (server, port):
        spokes = {}
        for name in users:
            spokes[name], _ = await Raw.open(port)
            spokes[name].send(login(user=name, remote_account=name, **{"pass": name}))
            assert b"remote_account" in await spokes[name].until(b"INFO")
        early, _ = await Raw.open(port)
        after = [users["kept"], users["password"].replace("password: password", "password: other"),
                 users["permissions"].replace("publish: permissions", "publish: more")]
        file = tmp_path / "jetblock.conf"
        first, _, _ = file.read_text().partition("accounts")
        file.write_text(first + accounts(after, users["moved"]))
        server.send_signal(signal.SIGHUP)
        for name in ("removed", "moved", "password", "permissions"):
            said = await spokes[name].rest()
            assert said == ([b"-ERR 'Authorization Violation'\r\n"] if name == "password" else []), name
        early.send(login(user="kept", remote_account="early", **{"pass": "kept"}) + b"PING\r\n")
        spokes["kept"].send(b"PING\r\n")
        for spoke in (early, spokes["kept"]):
            await spoke.until(b"PONG")
            spoke.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_an_older_connection_of_the_same_spoke_is_closed(tmp_path: Path, kind: str) -> None:
    """A spoke that connects again replaces its older connection, which it may not have noticed to be lost."""
    async with hub(tmp_path, kind) as (_, port):
        older, _ = await Raw.open(port)
        older.send(login(remote_account="R", cluster="c") + b"PING\r\n")
        await older.until(b"PONG")
        newer, _ = await Raw.open(port)
        newer.send(login(remote_account="R", cluster="c") + b"PING\r\n")
        await newer.until(b"PONG")
        assert await older.rest() == [b"-ERR 'Duplicate Remote LeafNode Connection'\r\n"]
        newer.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_min_version_and_timeout(tmp_path: Path, kind: str) -> None:
    """A spoke that is too old, and one that does not log in, are closed with an error."""
    async with hub(tmp_path, kind, "min_version: 2.12.0, authorization { timeout: 1, user: a, password: a }") as (
            _, port):
        silent, _ = await Raw.open(port)
        old, _ = await Raw.open(port)
        old.send(login(version="2.11.9", user="a", **{"pass": "a"}))
        assert await old.until(b"-ERR") == (
            b"-ERR 'connection rejected since minimum version required is \"2.12.0\"'\r\n")
        assert await silent.rest() == [b"-ERR 'Authentication Timeout'\r\n"]
        old.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_loop(tmp_path: Path, kind: str) -> None:
    """A spoke that sends the hub's own mark back gets an error about the loop, and is closed."""
    async with hub(tmp_path, kind) as (_, port):
        raw, _ = await Raw.open(port)
        raw.send(login(remote_account="R"))
        mark = await raw.until(b"LS+ $LDS.")
        raw.send(mark)
        assert await raw.rest() == [b'-ERR \'Loop detected for leafnode account="$G". '
                                    b"Delaying attempt to reconnect for 30s'\r\n"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("isolated", [False, True])
async def test_spokes_reach_each_other_through_the_hub(tmp_path: Path, kind: str, isolated: bool) -> None:
    """The hub informs a spoke about others, unless they are of its cluster or interest is isolated."""
    async with hub(tmp_path, kind, f"isolate_leafnode_interest: {str(isolated).lower()}") as (_, port):
        spokes = {}
        for name, cluster in (("one", "x"), ("two", "x"), ("three", "y")):
            raw, _ = await Raw.open(port)
            raw.send(login(name=name, cluster=cluster, remote_account="R") + b"PING\r\n")
            await raw.until(b"PONG")
            spokes[name] = raw
        spokes["one"].send(b"LS+ a\r\nLS+ a q 2\r\nPING\r\n")
        await spokes["one"].until(b"PONG")
        spokes["two"].send(b"PING\r\n")
        assert (await spokes["two"].until(b"PONG")).startswith(b"PONG")
        if isolated:
            spokes["three"].send(b"PING\r\n")
            assert await spokes["three"].line() != b"LS+ a\r\n"
        else:
            got = {await spokes["three"].until(b"LS+ a"), await spokes["three"].until(b"LS+ a")}
            assert got == {b"LS+ a\r\n", b"LS+ a q 2\r\n"}
            spokes["two"].send(b"LMSG a | q 1\r\nx\r\nPING\r\n")
            await spokes["two"].until(b"PONG")
            spokes["three"].send(b"LMSG a | q 1\r\ny\r\n")
            assert await spokes["one"].until(b"LMSG") == b"LMSG a | q 1\r\n"
            assert await spokes["one"].line() == b"y\r\n"
        for raw in spokes.values():
            raw.close()


@pytest.mark.parametrize("way", ["listener", "client"])
async def test_logins_of_a_real_spoke(tmp_path: Path, way: str) -> None:
    """A real server logs in as a user of the listener, or as one of the clients' users; the user has the account."""
    listener = "authorization { users [ { user: l, password: l, account: APP } ] }" if way == "listener" else ""
    async with pair(tmp_path, "jetblock", "nats-server", listener=listener, hub_settings=ACCOUNTS,
                    login="l:l@" if way == "listener" else "app:app@") as servers:
        here, there = await connect(servers.hub, "app"), await connect(servers.spoke)

        async def answer(msg: Msg) -> None:
            await msg.respond(b"here")

        await there.subscribe("svc", cb=answer)
        await crossed(there, here)
        assert (await here.request("svc", timeout=10)).data == b"here"
        other = await connect(servers.hub, "small")
        with pytest.raises(NoRespondersError):
            await other.request("svc", timeout=10)
        for client in (here, there, other):
            await client.close()


async def test_a_real_spoke_reconnects(tmp_path: Path) -> None:
    """After jetblock as the hub was killed, a real spoke joins again, and streams are reached again."""
    async with pair(tmp_path, "jetblock", "nats-server") as servers:
        here, there = await connect(servers.hub), await connect(servers.spoke)
        await crossed(here, there)
        await there.jetstream(domain="hub", timeout=10).add_stream(name="S", subjects=["s"])
        await here.close()
        await servers.hub.restart()
        here = await connect(servers.hub)
        await crossed(here, there)
        ack = await there.jetstream(timeout=10).publish("s", b"x")
        assert (ack.domain, ack.seq) == ("hub", 1)
        await here.close()
        await there.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_a_spoke_knows_the_inbox_before_it_gets_a_request(tmp_path: Path, kind: str) -> None:
    """A request that is sent as soon as the spoke's responder is known gets its reply, also while the spoke is still
    being informed about many other subscriptions."""
    async with hub(tmp_path, kind) as (server, port):
        client = await connect(server)
        for number in range(20_000):
            await client.subscribe(f"other.{number}")
        await client.flush()
        with pytest.raises(NoRespondersError):
            await client.request("probe", timeout=10)  # this subscribes to the inbox, after all others
        raw, _ = await Raw.open(port)
        raw.send(login() + b"LS+ probe\r\n")

        async def answer() -> bool:
            informed = False
            while line := await raw.line():
                informed = informed or line.startswith(b"LS+ _INBOX.")
                if line.startswith(b"LMSG probe "):
                    raw.send(b"LMSG %b 0\r\n\r\n" % line.split()[2])
                    return informed
            return False

        answering = asyncio.create_task(answer())
        while True:
            try:
                await client.request("probe", timeout=30)
                break
            except NoRespondersError:
                await asyncio.sleep(0)
        assert await answering
        raw.close()
        await client.close()


async def test_a_listener_on_all_addresses_offers_the_one_that_was_reached(tmp_path: Path) -> None:
    """A spoke that tries the offered URLs must not try 0.0.0.0, which is its own machine."""
    port = free_port()
    path = write(tmp_path / "hub.conf", f'server_name: hub\nleafnodes {{ port: {port} }}')
    async with KINDS["jetblock"]("-c", path):
        raw, first = await Raw.open(port)
        info = json.loads(first.removeprefix(b"INFO "))
        assert info["leafnode_urls"] == [info["ip"]] == [f"127.0.0.1:{port}"]
        raw.close()
