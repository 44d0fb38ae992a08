"""The job ``import``: rows of files and tables become messages, each once over several runs and SIGKILL."""

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

import nats
import pytest
import pytest_asyncio

import jetblock
from broker.pipeline.errors import BadOption, PipelineError
from broker.pipeline.jobs.target import Target
from jetblock.spark import export, import_messages
from tests.harness import BrokerProcess

ROOT = Path(__file__).resolve().parents[3]
pytestmark = pytest.mark.asyncio(loop_scope="module")

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)


class World:
    """A broker on a directory, a directory of files to import, and imports from it."""

    def __init__(self, spark: Any, broker: BrokerProcess, store: str, folder: Path) -> None:
        self.spark = spark
        self.broker = broker
        self.store = store
        self.folder = folder

    async def make_stream(self, name: str) -> None:
        nc = await nats.connect(self.broker.url)
        await nc.jetstream().add_stream(name=name, subjects=[f"{name}.>"])
        await nc.close()

    def add_file(self, name: str, *rows: dict[str, Any]) -> None:
        """Write a file of JSON lines, with a later modification time than the files before."""
        folder = self.folder / "in"
        folder.mkdir(exist_ok=True)
        path = folder / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        os.utime(path, (1_000_000_000 + len(list(folder.iterdir())),) * 2)

    def import_(self, stream: str, source: str = "in", **options: Any) -> Any:
        given = {"state": str(self.folder / "state"), "nats": self.broker.url, **options}
        return import_messages(self.spark, store=self.store, stream=stream, source=str(self.folder / source), **given)

    def rows(self, stream: str, *columns: str) -> list[tuple[Any, ...]]:
        """Return the live messages as the store has them."""
        chosen = columns or ("seq", "subject", "data")
        table = jetblock.scan(self.store, stream, columns=chosen).read_all()
        return list(zip(*(table[name].to_pylist() for name in chosen), strict=True))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    folder = tmp_path_factory.mktemp("import")
    async with BrokerProcess("-js", "--store", f"file://{folder}/store") as broker:
        yield World(spark, broker, f"file://{folder}/store", folder)
        await broker.stop()


@pytest.fixture
def world(shared: World, tmp_path: Path) -> World:
    """The shared broker, with files and states of this test's own."""
    return World(shared.spark, shared.broker, shared.store, tmp_path)


async def test_each_run_imports_what_is_new(world: World) -> None:
    """A run publishes the rows of all files that no earlier run had, in order of time, whatever their files. A file
    with an old modification time is new, too. Without new files, a run publishes nothing."""
    await world.make_stream("LINES")
    for name, numbers in (("b.json", (1, 4, 4)), ("a.json", (3, 2))):
        world.add_file(name, *({"at": (NOON + timedelta(seconds=n)).isoformat(), "no": n} for n in numbers))
    reported: list[int] = []

    def run() -> Any:
        return world.import_("LINES", format="json", report=lambda done, of: reported.append(done), columns={
            "subject": "concat('LINES.', no)", "data": "to_json(struct(*))", "ts": "to_timestamp(at)"}, times="raise")

    first = run()
    assert (first.rows, first.batches) == (5, 1)
    assert reported == [5]
    wanted = [(seq, f"LINES.{n}", n, NOON + timedelta(seconds=n)) for seq, n in enumerate((1, 2, 3, 4, 4), 1)]
    assert [(seq, subject, json.loads(data)["no"], ts)
            for seq, subject, data, ts in world.rows("LINES", "seq", "subject", "data", "ts")] == wanted
    world.add_file("c.json", {"at": (NOON + timedelta(seconds=9)).isoformat(), "no": 9})
    os.utime(world.folder / "in" / "c.json", (1, 1))
    assert (run().rows, run().rows) == (1, 0)
    assert [row[1] for row in world.rows("LINES")][5:] == ["LINES.9"]


async def test_a_repeated_batch_is_stored_once(world: World) -> None:
    """A run that was killed after the stream had a batch, and before Spark recorded its end, repeats the batch. The
    source is a single file, with a name that is a pattern to Spark."""
    await world.make_stream("ONCE")
    world.add_file("rows [1].json", *({"subject": "ONCE.x", "data": str(n)} for n in range(3)))
    for _ in range(2):
        assert world.import_("ONCE", source="in/rows [1].json", format="json").rows == 3
        for name in ("0", ".0.crc"):
            (world.folder / "state" / "_jetblock" / "checkpoint" / "commits" / name).unlink()
    assert world.rows("ONCE") == [(n + 1, "ONCE.x", b"%d" % n) for n in range(3)]


