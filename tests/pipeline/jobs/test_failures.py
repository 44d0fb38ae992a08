"""Errors of Spark as one line, where the reason is known."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException, StreamingQueryException

from broker.pipeline.errors import PipelineError
from broker.pipeline.jobs.failures import plain_failures

STREAM = "[STREAM_FAILED] Query [id = ca6a84d4, runId = 9c487988] terminated with exception: "


@pytest.mark.parametrize(("text", "line"), [
    (STREAM + "'void org.apache.spark.sql.execution.LogicalRDD.<init>(scala.collection.immutable.Seq, "
     "org.apache.spark.rdd.RDD)' SQLSTATE: XXKST\n=== Streaming Query ===",
     "this one has no org.apache.spark.sql.execution.LogicalRDD.<init>: add the jar for this version"),
    ("java.lang.NoClassDefFoundError: org/apache/spark/sql/X\n\tat x.Y", "this one has no org/apache/spark/sql/X: add"),
    ("An error: Failed to find the data source: delta. Make sure", "Spark has no data source 'delta': add its jar"),
    (STREAM + "broker.pipeline.errors.NoStream: no stream 'X'\nat y", "^no stream 'X'$"),
])
def test_known_reasons(text: str, line: str) -> None:
    """The first text is that of Delta Lake 4.4.0 for Spark 4.2 on Spark 4.3, shortened."""
    with pytest.raises(PipelineError, match=line) as caught, plain_failures():
        raise StreamingQueryException(message=text)
    assert "\n" not in str(caught.value)


def test_other_errors_pass() -> None:
    """An error of a user's own is left as it is."""
    text = STREAM + "'value' is not one of the columns"
    with pytest.raises(PySparkException, match="is not one of the columns"), plain_failures():
        raise StreamingQueryException(message=text)
