"""Brokers that share a store, each as a leaf node of a cluster of three real nats-servers, and the faults of each part.

    clients ── nats-server × 3 ── proxy ── broker × 3 ── proxy ── S3

Each broker reaches all servers, through proxies of its own. A directory has no proxy.
"""

from __future__ import annotations

import asyncio
import random
import re
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from tests.harness import BrokerProcess, NatsServerProcess, ServerProcess, free_port
from tests.real.proxy import TcpProxy
from tests.stores import Store

__all__ = ["Network", "network"]

OWN = {"a": "[0, 3, 6]", "b": "[1, 4, 7]", "c": "[2, 5]"}
SHARDS = 8
T = 4.0
"""The lease in seconds, longer than in other tests: everything runs on one machine."""
FAULT_SECONDS = 2 * T


def _server_config(name: str, leaf_port: int, route: int, routes: list[int]) -> str:
    urls = ", ".join(f'"nats://127.0.0.1:{port}"' for port in routes if port != route)
    return f"""
        server_name: {name}
        cluster {{ name: prod, listen: "127.0.0.1:{route}", routes: [ {urls} ] }}
        leafnodes {{ listen: "127.0.0.1:{leaf_port}" }}
        accounts {{
          APP {{ users: [ {{ user: app, password: a }} ] }}
          SYS {{ users: [ {{ user: sys, password: s }} ] }} }}
        system_account: SYS
        no_auth_user: app"""


def _broker_config(name: str, ports: list[int], store: Store) -> str:
    remotes = "\n".join(
        f'{{ urls: [ {", ".join(f"""{chr(34)}nats-leaf://{user}@127.0.0.1:{port}{chr(34)}""" for port in ports)} ], '
        f'account: {account} }}' for user, account in (("app:a", "APP"), ("sys:s", "SYS")))
    return f"""
        server_name: {name}
        jetstream {{ domain: jb }}
        jetblock {{ store: "{store.url}", shards: {SHARDS}, own: {OWN[name]}, lease: {T:g}s, put_timeout: {T / 2:g}s }}
        accounts {{ APP {{ jetstream: enabled, users: [ {{ user: app, password: a }} ] }}, SYS {{}} }}
        system_account: SYS
        leafnodes {{ reconnect: 100ms, remotes [ {remotes} ] }}"""


class Network:
    """The parts; ``log`` has the lines of all brokers."""

    def __init__(self, servers: list[NatsServerProcess], brokers: dict[str, BrokerProcess],
                 ways: dict[str, list[TcpProxy]], stores: dict[str, TcpProxy]) -> None:
        self.servers = servers
        self.brokers = brokers
        self.faults: dict[str, int] = {}
        self._ways = ways
        self._stores = stores
        self._log: list[str] = []

    @property
    def urls(self) -> list[str]:
        return [server.url for server in self.servers]

    @property
    def log(self) -> list[str]:
        return [*self._log, *(line for broker in self.brokers.values() for line in broker.stderr)]

    async def break_something(self, rng: random.Random) -> None:
        """Let one part fail for a while, and repair it."""
        name = rng.choice(list(self.brokers))
        broker, server = self.brokers[name], rng.choice(self.servers)
        kinds = {"kill a broker": 3, "pause a broker": 3, "cut a broker off": 2, "stall a broker's connections": 2,
                 "kill a server": 2, "pause a server": 2, **({"stall a broker's store": 3} if self._stores else {})}
        [kind] = rng.choices(list(kinds), list(kinds.values()))
        self.faults[kind] = self.faults.get(kind, 0) + 1
        seconds = rng.uniform(0.2, FAULT_SECONDS)
        match kind:
            case "kill a broker":
                await broker.kill()
                self._log += broker.stderr
                await asyncio.sleep(rng.choice((0, 0, seconds)))
                await broker.start()
            case "kill a server":
                await server.kill()
                await asyncio.sleep(rng.choice((0, seconds)))
                await server.start()
            case "pause a broker" | "pause a server":
                process: ServerProcess = broker if kind == "pause a broker" else server
                process.send_signal(signal.SIGSTOP)
                await asyncio.sleep(seconds)
                process.send_signal(signal.SIGCONT)
            case _:
                proxies = [self._stores[name]] if "store" in kind else self._ways[name]
                for proxy in proxies:
                    (proxy.refuse if "cut" in kind else proxy.stall)()
                await asyncio.sleep(seconds)
                for proxy in proxies:
                    proxy.resume()

    def check_log(self) -> None:
        """No broker has logged an error that faults of other parts do not explain."""
        found = [line for line in self.log if re.search(
            r"Traceback|cannot be kept|cannot leave|cannot come|has it since|is not in shard", line)]
        assert not found, "".join(found[:20])


@asynccontextmanager
async def network(folder: Path, store: Store) -> AsyncIterator[Network]:
    """Start three nats-servers and three brokers on ``store``."""
    leaf_ports, routes = [free_port() for _ in range(3)], [free_port() for _ in range(3)]
    async with AsyncExitStack() as stack:
        servers, brokers = [], {}
        ways: dict[str, list[TcpProxy]] = {}
        stores: dict[str, TcpProxy] = {}
        for number in range(3):
            path = folder / f"n{number}.conf"
            path.write_text(_server_config(f"n{number}", leaf_ports[number], routes[number], routes))
            servers.append(NatsServerProcess("-c", str(path), monitor=False))
        for at, name in enumerate(OWN):
            ways[name] = [await stack.enter_async_context(TcpProxy("127.0.0.1", port))
                          for port in leaf_ports[at:] + leaf_ports[:at]]
            environ = {key: value for key, value in store.environ.items() if key != "JETBLOCK_SERVER_NAME"}
            if endpoint := environ.get("AWS_ENDPOINT_URL"):
                stores[name] = await stack.enter_async_context(TcpProxy.to(endpoint))
                environ["AWS_ENDPOINT_URL"] = stores[name].endpoint
            path = folder / f"{name}.conf"
            path.write_text(_broker_config(name, [way.port for way in ways[name]], store))
            brokers[name] = BrokerProcess("-c", str(path), environ=environ)
        for process in (*servers, *brokers.values()):
            stack.push_async_callback(process.close)
            stack.push_async_callback(process.kill)  # a broker that stops cleanly would wait for the others
        await asyncio.gather(*(server.start() for server in servers))
        for broker in brokers.values():
            await broker.start()
        yield Network(servers, brokers, ways, stores)
