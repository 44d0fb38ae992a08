"""The job ``export``: every message once in Parquet, over several runs, repeated batches and SIGKILL."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.dataset
import pytest

from broker.pipeline.errors import BadOption, NoStream, PipelineError
from broker.pipeline.jobs.target import Target
from jetblock.spark import export
from tests.pipeline.environment import environment
from tests.pipeline.jobs.orders import Orders
from tests.pipeline.published import published
from tests.real.s3 import S3Server

ROOT = Path(__file__).resolve().parents[3]
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@pytest.fixture
async def orders(tmp_path: Path) -> AsyncIterator[Orders]:
    made = Orders(tmp_path / "store")
    yield made
    await made.close()


def rows_of(target: Path) -> list[tuple[Any, ...]]:
    """Read an export as any reader of Parquet does, without Spark's records about it; rows in order of sequence."""
    found = pyarrow.dataset.dataset(target, format="parquet").to_table(["seq", "subject", "headers", "data", "ts"])
    return sorted(tuple(row.values()) for row in found.to_pylist())


def expected(orders: Orders) -> list[tuple[Any, ...]]:
    return [(seq, subject.decode(), headers or None, data, EPOCH + timedelta(microseconds=time_ns // 1000))
            for seq, subject, headers, data, time_ns in orders.live]


async def test_each_run_copies_what_is_new(spark: Any, orders: Orders, tmp_path: Path) -> None:
    """A run copies all messages that no earlier run copied, in several batches; one with nothing new copies none."""
    target = tmp_path / "out"
    reported: list[tuple[int, int]] = []
    await orders.append(6)
    first = export(spark, store=orders.url, stream="ORDERS", to=str(target), partition_by="day,token2",
                   max_bytes_per_trigger="20k", report=lambda done, of: reported.append((done, of)))
    assert (first.messages, first.next_seq) == (600, {"$G/ORDERS": 601})
    assert first.batches > 1
    assert reported[-1] == (600, 600)
    assert rows_of(target) == expected(orders)
    again = export(spark, store=orders.url, stream="ORDERS", to=str(target), partition_by="day,token2")
    assert (again.messages, again.batches) == (0, 0)
    await orders.append(2)
    assert export(spark, store=orders.url, stream="ORDERS", to=str(target), partition_by=["day", "token2"]).messages \
        == 200
    assert rows_of(target) == expected(orders)
    days = spark.read.parquet(str(target)).groupBy("day").count().orderBy("day").collect()
    wanted: dict[Any, int] = {}
    for *_, at in expected(orders):
        wanted[at.date()] = wanted.get(at.date(), 0) + 1
    assert {row["day"]: row["count"] for row in days} == wanted
    assert len(wanted) > 1
    folders = {path.name for path in target.glob("batch=*/day=*/*")}
    assert folders == {"token2=eu", "token2=us", "token2=asia"}


async def test_a_repeated_batch_replaces_its_files(spark: Any, orders: Orders, tmp_path: Path) -> None:
    """A run that was killed after it wrote a batch, and before Spark recorded its end, repeats the batch."""
    target = tmp_path / "out"
    await orders.append(4)
    export(spark, store=orders.url, stream="ORDERS", to=str(target), max_bytes_per_trigger="10k")
    commits = target / "_jetblock" / "checkpoint" / "commits"
    last = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
    (commits / str(last)).unlink()
    (commits / f".{last}.crc").unlink()
    files = set(target.glob("batch=*/day=*/*.parquet"))
    assert export(spark, store=orders.url, stream="ORDERS", to=str(target)).batches == 1
    assert set(target.glob("batch=*/day=*/*.parquet")) != files
    assert rows_of(target) == expected(orders)


async def test_a_kill_in_the_first_batch(spark: Any, orders: Orders, tmp_path: Path) -> None:
    """A run was killed while Spark wrote the first offsets, to a hidden file that Spark itself would refuse."""
    target = tmp_path / "out"
    await orders.append(1)
    export(spark, store=orders.url, stream="ORDERS", to=str(target))
    shutil.rmtree(next(target.glob("batch=*")))
    for folder in ("offsets", "commits"):
        shutil.rmtree(target / "_jetblock" / "checkpoint" / folder)
    (target / "_jetblock" / "checkpoint" / "offsets").mkdir()
    (target / "_jetblock" / "checkpoint" / "offsets" / ".0.5d2c.tmp").touch()
    export(spark, store=orders.url, stream="ORDERS", to=str(target))
    assert rows_of(target) == expected(orders)


async def test_json_as_columns(spark: Any, orders: Orders, tmp_path: Path) -> None:
    """Fields are columns; the schema of the first run stays; a field named as a message's column gets a prefix."""
    target = tmp_path / "out"
    for _ in range(2):
        await orders.append(1)
        export(spark, store=orders.url, stream="ORDERS", to=str(target), payload="json", partition_by="day,token2")
    found = spark.read.parquet(str(target))
    assert dict(found.dtypes) == {"seq": "bigint", "subject": "string", "ts": "timestamp", "headers": "binary",
                                  "id": "bigint", "data_ts": "string", "data": "binary", "batch": "int", "day": "date",
                                  "token2": "string"}
    assert {row[0] for row in found.select("token2").distinct().collect()} == {"eu", "us", "asia"}
    assert found.where("id = seq - 1 AND data_ts = 'now' AND data IS NULL").count() == 200 == found.count()


async def test_payloads_that_do_not_fit_stay_as_bytes(spark: Any, tmp_path: Path) -> None:
    """No byte of a payload is lost if it is no object, has text after it, or another type than the schema says, or if
    a string in it cannot be stored as UTF-8."""
    from broker.storage.objectstore.file import FileStore
    from tests.pipeline.stores import Owner

    bodies = [b'{"n":1}', b"", b"[1]", b'[{"n":1},{"n":2}]', b'{"n":1}{"n":2}', b'{"n":1},{"n":2}', b'{"n":1} x',
              b'{"n":"text"}', b'{"n":', b"\xff\xfe", b'{"s":"\xff"}', rb'{"s":"\ud83d"}',
              rb'{"s":"\\\uDE00\ud83d\ude00"}']
    fitting = [(b' {"n":2}\n', 2, None), (rb'{"n":3,"s":"\ud83d\ude00"}', 3, "\U0001f600"),
               (rb'{"n":4,"s":"\\ud83d"}', 4, r"\ud83d")]
    (tmp_path / "store").mkdir()
    store = FileStore(tmp_path / "store")
    owner = Owner(store)
    await owner.start()
    stream = await owner.make("S")
    stream.append([(b"S.x", b"", body) for body in (*bodies, *(body for body, *_ in fitting))])
    await owner.stop()
    await store.close()
    export(spark, store=f"file://{tmp_path}/store", stream="S", to=str(tmp_path / "out"), payload="json",
           schema="n INT, s STRING")
    rows = spark.read.parquet(str(tmp_path / "out")).orderBy("seq").collect()
    assert [(row.n, row.s, None if row.data is None else bytes(row.data)) for row in rows] == [
        (1, None, None), *((None, None, body) for body in bodies[1:]), *((n, text, None) for _, n, text in fitting)]


async def test_a_stream_in_a_bucket(spark: Any, minio: S3Server, tmp_path: Path) -> None:
    """Only the live messages of the wanted subjects are exported."""
    store = await published(minio.new_url(), minio.env)
    with environment(spark, store.environ):
        done = export(spark, store=store.url, stream="ORDERS", to=str(tmp_path / "out"), subjects="orders.us.*")
    wanted = [(one.seq, one.subject, one.headers, one.data) for one in store.streams["ORDERS"]
              if one.subject.startswith("orders.us.")]
    assert [row[:4] for row in rows_of(tmp_path / "out")] == wanted
    assert done.messages == len(wanted)


async def test_refusals(spark: Any, orders: Orders, tmp_path: Path) -> None:
    """Each refusal names the reason, and leaves the target as it was."""
    target = tmp_path / "out"
    await orders.append(1, 10)

    def run(**options: Any) -> object:
        return export(spark, **{"store": orders.url, "stream": "ORDERS", "to": str(target), **options})

    with pytest.raises(NoStream, match="existing streams: 'ORDERS'"):
        run(stream="NONE")
    for options, why in (({"format": "csv"}, "none of parquet, delta, iceberg"), ({"payload": "xml"}, "none of bytes"),
                         ({"schema": "n INT"}, "for JSON payloads"), ({"partition_by": "token0"}, "neither day nor"),
                         ({"partition_by": "day,day"}, "twice"), ({"format": "iceberg"}, "name one with state"),
                         ({"payload": "json", "schema": "n NOTHING"}, "schema: "),
                         ({"payload": "json", "schema": "n INT, N INT"}, "one column"), ({"to": ""}, "empty")):
        with pytest.raises(BadOption, match=why):
            run(**options)
    assert not any(target.glob("batch=*"))
    with pytest.raises(PipelineError, match="no data source 'delta': add its jar"):
        run(format="delta", to=str(tmp_path / "delta"))
    with Target(str(target)).locked(), pytest.raises(PipelineError, match="another job writes there now"):
        run()
    run()
    before = rows_of(target)
    with pytest.raises(BadOption, match="was begun with partition_by=day, not token2"):
        run(partition_by="token2")
    shutil.rmtree(target / "_jetblock")
    with pytest.raises(BadOption, match="no folder _jetblock that explains"):
        run()
    assert rows_of(target) == before


def _killed_in_a_batch(command: list[str], environ: Mapping[str, str], checkpoint: Path) -> None:
    """Run the command, and kill it and its JVM after it planned its second batch."""
    job = subprocess.Popen(command, cwd=ROOT, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                           start_new_session=True)
    try:
        while not (checkpoint / "offsets" / "1").exists():
            if job.poll() is not None:
                raise AssertionError(job.communicate()[1].decode())
            time.sleep(0.001)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(job.pid, signal.SIGKILL)
        job.wait()


@pytest.mark.soak
@pytest.mark.parametrize("again", ["session", "command"])
async def test_the_command_through_sigkill(spark: Any, spark_environ: dict[str, str], orders: Orders, tmp_path: Path,
                                           again: str) -> None:
    """The command is killed in its second batch. A run in a session, or the same command, then finishes, and copies
    each message once."""
    target = tmp_path / "out"
    await orders.append(5)
    command = [sys.executable, "-m", "jetblock", "pipeline", "export", orders.url, "ORDERS", str(target), "--master",
               "local[2]", "--maxBytesPerTrigger", "10k", "--json"]
    environ = {**os.environ, **spark_environ}
    await asyncio.to_thread(_killed_in_a_batch, command, environ, target / "_jetblock" / "checkpoint")
    if again == "session":
        done = export(spark, store=orders.url, stream="ORDERS", to=str(target), max_bytes_per_trigger="10k").to_json()
    else:
        ended = await asyncio.to_thread(subprocess.run, command, cwd=ROOT, env=environ, capture_output=True, text=True,
                                        timeout=200, check=False)
        assert ended.returncode == 0, ended.stderr
        assert all(line.startswith("messages exported, ") for line in ended.stderr.splitlines())
        done = json.loads(ended.stdout)
    assert done["next_seq"] == {"$G/ORDERS": 501}
    assert rows_of(target) == expected(orders)
    assert not (target / "_jetblock" / "written").exists()
