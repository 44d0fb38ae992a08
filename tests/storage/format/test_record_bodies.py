"""The schemas of records' bodies: their bytes are those of the golden objects, and errors name the violation."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.storage.format.block import BlockCore, Outcome
from broker.storage.format.codec import pack_value, unpack_value
from broker.storage.format.errors import Corrupt, FormatError
from broker.storage.format.header import ObjectKind, Position
from broker.storage.format.record import Record
from broker.storage.format.records.column import pack_column, unpack_column
from broker.storage.format.records.kinds import RecordKind
from broker.storage.format.records.table import BODIES
from broker.storage.state.applied import ShardState
from tests.golden.generate import HERE
from tests.storage.format.whole import head_of

SEGMENTS = [path for path in sorted(HERE.glob("*.json"))
            if (expected := json.loads(path.read_text()))["kind"] == "SEGMENT" and "values" in expected]


def _records(name: str) -> list[Record]:
    expected = json.loads((HERE / f"{name}.json").read_text())
    head = head_of((HERE / f"{name}.bin").read_bytes(), Position(*expected["position"]),
                   kind=ObjectKind[expected["kind"]], object_id=expected.get("object_id", 0))
    return [record for i in range(len(head)) for record in head.core(i).records]


EVERY = {record.kind: record.body for name in ("segment-of-every-record", "segment-of-expiring-messages",
                                               "segment-of-schedules", "segment-of-an-adoption",
                                               "segment-of-staged-blocks", "run-with-commits-format-4",
                                               "segment-of-a-catalogue-format-4", "segment-of-moves-format-4",
                                               "segment-of-remains-format-4")
         for record in _records(name)
         if (record.kind != RecordKind.CONSUMER_STATE or "re" in record.body)  # type: ignore[operator]
         and (record.kind != RecordKind.RELEASE or "done" in record.body)}  # type: ignore[operator]
"""A body of each kind, with all keys."""


def test_every_kind_has_a_schema_and_a_golden_body() -> None:
    """Shows that no kind is missing, here or in the golden segment."""
    assert set(BODIES) == set(RecordKind) == set(EVERY)
    assert all(kind == body.KIND for kind, body in BODIES.items())


@pytest.mark.parametrize("name", [path.stem for path in SEGMENTS])
def test_golden_bodies_are_written_again_as_they_were(name: str) -> None:
    """Shows that a schema writes exactly the bytes that it read, for all records ever written by brokers."""
    for record in _records(name):
        again = Record.pack(record.decode(), record.after_seq)
        if record.kind == RecordKind.MESSAGE_IDS and name.startswith("segment-with-everything"):
            assert again.body == [[0, b"id-0"]]  # the golden body has an id as text, which no broker writes
            continue
        assert again == record


WRONG: list[tuple[int, str, Any]] = [
    (1, "account", None), (1, "name", b"bytes"), (1, "config", []), (1, "created_ns", "now"), (1, "ceiling", 1.5),
    (2, "config", None), (4, "name", 5), (4, "config", "{}"), (4, "created_ns", None), (4, "d", [1, 2]), (4, "x", [1]),
    (5, "name", None), (5, "config", None), (6, "name", 1), (7, "n", None), (7, "d", [1, 2, "3"]), (7, "d", {1: 1}),
    (7, "f", [1]), (7, "f", [1, 2, 3]), (7, "la", "1"), (7, "drop", [1.5]), (7, "drop", b"1234567"), (7, "drop", 5),
    (7, "add", [[1], [2]]), (7, "add", [[1], [2], [3, 4]]), (7, "add", 7), (7, "re", [[1, 2]]), (7, "re", {"a": 1}),
    (7, "x", "k"), (9, "seq", None), (9, "seq", "9"), (10, "segments", [[1, 2]]), (10, "pages", [[1, 2, 3]]),
    (10, "roots", [[-1, 2]]), (10, "done", {}), (11, "owner", 5), (11, "ends", [[1]]), (11, "ends", None),
    (11, "at_ns", None), (11, "reader_version", "1"), (12, "seqs", None), (12, "seqs", [1.5]),
    (12, "expires_at_ns", None),
    (10, "runs", "key"), (10, "runs", [5]), (14, "blocks", None), (14, "blocks", {}), (14, "blocks", [[1, 2]]),
    (14, "blocks", [[1, "2", []]]), (15, "blocks", None), (15, "blocks", {}), (15, "dead", {}),
    (15, "dead", [[1, 2, 3]]),
    (15, "dead", [[3, 2, 1, 1]]), (15, "dead", [[1, 3, 2, 9, b"\5\0"]]), (15, "dead", [[1, 3, 2, 9, b"\7"]]),
    (15, "dead", [[1, 3, 2, 9, b"\x0a"]]), (15, "dead", [[1, 3, 2, 9, "\5"]]), (15, "dead", [[1, 3, -1, 9]]),
    (15, "dead", [[1, 3, 2, 9, b"\5", 1]]),
    (16, "epochs", None), (16, "epochs", {}), (16, "epochs", [5]), (16, "epochs", [[1, [2]]]),
    (16, "epochs", [[1, [2], [3, 4]]]), (16, "epochs", [[1, ["2"], [3]]]), (16, "epochs", [["1", [2], [3]]]),
    (12, "expires_at_ns", [1]), (12, "expires_at_ns", b"1234567"), (13, "seqs", None), (13, "due_at_ns", [1]),
    (17, "entries", {}), (17, "gone", ["1"]), (17, "gone", {}),
    (18, "to", None), (18, "to", "2"), (19, "source", None), (19, "entry", None), (19, "entry", {})]


@pytest.mark.parametrize(("kind", "key", "value"), WRONG)
def test_a_malformed_body_is_corrupt_and_named(kind: int, key: str, value: Any) -> None:
    """Shows record and key in the error for a wrong type, shape or length; None: a missing required key."""
    body = {**EVERY[kind], key: value}  # type: ignore[dict-item]
    if value is None:
        del body[key]
    with pytest.raises(Corrupt) as caught:
        Record.of(kind, 0, body).decode()
    assert caught.value.section.startswith(f"record {kind} (")
    assert caught.value.section.endswith(f", {key}")


@pytest.mark.parametrize("kind", list(RecordKind), ids=lambda kind: kind.name)
def test_a_body_of_another_shape_is_corrupt(kind: RecordKind) -> None:
    """Shows that the error names the record also for bodies of an entirely different shape."""
    for body in (None, 5, "text", [1, 2], [[1]], [[b"id", 0]], [["ab", "cd"]]):
        with pytest.raises(Corrupt, match=rf"record {int(kind)} \("):
            Record.of(kind, 0, body).decode()


@given(st.sampled_from(RecordKind), st.recursive(
    st.none() | st.integers(-2**63, 2**64 - 1) | st.text(max_size=3) | st.binary(max_size=9)
    | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["n", "d", "f", "la", "add", "drop", "re", "x", "name", "config", "ends", "segments", "seqs",
                         "expires_at_ns", "due_at_ns"]) | st.integers(0, 99),
        inner, max_size=4), max_leaves=12))
def test_any_value_is_a_body_or_corrupt(kind: RecordKind, value: object) -> None:
    """Shows that no value ends in another error, and that a valid body stays valid when it is rewritten."""
    try:
        body = Record.of(kind, 0, value).decode()
    except FormatError:
        return
    assert BODIES[kind].decode(unpack_value(pack_value(body.encode()))) == body


@given(st.lists(st.integers(-2**63, 2**63 - 1), max_size=20))
def test_columns(numbers: list[int]) -> None:
    """Shows that a column is read back unchanged, short or long."""
    assert unpack_column(unpack_value(pack_value(pack_column(numbers)))) == numbers


def _state(*records: tuple[int, dict[str, Any]]) -> ShardState:
    state = ShardState()
    for number, (kind, body) in enumerate(records, 1):
        state.apply_segment(Position(1, number))
        stream_id = 0 if kind in (RecordKind.RELEASE, RecordKind.OPENING) else 7
        state.apply_block(BlockCore(stream_id, Position(1, number), outcome=Outcome(),
                                    records=[Record.of(kind, 0, body)]), None)
    return state


CREATED = (1, {"account": "$G", "name": "s", "config": {}, "created_ns": 1, "new": 1, "newer": 2})
CONSUMER = (4, {"name": "c", "config": {}, "created_ns": 1, "new": 1, "newer": 2, "x": {"k": 1}})


def test_unlisted_keys_are_kept_where_the_format_requires_it() -> None:
    """Shows that a newer writer's keys are kept in streams, consumers and openings, that nil removes one, and that they
    are ignored in all other records."""
    state = _state(CREATED, (2, {"config": {}, "new": None, "newest": 3}), CONSUMER,
                   (5, {"name": "c", "config": {}, "new": None, "newest": 3}),
                   (7, {"n": "c", "la": 5, "new": 9}), (9, {"seq": 8, "new": 9}), (10, {"new": 9}),
                   (11, {**EVERY[11], "new": 9}))  # type: ignore[dict-item]
    stream = state.streams[7]
    assert stream.offline is None
    assert stream.extra == {"newer": 2, "newest": 3}
    assert stream.consumers["c"].extra == {"k": 1, "newer": 2, "newest": 3}
    assert (stream.consumers["c"].last_ack_ns, stream.ceiling) == (5, 8)
    assert state.opening is not None
    assert state.opening.encode()["new"] == 9


def test_the_reason_for_an_offline_stream_names_the_record() -> None:
    """Shows that the reason has the segment, the record and the key."""
    state = _state(CREATED, CONSUMER, (7, {"n": "c", "f": [1]}))
    assert state.streams[7].offline == ("segment 00000001-000000000003 is damaged: record: record 7 (consumer state), "
                                        "f at byte 0: not a list of two integers")
    state = _state((1, {"account": "$G", "name": "s", "config": {}}))
    assert "record 1 (stream create), created_ns" in str(state.streams[7].offline)
