"""The frames of a block: their stored bytes are checked, opened and cut into messages, as the block's index says.

``frame`` has the values, ``index`` the table of a block's frames.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, repeat
from operator import sub
from typing import Final

from broker.storage.format.codec import Stored, Undecodable
from broker.storage.format.errors import Corrupt
from broker.storage.format.frame import Chunk, Frame
from broker.storage.format.index import Head
from broker.storage.format.lazy_columns import Names
from broker.storage.format.section import SECTIONS, SectionHeader, SectionKind, SectionPosition

__all__ = ["HEADERS_TOO_LONG", "LENGTHS_DIFFER", "check_frame", "corrupt_section", "cut_frame", "decode_frame",
           "fill_section_body", "frame_body", "section_body", "stored_order"]

LENGTHS_DIFFER: Final = "its messages' lengths do not add up to its own"
HEADERS_TOO_LONG: Final = "a message's headers are longer than its body"
"""Errors that every decoder of frames must detect after ``frame_body``."""


def _frame_position(head: Head, section_no: int) -> SectionPosition:
    return head.position, head.object_id, head.stream_id, SectionKind.FRAME, section_no


def frame_body(head: Head, frame_no: int, stored: Stored, name: str | None = None) -> bytes | Stored:
    """Return the messages' bodies of one frame, side by side, as they are stored, without checking their lengths.

    Args: stored is the object's bytes from ``ref.frames_offset + frame.offset``, ``frame.stored_bytes`` long. For a
        frame that is not compressed, they are also the result, so a memoryview saves a copy.
    Raises: Corrupt.
    """
    frame = head.frames[frame_no]
    try:
        if not frame.parts:
            return SECTIONS.open(frame.header, stored, _frame_position(head, frame_no))
        return b"".join([SECTIONS.open(header, part, at) for header, part, at in _parts(head, frame, stored)])
    except Undecodable as error:
        raise corrupt_frame(head, frame_no, name, str(error)) from None


def section_body(head: Head, section_no: int, header: SectionHeader, stored: Stored) -> bytes | Stored:
    """Return the content of one stored section of the frames: a frame, or a part of one. Raises: Undecodable."""
    return SECTIONS.open(header, stored, _frame_position(head, section_no))


def fill_section_body(out: memoryview, head: Head, section_no: int, header: SectionHeader, stored: Stored) -> None:
    """Fill ``out``, which is as long as the header says, with the result of ``section_body``. Raises: Undecodable."""
    SECTIONS.open_into(out, header, stored, _frame_position(head, section_no))


def check_frame(head: Head, frame_no: int, stored: Stored, name: str | None = None) -> None:
    """Check a frame's checksum and content size, without decompressing it. Args and errors: as for ``frame_body``."""
    frame = head.frames[frame_no]
    try:
        if not frame.parts:
            SECTIONS.check(frame.header, stored, _frame_position(head, frame_no))
        for header, part, position in _parts(head, frame, stored):
            SECTIONS.check(header, part, position)
    except Undecodable as error:
        raise corrupt_frame(head, frame_no, name, str(error)) from None


def _parts(head: Head, frame: Frame, stored: Stored) -> Iterator[tuple[SectionHeader, Stored, SectionPosition]]:
    """Yield header, stored bytes and place of each part of a frame. Raises: Undecodable."""
    if frame.parts and len(stored) != frame.stored_bytes:
        raise Undecodable("its length does not match")
    at = 0
    for number, header in enumerate(frame.parts, frame.first_part):
        yield header, stored[at:at + header[1]], _frame_position(head, number)
        at += header[1]


def corrupt_frame(head: Head, frame_no: int, name: str | None, why: str) -> Corrupt:
    """Return the error for a damaged frame; name is the object's."""
    return corrupt_section(head, frame_no, head.frames[frame_no].offset, name, why)


def corrupt_section(head: Head, section_no: int, offset: int, name: str | None, why: str) -> Corrupt:
    """Return the error for a damaged frame or part; ``offset`` is its place in the block's frames."""
    return Corrupt(name or f"block {head.position}", f"frame {section_no}", head.frames_offset + offset, why)


