"""Moves messages of one consumer from its stream to its receivers, a run at a time.

Owns the order of steps in one delivery. Redeliveries come before new messages. Then the limits apply: max_ack_pending,
requests, flow control, rate, a slow connection. Each receiver gets one ``Deliveries`` batch. Only messages that were
actually sent are recorded as delivered. The loop never waits: ``run`` does a bounded amount of work and returns the
next step.

Source: nats-server consumer.go: loopAndGatherMsgs, getNextMsg, deliverMsg, didNotDeliver.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum, auto
from itertools import islice
from operator import add
from typing import NamedTuple

from broker.jetstream.bus import Bus, Deliveries
from broker.jetstream.consumer.acks.state import AckState
from broker.jetstream.consumer.cursor.cursor import Cursor, Loading
from broker.jetstream.consumer.cursor.message_columns import MessageColumns
from broker.jetstream.consumer.delivery.flow_control import Replay
from broker.jetstream.consumer.delivery.gathering import Gathering
from broker.jetstream.consumer.delivery.priority import Supply, Turn
from broker.jetstream.consumer.delivery.pull import Waiting
from broker.jetstream.consumer.delivery.push import PushSide
from broker.jetstream.wire.advisories import DELETED_REASON, ConsumerEvents
from broker.protocol import headers

__all__ = ["DeliveryLoop", "Step", "Verdict"]

_RUN_MESSAGES = 1000
_RUN_BYTES = 512 * 1024
"""The most that one run delivers before other tasks get their turn on the loop."""
_UNSENT_BYTES = 8 << 20
"""The unsent bytes on the receiver's connection above which delivery pauses, well below max_pending (64 MiB)."""
_SLOW_NS = 2_000_000
_NO_RECEIVER_NS = 50_000_000
_ONES = (1,) * _RUN_MESSAGES


class Verdict(Enum):
    """The reason why a run ended."""

    MORE = auto()
    """It has delivered the most that one run may; run again in a later turn of the loop."""
    END = auto()
    """There is nothing to deliver, or no receiver."""
    BLOCKED = auto()
    """max_ack_pending is reached, so an ack has to come first. This does not end one-shot pulls."""
    LOADING = auto()
    """``Step.loading`` must complete first."""
    LATER = auto()
    """Delivery continues at ``Step.at_ns`` (monotonic), not before."""


class Step(NamedTuple):
    verdict: Verdict
    loading: Loading | None = None
    at_ns: int = 0


_END = Step(Verdict.END)


