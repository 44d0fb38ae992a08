"""Sections: sealed sections can be opened, and nothing else can."""

from __future__ import annotations

from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.storage.format.codec import Undecodable
from broker.storage.format.header import Position
from broker.storage.format.section import (
    SECTION_HEADER_BYTES,
    SECTIONS,
    UNCOMPRESSED,
    SectionKind,
    header_of_version_1,
    is_known,
    pack_header,
    unpack_header,
)

AT = (Position(3, 42), 7, 9, SectionKind.FRAME, 1)

raws = st.binary(max_size=400) | st.integers(0, 5000).map(lambda n: b"abc" * n)


@given(raw=raws, dense=st.booleans())
def test_a_section_reads_back_as_it_was_sealed(raw: bytes, dense: bool) -> None:
    """Shows the round trip, that the header has the compression, and that nothing grows."""
    compressed = SECTIONS.compress(raw, dense=dense)
    header, stored = SECTIONS.seal(compressed, AT)
    assert unpack_header(pack_header(header)) == header
    assert header == (len(raw), len(stored), crc32(stored), compressed[2])
    assert SECTIONS.open(header, stored, AT) == raw
    assert SECTIONS.unseal(header, stored, AT) == compressed
    assert SECTIONS.decompress(compressed) == raw
    SECTIONS.check(header, stored, AT)
    assert len(stored) <= len(raw)
    assert (stored == raw) == (header[-1] == 0)


@given(frames=st.lists(raws, max_size=6))
def test_frames_are_compressed_together_or_not_at_all(frames: list[bytes]) -> None:
    """Shows both codecs, and that a reader needs to know neither."""
    together = SECTIONS.compress_frames(frames)
    assert [SECTIONS.decompress(one) for one in together] == frames
    plain = UNCOMPRESSED.compress_frames(frames)
    assert [one[0] for one in plain] == frames
    for one, raw in zip([*together, *plain], [*frames, *frames], strict=True):
        assert SECTIONS.open(*UNCOMPRESSED.seal(one, AT), AT) == raw


@given(raw=raws, data=st.data())
def test_a_changed_section_is_refused(raw: bytes, data: st.DataObject) -> None:
    """Shows that no bit of header or stored bytes can change without a refusal."""
    header, stored = SECTIONS.seal(SECTIONS.compress(raw), AT)
    whole = bytearray(pack_header(header) + stored)
    bit = data.draw(st.integers(0, 8 * len(whole) - 1))
    whole[bit // 8] ^= 1 << bit % 8
    header = unpack_header(bytes(whole))
    for call in (SECTIONS.open, SECTIONS.unseal):
        with pytest.raises(Undecodable):
            call(header, bytes(whole[SECTION_HEADER_BYTES:]), AT)


@given(st.binary(max_size=100), st.integers(0, (1 << 32) - 1), st.integers(0, (1 << 32) - 1))
def test_a_false_header_is_refused(noise: bytes, raw_bytes: int, form: int) -> None:
    """Shows that with a valid checksum, only plain bytes of the right length are accepted."""
    header = (raw_bytes, len(noise), crc32(noise), form)
    if form == 0 and raw_bytes == len(noise):
        assert SECTIONS.open(header, noise, AT) == noise
        return
    for call in (SECTIONS.open, SECTIONS.check):
        with pytest.raises(Undecodable):
            call(header, noise, AT)


def test_the_forms_of_this_release_are_known() -> None:
    """Shows which forms are those of a newer release: another compression, another cipher, any key."""
    assert [form for form in range(1 << 10) if is_known(form)] == [0, 1, 0x200, 0x201, 0x300, 0x301]
    assert not is_known(1 << 16)


def test_sections_of_earlier_releases_show_compression_by_their_lengths() -> None:
    """Shows that equal lengths mean uncompressed in version 1, and have no such meaning today."""
    assert header_of_version_1(5, 5, 0)[-1] == 0
    assert header_of_version_1(5, 4, 0)[-1] == 1
    compressed = SECTIONS.compress(b"abc" * 50)[0]
    padded = (len(compressed), len(compressed), crc32(compressed), 1)
    with pytest.raises(Undecodable):
        SECTIONS.open(padded, compressed, AT)
