"""Checkpoint pages: opaque values are read back, each page alone and the object as a whole; mix-ups are detected."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.storage.format.errors import Corrupt, FormatError
from broker.storage.format.header import Position
from broker.storage.format.page import Page, PageKind, PageRef, decode_page, decode_pages_directory, encode_pages
from tests.storage.format.test_segment import values
from tests.storage.format.whole import AT, NONCE

positions = st.builds(Position, st.integers(0, 9), st.integers(0, (1 << 48) - 1))
pages = st.builds(Page, st.sampled_from(PageKind), positions, st.integers(0, (1 << 64) - 1), values, st.booleans(),
                  st.booleans())


def _object(*some: Page, position: Position = AT) -> tuple[bytes, list[PageRef]]:
    buffers, refs = encode_pages(position, NONCE, some)
    return b"".join(buffers), refs


@settings(deadline=None)
@given(st.lists(pages, max_size=6))
def test_pages_read_back(some: list[Page]) -> None:
    """Shows identity for arbitrary values, and that the directory names the same pages as the writer did."""
    data, refs = _object(*some)
    assert decode_pages_directory(data, AT, complete=True) == refs
    assert [decode_page(data[ref.offset:ref.offset + ref.size], PageRef.unpack(ref.pack())) for ref in refs] == some
    assert all(PageRef.unpack(ref.pack()) == ref for ref in refs)


def test_a_large_page_is_compressed() -> None:
    """Shows that repetition costs no space, and that the value is complete."""
    page = Page(PageKind.SUBJECTS, AT, 1, [b"orders.eu.west"] * 100_000)
    data, (ref,) = _object(page)
    assert len(data) < 20_000
    assert decode_page(data[ref.offset:], ref) == page


def _read_all(data: bytes, refs: list[PageRef]) -> None:
    decode_pages_directory(data, AT, complete=True)
    for ref in refs:
        decode_page(data[ref.offset:ref.offset + ref.size], ref)


SMALL = (Page(PageKind.DIRECTORY, Position(1, 2), 0, {"streams": ["x" * 200]}), Page(PageKind.BLOCKS, AT, 5, [1, 2]))


def test_damage_is_noticed() -> None:
    """Shows that each flipped bit, cut and extension is detected by a reader of the object, or of the affected page."""
    data, refs = _object(*SMALL)
    for at in range(len(data)):
        for bit in range(8):
            bad = bytearray(data)
            bad[at] ^= 1 << bit
            with pytest.raises(Corrupt):
                _read_all(bytes(bad), refs)
    for length in range(len(data)):
        with pytest.raises(Corrupt):
            decode_pages_directory(data[:length], AT, complete=True)
    for ref in refs:
        page = data[ref.offset:ref.offset + ref.size]
        for bad_page in [page[:length] for length in range(ref.size)] + [page + b"\x00"]:
            with pytest.raises(Corrupt):
                decode_page(bad_page, ref)


def test_another_page_is_noticed() -> None:
    """Shows that a reference is refused for pages of another object, kind or key."""
    data, refs = _object(*SMALL)
    page = data[refs[1].offset:]
    for wrong in (refs[1]._replace(key=6), refs[1]._replace(kind=PageKind.CONSUMERS),
                  refs[1]._replace(position=Position(3, 0x2B))):
        with pytest.raises(Corrupt, match="another page"):
            decode_page(page, wrong)


def test_a_short_prefix_returns_the_number_of_bytes_needed() -> None:
    """Shows that a directory can be read without its pages."""
    data, refs = _object(*SMALL)
    for length in range(64, refs[0].offset):
        needed = decode_pages_directory(data[:length], AT)
        assert isinstance(needed, int)
        assert needed > length
    assert decode_pages_directory(data[:refs[0].offset], AT) == refs


@given(st.binary(max_size=200))
def test_noise_is_refused(noise: bytes) -> None:
    """Shows that random bytes raise nothing but a FormatError."""
    data, refs = _object(*SMALL)
    with pytest.raises(FormatError):
        decode_page(noise, refs[0])
    with pytest.raises(FormatError):
        decode_pages_directory(data[:64] + noise, AT, complete=True)