class DeliveryLoop:
    """The delivery of one consumer; exactly one of ``waiting`` (pull) and ``push`` is set.

    Args: ``done`` is called with deliveries that need no ack; ``trace``: ``MessageTracer.delivered`` of this consumer,
        None if no messages are traced.
    """

    def __init__(self, bus: Bus, acks: AckState, cursor: Cursor, events: ConsumerEvents, prefix: bytes,
                 done: Callable[[Sequence[int]], None], trace: Callable[..., None] | None = None,
                 reference: Callable[[int], bytes | None] = lambda _: None) -> None:
        self._bus = bus
        self._done = done
        self._acks = acks
        self._cursor = cursor
        self._events = events
        self._prefix = prefix
        self._trace = trace
        self._reference = reference
        self.waiting: Waiting | None = None
        self.push: PushSide | None = None
        self.acked = True
        """True if deliveries are to be acked; False: they count as acked when sent."""
        self.ack_pending_max = 0
        self.headers_only = False
        self.replay: Replay | None = None
        self.sent_mono_ns = 0
        """The monotonic time of the last delivery."""

    def run(self, now_ns: int, mono_ns: int) -> Step:
        """Deliver as many messages as can be delivered, within the limits of one run."""
        left = _RUN_MESSAGES
        bytes_left = _RUN_BYTES
        acks = self._acks
        while left > 0 and bytes_left > 0:
            if not self._has_receiver():
                return _END
            # Every delivery carries the number of messages still pending.
            loading = self._cursor.count()
            if loading is not None:
                return Step(Verdict.LOADING, loading)
            wanted = left
            if not acks.queue and self.ack_pending_max > 0:
                wanted = min(wanted, self.ack_pending_max - len(acks.pending))
                if wanted <= 0:
                    return Step(Verdict.BLOCKED)
            turn = None
            if self.waiting is not None:
                turn = self.waiting.turn(self._supply())
                if turn is None:
                    return _END
                wanted = min(wanted, turn.wanted)
            if self._pending_bytes(turn) > _UNSENT_BYTES:
                return Step(Verdict.LATER, None, mono_ns + _SLOW_NS)
            if acks.queue:
                outcome = self._redeliver(turn, wanted, now_ns, mono_ns)
            else:
                outcome = self._deliver_new(turn, wanted, bytes_left, now_ns, mono_ns)
            if isinstance(outcome, Step):
                return outcome
            count, size = outcome
            left -= max(count, 1)
            bytes_left -= size
        return Step(Verdict.MORE)

    def _has_receiver(self) -> bool:
        """Return whether there is a receiver that takes messages."""
        if self.waiting is not None:
            return bool(self.waiting)
        push = self.push
        return push is not None and push.active and (push.flow is None or not push.flow.closed)

    def _pending_bytes(self, turn: Turn | None) -> int:
        """Return the unsent bytes of the receiver of the next message."""
        if turn is not None:
            return self._bus.pending_bytes(turn.requests[0].reply)
        assert self.push is not None
        return self.push.receiver.pending_bytes()

    def _supply(self) -> Supply:
        """Return the counts for requests with limits of their own; the next message counts as pending,
        redelivered or new."""
        acks, again = self._acks, bool(self._acks.queue)
        return Supply(self._cursor.pending + again, len(acks.pending), not again, self.acked)

    def _deliver_new(self, turn: Turn | None, wanted: int, bytes_max: int, now_ns: int,
             mono_ns: int) -> Step | tuple[int, int]:
        """Deliver messages for the first time; returns how many, and about how many bytes."""
        cursor = self._cursor
        msgs = cursor.next_messages(wanted, bytes_max)
        if msgs is None:
            if self.replay is not None and cursor.next_seq > self.replay.last_seq:
                self.replay = None
            return _END
        if not isinstance(msgs, MessageColumns):
            return Step(Verdict.LOADING, msgs)
        if self.replay is not None:
            n, due = self.replay.send(msgs.seqs, msgs.times, mono_ns)
            if not n:
                return Step(Verdict.LATER, None, due)
            msgs = msgs.cut(n)
        sent = self._send(turn, msgs, None, mono_ns)
        if isinstance(sent, Step):
            return sent
        n, lost = sent
        if n:
            seqs = msgs.seqs[:n]
            if self.acked:
                self._acks.deliver(seqs, now_ns, mono_ns)
                if lost:
                    self._acks.not_sent(lost)
            else:
                self._acks.deliver_unacked(seqs[-1], n, now_ns)
            cursor.advance(msgs, n)
            if self._trace is not None and msgs.hlens is not None:
                self._trace(now_ns, msgs.seqs[:n], msgs.subjects, msgs.hlens[:n], msgs.bodies, None)
            if not self.acked:
                self._done(seqs)
            self.sent_mono_ns = mono_ns
        return n, sum(map(len, msgs.bodies[:n]))

    def _redeliver(self, turn: Turn | None, wanted: int, now_ns: int, mono_ns: int) -> Step | tuple[int, int]:
        """Deliver from the redelivery queue, dropping messages that have left the stream or reached max_deliver."""
        acks, cursor = self._acks, self._cursor
        found = Gathering(cursor)
        counts: list[int] = []
        queued = list(islice(acks.queue, wanted))
        for seq, count in zip(queued, acks.next_counts(queued), strict=True):
            if 0 < acks.max_deliver < count:
                self._events.max_deliver(seq, acks.exhaust(seq))
                continue
            one = found.add(seq)
            if one is False:
                run = acks.pending.get(seq)
                cseq = run.cseq_of(seq) if run is not None else 0
                acks.drop((seq,))
                self._events.terminated(seq, cseq, count - 1, DELETED_REASON)
                continue
            if one is not True:
                if not found:
                    acks.advance_floor()
                    return Step(Verdict.LOADING, one)
                break
            counts.append(count)
        if not found:
            acks.advance_floor()
            return 0, 0
        msgs = found.columns()
        sent = self._send(turn, msgs, counts, mono_ns)
        if isinstance(sent, Step):
            return sent
        n, lost = sent
        if n:
            gone = set(lost)
            # Only messages that were actually sent count as delivered; the others keep their places in the queue.
            acks.deliver_again([s for s in msgs.seqs[:n] if s not in gone], now_ns, mono_ns)
            acks.delivered_cseq += len(gone)
            if self._trace is not None and msgs.hlens is not None:
                self._trace(now_ns, msgs.seqs[:n], msgs.subjects, msgs.hlens[:n], msgs.bodies, counts)
            self.sent_mono_ns = mono_ns
        acks.advance_floor()
        return n, sum(map(len, msgs.bodies[:n]))

    # ---- sending

    def _send(self, turn: Turn | None, msgs: MessageColumns, counts: Sequence[int] | None,
              mono_ns: int) -> Step | tuple[int, list[int]]:
        """Send the first of ``msgs``; ``counts``: delivery count of each, None if this is the first delivery.

        Returns how many were used, and which sequences of those had no receiver.
        """
        if self.headers_only:
            msgs = _headers_only(msgs)
        if self.push is not None:
            return self._push(msgs, counts, self.push, mono_ns)
        assert self.waiting is not None
        assert turn is not None
        return self._pull(turn, msgs, counts, self.waiting, mono_ns)

    def _numbers(self, n: int, counts: Sequence[int] | None) -> tuple[Sequence[int], range, Sequence[int]]:
        """Return delivery counts, consumer sequences and pending counts of the next ``n`` deliveries."""
        first = self._acks.delivered_cseq + 1
        pending = self._cursor.pending
        if counts is None:
            ones = _ONES[:n] if n <= _RUN_MESSAGES else (1,) * n
            return ones, range(first, first + n), range(pending - 1, pending - 1 - n, -1)
        return counts[:n], range(first, first + n), [pending] * n

    def _sizes(self, msgs: MessageColumns, counts: Sequence[int] | None) -> list[int]:
        """Return the size of each message as limits count it: subject, ack subject, headers and payload."""
        n = len(msgs)
        same = len(self._prefix) + 4  # and the dots between the numbers
        sizes = list(map(add, map(len, msgs.subjects), map(len, msgs.bodies)))
        for column in (*self._numbers(n, counts), msgs.seqs, msgs.times):
            low, high = min(column), max(column)
            if low >= 0 and len(b"%d" % low) == len(b"%d" % high):
                same += len(b"%d" % low)
            else:
                sizes = [size + len(b"%d" % number) for size, number in zip(sizes, column, strict=True)]
        return [size + same for size in sizes]

    def _pull(self, turn: Turn, msgs: MessageColumns, counts: Sequence[int] | None, waiting: Waiting,
              mono_ns: int) -> tuple[int, list[int]]:
        bus = self._bus
        ready, ended = waiting.ready(turn, len(msgs), mono_ns, bus.interest)
        self._publish(ended)
        if not ready:
            return 0, []
        shares, ended = waiting.share(turn, len(msgs), lambda: self._sizes(msgs, counts), mono_ns)
        self._publish(ended)
        more = waiting.order.headers() if shares else b""
        if more:
            msgs = _with_headers(msgs.cut(max(share.stop for share in shares)), more)
        used = 0
        lost: list[int] = []
        delivered, cseqs, pendings = self._numbers(len(msgs), counts)
        for to, start, stop, step, after in shares:
            cut = slice(start, stop, step)
            hlens = None if msgs.hlens is None else msgs.hlens[cut]
            bodies = msgs.bodies[cut]
            if to.by_reference:
                hlens, bodies = self._references(msgs.seqs[cut], hlens, bodies, more)
            batch = Deliveries(self._prefix, msgs.subjects[cut], hlens, bodies, delivered[cut], msgs.seqs[cut],
                               cseqs[cut], msgs.times[cut], pendings[cut])
            n = bus.deliver(to.reply, batch)
            if stop > used:
                used = stop
            if n < len(batch):
                waiting.drop(to)
                if len(shares) == 1:
                    return start + n, lost  # nothing was sent after these, so the rest stays in the stream
                lost += msgs.seqs[cut][n:]
            elif after is not None:
                bus.publish(to.reply, b"", len(after), after)
        return used, lost

    def _references(self, seqs: Sequence[int], hlens: Sequence[int] | None, bodies: Sequence[bytes], more: bytes
                    ) -> tuple[list[int], list[bytes]]:
        """Return header lengths and bodies of references instead of messages, where there are references."""
        new_hlens, new_bodies = list(hlens or (0,) * len(bodies)), list(bodies)
        for i, seq in enumerate(seqs):
            if (lines := self._reference(seq)) is not None:
                block = headers.VERSION + b"\r\n" + lines + more + b"\r\n"
                new_hlens[i], new_bodies[i] = len(block), block
        return new_hlens, new_bodies

    def _push(self, msgs: MessageColumns, counts: Sequence[int] | None, to: PushSide,
              mono_ns: int) -> Step | tuple[int, list[int]]:
        flow, rate = to.flow, to.rate
        ask = False
        sizes: list[int] = []
        if rate is not None or flow is not None:
            sizes = self._sizes(msgs, counts)
        if rate is not None:
            n, due = rate.send(sizes, mono_ns)
            if not n:
                return Step(Verdict.LATER, None, due)
            msgs, sizes = msgs.cut(n), sizes[:n]
        if flow is not None:
            n, ask = flow.send(sizes)
            msgs = msgs.cut(n)
            # If flow control answers are the acks, one is needed to get past a full max_ack_pending.
            full = to.flow_acks and len(self._acks.pending) + (n if counts is None else 0) >= self.ack_pending_max > 0
            ask = ask or (full and not flow.outstanding)
        delivered, cseqs, pendings = self._numbers(len(msgs), counts)
        batch = Deliveries(self._prefix, msgs.subjects, msgs.hlens, msgs.bodies, delivered, msgs.seqs, cseqs,
                           msgs.times, pendings)
        n = to.receiver.deliver(batch)
        if flow is not None:
            if n < len(batch):
                flow.return_unsent(sum(sizes[n:len(batch)]))
            elif ask:
                to.ask()
        if not n:
            # The watch reports new subscribers; until then try again from time to time.
            return Step(Verdict.LATER, None, mono_ns + _NO_RECEIVER_NS)
        return n, []

    def _publish(self, statuses: list[tuple[bytes, bytes]]) -> None:
        for reply, text in statuses:
            self._bus.publish(reply, b"", len(text), text)


