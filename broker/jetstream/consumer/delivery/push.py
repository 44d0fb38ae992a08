"""The subscriber side of a push consumer: whether anybody subscribes, how much they take, and heartbeats.

Owns the interest in ``deliver_subject``, the flow control window with its outstanding request, the rate limit and the
idle heartbeat. Does not own: what is delivered, and when (loop, which consults this module).

Source: nats-server consumer.go: updateDeliveryInterest, sendFlowControl, processFlowControl, loopAndGatherMsgs.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from broker.jetstream.bus import Bus, InterestWatch, Msg, Source, Subscription
from broker.jetstream.config.consumer import ConsumerConfig
from broker.jetstream.consumer.acks.reply_subjects import ReplySubjects
from broker.jetstream.consumer.delivery import status
from broker.jetstream.consumer.delivery.flow_control import FlowWindow, RateLimit
from broker.jetstream.consumer.delivery.receiver import Receiver, SubjectReceiver
from broker.jetstream.wire.ids import unique_id
from broker.jetstream.wire.numbers import SEQ_MAX, decimal
from broker.protocol import headers
from broker.protocol.framing import MAX_PAYLOAD

__all__ = ["PushSide"]


class PushSide:
    """The subscribers of one consumer.

    Attributes: ``active``: true if there are subscribers; ``flow`` and ``rate`` are None if not configured;
        ``flow_acks``: true if answers to flow control requests are the acks.
    """

    def __init__(self, bus: Bus, rng: random.Random, subjects: ReplySubjects, config: ConsumerConfig, mono_ns: int,
                 msg_bytes_max: int, interested: Callable[[bool], None],
                 on_answers: Callable[[Sequence[tuple[int, int]]], None], receiver: Receiver | None = None) -> None:
        """Args:
            ``receiver`` takes the messages; None: the subscribers of ``deliver_subject``.
            ``msg_bytes_max`` is the stream's message size limit, -1: none.
            ``interested`` is called with whether anybody subscribes.
            ``on_answers`` is called when answers have opened the window, with the acks in them, if answers are acks:
            (stream
                sequence, consumer sequence).
        """
        self.receiver = receiver or _subscribers(bus, config)
        self.active = False
        self.flow: FlowWindow | None = None
        self.rate: RateLimit | None = None
        self.flow_acks = config.ack_policy == "flow_control"
        self._flow_request = b""
        self._bus = bus
        self._rng = rng
        self._subjects = subjects
        self._interested = interested
        self._on_answers = on_answers
        self._beat_ns = config.idle_heartbeat
        self._beat_at_ns = mono_ns + config.idle_heartbeat
        self._open = False
        self._watch: InterestWatch | None = None
        self._answers: list[Subscription] = []
        if config.flow_control:
            self.flow = FlowWindow()
            self._renew()
        self._limit(config.rate_limit_bps, msg_bytes_max, mono_ns)

    def update(self, old: ConsumerConfig, config: ConsumerConfig, mono_ns: int, msg_bytes_max: int) -> bool:
        """Apply a changed configuration. True: messages now go to another subject; call ``watch`` after answering."""
        self._beat_ns = config.idle_heartbeat
        if config.rate_limit_bps != old.rate_limit_bps:
            self._limit(config.rate_limit_bps, msg_bytes_max, mono_ns)
        if (config.deliver_subject, config.deliver_group) == (old.deliver_subject, old.deliver_group):
            return False
        self.receiver = _subscribers(self._bus, config)
        self.active = False
        self._unwatch()
        return True

    def open(self) -> None:
        """Watch the interest."""
        self._open = True
        self.watch()

    def watch(self) -> None:
        """Watch the interest in the subject, if open; existing interest is reported at once."""
        self._unwatch()
        if not self._open:
            return
        self._watch = self.receiver.watch(self._interest_changed)
        self._interest_changed(self._watch.interested)

    def close(self) -> None:
        """Stop watching."""
        self._open = False
        while self._answers:
            self._bus.unsubscribe(self._answers.pop())
        self._unwatch()

    @property
    def next_beat_ns(self) -> int | None:
        """The time at which the next heartbeat may be due; None while none is."""
        return self._beat_at_ns if self._beat_ns and self.active else None

    def ask(self) -> None:
        """Send a flow control request."""
        assert self.flow is not None
        if not self._answers:
            # Subscribe only now: most consumers with flow control, such as those of a key's history, never have so much
            # unread.
            self._answers = [self._bus.subscribe(prefix + b"*", self._on_flow) for prefix in self._subjects.flows]
        self.flow.asked(self._flow_request)
        self.receiver.control(self._flow_request, status.FLOW_CONTROL)

    def beat(self, mono_ns: int, sent_mono_ns: int, consumer_seq: int, stream_seq: int, *, unacked: bool) -> None:
        """Send the heartbeat if it is due: nothing was sent for its interval. The sequences are the last ones sent.

        ``unacked``: acks are pending, so if flow control carries them, ask for them now.
        """
        if self._beat_ns <= 0 or not self.active:
            return
        self._beat_at_ns = max(self._beat_at_ns, sent_mono_ns + self._beat_ns)
        if self._beat_at_ns > mono_ns:
            return
        stalled = self.flow.outstanding if self.flow is not None else b""
        self.receiver.control(b"", status.idle_heartbeat(consumer_seq, stream_seq, stalled))
        self._beat_at_ns = mono_ns + self._beat_ns
        if self.flow_acks and unacked and self.flow is not None and not self.flow.outstanding:
            self.ask()

    # ---- parts

    def _interest_changed(self, interested: bool) -> None:
        self.active = interested
        self._interested(interested)

    def _on_flow(self, ops: Sequence[Msg], start: int, end: int, source: Source | None, now_ns: int) -> None:
        """Handle answers to flow control requests: messages to a subject of ``reply_subjects`` with an id."""
        assert self.flow is not None
        acks: list[tuple[int, int]] = []
        for subject, _, hlen, body in ops[start:end]:
            if not self.flow.answered(subject):
                continue
            self._renew()
            if self.flow_acks and hlen:
                seq = decimal(headers.get(body[:hlen], b"Nats-Last-Stream") or b"", SEQ_MAX)
                cseq = decimal(headers.get(body[:hlen], b"Nats-Last-Consumer") or b"", SEQ_MAX)
                if seq > 0:
                    acks.append((seq, max(cseq, 0)))
            self._on_answers(acks)

    def _renew(self) -> None:
        self._flow_request = self._subjects.flow + unique_id(self._rng, 4).encode()

    def _limit(self, bits_per_second: int, msg_bytes_max: int, mono_ns: int) -> None:
        # The burst of a rate limit is the largest message.
        burst = msg_bytes_max if msg_bytes_max > 0 else MAX_PAYLOAD
        self.rate = RateLimit(bits_per_second, burst, mono_ns) if bits_per_second else None

    def _unwatch(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None


def _subscribers(bus: Bus, config: ConsumerConfig) -> SubjectReceiver:
    return SubjectReceiver(bus, config.deliver_subject.encode(), config.deliver_group.encode())
