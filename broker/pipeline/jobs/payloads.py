"""Payloads as columns: the schema of JSON payloads, and the columns made of them.

A payload that is not a JSON object of the schema stays in the column ``data``, so that no message loses its payload.
The column is NULL for all other messages.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, cast

from broker.pipeline.errors import BadOption

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["inferred_schema", "parsed_schema", "with_json_columns"]

INFERRED_FROM: Final = 100_000
"""The number of messages that the schema is inferred from, the first of the stream."""
PREFIX: Final = "data_"
"""Begins the name of a column if a message's column has the field's own name."""
_LONE_SURROGATE: Final = (r"(?i)(?<!\\)(?:\\\\)*(?:\\ud[89ab][0-9a-f]{2}(?!\\ud[c-f])|"
                          r"(?<!\\ud[89ab][0-9a-f]{2})\\ud[c-f])")
"""Finds an escape for half of a pair, as of a string that was cut within an emoji. No UTF-8 can express it."""
_UNPARSED: Final = "_jetblock_unparsed"
_VALUE: Final = "_jetblock_value"


def parsed_schema(ddl: str) -> StructType:
    """Return the schema of Spark's DDL. Raises: BadOption."""
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType

    try:
        found = cast(StructType, StructType.fromDDL(ddl))
    except PySparkException as error:
        raise BadOption(f"schema: {str(error).partition(chr(10))[0]} Write it as 'id BIGINT, name STRING'") from None
    return _checked(found)


def inferred_schema(spark: SparkSession, payloads: DataFrame) -> StructType:
    """Return the schema of the first payloads that are JSON objects.

    Args: payloads has one column, of bytes. Raises: BadOption if none of them is a JSON object.
    """
    from pyspark.sql import functions as F
    from pyspark.sql.types import StructType

    text = F.col(payloads.columns[0]).cast("string")
    texts = payloads.limit(INFERRED_FROM).select(text).where(F.ltrim(text).startswith("{"))
    found = spark.read.option("columnNameOfCorruptRecord", _UNPARSED).json(texts).schema
    schema = StructType([field for field in found.fields if field.name != _UNPARSED])
    if not schema.fields:
        raise BadOption(f"none of the stream's first {INFERRED_FROM} messages is a JSON object: export bytes, or give "
                        "a schema")
    return _checked(schema)


def with_json_columns(frame: DataFrame, schema: StructType, reserved: Iterable[str] = ()) -> DataFrame:
    """Return ``frame`` with a column for each field in place of the payload, and ``data`` for the other payloads.

    Args: reserved has names of columns that ``frame`` will get; a field with the name of another column gets a prefix.
    """
    from pyspark.sql import functions as F
    from pyspark.sql.types import StringType, StructField, StructType

    kept = [name for name in frame.columns if name != "data"]
    taken = {name.lower() for name in (*kept, "data", *reserved)}
    text = F.col("data").cast("string")
    target = StructType([*schema.fields, StructField(_UNPARSED, StringType())])
    # Spark returns the first element of an array as the object, and ignores text after the object: both would be lost.
    # As the only element of an array, the text must be one whole value. Spark also replaces bytes that are not UTF-8,
    # and escapes of half a surrogate pair.
    exact = F.is_valid_utf8(text) & ~(text.contains(r"\u") & text.rlike(_LONE_SURROGATE))
    whole = (F.ltrim(text).startswith("{") & exact
             & (F.json_array_length(F.concat(F.lit("["), text, F.lit("]"))) == 1))
    parsed = F.when(whole, F.from_json(text, target, {"columnNameOfCorruptRecord": _UNPARSED}))
    value = F.col(_VALUE)
    fields = [value.getField(field.name).alias(PREFIX + field.name if field.name.lower() in taken else field.name)
              for field in schema.fields]
    data = F.when(value.isNull() | value.getField(_UNPARSED).isNotNull(), F.col("data"))
    # In a projection of its own, each payload is parsed once.
    return frame.withColumn(_VALUE, parsed).select(*kept, *fields, data.alias("data"))


def _checked(schema: StructType) -> StructType:
    """Return ``schema``. Raises: BadOption if two fields have one name in different spelling."""
    seen: dict[str, str] = {}
    for field in schema.fields:
        other = seen.setdefault(field.name.lower(), field.name)
        if other != field.name or list(schema.names).count(field.name) > 1:
            raise BadOption(f"schema: the fields {other!r} and {field.name!r} would be one column for Spark: give a "
                            "schema with one of them")
    return schema
