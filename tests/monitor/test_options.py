"""The options of the pages, read from a query and from JSON."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.base.gojson.decoding import Number
from broker.monitor.endpoints import ENDPOINTS
from broker.monitor.options import (
    AccstatzOptions,
    BadOption,
    ConnzOptions,
    JszOptions,
    SubszOptions,
    from_json,
    from_query,
)


def test_the_same_options_from_both() -> None:
    """A query and a request to the system account name the same options differently."""
    assert from_query(JszOptions,
                      {"acc": "A", "consumers": "1", "stream-leader-only": "T", "offset": "3"}) == from_json(
        JszOptions, {"account": "A", "consumer": True, "stream_leader_only": True, "offset": 3})
    assert from_query(SubszOptions, {"acc": "A", "subs": "true"}) == from_json(
        SubszOptions, {"account": "A", "subscriptions": True})
    assert from_query(ConnzOptions, {"state": "closed", "subs": "Detail"}) == from_json(
        ConnzOptions, {"state": 1, "subscriptions_detail": True, "server_name": "for somebody else"})
    assert from_json(AccstatzOptions, {"accounts": ["A", "B"]}).accounts == ("A", "B")
    assert from_json(ConnzOptions, {"Limit": 3, "cid": None}) == ConnzOptions(limit=3)


@pytest.mark.parametrize(("members", "why"), [
    ({"limit": "x"}, "json: cannot unmarshal string into Go struct field ConnzEventOptions.limit of type int"),
    ({"limit": Number("1.5")},
     "json: cannot unmarshal number 1.5 into Go struct field ConnzEventOptions.limit of type int"),
    ({"limit": True}, "json: cannot unmarshal bool into Go struct field ConnzEventOptions.limit of type int"),
    ({"cid": -1}, "json: cannot unmarshal number -1 into Go struct field ConnzEventOptions.cid of type uint64"),
    ({"auth": 1}, "json: cannot unmarshal number into Go struct field ConnzEventOptions.auth of type bool"),
    ({"user": []}, "json: cannot unmarshal array into Go struct field ConnzEventOptions.user of type string"),
    ({"acc": {}}, "json: cannot unmarshal object into Go struct field ConnzEventOptions.acc of type string"),
])
def test_wrong_type_in_json(members: dict[str, Any], why: str) -> None:
    """The error has Go's text."""
    with pytest.raises(BadOption) as raised:
        from_json(ConnzOptions, members)
    assert str(raised.value) == why


_TEXT = st.text("01tTrue-+.é\"\ud800", max_size=25)
_ANY = st.one_of(st.none(), st.booleans(), st.integers(), st.floats().map(lambda x: Number(x)), _TEXT,
                 st.lists(_TEXT, max_size=2), st.just({}))


@given(st.sampled_from(list(ENDPOINTS.values())), st.data())
def test_any_value(endpoint: Any, data: st.DataObject) -> None:
    """Every value is accepted or refused with BadOption; an accepted value has the type of the field."""
    fields = dataclasses.fields(endpoint.options)
    names = sorted({field.metadata["json"] for field in fields})
    try:
        options = from_json(endpoint.options, {name: data.draw(_ANY, name) for name in names})
        asked = {name: data.draw(_TEXT, name) for name in {field.metadata["query"] for field in fields}}
        options = from_query(endpoint.options, asked)
    except BadOption:
        return
    for field in fields:
        assert isinstance(getattr(options, field.name), type(field.default))
