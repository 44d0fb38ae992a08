"""The data source ``jetblock``. Spark creates it in the planner, a separate process beside the driver.

Every Spark session imports this module where jetblock is installed, so it imports everything else lazily.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

import pyspark
from pyspark.sql.datasource import DataSource, DataSourceReader

from broker.pipeline.errors import BadOption, PipelineError
from broker.pipeline.spark.errors import plainly

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamReader, DataSourceStreamWriter, DataSourceWriter
    from pyspark.sql.types import StructType

__all__ = ["JetblockSource"]


class JetblockSource(DataSource):
    """``format("jetblock")`` of Spark's read, readStream, write and writeStream; docs/SPARK.md lists the options."""

    @classmethod
    def name(cls) -> str:
        return "jetblock"

    @plainly
    def schema(self) -> str:
        """The columns of the view, unless ``.schema(…)`` names others."""
        from broker.pipeline.plan.options import OPTIONS, Options
        from broker.pipeline.plan.schema import ddl

        # Spark does not pass the kind of query; options of the wrong kind are refused when the reader is made.
        known = (OPTIONS.get(name.lower()) for name in self.options)
        options = Options.parse(self.options, streaming=any(one and one.kind == "stream" for one in known))
        return ddl(options.view, headers=options.headers)

    @plainly
    def reader(self, schema: StructType) -> DataSourceReader:
        from broker.pipeline.plan.options import Options
        from broker.pipeline.spark.batch import FiltersReader, reader

        given = dict(self.options)
        if given.pop(FiltersReader.OPTION, None) == "false":
            return FiltersReader(Options.parse(given), schema)
        return reader(Options.parse(given), schema)

    @plainly
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from broker.pipeline.spark.refusing import RefusingReader

        try:
            if find_spec("pyspark.sql.streaming.datasource") is None:
                raise PipelineError(f"streaming reads need PySpark 4.2 or newer, and this is {pyspark.__version__}; "
                                    f"spark.read works here")
            from broker.pipeline.plan.options import Options
            from broker.pipeline.plan.schema import requested
            from broker.pipeline.spark.stream import StreamReader

            options = Options.parse(self.options, streaming=True)
            return StreamReader(options, requested(options.view, schema))
        except PipelineError as error:
            return RefusingReader(error)

    @plainly
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from broker.pipeline.spark.sink import BatchSink
        from broker.pipeline.write.options import WriteOptions

        if overwrite:
            raise BadOption(f"mode overwrite would delete the stream's messages first: {_ONLY_APPENDS}")
        return BatchSink(WriteOptions.parse(self.options), schema)

    @plainly
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        if find_spec("pyspark.sql.streaming.datasource") is None:
            raise PipelineError(f"streaming writes need PySpark 4.2 or newer, and this is {pyspark.__version__}; "
                                f"df.write works here, also in foreachBatch")
        from broker.pipeline.spark.sink import StreamSink
        from broker.pipeline.write.options import WriteOptions

        if overwrite:
            raise BadOption(f"outputMode complete would write all rows again with each batch: {_ONLY_APPENDS}")
        return StreamSink(WriteOptions.parse(self.options, streaming=True), schema)


_ONLY_APPENDS: Final = ("rows are only appended: use append; purge the stream yourself if older messages are to go, or "
                        "give it max_msgs_per_subject so that the last message of each subject is kept")
