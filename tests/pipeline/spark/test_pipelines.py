"""A declarative pipeline with the sink, run by Spark's own command over Spark Connect."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import nats
import pytest

import jetblock
from tests.harness import BrokerProcess
from tests.real.s3 import MISSING

FOLDER = Path(__file__).resolve().parents[3] / "docs" / "tour" / "archive_pipeline"

pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]


async def test_a_pipeline_archives_a_stream(spark_environ: dict[str, str], tmp_path: Path) -> None:
    """The pipeline of the documentation copies each message once over two runs, by ``create_sink``."""
    if importlib.util.find_spec("grpc") is None or importlib.util.find_spec("pandas") is None:
        pytest.skip(f"{MISSING}Spark Connect's client: make test installs it")
    url = f"file://{tmp_path}/store"
    async with BrokerProcess("-js", "--store", url) as broker:
        shutil.copytree(FOLDER, tmp_path / "pipeline")
        spec = tmp_path / "pipeline" / "spark-pipeline.yml"
        spec.write_text(spec.read_text().replace("file:///srv/archive-pipeline", f"file://{tmp_path}/state")
                        .replace("file:///srv/streams", url).replace("nats://127.0.0.1:4222", broker.url))
        nc = await nats.connect(broker.url)
        js = nc.jetstream()
        await js.add_stream(name="ORDERS", subjects=["orders.>"])
        await js.add_stream(name="ARCHIVE", subjects=["archive.>"])
        for run in range(2):
            for number in range(50):
                await js.publish("orders.eu", b"%d" % (50 * run + number), headers={"A": "b"})
            await asyncio.to_thread(_run, spec, {**os.environ, **spark_environ})
            rows = await asyncio.to_thread(lambda: jetblock.scan(
                url, "ARCHIVE", columns=["seq", "subject", "headers", "data"]).read_all().to_pylist())
            assert [tuple(row.values()) for row in rows] == [
                (n + 1, "archive.orders.eu", b"NATS/1.0\r\nA: b\r\n\r\n", b"%d" % n) for n in range(50 * (run + 1))]
        await nc.close()
        await broker.stop()


def _run(spec: Path, environ: dict[str, str]) -> None:
    command = Path(sys.executable).parent / "spark-pipelines"
    done = subprocess.run([str(command), "run", "--spec", str(spec)], cwd=spec.parent, env=environ,
                          capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
