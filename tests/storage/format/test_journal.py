"""The bytes of the journal: every commit is read back, and no other bytes are ever read as one."""

from __future__ import annotations

import random
from collections.abc import Sequence
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.storage.format.block import Outcome, Removed
from broker.storage.format.errors import Corrupt, VersionUnknown
from broker.storage.format.journal import (
    AREA_HEADER_BYTES,
    Area,
    AreaHeader,
    Commit,
    EncodedCommit,
    JournaledBlock,
    decode_area,
    encode_commit,
    encode_message,
    encode_record,
    segments_of,
)
from broker.storage.format.record import Record

NONCE = bytes(range(16))
HEADER = AreaHeader(7, NONCE, 3)
LATER = HEADER._replace(serial=4)
OUTCOME = Outcome(1, 9, 9, 387, 1000)


def area_of(commits: Sequence[EncodedCommit], header: AreaHeader = HEADER) -> bytes:
    """Return the bytes of an area with these encoded commits."""
    return header.encode() + b"".join(b"".join(encode_record(commit, at, header.seed))
                                      for at, commit in enumerate(commits))


def plain(segment: int, number: int, closes: bool = False) -> Commit:
    return Commit(segment, number, closes, [JournaledBlock(5, OUTCOME, [], [], None, [], [], [], [])])


def decoded(data: bytes) -> Area:
    area = decode_area(data)
    assert area is not None
    return area


def commits_in(data: bytes) -> list[Commit]:
    area = decoded(data)
    return [area.commit(place.start, place.end) for place in area.places()]


numbers = st.integers(0, (1 << 64) - 1)
times = st.integers(0, (1 << 63) - 1)
records = st.builds(Record.of, st.integers(1, 200), numbers, st.lists(st.integers(0, 9)), st.booleans())
blocks = st.builds(
    JournaledBlock, numbers, st.builds(Outcome, numbers, numbers, numbers, numbers, times),
    st.lists(st.tuples(numbers, st.integers(1, 9), times)), st.lists(st.binary()),
    st.none() | st.lists(st.integers(0, 99)), st.lists(st.binary()),
    st.lists(st.builds(Removed, numbers, numbers, numbers, numbers)), st.lists(records), st.lists(records))
commits = st.builds(Commit, st.integers(0, (1 << 48) - 1), st.integers(0, (1 << 32) - 1), st.booleans(),
                    st.lists(blocks, max_size=3))


@given(st.lists(commits, max_size=5))
def test_commits_are_read_back(written: list[Commit]) -> None:
    """Shows that an area has all of its commits, in order, whatever they contain."""
    data = area_of(list(map(encode_commit, written)))
    assert (decoded(data).header, commits_in(data)) == (HEADER, written)
    assert [place[:3] for place in decoded(data).places()] == [commit[:3] for commit in written]


@given(numbers, st.integers(1, (1 << 63) - 1), times, st.binary(), st.binary())
def test_the_fast_form_of_a_message_is_read_back(stream_id: int, seq: int, time_ns: int, subject: bytes, body: bytes
                                                 ) -> None:
    """Shows that the form of a single message is decoded to the same value as the general one."""
    fast = encode_message(4, 2, stream_id, OUTCOME, (seq, 1, time_ns), subject, body)
    block = JournaledBlock(stream_id, OUTCOME, [(seq, 1, time_ns)], [subject], None, [body])
    general = encode_commit(Commit(4, 2, False, [block]))
    [[one], [other]] = [[block._replace(removed=(), records=(), listed=()) for block in commit.blocks]
                        for area in (area_of([fast]), area_of([general])) for commit in commits_in(area)]
    assert one == other


@given(st.lists(commits, max_size=3), st.data())
def test_large_bodies_are_written_where_they_are(written: list[Commit], data: st.DataObject) -> None:
    """Shows that a commit with known checksums of some bodies has these bodies as parts, and is read back."""
    encoded = []
    for commit in written:
        crcs = {number: {place: crc32(body) for place, body in enumerate(block.bodies) if data.draw(st.booleans())}
                for number, block in enumerate(commit.blocks)}
        known = {number: places for number, places in crcs.items() if places}
        encoded.append(encode_commit(commit, known))
        bodies = [commit.blocks[number].bodies[place] for number, places in known.items() for place in places]
        assert [encoded[-1].parts[place] for place in encoded[-1].crcs] == bodies
    assert commits_in(area_of(encoded)) == written


@given(st.binary(), st.binary(min_size=1))
def test_a_large_body_changes_no_byte_of_a_message(subject: bytes, body: bytes) -> None:
    """Shows that a record has the same bytes, and so the same checksum, if the checksum of the body is known."""
    plain, large = (encode_message(4, 2, 5, OUTCOME, (9, 1, 1000), subject, body, crc) for crc in (None, crc32(body)))
    assert large.parts[1] is body
    assert b"".join(encode_record(large, 3, 77)) == b"".join(encode_record(plain, 3, 77))


