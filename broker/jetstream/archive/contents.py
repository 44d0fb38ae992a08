"""Converts a stream to the archive's chunks, and back.

    state.json          the stream's numbers, first of all
    consumers/<name>    as many as the numbers give: configuration and state
    <subject>           a message, which alone has a sequence; sequences rise, and may have gaps
    ""                  the end, by which a reader notices that an archive is cut off
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, Final

from broker.base.gojson.decoding import JsonError, folded, members, unmarshal
from broker.base.gotime import ZERO_TIME
from broker.jetstream.archive.entries import MAGIC, Entry, EntryReader, encode_entry
from broker.jetstream.archive.errors import ArchiveError
from broker.jetstream.archive.framing import FrameReader, FrameWriter
from broker.jetstream.archive.values import END, ArchivedConsumer, ArchivedMsg, ArchivedStream, End

__all__ = ["ArchiveReader", "ArchiveWriter"]

_STATE: Final = b"state.json"
_CONSUMERS: Final = b"consumers/"

_BEFORE_2_15: Final = (b"meta.inf", b"PaxHeade")
"""The first bytes of a tar archive of nats-server's files, with or without extended headers."""

_NUMBER_MAX: Final = (1 << 63) - 1

_MSGS_AT_ONCE: Final = 512
_BYTES_AT_ONCE: Final = 1 << 20
"""The bytes of messages in one list: a millisecond's work."""

_PIECE_BYTES: Final = 64 << 10


class ArchiveWriter:
    """A writer of an archive. Its methods are called in this order; each returns bytes to send."""

    def __init__(self, now_ns: int) -> None:
        self._frames = FrameWriter()
        self._now_ns = now_ns

    def begin(self, stream: ArchivedStream) -> bytes:
        """Return the stream's numbers."""
        return self._frames.write(MAGIC + self._state(_STATE, {
            "messages": stream.msgs, "bytes": stream.bytes,
            "first_seq": stream.first_seq, "first_ts": stream.first_ts,
            "last_seq": stream.last_seq, "last_ts": stream.last_ts,
            "consumer_count": stream.consumers}))

    def consumer(self, consumer: ArchivedConsumer) -> bytes:
        """Return one of its consumers."""
        state: dict[str, Any] = {"delivered": _pair(consumer.delivered), "ack_floor": _pair(consumer.ack_floor)}
        if consumer.pending:
            state["pending"] = {str(seq): {"Sequence": consumer_seq, "Timestamp": at_ns}
                                for seq, (consumer_seq, at_ns) in consumer.pending.items()}
        if consumer.redelivered:
            state["redelivered"] = {str(seq): count for seq, count in consumer.redelivered.items()}
        return self._frames.write(self._state(_CONSUMERS + consumer.name.encode(),
                                              {"config": consumer.config, "state": state}))

    def messages(self, msgs: Iterable[ArchivedMsg]) -> bytes:
        """Return some of its messages, in order."""
        return self._frames.write(b"".join([
            encode_entry(Entry(subject, time_ns, seq, hlen, body)) for seq, time_ns, subject, hlen, body in msgs]))

    def end(self) -> bytes:
        """Return the last entry."""
        return self._frames.write(encode_entry(Entry(b"", 0, 0, 0, b"")))

    def _state(self, name: bytes, value: dict[str, Any]) -> bytes:
        body = json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
        return encode_entry(Entry(name, self._now_ns, 0, 0, body))


