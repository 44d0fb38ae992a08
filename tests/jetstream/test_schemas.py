"""The check of messages against their schemas: it notices each fault, and each type of message has a schema."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.jetstream.differential import coverage
from tests.jetstream.schemas import PUB_ACK, TYPES, broken

WITHOUT = {"api.v1.stream_cancel_move_response", "api.v1.stream_evacuate_peer_response", "api.v1.system_response"}
"""The types without a schema in jsm.go: two are refusals on a server that stands alone, the third is one of an account
without JetStream.
"""

INFO = {"name": "S", "created": "2026-01-02T03:04:05.123456789Z", "config": {
    "name": "S", "subjects": ["s"], "retention": "limits", "max_consumers": -1, "max_msgs": -1, "max_bytes": -1,
    "max_age": 0,
    "max_msg_size": -1, "storage": "file", "num_replicas": 1, "discard": "old", "metadata": {"a": "b"}},
    "state": {"messages": 1, "bytes": 34, "first_seq": 1, "last_seq": 1, "consumer_count": 0}}
ACTION = {"id": "x", "timestamp": "2026-01-02T03:04:05Z", "stream": "S", "action": "create"}


def faults(kind: str, message: dict[str, Any]) -> set[str]:
    """Return the faults of a message of ``kind``, without the words that name it."""
    found = broken(json.dumps({"type": "io.nats.jetstream." + kind} | message).encode())
    return {one.split(": ", 1)[1] for one in found}


def test_each_type_has_a_schema() -> None:
    sent = {"io.nats.jetstream." + kind for kind in {*coverage.TYPES, *coverage.TYPES_ELSEWHERE} - WITHOUT} | {PUB_ACK}
    assert sent <= TYPES.keys()


def test_sound_messages() -> None:
    assert faults("api.v1.stream_info_response", INFO) == set()
    assert faults("api.v1.stream_info_response",
                  {"error": {"code": 404, "err_code": 10059, "description": "x"}}) == set()
    assert broken(b'{"stream":"S","seq":1,"duplicate":true}') == set()
    assert broken(b"{no JSON") == broken(b"[]") == broken(b'{"type": "of others", "x": 1}') == set()


@pytest.mark.parametrize("change, fault", [
    ({"created": 1}, "/created: not string"),
    ({"created": "yesterday"}, "/created: no date-time"),
    ({"state": INFO["state"] | {"messages": "1"}}, "/state/messages: not integer"),
    ({"state": INFO["state"] | {"messages": True}}, "/state/messages: not integer"),
    ({"state": INFO["state"] | {"messages": -1}}, "/state/messages: below 0"),
    ({"config": INFO["config"] | {"retention": "never"}},
     "/config/retention: not one of ['limits', 'interest', 'workqueue']"),
    ({"config": INFO["config"] | {"name": "a.b"}}, "/config/name: not like ^[^.*>]*$"),
    ({"config": INFO["config"] | {"metadata": {"a": 1}}}, "/config/metadata/*: not string"),
    ({"config": INFO["config"] | {"subjects": ["a", 1]}}, "/config/subjects[]: not string"),
])
def test_changes_that_break_a_stream_s_info(change: dict[str, Any], fault: str) -> None:
    assert faults("api.v1.stream_info_response", INFO | change) == {fault}


def test_members_that_are_missing_or_not_known() -> None:
    del (less := dict(INFO))["state"]
    assert faults("api.v1.stream_info_response", less) == {"/state: missing"}
    assert faults("advisory.v1.stream_action", ACTION) == set()
    assert faults("advisory.v1.stream_action", ACTION | {"why": "x"}) == {"/why: not known"}


def test_an_answer_quoted_by_an_audit() -> None:
    """Shows that the answer within it is checked as if it had come by itself."""
    answer = {"type": "io.nats.jetstream.api.v1.stream_info_response"} | INFO | {"created": 1}
    assert "/created: not string" in faults("advisory.v1.api_audit", {"response": json.dumps(answer)})
