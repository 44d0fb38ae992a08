"""The views and their columns: Arrow types, Spark's DDL, and the columns that a query requests.

    messages    seq subject ts headers data        on request: ts_ns stream account block pos, headers parsed,
                                                   subject as raw bytes
    subjects    one row for each block and subject, from the indexes: live messages only
    blocks      one row for each block            streams, consumers    one row for each
    kv          one row for each entry of key-value buckets             objects    one row for each object

Spark takes a batch unchanged if its Arrow schema is exactly the expected one, and fails obscurely otherwise: all
columns are nullable, times are UTC microseconds, text and bytes are plain ``string`` and ``binary``.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any, Final, NamedTuple

import pyarrow as pa

from broker.pipeline.errors import BadOption

__all__ = ["VIEWS", "Column", "arrow_schema", "ddl", "named", "requested"]

LONG: Final = pa.int64()
INT: Final = pa.int32()
BOOLEAN: Final = pa.bool_()
STRING: Final = pa.string()
BINARY: Final = pa.binary()
TIMESTAMP: Final = pa.timestamp("us", tz="UTC")


def _array_of(*fields: tuple[str, pa.DataType]) -> pa.DataType:
    """Return the type of Spark's ARRAY<STRUCT<…>>."""
    return pa.list_(pa.field("element", pa.struct([pa.field(name, kind) for name, kind in fields])))


PAIRS: Final = _array_of(("name", STRING), ("value", STRING))
"""Parsed headers, in order; not a map, since names may repeat."""

SUMMARY: Final = _array_of(("subject", STRING), ("count", LONG), ("first_seq", LONG), ("last_seq", LONG))


class Column(NamedTuple):
    """A column of a view. other: a second type that a query may request. optional: returned only on request."""

    name: str
    type: pa.DataType
    optional: bool = False
    other: pa.DataType | None = None


_MESSAGES: Final = (
    Column("seq", LONG), Column("subject", STRING, other=BINARY), Column("ts", TIMESTAMP),
    Column("headers", BINARY, other=PAIRS), Column("data", BINARY), Column("ts_ns", LONG, True),
    Column("stream", STRING, True), Column("account", STRING, True), Column("block", STRING, True),
    Column("pos", INT, True))
_SUBJECTS: Final = (
    Column("stream", STRING), Column("subject", STRING, other=BINARY), Column("block", STRING), Column("count", LONG),
    Column("first_seq", LONG), Column("last_seq", LONG), Column("account", STRING, True))
_BLOCKS: Final = (
    Column("account", STRING), Column("stream", STRING), Column("block", STRING), Column("first_seq", LONG),
    Column("last_seq", LONG), Column("messages", LONG), Column("live", LONG), Column("dead", LONG),
    Column("bytes", LONG), Column("first_time", TIMESTAMP), Column("last_time", TIMESTAMP), Column("epoch", LONG),
    Column("number", LONG), Column("core_offset", LONG), Column("core_bytes", LONG), Column("index_offset", LONG),
    Column("index_bytes", LONG), Column("frames_offset", LONG), Column("frames_bytes", LONG),
    Column("subjects", SUMMARY))
_STREAMS: Final = (
    Column("account", STRING), Column("name", STRING), Column("stream_id", STRING), Column("shard", INT),
    Column("config", STRING), Column("created", TIMESTAMP), Column("first_seq", LONG), Column("last_seq", LONG),
    Column("messages", LONG), Column("bytes", LONG), Column("first_time", TIMESTAMP), Column("last_time", TIMESTAMP),
    Column("blocks", LONG), Column("stored_bytes", LONG), Column("consumers", LONG), Column("position", STRING),
    Column("offline", STRING))
_CONSUMERS: Final = (
    Column("account", STRING), Column("stream", STRING), Column("name", STRING), Column("config", STRING),
    Column("created", TIMESTAMP), Column("delivered_consumer_seq", LONG), Column("delivered_stream_seq", LONG),
    Column("ack_floor_consumer_seq", LONG), Column("ack_floor_stream_seq", LONG), Column("num_ack_pending", LONG),
    Column("num_redelivered", LONG), Column("last_delivered", TIMESTAMP), Column("last_ack", TIMESTAMP))

