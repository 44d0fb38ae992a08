"""Finds the text of one value within JSON, for errors that quote a value as the client wrote it.

Does not own: what the value means, or which errors quote it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from json.decoder import JSONArray, JSONObject  # type: ignore[attr-defined]
from typing import Any, Final, NamedTuple

from broker.base.gojson.decoding import after_blanks, unmarshal, value_at

__all__ = ["text_of"]

_CHARS_MAX: Final = 1 << 16
"""Longer texts are not searched, which takes about 1 µs for each value."""


class _Node(NamedTuple):
    text: str
    inner: Any
    """Members of an object, as pairs, or a list's elements; None: neither."""


def text_of(source: str, path: Sequence[str | int], value: object) -> str | None:
    """The text of ``value``, found by the names and indexes of ``path``; None: the text is too long, or it is not
    there.

    Of several values there, it is the first one that equals ``value``.
    """
    if len(source) > _CHARS_MAX:
        return None
    at = 0
    found: list[_Node] = []
    try:
        while (at := after_blanks(source, at)) < len(source):
            node, at = _scan(source, at)
            found.append(node)
    except (ValueError, RecursionError):
        pass  # the complete values before a syntax error count
    for step in path:
        found = [inner for node in found for inner in _inside(node, step)]
    return next((node.text for node in found if unmarshal(node.text.encode()) == value), None)


def _inside(node: _Node, step: str | int) -> Iterable[_Node]:
    if node.inner is None:
        return ()
    if isinstance(step, int):
        return node.inner[step:step + 1] if isinstance(node.inner, list) else ()
    return [inner for name, inner in node.inner if name == step] if isinstance(node.inner, tuple) else ()


def _scan(source: str, at: int) -> tuple[_Node, int]:
    """The value that begins at ``at``, and its end. Raises: ValueError if there is none."""
    inner: Any = None
    if source[at:at + 1] == "{":
        inner, end = JSONObject((source, at + 1), True, _scan, None, tuple, {})
    elif source[at:at + 1] == "[":
        inner, end = JSONArray((source, at + 1), _scan)
    else:
        end = value_at(source, at)
    return _Node(source[at:end], inner), end
