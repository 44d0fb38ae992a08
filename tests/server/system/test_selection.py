"""The servers that a request selects, and options that cannot be decoded."""

from __future__ import annotations

from typing import Any

import pytest

from broker.server.system.selection import Selection, members_of

OURS = Selection("east-1", "10.0.0.1", tags=frozenset({"zone:a", "ssd"}), domain="hub")


@pytest.mark.parametrize(("members", "included"), [
    ({}, True), ({"server_name": "east"}, True), ({"server_name": "west"}, False), ({"host": "10.0."}, True),
    ({"server_name": "east", "exact_match": True}, False), ({"server_name": "east-1", "exact_match": True}, True),
    ({"host": "10.0.0.1", "server_name": "east-1", "exact_match": True}, True), ({"cluster": "c"}, False),
    ({"cluster": ""}, True), ({"tags": ["ssd"]}, True), ({"tags": ["ssd", "zone:a"]}, True), ({"tags": []}, True),
    ({"tags": ["ssd", "zone:b"]}, False), ({"domain": "hub"}, True), ({"domain": "hu"}, False), ({"domain": ""}, True),
])
def test_selection(members: dict[str, Any], included: bool) -> None:
    """Parts of names match unless an exact match is requested; all tags and the whole domain must match."""
    assert OURS.includes(members, "VarzEventOptions") is included


@pytest.mark.parametrize(("members", "why"), [
    ({"server_name": 1}, "cannot unmarshal number into Go struct field VarzEventOptions.server_name of type string"),
    ({"tags": "ssd"}, "cannot unmarshal string into Go struct field VarzEventOptions.tags of type []string"),
    ({"tags": [1]}, "cannot unmarshal array into Go struct field VarzEventOptions.tags of type []string"),
    ({"exact_match": 1}, "cannot unmarshal number into Go struct field VarzEventOptions.exact_match of type bool"),
    ({"host": True}, "cannot unmarshal bool into Go struct field VarzEventOptions.host of type string"),
])
def test_wrong_types(members: dict[str, Any], why: str) -> None:
    """The error names the field."""
    with pytest.raises(ValueError, match=why.replace("[", r"\[")):
        OURS.includes(members, "VarzEventOptions")


@pytest.mark.parametrize(("body", "members"), [
    (b"", {}), (b"null", {}), (b"{}", {}), (b'{"Limit": 3, "ACC": null}', {"limit": 3})])
def test_members(body: bytes, members: dict[str, Any]) -> None:
    """Names may have any case; nulls are left out."""
    assert members_of(body, "VarzEventOptions") == members


@pytest.mark.parametrize(("body", "why"), [
    (b"{x", "invalid character 'x' looking for beginning of object key string"), (b"{", "unexpected end of JSON input"),
    (b"[]", "json: cannot unmarshal array into Go value of type server.VarzEventOptions"),
    (b"7", "json: cannot unmarshal number into Go value of type server.VarzEventOptions"),
    (b'"x"', "cannot unmarshal string"),
    (b"true", "cannot unmarshal bool"), (b'{"limit": NaN}', "invalid character 'N' looking for beginning of value"),
    (b"{} {}", "invalid character '{' after top-level value"), (b"\xff", "looking for beginning of value"),
    (b"[" * 100_000, "exceeded max depth"),
])
def test_no_members(body: bytes, why: str) -> None:
    """A body that is no JSON object is refused in nats-server's words."""
    with pytest.raises(ValueError, match=why.replace("[", r"\[")):
        members_of(body, "VarzEventOptions")