def _with_headers(msgs: MessageColumns, lines: bytes) -> MessageColumns:
    """Return ``msgs`` with header lines added after those of each message (nats-server's genHeader)."""
    bodies, hlens = [], []
    for i, body in enumerate(msgs.bodies):
        hlen = 0 if msgs.hlens is None else msgs.hlens[i]
        block = (body[:hlen - 2] if hlen else headers.VERSION + b"\r\n") + lines + b"\r\n"
        bodies.append(block + body[hlen:])
        hlens.append(len(block))
    return MessageColumns(msgs.seqs, msgs.subjects, hlens, bodies, msgs.times, msgs.end)


def _headers_only(msgs: MessageColumns) -> MessageColumns:
    """Return ``msgs`` without payloads; a header gives the payload's length (nats-server's convertToHeadersOnly)."""
    if msgs.hlens is None or not any(msgs.hlens):
        bodies = [b"NATS/1.0\r\nNats-Msg-Size: %d\r\n\r\n" % length for length in map(len, msgs.bodies)]
    else:
        bodies = []
        for hlen, body in zip(msgs.hlens, msgs.bodies, strict=True):
            kept = body[:hlen - 2] if hlen else headers.VERSION + b"\r\n"
            bodies.append(b"%bNats-Msg-Size: %d\r\n\r\n" % (kept, len(body) - hlen))
    return MessageColumns(msgs.seqs, msgs.subjects, list(map(len, bodies)), bodies, msgs.times, msgs.end)
