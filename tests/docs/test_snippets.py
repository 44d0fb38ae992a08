"""The snippets of the site's pages, typed by a reader who has a fresh checkout.

Pages that name a store or server of the reader's own are read with a stand-in: a store with the stream ORDERS.
"""

from __future__ import annotations

import json
from pathlib import Path

import nats

from tests.docs.pages import DOCS, ROOT, page, publish_orders, reader, store_orders
from tests.docs.snippets import TYPED, snippets
from tests.harness import BrokerProcess, NatsServerProcess, free_port
from tests.jetstream.archives import take_snapshot
from tests.real.s3 import S3Server


def test_every_page_is_run() -> None:
    """Each page with snippets has a test here or in test_snippets_spark.py."""
    here = "".join(path.read_text() for path in Path(__file__).parent.glob("test_snippets*.py"))
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


async def test_references(tmp_path: Path) -> None:
    """The functions can be defined; tests/runtime/test_references.py asks a bucket."""
    async with reader(tmp_path / "checkout") as someone:
        await someone.read("REFERENCES.md", page("REFERENCES.md"))


async def test_the_first_page(tmp_path: Path) -> None:
    """`make run` starts a broker."""
    async with reader(tmp_path / "checkout") as someone:
        await someone.read("index.md", page("index.md"))


async def test_embedding_and_testing(tmp_path: Path) -> None:
    """The embedded brokers work, and so do the tests that use them."""
    async with reader(tmp_path / "checkout", {"-m pytest -q": "-m pytest -q -p no:cacheprovider"}) as someone:
        await someone.read("EMBEDDING.md", page("EMBEDDING.md"))


async def test_deployment(tmp_path: Path) -> None:
    """Each command that needs neither root nor a cloud works."""
    async with reader(tmp_path / "checkout") as someone:
        await someone.read("DEPLOYMENT.md", page("DEPLOYMENT.md"))


async def test_kubernetes(tmp_path: Path) -> None:
    """Its commands need a cluster, and say so."""
    async with reader(tmp_path / "checkout") as someone:
        await someone.read("KUBERNETES.md", page("KUBERNETES.md"))


async def test_the_console(tmp_path: Path) -> None:
    """`make run` says how to start the console, as the page does."""
    async with reader(tmp_path / "checkout") as someone:
        await someone.read("console.md", page("console.md"))


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
