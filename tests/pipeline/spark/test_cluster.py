"""Spark where jetblock is not installed and only the zip brings it: separate executor processes, and Spark Connect."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import sys
import textwrap
from pathlib import Path
from typing import Any

import pyspark
import pytest

from tests.pipeline.elsewhere import make_zip, python_without_jetblock, run
from tests.pipeline.published import Published, broker_on, published
from tests.real import parts
from tests.real.s3 import MISSING, S3Server

pytestmark = pytest.mark.timeout(600)

CONF = {"spark.driver.memory": "1g", "spark.sql.session.timeZone": "UTC"}

WRITE_BATCH = """
(frame.where("seq <= 100").selectExpr("'logs2.batch' subject", "data").write.format("jetblock").mode("append")
 .options(store=given["options"]["store"], stream="LOGS2", waitForAdoption="0").save())
"""
WRITE_STREAM = """
query = (session.read_stream(spark, **given["options"]).selectExpr("'logs2.stream' subject", "data")
         .writeStream.format("jetblock").options(store=given["options"]["store"], stream="LOGS2", waitForAdoption="0")
         .option("checkpointLocation", given["checkpoint"] + "-copy").trigger(availableNow=True).start())
query.awaitTermination()
"""

CLUSTER = """
import importlib.util, json, os, sys
given = json.loads(sys.argv[1])
assert importlib.util.find_spec("broker") is None
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local-cluster[2,1,1024]").config(map=given["conf"]).config(
    "spark.submit.pyFiles", given["zip"]).config("spark.executor.memory", "512m").getOrCreate()
from broker.pipeline.spark import session
session.register(spark)
found = {"version": spark.version}
frame = spark.read.format("jetblock").options(**given["options"], targetPartitionBytes=1).load()
found["rows"] = [[row.seq, row.subject, bytes(row.data).decode()] for row in frame.collect()]

def where(batch_of_rows):
    import os, pyspark_jetblock
    from pyspark import SparkFiles
    for row in batch_of_rows:
        yield os.getpid(), pyspark_jetblock.__file__

places = frame.select("seq").rdd.mapPartitions(where).distinct().collect()
found["pids"] = len({pid for pid, _ in places})
found["files"] = sorted({os.path.basename(os.path.dirname(os.path.dirname(path))) for _, path in places})
found["forecast"] = session.explain_read(spark, **given["options"])
found["fixed"] = session.read(spark, **given["options"]).count()
found["tokens"] = [row[0] for row in frame.selectExpr("subject_token(subject, 2) t").distinct().orderBy("t").collect()]
query = (session.read_stream(spark, **given["options"], maxMessagesPerTrigger=500).writeStream.format("memory")
         .queryName("streamed").option("checkpointLocation", given["checkpoint"]).trigger(availableNow=True).start())
query.awaitTermination()
found["streamed"] = spark.table("streamed").select("seq").distinct().count()
""" + WRITE_BATCH + WRITE_STREAM + """
spark.stop()
print(json.dumps(found))
"""

CONNECT = """
import importlib.util, json, sys
given = json.loads(sys.argv[1])
assert (importlib.util.find_spec("broker") is None) is not given["streams"]
from pyspark.sql import SparkSession
builder = SparkSession.builder.remote("local[2]")
for name, value in given["conf"].items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
if not given["streams"]:
    sys.path.insert(0, given["zip"])
    spark.addArtifacts(given["zip"], pyfile=True)
from broker.pipeline.spark import session
session.register(spark)
found = {"module": type(spark).__module__}
frame = spark.read.format("jetblock").options(**given["options"]).load()
found["rows"] = [[row.seq, row.subject, bytes(row.data).decode()] for row in frame.collect()]
found["fixed"] = session.read(spark, **given["options"], schema="seq LONG").count()
found["forecast"] = session.explain_read(spark, **given["options"])
found["tokens"] = [row[0] for row in frame.selectExpr("subject_token(subject, 2) t").distinct().orderBy("t").collect()]
if given["streams"]:
    query = (session.read_stream(spark, **given["options"], maxMessagesPerTrigger=500).writeStream.format("memory")
            .queryName("streamed").option("checkpointLocation", given["checkpoint"])
             .trigger(availableNow=True).start())
    query.awaitTermination()
    found["streamed"] = spark.table("streamed").select("seq").distinct().count()
