"""Fills a new stream with messages as they are: with given sequences and times, and without checks against the stream's
state.

The stream is not in use: it has no subscriptions and no consumers. No timer or sweep starts before ``finish``, because
delete markers and schedules would take sequences of messages still to come. Messages beyond the stream's limits are
removed afterwards (enforcement).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from broker.jetstream.config.upstream_rules import source_name
from broker.jetstream.stream.publish import schedules
from broker.jetstream.stream.publish.headers import HINT, MSG_ID, find
from broker.jetstream.stream.publish.limits import HEADERS_BYTES_MAX, RECORD_BYTES_MAX
from broker.jetstream.stream.publish.sources import SOURCE
from broker.jetstream.stream.publish.ttl import TTL, TTL_INVALID, parse_ttl
from broker.jetstream.stream.upstream.positions import Position
from broker.jetstream.wire.error_table import ApiErrors
from broker.jetstream.wire.errors import ApiError
from broker.jetstream.wire.numbers import SEQ_MAX, decimal
from broker.protocol.subject import is_literal, is_valid
from broker.storage.format.message_size import message_size
from broker.storage.state.expiries import expires_at

if TYPE_CHECKING:
    from broker.jetstream.stream.stream import Stream

__all__ = ["GivenMsg", "Refill", "Unusable"]

_SECOND = 1_000_000_000

_HEADERS = frozenset((MSG_ID, TTL, SOURCE, *schedules.HEADERS))

_SUBJECTS_MAX = 65_536
"""Maximum number of subjects that are remembered as valid."""

_AHEAD_NS = 86_400 * _SECOND
"""Maximum distance of a message's time in the future: later messages of the stream would all get that time."""


GivenMsg = tuple[int, int, bytes, int, bytes]
"""Sequence, time, subject, length of headers, headers + payload."""


class Unusable(Exception):
    """Raised for a message that no stream, or not this one, can have."""


