"""Writes the messages of one task to Parquet files, in a folder for each combination of partition values.

    batches ──> rows by partition ──> waiting rows of one file ──> a row group once there are enough

The names of folders are those that Spark gives them, so every reader of partitioned Parquet finds the values.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from broker.pipeline.errors import PipelineError
from broker.pipeline.write.parquet_names import DAY, TOKEN

__all__ = ["ParquetFiles"]

_GROUP_ROWS: Final = 1 << 20
_GROUP_BYTES: Final = 64 << 20
_WAITING_BYTES: Final = 128 << 20
"""Bounds of the rows that wait for a row group: of one file, and of all files of a task."""
_OPEN_MAX: Final = 200
"""The number of files that a task has open. Beyond it, the one that was opened first is finished; later rows of its
partition get another file."""

_KEYS_MAX: Final = 1 << 40
_DAY_US: Final = 86_400_000_000
_EPOCH: Final = date(1970, 1, 1)
_NO_VALUE: Final = "__HIVE_DEFAULT_PARTITION__"
_ESCAPED: Final = re.compile(r"[\x00-\x1f\"#%'*/:=?\\\x7f{\[\]^]")
"""The characters that Spark escapes in the names of folders."""


class ParquetFiles:
    """The files of one task, below ``folder``.

    Args: ``name`` is a part of each file's name; it makes the file unique among those of all tasks. ``columns`` are the
        partition columns, in the order of the folders. ``codec`` is one of the values of ``parquet_names.CODECS``.
    """

    def __init__(self, folder: Path, name: str, columns: Sequence[str], codec: str | None) -> None:
        self._folder, self._name, self._columns, self._codec = folder, name, columns, codec
        self._open: dict[str, _File] = {}
        self._waiting_bytes = 0
        self._written: list[tuple[str, int]] = []

    def write(self, batch: pa.RecordBatch) -> None:
        """Write a batch with the columns ``subject`` and ``ts``. Raises: PipelineError."""
        try:
            for place, rows in self._divided(batch):
                file = self._file(place, batch.schema)
                self._waiting_bytes -= file.waiting_bytes
                file.add(rows)
                self._waiting_bytes += file.waiting_bytes
                while self._waiting_bytes > _WAITING_BYTES:
                    most = max(self._open.values(), key=lambda one: one.waiting_bytes)
                    self._waiting_bytes -= most.waiting_bytes
                    most.flush()
        except OSError as error:
            raise PipelineError(f"{self._folder}: {error.strerror or error}") from None

    def finish(self) -> list[tuple[str, int]]:
        """Finish all files. Returns: the path of each file below the folder, and its number of rows. Raises:
        PipelineError."""
        try:
            for place in list(self._open):
                self._end(place)
        except OSError as error:
            raise PipelineError(f"{self._folder}: {error.strerror or error}") from None
        return self._written

    def _file(self, place: str, schema: pa.Schema) -> _File:
        if (file := self._open.get(place)) is None:
            if len(self._open) >= _OPEN_MAX:
                self._end(next(iter(self._open)))
            path = f"{place}{self._name}-{len(self._written) + len(self._open):05d}.parquet"
            file = self._open[place] = _File(self._folder, path, schema, self._codec)
        return file

    def _end(self, place: str) -> None:
        file = self._open.pop(place)
        self._waiting_bytes -= file.waiting_bytes
        file.close()
        self._written.append((file.path, file.rows))

    def _divided(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Yield the rows of each partition in the batch, with the folder of the partition."""
        columns = [_day_values(batch) if name == DAY else _token_values(batch, int(name.removeprefix(TOKEN)))
                   for name in self._columns]
        keys, count = np.zeros(batch.num_rows, np.int64), 1
        for codes, values in columns:
            if count * len(values) > _KEYS_MAX:  # numbered again: a batch has fewer keys than rows
                present, keys = np.unique(keys, return_inverse=True)
                count = len(present)
            keys, count = keys * len(values) + codes, count * len(values)
        order = np.argsort(keys, kind="stable")
        starts = np.flatnonzero(np.diff(keys[order], prepend=-1))
        for start, end in zip(starts.tolist(), [*starts[1:].tolist(), len(keys)], strict=True):
            first = order[start]
            place = "".join(f"{name}={values[codes[first]]}/"
                            for name, (codes, values) in zip(self._columns, columns, strict=True))
            yield place, batch if end - start == len(keys) else batch.take(pa.array(order[start:end]))


class _File:
    """One file, and the rows that wait for its next row group."""

    def __init__(self, folder: Path, path: str, schema: pa.Schema, codec: str | None) -> None:
        self.path = path
        self.rows = 0
        self.waiting_bytes = 0
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = 0
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        # Payloads repeat seldom, and a dictionary of them would be made in vain.
        self._writer = pq.ParquetWriter(place, schema, compression=codec or "none", use_dictionary=["subject"],
                                        store_schema=False)

    def add(self, batch: pa.RecordBatch) -> None:
        self.rows += batch.num_rows
        self._waiting.append(batch)
        self._waiting_rows += batch.num_rows
        self.waiting_bytes += batch.nbytes
        if self._waiting_rows >= _GROUP_ROWS or self.waiting_bytes >= _GROUP_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write the waiting rows as a row group."""
        if self._waiting:
            self._writer.write_table(pa.Table.from_batches(self._waiting), row_group_size=self._waiting_rows)
        self._waiting, self._waiting_rows, self.waiting_bytes = [], 0, 0

    def close(self) -> None:
        self.flush()
        self._writer.close()


def _day_values(batch: pa.RecordBatch) -> tuple[Any, list[str]]:
    """Return for each row the place of its value, and the values as parts of paths."""
    micros = batch.column("ts").cast(pa.int64()).to_numpy(zero_copy_only=False)
    days, codes = np.unique(micros // _DAY_US, return_inverse=True)
    return codes, [(_EPOCH + timedelta(days=day)).isoformat() for day in days.tolist()]


def _token_values(batch: pa.RecordBatch, number: int) -> tuple[Any, list[str]]:
    subjects = pc.dictionary_encode(batch.column("subject"))
    tokens = [_token(subject, number) for subject in subjects.dictionary.to_pylist()]
    values = sorted(set(tokens))
    places = {value: place for place, value in enumerate(values)}
    of_subject = np.asarray([places[token] for token in tokens], np.int64)
    return of_subject[subjects.indices.to_numpy(zero_copy_only=False)], values


def _token(subject: str, number: int) -> str:
    tokens = subject.split(".", number)
    value = tokens[number - 1] if len(tokens) >= number else ""
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", value) or _NO_VALUE
