"""Reads the JSON of a token field by field as Go reads it into structs, with the rules of ``gojson``.

A missing field or null is the zero of its type. A value of another type makes the whole token unreadable.

The fields of an object are named in lower case. An object of Go's type map has *entries* instead, whose names are data.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from broker.base.gojson.decoding import JsonError, combined, folded, generic, kind_of, members, unmarshal

__all__ = ["Fields", "TokenError", "one_line"]

_INT64: Final = range(-1 << 63, 1 << 63)


class TokenError(ValueError):
    """A text that is no token, or not one of the wanted kind. The error's text is the reason."""

    def __init__(self, why: str) -> None:
        super().__init__(one_line(why))


class Fields:
    """The members of one JSON object."""

    __slots__ = ("_given", "values")

    def __init__(self, values: dict[str, Any]) -> None:
        self.values = values
        """The members, by their names as they are written."""
        self._given: dict[str, list[Any]] = {}
        for name, value in members(values):
            self._given.setdefault(folded(name), []).append(value)

    @classmethod
    def parse(cls, data: bytes) -> Fields:
        """Read an object. Raises: TokenError."""
        try:
            values = unmarshal(data)
        except JsonError as error:
            raise TokenError(str(error)) from None
        return cls(_object("claims", {} if values is None else values))

    @classmethod
    def untyped(cls, value: dict[str, Any]) -> Fields:
        """Read an object that Go decodes without a type, and then again into a struct. Raises: TokenError."""
        try:
            return cls(generic(value))
        except JsonError as error:
            raise TokenError(str(error)) from None

    def given(self, name: str) -> list[Any]:
        """Return all values that the text assigns to this field, in order, with nulls."""
        return self._given.get(name, [])

    def text(self, name: str) -> str:
        return ([""] + [_text(name, value) for value in self.given(name) if value is not None])[-1]

    def integer(self, name: str, default: int = 0) -> int:
        """Return a 64-bit number."""
        return ([default] + [_integer(name, value) for value in self.given(name) if value is not None])[-1]

    def boolean(self, name: str) -> bool:
        return ([False] + [_boolean(name, value) for value in self.given(name) if value is not None])[-1]

    def texts(self, name: str) -> tuple[str, ...]:
        return tuple("" if value is None else _text(name, value) for value in self.rows(name))

    def inner(self, name: str) -> Fields:
        """Return a nested object, on which null has no effect; an empty one if it is missing."""
        return Fields(_merged([_object(name, value) for value in self.given(name) if value is not None]) or {})

    def pointer(self, name: str) -> Fields | None:
        """Return a nested object that null removes; None if it is missing."""
        found = _merged([None if value is None else _object(name, value) for value in self.given(name)])
        return None if found is None else Fields(found)

    def rows(self, name: str) -> list[Any]:
        """Return a list as it is."""
        return _merged([None if value is None else _list(name, value) for value in self.given(name)]) or []

    def objects(self, name: str) -> Iterator[Fields]:
        """Return a list of objects."""
        for value in self.rows(name):
            yield Fields(_object(name, value))

    def entries(self, name: str) -> Iterator[tuple[str, Any]]:
        """Return the entries of a map, in the order of the text; of several with one name, the last counts."""
        found = _merged([None if value is None else _object(name, value) for value in self.given(name)])
        return iter(members(found or {}))

    def numbers(self, name: str) -> dict[str, int]:
        """Return a map of numbers."""
        return {key: 0 if value is None else _integer(key, value) for key, value in self.entries(name)}

    def maps(self, name: str) -> dict[str, Fields]:
        """Return a map of objects."""
        return {key: Fields({} if value is None else _object(key, value)) for key, value in self.entries(name)}

    def lists(self, name: str) -> dict[str, list[Fields]]:
        """Return a map of lists of objects."""
        return {key: [Fields(_object(key, one)) for one in ([] if value is None else _list(key, value))]
                for key, value in self.entries(name)}


def one_line(text: str) -> str:
    """Make ``text``, of which strangers wrote a part, safe for a log."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


def _merged(values: list[Any]) -> Any:
    """Return the result of assigning these values in order to a pointer, a map or a list."""
    found = None
    for value in values:
        try:
            found = None if value is None else combined(found, value)
        except JsonError as error:
            raise TokenError(str(error)) from None
    return found


def _object(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _wrong(name, value, "object")
    return value


def _list(name: str, value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise _wrong(name, value, "list")
    return value


def _text(name: str, value: Any) -> str:
    if type(value) is not str:
        raise _wrong(name, value, "string")
    return value


def _integer(name: str, value: Any) -> int:
    if value == "-0" and kind_of(value) == "number":
        return 0
    if type(value) is not int or value not in _INT64:
        raise _wrong(name, value, "int64")
    return value


def _boolean(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise _wrong(name, value, "bool")
    return value


def _wrong(name: str, value: Any, go_type: str) -> TokenError:
    return TokenError(f"json: cannot unmarshal {kind_of(value)} into field {name} of type {go_type}")
