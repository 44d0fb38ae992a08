"""JSON has the form of Go's ``json.Marshal``."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.base.gojson.encoding import marshal


@pytest.mark.parametrize("value, text", [
    ("s.>", r'"s.\u003e"'),
    ({"<": "a&b"}, r'{"\u003c":"a\u0026b"}'),
    ("\u2028\u2029", r'"\u2028\u2029"'),
    (["\u00e9", "\x7f", "\x01", '"', "/", "\\u003c"], '["\u00e9","\x7f","\\u0001","\\"","/","\\\\u003c"]'),
    ({"a": [1, 1.5, True, None]}, '{"a":[1,1.5,true,null]}'),
])
def test_text(value: object, text: str) -> None:
    """HTML's special characters are escaped, and no others."""
    assert marshal(value).decode() == text


def test_half_of_a_surrogate_pair() -> None:
    """Half of a surrogate pair does not stop the encoding."""
    assert marshal("\ud800") == b'"?"'


@given(st.recursive(st.text() | st.integers() | st.booleans(),
                    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_a_reader_gets_the_same_value(value: object) -> None:
    """Escapes do not change the value."""
    assert json.loads(marshal(value)) == value
