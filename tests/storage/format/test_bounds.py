"""False fields with valid checksums, from a faulty or malicious writer: decoding fails and allocates little."""

from __future__ import annotations

import random
import struct
import tracemalloc
from collections.abc import Callable
from typing import Any
from zlib import crc32

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.storage.format.block import CORE_FIXED_BYTES, BlockPlace, BlockRef, decode_core
from broker.storage.format.codec import Undecodable, checksum_joined, compress, compress_all, decompress
from broker.storage.format.columns import Column, Misfit, read_column
from broker.storage.format.errors import Corrupt, FormatError, VersionUnknown
from broker.storage.format.frames import decode_frame
from broker.storage.format.header import Position
from broker.storage.format.index import INDEX_FIXED_BYTES, Head, decode_index
from broker.storage.format.page import Page, PageKind, PageRef, decode_page, encode_pages
from broker.storage.format.section import SECTIONS
from broker.storage.log.writer import encode_segment, seal_block
from tests.storage.format.whole import AT, NONCE, Row, open_block

T0 = 1_700_000_000_000_000_000


def _sample() -> tuple[bytes, bytes, BlockRef, bytes]:
    """Core, index, reference and frames of a block with every column at some width."""
    rows = [Row(1 + 3 * i, T0 + 70_000 * i, b"s.%d" % (i % 20), i % 2 * 12, b"b" * (100 + i)) for i in range(60)]
    block = open_block(9, [[row] for row in rows])
    block.remove(1, 4, 2, 80)
    block.remove(9, 9, 1, 40)
    sealed = seal_block(block, AT)
    data = b"".join(encode_segment(AT, NONCE, [sealed], SECTIONS))
    ref = sealed.ref
    assert ref is not None
    return (data[ref.core_offset:ref.core_offset + ref.core_bytes],
            data[ref.index_offset:ref.index_offset + ref.index_bytes], ref, data[ref.frames_offset:])


CORE, INDEX, REF, FRAMES = _sample()


def _patched_fixed(data: bytes, fixed_bytes: int, at: int, patch: bytes) -> bytes:
    """Return ``data`` with a fixed part changed, and its checksum computed again."""
    fixed = bytearray(data[:fixed_bytes - 4])
    fixed[at:at + len(patch)] = patch
    return bytes(fixed) + crc32(fixed).to_bytes(4, "little") + data[fixed_bytes:]


def _index_body() -> bytes:
    body_bytes = struct.unpack_from("<I", INDEX, 60)[0]
    return decompress(INDEX[INDEX_FIXED_BYTES:], body_bytes)


def _index_of(body: bytes, **fields: int) -> bytes:
    """Return an index with this body, uncompressed, with valid checksums; fields overwrite counts of the fixed part."""
    fixed = bytearray(INDEX[:INDEX_FIXED_BYTES - 4])
    struct.pack_into("<IIII", fixed, 60, len(body), len(body), crc32(body), 0)
    for name, value in fields.items():
        struct.pack_into("<I", fixed, {"count": 44, "frames": 48, "subjects": 52, "names": 56}[name], value)
    return bytes(fixed) + crc32(fixed).to_bytes(4, "little") + body


def _peak(call: Callable[[], Any]) -> int:
    """Return the peak number of bytes that ``call`` allocated; it must raise a FormatError."""
    tracemalloc.start()
    try:
        with pytest.raises(FormatError):
            call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


GROUPED = _patched_fixed(INDEX, INDEX_FIXED_BYTES, 6, b"\x04")
"""The index with the flag of grouped blocks. Only its checksum can show that it is false: nothing else says whether the
bodies of a frame are sorted by subject."""


@settings(deadline=None, max_examples=400)
@given(at=st.integers(4, INDEX_FIXED_BYTES - 8), patch=st.binary(min_size=1, max_size=4))
def test_a_false_index_header_is_refused(at: int, patch: bytes) -> None:
    """Shows that no field of the fixed part, but for one flag, is trusted without being checked against the rest."""
    bad = _patched_fixed(INDEX, INDEX_FIXED_BYTES, at, patch)
    if bad not in (INDEX, GROUPED):
        with pytest.raises(FormatError):
            decode_index(bad, REF)


@settings(deadline=None, max_examples=600)
@given(data=st.data())
def test_a_false_index_body_is_refused_or_consistent(data: st.DataObject) -> None:
    """Shows that for any body, decoding ends in Corrupt or in a consistent table."""
    body = bytearray(_index_body())
    at = data.draw(st.integers(0, len(body) - 1))
    patch = data.draw(st.binary(min_size=1, max_size=9))
    body[at:at + len(patch)] = patch
    try:
        head = decode_index(_index_of(bytes(body)), REF)
    except FormatError:
        return
    _walk(head)


