"""Brokers that own shards of one store, as leaf nodes of a real nats-server, for tests."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import nats
from nats.aio.client import Client
from nats.js import JetStreamContext

from tests.adversity.clients import until
from tests.harness import BrokerProcess, NatsServerProcess, free_port
from tests.stores import Store

__all__ = ["QUIET", "Cluster", "Publisher", "T", "add_all", "cluster", "messages"]

T = 3.0
"""The lease in these tests, in seconds."""
QUIET = os.getloadavg()[0] <= (os.cpu_count() or 1) and "PYTEST_XDIST_WORKER" not in os.environ
"""True on a machine with nothing else to do: bounds of time hold."""


def hub_config(port: int, advertised: int) -> str:
    """Return the configuration of a nats-server for clients and brokers; it advertises the port ``advertised``."""
    return f"""
        server_name: hub
        leafnodes {{ listen: "127.0.0.1:{port}", advertise: "127.0.0.1:{advertised}" }}
        accounts {{
          APP {{ users: [ {{ user: app, password: a }} ] }}
          SYS {{ users: [ {{ user: sys, password: s }} ] }} }}
        system_account: SYS
        no_auth_user: app"""


def broker_config(name: str, own: str, port: int, store: Store, shards: int) -> str:
    """Return the configuration of a broker with its own shards of so many: numbers, or "auto"."""
    shown = own if own == "auto" else f"[{own}]"
    return f"""
        server_name: {name}
        jetstream {{ domain: jb }}
        jetblock {{ store: "{store.url}", shards: {shards}, own: {shown}, lease: {T:g}s, put_timeout: 1s }}
        accounts {{ APP {{ jetstream: enabled, users: [ {{ user: app, password: a }} ] }}, SYS {{}} }}
        system_account: SYS
        leafnodes {{ reconnect: 100ms, remotes [
          {{ url: "nats-leaf://app:a@127.0.0.1:{port}", account: APP }}
          {{ url: "nats-leaf://sys:s@127.0.0.1:{port}", account: SYS }} ] }}"""


class Cluster:
    """A nats-server and brokers behind it."""

    def __init__(self, hub: NatsServerProcess, brokers: dict[str, BrokerProcess], client: Client, system: Client,
                 ) -> None:
        self.hub = hub
        self.brokers = brokers
        self.client = client
        self.system = system
        self.js: JetStreamContext = client.jetstream(domain="jb", timeout=2)

    async def shards(self) -> dict[str, list[int]]:
        """Return the shards of each broker, as the brokers say."""
        running = sum(broker.running for broker in self.brokers.values())
        async with asyncio.timeout(60):
            while True:
                found = {}
                inbox = self.system.new_inbox()
                answers = await self.system.subscribe(inbox)
                await self.system.publish("$JETBLOCK.SHARDS", reply=inbox)
                with suppress(TimeoutError, ValueError):  # a broker is connecting; nobody is connected
                    while len(found) < running:
                        line = json.loads((await answers.next_msg(2)).data)
                        found[line["name"]] = sorted(map(int, line["shards"]))
                    return found
                await answers.unsubscribe()

    async def step_down(self, shard: int, to: str = "", seconds: float = 20.0) -> dict[str, Any]:
        """Let the owner of a shard hand it over; return its answer."""
        line = json.loads((await self.system.request("$JETBLOCK.SHARDS", b"", timeout=10)).data)
        body = json.dumps({"placement": {"preferred": to}}).encode() if to else b""
        subject = f"$JETBLOCK.{line['store']}.SHARD.{shard}.STEPDOWN"
        answer: dict[str, Any] = json.loads((await self.system.request(subject, body, timeout=seconds)).data)
        return answer

    async def publishes(self, name: str) -> bool:
        """Return whether a stream takes a message now."""
        try:
            return (await self.js.publish(name.lower(), b"more")).stream == name
        except (nats.errors.Error, TimeoutError):
            return False

    async def until_published(self, name: str) -> float:
        """Return the seconds until a stream takes a message."""
        began = time.monotonic()
        await until(lambda: self.publishes(name), 60)
        return time.monotonic() - began


@asynccontextmanager
async def cluster(tmp_path: Path, store: Store, *, shards: int = 3, leaf_port: int = 0,
                  through: Mapping[str, int] | None = None, **owns: str) -> AsyncIterator[Cluster]:
    """Start a nats-server, and a broker for each of ``owns``, which says its shards.

    Args: ``leaf_port``: the nats-server's port for brokers; ``through``: the ports that some of these use instead.
    """
    config = tmp_path / "hub.conf"
    brokers: dict[str, BrokerProcess] = {}
    leaf_port = leaf_port or free_port()
    config.write_text(hub_config(leaf_port, next(iter((through or {}).values()), leaf_port)))
    async with NatsServerProcess("-c", str(config), monitor=False) as hub:
        try:
            for name, own in owns.items():
                path = tmp_path / f"{name}.conf"
                path.write_text(broker_config(name, own, (through or {}).get(name, leaf_port), store, shards))
                brokers[name] = BrokerProcess("-c", str(path), environ={
                    key: value for key, value in store.environ.items() if key != "JETBLOCK_SERVER_NAME"})
            await asyncio.gather(*(broker.start() for broker in brokers.values()))
            client = await nats.connect(hub.url, max_reconnect_attempts=-1)
            system = await nats.connect(hub.url, user="sys", password="s", max_reconnect_attempts=-1)
            try:
                yield Cluster(hub, brokers, client, system)
            finally:
                await client.close()
                await system.close()
        finally:
            await asyncio.gather(*(broker.close() for broker in brokers.values()))


async def add_all(one: Cluster, shards: int = 3) -> None:
    """Create a stream in each shard, S0 in shard 0 and so on, with a message each."""
    for shard in range(shards):
        async def is_added(shard: int = shard) -> bool:
            try:
                await one.js.add_stream(name=f"S{shard}", subjects=[f"s{shard}"], allow_direct=True,
                                        metadata={"jetblock.shard": str(shard)})
            except (nats.errors.Error, TimeoutError):
                return False  # the connections of the brokers are being made
            return True

        await until(is_added, 60)
        await one.until_published(f"S{shard}")


async def messages(one: Cluster) -> list[int]:
    return [info.state.messages for info in await one.js.streams_info()]


class Publisher:
    """Publishes to a stream, and tries each message until it is acknowledged."""

    def __init__(self, one: Cluster, name: str) -> None:
        self.acked = 0
        self.longest = 0.0
        """The longest time in seconds from the first try of a message until it was acknowledged."""
        self._js = one.client.jetstream(domain="jb", timeout=0.5)
        self._name = name
        self._task = asyncio.create_task(self._publish())

    async def stop(self) -> int:
        """Stop after the message that is being tried; return the number of messages."""
        self._stopping = True
        await self._task
        return self.acked

    async def _publish(self) -> None:
        self._stopping = False
        while not self._stopping:
            began, number = time.monotonic(), self.acked
            while True:
                try:
                    await self._js.publish(self._name.lower(), b"%d" % number, stream=self._name,
                                           headers={"Nats-Msg-Id": f"{self._name}-{number}"})
                    break
                except (nats.errors.Error, TimeoutError):
                    await asyncio.sleep(0.02)
            self.acked += 1
            self.longest = max(self.longest, time.monotonic() - began)
            await asyncio.sleep(0.005)
