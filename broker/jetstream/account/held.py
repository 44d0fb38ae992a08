"""Messages to a stream that moves to another shard: held from its last record here until the other owner serves it.

Owns: publishes, and clients' acks. Both are held, because no client would repeat an ack, and few repeat a publish at
once. Does not own: API requests (api.stream_requests), and pull requests, which clients repeat.

Nothing depends on these messages: none of them was acknowledged. If this process ends, or the other owner does not ask
for them, they are dropped, or answered with "no responders".
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from broker.jetstream.bus import Bus, Msg, Source
    from broker.jetstream.consumer.consumer import Consumer
    from broker.jetstream.stream.shared.queue import Run
    from broker.jetstream.stream.stream import Stream

__all__ = ["NO_RESPONDERS", "HeldMessages", "msgs_of", "packed"]

_BYTES_MAX: Final = 16 << 20
"""The bytes that are held, as of publishes that one stream holds back; later messages are not answered."""

NO_RESPONDERS: Final = b"NATS/1.0 503\r\n\r\n"


class HeldMessages:
    """The messages to ``stream``, and acks to its ``consumers``, from now on. Call ``end`` once they are needed."""

    def __init__(self, bus: Bus, stream: Stream, consumers: Iterable[Consumer]) -> None:
        self._bus = bus
        self._msgs: list[Msg] = []
        self._acks: list[Msg] = []
        self._bytes = 0
        self._subscriptions = [bus.subscribe(subject, self._on_publishes, stream=stream.name)
                               for subject in stream.config.subjects_bytes]
        for consumer in consumers:
            if consumer.config.ack_policy in ("all", "explicit"):
                self._subscriptions += [bus.subscribe(prefix + b">", self._on_acks)
                                        for prefix in consumer.reply_subjects.acks]

    def add(self, runs: Iterable[Run]) -> None:
        """Hold publishes that had arrived before."""
        for ops, start, end, source, now_ns in runs:
            self._on_publishes(ops, start, end, source, now_ns)

    def end(self) -> None:
        """Stop receiving messages."""
        for subscription in self._subscriptions:
            self._bus.unsubscribe(subscription)
        self._subscriptions.clear()

    def take(self) -> tuple[list[Msg], list[Msg]]:
        """Return the publishes and the acks, which are not held any more."""
        taken, self._msgs, self._acks = (self._msgs, self._acks), [], []
        return taken

    def pack(self, bytes_max: int) -> dict[str, Any]:
        """Return what ``take`` does, as JSON of up to so many bytes; refuse what does not fit."""
        msgs, acks = self.take()
        fitting: list[Msg] = []
        for at, msg in enumerate((*acks, *msgs)):
            bytes_max -= (len(msg[0]) + len(msg[1]) + len(msg[3]) + 32) * 4 // 3
            if bytes_max < 0:
                self._refuse((*acks, *msgs)[at:])
                break
            fitting.append(msg)
        return {"acks": packed(fitting[:len(acks)]), "msgs": packed(fitting[len(acks):])}

    def refuse(self) -> None:
        """Answer all publishes as if there were no stream: clients repeat them."""
        msgs, _ = self.take()
        self._refuse(msgs)

    def _refuse(self, msgs: Iterable[Msg]) -> None:
        for _, reply, _, _ in msgs:
            if reply:
                self._bus.publish(reply, b"", len(NO_RESPONDERS), NO_RESPONDERS)

    def _on_publishes(self, ops: Sequence[Msg], start: int, end: int, source: Source | None, now_ns: int) -> None:
        self._hold(self._msgs, ops[start:end])

    def _on_acks(self, ops: Sequence[Msg], start: int, end: int, source: Source | None, now_ns: int) -> None:
        self._hold(self._acks, ops[start:end])

    def _hold(self, held: list[Msg], msgs: Sequence[Msg]) -> None:
        size = sum(len(subject) + len(reply) + len(body) for subject, reply, _, body in msgs)
        if self._bytes + size <= _BYTES_MAX:
            self._bytes += size
            held += msgs


def packed(msgs: Iterable[Msg]) -> list[list[Any]]:
    """Return messages as JSON for another broker."""
    return [[*(b64encode(part).decode() for part in (subject, reply, body)), hlen]
            for subject, reply, hlen, body in msgs]


def msgs_of(packed: Iterable[Sequence[Any]]) -> list[Msg]:
    """Return the messages that another broker has packed. Raises: ValueError, TypeError."""
    found: list[Msg] = []
    for subject, reply, body, hlen in packed:
        found.append((b64decode(subject), b64decode(reply), int(hlen), b64decode(body)))
    return found
