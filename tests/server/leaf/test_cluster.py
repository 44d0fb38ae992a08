"""A cluster of three real servers with jetblock on MinIO as their leaf, while the servers are killed in turn.

JETBLOCK_KILL_ROUNDS sets the number of kills, and NATS_CLI the path of the ``nats`` command, which then takes part. The
figures are printed at the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import nats
import pytest
from nats.aio.client import Client
from nats.errors import Error
from nats.js.api import ConsumerConfig
from nats.js.errors import APIError

from tests.harness import BrokerProcess, NatsServerProcess, free_port
from tests.real.s3 import S3Server
from tests.server.leaf.servers import connect, write

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800), pytest.mark.shows("cluster.leaf_domain")]

ROUNDS = int(os.environ.get("JETBLOCK_KILL_ROUNDS", "60"))
SECONDS = 10
"""Time between two kills."""

NAMES = ("prod1", "prod2", "prod3")


@asynccontextmanager
async def cluster(directory: Path, *,
                  jetstream: bool = False) -> AsyncIterator[tuple[list[NatsServerProcess], list[str]]]:
    """Run three real servers as a cluster. Yields: the servers, and the URLs of their ports for leaf nodes."""
    routes = {name: free_port() for name in NAMES}
    leafs = {name: free_port() for name in NAMES}
    others = ", ".join(f"nats://127.0.0.1:{port}" for port in routes.values())
    async with AsyncExitStack() as stack:
        servers = []
        for name in NAMES:
            storing = f'jetstream {{ store_dir: "{directory}/{name}" }}' if jetstream else ""
            path = write(directory / f"{name}.conf", f"""
                server_name: {name}
                {storing}
                cluster {{ name: prod, host: 127.0.0.1, port: {routes[name]}, routes: [{others}] }}
                leafnodes {{ host: 127.0.0.1, port: {leafs[name]} }}""")
            servers.append(await stack.enter_async_context(NatsServerProcess("-c", path)))
        yield servers, [f"nats-leaf://127.0.0.1:{port}" for port in leafs.values()]


class Run:
    """The clients of one run, and what they saw."""

    def __init__(self, servers: list[NatsServerProcess], directory: Path) -> None:
        self.servers = servers
        self.acked: set[bytes] = set()
        self.received: set[bytes] = set()
        self.keys: dict[str, str] = {}
        self.failed = 0
        self.pauses: list[float] = []
        self.commands = 0
        self.stopped = asyncio.Event()
        self._cli = os.environ.get("NATS_CLI") or shutil.which("nats") or ""
        self._home = {"HOME": str(directory), "XDG_CONFIG_HOME": str(directory)}

    async def publish(self, server: NatsServerProcess, name: str) -> None:
        """Publish, from one server, until the run stops. A publish without an answer is repeated as another one."""
        client = await nats.connect(server.url, max_reconnect_attempts=-1, reconnect_time_wait=0.2, error_cb=_ignore)
        jetstream = client.jetstream(timeout=5)
        number = 0
        while not self.stopped.is_set():
            number += 1
            body = f"{name}.{number}".encode()
            try:
                ack = await jetstream.publish(f"orders.{name}", body)
            except (Error, APIError, OSError):
                self.failed += 1
                await asyncio.sleep(0.05)
            else:
                assert ack.domain == "bucket"
                self.acked.add(body)
                await asyncio.sleep(0.002)
        await client.close()

    async def consume(self, server: NatsServerProcess) -> None:
        """Fetch and ack, from one server, until the run has stopped and everything was received."""
        client = await nats.connect(server.url, max_reconnect_attempts=-1, reconnect_time_wait=0.2, error_cb=_ignore)
        subscription = await client.jetstream(domain="bucket", timeout=5).pull_subscribe_bind(
            durable="worker", stream="ORDERS")
        while not self.stopped.is_set() or not self.acked <= self.received:
            with contextlib.suppress(Error, APIError, OSError):
                for msg in await subscription.fetch(100, timeout=2):
                    self.received.add(msg.data)
                    await msg.ack()
        await client.close()

    async def kill_in_turn(self) -> None:
        """Kill one server after the other, and measure when the streams answer again on another one."""
        for number in range(ROUNDS):
            victim, other = self.servers[number % 3], self.servers[(number + 1) % 3]
            client = await connect(other)
            await victim.kill()
            begun = time.monotonic()
            while True:
                try:
                    await client.request("$JS.bucket.API.INFO", timeout=0.25)
                    break
                except (Error, OSError):
                    await asyncio.sleep(0.02)
            self.pauses.append(time.monotonic() - begun)
            await client.close()
            await victim.start()
            await asyncio.sleep(SECONDS - min(time.monotonic() - begun, SECONDS))

    async def command(self, *words: str, server: NatsServerProcess) -> str:
        """Run the ``nats`` command; return its output. Raises: AssertionError if it failed."""
        process = await asyncio.create_subprocess_exec(
            self._cli, "--server", server.url, "--js-domain", "bucket", "--timeout", "5s", *words,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, env={**os.environ, **self._home})
        output, _ = await process.communicate()
        assert process.returncode == 0, (words, output)
        return output.decode()

    async def use_cli(self) -> None:
        """Put keys by one server and get them by another one, with the ``nats`` command, until the run stops."""
        if not self._cli:
            return
        while not self.stopped.is_set():
            number = self.commands
            servers = [server for server in self.servers if server.running and server.ports]
            key = f"k{number % 20}"
            try:
                await self.command("kv", "put", "BUCKET", key, str(number), server=servers[number % len(servers)])
                self.keys[key] = str(number)
                got = await self.command("kv", "get", "BUCKET", key, "--raw",
                                         server=servers[(number + 1) % len(servers)])
                assert got.strip() == str(number)
            except AssertionError:
                self.failed += 1  # the server was being killed, or its cluster was without the leaf
            self.commands += 1
            await asyncio.sleep(0.5)


async def test_nothing_is_lost_while_servers_are_killed(tmp_path: Path, minio: S3Server) -> None:
    """Clients of every server publish, consume and use a bucket, while the servers are killed one after the other.

    Every acknowledged message is stored once and received, every key has the last value that was confirmed, and the
    streams answer again within two seconds after each kill.
    """
    async with cluster(tmp_path) as (servers, urls):
        path = write(tmp_path / "leaf.conf", f"""
            server_name: bucket-1
            jetstream {{ domain: bucket }}
            leafnodes {{ remotes [ {{ urls: [{", ".join(f'"{url}"' for url in urls)}] }} ] }}""")
        async with BrokerProcess("-c", path, "--store", minio.new_url(), environ=minio.env) as leaf:
            own = await connect(leaf)
            jetstream = own.jetstream(timeout=30)
            await jetstream.add_stream(name="ORDERS", subjects=["orders.*"])
            await jetstream.add_consumer("ORDERS", ConsumerConfig(durable_name="worker", ack_wait=30))
            bucket = await jetstream.create_key_value(bucket="BUCKET")
            run = Run(servers, tmp_path)
            publishers = [asyncio.create_task(run.publish(server, name))
                          for server, name in zip(servers, NAMES, strict=True)]
            consumers = [asyncio.create_task(run.consume(server)) for server in servers[:2]]
            command = asyncio.create_task(run.use_cli())
            try:
                await run.kill_in_turn()
                run.stopped.set()
                async with asyncio.timeout(120):
                    await asyncio.gather(*publishers, *consumers, command)
            finally:
                for task in (*publishers, *consumers, command):
                    task.cancel()
            stored = await stored_bodies(own)
            pauses = sorted(run.pauses)
            print(f"kills {len(pauses)}; acknowledged {len(run.acked)}; unanswered {run.failed}; "
                  f"stored {len(stored)}; commands {run.commands}; seconds until the streams answered: median "
                  f"{pauses[len(pauses) // 2]:.2f}, largest {pauses[-1]:.2f}")
            assert run.acked - set(stored) == set()
            assert len(set(stored)) == len(stored)
            for key, value in run.keys.items():
                assert int((await bucket.get(key)).value or b"0") >= int(value)
            assert pauses[-1] < 2, pauses
            await own.close()


async def stored_bodies(client: Client) -> list[bytes]:
    """Return the bodies of all messages of the stream, by an ordered consumer."""
    jetstream = client.jetstream(timeout=30)
    count = (await jetstream.stream_info("ORDERS")).state.messages
    subscription = await jetstream.subscribe("orders.*", ordered_consumer=True)
    return [(await subscription.next_msg(timeout=30)).data for _ in range(count)]


async def _ignore(error: Exception) -> None:
    """Do nothing: connections to a killed server fail."""
