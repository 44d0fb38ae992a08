"""The snippets of the site's pages, typed by a reader who has a fresh checkout."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.docs.snippets import Reader, folder_of_a_checkout, snippets
from tests.harness import free_port
from tests.real.parts import java
from tests.real.s3 import S3Server

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
NOT_RUN = {"ADOPTION.md", "BACKUP.md", "INSPECT.md", "MIGRATION.md", "SPARK.md"}
"""Pages whose snippets name stores and servers of the reader's own; other tests run the same commands."""


def page(name: str) -> str:
    return (DOCS / name).read_text()


def reader(folder: Path, replaced: dict[str, str] | None = None, stand_ins: dict[str, str] | None = None) -> Reader:
    """A reader in a checkout whose environment is activated, with a broker's usual ports replaced by free ones."""
    port, http_port = str(free_port()), str(free_port())
    path = f"{folder / '.venv' / 'bin'}:{os.environ['PATH']}"
    environ = {"PATH": path, "PORT": port, "HTTP_PORT": http_port, "JETBLOCK_RESERVE": "256kb"}
    ports = {"127.0.0.1:4222": f"127.0.0.1:{port}", "127.0.0.1:8222": f"127.0.0.1:{http_port}"}
    return Reader(folder_of_a_checkout(folder, ROOT), environ, ports | (replaced or {}), stand_ins)


def test_every_other_page_is_run() -> None:
    """Each page with snippets has a test below."""
    here = Path(__file__).read_text()
    with_snippets = {path.name for path in DOCS.glob("*.md")
                     if any(snippet.language in ("sh", "python") for snippet in snippets(path.read_text()))}
    assert {name for name in with_snippets if f'page("{name}")' not in here} == NOT_RUN


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
