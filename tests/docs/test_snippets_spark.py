"""The snippets of the pages that start Spark. They are apart from the others because they take much longer."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.docs.pages import page, reader, store_orders
from tests.real.jvm import spark_environ
from tests.real.s3 import MISSING, S3Server

OWN_SESSION = "spark-submit|jetblock pipeline (export|audit|erase|jar)"
"""Commands that start a Java process each, for 15 s of processor time or more. ``tests/pipeline/jobs`` runs the same
commands of ``jetblock pipeline``, most of them in the session that its tests share; ``test_spark_jar`` builds the jar
and uses it."""


@pytest.mark.spark
@pytest.mark.timeout(900)
async def test_the_tutorial(tmp_path: Path, minio: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each command works and prints what the page shows, on a directory and on MinIO."""
    for name, value in spark_environ().items():
        monkeypatch.setenv(name, value)
    store = minio.new_url()
    keys = " ".join(f"{name}={value}" for name, value in minio.env.items())
    replaced = {"AWS_ENDPOINT_URL=http://127.0.0.1:9000 AWS_REGION=us-east-1": "PAGE=TUTORIAL",
                "AWS_ACCESS_KEY_ID=jetblock AWS_SECRET_ACCESS_KEY=jetblock-secret": keys,
                "s3://jetblock/streams": store}
    broker = f"{keys} jetblock -a 127.0.0.1 -p $PORT -m $HTTP_PORT --store {store}"
    stand_ins = {"docker compose up --build --detach --wait": broker}
    async with reader(tmp_path / "checkout", replaced, stand_ins) as someone:
        await someone.read("TUTORIAL.md", page("TUTORIAL.md"))


@pytest.mark.spark
@pytest.mark.timeout(900)
@pytest.mark.parametrize("omitted", [
    pytest.param(OWN_SESSION, id="one session"), pytest.param("", id="whole", marks=pytest.mark.soak)])
async def test_spark(tmp_path: Path, minio: S3Server, omitted: str) -> None:
    """Each query and job works, on MinIO. Long runs also type the commands with a session of their own, and compile the
    jar."""
    if not omitted and shutil.which("javac") is None:
        pytest.skip(f"{MISSING}javac, which compiles the jar")
    store = minio.new_url()
    await store_orders(store, minio.env)
    environ = {**minio.env, **spark_environ()}
    async with reader(tmp_path / "checkout", {"s3://bucket/prefix": store}, environ=environ) as someone:
        await someone.read("SPARK.md", page("SPARK.md"), omitted=omitted)