class ArchiveReader:
    """A reader of an archive, in pieces of any size. Bytes after the end are ignored."""

    def __init__(self) -> None:
        self._frames = FrameReader()
        self._entries = EntryReader()
        self._magic = b""
        self._consumers = -1
        """The number of consumers that are yet to come; -1: the stream's numbers are, too."""
        self._last_seq = 0
        self._ended = False

    def feed(self, data: bytes) -> Iterator[ArchivedStream | ArchivedConsumer | list[ArchivedMsg] | End]:
        """Yield the items that ``data`` completes, decoded one by one: the caller must take all of them.

        First the stream, then its consumers, then messages in rising order, a few hundred at a time; END last of all.
        Raises: ArchiveError.
        """
        if self._ended:
            return
        msgs: list[ArchivedMsg] = []
        size = 0
        for raw in self._raw(data):
            for entry in self._entries.feed(raw):
                if not entry.seq or self._consumers:
                    if msgs:
                        yield msgs
                        msgs, size = [], 0
                    yield self._other(entry)
                    if self._ended:
                        return
                    continue
                if entry.seq <= self._last_seq:
                    raise ArchiveError(f"message sequence {entry.seq} out of order")
                self._last_seq = entry.seq
                msgs.append(ArchivedMsg(entry.seq, entry.time_ns, entry.name, entry.header_bytes, entry.body))
                size += len(entry.body)
                if len(msgs) >= _MSGS_AT_ONCE or size >= _BYTES_AT_ONCE:
                    yield msgs
                    msgs, size = [], 0
        if msgs:
            yield msgs

    def _raw(self, data: bytes) -> Iterator[bytes]:
        """Yield the raw bytes that ``data`` completes, after the magic, in pieces: a block may hold 600 000 entries."""
        for raw in self._frames.feed(data):
            if len(self._magic) < len(MAGIC):
                raw = self._without_magic(raw)
            for at in range(0, len(raw), _PIECE_BYTES):
                yield raw[at:at + _PIECE_BYTES]

    def finish(self) -> None:
        """Check that nothing is missing, after the last byte. Raises: ArchiveError."""
        if not self._ended:
            self._frames.finish()
            raise ArchiveError("backup was truncated")

    def _without_magic(self, raw: bytes) -> bytes:
        missing = len(MAGIC) - len(self._magic)
        self._magic += raw[:missing]
        if self._magic in _BEFORE_2_15:
            raise ArchiveError("the archive was made by a nats-server before 2.15: restore it in nats-server 2.15 and "
                               "back it up there, which gives an archive that can be restored here")
        if not MAGIC.startswith(self._magic) and not any(magic.startswith(self._magic) for magic in _BEFORE_2_15):
            raise ArchiveError("not an archive of a stream in the format of nats-server 2.15")
        return raw[missing:]

    def _other(self, entry: Entry) -> ArchivedStream | ArchivedConsumer | End:
        """Return the value of an entry that is not a message. Raises: ArchiveError for a message where none may be."""
        if self._consumers < 0:
            if entry.name != _STATE:
                raise ArchiveError("expected state.json first")
            stream = _stream(_json(entry))
            self._consumers, self._last_seq = stream.consumers, stream.first_seq - 1
            return stream
        if self._consumers:
            if not entry.name.startswith(_CONSUMERS):
                raise ArchiveError(f"expected consumer, found {_shown(entry.name)}")
            self._consumers -= 1
            return _consumer(_shown(entry.name.removeprefix(_CONSUMERS)), _json(entry))
        if entry.time_ns or entry.body:
            raise ArchiveError("expected message sequence")
        self._ended = True
        return END


# --- values -----------------------------------------------------------------------------------------------------------

def _stream(value: dict[str, Any]) -> ArchivedStream:
    where = "state.json"
    first_seq, last_seq = _number(where, value, "first_seq"), _number(where, value, "last_seq")
    if first_seq > last_seq + 1:
        raise ArchiveError(f"{where}: first_seq {first_seq} is above last_seq {last_seq}")
    return ArchivedStream(
        _number(where, value, "messages"), _number(where, value, "bytes"), max(first_seq, 1), last_seq,
        str(value.get("first_ts", ZERO_TIME)), str(value.get("last_ts", ZERO_TIME)),
        _number(where, value, "consumer_count"))


def _consumer(name: str, value: dict[str, Any]) -> ArchivedConsumer:
    where = f"consumer {name}"
    config, state = value.get("config"), value.get("state")
    if not isinstance(config, dict):
        raise ArchiveError(f"{where} is missing config")
    if not isinstance(state, dict):
        raise ArchiveError(f"{where} is missing state")
    state = _fields(state)
    pending: dict[int, tuple[int, int]] = {}
    for seq, one in _map(where, state, "pending").items():
        if not isinstance(one, dict):
            raise ArchiveError(f"{where}: pending is not a map of objects")
        numbers = _fields(one)
        pending[_key(where, seq)] = _number(where, numbers, "sequence"), _number(where, numbers, "timestamp")
    redelivered = {_key(where, seq): _counted(where, "redelivered", count)
                   for seq, count in _map(where, state, "redelivered").items()}
    return ArchivedConsumer(name, config, _pair_of(where, state, "delivered"), _pair_of(where, state, "ack_floor"),
                            pending, redelivered)


def _json(entry: Entry) -> dict[str, Any]:
    try:
        value = unmarshal(entry.body)
    except JsonError as error:
        raise ArchiveError(f"error in {_shown(entry.name)}: {error}") from None
    if not isinstance(value, dict):
        raise ArchiveError(f"error in {_shown(entry.name)}: not an object")
    return _fields(value)


def _fields(value: dict[str, Any]) -> dict[str, Any]:
    """Return an object's members by the lower-case names of their fields, without nulls."""
    return {folded(name): given for name, given in members(value) if given is not None}


def _shown(name: bytes) -> str:
    return name[:256].decode("utf-8", "replace")


def _counted(where: str, key: str, value: object) -> int:
    if type(value) is not int or not 0 <= value <= _NUMBER_MAX:
        raise ArchiveError(f"{where}: {key} is not a number that it may be")
    return value


def _number(where: str, value: dict[str, Any], key: str) -> int:
    return _counted(where, key, value.get(key, 0))


def _key(where: str, text: str) -> int:
    return _counted(where, "a sequence", int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None)


def _map(where: str, value: dict[str, Any], key: str) -> dict[str, Any]:
    found = value.get(key)
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise ArchiveError(f"{where}: {key} is not a map")
    return found


def _pair(pair: tuple[int, int]) -> dict[str, int]:
    return {"consumer_seq": pair[0], "stream_seq": pair[1]}


def _pair_of(where: str, value: dict[str, Any], key: str) -> tuple[int, int]:
    pair = _fields(_map(where, value, key))
    return _number(where, pair, "consumer_seq"), _number(where, pair, "stream_seq")