def _walk(head: Head) -> None:
    assert sum(frame.messages for frame in head.frames) == head.count
    assert sum(map(len, map(head.postings, range(len(head.subjects))))) <= head.count
    for ordinal in range(head.count):
        assert head.subject_of(ordinal) in head.subjects
        assert REF.first_seq <= head.seq_of(ordinal) <= REF.last_seq
        assert head.time_of(ordinal) >= 0
    for number, frame in enumerate(head.frames):
        try:
            chunk = decode_frame(head, number, FRAMES[frame.offset:frame.offset + frame.stored_bytes])
        except FormatError:
            continue
        assert len(chunk) == frame.messages


@settings(deadline=None, max_examples=400)
@given(at=st.integers(4, CORE_FIXED_BYTES - 8), patch=st.binary(min_size=1, max_size=4))
def test_a_false_core_header_ends_in_an_error_or_other_counts(at: int, patch: bytes) -> None:
    """Shows that a core's fixed part never leads outside its bytes. Plain counts (bytes 44 to 132) cannot be checked,
    nor the flag of a subject filter (in byte 6)."""
    bad = _patched_fixed(CORE, CORE_FIXED_BYTES, at, patch)
    if bad == CORE:
        return
    try:
        decode_core(bad, AT, 9)
    except FormatError:
        return
    assert 6 <= at < 132 or at + len(patch) > 44


@pytest.mark.parametrize("fields", [
    {"subjects": 0xFFFF_FFFF}, {"frames": 0xFFFF_FFFF}, {"names": 0xFFFF_FFFF}, {"frames": 0}, {"subjects": 0},
    {"subjects": 60}, {"frames": 60}])
def test_large_counts_cost_no_memory(fields: dict[str, int]) -> None:
    """Shows that counts are bounded by the available bytes before anything is allocated for them."""
    bad = _index_of(_index_body(), **fields)
    assert _peak(lambda: decode_index(bad, REF)) < 1 << 20


def test_columns_without_cells_cost_no_memory() -> None:
    """Shows the smallest bomb: every column constant, four thousand million messages in one frame, a few bytes."""
    count = 0xFFFF_FFFF
    ref = BlockRef(BlockPlace.LOG, AT, 0, 9, 0, 0, 0, 0, 0, 0, 1, count, count, 0, T0, T0, ())
    one = struct.pack("<IIIII", 0, 0, 0, crc32(b""), 0)
    columns = [(0, 0), (T0, 0), (0, 0), (0, 0), (0, 0), (1, 0), (count, 0), (0, 0), (count - 1, 0)]
    body = one + b"".join(struct.pack("<QB", *column) for column in columns) + b"s"
    fixed = bytearray(_index_of(body, count=count, frames=1, subjects=1, names=1))
    struct.pack_into("<Q", fixed, 36, 1)
    bad = _patched_fixed(bytes(fixed), INDEX_FIXED_BYTES, 0, b"JIDX")
    assert _peak(lambda: decode_index(bad, ref)) < 1 << 20


def test_removed_ranges_are_bounded_by_their_bytes() -> None:
    """Shows the same for a core's removed ranges: four constant columns never stand for many rows."""
    bad = _patched_fixed(CORE, CORE_FIXED_BYTES, 132, struct.pack("<I", 0xFFFF_FFFF))
    assert _peak(lambda: decode_core(bad, AT, 9)) < 1 << 20


def test_a_zstd_bomb_is_refused_without_decompression() -> None:
    """Shows that a frame's own size must equal that in its table, and that a page is bounded as well."""
    bomb = zstandard.ZstdCompressor(level=1).compress(bytes(1 << 28))
    assert len(bomb) < 20_000
    head = decode_index(INDEX, REF)
    head.place_frames([head.frames[0]._replace(stored_bytes=len(bomb), crc=crc32(bomb))])
    assert _peak(lambda: decode_frame(head, 0, bomb)) < 1 << 20
    (_, page), (ref,) = encode_pages(AT, NONCE, [Page(PageKind.SHARD, AT, 0, "x" * 1000)])
    fixed = bytearray(page[:56])
    struct.pack_into("<III", fixed, 40, 0xFFFF_FFFF, len(bomb), crc32(bomb))
    bad = bytes(fixed) + crc32(fixed).to_bytes(4, "little") + bomb
    assert _peak(lambda: decode_page(bad, ref._replace(size=len(bad)))) < 1 << 20


