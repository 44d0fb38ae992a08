"""Decodes JSON from outside by the rules of Go's encoding/json, which nats-server uses.

Everything that clients, tokens and other servers send as JSON is decoded here: a rule that a reader of its own would
forget can drop a restriction. The rules that Python's ``json`` does not have:

| in the text | in Go |
|---|---|
| a name in another case than a field's | names that field; U+017F is an s, U+212A a k |
| several members for one field | all are assigned, in order (below) |
| ``null`` | empties a pointer, a map or a list; other values stay as they are |
| a number with a fraction or an exponent | is no integer, even if its value is one |
| half a surrogate pair, bytes that are not UTF-8 | are U+FFFD |
| ``NaN``, ``Infinity`` | are invalid |

Of several numbers or strings assigned to one field the last counts. Objects and maps are merged, and lists are merged
element by element up to the length of the last.

``unmarshal`` and ``decode_all`` make values of Python, in which ``Number`` and ``Repeated`` keep what Python's own
types cannot. Readers of objects use ``members`` and ``folded``, or ``assigned``; the names that they look for are in
lower case.

Source: Go 1.27, encoding/json (decode.go, fold.go), which wrote tests/base/gojson/cases.json.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Container, Iterable, Iterator
from typing import Any, Final

from broker.base.gojson.messages import syntax_error, unmarshal_error

__all__ = ["JsonError", "Number", "Repeated", "after_blanks", "assigned", "combined", "decode_all", "folded", "generic",
           "kind_of", "members", "unmarshal", "value_at"]

_INTEGER_CHARS_MAX: Final = 20
_SPACES: Final = re.compile("[ \t\r\n]*")
_ESCAPES: Final = re.compile(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})|\\.", re.DOTALL)
"""A pair of surrogates, half of one (the group), any other escape."""


class JsonError(ValueError):
    """Invalid JSON; the text is Go's. ``before`` is the result of the complete values before the error."""

    def __init__(self, text: str, before: Any = None) -> None:
        super().__init__(text)
        self.before = before


class Number(str):
    """A number that is not an integer of at most 20 characters, as it is written; also -0, which no unsigned field
    accepts."""

    __slots__ = ()


class Repeated(dict[str, Any]):
    """An object in which a name occurs several times; as a dict it has the last of each."""

    __slots__ = ("pairs",)

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self.pairs = pairs


class _Merged(Repeated):
    """Made by ``combined``, which adds to it in place: else n objects for one field would cost n² steps."""

    __slots__ = ()

    def add(self, value: dict[str, Any]) -> None:
        self.pairs.extend(members(value))
        self.update(value)


def unmarshal(data: bytes) -> Any:
    """Decode exactly one value, as Go's Unmarshal does. Raises: JsonError, without an offset."""
    source = data.decode("utf-8", "replace")
    try:
        return _DECODER.decode(_without_halves(source))
    except (ValueError, RecursionError):  # RecursionError: brackets nested a thousand deep
        raise JsonError(unmarshal_error(source)) from None


def decode_all(data: bytes) -> Any:
    """Decode value after value into the same object, as Go's Decoder does until the end of its input.

    A value that is neither an object nor null is the last that is decoded: Go refuses it before it reads on.
    Returns: None for an empty or blank text. Raises: JsonError, with the offset and the values before it.
    """
    source = _without_halves(data.decode("utf-8", "replace"))
    value: Any = None
    at = after_blanks(source, 0)
    while at < len(source):
        try:
            following, at = _DECODER.raw_decode(source, at)
            value = _combined(value, following)
        except (ValueError, RecursionError):
            raise JsonError(syntax_error(source), value) from None
        if following is not None and not isinstance(following, dict):
            break
        at = after_blanks(source, at)
    return value


def value_at(source: str, at: int) -> int:
    """Return the end of the value that begins at ``at``. Raises: ValueError."""
    _, end = _DECODER.raw_decode(source, at)
    return end


def folded(name: str) -> str:
    """Return the lower-case name of the field that a member of this name sets; Go ignores the case in this way.

    Other letters than these two have no ASCII letter among their cases, so ``lower`` need not be exact for them.
    """
    return name.lower() if name.isascii() else name.replace("\u017f", "s").replace("\u212a", "k").lower()


def members(value: dict[str, Any]) -> Iterable[tuple[str, Any]]:
    """Return all members of an object, in the order of the text."""
    return value.pairs if isinstance(value, Repeated) else value.items()


def assigned(value: dict[str, Any], names: Container[str]) -> Iterator[tuple[str, Any]]:
    """Return the members that set fields of these lower-case names, by these names, in the order of the text."""
    for name, given in members(value):
        name = folded(name)
        if name in names:
            yield name, given


def combined(old: Any, new: Any) -> Any:
    """Return the value of a field after ``old`` and then ``new`` were assigned to it.

    null is supported only for values that it does not change.

    ``old`` may be changed if it is itself a result of this function, and must not be used any more.
    Raises: JsonError for values nested too deep.
    """
    return _within_depth(_combined, old, new)


def generic(value: Any) -> Any:
    """Return a value as Go decodes it without a type and encodes it again.

    Of several members of one name the last remains; members are sorted by name; numbers are 64-bit floats.

    Raises: JsonError for values nested too deep.
    """
    return _within_depth(_generic, value)


def kind_of(value: object) -> str:
    """Return the name of a value's kind in Go's messages."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, (int, Number)):
        return "number"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list) else "object"


def _within_depth(function: Callable[..., Any], *args: Any) -> Any:
    try:
        return function(*args)
    except RecursionError:
        raise JsonError("exceeded max depth") from None


def _combined(old: Any, new: Any) -> Any:
    if new is None:
        return old
    if isinstance(old, dict) and isinstance(new, dict):
        merged = old if type(old) is _Merged else _Merged(list(members(old)))
        merged.add(new)
        return merged
    if isinstance(old, list) and isinstance(new, list):
        return [_combined(old[at], one) if at < len(old) else one for at, one in enumerate(new)]
    return new


def _generic(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _generic(value[name]) for name in sorted(value)}
    if isinstance(value, list):
        return [_generic(one) for one in value]
    if isinstance(value, Number) or type(value) is int:
        number = float(value)
        return int(number) if number.is_integer() and abs(number) < 1e21 else Number(repr(number))
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    return found if len(found) == len(pairs) else Repeated(pairs)


def _integer(literal: str) -> object:
    return int(literal) if len(literal) <= _INTEGER_CHARS_MAX and literal != "-0" else Number(literal)


def _refuse_constant(literal: str) -> object:
    raise ValueError(literal)


_DECODER: Final = json.JSONDecoder(object_pairs_hook=_object, parse_float=Number, parse_int=_integer,
                                   parse_constant=_refuse_constant)


def _without_halves(source: str) -> str:
    if "\\ud" in source or "\\uD" in source:
        return _ESCAPES.sub(lambda found: r"\ufffd" if found[1] else found[0], source)
    return source


def after_blanks(source: str, at: int) -> int:
    """Return the end of the white space that begins at ``at``."""
    found = _SPACES.match(source, at)
    return found.end() if found else at
