"""Requests and configurations between JSON and dataclasses: every input either decodes or raises ApiError 10025.

The texts of errors are nats-server's; differential/test_api.py compares them with the real server's.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.base.gojson.messages import syntax_error
from broker.base.gotime import ZERO_TIME, ZERO_TIME_NS, format_duration, format_time, parse_time
from broker.jetstream.api.messages import GetRequest
from broker.jetstream.config.types import (
    ConsumerConfig,
    ConsumerCreateRequest,
    StreamConfig,
    StreamConfigRequest,
    StreamSource,
)
from broker.jetstream.wire import fields as wire
from broker.jetstream.wire.errors import ApiError

JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
                    | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8)


def reads(of: type[Any], value: object) -> Any:
    """Return ``value`` as an ``of``, None if it is refused as an unreadable request; anything else raises."""
    try:
        return wire.read(of, value() if callable(value) else value)
    except ApiError as error:
        if error.err_code != 10025:
            raise
    return None


def complaint(text: bytes, of: type[Any] = StreamConfigRequest) -> str:
    """Return the error text for an unreadable request, without its common prefix."""
    with pytest.raises(ApiError) as caught:
        wire.read(of, wire.load(text))
    assert (caught.value.code, caught.value.err_code) == (400, 10025)
    return caught.value.description.removeprefix("invalid JSON: ")


@pytest.mark.shows("api.strict_json")
@pytest.mark.parametrize("text, expected", [
    (b'{"max_msgs":"x"}',
     "json: cannot unmarshal string into Go struct field StreamConfigRequest.max_msgs of type int64"),
    (b'{"max_age":1.5}',
     "json: cannot unmarshal number 1.5 into Go struct field StreamConfigRequest.max_age of type time.Duration"),
    (b'{"max_msgs":9223372036854775808}', "json: cannot unmarshal number 9223372036854775808 into Go struct field "
                                          "StreamConfigRequest.max_msgs of type int64"),
    (b'{"subjects":[1]}', "json: cannot unmarshal number into StreamConfigRequest.subjects.0 of type string"),
    (b'{"consumer_limits":{"max_ack_pending":"x"}}', "json: cannot unmarshal string into Go struct field "
                                                     "StreamConfigRequest.consumer_limits.max_ack_pending of type int"),
    (b"[]", "json: cannot unmarshal array into Go value of type server.StreamConfigRequest"),
    (b'{"bogus":1}', 'json: unknown field "bogus"'),
    (b'{"mirror":{"bogus":1}}', 'json: unknown field "bogus"'),
    (b'{"retention":"x"}', r'can not unmarshal "\"x\""'),
    (b'{"retention":null}', 'can not unmarshal "null"'),
    (b'{"compression":1}', "json: cannot unmarshal number into Go value of type string"),
    (b'{"mirror":{"opt_start_time":"x"}}',
     'parsing time "x" as "2006-01-02T15:04:05Z07:00": cannot parse "x" as "2006"'),
    (b'{"mirror":{"opt_start_time":"2020-02-30T00:00:00Z"}}',
     'parsing time "2020-02-30T00:00:00Z": day out of range'),
    (b"{", "unexpected EOF"),
    (b'{"a" 1}', "invalid character '1' after object key at offset 6"),
    ('{"é" x}'.encode(), "invalid character 'x' after object key at offset 7"),
    (b"{'a'", r"invalid character '\'' looking for beginning of object key string at offset 2"),
    (b'{"a":"\n"}', r"invalid character '\n' in string at offset 7"),
    (b"NaN", "invalid character 'N' looking for beginning of value at offset 1"),
    (b'{"name":Infinity}', "invalid character 'I' looking for beginning of value at offset 9"),
    (b"[" * 100_000, "exceeded max depth"),
])
def test_errors_have_the_decoders_words(text: bytes, expected: str) -> None:
    assert complaint(text) == expected


def test_names_match_without_case_and_null_changes_nothing() -> None:
    config = wire.read(StreamConfigRequest, wire.load(b'{"NAME":"S","Max_Msgs":3,"metadata":null,"max_age":null}'))
    assert (config.name, config.max_msgs, config.metadata, config.max_age) == ("S", 3, {}, 0)


def test_nothing_at_all_gives_defaults() -> None:
    assert wire.read(StreamConfig, wire.load(b" \n")) == StreamConfig()


def test_later_values_in_one_body_are_laid_over_earlier_ones() -> None:
    assert wire.load(b'{"a":1,"b":2} {"b":3}') == {"a": 1, "b": 3}


def test_half_a_surrogate_pair_becomes_the_replacement_character() -> None:
    assert wire.read(StreamConfig, wire.load(rb'{"name":"a\ud800b"}')).name == "a\ufffdb"


def test_a_lenient_request_passes_over_unknown_fields_but_not_over_wrong_types() -> None:
    assert wire.read(GetRequest, {"seq": 1, "bogus": 2}, lenient=True).seq == 1
    with pytest.raises(ApiError):
        wire.read(GetRequest, {"seq": "1"}, lenient=True)


def test_a_new_configuration_shows_what_nats_server_shows() -> None:
    assert list(StreamConfig(name="S").to_json()) == [
        "name", "retention", "max_consumers", "max_msgs", "max_bytes", "max_age", "max_msgs_per_subject", "discard",
        "storage", "num_replicas", "compression", "allow_direct", "mirror_direct", "sealed", "deny_delete",
        "deny_purge", "allow_rollup_hdrs", "consumer_limits", "allow_msg_ttl"]
    assert ConsumerConfig().to_json() == {"deliver_policy": "all", "ack_policy": "none", "replay_policy": "instant",
                                          "num_replicas": 0}


def test_object_storage_is_the_file_storage_that_clients_know() -> None:
    assert StreamConfig.from_json({"name": "S", "storage": "object"}).to_json()["storage"] == "file"


def test_configurations_survive_the_log() -> None:
    """A stored record gives the same configuration back, including nested parts and times."""
    config = StreamConfig.from_json({
        "name": "S", "subjects": ["a", "b.>"], "metadata": {"b": "1", "a": "2"}, "persist_mode": "async",
        "sources": [{"name": "T", "opt_start_time": "2024-02-29T12:00:00.5Z", "external": {"api": "x", "deliver": ""},
                     "subject_transforms": [{"src": "a", "dest": "b"}]}],
        "placement": {"tags": ["x"]}, "consumer_limits": {"max_ack_pending": 5}})
    assert isinstance(config.sources[0], StreamSource)
    assert StreamConfig.from_json(json.loads(json.dumps(config.to_json()))) == config
    consumer = ConsumerConfig.from_json({
        "durable_name": "D", "backoff": [1, 2], "opt_start_time": "1970-01-01T00:00:00Z",
        "pause_until": "2100-01-01T00:00:00Z", "priority_policy": "overflow"})
    assert consumer.opt_start_time == 0
    assert ConsumerConfig.from_json(consumer.to_json()) == consumer


@pytest.mark.parametrize("at_ns, shown", [
    (0, "1970-01-01T00:00:00Z"),
    (1_700_000_000_000_000_000, "2023-11-14T22:13:20Z"),
    (1_700_000_000_120_000_000, "2023-11-14T22:13:20.12Z"),
    (1_700_000_000_000_000_001, "2023-11-14T22:13:20.000000001Z"),
    (-1, "1969-12-31T23:59:59.999999999Z"),
    (ZERO_TIME_NS, ZERO_TIME),
])
def test_times_are_shown_and_read_alike(at_ns: int, shown: str) -> None:
    assert format_time(at_ns) == shown
    assert parse_time(shown) == at_ns


def test_times_of_other_zones_are_the_same_instants() -> None:
    assert parse_time("2024-01-01T02:00:00+02:00") == parse_time("2023-12-31T23:30:00-00:30")


@pytest.mark.parametrize("ns, shown", [
    (0, "0s"), (1, "1ns"), (1500, "1.5µs"), (100_000_000, "100ms"), (1_500_000_000, "1.5s"), (120_000_000_000, "2m0s"),
    (3_661_000_000_000, "1h1m1s"), (-1_000_000, "-1ms"),
])
def test_durations_are_shown_as_go_shows_them(ns: int, shown: str) -> None:
    assert format_duration(ns) == shown


@given(st.binary(max_size=60) | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_bytes_decode_or_are_refused(data: bytes) -> None:
    for of in (StreamConfigRequest, ConsumerCreateRequest, GetRequest):
        for load in (wire.load, wire.load_one):
            made = reads(of, lambda load=load: load(data))
            if made is not None:
                wire.dump(wire.write(made))


@given(st.dictionaries(st.sampled_from([*StreamConfig().to_json(), "mirror", "sources", "placement", "subjects"]),
                       JSON))
def test_any_values_in_known_fields_decode_or_are_refused(value: dict[str, Any]) -> None:
    config = reads(StreamConfig, value)
    assert config is None or StreamConfig.from_json(config.to_json()) == config


@given(st.text(max_size=40))
def test_the_word_for_a_syntax_error_is_always_found(source: str) -> None:
    try:
        json.loads(source)
    except ValueError:
        assert syntax_error(source)


@pytest.mark.shows("api.errors")
def test_an_error_carries_its_code_and_its_words() -> None:
    error = ApiError(10071, seq=7)
    assert error.to_json() == {"code": 400, "err_code": 10071, "description": "wrong last sequence: 7"}