async def test_an_export_is_imported_as_it_was(world: World) -> None:
    """The files of an export need no expressions: subjects, payloads, headers and times are those of the stream, in the
    order of its sequences."""
    await world.make_stream("FROM")
    await world.make_stream("FROM2")
    world.add_file("a.json", *({"no": n} for n in range(100)))
    world.import_("FROM", format="json", columns={
        "subject": "concat('FROM.', no % 7)", "data": "CAST(no AS STRING)",
        "msg_id": "if(no % 2 = 0, CAST(no AS STRING), null)",
        "ts": f"timestamp_seconds({int(NOON.timestamp())} + no div 10)"})
    export(world.spark, store=world.store, stream="FROM", to=str(world.folder / "out"), partition_by="day,token2")
    world.import_("FROM2", source="out", state=str(world.folder / "state2"),
                  columns={"subject": "replace(subject, 'FROM.', 'FROM2.')"})
    columns = ("seq", "subject", "headers", "data", "ts")
    wanted = world.rows("FROM", *columns)
    assert len(wanted) == 100
    assert [(seq, subject.replace("FROM2.", "FROM."), *others)
            for seq, subject, *others in world.rows("FROM2", *columns)] == wanted


async def test_a_table_of_kafkas(world: World) -> None:
    """Topic, value, timestamp, headers and key become a message; keys and values of headers that are not one line of
    text become base64. Rows join by time, then by topic, partition and offset."""
    await world.make_stream("k")
    world.spark.sql(
        "SELECT CAST(key AS BINARY) key, CAST(value AS BINARY) value, 'k.orders' topic, part partition, no offset, "
        f"timestamp_seconds({int(NOON.timestamp())} + at) timestamp, 0 timestampType, headers FROM VALUES "
        "(X'61', '0', 0, 1L, 5, null), (null, '1', 0, 2L, 5, array(named_struct('key', 'h', 'value', X'62'))), "
        "(X'FF', '2', 0, 0L, 7, array(named_struct('key', 'n', 'value', X'0A'), named_struct('key', 'e', 'value', "
        "CAST(null AS BINARY)))), (X'', CAST(null AS STRING), 1, 0L, 5, null) AS t(key, value, part, no, at, headers)"
    ).repartition(3).write.parquet(f"{world.folder}/in")
    assert world.import_("k").rows == 4
    assert world.rows("k", "subject", "data", "headers", "ts") == [
        ("k.orders", b"0", b"NATS/1.0\r\nKafka-Key: a\r\n\r\n", NOON + timedelta(seconds=5)),
        ("k.orders", b"1", b"NATS/1.0\r\nh: b\r\n\r\n", NOON + timedelta(seconds=5)),
        ("k.orders", b"", b"NATS/1.0\r\nKafka-Key: \r\n\r\n", NOON + timedelta(seconds=5)),
        ("k.orders", b"2", b"NATS/1.0\r\nn-Base64: Cg==\r\ne: \r\nKafka-Key-Base64: /w==\r\n\r\n",
         NOON + timedelta(seconds=7))]


async def test_a_source_that_spark_cannot_follow(world: World) -> None:
    """A view is imported whole, and once: also if the run is killed after the stream had the rows."""
    await world.make_stream("VIEW")
    world.spark.sql("SELECT 'VIEW.x' subject, CAST(id AS STRING) data, id seq FROM range(0, 5, 1, 2)"
                    ).createOrReplaceTempView("imported_view")

    def run() -> Any:
        return import_messages(world.spark, store=world.store, stream="VIEW", source="imported_view", format="table",
                               state=str(world.folder / "state"), nats=world.broker.url)

    assert run().rows == 5
    with pytest.raises(BadOption, match="cannot tell which of its rows are new"):
        run()
    shutil.rmtree(world.folder / "state" / "_jetblock" / "imported")
    run()
    assert world.rows("VIEW") == [(n + 1, "VIEW.x", b"%d" % n) for n in range(5)]


