"""JSON is decoded as by Go's encoding/json: ``cases.go`` wrote the expected values in ``cases.json``."""

from __future__ import annotations

import base64
import dataclasses
import gc
import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.base.gojson.decoding import JsonError, assigned, decode_all, folded, generic, members, unmarshal
from broker.jetstream.wire import fields as wire
from broker.jetstream.wire.errors import ApiError
from broker.jwt.fields import Fields, TokenError

CASES: list[tuple[bytes, dict[str, Any], str]] = [
    (base64.b64decode(text), value, said) for text, value,
    said in json.loads(Path(__file__).with_name("cases.json").read_text())]


def struct(name: str, **fields: tuple[Any, Any]) -> type[Any]:
    return dataclasses.make_dataclass(name, [(field, of, kind) for field, (of, kind) in fields.items()])


P = struct("P", allow=(list, wire.texts()), deny=(list, wire.texts()))
T = struct("T", start=(str, wire.text()), end=(str, wire.text()))
S = struct("S", exp=(int, wire.int64()), unum=(int, wire.uint64()), on=(bool, wire.boolean()), ks=(str, wire.text()),
           src=(list, wire.texts()), pub=(P, wire.record(P, "main.P", always=True)), resp=(P, wire.record(P, "main.P")),
           times=(list, wire.records(T, "main.T")), meta=(dict, wire.string_map()))


def by_fields(text: bytes) -> dict[str, Any]:
    """Read the same struct as a token is read."""
    read = Fields.parse(text)
    if read.integer("unum") < 0:
        raise TokenError("no uint64")

    def rules(one: Fields) -> dict[str, Any]:
        return {"allow": list(one.texts("allow")), "deny": list(one.texts("deny"))}

    resp, rows = read.pointer("resp"), read.rows("times")
    if not all(row is None or isinstance(row, dict) for row in rows):
        raise TokenError("no object")
    if not all(value is None or type(value) is str for _, value in read.entries("meta")):
        raise TokenError("no string")
    times = [Fields(row or {}) for row in rows]
    return {"exp": read.integer("exp"), "unum": read.integer("unum"), "on": read.boolean("on"), "ks": read.text("ks"),
            "src": list(read.texts("src")), "pub": rules(read.inner("pub")),
            "resp": None if resp is None else rules(resp),
            "times": [{"start": one.text("start"), "end": one.text("end")} for one in times],
            "meta": {key: value or "" for key, value in read.entries("meta")}}


def without_nulls(value: dict[str, Any]) -> dict[str, Any]:
    """Replace Go's nil lists and maps by empty ones."""
    pub, resp = ({name: one or [] for name, one in (rules or {}).items()} for rules in (value["pub"], value["resp"]))
    return {**value, "src": value["src"] or [], "times": value["times"] or [], "meta": value["meta"] or {}, "pub": pub,
            "resp": None if value["resp"] is None else resp}


@pytest.mark.parametrize("text, value, said", CASES, ids=[repr(text) for text, _, _ in CASES])
def test_requests_are_read_as_by_go(text: bytes, value: dict[str, Any], said: str) -> None:
    """Both read the same value, or fail with the same message."""
    why, got = "", None
    try:
        got = wire.read(S, wire.load_one(text), lenient=True)
    except ApiError as error:
        why = error.description.removeprefix("invalid JSON: ")
    assert why == said.replace("value of type main.S", "value of type server.S")
    assert why or dataclasses.asdict(got) == without_nulls(value)


@pytest.mark.parametrize("text, value, said", CASES, ids=[repr(text) for text, _, _ in CASES])
def test_tokens_are_read_as_by_go(text: bytes, value: dict[str, Any], said: str) -> None:
    """Both read the same value, or fail; tokens have no field of type uint64."""
    if b"18446744073709551615" in text or b'"unum":-0' in text:
        return
    try:
        got = by_fields(text)
    except TokenError:
        assert said
        return
    assert not said
    assert got == without_nulls(value)


@pytest.mark.parametrize("text, value", [
    (b"", None), (b" \n", None), (b'{"a":1}{"b":2}', {"a": 1, "b": 2}),
    (b'{"a":{"b":1}} {"a":{"c":2}}', {"a": {"c": 2}}),
    (b"1 null", 1)])
def test_several_values_are_decoded_into_one(text: bytes, value: object) -> None:
    """Several values are decoded as by Go's Decoder; the reader of a nested object merges its members."""
    assert decode_all(text) == value


def test_what_is_decoded_without_a_type_is_sorted_and_has_the_last_of_each_member() -> None:
    """Values are read like a signing key's scope: Go decodes it to a map, encodes that, and decodes the text again."""
    found = generic(unmarshal(b'{"b":1,"a":{"x":1,"y":2},"B":1e2,"a":{"x":3.5},"c":12345678901234567890123}'))
    assert list(found.items()) == [("B", 100), ("a", {"x": "3.5"}), ("b", 1), ("c", "1.2345678901234568e+22")]


@given(st.text(max_size=8))
def test_only_names_that_go_holds_for_equal_are_equal(name: str) -> None:
    """No letter that becomes several, such as U+00DF, is equal to an ASCII name."""
    plain = name.replace("\u017f", "s").replace("\u212a", "k")
    assert folded(name) == folded(plain)
    assert folded(name).isascii() == plain.isascii()


@pytest.mark.parametrize("one", [
    b'"pub":{"deny":["a"]}', b'"src":["a"]', b'"times":[{"start":"1"}]', b'"exp":1', b'"meta":{"a":"b"}'])
def test_a_field_that_is_assigned_again_and_again_takes_no_more_than_its_length(one: bytes) -> None:
    """40 000 members take 8 times the processor time of 5000, and not 64 times.

    A full collection during one of them would examine all that the tests before this one have left.
    """
    def seconds(count: int) -> float:
        text = b"{%b}" % b",".join([one] * count)
        gc.disable()
        begun = time.thread_time()
        try:
            wire.read(S, wire.load_one(text))
            by_fields(text)
            return time.thread_time() - begun
        finally:
            gc.enable()

    assert min(seconds(40_000) for _ in range(3)) < 24 * min(seconds(5_000) for _ in range(3))


@pytest.mark.parametrize("text", [
    b'{"src":%b,"src":%b}' % ((b"[" * 900 + b"]" * 900,) * 2), b'{"src":' * 900 + b"1" + b"}" * 900])
def test_deep_nesting_is_an_error(text: bytes) -> None:
    """Each reader raises its own kind of error."""
    with pytest.raises(TokenError):
        by_fields(text)
    with pytest.raises(ApiError):
        wire.read(S, wire.load_one(text))
    try:
        generic(unmarshal(text))
    except JsonError:
        pass


def test_members_come_with_their_repetitions() -> None:
    """``assigned`` returns names of fields, and ``members`` returns names as they are written."""
    value = unmarshal(b'{"A":1,"b":2,"a":3,"A":4}')
    assert list(members(value)) == [("A", 1), ("b", 2), ("a", 3), ("A", 4)]
    assert list(assigned(value, ("a",))) == [("a", 1), ("a", 3), ("a", 4)]