def decode_frame(head: Head, frame_no: int, stored: Stored, name: str | None = None) -> Chunk:
    """Decode one frame into its messages.

    Args: as for ``frame_body``.
    Returns: a Chunk whose bodies are copies.
    Raises: Corrupt.
    """
    return cut_frame(head, frame_no, frame_body(head, frame_no, stored, name), name)


def cut_frame(head: Head, frame_no: int, raw: bytes | memoryview, name: str | None = None) -> Chunk:
    """Cut the result of ``frame_body`` into messages: the second half of ``decode_frame``."""
    frame = head.frames[frame_no]
    start, count, end = frame.start, frame.messages, frame.start + frame.messages
    lens = head.body_lens[start:end] if head.body_lens is not None else None
    order: Sequence[int] | None = None
    if frame.parts and head.subject_ids is not None:
        order = stored_order(head.subject_ids[start:end])
    bodies = _bodies(raw, lens if lens is None or order is None else [lens[at] for at in order], head.body_len, count)
    if bodies is None or (frame.parts and not _parts_fit(frame, bodies)):
        raise corrupt_frame(head, frame_no, name, LENGTHS_DIFFER)
    if order is not None:
        stored_bodies, bodies = bodies, [b""] * count
        for at, body in zip(order, stored_bodies, strict=True):
            bodies[at] = body
    hlens: Sequence[int] | None = None
    if head.hlens is not None:
        hlens = head.hlens[start:end]
    elif head.hlen:
        hlens = [head.hlen] * count
    if hlens is not None:
        if max(map(sub, hlens, lens if lens is not None else repeat(head.body_len))) > 0:
            raise corrupt_frame(head, frame_no, name, HEADERS_TOO_LONG)
        if not any(hlens):
            hlens = None
    subjects, names_bytes = head.subjects, 0
    if head.subject_ids is None:
        names = [subjects[0]] * count
    elif isinstance(subjects, Names):
        names, names_bytes = subjects.pick(head.subject_ids[start:end])
    else:
        names = list(map(subjects.__getitem__, head.subject_ids[start:end]))
    times = array("q", (head.time_ns,)) * count if head.times is None else head.times[start:end]
    seqs = None if head.seqs is None else head.seqs[start:end]
    first_seq = head.first_seq + start if seqs is None else seqs[0]
    if seqs is not None and seqs[-1] - first_seq == count - 1:
        seqs = None
    return Chunk(start, first_seq, seqs, names, hlens, bodies, times, len(raw) + names_bytes)


def stored_order(subject_ids: Sequence[int]) -> list[int]:
    """Return the places of a frame's messages, counted from its first, in the order in which a grouped block has their
    bodies: by subject, those of one subject in order."""
    return sorted(range(len(subject_ids)), key=subject_ids.__getitem__)


def _parts_fit(frame: Frame, bodies: Sequence[bytes]) -> bool:
    """Return whether each part ends at the end of a body; a reader of one part relies on it."""
    return {0, *accumulate(map(len, bodies))}.issuperset(accumulate([part[0] for part in frame.parts]))


def _bodies(raw: bytes | memoryview, lens: Sequence[int] | None, body_len: int, count: int) -> list[bytes] | None:
    """Return ``raw`` cut at each message; None if the lengths (None: all are ``body_len``) do not add up to it."""
    if lens is None:
        return list(_equal_bodies(body_len, count).unpack(raw)) if body_len * count == len(raw) else None
    ends = list(accumulate(lens))
    if ends[-1] != len(raw):
        return None
    whole = bytes(raw)
    at = 0
    return [whole[at:(at := end)] for end in ends]


@lru_cache(maxsize=16)
def _equal_bodies(body_len: int, count: int) -> struct.Struct:
    """Return a struct that cuts ``count`` bodies of one length, some four times as fast as slices."""
    return struct.Struct(f"{body_len}s" * count)
