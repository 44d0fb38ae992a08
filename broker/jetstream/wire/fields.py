"""Requests and configurations between JSON and slots dataclasses, read as strictly as nats-server's Go decoder does.

Owns: field kinds with their bounds, unknown fields.
Does not own: the JSON text, names in other cases, repeated members (broker.base.gojson), the text of instants
(broker.base.gotime), the meaning of values (jetstream.config and the request handlers).

A dataclass declares each wire field once, by the functions below (``text``, ``int64``, …), under its wire name:

    class Placement:
        cluster: str = text()
        tags: list[str] = texts()

``read`` makes one from decoded JSON, and ``write`` turns it back, omitting the fields that Go's ``omitempty`` omits.
Like Go, ``read`` reports the first error. Durations are integer nanoseconds; instants are Unix UTC nanoseconds here and
RFC3339 on the wire.

Every failure is ``ApiError`` 10025.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

from broker.base.gojson.decoding import JsonError, Number, combined, decode_all, folded, kind_of, members, unmarshal
from broker.base.gojson.encoding import marshal
from broker.base.gojson.raw import text_of
from broker.base.gotime import format_time, parse_time
from broker.jetstream.wire.error_table import ApiErrors
from broker.jetstream.wire.errors import ApiError, invalid_json
from broker.jetstream.wire.numbers import INT64_MAX, INT64_MIN, UINT64_MAX

__all__ = ["boolean", "choice", "dump", "duration", "durations", "int32", "int64", "integer", "load", "load_as",
           "load_one", "read", "record", "records", "string_map", "text", "texts", "time", "uint64", "write"]

T = TypeVar("T")

# --- text to values ---------------------------------------------------------------------------------------------------

def load(data: bytes) -> object:
    """Decode JSON as Go's Decoder does: empty or blank gives None, because Go leaves its target untouched then.

    Raises: ApiError 10025 in the wording of Go's decoder.
    """
    try:
        return decode_all(data)
    except JsonError as error:
        raise invalid_json(str(error)) from None


def load_as(reader: Callable[[object], T], data: bytes) -> T:
    """Read the value that ``load`` decodes. Like Go, this reports a wrong type before a syntax error in a later value.

    Raises: ApiError 10025 in the wording of Go's decoder.
    """
    failure: JsonError | None = None
    try:
        value = decode_all(data)
    except JsonError as error:
        failure, value = error, error.before
    try:
        result = reader(value)
    except _UnknownChoice as error:
        raise error.quoting(data) from None
    if failure is not None:
        raise invalid_json(str(failure))
    return result


def load_one(data: bytes) -> object:
    """Decode JSON as Go's Unmarshal does: exactly one value.

    Raises: ApiError 10025 in the wording of Go's decoder, which gives no offset here.
    """
    try:
        return unmarshal(data)
    except JsonError as error:
        raise invalid_json(str(error)) from None


def dump(value: object) -> bytes:
    """Return JSON as Go writes it."""
    return marshal(value)


# --- field kinds ------------------------------------------------------------------------------------------------------

class _Where:
    """A position in the request, named as in Go's messages; only an error turns it into text."""

    __slots__ = ("_name", "_outer", "kind")

    def __init__(self, name: str | int, kind: str = "Go struct field ", outer: _Where | None = None) -> None:
        self.kind = kind
        self._name = name
        self._outer = outer

    @property
    def path(self) -> str:
        return str(self._name) if self._outer is None else f"{self._outer.path}.{self._name}"

    def field(self, name: str) -> _Where:
        return _Where(name, outer=self)

    def element(self, index: int) -> _Where:
        return _Where(index, "", self)

    @property
    def steps(self) -> list[str | int]:
        """The names and indexes that lead to this position from the whole request."""
        return [] if self._outer is None else [*self._outer.steps, self._name]


Reader = Callable[[Any, _Where], Any]


class _UnknownChoice(ApiError):
    """The error for a value that is not in a closed set; ``complaint`` quotes its JSON text."""

    def __init__(self, complaint: str, raw: str, where: _Where, value: object) -> None:
        quoted = json.dumps(raw, ensure_ascii=False)
        super().__init__(ApiErrors.INVALID_JSON, err=complaint.replace("{quoted}", quoted).replace("{raw}", raw))
        self._complaint = complaint
        self._where = where
        self._value = value

    def quoting(self, data: bytes) -> ApiError:
        """Return the same error with the text that the client wrote in the request ``data``."""
        raw = text_of(data.decode("utf-8", "replace"), self._where.steps, self._value)
        return self if raw is None else _UnknownChoice(self._complaint, raw, self._where, self._value)


class _Field(NamedTuple):
    read: Reader
    write: Callable[[Any], Any] | None = None
    always: bool = False
    takes_null: bool = False


def _mismatch(value: object, where: _Where, go_type: str, *, literal: bool = False) -> ApiError:
    kind = kind_of(value)
    if literal and kind == "number":
        kind = f"number {value}"
    return invalid_json(f"json: cannot unmarshal {kind} into {where.kind}{where.path} of type {go_type}")


