"""Remotes that a reload adds, removes, disables and changes; and those with ``hub: true``."""

from __future__ import annotations

import asyncio
import random
import signal
from pathlib import Path
from typing import Any, cast

import pytest
from nats.aio.msg import Msg
from nats.errors import NoRespondersError

from broker.config.leafnodes import LeafRemote, LeafUrl
from broker.server.leaf.solicited import Remote
from tests.harness import BrokerProcess, NatsServerProcess, ServerProcess, free_port
from tests.server.leaf.servers import KINDS, connect, crossed, write
from tests.server.leaf.test_differential import made
from tests.server.leaf.test_solicited import serve

pytestmark = pytest.mark.shows("cluster.leaf_spoke")


async def leafs(server: ServerProcess, number: int) -> list[str]:
    """Wait until the server has so many leaf connections, and return the names of the other sides."""
    async with asyncio.timeout(60):
        while True:
            rows = (await server.monitor("/leafz")).get("leafs") or []
            if len(rows) == number:
                return sorted(row["name"] for row in rows)
            await asyncio.sleep(0.01)


async def test_the_next_url_is_tried_at_once(tmp_path: Path) -> None:
    """If one server of a cluster cannot be reached, the next one is tried without a pause; the interval is a minute.

    The next one offers no addresses, so its first INFO has no list of them.
    """
    port = free_port()
    dead = ", ".join(f'"nats-leaf://127.0.0.1:{free_port()}"' for _ in range(3))
    path = write(tmp_path / "spoke.conf", f"""
        leafnodes {{ reconnect: 60s, remotes [
            {{ urls: [{dead}, "nats-leaf://127.0.0.1:{port}"], no_randomize: true }} ] }}""")
    hub = NatsServerProcess("-c", write(tmp_path / "hub.conf", f"""
        server_name: hub
        leafnodes {{ listen: "127.0.0.1:{port}", no_advertise: true }}"""))
    async with hub, BrokerProcess("-c", path, "-D") as spoke:
        async with asyncio.timeout(30):
            assert await leafs(spoke, 1) == ["hub"]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_reload_changes_remotes(tmp_path: Path, kind: str) -> None:
    """A remote that a reload adds connects; one that it disables or removes is closed; another one stays as it is."""
    ports = free_port(), free_port()
    hubs = [NatsServerProcess("-c", write(tmp_path / f"{port}.conf", f"""
        server_name: "hub-{number}"
        leafnodes {{ listen: "127.0.0.1:{port}" }}""")) for number, port in enumerate(ports)]
    spoke_file = tmp_path / "spoke.conf"

    def settings(*remotes: str) -> None:
        write(spoke_file, f"""
            server_name: spoke
            accounts {{ APP {{ users [ {{ user: app, password: app }} ] }}
                        B {{ users [ {{ user: b, password: b }} ] }} }}
            leafnodes {{ reconnect: 100ms, remotes [ {", ".join(remotes)} ] }}""")

    def remote(number: int, more: str = "") -> str:
        return f'{{ urls: ["nats-leaf://127.0.0.1:{ports[number]}"], account: {("APP", "B")[number]} {more} }}'

    settings(remote(0))
    async with hubs[0], hubs[1], KINDS[kind]("-c", str(spoke_file), "-D") as spoke:
        async def reload(*remotes: str) -> None:
            settings(*remotes)
            spoke.send_signal(signal.SIGHUP)

        assert await leafs(spoke, 1) == ["hub-0"]
        first = (await hubs[0].monitor("/leafz"))["leafs"][0]["id"]
        await reload(remote(0), remote(1))
        assert await leafs(spoke, 2) == ["hub-0", "hub-1"]
        here, there = await connect(hubs[1]), await connect(spoke, "b")
        await serve(there, "svc")
        await crossed(there, here)
        assert (await here.request("svc", timeout=10)).data == b"here"
        await reload(remote(0), remote(1, ", disabled: true"))
        assert await leafs(spoke, 1) == ["hub-0"]
        assert await leafs(hubs[1], 0) == []
        await spoke.wait_line("Reloaded: LeafNode Remote urls=.*, account=\"B\" Disabled value is: true")
        await reload(remote(0), remote(1))
        assert await leafs(spoke, 2) == ["hub-0", "hub-1"]
        await reload(remote(0))
        assert await leafs(spoke, 1) == ["hub-0"]
        await spoke.wait_line("Reloaded: LeafNode Remote urls=.*, account=\"B\" removed")
        assert (await hubs[0].monitor("/leafz"))["leafs"][0]["id"] == first
        await here.close()
        await there.close()


async def test_a_reload_brings_the_first_remote_and_changes_it(tmp_path: Path) -> None:
    """A broker without leaf nodes gets a remote; other denied subjects apply to it at once."""
    port = free_port()
    hub_file = write(tmp_path / "hub.conf", f'server_name: hub\nleafnodes {{ listen: "127.0.0.1:{port}" }}')
    spoke_file = tmp_path / "spoke.conf"
    write(spoke_file, "server_name: spoke")
    async with NatsServerProcess("-c", hub_file) as hub, BrokerProcess("-c", str(spoke_file)) as spoke:
        here, there = await connect(hub), await connect(spoke)
        await serve(here, "one")
        await serve(here, "two")
        for denied, open_ in (("one", "two"), ("two", "one")):
            write(spoke_file, f"""
                server_name: spoke
                leafnodes {{ remotes [ {{ url: "nats-leaf://127.0.0.1:{port}", deny_exports: [{denied}] }} ] }}""")
            spoke.send_signal(signal.SIGHUP)
            async with asyncio.timeout(60):
                while True:
                    try:
                        await there.request(open_, timeout=10)
                        break
                    except NoRespondersError:
                        await asyncio.sleep(0.01)
            await crossed(here, there)
            with pytest.raises((NoRespondersError, TimeoutError)):
                await there.request(denied, timeout=0.3)
        await here.close()
        await there.close()


