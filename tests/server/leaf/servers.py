"""Two servers joined by a leaf node connection, each of them jetblock or the real nats-server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import NamedTuple

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import NoRespondersError

from tests.harness import BrokerProcess, NatsServerProcess, ServerProcess, free_port

__all__ = ["KINDS", "Pair", "crossed", "pair", "write"]

KINDS: dict[str, type[ServerProcess]] = {"jetblock": BrokerProcess, "nats-server": NatsServerProcess}

_PROBES = count()


class Pair(NamedTuple):
    """A hub, and a spoke that connects to it."""

    hub: ServerProcess
    spoke: ServerProcess
    port: int


def write(path: Path, text: str) -> str:
    """Write a file, and return its path as text."""
    path.write_text(text)
    return str(path)


@asynccontextmanager
async def pair(tmp_path: Path, hub: str, spoke: str, *, hub_settings: str = "", spoke_settings: str = "",
               listener: str = "", remote: str = "", login: str = "") -> AsyncIterator[Pair]:
    """Start a hub and then a spoke, both with JetStream, in the domains ``hub`` and ``bucket``.

    Args: ``listener`` and ``remote`` are added to these blocks, ``login`` to the remote's URL.
    """
    port = free_port()
    hub_file = write(tmp_path / "hub.conf", f"""
        server_name: hub
        jetstream {{ store_dir: "{tmp_path}/hub", domain: hub }}
        leafnodes {{ listen: "127.0.0.1:{port}", {listener} }}
        {hub_settings}""")
    spoke_file = write(tmp_path / "spoke.conf", f"""
        server_name: spoke
        jetstream {{ store_dir: "{tmp_path}/spoke", domain: bucket }}
        leafnodes {{ reconnect: 100ms, remotes [ {{ urls: ["nats-leaf://{login}127.0.0.1:{port}"], {remote} }} ] }}
        {spoke_settings}""")
    async with KINDS[hub]("-c", hub_file, "-D") as first, KINDS[spoke]("-c", spoke_file, "-D") as second:
        yield Pair(first, second, port)


async def crossed(receiver: Client, sender: Client) -> None:
    """Wait until the server of ``sender`` knows all interest of ``receiver``, because it knows a later one.

    A new connection sends existing interest in no order, so a second one follows the first.
    """
    async def answer(msg: Msg) -> None:
        await msg.respond(b"")

    for _ in range(2):
        subject = f"probe.{next(_PROBES)}"
        sub = await receiver.subscribe(subject, cb=answer)
        await receiver.flush()
        async with asyncio.timeout(30):
            while True:
                try:
                    await sender.request(subject, timeout=10)
                    break
                except NoRespondersError:
                    await asyncio.sleep(0.005)
        await sub.unsubscribe()


async def connect(server: ServerProcess, user: str = "") -> Client:
    """Connect a stock client, as ``user`` with the same password."""
    return await nats.connect(server.url, **({"user": user, "password": user} if user else {}))