def test_the_bytes_are_as_documented() -> None:
    """Shows the layout: a change of it needs a new version."""
    message = encode_message(4, 2, 5, OUTCOME, (9, 1, 1000), b"s.a", b"hello")
    data = area_of([message, encode_commit(plain(4, 3, closes=True))])
    assert data[:40].hex() == "4a45544a4f55524e" "0100" "0000" "07000000" "0300000000000000" + NONCE.hex()
    first = data[AREA_HEADER_BYTES:]
    assert first[:4] == (14 + 8 * 3 + 8 * 5 + 4 + 8).to_bytes(4, "little")
    assert first[8:22].hex() == "01" "00" "0400000000000000" "02000000"
    assert first[22:22 + 24].hex() == "0500000000000000" "0900000000000000" "e803000000000000"
    assert first[86:98] == (3).to_bytes(4, "little") + b"s.ahello"
    assert data.endswith(bytes.fromhex("02" "01" "0400000000000000" "03000000" "9199059501" "09" "09" "cd0183" "cd03e8"
                                       "90" "90" "c0" "90" "90" "90" "90"))


@given(st.data())
def test_a_torn_record_ends_the_area(data: st.DataObject) -> None:
    """Shows that after a change of any byte, a prefix of the commits is left, and nothing else."""
    written = [plain(1, at) for at in range(data.draw(st.integers(1, 6)))]
    whole = bytearray(area_of(list(map(encode_commit, written))))
    at = data.draw(st.integers(AREA_HEADER_BYTES, len(whole) - 1))
    whole[at] ^= data.draw(st.integers(1, 255))
    left = commits_in(bytes(whole))
    each = (len(whole) - AREA_HEADER_BYTES) // len(written)
    assert left == written[:(at - AREA_HEADER_BYTES) // each]


@given(st.integers(0, 1 << 40), st.integers(1, 1 << 31), st.integers(0, 3))
def test_a_record_of_an_earlier_lap_is_never_valid(serial: int, later: int, at: int) -> None:
    """Shows that a record is refused in the same place of an area with any later serial."""
    old = b"".join(encode_record(encode_commit(plain(1, at)), at, AreaHeader(7, NONCE, serial).seed))
    header = AreaHeader(7, NONCE, serial + later)
    new = area_of([encode_commit(plain(9, number)) for number in range(at)], header)
    assert len(commits_in(new + old)) == at


@given(st.binary(max_size=200))
def test_any_bytes_are_an_area_or_none(data: bytes) -> None:
    """Shows that arbitrary bytes neither raise nor give a commit."""
    assert decode_area(data) is None
    assert commits_in(HEADER.encode() + data) == []


def test_a_newer_version_is_not_skipped() -> None:
    """Shows that an intact journal of a newer release is an error: it may have acknowledged messages."""
    data = bytearray(HEADER.encode())
    data[8] = 2
    data[40:44] = crc32(bytes(data[:40])).to_bytes(4, "little")
    with pytest.raises(VersionUnknown, match="version 2"):
        decode_area(bytes(data))


@pytest.mark.parametrize("commit", [b"", b"\x01", bytes((9,)).ljust(14, b"\0"), bytes((2,)).ljust(14, b"\0") + b"\xc1",
                                    bytes((2,)).ljust(14, b"\0") + b"\x91\x91\x01"])
def test_an_intact_commit_that_cannot_be_used(commit: bytes) -> None:
    """Shows that it is Corrupt, and not the end of the journal; a commit without bytes is the end."""
    if not commit:
        assert commits_in(area_of([EncodedCommit([commit], {})])) == []
        return
    with pytest.raises(Corrupt):
        commits_in(area_of([EncodedCommit([commit], {})]))


def shape(areas: Sequence[Area], first: int) -> list[tuple[int, int, bool]]:
    return [(segment.number, segment.count, segment.closed) for segment in segments_of(areas, first)]


C = plain(4, 0), plain(4, 1), plain(4, 2, closes=True), plain(5, 0, closes=True), plain(6, 0), plain(6, 1)


@pytest.mark.parametrize(("first", "left", "expected"), [
    (4, C, [(4, 3, True), (5, 1, True), (6, 2, False)]),
    (5, C, [(5, 1, True), (6, 2, False)]),
    (6, C, [(6, 2, False)]),
    (7, C, []),
    (3, C, []),
    (4, C[:2], [(4, 2, False)]),
    (4, (*C[:1], *C[2:]), [(4, 1, False)]),
    (4, C[1:], []),
    (4, (*C[:3], *C[4:]), [(4, 3, True)]),
    (5, (*C[3:4], C[5]), [(5, 1, True)]),
])
def test_the_journal_ends_at_a_gap(first: int, left: Sequence[Commit], expected: list[tuple[int, int, bool]]) -> None:
    """Shows which segments a replay finds from number ``first`` on, however the commits are divided into areas."""
    encoded = list(map(encode_commit, left))
    found = {tuple(shape([decoded(area_of(encoded[cut:], LATER)), decoded(area_of(encoded[:cut]))][::turn], first))
             for cut in range(len(left) + 1) for turn in (1, -1)}
    assert found == {tuple(expected)}


def test_random_tears_leave_a_prefix() -> None:
    """Shows that a replay of an area with random damage finds a prefix of what an intact one has."""
    rng = random.Random(1)
    whole = area_of(list(map(encode_commit, C)))
    complete = [commit for segment in segments_of([decoded(whole)], 4) for commit in segment.commits()]
    for _ in range(200):
        torn = bytearray(whole)
        start = rng.randrange(AREA_HEADER_BYTES, len(torn))
        torn[start:start + rng.randrange(40)] = rng.randbytes(rng.randrange(40))
        found = [commit for segment in segments_of([decoded(bytes(torn))], 4) for commit in segment.commits()]
        assert found == complete[:len(found)]
