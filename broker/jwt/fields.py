"""JSON of a token, read field by field as Go reads it into structs: a missing field or null is the type's zero, a value
of another type makes all of it unreadable.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final, NoReturn

__all__ = ["Fields", "TokenError", "one_line"]

_INT64: Final = range(-1 << 63, 1 << 63)
_ESCAPED_SURROGATE: Final = re.compile(r"\\u[dD][89abAB]|\\u[dD][c-fC-F]")


class TokenError(ValueError):
    """Why a text is not a token, or not one of the kind asked for."""

    def __init__(self, why: str) -> None:
        super().__init__(one_line(why))


class Fields:
    """The members of one JSON object."""

    __slots__ = ("values",)

    def __init__(self, values: dict[str, Any]) -> None:
        self.values = values

    @classmethod
    def parse(cls, data: bytes) -> Fields:
        """Raises: TokenError."""
        text = data.decode("utf-8", "replace")
        try:
            values = json.loads(text, parse_constant=_no_constant)
            if _ESCAPED_SURROGATE.search(text):
                json.dumps(values, ensure_ascii=False).encode()  # half a pair is no text
        except (ValueError, RecursionError):  # RecursionError: brackets nested a thousand deep
            raise TokenError("invalid JSON") from None
        return cls(_object("claims", {} if values is None else values))

    def __contains__(self, name: str) -> bool:
        return self.values.get(name) is not None

    def text(self, name: str) -> str:
        return "" if (value := self.values.get(name)) is None else _text(name, value)

    def integer(self, name: str, default: int = 0) -> int:
        """A 64-bit number."""
        value = self.values.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value not in _INT64:
            raise _wrong(name, value, "int64")
        return value

    def boolean(self, name: str) -> bool:
        value = self.values.get(name)
        if value is None:
            return False
        if not isinstance(value, bool):
            raise _wrong(name, value, "bool")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        return tuple("" if value is None else _text(name, value) for value in self.rows(name))

    def inner(self, name: str) -> Fields:
        """A nested object; an empty one if it is missing."""
        value = self.values.get(name)
        return Fields({} if value is None else _object(name, value))

    def rows(self, name: str) -> list[Any]:
        """A list as it is."""
        value = self.values.get(name)
        if value is None:
            return []
        if not isinstance(value, list):
            raise _wrong(name, value, "list")
        return value

    def objects(self, name: str) -> Iterator[Fields]:
        """A list of objects."""
        for value in self.rows(name):
            yield Fields(_object(name, value))

    def members(self, name: str) -> Iterator[tuple[str, Fields]]:
        """The names and objects of an object of objects."""
        nested = self.inner(name)
        for key in nested.values:
            yield key, nested.inner(key)

    def numbers(self, name: str) -> dict[str, int]:
        """An object of numbers."""
        nested = self.inner(name)
        return {key: nested.integer(key) for key in nested.values}


def one_line(text: str) -> str:
    """``text``, which strangers wrote in part, as a log may show it."""
    return text if text.isprintable() else "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


def _object(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _wrong(name, value, "object")
    return value


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise _wrong(name, value, "string")
    return value


def _wrong(name: str, value: Any, kind: str) -> TokenError:
    return TokenError(f"json: cannot unmarshal {type(value).__name__} into field {name} of type {kind}")


def _no_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")
