"""The snippets of the site's pages, typed by a reader who has a fresh checkout.

Pages that name a store or server of the reader's own are read with a stand-in: a store with the stream ORDERS.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import nats
import pytest

from tests.docs.snippets import TYPED, Reader, folder_of_a_checkout, snippets
from tests.harness import BrokerProcess, NatsServerProcess, ServerProcess, free_port
from tests.jetstream.archives import take_snapshot
from tests.real.parts import java
from tests.real.s3 import MISSING, S3Server

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def page(name: str) -> str:
    return (DOCS / name).read_text()


def reader(folder: Path, replaced: Mapping[str, str] | None = None, stand_ins: Mapping[str, str] | None = None,
           environ: Mapping[str, str] | None = None) -> Reader:
    """Return a reader in a checkout with an activated environment; free ports replace a broker's usual ones."""
    port, http_port = str(free_port()), str(free_port())
    path = f"{folder / '.venv' / 'bin'}:{os.environ['PATH']}"
    variables = {"PATH": path, "PORT": port, "HTTP_PORT": http_port, "JETBLOCK_RESERVE": "256kb", **(environ or {})}
    ports = {"127.0.0.1:4222": f"127.0.0.1:{port}", "127.0.0.1:8222": f"127.0.0.1:{http_port}"}
    return Reader(folder_of_a_checkout(folder, ROOT), variables, ports | dict(replaced or {}), stand_ins)


async def publish_orders(server: ServerProcess) -> None:
    """Create the stream ORDERS with a durable consumer and six messages: orders.eu.0, orders.eu.1, orders.eu.0, …"""
    client = await nats.connect(server.url)
    js = client.jetstream()
    await js.add_stream(name="ORDERS", subjects=["orders.>"])
    for number in range(6):
        await js.publish(f"orders.eu.{number % 2}", b"order %d" % number)
    await js.pull_subscribe("orders.>", durable="billing")
    await client.close()


async def store_orders(store: str, environ: Mapping[str, str] | None = None) -> None:
    """Make a store with the stream ORDERS, on which no broker runs."""
    async with BrokerProcess("--store", store, environ=environ) as broker:
        await publish_orders(broker)
        assert await broker.stop() == 0


def test_every_page_is_run() -> None:
    """Each page with snippets has a test below."""
    here = Path(__file__).read_text()
    with_snippets = {path.name for path in DOCS.glob("*.md")
                     if any(snippet.language in TYPED for snippet in snippets(path.read_text()))}
    assert {name for name in with_snippets if f'page("{name}")' not in here} == set()


async def test_the_readme(tmp_path: Path) -> None:
    """The first clients work, and so does each step of the tour but the one on Spark."""
    port = str(free_port())
    environ = {"PORT": port, "NATS_URL": f"nats://127.0.0.1:{port}"}
    async with reader(tmp_path / "checkout", {"127.0.0.1:4222": f"127.0.0.1:{port}"}, environ=environ) as someone:
        await someone.read("README.md", (ROOT / "README.md").read_text())


async def test_cost(tmp_path: Path) -> None:
    """The command computes the bill of a load."""
    async with reader(tmp_path / "checkout") as someone:
        await someone.read("COST.md", page("COST.md"))


async def test_the_first_page(tmp_path: Path) -> None:
    """`make run` starts a broker."""
    async with reader(tmp_path / "checkout") as someone:
        await someone.read("index.md", page("index.md"))