def _read_text(value: Any, where: _Where) -> str:
    if type(value) is not str:
        raise _mismatch(value, where, "string")
    return value


def _read_bool(value: Any, where: _Where) -> bool:
    if not isinstance(value, bool):
        raise _mismatch(value, where, "bool")
    return value


def _integer_reader(low: int, high: int, go_type: str) -> Reader:
    def read_integer(value: Any, where: _Where) -> int:
        if value == "-0" and low < 0 and type(value) is Number:
            return 0
        if type(value) is not int or not low <= value <= high:
            raise _mismatch(value, where, go_type, literal=True)
        return value

    return read_integer


_I64 = (INT64_MIN, INT64_MAX)
_read_int = _integer_reader(*_I64, "int")
_read_int64 = _integer_reader(*_I64, "int64")
_read_int32 = _integer_reader(-(1 << 31), (1 << 31) - 1, "int32")
_read_uint64 = _integer_reader(0, UINT64_MAX, "uint64")
_read_duration = _integer_reader(*_I64, "time.Duration")


def _read_time(value: Any, where: _Where) -> int:
    if type(value) is not str:
        raise _mismatch(value, where, "time.Time")
    try:
        return parse_time(value)
    except ValueError as error:
        raise invalid_json(str(error)) from None


def _list_reader(item: Reader, go_type: str) -> Reader:
    def read_list(value: Any, where: _Where) -> list[Any]:
        if not isinstance(value, list):
            raise _mismatch(value, where, go_type)
        return [item(one, where.element(i)) for i, one in enumerate(value)]

    return read_list


def _or_null(read: Reader, zero: object) -> Reader:
    """Return a reader that takes null, in a list or a map, for the zero value of the type."""
    return lambda value, where: zero if value is None else read(value, where)


_read_text_or_null = _or_null(_read_text, "")
_read_texts_one_by_one = _list_reader(_read_text_or_null, "[]string")


def _read_texts(value: Any, where: _Where) -> Any:
    if type(value) is list and set(map(type, value)) <= {str}:
        return value
    return _read_texts_one_by_one(value, where)


def _read_map(value: Any, where: _Where) -> dict[str, str]:
    if not isinstance(value, dict):
        raise _mismatch(value, where, "map[string]string")
    return {_read_text(key, where): _read_text_or_null(one, where.field(key)) for key, one in members(value)}


def _declare(field: _Field, default: Any = None, factory: Callable[[], Any] | None = None) -> Any:
    if factory is not None:
        return dataclasses.field(default_factory=factory, metadata={"wire": field})
    return dataclasses.field(default=default, metadata={"wire": field})


def text(default: str = "", *, always: bool = False) -> Any:
    """Declare a string. ``always``: written even when empty."""
    return _declare(_Field(_read_text, always=always), default)


def texts() -> Any:
    """Declare a list of strings."""
    return _declare(_Field(_read_texts), factory=list)


def string_map() -> Any:
    """Declare metadata: a map of strings, written in order of key as Go does."""
    return _declare(_Field(_read_map, lambda value: dict(sorted(value.items()))), factory=dict)


def boolean(*, always: bool = False) -> Any:
    return _declare(_Field(_read_bool, always=always), False)


def integer(*, always: bool = False) -> Any:
    return _declare(_Field(_read_int, always=always), 0)


def int64(*, always: bool = False) -> Any:
    return _declare(_Field(_read_int64, always=always), 0)


def int32(*, always: bool = False) -> Any:
    return _declare(_Field(_read_int32, always=always), 0)


def uint64(*, always: bool = False) -> Any:
    return _declare(_Field(_read_uint64, always=always), 0)


def duration(*, always: bool = False) -> Any:
    """Declare a duration in nanoseconds."""
    return _declare(_Field(_read_duration, always=always), 0)


def durations() -> Any:
    return _declare(_Field(_list_reader(_or_null(_read_duration, 0), "[]time.Duration")), factory=list)


def time() -> Any:
    """Declare an instant in Unix UTC nanoseconds, or None."""
    return _declare(_Field(_read_time, format_time), None)


def choice(default: str, *values: str, also: Mapping[str, str] | None = None,
           complaint: str = "can not unmarshal {quoted}", always: bool = True, any_case: bool = False,
           decoded: bool = False) -> Any:
    """Declare a string of a closed set.

    Args: ``also`` maps further accepted spellings to a value; ``complaint`` is the message for anything else, with
        ``{quoted}`` the JSON text quoted again and ``{raw}`` the JSON text. Not ``always``: the default is omitted.
        ``decoded``: nats-server decodes the value as a string first, and refuses other types in the decoder's words.
    """
    known = {value: value for value in values} | dict(also or {})

    def read_choice(value: Any, where: _Where) -> str:
        if type(value) is str:
            given = value.lower() if any_case else value
            if given in known:
                return known[given]
        elif decoded and value is not None:
            raise _mismatch(value, _Where("Go value", ""), "string")
        raw = value if isinstance(value, Number) else json.dumps(value, separators=(",", ":"), ensure_ascii=False)
        raise _UnknownChoice(complaint, raw, where, value)

    writer = None if always else (lambda value: None if value == default else value)
    return _declare(_Field(read_choice, writer, always=always, takes_null=True), default)