def test_newer_blocks_and_unknown_ciphers_are_reported_as_newer() -> None:
    """Shows VersionUnknown for version, flags, compression, cipher and key with an intact checksum."""
    for at, value in ((4, 2), (4, 5), (6, 1), (6, 16), (7, 9), (8, 1), (156, 2), (157, 1), (158, 1)):
        with pytest.raises(VersionUnknown):
            decode_core(_patched_fixed(CORE, CORE_FIXED_BYTES, at, bytes([value])), AT, 9)
    for at, value in ((4, 2), (4, 5), (6, 1), (6, 8), (7, 1), (72, 2), (73, 1), (74, 1)):
        with pytest.raises(VersionUnknown):
            decode_index(_patched_fixed(INDEX, INDEX_FIXED_BYTES, at, bytes([value])), REF)
    for at, value in ((16, 2), (17, 1), (18, 1)):
        body = bytearray(_index_body())
        body[at] = value
        with pytest.raises(VersionUnknown, match="frame 0"):
            decode_index(_index_of(bytes(body)), REF)


@given(st.lists(st.integers(0, (1 << 64) - 1), min_size=1, max_size=20), st.booleans())
def test_columns_read_back_at_their_least_width(values: list[int], from_low: bool) -> None:
    """Shows the round trip, and that the values do not fit into a narrower width."""
    column = Column.of(values, base=min(values) if from_low else 0)
    read, end = read_column(b"?" + column.cells, 1, column.base, column.width, len(values))
    assert list(read if read is not None else [column.base] * len(values)) == values
    assert end == 1 + len(column.cells)
    if column.width > 1:
        assert max(values) - column.base >= 1 << 8 * (column.width // 2)
    if column.width:
        with pytest.raises(Misfit):
            read_column(column.cells, 1, column.base, column.width, len(values))
    with pytest.raises(Misfit):
        read_column(bytes(99), 0, 0, 3, 1)


@pytest.mark.parametrize("width", [1, 2, 4, 8])
def test_no_value_of_a_column_reaches_2_64(width: int) -> None:
    """Shows the highest value that is read, and that the next one is refused."""
    base = (1 << 64) - 8
    assert list(read_column(b"".join(n.to_bytes(width, "little") for n in (0, 7)), 0, base, width, 2)[0] or ()) == [
        base, (1 << 64) - 1]
    with pytest.raises(Misfit):
        read_column((8).to_bytes(width, "little"), 0, base, width, 1)


@given(st.lists(st.binary(max_size=400) | st.integers(0, 5000).map(lambda n: b"abc" * n), max_size=8))
def test_compressing_together_gives_what_compressing_one_by_one_does(frames: list[bytes]) -> None:
    """Shows that the single call for all frames is only faster, that nothing grows, and that all are returned."""
    together = compress_all(frames)
    assert [raw if packed is None else decompress(packed, len(raw))
            for packed, raw in zip(together, frames, strict=True)] == frames
    assert [packed is None for packed in together] == [compress(raw) is None for raw in frames]
    assert all(packed is None or len(packed) < len(raw) for packed, raw in zip(together, frames, strict=True))


def test_large_noise_is_stored_uncompressed_and_large_text_is_compressed() -> None:
    """Shows that samples distinguish large noise from large text, wherever the text begins."""
    noise = random.Random(3).randbytes(100_000)
    text = noise[:50_000].hex().encode()
    packed = compress(text)
    assert compress_all([noise, text, noise]) == [None, packed, None]
    assert compress(noise) is None
    assert packed is not None
    assert len(packed) < 0.6 * len(text)
    [mixed] = compress_all([noise[:60_000] + text])
    assert mixed is not None
    assert len(mixed) < 130_000


@given(st.binary(max_size=100), st.integers(0, 1 << 40))
def test_decompressing_noise_is_refused(noise: bytes, raw_bytes: int) -> None:
    """Shows that only Undecodable is raised."""
    with pytest.raises(Undecodable):
        decompress(noise, raw_bytes)


@pytest.mark.parametrize("packed", [
    None, 5, [], [1] * 18, "x" * 18, [1, 1, "2", *[0] * 14, None], [9, *[0] * 16, None], [1, *[0] * 15, None],
    [1, *[0] * 16, [[b"s", 1, 2]]], [1, *[0] * 16, [["s", 1, 2, 3]]]])
def test_a_malformed_block_reference_is_corrupt(packed: object) -> None:
    """Shows that a page's damaged table ends in Corrupt."""
    with pytest.raises(Corrupt):
        BlockRef.unpack(packed)
    with pytest.raises(Corrupt):
        PageRef.unpack(packed)


def test_block_references_compare_by_their_values() -> None:
    """Shows equality and hashing."""
    other = BlockRef.unpack(REF.pack())
    assert (other == REF, hash(other) == hash(REF)) == (True, True)
    other.position = Position(3, 7)
    assert other != REF


@given(st.binary(), st.binary())
def test_checksums_are_joined(first: bytes, second: bytes) -> None:
    """Shows that the checksum of two pieces follows from those of each; and of very long pieces, by parts."""
    assert checksum_joined(crc32(first), crc32(second), len(second)) == crc32(first + second)
    zeros = bytes(1 << 20)
    assert checksum_joined(crc32(first), crc32(zeros), len(zeros)) == crc32(zeros, crc32(first))
