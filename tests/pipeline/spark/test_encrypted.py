"""Spark on an encrypted store, by a session of its own: the key comes from the environment of driver and executors."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from broker.cli import run
from tests.key_ring import forget_keys
from tests.runtime.test_encryption import KEY, MESSAGES, _stored, expect_secret

pytestmark = [pytest.mark.shows("auth.encryption"), pytest.mark.soak, pytest.mark.timeout(900)]

SCRIPT = """
import sys, time
from pyspark.sql import SparkSession
from jetblock.spark import builder_conf

url, events = sys.argv[1:]
spark = (SparkSession.builder.master("local[2]").config(map=builder_conf()).config(map={
    "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1", "spark.ui.enabled": "false",
    "spark.eventLog.enabled": "true", "spark.eventLog.compress": "false", "spark.eventLog.dir": events,
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}).getOrCreate())
spark.sparkContext.setLogLevel("INFO")
stream = spark.read.format("jetblock").options(store=url, stream="S").load()
stream.explain("extended")
print("rows", stream.count(), stream.where("data LIKE 'pl4in-payload %'").count())
new = spark.createDataFrame([(f"pl4in.subject.{i}", f"pl4in-payload spark {i}".encode()) for i in range(2000)],
                            "subject STRING, data BINARY")
new.write.format("jetblock").options(store=url, stream="S", waitForAdoption="0").mode("append").save()

def staged(rows):
    import asyncio
    from jetblock.staging import RunWriter
    from jetblock.store import find_stream, open_store

    async def stage():
        store = open_store(url)
        found = await find_stream(store, "$G", "S")
        writer = RunWriter("$G", "S", found.stream_id, now_ns=time.time_ns())
        for row in rows:
            writer.add(b"pl4in.subject.own", b"pl4in-payload own")
        for run in writer.finish():
            await store.put(run.key, run.data)
        await store.close()
        return len(writer.entries)

    return [asyncio.run(stage())]

print("own", new.rdd.mapPartitions(staged).collect())
spark.stop()
"""


def test_an_encrypted_store(spark_environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shows that Spark reads and writes; that nothing is stored in plain, also by a program of one's own on executors;
    and that the key is in no plan, log and event."""
    store, events = tmp_path / "store", tmp_path / "events"
    events.mkdir()
    forget_keys(monkeypatch)
    asyncio.run(_stored(store))
    environ = {**os.environ, **spark_environ, "JETBLOCK_KEY": KEY["storage.key"]}
    arguments = [sys.executable, "-c", SCRIPT, f"file://{store}", events.as_uri()]
    refused = subprocess.run(arguments, env={**environ, "JETBLOCK_KEY": "another"}, capture_output=True, text=True,
                             timeout=400, check=False)
    assert refused.returncode
    assert "and the configured key is" in refused.stderr
    done = subprocess.run(arguments, env=environ, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"rows {MESSAGES - 1} {MESSAGES - 1}" in done.stdout
    assert "own [1, 1]" in done.stdout
    logs = [done.stdout, done.stderr, *(path.read_text() for path in events.rglob("*") if path.is_file())]
    assert len(logs) > 2
    assert not any(KEY["storage.key"] in log for log in logs)
    expect_secret(store)
    monkeypatch.setenv("JETBLOCK_KEY", KEY["storage.key"])
    assert run(["adopt", f"file://{store}"]) == 0
    forget_keys(monkeypatch)
    assert run(["inspect", f"file://{store}", "--verify"]) == 0
    expect_secret(store)