class Refill:
    """Fills ``stream``, which has no messages, from ``first_seq`` on.

    Args: ``any_origin``: its sources continue with any stream that has an origin's name.
    """

    def __init__(self, stream: Stream, first_seq: int, *, any_origin: bool = False) -> None:
        self._stream = stream
        self._any_origin = any_origin
        self._subjects: set[bytes] = set()
        config, live = stream.config, stream.live
        self._ttls, self._schedules = config.allow_msg_ttl, config.allow_msg_schedules
        self._max_msg_size = config.max_msg_size if config.max_msg_size >= 0 else RECORD_BYTES_MAX
        self._sources = {source_name(source) for source in config.sources if source is not None}
        live.first_seq, live.last_seq = first_seq, first_seq - 1
        live.safe_seq = first_seq - 1

    async def room(self) -> None:
        """Wait until the log has room: back-pressure, however long it lasts."""
        log = self._stream.log
        while not log.room():
            if log.failure is not None:
                raise log.failure
            if log.full:
                raise ApiError(ApiErrors.STORAGE_RESOURCES_EXCEEDED)
            room = asyncio.Event()
            log.when_room(room.set)
            await room.wait()

    def append(self, msgs: Sequence[GivenMsg]) -> None:
        """Append messages, a few hundred at most. Raises: Unusable; ApiError 10028, 10047 if the storage is full."""
        stream = self._stream
        live, now_ns = stream.live, stream.clock.now_ns()
        block = stream.log.block(stream)
        for msg in msgs:
            seq, time_ns, subject, hlen, body = msg
            size = self._check(msg, now_ns)
            due_ns = None
            ttl = 0
            if hlen and body.find(HINT, 0, hlen) >= 0:
                headers = find(body[:hlen], _HEADERS)
                ttl = self._ttl(seq, headers)
                if ttl > 0 and time_ns + ttl * _SECOND < now_ns:
                    continue  # it has expired; the next message skips its sequence
                due_ns = self._due(headers, time_ns, now_ns)
            else:
                headers = {}
            if live.usage.size_bytes + size > live.usage.bytes_max:
                raise ApiError(ApiErrors.STORAGE_RESOURCES_EXCEEDED if stream.stored
                               else ApiErrors.MEMORY_RESOURCES_EXCEEDED)
            if seq > live.last_seq + 1:
                live.skip_to(seq - 1)
            time_ns = max(time_ns, live.last_time_ns)
            block.append_run(seq, (subject,), (hlen,) if hlen else None, (body,), time_ns)
            live.appended(block, 1, size, seq, time_ns)
            if ttl:
                stream.ttls.expiries.add((seq,), (expires_at(time_ns, ttl),))
            if due_ns is not None:
                stream.scheduler.put(seq, due_ns)
            if headers:
                self._move_source(headers)
            self._add_id(headers.get(MSG_ID, b""), seq, time_ns, now_ns)
        stream.log.urgent()

    def finish(self, last_seq: int) -> None:
        """Skip the sequences up to ``last_seq`` after all messages were appended, and start the timers."""
        stream = self._stream
        live = stream.live
        if last_seq > live.last_seq:
            live.skip_to(last_seq)
        stream.subjects.forget()
        stream.reset_checks()
        stream.retention.arm()
        stream.ttls.arm()
        stream.scheduler.arm()

    def _check(self, msg: GivenMsg, now_ns: int) -> int:
        """Return the size of a message that may be stored. Raises: Unusable."""
        seq, time_ns, subject, hlen, body = msg
        if not self._stream.live.last_seq < seq <= SEQ_MAX:
            raise Unusable(f"message sequence {seq} out of order")
        if subject not in self._subjects:
            if not (subject and is_valid(subject) and is_literal(subject)):
                raise Unusable(f"message sequence {seq} has no valid subject")
            if len(self._subjects) >= _SUBJECTS_MAX:
                self._subjects.clear()
            self._subjects.add(subject)
        if not 0 <= time_ns <= now_ns + _AHEAD_NS:
            raise Unusable(f"message sequence {seq} has no valid time")
        if len(body) > self._max_msg_size:
            raise Unusable(f"message sequence {seq} exceeds maximum message size")
        starts_and_ends = body.startswith(b"NATS/1.0") and body.endswith(b"\r\n\r\n", 0, hlen)
        if hlen and not (hlen <= HEADERS_BYTES_MAX and starts_and_ends):
            raise Unusable(f"message sequence {seq} has no valid headers")
        size = message_size(subject, hlen, body)
        if size > RECORD_BYTES_MAX:
            raise Unusable(f"message sequence {seq} exceeds maximum payload size")
        return size

    def _ttl(self, seq: int, headers: dict[bytes, bytes]) -> int:
        """Return the seconds to live; -1: never expires; 0: as the stream's other messages."""
        if not self._ttls or not (text := headers.get(TTL)):
            return 0
        if (ttl := parse_ttl(text)) == TTL_INVALID:
            raise Unusable(f"message sequence {seq}: failed to parse message TTL")
        return ttl

    def _due(self, headers: dict[bytes, bytes], time_ns: int, now_ns: int) -> int | None:
        """Return the next due time of a schedule; firings that have passed are not made up for."""
        if not self._schedules or not (pattern := headers.get(schedules.PATTERN)):
            return None
        try:
            firing = schedules.firing(pattern, headers.get(schedules.TIME_ZONE), time_ns, now_ns)
        except ApiError:
            return None
        return None if firing is None else firing.at_ns

    def _move_source(self, headers: dict[bytes, bytes]) -> None:
        """Set the position of the source that copied a message, so that it continues after the last one."""
        if not self._sources or not (text := headers.get(SOURCE)):
            return
        parts = text.decode("utf-8", "replace").split(" ")
        if len(parts) >= 4 and (name := f"{parts[0]} {parts[2]} {parts[3]}") in self._sources:
            seq = decimal(text.split(b" ")[1])
            if seq > 0:
                # Servers before 2.15 did not write the identity of the origin.
                identity = parts[5] if len(parts) >= 6 and not self._any_origin else ""
                self._stream.positions.move(name, Position(seq, identity))

    def _add_id(self, msg_id: bytes, seq: int, time_ns: int, now_ns: int) -> None:
        dedupe = self._stream.dedupe
        recent = bool(msg_id) and dedupe.window_ns > 0 and time_ns > now_ns - dedupe.window_ns and not dedupe.full
        dedupe.add({msg_id: seq} if recent else {}, msg_id, time_ns)
