"""Records: known ones are read back, unknown ones are skipped or refused by their bit, broken ones are Corrupt."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.storage.format.block import BlockCore, decode_core, encode_core
from broker.storage.format.codec import pack_value
from broker.storage.format.errors import Corrupt, FormatError, RecordUnknown
from broker.storage.format.record import Record, decode_records, encode_records
from broker.storage.format.records.kinds import RecordKind
from tests.storage.format.whole import AT


def _decode(data: bytes, **how: bool) -> list[Record]:
    return decode_records(data, stream_id=7, name="segment x", offset=100, **how)


KNOWN = Record.of(RecordKind.CEILING, 5, {"seq": 65_536})
OPTIONAL = Record(200, 5, pack_value({"new": 1}), must_understand=False)
NEEDED = Record(201, 5, pack_value({"new": 1}), version=3)
NEWER = Record(RecordKind.CEILING, 5, pack_value({"seq": 1}), version=2)


def test_an_unknown_record_is_skipped_unless_it_must_be_understood() -> None:
    """Shows both sides of the bit; inspect sees all of them."""
    assert _decode(encode_records([OPTIONAL, KNOWN, OPTIONAL])) == [KNOWN]
    for bad in (NEEDED, NEWER):
        data = encode_records([KNOWN, bad])
        with pytest.raises(RecordUnknown, match=f"record kind {bad.kind} version {bad.version}") as caught:
            _decode(data)
        assert (caught.value.stream_id, caught.value.kind, caught.value.version) == (7, bad.kind, bad.version)
        assert _decode(data, everything=True) == [KNOWN, bad]


def test_an_unknown_record_concerns_only_its_own_block() -> None:
    """Shows that the error comes from the core of that block, and can be sent between Spark's processes."""
    data = encode_core(BlockCore(7, AT, records=[NEEDED]))
    with pytest.raises(RecordUnknown) as caught:
        decode_core(data, AT, 7, name="segment x")
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (str(copy), copy.kind) == (str(caught.value), 201)
    assert decode_core(data, AT, 7, everything=True).records == [NEEDED]
    corrupt = Corrupt("segment x", "index", 9, "why")
    assert str(pickle.loads(pickle.dumps(corrupt))) == str(corrupt) == "segment x: index at byte 9: why"


def test_the_body_is_a_copy_of_the_value_that_was_added() -> None:
    """Shows that writer and reader get the same values: tuples become lists, lone surrogates are unchanged."""
    config = {"name": "\ud800", "subjects": ("a", "b"), 5: b"\x00"}
    record = Record.of(RecordKind.STREAM_CREATE, 0, config)
    config["name"] = "changed"
    assert record.body == {"name": "\ud800", "subjects": ["a", "b"], 5: b"\x00"}
    assert _decode(encode_records([record]))[0].body == record.body


def test_a_body_that_is_not_msgpack_is_corrupt() -> None:
    """Shows that a writer's error under an intact checksum ends in Corrupt too."""
    for packed in (b"", b"\xc1", b"\x01\x02", b"\xdd\xff\xff\xff\xff", b"\x91" * 5000, b"\xa1\xff"):
        with pytest.raises(Corrupt):
            _ = Record(RecordKind.CEILING, 0, packed).body


@given(st.binary(max_size=100))
def test_noise_is_records_or_an_error(noise: bytes) -> None:
    """Shows that the framing never reads beyond its section."""
    try:
        records = _decode(noise, everything=True)
    except FormatError:
        return
    assert encode_records(records) == noise
