"""The columns that the sink takes: by name, of the types that Spark has for them."""

from __future__ import annotations

import pyarrow as pa
import pytest

from broker.pipeline.errors import BadOption
from broker.pipeline.write.columns import Columns, Rows

types = pytest.importorskip("pyspark.sql.types")

PAIRS = pa.list_(pa.struct([("name", pa.string()), ("value", pa.string())]))


def columns(ddl: str) -> Columns:
    return Columns.of(struct(ddl))


def struct(ddl: str) -> object:
    """Return Spark's type for ``name type, …``, without a session."""
    kinds = {"string": types.StringType(), "binary": types.BinaryType(), "timestamp": types.TimestampType(),
             "bigint": types.LongType(), "int": types.IntegerType(), "void": types.NullType(),
             "pairs": types.ArrayType(types.StructType().add("name", "string").add("value", "string"))}
    made = types.StructType()
    for part in ddl.split(", "):
        name, kind = part.split()
        made.add(name, kinds[kind])
    return made


def test_rows_by_name() -> None:
    """Any order and spelling; text becomes UTF-8, times nanoseconds, parsed headers a header block."""
    found = columns("Data string, msg_id string, headers pairs, ts timestamp, SUBJECT binary")
    batch = pa.record_batch([
        pa.array(["é", None]), pa.array([None, "id"]),
        pa.array([[{"name": "A", "value": "1"}, {"name": "A", "value": None}], None], PAIRS),
        pa.array([1_700_000_000_000_001, None], pa.timestamp("us", "UTC")), pa.array([b"a.b", b"c"])],
        names=["Data", "msg_id", "headers", "ts", "SUBJECT"])
    assert found.rows(batch, times=True) == Rows(
        [b"a.b", b"c"], ["é".encode(), None], [b"NATS/1.0\r\nA: 1\r\nA: \r\n\r\n", None], [None, b"id"],
        [1_700_000_000_000_001_000, None])
    assert found.rows(batch, times=False).times is None
    found = columns("subject string, data void, ts_ns bigint, headers binary")
    batch = pa.record_batch([pa.array(["a"]), pa.nulls(1), pa.array([7]), pa.array([b"NATS/1.0\r\n\r\n"])],
                            names=["subject", "data", "ts_ns", "headers"])
    assert found.rows(batch, times=True) == Rows([b"a"], [None], [b"NATS/1.0\r\n\r\n"], None, [7])


def test_other_types_of_text() -> None:
    """Text with a collation or a length is text, also in headers. Arrow may have large, viewed or encoded values."""
    struct = types.StructType()
    for name, kind in (("subject", types.StringType("UTF8_LCASE")), ("data", types.VarcharType(20)),
                       ("msg_id", types.CharType(3))):
        struct.add(name, kind)
    pair = types.StructType().add("name", types.StringType("UNICODE")).add("value", types.StringType("UTF8_LCASE"))
    found = Columns.of(struct.add("headers", types.ArrayType(pair)))
    batch = pa.record_batch([
        pa.array(["a.b"], pa.large_string()), pa.array(["text"]).dictionary_encode(),
        pa.array(["one"], pa.string_view()),
        pa.array([[{"name": "A", "value": "1"}]], pa.large_list(PAIRS.value_type))],
        names=["subject", "data", "msg_id", "headers"])
    assert found.rows(batch, times=True) == Rows([b"a.b"], [b"text"], [b"NATS/1.0\r\nA: 1\r\n\r\n"], [b"one"], None)


@pytest.mark.parametrize(("name", "value"), [("a:b", "x"), ("A", "x\r\nNats-Rollup: all"), ("", "x"), ("A\n", "x")])
def test_a_parsed_header_is_one_header(name: str, value: str) -> None:
    """A line break or colon would make another header of it: the block is one that a run's writer refuses."""
    batch = pa.record_batch([pa.array(["a"]), pa.array(["b"]), pa.array([[{"name": name, "value": value}]], PAIRS)],
                            names=["subject", "data", "headers"])
    [block] = columns("subject string, data string, headers pairs").rows(batch, times=True).headers
    assert block == b"\r\n"


@pytest.mark.parametrize(("ddl", "text"), [
    ("subject string, data string, seq bigint, dat string",
     r"no column 'seq', 'dat' \(did you mean 'data'\?\): leave it out by select"),
    ("data string", "the column 'subject' is missing"),
    ("subject string", "the column 'data' is missing"),
    ("subject string, data int", "the column 'data' is STRING or BINARY, not INT: cast it"),
    ("subject void, data int", "the column 'subject' is STRING or BINARY, not VOID"),
    ("subject string, data string, ts timestamp, ts_ns bigint", "ts and ts_ns are both times: leave one out"),
    ("subject string, data string, Data string", "the column 'data' is there twice"),
])
def test_other_columns_are_refused_by_name(ddl: str, text: str) -> None:
    with pytest.raises(BadOption, match=text):
        columns(ddl)


def test_an_error_about_thousands_of_columns_is_short() -> None:
    """Some unknown columns are named, and the others are counted; a long type is cut. A nested payload has a remedy
    that keeps the names of its fields."""
    deep = types.StructType([types.StructField(f"field{number}", types.LongType()) for number in range(5000)])
    wide = types.StructType([*(types.StructField(f"c{number}", types.LongType()) for number in range(5000)),
                             types.StructField("subject", types.StringType()), types.StructField("data", deep)])
    with pytest.raises(BadOption, match=r"no column 'c0', .*, 'c19' and 4980 more: leave it out") as caught:
        Columns.of(wide)
    text = str(caught.value)
    assert "not STRUCT<FIELD0:BIGINT,FIELD1:" in text
    assert text.endswith(": make it text, as by to_json(data)")
    assert len(text) < 800
