"""The small objects and the opening: round trips, wrong owners, damage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.storage.format.checkpoint import Root
from broker.storage.format.claim import Claim, Seal
from broker.storage.format.document import decode_document, encode_document
from broker.storage.format.errors import Corrupt, FormatError, VersionUnknown
from broker.storage.format.header import FORMAT_VERSION, HEADER_BYTES, ObjectHeader, ObjectKind, Position
from broker.storage.format.page import PageKind, PageRef
from broker.storage.format.records.opening import SHARDS_VERSION, Opening
from broker.storage.format.store import JOURNAL_VERSION, StoreFormat
from tests.storage.format.whole import AT, NONCE, decode_plain

ROOT = Root(AT, Position(2, 9), (PageRef(Position(2, 9), 100, 64, PageKind.DIRECTORY, 7),), {"letgo": [["k", 1]]})
SEAL = Seal(AT, "broker-b", 4, NONCE, 1_700_000_000_000_000_000)
CLAIM = Claim(3, "broker-ä", NONCE, 1_700_000_000_000_000_000)
STORE = StoreFormat.make(bytes(16), 1_700_000_000_000_000_000)
EACH = [(ObjectKind.ROOT, AT, ROOT.encode(NONCE)), (ObjectKind.SEAL, AT, SEAL.encode()),
        (ObjectKind.CLAIM, Position(3, 0), CLAIM.encode()), (ObjectKind.FORMAT, Position(0, 0), STORE.encode()),
        (ObjectKind.INBOX, Position(0, 0), encode_document(ObjectKind.INBOX, Position(0, 0), NONCE, {"adopt": []}))]


def test_each_reads_back() -> None:
    """Shows the round trips."""
    assert Root.decode(ROOT.encode(NONCE), AT) == ROOT
    assert Seal.decode(SEAL.encode(), AT) == SEAL
    assert Claim.decode(CLAIM.encode(), 3) == CLAIM
    assert StoreFormat.decode(STORE.encode()) == STORE
    data = encode_document(ObjectKind.INBOX, Position(0, 0), NONCE, {"adopt": ["r"]}, 77)
    assert decode_document(data, ObjectKind.INBOX, None, 77)[1] == {"adopt": ["r"]}


@pytest.mark.parametrize(("kind", "position", "data"), EACH)
def test_damage_is_noticed(kind: ObjectKind, position: Position, data: bytes) -> None:
    """Shows that any flipped bit, cut or extension of a small object is Corrupt."""
    for at in range(len(data)):
        for bit in range(8):
            bad = bytearray(data)
            bad[at] ^= 1 << bit
            with pytest.raises(Corrupt):
                decode_plain(bytes(bad), kind, position)
    for bad in [data[:length] for length in range(len(data))] + [data + b"\x00"]:
        with pytest.raises(Corrupt):
            decode_plain(bytes(bad), kind, position)


@pytest.mark.parametrize(("kind", "position", "data"), EACH)
def test_an_object_under_another_key_is_noticed(kind: ObjectKind, position: Position, data: bytes) -> None:
    """Shows that the header ties an object to its kind, epoch and number."""
    with pytest.raises(Corrupt, match="holds the bytes of"):
        decode_document(data, kind, Position(position.epoch, position.number + 1))
    with pytest.raises(Corrupt, match="holds the bytes of"):
        decode_document(data, kind, Position(position.epoch + 1, position.number))
    for other in ObjectKind:
        if other is not kind:
            with pytest.raises(Corrupt, match="holds the bytes of"):
                decode_document(data, other, position)


def test_a_newer_version_is_reported_as_newer() -> None:
    """Shows that an intact header of a newer broker is VersionUnknown, and that a broken one never is."""
    newer = ObjectHeader(ObjectKind.SEAL, AT, NONCE, 100, version=FORMAT_VERSION + 1).pack()
    with pytest.raises(VersionUnknown, match="format version 5"):
        ObjectHeader.unpack(newer)
    body = {"version": JOURNAL_VERSION + 1, "store_id": NONCE, "made_at_ns": 1}
    with pytest.raises(VersionUnknown):
        StoreFormat.decode(encode_document(ObjectKind.FORMAT, Position(0, 0), NONCE, body))


@given(st.integers(0, (1 << 32) - 1), st.integers(0, (1 << 48) - 1), st.sampled_from(ObjectKind),
       st.binary(min_size=16, max_size=16), st.integers(64, (1 << 64) - 1), st.integers(0, (1 << 64) - 1))
def test_headers_read_back(epoch: int, number: int, kind: ObjectKind, nonce: bytes, size: int, object_id: int) -> None:
    """Shows the round trip of the common header over its whole range."""
    header = ObjectHeader(kind, Position(epoch, number), nonce, size, object_id)
    packed = header.pack()
    assert len(packed) == HEADER_BYTES
    assert ObjectHeader.unpack(packed + b"more") == header


def test_a_position_that_no_key_has_cannot_be_written() -> None:
    """Shows the writer's own check."""
    for position in (Position(1 << 32, 0), Position(0, 1 << 48), Position(-1, 0)):
        with pytest.raises(ValueError, match="no key has this position"):
            ObjectHeader(ObjectKind.SEAL, position, NONCE, 64).pack()


def _with(body: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {key: value for key, value in {**body, **changes}.items() if value is not ...}


@pytest.mark.parametrize("change", [
    {"pages": 3}, {"pages": [[1, 2]]}, {"pages": [[1, 2, 3, 4, 5, -6]]}, {"pages": ["abcdef"]}, {"extra": ...},
    {"extra": []}, {"replay_from": [1]}, {"replay_from": ["a", 2]}, {"replay_from": [9, 9]}, {"replay_from": ...}])
def test_a_root_with_wrong_fields_is_corrupt(change: dict[str, Any]) -> None:
    """Shows that intact bytes with a wrong shape end in Corrupt too, never in another exception."""
    body = {"replay_from": [2, 9], "pages": [], "extra": {}}
    Root.decode(encode_document(ObjectKind.ROOT, AT, NONCE, body), AT)
    with pytest.raises(Corrupt):
        Root.decode(encode_document(ObjectKind.ROOT, AT, NONCE, _with(body, **change)), AT)


OPENING = Opening("broker-a", (Position(1, 17), Position(2, 0)), 1_700_000_000_000_000_000)


def test_openings_read_back_and_keep_older_readers_out() -> None:
    """Shows the opening's body and its lowest reader version."""
    assert Opening.decode(OPENING.encode()) == OPENING
    with pytest.raises(VersionUnknown):
        Opening.decode(replace(OPENING, reader_version=SHARDS_VERSION + 1).encode())


@pytest.mark.parametrize("change", [{"owner": 1}, {"owner": ...}, {"ends": [[1]]}, {"ends": [[1, -1]]}, {"ends": None},
                                    {"ends": ["ab"]}, {"reader_version": True}, {"at_ns": "now"}])
def test_an_opening_with_wrong_fields_is_corrupt(change: dict[str, Any]) -> None:
    """Shows that a malformed opening ends in Corrupt."""
    with pytest.raises(Corrupt):
        Opening.decode(_with(OPENING.encode(), **change))


@pytest.mark.parametrize("decode", [
    lambda data: Root.decode(data, AT), lambda data: Seal.decode(data, AT), lambda data: Claim.decode(data, 3),
    StoreFormat.decode])
@given(noise=st.binary(max_size=200))
def test_noise_is_refused(decode: Callable[[bytes], object], noise: bytes) -> None:
    """Shows that random bytes raise nothing but a FormatError."""
    with pytest.raises(FormatError):
        decode(noise)
