"""The entries of an archive: a name, a time, a sequence, headers and a body.

    archive  "NATSARC1", then entries
    entry    bytes of the name, time, sequence, bytes of the headers, bytes of the body; then name, headers, body

All numbers are varints; the time, in nanoseconds since 1970, is signed.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from broker.jetstream.archive.errors import ArchiveError

__all__ = ["MAGIC", "MESSAGE_BYTES_MAX", "STATE_BYTES_MAX", "Entry", "EntryReader", "encode_entry"]

MAGIC: Final = b"NATSARC1"

_NAME_BYTES_MAX: Final = 1 << 20
MESSAGE_BYTES_MAX: Final = 32 << 20
"""The largest size of one message's record, as in nats-server."""
STATE_BYTES_MAX: Final = 64 << 20
"""The largest size of an entry without a sequence:
more than the state of a consumer with half a million unacked messages."""

_NUMBER_BYTES_MAX: Final = 10


class Entry(NamedTuple):
    """An entry. ``body`` begins with ``header_bytes`` of headers."""

    name: bytes
    time_ns: int
    seq: int
    header_bytes: int
    body: bytes


def encode_entry(entry: Entry) -> bytes:
    """Return the bytes of an entry."""
    name, time_ns, seq, header_bytes, body = entry
    return b"".join((
        _varint(len(name)), _varint(time_ns << 1 if time_ns >= 0 else ~(time_ns << 1)), _varint(seq),
        _varint(header_bytes), _varint(len(body) - header_bytes), name, body))


def _varint(number: int) -> bytes:
    if number < 0x80:
        return bytes((number,))
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


class EntryReader:
    """A reader of entries from raw bytes, in pieces of any size. The magic has been read."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._have = 0
        self._need = 1

    @property
    def between(self) -> bool:
        """True if the bytes read so far are whole entries."""
        return not self._have

    def feed(self, data: bytes) -> list[Entry]:
        """Return the entries that ``data`` completes. Raises: ArchiveError."""
        self._parts.append(data)
        self._have += len(data)
        if self._have < self._need:
            return []
        data = b"".join(self._parts) if len(self._parts) > 1 else data
        found: list[Entry] = []
        at, end = 0, len(data)
        need = 1
        while at < end:
            try:
                size, start = _read(data, at)
                zigzag, start = _read(data, start)
                seq, start = _read(data, start)
                header_bytes, start = _read(data, start)
                payload_bytes, start = _read(data, start)
            except IndexError:
                need = end - at + 1
                break
            body_bytes = header_bytes + payload_bytes
            if size > _NAME_BYTES_MAX or body_bytes > (MESSAGE_BYTES_MAX if seq else STATE_BYTES_MAX):
                raise ArchiveError(f"an entry with a name of {size} bytes and {body_bytes} more")
            body = start + size
            after = body + body_bytes
            if after > end:
                need = after - at
                break
            found.append(Entry(data[start:body], zigzag >> 1 ^ -(zigzag & 1), seq, header_bytes, data[body:after]))
            at = after
        rest = data[at:]
        self._parts = [rest] if rest else []
        self._have, self._need = len(rest), need
        return found


def _read(data: bytes, at: int) -> tuple[int, int]:
    """Return the varint at ``at``, and where it ends. Raises: IndexError: it is cut off; ArchiveError."""
    byte = data[at]
    if byte < 0x80:
        return byte, at + 1
    number, shift, begin = byte & 0x7F, 7, at
    while True:
        at += 1
        byte = data[at]
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if at - begin >= _NUMBER_BYTES_MAX - 1:
            raise ArchiveError("a number of more than 64 bits")
    if number >> 64:
        raise ArchiveError("a number of more than 64 bits")
    return number, at + 1
