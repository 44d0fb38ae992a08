"""Exactly once into a sink of Spark, through SIGKILL of the JVM in the middle of batches."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from broker.storage.objectstore.file import FileStore
from tests.pipeline.stores import Owner

ROOT = Path(__file__).resolve().parents[3]
MESSAGES = 400_000
PER_TRIGGER = 30_000
KILLS = 4


async def _filled(folder: Path) -> None:
    store = FileStore(folder)
    owner = Owner(store)
    await owner.start()
    stream = await owner.make("S")
    for first in range(0, MESSAGES, 10_000):
        stream.append([(b"S.x", b"", b"%08d" % n + b"." * 92) for n in range(first, first + 10_000)])
        await owner.log.persisted()
    await owner.stop()
    await store.close()


def _batches(folder: Path, what: str) -> set[str]:
    """The numbers of the batches that were planned (``offsets``) or done (``commits``)."""
    path = folder / "checkpoint" / what
    return {name for name in os.listdir(path) if name.isdigit()} if path.exists() else set()


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_each_message_once_through_kills_of_the_jvm(spark: Any, spark_environ: dict[str, str], tmp_path: Path) -> None:
    """A separate driver is killed four times at random points between a batch's plan and its end; a fifth one
    finishes."""
    rng = random.Random()
    (tmp_path / "store").mkdir()
    asyncio.run(_filled(tmp_path / "store"))
    command = [sys.executable, "-m", "tests.pipeline.following", f"file://{tmp_path}/store", "S", str(tmp_path),
               str(PER_TRIGGER)]
    killed_at = []
    for run in range(KILLS + 1):
        with open(tmp_path / f"driver-{run}.log", "wb") as log:
            driver = subprocess.Popen(command, cwd=ROOT, env={**os.environ, **spark_environ}, stdout=subprocess.PIPE,
                                      stderr=log, start_new_session=True)
        assert driver.stdout is not None
        pid = driver.stdout.readline()
        assert pid, (tmp_path / f"driver-{run}.log").read_text()[-3000:]
        if run == KILLS:
            assert driver.stdout.readline() == b"done\n", (tmp_path / f"driver-{run}.log").read_text()[-3000:]
            assert driver.wait(60) == 0
            break
        done = len(_batches(tmp_path, "commits"))
        wait_for = done + rng.randrange(3)
        while not (len(_batches(tmp_path, "commits")) >= wait_for
                   and (under_way := _batches(tmp_path, "offsets") - _batches(tmp_path, "commits"))):
            assert driver.poll() is None, (tmp_path / f"driver-{run}.log").read_text()[-3000:]
            time.sleep(0.002)
        time.sleep(rng.random() * 0.5)  # at a random point within the batch
        os.kill(int(pid), signal.SIGKILL)
        killed_at.append(sorted(under_way))
        driver.stdout.close()
        driver.kill()  # The driver would also end by itself soon.
        driver.wait(60)
    row = spark.read.parquet(f"{tmp_path}/rows").selectExpr(
        "count(*) total", "count(DISTINCT seq) seqs", "count(DISTINCT data) bodies", "min(seq) first", "max(seq) last",
        "count_if(CAST(substr(CAST(data AS STRING), 1, 8) AS LONG) != seq - 1) wrong").first()
    assert row.asDict() == {"total": MESSAGES, "seqs": MESSAGES, "bodies": MESSAGES, "first": 1, "last": MESSAGES,
                            "wrong": 0}, killed_at
    print("killed in batches", killed_at)