@pytest.mark.spark
@pytest.mark.timeout(900)
async def test_the_tutorial(tmp_path: Path, minio: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each command works and prints what the page shows, on a directory and on MinIO."""
    monkeypatch.setenv("JAVA_HOME", str(java()))
    store = minio.new_url()
    keys = " ".join(f"{name}={value}" for name, value in minio.env.items())
    replaced = {"AWS_ENDPOINT_URL=http://127.0.0.1:9000 AWS_REGION=us-east-1": "PAGE=TUTORIAL",
                "AWS_ACCESS_KEY_ID=jetblock AWS_SECRET_ACCESS_KEY=jetblock-secret": keys,
                "s3://jetblock/streams": store}
    broker = f"{keys} jetblock -a 127.0.0.1 -p $PORT -m $HTTP_PORT --store {store}"
    stand_ins = {"docker compose up --build --detach --wait": broker}
    async with reader(tmp_path / "checkout", replaced, stand_ins) as someone:
        await someone.read("TUTORIAL.md", page("TUTORIAL.md"))


async def test_embedding_and_testing(tmp_path: Path) -> None:
    """The embedded brokers work, and so do the tests that use them."""
    async with reader(tmp_path / "checkout", {"-m pytest -q": "-m pytest -q -p no:cacheprovider"}) as someone:
        await someone.read("EMBEDDING.md", page("EMBEDDING.md"))


async def test_deployment(tmp_path: Path) -> None:
    """Each command that needs neither root nor a cloud works."""
    async with reader(tmp_path / "checkout") as someone:
        await someone.read("DEPLOYMENT.md", page("DEPLOYMENT.md"))


async def test_inspecting(tmp_path: Path, minio: S3Server) -> None:
    """Each command inspects a store in a directory or a bucket, and the Python reads messages."""
    directory, bucket = f"file://{tmp_path}/store", minio.new_url()
    await store_orders(directory)
    await store_orders(bucket, minio.env)
    replaced = {"file:///var/lib/jetblock": directory, "s3://bucket/prefix": bucket}
    async with reader(tmp_path / "checkout", replaced, environ=minio.env) as someone:
        await someone.read("INSPECT.md", page("INSPECT.md"))


async def test_backup_and_repair(tmp_path: Path, minio: S3Server) -> None:
    """A store is copied from a directory to buckets and back, checked and repaired."""
    directory = f"file://{tmp_path}/store"
    await store_orders(directory)
    replaced = {"file:///var/lib/jetblock-new": f"file://{tmp_path}/restored", "file:///var/lib/jetblock": directory,
                "s3://backups/streams": minio.new_url(), "s3://bucket/streams": minio.new_url()}
    async with reader(tmp_path / "checkout", replaced, environ=minio.env) as someone:
        await someone.read("BACKUP.md", page("BACKUP.md"))


async def test_adoption(tmp_path: Path) -> None:
    """The staged messages join the stream."""
    store = f"file://{tmp_path}/store"
    await store_orders(store)
    async with reader(tmp_path / "checkout", {"file:///srv/streams": store}) as someone:
        await someone.read("ADOPTION.md", page("ADOPTION.md"))


async def test_migration(tmp_path: Path, minio: S3Server) -> None:
    """Streams move from a nats-server, its directory and a backup to a broker, a bucket and a directory."""
    async with NatsServerProcess("-js", "-sd", str(tmp_path / "stopped")) as server:
        await publish_orders(server)
        assert await server.stop() == 0
    async with (NatsServerProcess("-js", "-sd", str(tmp_path / "old")) as old,
                BrokerProcess("-js", "-sd", str(tmp_path / "new")) as new):
        await publish_orders(old)
        replaced = {"nats://old:4222": old.url, "nats://new:4222": new.url, "s3://bucket/streams": minio.new_url(),
                    "/var/lib/nats": str(tmp_path / "stopped"),
                    "file:///var/lib/jetblock": f"file://{tmp_path}/store"}
        async with reader(tmp_path / "checkout", replaced, environ=minio.env) as someone:
            client = await nats.connect(old.url)
            backup = await take_snapshot(client, "ORDERS")
            await client.close()
            folder = someone.folder / "backups" / "ORDERS"
            folder.mkdir(parents=True)
            (folder / "backup.json").write_text(json.dumps({"config": backup.config, "state": backup.state}))
            (folder / "stream.tar.s2").write_bytes(backup.archive)
            await someone.read("MIGRATION.md", page("MIGRATION.md"))


@pytest.mark.spark
@pytest.mark.timeout(900)
async def test_spark(tmp_path: Path, minio: S3Server) -> None:
    """Each query and job works, on MinIO; the jar is compiled and used."""
    if shutil.which("javac") is None:
        pytest.skip(f"{MISSING}javac, which compiles the jar")
    store = minio.new_url()
    await store_orders(store, minio.env)
    environ = {**minio.env, "JAVA_HOME": str(java()), "SPARK_LOCAL_IP": "127.0.0.1",
               "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
    async with reader(tmp_path / "checkout", {"s3://bucket/prefix": store}, environ=environ) as someone:
        await someone.read("SPARK.md", page("SPARK.md"))