_KV: Final = (
    Column("key", STRING), Column("value", BINARY), Column("revision", LONG), Column("operation", STRING),
    Column("created", TIMESTAMP), Column("stream", STRING, True), Column("account", STRING, True))
_OBJECTS: Final = (
    Column("name", STRING), Column("description", STRING), Column("size", LONG), Column("chunks", LONG),
    Column("digest", STRING), Column("deleted", BOOLEAN), Column("modified", TIMESTAMP), Column("nuid", STRING),
    Column("info", STRING, True), Column("revision", LONG, True), Column("stream", STRING, True),
    Column("account", STRING, True))

VIEWS: Final[dict[str, tuple[Column, ...]]] = {
    "messages": _MESSAGES, "subjects": _SUBJECTS, "blocks": _BLOCKS, "streams": _STREAMS, "consumers": _CONSUMERS,
    "kv": _KV, "objects": _OBJECTS}

_SPARK: Final[dict[pa.DataType, str]] = {LONG: "bigint", INT: "int", STRING: "string", BINARY: "binary",
                                         BOOLEAN: "boolean",
                                         TIMESTAMP: "timestamp"}


def spark_type(kind: pa.DataType) -> str:
    """Return Spark's name for a type, as ``DataType.simpleString`` writes it."""
    if pa.types.is_list(kind):
        return f"array<{spark_type(kind.value_type)}>"
    if pa.types.is_struct(kind):
        return "struct<" + ",".join(f"{field.name}:{spark_type(field.type)}" for field in kind) + ">"
    return _SPARK[kind]


def arrow_schema(view: str, *, headers: str = "raw") -> pa.Schema:
    """Return the default columns of a view. headers: ``raw`` or ``parsed``."""
    return pa.schema([(column.name, _type(column, headers)) for column in VIEWS[view] if not column.optional])


def ddl(view: str, *, headers: str = "raw") -> str:
    """Return the default columns of a view as Spark's DDL: ``seq bigint, subject string, …``."""
    return ", ".join(f"{field.name} {spark_type(field.type)}" for field in arrow_schema(view, headers=headers))


def requested(view: str, wanted: Any) -> pa.Schema:
    """Return the Arrow schema of the columns that a query names, in its order and spelling.

    Args: wanted is a pyspark StructType, or pairs of a name and its type's ``simpleString``. As in Spark, names are
        compared without regard to case.
    Raises: BadOption for a column that the view lacks, that is repeated, or has another type.
    """
    pairs: Iterable[tuple[str, str]] = (
        [(field.name, field.dataType.simpleString()) for field in wanted.fields] if hasattr(wanted, "fields")
        else wanted)
    columns = {column.name: column for column in VIEWS[view]}
    fields: dict[str, pa.Field] = {}
    for name, kind in pairs:
        column = columns.get(name.lower())
        if column is None:
            near = get_close_matches(name.lower(), columns, 1, 0.5)
            raise BadOption(f"schema: the view {view} has no column {name!r}"
                            + (f"; did you mean {near[0]!r}?" if near else "; there is " + ", ".join(columns)))
        if column.name in fields:
            raise BadOption(f"schema: the column {column.name!r} is asked for twice")
        types = {spark_type(one): one for one in (column.type, column.other) if one is not None}
        if kind not in types:
            raise BadOption(f"schema: the column {column.name!r} of the view {view} is "
                            f"{' or '.join(one.upper() for one in types)}, not {kind.upper()}; cast it afterwards")
        fields[column.name] = pa.field(name, types[kind])
    if not fields:
        raise BadOption(f"schema: no column is asked for; the view {view} has {', '.join(columns)}")
    return pa.schema(fields.values())


def named(view: str, names: Iterable[str], *, headers: str = "raw") -> pa.Schema:
    """Return the Arrow schema of these columns, in this order and spelling. headers: ``raw`` or ``parsed``.

    Raises: BadOption for a column that the view lacks, or that is repeated.
    """
    types = {column.name: spark_type(_type(column, headers)) for column in VIEWS[view]}
    return requested(view, [(name, types.get(name.lower(), "")) for name in names])


def _type(column: Column, headers: str) -> pa.DataType:
    return PAIRS if headers == "parsed" and column.type == BINARY and column.other == PAIRS else column.type
