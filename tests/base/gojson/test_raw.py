"""The text of one value is found within JSON as it was written."""

from __future__ import annotations

from typing import Any

import pytest

from broker.base.gojson.raw import text_of

BLANKS = '{ "a" : [ 1, { "b" :  "x\\u0041" } ], "c": 1.50 , "a": { } }'


@pytest.mark.parametrize("source, path, value, text", [
    (BLANKS, ["a", 1, "b"], "xA", '"x\\u0041"'), (BLANKS, ["a", 1], {"b": "xA"}, '{ "b" :  "x\\u0041" }'),
    (BLANKS, ["c"], "1.50", "1.50"), (BLANKS, ["a"], {}, "{ }"), (BLANKS, ["A"], {}, None), (BLANKS, ["a", 2], 1, None),
    (BLANKS, ["c", "b"], 1, None), (BLANKS, ["c", 0], 1, None), (BLANKS, ["a"], 7, None),
    (' {"a": 1} \n{"a": [ ]}', ["a"], [], "[ ]"), ('{"a": 1} {"a": ', ["a"], 1, "1"), ("", ["a"], 1, None),
    ("[1, [ 2 ]]", [1], [2], "[ 2 ]"),
    ('{"a": 1' + " " * 70_000 + "}", ["a"], 1, None), ("[" * 30_000, [0], 1, None)])
def test_text_of(source: str, path: list[str | int], value: Any, text: str | None) -> None:
    """A text is found by path and value; of several values under one name, the equal one; none in a long or deep
    text."""
    assert text_of(source, path, value) == text