def record(of: type[Any], go_type: str, *, always: bool = False) -> Any:
    """Declare a nested object: None if absent, or an empty one if ``always`` (Go's struct that is not a pointer)."""
    field = _Field(_record_reader(of, go_type), write, always=always)
    return _declare(field, factory=of) if always else _declare(field, None)


def records(of: type[Any], go_type: str) -> Any:
    """Declare a list of nested objects; null in it stays None."""
    one = _record_reader(of, go_type.removeprefix("*"))
    read_all = _list_reader(lambda value, where: None if value is None else one(value, where), f"[]{go_type}")
    return _declare(_Field(lambda value, where: _Records(read_all(value, where)), _write_all), factory=list)


class _Records(list[Any]):
    """A list of nested objects as read, and its JSON once it was written:
    a configuration does not change after that."""

    __slots__ = ("written",)

    written: list[Any]


def _write_all(items: list[Any]) -> list[Any]:
    written: list[Any] | None = getattr(items, "written", None)
    if written is None:
        written = [item and write(item) for item in items]
        if isinstance(items, _Records):
            items.written = written
    return written


def _record_reader(of: type[Any], go_type: str) -> Reader:
    return lambda value, where: _read_record(of, value, where, go_type)


# --- dataclasses ------------------------------------------------------------------------------------------------------

class _Shape:
    """The wire fields of one dataclass.

    Attributes: ``fields``: in order; ``folded``: their names by case-folded name; ``emptied``: the names of fields that
        null empties; ``values(object)``: an object's values of the fields.
    """

    __slots__ = ("emptied", "fields", "folded", "values")

    def __init__(self, of: type[Any]) -> None:
        self.fields: dict[str, _Field] = {field.name: field.metadata["wire"] for field in dataclasses.fields(of)}
        self.folded = {folded(name): name for name in self.fields}
        self.emptied = frozenset(field.name for field in dataclasses.fields(of)
                                 if field.default is None or field.default_factory in (list, dict))
        self.values: Callable[[Any], tuple[Any, ...]] = attrgetter(*self.fields)
        if len(self.fields) == 1:
            (name,) = self.fields
            self.values = lambda value: (getattr(value, name),)


_SHAPES: dict[type[Any], _Shape] = {}


def _shape(of: type[Any]) -> _Shape:
    shape = _SHAPES.get(of)
    if shape is None:
        shape = _SHAPES[of] = _Shape(of)
    return shape


def read(of: type[T], value: object, go_name: str | None = None, *, lenient: bool = False) -> T:
    """Build an ``of`` from decoded JSON; None gives one with all defaults.

    Args: ``go_name`` is nats-server's name of the request, for its messages; ``lenient`` ignores unknown fields.
    Raises: ApiError 10025.
    """
    name = go_name or of.__name__
    result: T = _read_record(of, value, _Where(name), f"server.{name}", root=True, lenient=lenient)
    return result


def _read_record(of: type[Any], value: Any, where: _Where, go_type: str, *, root: bool = False,
                 lenient: bool = False) -> Any:
    if value is None:
        return of()
    if not isinstance(value, dict):
        raise _mismatch(value, _Where("Go value", "") if root else where, go_type)
    shape = _shape(of)
    fields = shape.fields
    values: dict[str, Any] = {}
    raw: dict[str, Any] = {}
    again: dict[str, str] = {}
    for key, given in members(value):
        name = key if key in fields else shape.folded.get(folded(key), "")
        if not name:
            if lenient:
                continue
            raise invalid_json(f"json: unknown field {json.dumps(key, ensure_ascii=False)}")
        field = fields[name]
        if given is None and not field.takes_null:
            if name in shape.emptied:
                values.pop(name, None)
                again.pop(name, None)
            continue
        if isinstance(given, (dict, list)):
            if name in values and isinstance(raw.get(name), list if isinstance(given, list) else dict):
                # Read it once all of them are known: n members of one name must not cost n² steps.
                again[name] = key
                raw[name] = _combined(raw.get(name), given)
                continue
            raw[name] = given
        values[name] = field.read(given, where.field(key))
    for name, key in again.items():
        values[name] = fields[name].read(raw[name], where.field(key))
    return of(**values)


def _combined(old: Any, new: Any) -> Any:
    try:
        return combined(old, new)
    except JsonError as error:
        raise invalid_json(str(error)) from None


def write(value: Any) -> dict[str, Any]:
    """Return the JSON object of a wire dataclass: Go's field order, Go's omissions."""
    result: dict[str, Any] = {}
    shape = _shape(type(value))
    for (name, field), given in zip(shape.fields.items(), shape.values(value), strict=True):
        if not given and not field.always and (given is None or field.read is not _read_time):
            continue
        if field.write is not None:
            given = field.write(given)
            if given is None:
                continue
        result[name] = given
    return result