""" + WRITE_BATCH + """
if given["streams"]:
""" + textwrap.indent(WRITE_STREAM, "    ") + """
try:
    spark.read.format("jetblock").options(**given["options"] | {"stream": "ORDER"}).load().collect()
except Exception as error:
    found["error"] = str(error)
from broker.pipeline.jobs.export import export
try:
    export(spark, **given["options"], to=given["checkpoint"] + "-export")
except Exception as error:
    found["job"] = str(error)
spark.stop()
print(json.dumps(found))
"""


def check(found: dict[str, Any], store: Published) -> None:
    live = store.streams["ORDERS"]
    assert found["rows"] == [[one.seq, one.subject, one.data.decode()] for one in live]
    assert found["fixed"] == found.get("streamed", len(live)) == len(live)
    assert found["forecast"]["messages"] >= len(live)
    assert found["tokens"] == ["asia", "eu", "us"]


async def check_written(store: Published, *, stream: bool) -> None:
    """``jetblock adopt`` adopts what was written: a batch of the first rows, and if ``stream``, a copy of all of them.
    A broker serves it."""
    adopt = await asyncio.create_subprocess_exec(sys.executable, "-m", "jetblock", "adopt", store.url,
                                                 env={**os.environ, **store.environ})
    assert await adopt.wait() == 0
    async with broker_on(store.url, store.environ) as (_, nc):
        js = nc.jetstream()
        live = store.streams["ORDERS"]
        wanted = [("logs2.x", one.data) for one in store.streams["LOGS2"]]
        wanted += [("logs2.batch", one.data) for one in live if one.seq <= 100]
        wanted += [("logs2.stream", one.data) for one in live if stream]
        info = await js.stream_info("LOGS2")
        found = [await js.get_msg("LOGS2", seq) for seq in range(1, info.state.last_seq + 1)]
        assert sorted((one.subject, one.data or b"") for one in found) == sorted(wanted)


@pytest.mark.parametrize("version", [pytest.param(parts.PYSPARK_VERSION, marks=pytest.mark.soak), pyspark.__version__])
def test_executors_with_nothing_but_the_zip(version: str, minio: S3Server, spark_environ: dict[str, str],
                                            tmp_path: Path) -> None:
    """Two executors in separate processes read from MinIO and write to it, by the newest Spark, and in long runs by the
    oldest one that streams: batch, streaming and helpers. Spark does not discover sources in such files, so the source
    is registered explicitly."""
    folders = []
    if version == parts.PYSPARK_VERSION:
        try:
            folders.append(parts.pyspark())
        except parts.PartMissing as error:
            pytest.skip(f"{MISSING}pyspark: {error}")
    store = asyncio.run(published(minio.new_url(), minio.env))
    found = run(python_without_jetblock(tmp_path, *folders), CLUSTER, {
        "conf": CONF, "zip": str(make_zip(tmp_path)), "options": store.options(), "checkpoint": str(tmp_path / "cp")},
        spark_environ | minio.env | {"PYTHONPATH": ""}, tmp_path)
    check(found, store)
    assert found["version"] == version
    assert found["files"] == ["jetblock.zip"]
    assert found["pids"] == 2
    asyncio.run(check_written(store, stream=True))


@pytest.mark.parametrize("streams", [pytest.param(False, marks=pytest.mark.soak), True], ids=["artifact", "server"])
def test_spark_connect(streams: bool, spark_environ: dict[str, str], tmp_path: Path) -> None:
    """A Connect client sends the zip as an artifact: batch, helpers, an error's text. With the zip on the server's
    PYTHONPATH instead, streaming works, too. Jobs are refused."""
    if importlib.util.find_spec("grpc") is None or importlib.util.find_spec("pandas") is None:
        pytest.skip(f"{MISSING}Spark Connect's client: make test installs it")
    store = asyncio.run(published(f"file://{tmp_path}/store"))
    archive = str(make_zip(tmp_path))
    found = run(python_without_jetblock(tmp_path), CONNECT, {
        "conf": CONF, "zip": archive, "options": store.options(), "checkpoint": str(tmp_path / "cp"),
        "streams": streams},
        spark_environ | {"PYTHONPATH": archive if streams else ""}, tmp_path)
    check(found, store)
    assert "connect" in found["module"]
    assert "'ORDERS'" in found["error"]
    assert "jobs do not run through Spark Connect" in found["job"]
    asyncio.run(check_written(store, stream=streams))
