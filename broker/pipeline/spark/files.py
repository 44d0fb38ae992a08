"""A streaming source whose tasks write messages to Parquet files, and whose rows name these files.

The job ``export`` reads it. So messages do not pass through the JVM, which would take several times as long as writing
them. Offsets, batches and limits are those of the source ``jetblock``. A task that is tried twice writes other
files each time; Spark gets the rows of one attempt, so the other files are never named.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from broker.pipeline.errors import PipelineError
from broker.pipeline.plan.options import Options, as_texts
from broker.pipeline.plan.schema import named
from broker.pipeline.spark.errors import plainly
from broker.pipeline.spark.refusing import RefusingReader
from broker.pipeline.spark.stream import StreamReader
from broker.pipeline.write.parquet import ParquetFiles

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["written_files"]

_COLUMNS: Final = ("seq", "subject", "ts", "headers", "data")
_NAME: Final = "jetblock_files"
_FILES: Final = pa.schema([("path", pa.string()), ("messages", pa.int64())])


def written_files(spark: SparkSession, folder: Path, columns: Sequence[str], codec: str | None, **options: Any
                  ) -> DataFrame:
    """Return a streaming DataFrame of the files that its tasks write.

    Args: ``folder`` is the same on each machine that runs tasks; ``columns`` and ``codec`` as for ParquetFiles.
        ``options`` are those of ``jetblock``.
    Returns: ``path`` below the folder, and ``messages``, the number of rows.
    """
    spark.dataSource.register(_FilesSource)
    files = {"folder": str(folder), "columns": list(columns), "codec": codec}
    return spark.readStream.format(_NAME).options(**as_texts(options), files=json.dumps(files)).load()


class _FilesSource(DataSource):
    """A source with the options of ``jetblock``, and ``files``, the arguments of ``written_files`` as JSON."""

    @classmethod
    def name(cls) -> str:
        return _NAME

    def schema(self) -> str:
        return "path STRING, messages BIGINT"

    @plainly
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        given = dict(self.options)
        files = json.loads(given.pop("files"))
        try:
            return _FilesReader(Options.parse(given, streaming=True), files)
        except PipelineError as error:
            return RefusingReader(error)


class _FilesReader(StreamReader):
    """Reads as StreamReader does; its tasks write the rows to files."""

    def __init__(self, options: Options, files: dict[str, Any]) -> None:
        super().__init__(options, named("messages", _COLUMNS))
        self._files = files

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _written(super().read(partition), self._files)


@plainly
def _written(batches: Iterator[pa.RecordBatch], files: dict[str, Any]) -> Iterator[pa.RecordBatch]:
    made = ParquetFiles(Path(files["folder"]), f"part-{uuid.uuid4()}", files["columns"], files["codec"])
    for batch in batches:
        made.write(batch)
    if written := made.finish():
        paths, counts = zip(*written, strict=True)
        return iter((pa.RecordBatch.from_arrays([pa.array(paths), pa.array(counts)], schema=_FILES),))
    return iter(())
