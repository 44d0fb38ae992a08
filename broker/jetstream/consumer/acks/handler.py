"""Handles clients' answers to deliveries: acks and all other kinds.

Owns the effect of each kind of answer on the ack state, and which answers get a reply. Also owns the end of pending
acks without an answer, for messages that left the stream or reached max_deliver.
Does not own: parsing (protocol), the state (AckState), when a reply is sent (the consumer: after the state is stored).

A run of plain acks, the common case on a busy consumer, is parsed by one split each and applied in one call. So is a
run of plain negative acks.

Source: nats-server consumer.go: processAck, processAckMsg, processNak, processTerm. Unlike nats-server, an ack for
a delivery that may have been lost in a crash is accepted, because plain acks and deliveries are stored asynchronously.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import compress
from typing import Protocol

from broker.jetstream.bus import Msg
from broker.jetstream.config.consumer import ConsumerConfig
from broker.jetstream.consumer.acks.protocol import AckKind, parse_answer, parse_delay, parse_subject
from broker.jetstream.consumer.acks.state import AckState
from broker.jetstream.consumer.cursor.cursor import Cursor
from broker.jetstream.wire.advisories import DELETED_REASON, ConsumerEvents
from broker.jetstream.wire.numbers import INT64_MAX, SEQ_MAX, decimal

__all__ = ["AckHandler"]

_ACK_WAIT_NS = 30_000_000_000
_FOR_EVER_NS = 1 << 63
_PLAIN = (b"", b"+ACK", b"+OK")
_NAK = b"-NAK"
_ACKS = (AckKind.ACK, AckKind.NEXT, AckKind.TERM)

_FORGOTTEN_AT_ONCE = 8192
"""The largest number of sequences that an ack ahead of the deliveries names one by one: about 1 ms."""


class _Stream(Protocol):
    @property
    def last_seq(self) -> int: ...
    @property
    def safe_seq(self) -> int: ...


def _sample_percent(text: str) -> int:
    """Return ``sample_freq`` ("50" or "50%") as a number; 0 if there is none."""
    text = text.removesuffix("%")
    return int(text) if text.isdecimal() and text.isascii() and len(text) < 10 else 0


class AckHandler:
    """The handler of answers to one consumer's deliveries.

    Attributes:
        policy: explicit or all.
        sample_percent: share of acks for which a metric is sent.
        forgotten_seq: deliveries up to here may have been sent and lost in a crash; 0: none.
    """

    def __init__(self, stream: _Stream, acks: AckState, cursor: Cursor, events: ConsumerEvents, rng: random.Random,
                 prefix: bytes, request: Callable[[bytes, bytes, int], None],
                 done: Callable[[Sequence[int]], None], done_from: Callable[[int], None]) -> None:
        """Args: ``done(seqs)`` is called with messages that are no longer pending; if there may be very many,
            ``done_from(seq)`` is called instead, with the first of them."""
        self._stream = stream
        self._acks = acks
        self._cursor = cursor
        self._events = events
        self._rng = rng
        self._prefix = prefix
        self._request = request
        self._done = done
        self._done_from = done_from
        self.policy = "explicit"
        self.sample_percent = 0
        self.forgotten_seq = 0

    def configure(self, config: ConsumerConfig, now_ns: int, mono_ns: int) -> None:
        """Apply a configuration, also to messages that are already pending."""
        acked, by_flow = config.ack_policy != "none", config.ack_policy == "flow_control"
        waits = config.backoff or [config.ack_wait or (_FOR_EVER_NS if by_flow else _ACK_WAIT_NS)]
        if not acked:
            waits = []
        if waits != self._acks.waits_ns:
            self._acks.set_waits(waits, now_ns, mono_ns)
        self._acks.max_deliver = max(config.max_deliver, 0)
        self.policy = "all" if by_flow else config.ack_policy
        self.sample_percent = _sample_percent(config.sample_freq)

    def apply_answers(self, ops: Sequence[Msg], start: int, end: int, now_ns: int, mono_ns: int) -> list[bytes]:
        """Apply the answers ops[start:end]. The caller runs ``advance_floor``.

        Returns: the reply subjects to answer after the state is stored.
        """
        run = ops[start:end]
        prefix = self._prefix
        every = self.policy == "all"
        fast = not self.sample_percent
        if len(run) > 1 and (answers := self._split_alike(run, (_NAK, *_PLAIN) if fast else (_NAK,))) is not None:
            if run[0][3] == _NAK:
                self._nak_run(answers)
            else:
                self.ack(_numbers([tokens[2] for tokens in answers]),
                         _numbers([tokens[3] for tokens in answers]) if every else (), now_ns)
            return []
        replies: list[bytes] = []
        plain: list[bytes] = []
        cseqs: list[bytes] = []
        naks: list[list[bytes]] = []
        for subject, reply, hlen, body in run:
            if fast and not hlen and not reply and body in _PLAIN:
                tokens = subject.rsplit(b".", 5)
                if tokens[0] == prefix:
                    if naks:
                        self._nak_run(naks)
                        naks = []
                    plain.append(tokens[2])
                    if every:
                        cseqs.append(tokens[3])
                    continue
            if plain:
                self.ack(_numbers(plain), _numbers(cseqs) if every else (), now_ns)
                plain, cseqs = [], []
            if body == _NAK and not hlen and not reply:
                tokens = subject.rsplit(b".", 5)
                if tokens[0] == prefix:
                    naks.append(tokens)
                    continue
            if naks:
                self._nak_run(naks)
                naks = []
            if self._answer(subject, reply, body[hlen:] if hlen else body, now_ns, mono_ns) and reply:
                replies.append(reply)
        if plain:
            self.ack(_numbers(plain), _numbers(cseqs) if every else (), now_ns)
        if naks:
            self._nak_run(naks)
        return replies

    def ack_first(self, run: Sequence[Msg], most: int, now_ns: int) -> bool:
        """Ack the first ``most`` of the messages that an answer of ``run`` acks, by the policy all.

        Returns: False if the answer acks no more than that, so that ``apply_answers`` must apply it.
        """
        if self.policy != "all":
            return False
        acks, next_seq, ahead_max = self._acks, self._cursor.next_seq, self._ahead_max
        # An ack ahead of the deliveries has a consumer sequence from before the crash: it acks all pending messages.
        found = [(seq, cseq if seq < next_seq else SEQ_MAX) for subject, _, hlen, body in run
                 if parse_answer(body[hlen:] if hlen else body)[0] in _ACKS
                 for _, seq, cseq in (parse_subject(subject),) if seq < next_seq or seq <= ahead_max]
        seq, cseq = max(found, default=(0, 0))
        # At most as many are pending up to there as were delivered for the first time since the floor.
        if seq <= acks.floor_sseq or cseq <= acks.floor_cseq + most:
            return False
        first = acks.first(most + 1)
        # A client may name any consumer sequence: the floor must not pass it before the ack itself is applied.
        if len(first) <= most or first[-1] > seq or acks.pending[first[-1]].cseq_of(first[-1]) > cseq:
            return False
        first.pop()
        acks.ack(first, now_ns)
        acks.advance_floor()
        self._done(first)
        return True

    def consumer_seqs(self, seqs: Sequence[int]) -> Sequence[int]:
        """Return the consumer sequences that ``ack`` needs with the policy all, for a caller that does not know them.

        A message that is not pending has 0. With any other policy, return nothing.
        """
        if self.policy != "all":
            return ()
        pending = self._acks.pending
        return [0 if (run := pending.get(seq)) is None else run.cseq_of(seq) for seq in seqs]

    def apply_flow_answers(self, acked: Sequence[tuple[int, int]], now_ns: int) -> None:
        """Apply answers to flow control requests: each acks everything up to (stream sequence, consumer sequence)."""
        for seq, cseq in acked:
            self._ack(seq, cseq, 1, now_ns, sample=False)
        self._acks.advance_floor()

    def removed(self, first_seq: int, last_seq: int, now_ns: int, *, purged: bool) -> bool:
        """Forget pending messages within first..last, which left the stream.

        Unless it was a purge, each is reported as TERMINATED. Returns whether the state changed.
        """
        acks = self._acks
        if acks.ahead:
            acks.forget_ahead(last_seq + 1, first_seq)
        if last_seq <= acks.floor_sseq and not acks.redelivered:
            return False
        pending = acks.within(first_seq, last_seq)
        if not purged:
            for seq in pending:
                self._events.terminated(seq, acks.pending[seq].cseq_of(seq), max(1, acks.redelivered.get(seq, 0)),
                                        DELETED_REASON)
        exhausted = acks.exhausted(first_seq, last_seq)
        if not pending and not exhausted:
            return False
        acks.drop(pending)
        acks.drop(exhausted)
        acks.advance_floor()
        if pending:
            acks.last_ack_ns = now_ns
        return True

    def expire(self, mono_ns: int) -> bool:
        """Queue messages whose ack wait ended for redelivery, or give up after ``max_deliver`` deliveries.

        Returns: whether any was given up.
        """
        exhausted = self._acks.expire(mono_ns)
        for seq in exhausted:
            self._events.max_deliver(seq, self._acks.exhaust(seq))
        return bool(exhausted)

    def _split_alike(self, run: Sequence[Msg], payloads: Sequence[bytes]) -> list[list[bytes]] | None:
        """Split the subjects of a run of answers that are all alike: the consumer's names, and the numbers after them.

        Returns None unless all answers have the same payload, one of ``payloads``, and no headers or reply subjects.
        """
        subjects, replies, hlens, bodies = zip(*run, strict=True)
        if bodies[0] not in payloads or bodies.count(bodies[0]) < len(bodies) or any(hlens) or any(replies):
            return None
        answers = [subject.rsplit(b".", 5) for subject in subjects]
        return answers if [tokens[0] for tokens in answers].count(self._prefix) == len(answers) else None

    def ack(self, seqs: Sequence[int], cseqs: Sequence[int], now_ns: int) -> None:
        """Ack messages by their stream sequences, at least one. The caller runs ``advance_floor``.

        Args: ``cseqs``: their consumer sequences, with the policy all only.
        """
        next_seq = self._cursor.next_seq
        if self.policy == "all":
            pairs = list(zip(seqs, cseqs, strict=True))
            seq, cseq = max((pair for pair in pairs if pair[0] < next_seq), default=(0, 0))
            self._ack(seq, cseq, 1, now_ns, sample=False)
            ahead_max = self._ahead_max
            seq, cseq = max((pair for pair in pairs if next_seq <= pair[0] <= ahead_max), default=(0, 0))
            self._ack(seq, cseq, 1, now_ns, sample=False)
            return
        if max(seqs) >= next_seq or not min(seqs):
            for seq in seqs:
                if seq >= next_seq:
                    self._ack_ahead(seq, 0, now_ns)
            seqs = [s for s in seqs if 0 < s < next_seq]
        self._acks.ack(seqs, now_ns)
        self._done(seqs)

    def _nak_run(self, naks: list[list[bytes]]) -> None:
        """Apply plain negative acks without reply subjects, by the tokens of their subjects."""
        acks = self._acks
        floor_cseq, delivered_cseq, pending = acks.floor_cseq, acks.delivered_cseq, acks.pending
        seqs, cseqs = _numbers([tokens[2] for tokens in naks]), _numbers([tokens[3] for tokens in naks])
        valid = [floor_cseq < cseq <= delivered_cseq and seq in pending for seq, cseq in zip(seqs, cseqs, strict=True)]
        if self._events.naks_observed:
            for seq, cseq, tokens in compress(zip(seqs, cseqs, naks, strict=True), valid):
                self._events.nak(seq, cseq, decimal(tokens[1], INT64_MAX))
        acks.nak(compress(seqs, valid))

    def _answer(self, subject: bytes, reply: bytes, payload: bytes, now_ns: int, mono_ns: int) -> bool:
        """Handle one answer of any kind; returns whether to send its reply, if it has a reply subject."""
        deliveries, seq, cseq = parse_subject(subject)
        kind, argument = parse_answer(payload)
        match kind:
            case AckKind.ACK:
                return self._ack(seq, cseq, deliveries, now_ns, sample=True)
            case AckKind.NEXT:
                self._ack(seq, cseq, deliveries, now_ns, sample=True)
                if reply:
                    self._acks.advance_floor()
                    self._request(reply, argument, mono_ns)
                return False
            case AckKind.TERM:
                done = self._ack(seq, cseq, deliveries, now_ns, sample=False)
                reason = argument.strip().decode("utf-8", "replace")
                self._events.terminated(seq, cseq, deliveries, reason)
                return done
            case AckKind.NAK:
                self._nak(seq, cseq, deliveries, argument, now_ns, mono_ns)
            case AckKind.PROGRESS:
                self._acks.progress(seq, now_ns, mono_ns)
        return seq > 0

    def _ack(self, seq: int, cseq: int, deliveries: int, now_ns: int, *, sample: bool) -> bool:
        """Ack one message (with ack all: everything up to it); returns whether to reply."""
        if seq <= 0:
            # An ack of sequence 0 gets a reply, like one of any sequence that is not pending; other kinds of answer do
            # not.
            if seq or self.policy != "explicit":
                return False
            self._acks.ack((), now_ns)
            return True
        acks = self._acks
        if seq >= self._cursor.next_seq:
            return self._ack_ahead(seq, cseq, now_ns)
        if self.policy == "all":
            floor_seq = acks.floor_sseq
            done = acks.ack_all(seq, cseq, now_ns)
            if acks.floor_sseq > floor_seq and (not done or done[-1] != seq):
                done.append(seq)
            self._done(done)
            return True
        if sample and self.sample_percent and seq in acks.pending and self._rng.randrange(100) < self.sample_percent:
            self._events.sampled_ack(seq, cseq, max(1, now_ns - acks.pending[seq].at_ns), deliveries)
        acks.ack((seq,), now_ns)
        self._done((seq,))
        return True

    @property
    def _ahead_max(self) -> int:
        """The last message whose delivery may have been lost in a crash."""
        return min(self.forgotten_seq, self._stream.safe_seq)

    def _ack_ahead(self, seq: int, cseq: int, now_ns: int) -> bool:
        """Apply an ack ahead of the deliveries, if that delivery may have been lost in a crash.
        Returns whether it was."""
        if seq > self._ahead_max:
            return False
        acks, cursor = self._acks, self._cursor
        if self.policy == "all":
            # Everything before it had been delivered, too, and is acked with it.
            first = max(acks.delivered_sseq, acks.floor_sseq) + 1
            low = acks.ack_all_ahead(seq, cseq, now_ns)
            if seq - first < _FORGOTTEN_AT_ONCE:
                self._done([*low, *range(first, seq + 1)])
            else:  # a gap of the stream may have any length
                self._done(low)
                self._done_from(first)
            cursor.jump(seq + 1)
        elif cursor.is_to_come(seq) and acks.ack_ahead(seq, now_ns):
            cursor.acked_ahead(seq)
            self._done((seq,))
        return True

    def _nak(self, seq: int, cseq: int, deliveries: int, argument: bytes, now_ns: int, mono_ns: int) -> None:
        acks = self._acks
        if not acks.floor_cseq < cseq <= acks.delivered_cseq or seq not in acks.pending:
            return
        self._events.nak(seq, cseq, deliveries)
        delay_ns = parse_delay(argument)
        if delay_ns is not None:
            acks.nak_later(seq, delay_ns, now_ns, mono_ns)
        else:
            acks.nak((seq,))


def _numbers(tokens: list[bytes]) -> list[int]:
    """Return tokens as sequences; 0, which no message has, for an invalid one."""
    if b"".join(tokens).isdigit() and b"" not in tokens and max(map(len, tokens)) < 19:
        return list(map(int, tokens))
    return [max(decimal(token, SEQ_MAX), 0) for token in tokens]
