"""The rows of any table as messages: expressions for the sink's columns, and the order in which the rows join.

    table has                                     a message's columns by default
    topic and value, as Kafka's tables            topic as subject, value as data, timestamp as ts, headers and key
    others                                        the columns of the same name

A default never loses data in silence: if a table has columns that no message gets, ``data`` must be named.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from broker.pipeline.errors import BadOption

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Shaped", "shaped"]

_KAFKA: Final = ("topic", "value")
_KAFKA_ORDER: Final = ("timestamp", "topic", "partition", "offset")
_NOT_NEEDED: Final = re.compile(r"seq|block|pos|account|stream|batch|day|token[1-9][0-9]*")
"""Columns that the view ``messages`` and the job ``export`` add to a message's own."""
_ORDER: Final = "_jetblock_order"


class Shaped(NamedTuple):
    """A table's rows as messages. order: names of the columns by which ``in_order`` sorts."""

    rows: DataFrame
    columns: tuple[str, ...]
    order: tuple[str, ...]

    def in_order(self, batch: DataFrame) -> DataFrame:
        """Return a part of the rows, sorted, with the columns of a message. Rows that compare equal keep their
        order."""
        from pyspark.sql import functions as F

        return batch.orderBy(*self.order, F.monotonically_increasing_id()).select(*self.columns)


def shaped(table: DataFrame, given: Mapping[str, str], order_by: Sequence[str], *, of_files: bool) -> Shaped:
    """Return the rows of ``table`` as messages.

    Args: given has SQL expressions by a message's column, '' to leave that one out. order_by: SQL expressions;
        none for the default. of_files: the table is made of files, whose order breaks ties.
    Raises: BadOption for columns that a message does not have, that are missing, or that have a wrong type; pyspark's
        errors for a wrong expression.
    """
    from pyspark.sql import functions as F

    from broker.pipeline.write.columns import Columns

    names = Columns._fields
    if unknown := [name for name in given if name not in names]:
        raise BadOption(f"a message has no column {', '.join(map(repr, unknown))}: there are {', '.join(names)}")
    low = {name.lower(): name for name in table.columns}
    kafka = all(name in low for name in _KAFKA) and "subject" not in low
    expressions = {**(_kafka(low) if kafka else _same_names(low, names)), **given}
    chosen = {name: text for name, text in expressions.items() if text}
    if "data" not in given and not kafka:
        _check_complete(low, chosen)
    keys = [F.expr(text) for text in order_by or _order(low, chosen, kafka)]
    if of_files:
        keys += [F.col("_metadata.file_path"), F.col("_metadata.file_block_start")]
    order = tuple(f"{_ORDER}{number}" for number in range(len(keys)))
    rows = table.select(*(F.expr(text).alias(name) for name, text in chosen.items()),
                        *(key.alias(name) for name, key in zip(order, keys, strict=True)))
    Columns.of(rows.select(*chosen).schema)
    return Shaped(rows, tuple(chosen), order)


def _same_names(low: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    """Return the columns by a message's column. low: the table's columns by their names in lower case."""
    chosen = {name: f"`{low[name]}`" for name in names if name in low}
    if "ts_ns" in chosen:
        chosen.pop("ts", None)
    return chosen


def _kafka(low: Mapping[str, str]) -> dict[str, str]:
    chosen = {"subject": "topic", "data": "value"}
    lists = []
    if "headers" in low:
        value = _header("one.key", "coalesce(CAST(one.value AS BINARY), X'')")
        lists.append(f"transform(coalesce(headers, array()), one -> {value})")
    if "key" in low:
        lists.append(f"if(key IS NULL, array(), array({_header(repr('Kafka-Key'), 'key')}))")
    if lists:
        chosen["headers"] = f"concat({', '.join(lists)})"
    if "timestamp" in low:
        chosen["ts"] = "timestamp"
    return chosen


def _order(low: Mapping[str, str], chosen: Mapping[str, str], kafka: bool) -> list[str]:
    if kafka:
        return [name for name in _KAFKA_ORDER if name in low]
    if "seq" in low:
        return ["seq"]
    return [chosen[name] for name in ("ts", "ts_ns") if name in chosen]


def _check_complete(low: Mapping[str, str], chosen: Mapping[str, str]) -> None:
    """Raises: BadOption if no message gets some columns of the table."""
    # A column with the name of a message's column is replaced by an expression, or left out, on purpose.
    left = [name for name in low if name not in chosen and f"`{low[name]}`" not in chosen.values()
            and not _NOT_NEEDED.fullmatch(name)]
    if left:
        raise BadOption(f"no message gets the columns {', '.join(low[name] for name in left)}: give an expression for "
                        "data, as to_json(struct(*)), or the name of the column with the payloads to leave others out")


def _header(name: str, value: str) -> str:
    """Return SQL for a header of two expressions. A value that is not one line of text is written in base64."""
    text = f"CAST({value} AS STRING)"
    plain = rf"is_valid_utf8({text}) AND {text} = trim({text}) AND NOT {text} RLIKE r'[\x00-\x1f\x7f]'"
    return (f"CASE WHEN {plain} THEN named_struct('name', {name}, 'value', {text}) ELSE "
            f"named_struct('name', concat({name}, '-Base64'), 'value', base64(CAST({value} AS BINARY))) END")
