"""The reader in place of one that cannot be made.

An error raised by ``streamReader`` is lost: Spark 4.0 to 4.3 then raise an error of their own, an UnboundLocalError
("cannot access local variable 'reader'"). This reader raises the error at Spark's first call instead.
"""

from __future__ import annotations

from typing import Any, NoReturn

from pyspark.sql.datasource import DataSourceStreamReader

from broker.pipeline.errors import PipelineError
from broker.pipeline.spark.errors import plainly

try:
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
except ImportError:  # Spark 4.1 and older do not have it, and do not ask for it

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Stands for the class of newer versions."""


__all__ = ["RefusingReader"]


class RefusingReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A reader of which each method raises ``error``."""

    def __init__(self, error: PipelineError) -> None:
        self._error = error

    def _refuse(self, *_: Any) -> NoReturn:
        raise self._error

    refuse: Any = plainly(_refuse)
    initialOffset = latestOffset = getDefaultReadLimit = prepareForTriggerAvailableNow = partitions = read = refuse
