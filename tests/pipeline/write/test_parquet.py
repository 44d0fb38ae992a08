"""Parquet files of one task: rows by day and subject token, read back by pyarrow."""

from __future__ import annotations

import random
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from broker.pipeline.errors import PipelineError
from broker.pipeline.plan.schema import named
from broker.pipeline.write import parquet
from broker.pipeline.write.parquet import ParquetFiles
from broker.pipeline.write.parquet_names import CODECS

SCHEMA = named("messages", ["seq", "subject", "ts", "headers", "data"])
DAY_US = 86_400_000_000
FIRST_DAY = 20_000


def batch_of(rows: list[tuple[int, str, int]]) -> pa.RecordBatch:
    """Make messages of sequence, subject and day since 1970; the last microsecond of a day belongs to it."""
    return pa.RecordBatch.from_arrays(
        [pa.array([seq for seq, _, _ in rows]), pa.array([subject for _, subject, _ in rows]),
         pa.array([day * DAY_US + (seq % 2) * (DAY_US - 1) for seq, _, day in rows], pa.timestamp("us", "UTC")),
         pa.array([b"h" if seq % 3 else None for seq, _, _ in rows], pa.binary()),
         pa.array([b"%d" % seq for seq, _, _ in rows], pa.binary())], schema=SCHEMA)


def written(folder: Path, batches: list[pa.RecordBatch], columns: list[str]) -> dict[str, list[Any]]:
    """Write batches; return the rows by the folder of their file, in order."""
    files = ParquetFiles(folder, "part", columns, CODECS["zstd"])
    for batch in batches:
        files.write(batch)
    found: dict[str, list[Any]] = {}
    paths = files.finish()
    assert {str(path.relative_to(folder)) for path in folder.rglob("*.parquet")} == {path for path, _ in paths}
    for path, count in paths:
        table = pq.ParquetFile(folder / path).read()
        assert table.num_rows == count
        assert table.schema == SCHEMA
        found.setdefault(path.rpartition("/")[0], []).extend(table.to_pylist())
    return found


@pytest.mark.parametrize("columns", [[], ["day"], ["token2"], ["day", "token1", "token3", "token2"]], ids=",".join)
def test_each_row_is_in_the_folder_of_its_values(tmp_path: Path, columns: list[str],
                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows keep their order within a folder, also if a task has many folders, and if its files are closed early."""
    monkeypatch.setattr(parquet, "_OPEN_MAX", 3)
    monkeypatch.setattr(parquet, "_GROUP_ROWS", 50)
    monkeypatch.setattr(parquet, "_WAITING_BYTES", 2000)
    monkeypatch.setattr(parquet, "_KEYS_MAX", 4)
    rng = random.Random(4)
    rows = [(seq, f"{rng.choice('ab')}.{rng.choice('xyz')}" + rng.choice(("", ".1", ".2")),
             FIRST_DAY + rng.randrange(3)) for seq in range(1, 901)]
    expected: dict[str, list[int]] = {}
    for seq, subject, day in rows:
        tokens = [*subject.split("."), "__HIVE_DEFAULT_PARTITION__"]
        values = {"day": date.fromordinal(date(1970, 1, 1).toordinal() + day).isoformat(),
                  **{f"token{number}": tokens[number - 1] for number in (1, 2, 3)}}
        expected.setdefault("/".join(f"{name}={values[name]}" for name in columns), []).append(seq)
    found = written(tmp_path, [batch_of(rows[at:at + 100]) for at in range(0, 900, 100)], columns)
    assert {place: [row["seq"] for row in some] for place, some in found.items()} == expected
    everything = sorted((row for some in found.values() for row in some), key=lambda row: row["seq"])
    assert everything == batch_of(rows).to_pylist()


def test_names_of_folders_are_escaped(tmp_path: Path) -> None:
    """As Spark escapes them: a token may have characters that a path cannot have, and Spark decodes them."""
    found = written(tmp_path, [batch_of([(1, "a.b/c", 1), (2, "a.d%=", 1), (3, "a.größe", 1)])], ["token2"])
    assert set(found) == {"token2=b%2Fc", "token2=d%25%3D", "token2=größe"}


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    """The error is one line, with the folder."""
    (tmp_path / "file").touch()
    files = ParquetFiles(tmp_path / "file" / "below", "part", [], None)
    with pytest.raises(PipelineError, match=f"^{tmp_path}/file/below: Not a directory$"):
        files.write(batch_of([(1, "a", 1)]))
