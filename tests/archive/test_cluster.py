"""A mirror on MinIO of a stream with three replicas, while servers, jetblock and MinIO fail in turn.

JETBLOCK_KILL_ROUNDS sets the number of faults. The figures are printed at the end.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path

import nats
import pytest
from nats.aio.client import Client
from nats.errors import Error
from nats.js.errors import APIError

from tests.harness import BrokerProcess, NatsServerProcess
from tests.jetstream.archives import Failed, api
from tests.real.s3 import S3Server, own_minio
from tests.server.leaf.test_cluster import cluster
from tests.upstreams.test_upstreams import info, make, until

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600), pytest.mark.shows("copy.upstream")]

ROUNDS = int(os.environ.get("JETBLOCK_KILL_ROUNDS", "60"))
PUBLISHERS = 20
SECONDS = 4.0
"""Time between two faults."""

STALL_SECONDS = 8.0


class Publishers:
    """Clients of all servers that publish until they are stopped."""

    def __init__(self, servers: list[NatsServerProcess]) -> None:
        self._urls = [server.url for server in servers]
        self._stopped = asyncio.Event()
        self.acked = self.failed = 0
        self._tasks = [asyncio.create_task(self._publish(number)) for number in range(PUBLISHERS)]

    async def stop(self) -> None:
        self._stopped.set()
        await asyncio.gather(*self._tasks)

    async def _publish(self, number: int) -> None:
        client = await nats.connect(self._urls[number % 3:] + self._urls[:number % 3], max_reconnect_attempts=-1,
                                    reconnect_time_wait=0.2, error_cb=_ignore)
        jetstream, count = client.jetstream(timeout=3), 0
        while not self._stopped.is_set():
            count += 1
            headers = {"Nats-Msg-Id": f"{number}.{count}", "N": str(count)} if count % 3 else None
            try:
                await jetstream.publish(f"orders.{number}", b"%d.%d" % (number, count), headers=headers)
                self.acked += 1
            except (Error, APIError, OSError):
                self.failed += 1
                await asyncio.sleep(0.1)
        await client.close()


async def test_a_mirror_through_faults(tmp_path: Path) -> None:
    """At the end, the mirror is equal to its origin by sequence, subject, headers and times."""
    (tmp_path / "minio").mkdir()
    with own_minio(tmp_path / "minio") as minio:
        await _run(tmp_path, minio)


async def _run(tmp_path: Path, minio: S3Server) -> None:
    assert minio.process is not None
    async with cluster(tmp_path, jetstream=True) as (servers, _):
        urls = ", ".join(f'"{server.url}"' for server in servers)
        config = tmp_path / "archive.conf"
        config.write_text(f"server_name: archive, jetstream: enabled, jetblock {{ upstreams {{ prod {{ urls: [{urls}] "
                          f"}} }} }}")
        there = await nats.connect([server.url for server in servers], max_reconnect_attempts=-1, error_cb=_ignore)
        await until(lambda: _made(there))
        async with BrokerProcess("-c", str(config), "--store", minio.new_url(), environ=minio.env) as broker:
            here = await nats.connect(broker.url, max_reconnect_attempts=-1, error_cb=_ignore)
            await make(here, "ORDERS", mirror={"name": "ORDERS", "external": {"api": "$JS.prod.API"}})
            publishers = Publishers(servers)
            faults = _faults(servers)
            for _ in range(ROUNDS):
                fault = next(faults)
                if fault is None:
                    await broker.restart()
                elif fault == "minio":
                    minio.process.send_signal(signal.SIGSTOP)
                    await asyncio.sleep(STALL_SECONDS)
                    minio.process.send_signal(signal.SIGCONT)
                else:
                    await servers[int(fault)].restart()
                await asyncio.sleep(SECONDS)
            await publishers.stop()
            begun = time.monotonic()
            wanted = await _last_seq(there)

            async def caught_up() -> bool:
                return bool((await info(here, "ORDERS"))["state"]["last_seq"] >= wanted)

            await until(caught_up, 120)
            behind = time.monotonic() - begun
            origin, mirror = [await _messages(client) for client in (there, here)]
            print(f"faults {ROUNDS}; acknowledged {publishers.acked}; unanswered {publishers.failed}; at the origin "
                  f"{len(origin)}; caught up {behind:.1f} s after the last publish")
            assert len(origin) >= publishers.acked
            assert mirror == origin
            await here.close()
        await there.close()


def _faults(servers: list[NatsServerProcess]) -> Iterator[str | None]:
    """Yield the number of a server to kill, None for the broker, or ``minio``."""
    return cycle(["0", None, "1", "minio", "2", None])


async def _made(client: Client) -> bool:
    """Make the stream with three replicas, once the cluster has a leader; return whether it was made."""
    try:
        await api(client, "STREAM.CREATE.ORDERS", {"name": "ORDERS", "subjects": ["orders.*"], "num_replicas": 3},
                  seconds=5)
    except (Error, Failed):
        return False
    return True


async def _last_seq(client: Client) -> int:
    return int((await info(client, "ORDERS"))["state"]["last_seq"])


async def _messages(client: Client) -> list[object]:
    """Return the messages of the stream, by an ordered consumer."""
    state = (await info(client, "ORDERS"))["state"]
    subscription = await client.jetstream(timeout=30).subscribe("orders.*", stream="ORDERS", ordered_consumer=True)
    found: list[object] = []
    for _ in range(state["messages"]):
        msg = await subscription.next_msg(timeout=60)
        found.append((msg.metadata.sequence.stream, msg.subject, msg.data, msg.headers, msg.metadata.timestamp))
    return found


async def _ignore(error: Exception) -> None:
    """Do nothing: connections to a killed server fail."""
