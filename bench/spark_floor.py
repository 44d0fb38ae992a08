"""A data source that has nothing to do: its tasks yield Arrow batches that lie ready in memory-mapped files.

Its time is what Spark's protocol for Python sources costs, beside which ``bench.spark_driver`` measures ours.
"""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from broker.pipeline.plan.options import Options
from broker.pipeline.plan.schema import arrow_schema, ddl
from broker.pipeline.read import query

__all__ = ["ready_batches"]


def ready_batches(spark: SparkSession, store: str, stream: str, folder: pathlib.Path) -> DataFrame:
    """Return a DataFrame with the rows of ``stream``, in the partitions and batches in which the source has them."""
    options = Options.parse({"store": store, "stream": stream})
    selection, schema = options.selection(), arrow_schema("messages")
    folder.mkdir()
    for number, part in enumerate(query.partitions(options, selection, schema)):
        with pa.OSFile(str(folder / f"{number:06d}"), "wb") as file, pa.ipc.new_file(file, schema) as out:
            for batch in query.read(options, selection, schema, part):
                out.write_batch(batch)
    spark.dataSource.register(ReadyBatches)
    return spark.read.format(ReadyBatches.name()).option("folder", str(folder)).load()


class ReadyBatches(DataSource):
    """The source ``ready``; its option ``folder`` has a file of batches for each partition."""

    @classmethod
    def name(cls) -> str:
        return "ready"

    def schema(self) -> str:
        return ddl("messages")

    def reader(self, schema: Any) -> DataSourceReader:
        return _Reader(self.options["folder"])


class _Reader(DataSourceReader):
    def __init__(self, folder: str) -> None:
        self._folder = pathlib.Path(folder)

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(str(path)) for path in sorted(self._folder.iterdir())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with pa.memory_map(partition.value) as file:
            reader = pa.ipc.open_file(file)
            for number in range(reader.num_record_batches):
                yield reader.get_batch(number)