async def test_refusals(world: World) -> None:
    """Each refusal names the reason and stores nothing. After the remedy, the import continues."""
    await world.make_stream("BAD")
    world.add_file("a.json", {"no": 1}, {"no": 2})
    subject = {"subject": "concat('BAD.', no)"}
    for columns, why in (({}, "no message gets the columns no"), ({"topic": "no"}, "no column 'topic'"),
                         ({**subject, "data": "no"}, "'data' is STRING or BINARY, not BIGINT: cast it"),
                         ({"data": "''"}, "the column 'subject' is missing")):
        with pytest.raises(BadOption, match=why):
            world.import_("BAD", format="json", columns=columns)
    for options, why in (({"natz": "x"}, "no option 'natz'"), ({"times": "later"}, "times")):
        with pytest.raises(BadOption, match=why):
            world.import_("BAD", format="json", columns={**subject, "data": "''"}, **options)
    with Target(str(world.folder / "state")).locked(), pytest.raises(PipelineError, match="another job writes there"):
        world.import_("BAD", format="json")
    foreign = {"subject": "concat(if(no = 2, 'OTHER.', 'BAD.'), no)", "data": "CAST(no AS STRING)"}
    with pytest.raises(PipelineError, match="is not one of the stream's"):
        world.import_("BAD", format="json", columns=foreign)
    assert world.rows("BAD") == []
    (world.folder / "elsewhere").mkdir()
    with pytest.raises(BadOption, match="was begun with source="):
        world.import_("BAD", source="elsewhere", format="json", schema="no LONG",
                      columns={**subject, "data": "''"})
    assert world.import_("BAD", format="json", columns={**subject, "data": "CAST(no AS STRING)"}).rows == 2
    assert world.rows("BAD") == [(1, "BAD.1", b"1"), (2, "BAD.2", b"2")]


def _killed_in_a_batch(command: list[str], environ: Mapping[str, str], checkpoint: Path, *, jvm_only: bool
                       ) -> list[str]:
    """Run the command, and kill it and its JVM, or only the JVM, after it planned its second batch.

    Returns: the lines that the command wrote to standard error.
    """
    job = subprocess.Popen(command, cwd=ROOT, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                           start_new_session=True)
    try:
        while not (checkpoint / "offsets" / "1").exists():
            if job.poll() is not None:
                raise AssertionError(job.communicate()[1])
            time.sleep(0.001)
        if jvm_only:
            os.kill(_jvm_of(job.pid), signal.SIGKILL)
            return job.communicate(timeout=100)[1].splitlines()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(job.pid, signal.SIGKILL)
        job.wait()
    return []


def _jvm_of(pid: int) -> int:
    """Return the process of the JVM that a process has started."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            name, _, rest = stat.read_text().partition("(")[2].rpartition(") ")
            if name == "java" and int(rest.split()[1]) == pid:
                return int(stat.parent.name)
    raise AssertionError("no JVM")


@pytest.mark.parametrize("again", ["session", pytest.param("command", marks=pytest.mark.soak)])
async def test_the_command_through_sigkill(world: World, spark_environ: dict[str, str], again: str) -> None:
    """The command, or only its JVM, is killed in its second batch of four. A run in a session, or the same command,
    then finishes, and each row is stored once."""
    stream = f"KILLED-{again}"
    await world.make_stream(stream)
    for number in range(4):
        world.add_file(f"{number}.json", *({"no": number * 100 + n} for n in range(100)))
    command = [sys.executable, "-m", "jetblock", "pipeline", "import", world.store, stream, f"{world.folder}/in",
               "--state", f"{world.folder}/state", "--format", "json", "--schema", "no LONG", "--column",
               f"subject='{stream}.x'", "--column", "data=CAST(no AS STRING)", "--option", "maxFilesPerTrigger=1",
               "--nats", world.broker.url, "--master", "local[2]", "--json"]
    environ = {**os.environ, **spark_environ}
    checkpoint = world.folder / "state" / "_jetblock" / "checkpoint"
    said = await asyncio.to_thread(_killed_in_a_batch, command, environ, checkpoint, jvm_only=again == "session")
    if again == "session":
        assert "Spark's JVM ended while the job ran" in said[-1]
        columns = {"subject": f"'{stream}.x'", "data": "CAST(no AS STRING)"}
        done = world.import_(stream, format="json", schema="no LONG", columns=columns,
                             read_options={"maxFilesPerTrigger": "1"}).to_json()
    else:
        ended = await asyncio.to_thread(subprocess.run, command, cwd=ROOT, env=environ, capture_output=True, text=True,
                                        timeout=200, check=False)
        assert ended.returncode == 0, ended.stderr
        done = json.loads(ended.stdout)
    assert done["batches"] in (2, 3)
    assert world.rows(stream) == [(n + 1, f"{stream}.x", b"%d" % n) for n in range(400)]
