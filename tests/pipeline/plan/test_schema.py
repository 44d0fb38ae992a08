"""The default columns of a view, and those on request: types are exactly those of Spark's own Arrow schema."""

from __future__ import annotations

from types import SimpleNamespace

import pyarrow as pa
import pytest

from broker.pipeline.errors import BadOption
from broker.pipeline.plan.schema import PAIRS, VIEWS, arrow_schema, ddl, requested, spark_type


@pytest.mark.parametrize("view", list(VIEWS))
def test_types_are_those_of_spark(view: str) -> None:
    """The names of types, and the Arrow schema of the batches, are Spark's own, including optional columns and second
    types."""
    types = pytest.importorskip("pyspark.sql.pandas.types")
    every = pa.schema([(column.name, column.other or column.type) for column in VIEWS[view]])
    for schema in (arrow_schema(view), arrow_schema(view, headers="parsed"), every):
        wanted = types.from_arrow_schema(schema)
        assert [field.dataType.simpleString() for field in wanted.fields] == [spark_type(kind) for kind in schema.types]
        assert requested(view, wanted).equals(schema, check_metadata=True)
        assert types.to_arrow_schema(wanted, timezone="UTC").equals(schema, check_metadata=True)
    assert ddl(view) == ", ".join(f"{field.name} {spark_type(field.type)}" for field in arrow_schema(view))


def test_messages_by_default() -> None:
    """The default columns."""
    assert ddl("messages") == "seq bigint, subject string, ts timestamp, headers binary, data binary"
    assert "headers array<struct<name:string,value:string>>" in ddl("messages", headers="parsed")
    assert arrow_schema("messages", headers="parsed").field("headers").type == PAIRS
    assert ddl("subjects") == ("stream string, subject string, block string, count bigint, first_seq bigint, "
                               "last_seq bigint")


def test_any_subset_in_any_order_and_spelling() -> None:
    """A query's order and spelling are kept, second types accepted; all columns are nullable."""
    schema = requested("messages", [("Data", "binary"), ("SEQ", "bigint"), ("subject", "binary"), ("pos", "int"),
                                    ("headers", "array<struct<name:string,value:string>>")])
    assert schema.names == ["Data", "SEQ", "subject", "pos", "headers"]
    assert schema.types == [pa.binary(), pa.int64(), pa.binary(), pa.int32(), PAIRS]
    assert all(field.nullable for field in schema)


def test_a_struct_type_of_any_make() -> None:
    """Only fields, names and types of a StructType are used, because Spark Connect has its own class."""
    field = SimpleNamespace(name="ts_ns", dataType=SimpleNamespace(simpleString=lambda: "bigint"))
    assert requested("messages", SimpleNamespace(fields=[field])) == pa.schema([("ts_ns", pa.int64())])


@pytest.mark.parametrize("view, wanted, reason", [
    ("messages", [("sequence", "bigint")], "no column 'sequence'; did you mean 'seq'"),
    ("messages", [("seq", "bigint"), ("payload", "binary")], "no column 'payload'; there is seq, subject, ts"),
    ("messages", [("seq", "string")], "'seq' of the view messages is BIGINT, not STRING"),
    ("messages", [("ts", "timestamp_ntz")], "'ts' of the view messages is TIMESTAMP, not TIMESTAMP_NTZ"),
    ("messages", [("subject", "varchar(3)")], r"'subject' .* STRING or BINARY, not VARCHAR\(3\)"),
    ("messages", [("headers", "map<string,string>")], "BINARY or ARRAY<STRUCT<NAME:STRING,VALUE:STRING>>, not MAP"),
    ("messages", [("data", "binary"), ("DATA", "binary")], "'data' is asked for twice"),
    ("messages", [], "no column is asked for"),
    ("subjects", [("counts", "bigint")], "view subjects has no column 'counts'; did you mean 'count'"),
    ("blocks", [("live", "int")], "'live' of the view blocks is BIGINT, not INT"),
    ("streams", [("data", "binary")], "view streams has no column 'data'"),
])
def test_refused_columns(view: str, wanted: list[tuple[str, str]], reason: str) -> None:
    """The text names the column, and the nearest existing one or its type."""
    with pytest.raises(BadOption, match=reason):
        requested(view, wanted)
