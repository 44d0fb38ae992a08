"""``jetblock archive``: streams of a real nats-server become mirrors in a store, which any broker then serves."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client

from tests.harness import BrokerProcess, NatsServerProcess
from tests.real.s3 import S3Server
from tests.upstreams.test_upstreams import USERS, equal, has, info, make, until

pytestmark = pytest.mark.shows("operation.archive")


@asynccontextmanager
async def origin(tmp_path: Path) -> AsyncIterator[tuple[NatsServerProcess, Client]]:
    """A nats-server with streams of its own; ``archive`` may only copy them and list their names, ``copier`` not even
    list them."""
    file = tmp_path / "origin.conf"
    copier = '{ user: copier, password: secret, permissions { publish: "$JS.API.STREAM.INFO.*" } }'
    users = (USERS.replace('publish: [', 'publish: ["$JS.API.STREAM.NAMES", ')
             .replace("{ user: publisher,", f"{copier}, {{ user: publisher,"))
    file.write_text(f'server_name: prod\njetstream {{ store_dir: "{tmp_path}/origin" }}\n{users}\n')
    async with NatsServerProcess("-c", str(file)) as server:
        client = await nats.connect(server.url, user="publisher", password="p")
        for name in ("ORDERS", "EVENTS_EU", "EVENTS_US"):
            await make(client, name, subjects=[f"{name}.>"])
            for number in range(50):
                await client.jetstream().publish(f"{name}.{number % 3}", b"%d" % number, headers={"N": str(number)})
        yield server, client
        await client.close()


async def run(server: NatsServerProcess, store: str, *arguments: str, user: str = "archive",
              environ: Mapping[str, str] | None = None) -> asyncio.subprocess.Process:
    url = server.url.replace("nats://", f"nats://{user}:secret@")
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "broker", "archive", url, "--store", store, *arguments, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE, env={**os.environ, "JETBLOCK_RESERVE": "256kb", **(environ or {})})


async def ended(process: asyncio.subprocess.Process) -> tuple[int | None, str, str]:
    async with asyncio.timeout(90):
        out, errors = await process.communicate()
    return process.returncode, out.decode(), errors.decode()


async def report(server: NatsServerProcess, store: str, *arguments: str,
                 environ: Mapping[str, str] | None = None) -> tuple[int | None, dict[str, Any]]:
    """Run to the end; return the status, and the streams of the JSON report by name."""
    status, out, errors = await ended(await run(server, store, "--once", "--json", *arguments, environ=environ))
    assert out, errors
    return status, {one["stream"]: one for one in json.loads(out)["streams"]}


async def test_once_and_again_on_s3(tmp_path: Path, minio: S3Server) -> None:
    """Streams that match are archived with their sequences and times; the next run adds what is new."""
    store = minio.new_url()
    async with origin(tmp_path) as (server, there):
        await there.jetstream().delete_msg("ORDERS", 50)
        status, streams = await report(server, store, "ORDERS", "EVENTS_*", environ=minio.env)
        assert status == 0
        assert {name: (one["messages"], one["error"]) for name, one in streams.items()} == {
            "ORDERS": (49, ""), "EVENTS_EU": (50, ""), "EVENTS_US": (50, "")}
        await make(there, "EVENTS_ASIA", subjects=["EVENTS_ASIA.>"])
        await there.jetstream().publish("EVENTS_ASIA.1", b"new")
        await there.jetstream().publish("ORDERS.1", b"new")
        status, streams = await report(server, store, "ORDERS", "EVENTS_*", environ=minio.env)
        assert status == 0
        assert {name: one["messages"] for name, one in streams.items()} == {
            "ORDERS": 50, "EVENTS_EU": 50, "EVENTS_US": 50, "EVENTS_ASIA": 1}
        async with BrokerProcess("--store", store, environ=minio.env) as broker:
            here = await nats.connect(broker.url)
            for name in streams:
                await equal(there, name, here, name)
            await here.close()


async def test_as_long_as_it_runs(tmp_path: Path) -> None:
    """New messages and new streams are archived, through kills of both sides; SIGTERM ends the run cleanly."""
    store = f"file://{tmp_path}/archive"
    async with origin(tmp_path) as (server, there):
        process = await run(server, store, "*")
        await there.jetstream().publish("ORDERS.1", b"while it runs")
        assert process.stderr is not None
        await asyncio.wait_for(process.stderr.readuntil(b"3 streams, messages, "), 60)
        process.send_signal(signal.SIGKILL)
        await ended(process)
        process = await run(server, store, "*")
        await server.restart()
        await make(there, "LATER", subjects=["LATER"])
        await there.jetstream().publish("LATER", b"1")
        assert process.stderr is not None
        async with asyncio.timeout(90):
            while not (await process.stderr.readline()).startswith(b"4 streams, messages"):
                pass
        process.send_signal(signal.SIGTERM)
        status, out, errors = await ended(process)
        assert status == 0, errors
        assert "LATER" in out
        async with BrokerProcess("--store", store) as broker:
            here = await nats.connect(broker.url)
            for name in ("ORDERS", "EVENTS_EU", "EVENTS_US", "LATER"):
                await equal(there, name, here, name)
            await here.close()


async def test_refusals(tmp_path: Path) -> None:
    """A work queue, a foreign stream of the same name, a missing stream and a wrong password: each has its reason."""
    store = f"file://{tmp_path}/archive"
    async with origin(tmp_path) as (server, there):
        async with BrokerProcess("--store", store) as broker:
            here = await nats.connect(broker.url)
            await make(here, "ORDERS", subjects=["own"])
            status, out, errors = await ended(await run(server, store, "ORDERS", "--once"))
            assert (status, out) == (2, "")
            assert "a broker runs on this store: stop it" in errors
            await here.close()
        status, streams = await report(server, store, "ORDERS", "EVENTS_EU", "MISSING")
        assert status == 1
        assert "no archive of it" in streams["ORDERS"]["error"]
        assert "stream not found" in streams["MISSING"]["error"]
        assert (streams["EVENTS_EU"]["messages"], streams["EVENTS_EU"]["error"]) == (50, "")
        status, streams = await report(server, store, "NOTHING_*")
        assert (status, streams) == (1, {})
        status, out, errors = await asyncio.wait_for(
            ended(await run(server, store, "EVENTS_*", "--once", user="copier")), 25)
        assert (status, out) == (2, "")
        assert "the user may not publish to $JS.API.STREAM.NAMES" in errors
        status, out, errors = await ended(await run(server, f"file://{tmp_path}/new", "ORDERS", "--nkey", "/no/file"))
        assert (status, out) == (2, "")
        assert "/no/file: cannot be read" in errors
        for refused in (("--upstream", "a.b"), ("--store", "memory://"), ("--store", "a/folder")):
            status, out, errors = await ended(await run(server, f"file://{tmp_path}/new", "ORDERS", *refused))
            assert (status, out) == (2, "")
            assert refused[1] in errors
        assert not (tmp_path / "new").exists()
        await until(lambda: has(there, "ORDERS", 50))
        assert (await info(there, "ORDERS"))["state"]["consumer_count"] == 0