@pytest.mark.parametrize(("solicitor", "listener"), [
    ("nats-server", "nats-server"), ("jetblock", "nats-server"), ("nats-server", "jetblock"), ("jetblock", "jetblock")])
async def test_the_side_that_connects_may_be_the_hub(tmp_path: Path, solicitor: str, listener: str) -> None:
    """With ``hub: true``, clients of the servers that listen reach each other, and the pages show the roles.

    What ``deny_imports`` names does not come in.
    """
    ports = free_port(), free_port()
    listeners = [KINDS[listener]("-c", write(tmp_path / f"{number}.conf", f"""
        server_name: "spoke-{number}"
        leafnodes {{ listen: "127.0.0.1:{port}" }}""")) for number, port in enumerate(ports)]
    remotes = ", ".join(f'{{ url: "nats-leaf://127.0.0.1:{port}", hub: true, deny_imports: "secret.*" }}'
                        for port in ports)
    hub_file = write(tmp_path / "hub.conf", f"server_name: hub\nleafnodes {{ remotes [ {remotes} ] }}")
    async with listeners[0], listeners[1], KINDS[solicitor]("-c", hub_file) as hub:
        assert await leafs(hub, 2) == ["spoke-0", "spoke-1"]
        assert [row["is_spoke"] for row in (await hub.monitor("/leafz"))["leafs"]] == [False, False]
        assert [row["is_spoke"] for row in (await listeners[0].monitor("/leafz"))["leafs"]] == [True]
        one, two = await connect(listeners[0]), await connect(listeners[1])
        await serve(two, "svc")
        await crossed(two, one)
        assert (await one.request("svc", timeout=10)).data == b"here"
        own = await connect(hub)
        await serve(own, "secret.1")
        await serve(own, "open.1")
        await crossed(own, one)
        assert (await one.request("open.1", timeout=10)).data == b"here"
        with pytest.raises((NoRespondersError, asyncio.TimeoutError)):
            await one.request("secret.1", timeout=0.3)
        for client in (one, two, own):
            await client.close()


async def test_permissions_of_a_side_that_connects_as_the_hub(tmp_path: Path) -> None:
    """The side that listens drops what its user may not receive or send, and the connection stays."""
    for listener in KINDS:
        assert await _passed(made(tmp_path / listener), listener) == {
            ("hub", "in.1"), ("spoke", "ok.1"), ("hub", "in.end"), ("spoke", "ok.end")}


async def _passed(directory: Path, listener: str) -> set[tuple[str, str]]:
    """Publish on both sides, and return where what was received."""
    port = free_port()
    spoke_file = write(directory / "spoke.conf", f"""
        server_name: spoke
        accounts {{ A {{ users: [ {{ user: a, password: a }}, {{ user: leaf, password: leaf, permissions {{
            publish: ["ok.>", "probe.>", "_INBOX.>"], subscribe: ["in.>", "probe.>", "_INBOX.>"] }} }} ] }} }}
        leafnodes {{ listen: "127.0.0.1:{port}" }}""")
    hub_file = write(directory / "hub.conf", f"""
        server_name: hub
        leafnodes {{ reconnect: 100ms, remotes [ {{ url: "leaf://leaf:leaf@127.0.0.1:{port}", hub: true }} ] }}""")
    received: set[tuple[str, str]] = set()
    async with KINDS[listener]("-c", spoke_file) as spoke, KINDS["jetblock"]("-c", hub_file) as hub:
        clients = {"spoke": await connect(spoke, "a"), "hub": await connect(hub)}
        ended = {name: asyncio.Event() for name in clients}
        for name, client in clients.items():
            async def note(msg: Msg, name: str = name) -> None:
                if msg.data.decode() != name:
                    received.add((name, msg.subject))
                    if msg.subject.endswith(".end"):
                        ended[name].set()

            for subject in ("in.*", "ok.*", "no.*", "in.1", "ok.1", "no.1"):
                await client.subscribe(subject, cb=note)
        await crossed(clients["spoke"], clients["hub"])
        await crossed(clients["hub"], clients["spoke"])
        for name, client in clients.items():
            for subject in ("in.1", "ok.1", "no.1", "in.end", "ok.end"):
                await client.publish(subject, name.encode())
        async with asyncio.timeout(30):
            await asyncio.gather(*(event.wait() for event in ended.values()))
        for client in clients.values():
            await client.close()
    return received


class _Server:
    """As much of a server as the choice of a remote's URLs needs."""

    rng = random.Random(1)


def test_a_hub_cannot_offer_addresses_without_end() -> None:
    """A hub offers 50 000 addresses, in changing lists and some of them twice: 100 are kept, beside the configured."""
    configured = LeafUrl("10.0.0.1", 7422, "u", "p", "nats-leaf")
    remote = Remote(LeafRemote(urls=(configured,)), cast(Any, _Server()), cast(Any, None))
    for first in (0, 50_000):
        offered = (f"host-{number // 2}:7422" for number in range(first, first + 50_000))
        remote.discover({"leafnode_urls": ["10.0.0.1:7422", *offered]})
        assert len(set(remote.urls)) == len(remote.urls) == 101
        assert remote.urls[-1] == configured
    remote.discover({"leafnode_urls": ["other:1", 5, "", "x:99999", None]})
    assert {(url.host, url.port, url.user) for url in remote.urls} == {("10.0.0.1", 7422, "u"), ("other", 1, "u")}
