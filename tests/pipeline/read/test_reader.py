"""``jetblock.scan``: a stream as a reader of Arrow batches, without Spark."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset
import pytest

import jetblock
from broker.pipeline.errors import BadOption, Damaged, NoStream
from tests.pipeline.published import Published, published
from tests.real.s3 import S3Server


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Published:
    return asyncio.run(published(f"file://{tmp_path_factory.mktemp('scan')}/store"))


def test_all_live_messages_in_order(store: Published) -> None:
    """The default columns, through the C interface by which other programs read, equal what was published."""
    reader = jetblock.scan(store.url, "ORDERS")
    assert reader.schema.names == ["seq", "subject", "ts", "headers", "data"]
    rows = pa.RecordBatchReader._import_from_c_capsule(reader.__arrow_c_stream__()).read_all().to_pylist()
    assert [(row["seq"], row["subject"], row["headers"], row["data"]) for row in rows] == store.streams["ORDERS"]


def test_columns_subjects_and_options(store: Published) -> None:
    """Columns keep their order and spelling; options have the names and meaning that they have in Spark."""
    live = store.streams["ORDERS"]
    chosen = [one for one in live if one.subject.startswith("orders.us.") and 100 <= one.seq <= 900]
    reader = jetblock.scan(store.url, "ORDERS", columns=["Data", "seq"], subjects=["orders.us.*"], startSeq=100,
                           endSeq=900)
    assert [tuple(row.values()) for row in reader.read_all().to_pylist()] == [(one.data, one.seq) for one in chosen]
    assert reader.schema.names == ["Data", "seq"]
    parsed = jetblock.scan(store.url, ["ORDERS"], columns=["headers"], headers="parsed", endSeq=1).read_all()
    assert parsed["headers"].to_pylist() == [[{"name": "X-No", "value": "0"}]]
    names = jetblock.scan(store.url, "*", view="streams", columns=["name"]).read_all()["name"].to_pylist()
    assert names == ["LOGS", "LOGS2", "ORDERS"]
    assert jetblock.scan(store.url, "ORDERS", subjects="none.such").read_all().num_rows == 0


def test_a_reader_is_scanned_like_a_table(store: Published) -> None:
    """A query engine filters and aggregates the rows as they come."""
    reader = jetblock.scan(store.url, "ORDERS", columns=["subject"])
    table = pyarrow.dataset.Scanner.from_batches(reader).to_table()
    counts = {row["subject"]: row["subject_count"]
              for row in table.group_by("subject").aggregate([("subject", "count")]).to_pylist()}
    live = [one.subject for one in store.streams["ORDERS"]]
    assert counts == {subject: live.count(subject) for subject in set(live)}


@pytest.mark.soak
def test_duckdb_and_polars_read_it(store: Published) -> None:
    """Both count, filter and end early; neither needs all columns."""
    import duckdb
    import polars

    expected = store.streams["ORDERS"]
    database = duckdb.connect()
    database.register("orders", jetblock.scan(store.url, "ORDERS"))
    assert database.sql("SELECT count(*), max(seq), sum(octet_length(data)) FROM orders").fetchall() == [
        (len(expected), max(row[0] for row in expected), sum(len(row[3]) for row in expected))]
    database.register("names", jetblock.scan(store.url, "ORDERS", columns=["seq", "subject"]))
    assert database.sql("SELECT seq FROM names LIMIT 1").fetchall() == [(expected[0][0],)]
    frame = polars.from_arrow(jetblock.scan(store.url, "ORDERS", columns=["seq", "subject"]).read_all())
    assert isinstance(frame, polars.DataFrame)
    assert frame.rows() == [row[:2] for row in expected]


def test_mistakes_are_named(store: Published) -> None:
    with pytest.raises(NoStream, match=r"no stream 'ORDER' .*'ORDERS'"):
        jetblock.scan(store.url, "ORDER")
    with pytest.raises(BadOption, match="no column 'subjet'; did you mean 'subject'"):
        jetblock.scan(store.url, "ORDERS", columns=["subjet"])
    with pytest.raises(BadOption, match="asked for twice"):
        jetblock.scan(store.url, "ORDERS", columns=["seq", "seq"])
    with pytest.raises(BadOption, match="columns: write a list"):
        jetblock.scan(store.url, "ORDERS", columns="seq")
    with pytest.raises(BadOption, match="no option 'strtseq': did you mean startSeq"):
        jetblock.scan(store.url, "ORDERS", strtSeq=1)


def test_damage_ends_the_reader_with_its_error(store: Published, tmp_path: Path) -> None:
    """The error names the object; no rows of it are returned."""
    copy = Path(shutil.copytree(store.url.removeprefix("file://"), tmp_path / "store"))
    [block] = jetblock.scan(f"file://{copy}", "LOGS2", view="blocks").read_all().to_pylist()
    path = copy / block["block"]
    data = bytearray(path.read_bytes())
    data[block["frames_offset"] + block["frames_bytes"] - 1] ^= 1
    path.write_bytes(data)
    reader = jetblock.scan(f"file://{copy}", "LOGS2")
    with pytest.raises(Damaged, match="no rows are returned for it"):
        reader.read_all()


def test_neither_spark_nor_the_broker_is_imported(store: Published) -> None:
    """A process that scans imports neither pyspark nor the server, and needs no pandas, which pyarrow imports if it is
    there."""
    script = f"""
import sys
class WithoutPandas:
    def find_spec(self, name, path=None, target=None):
        if name == "pandas":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, WithoutPandas())
import jetblock
print(jetblock.scan({store.url!r}, "ORDERS").read_all().num_rows)
assert not {{"pyspark", "pandas", "broker.runtime", "broker.server"}} & set(sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert int(done.stdout) == len(store.streams["ORDERS"])


def test_a_bucket(minio: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Credentials come from the environment, as for Spark's tasks."""
    there = asyncio.run(published(minio.new_url(), minio.env))
    for name, value in minio.env.items():
        monkeypatch.setenv(name, value)
    rows = jetblock.scan(there.url, "ORDERS").read_all()
    assert rows["data"].to_pylist() == [one.data for one in there.streams["ORDERS"]]
