"""TTLs: a message exists until its time has come, and is removed soon after; the last one of its subject leaves a
marker.

    ttl       each message with its own TTL, or none
    marked    the same, with delete markers, and one message a subject

An owner may have to read and store before it can remove a message, so the delay is bounded strictly only once all
faults have ended.
"""

from __future__ import annotations

import asyncio
import base64
from collections import defaultdict
from datetime import datetime
from typing import TYPE_CHECKING, Any

from broker.protocol import headers as header_block
from tests.sim.streams.record import Lost, Publish, StreamRecord
from tests.sim.streams.special import Special
from tests.sim.streams.until import until

if TYPE_CHECKING:
    from broker.storage.state.stream import StreamState
    from tests.sim.streams.checker import Message
    from tests.sim.streams.process import Process

__all__ = ["Lifetimes"]

SECOND = 1_000_000_000
_READ_LATE_NS = 60 * SECOND
"""Time after its end within which a message may be read: an owner may have to read the store first, with slow and
failing answers."""
_LATE_NS = 10 * SECOND
"""Upper bound of that time after all faults have ended."""
_MARKER_NS = 3600 * SECOND
_TTLS = ("1", "2s", "5", "30s", "1h", "never")


class _Marked(StreamRecord):
    """A stream that may have markers, which nobody published and which have no payload."""

    def record_payload(self, seq: int, payload: bytes, where: str) -> None:
        if payload:
            super().record_payload(seq, payload, where)
        elif self.named.setdefault(seq, payload) != payload:
            raise Lost(f"{self}: sequence {seq} names {self.named[seq]!r}, and, {where}, a marker")


class Lifetimes(Special):
    """The family of streams with TTLs."""

    kinds = ("ttl", "marked")
    kept = ("marked",)

    def record(self, stream_id: int, kind: str, config: dict[str, Any]) -> StreamRecord:
        return (_Marked if kind == "marked" else StreamRecord)(stream_id, kind, config)

    def headers(self, record: StreamRecord, message: Publish) -> list[tuple[bytes, bytes]]:
        if self.rng.random() < 0.2:
            return []
        ttl = self.rng.choice(_TTLS).encode()
        if (lasts_ns := _lasts_ns(ttl)) is not None:
            message.ends_ns = message.asked_ns + lasts_ns
        return [(b"Nats-TTL", ttl)]

    def read(self, record: StreamRecord, message: dict[str, Any]) -> None:
        time_ns = int(datetime.fromisoformat(message["time"]).timestamp()) * SECOND
        ended_ns = _ended_ns(base64.b64decode(message.get("hdrs", "")), time_ns)
        now_ns = self.world.clock.now_ns()
        if self.world.clocks is not None and self.world.clocks.wrong_lately(_READ_LATE_NS):
            return  # nothing expires while a clock is wrong
        if ended_ns is not None and now_ns > ended_ns + _READ_LATE_NS + record.slack_ns:
            raise Lost(f"{record}: {message['seq']} was read {(now_ns - ended_ns) / 1e9:.0f} s past its end")

    def check(self, record: StreamRecord, stream: StreamState, messages: dict[int, Message], now_ns: int) -> None:
        last: dict[bytes, int] = {}
        for seq, message in sorted(messages.items()):
            if message.payload:
                last[message.subject] = seq
            elif _marker(message) and message.subject in last:
                raise Lost(f"{record}: {seq} is a marker for {message.subject!r}, of which {last[message.subject]} is "
                           "there")
            elif not _marker(message):
                raise Lost(f"{record}: {seq} is empty, and no marker")

    async def check_end(self, owner: Process) -> None:
        await asyncio.sleep(20)  # The messages published last begin to expire.
        await until(self.world, lambda: not self._late(), lambda: f"expired messages leave: {self._late()}")
        found = self.world.check_store()
        for record in self.world.records.values():
            if record.kind in self.kinds:
                self.world.counts["ended"] += sum(record.ended(seq, self.world.clock.now_ns()) for seq in record.acked)
            if record.kind == "marked" and record.stream_id in found and record.status == "made":
                self._check_markers(record, found[record.stream_id])

    def _late(self) -> str:
        """Return a message that should be gone, "" for none."""
        now_ns = self.world.clock.now_ns()
        for stream_id, messages in self.world.check_store().items():
            record = self.world.records.get(stream_id)
            for seq, message in messages.items() if record is not None and record.kind in self.kinds else ():
                ended_ns = _ended_ns(message.body[:message.hlen], message.time_ns)
                if ended_ns is not None and now_ns > ended_ns + _LATE_NS + record.slack_ns:
                    return f"{record}: {seq} ended {(now_ns - ended_ns) / 1e9:.0f} s ago"
        return ""

    def _check_markers(self, record: StreamRecord, messages: dict[int, Message]) -> None:
        """Check that each subject whose last message has expired, within the time of a marker, has a marker. Raises:
        Lost."""
        now_ns, slack_ns = self.world.clock.now_ns(), record.slack_ns
        of: defaultdict[bytes, list[Publish]] = defaultdict(list)
        for publish in record.sent.values():
            if not publish.refused:
                of[publish.subject].append(publish)
        for subject, publishes in of.items():
            last = max(publishes, key=lambda publish: publish.seq)
            expired = 0 < last.ends_ns < now_ns - _LATE_NS - slack_ns and now_ns < last.ends_ns + _MARKER_NS - slack_ns
            if not expired or not all(publish.seq for publish in publishes):
                continue
            self.world.counts["marker"] += 1
            if not any(message.subject == subject and seq > last.seq and _marker(message)
                       for seq, message in messages.items()):
                raise Lost(f"{record}: {last.seq}, the last of {subject!r}, has expired without a marker")


def _lasts_ns(ttl: bytes) -> int | None:
    """Return the time for which a message with this TTL stays; None: for ever."""
    if ttl == b"never":
        return None
    text = ttl.decode()
    for unit, seconds in (("h0m0s", 3600), ("h", 3600), ("m0s", 60), ("s", 1)):
        if text.endswith(unit):
            return int(text.removesuffix(unit)) * seconds * SECOND
    return int(text) * SECOND


def _ended_ns(headers: bytes, time_ns: int) -> int | None:
    """Return the time at which a message expires; None: never."""
    ttl = header_block.get(headers, b"Nats-TTL") if headers else None
    lasts_ns = _lasts_ns(ttl) if ttl else None
    return None if lasts_ns is None else time_ns + lasts_ns


def _marker(message: Message) -> bool:
    return header_block.get(message.body[:message.hlen], b"Nats-Marker-Reason") == b"MaxAge" if message.hlen else False
