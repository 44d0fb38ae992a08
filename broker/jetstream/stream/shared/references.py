"""References to stored messages: the place of a message in the store, which a client reads itself.

    object   … │ section: body body BODY body, compressed │ …        Jetblock-Range, Jetblock-Codec, Jetblock-Crc32
                                └── Jetblock-Offset, Jetblock-Length in the section's content, headers first

A reference is made without waiting, from what is in memory. A message whose block is not in the store yet, or whose
index is not in memory, has none at the moment, and is delivered whole.

Owns: the header lines of a reference, and the reasons why a stream has none. Does not own: the URL (objectstore).
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

from broker.storage.format.codec import Compression
from broker.storage.format.frames import stored_order
from broker.storage.format.index import Head
from broker.storage.format.keyring import KEYS
from broker.storage.format.section import SectionHeader

if TYPE_CHECKING:
    from broker.jetstream.stream.state.live import Live
    from broker.storage.read.reader import BlockReader

__all__ = ["References"]

_CODEC_BITS: Final = 0xFF


class References:
    """The references to the messages of one stream."""

    def __init__(self, live: Live, reader: BlockReader, stream_id: int, *, stored: bool) -> None:
        self._live = live
        self._reader = reader
        self._stream_id = stream_id
        self._stored = stored

    @property
    def refusal(self) -> str:
        """Return why messages of this stream cannot be delivered by reference, or ""."""
        if not self._stored:
            return "a memory stream has no objects"
        if KEYS.of_stream(self._stream_id) is not None:
            return "the stream is encrypted, and only the broker has its key"
        return "" if self._reader.has_urls else "the store is a directory, whose files have no URLs"

    def lines(self, seq: int) -> bytes | None:
        """Return the header lines of a reference to the message at ``seq``; None: it has none now."""
        live = self._live
        block = live.find(seq) if live.blocks_loaded else None
        if block is None or (ref := block.ref) is None:
            return None
        head = live.resident(block)
        if not isinstance(head, Head):
            return None
        ordinal = head.ordinal_of(seq)
        if ordinal >= head.count or head.seq_of(ordinal) != seq:
            return None
        at, (_, stored_bytes, crc, form), offset, length, hlen = _place(head, ordinal)
        start = ref.frames_offset + at
        byte_range = f"bytes={start}-{start + stored_bytes - 1}"
        url = self._reader.url_of(ref, byte_range) if length else None  # there is nothing to fetch of an empty message
        if url is None:
            return None
        codec = Compression(form & _CODEC_BITS).name.lower()
        return (b"Jetblock-Url: %b\r\nJetblock-Range: %b\r\nJetblock-Codec: %b\r\nJetblock-Crc32: %08x\r\n"
                b"Jetblock-Offset: %d\r\nJetblock-Length: %d\r\nJetblock-Header-Length: %d\r\nNats-Msg-Size: %d\r\n"
                % (url.encode(), byte_range.encode(), codec.encode(), crc, offset, length, hlen,
                   length - hlen))


def _place(head: Head, ordinal: int) -> tuple[int, SectionHeader, int, int, int]:
    """Return where a message is: the section's offset in the block's frames, its header, and within its content the
    message's offset, its length and the length of its headers."""
    frame = head.frames[head.frame_of(ordinal)]
    start, end = frame.start, frame.start + frame.messages
    lens = head.body_lens[start:end] if head.body_lens is not None else [head.body_len] * frame.messages
    length = lens[ordinal - start]
    hlen = head.hlen if head.hlens is None else head.hlens[ordinal]
    if not frame.parts:
        return frame.offset, frame.header, sum(islice(lens, ordinal - start)), length, hlen
    order = range(frame.messages) if head.subject_ids is None else stored_order(head.subject_ids[start:end])
    offset = 0
    for place in order:
        if place == ordinal - start:
            break
        offset += lens[place]
    at = frame.offset
    for part in frame.parts:
        if offset < part[0]:
            return at, part, offset, length, hlen
        offset -= part[0]
        at += part[1]
    return at, frame.parts[-1], 0, length, hlen  # an empty message after all others
