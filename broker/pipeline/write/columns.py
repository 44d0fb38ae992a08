"""The columns that the sink takes, and rows made from Arrow batches of them.

    subject    string, binary
    data       string, binary; NULL is an empty payload
    headers    binary: a header block as published; array<struct<name,value>>; NULL: none
    msg_id     string, binary: Nats-Msg-Id; NULL: none
    ts, ts_ns  timestamp, bigint: one of them; NULL: the time of the row before, or that of adoption
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

from broker.pipeline.errors import BadOption

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["Columns", "Rows"]

_BYTES: Final = ("string", "binary")
_PARSED: Final = "array<struct<name:string,value:string>>"
_TYPES: Final[dict[str, tuple[str, ...]]] = {
    "subject": _BYTES, "data": _BYTES, "headers": ("binary", _PARSED), "msg_id": _BYTES, "ts": ("timestamp",),
    "ts_ns": ("bigint",)}
_NEEDED: Final = ("subject", "data")
_TEXT: Final = re.compile(r"\b(?:string collate \w+|(?:var)?char\(\d+\))")
"""Spark's other types of text: with a collation, or a length."""
_ONE_LINE: Final = re.compile(r"[^:\r\n]+\n[^\r\n]*")
"""A header's name and value, with a line break in between: a colon or another line break would make another header."""
_NAMES_SHOWN: Final = 20
_TYPE_SHOWN: Final = 80
"""Bounds of an error about columns, of which a table may have thousands."""
_NO_BLOCK: Final = b"\r\n"
"""Stands for headers of which no header block can be made: the run's writer refuses the row."""


class Rows(NamedTuple):
    """Rows as columns of equal length; a column that was not given is None. Times are nanoseconds."""

    subjects: Sequence[bytes | None]
    data: Sequence[bytes | None]
    headers: Sequence[bytes | None] | None
    msg_ids: Sequence[bytes | None] | None
    times: Sequence[int | None] | None


class Columns(NamedTuple):
    """The places of the columns in a batch; None for a column that was not given."""

    subject: int
    data: int
    headers: int | None
    msg_id: int | None
    ts: int | None
    ts_ns: int | None

    @classmethod
    def of(cls, schema: StructType) -> Columns:
        """Find the columns. Raises: BadOption for missing ones, others, and those of a wrong type, all by name."""
        places: dict[str, int] = {}
        wrong: list[str] = []
        unknown: list[str] = []
        for at, one in enumerate(schema.fields):
            name, kind = one.name.lower(), _TEXT.sub("string", one.dataType.simpleString())
            if name not in _TYPES:
                near = get_close_matches(name, _TYPES, 1, 0.7)
                unknown.append(f"{one.name!r}" + (f" (did you mean {near[0]!r}?)" if near else ""))
            elif name in places:
                wrong.append(f"the column {name!r} is there twice")
            elif kind.replace(" not null", "") not in _TYPES[name] and (kind != "void" or name in _NEEDED[:1]):
                wrong.append(f"the column {name!r} is {' or '.join(map(str.upper, _TYPES[name]))}, not "
                             f"{kind.upper()[:_TYPE_SHOWN]}: {_remedy(name, kind)}")
            places.setdefault(name, at)
        if unknown:
            more = f" and {len(unknown) - _NAMES_SHOWN} more" if len(unknown) > _NAMES_SHOWN else ""
            wrong.insert(0, f"a message has no column {', '.join(unknown[:_NAMES_SHOWN])}{more}: leave it out by "
                            f"select(…); there are {', '.join(_TYPES)}")
        wrong += [f"the column {name!r} is missing" for name in _NEEDED if name not in places]
        if "ts" in places and "ts_ns" in places:
            wrong.append("ts and ts_ns are both times: leave one out")
        if wrong:
            raise BadOption("; ".join(wrong))
        return cls(*(places.get(name) for name in _TYPES))  # type: ignore[arg-type]  # subject and data are there

    def plain(self, batch: pa.RecordBatch, *, times: bool) -> tuple[pa.BinaryArray, pa.BinaryArray] | None:
        """Return subjects and data of a batch, NULL data as empty; None if there are other columns or NULL subjects."""
        if (self.headers, self.msg_id) != (None, None) or (times and (self.ts, self.ts_ns) != (None, None)):
            return None
        subjects, data = batch.column(self.subject), batch.column(self.data)
        if subjects.null_count:
            return None
        return subjects.cast(pa.binary()), data.cast(pa.binary()).fill_null(b"")

    def rows(self, batch: pa.RecordBatch, *, times: bool) -> Rows:
        """Return the rows of a batch; with ``times`` False without its times."""
        stamps: Sequence[int | None] | None = None
        if times and self.ts_ns is not None:
            stamps = batch.column(self.ts_ns).to_pylist()
        elif times and self.ts is not None:
            micros = batch.column(self.ts).cast(pa.int64()).to_pylist()
            stamps = [None if one is None else one * 1000 for one in micros]
        return Rows(_bytes(batch.column(self.subject)), _bytes(batch.column(self.data)),
                    None if self.headers is None else _headers(batch.column(self.headers)),
                    None if self.msg_id is None else _bytes(batch.column(self.msg_id)), stamps)


def _remedy(name: str, kind: str) -> str:
    nested = kind.startswith(("struct<", "array<", "map<"))
    return f"make it text, as by to_json({name})" if nested and name == "data" else "cast it"


def _bytes(column: pa.Array) -> list[bytes | None]:
    """Return the values as bytes. The way over numpy makes the objects in C, several times as fast as ``to_pylist``."""
    if pa.types.is_null(column.type):
        return [None] * len(column)
    values: list[bytes | None] = column.cast(pa.binary()).to_numpy(zero_copy_only=False).tolist()
    return values


def _headers(column: pa.Array) -> list[bytes | None]:
    if not (pa.types.is_list(column.type) or pa.types.is_large_list(column.type)):
        return _bytes(column)
    return [_block(pairs) for pairs in column.to_pylist()]


def _block(pairs: Sequence[dict[str, Any]] | None) -> bytes | None:
    """Return the header block of parsed headers. The writer of the run refuses names and values that no header has."""
    if not pairs:
        return None
    lines = []
    for pair in pairs:
        name, value = (pair["name"], pair["value"] or "") if pair else ("", "")
        if not name or not _ONE_LINE.fullmatch(f"{name}\n{value}"):
            return _NO_BLOCK
        lines.append(f"{name}: {value}\r\n")
    return f"NATS/1.0\r\n{''.join(lines)}\r\n".encode("utf-8", "surrogatepass")
