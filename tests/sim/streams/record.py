"""The requests of clients and their answers, with which ``checker`` compares the store.

This module reads neither a broker nor the store. A request succeeds, is refused, or is not answered; in the last case
it may or may not have taken effect, at any later time. So we know of each message whether it

    must be there       its PubAck came, and no request was made that removes it
    must be gone        a removal that covers it was answered
    may be either       everything else

and which message each sequence names, which never changes.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

from broker.protocol.subject import matches

__all__ = ["ConsumerRecord", "Lost", "Publish", "Removal", "StreamRecord", "error_of", "matches_filter"]

SECOND = 1_000_000_000


class Lost(AssertionError):
    """A promise was broken."""


class Publish:
    """A message that a client sent. ``seq`` is set once it is known, ``refused`` once the message is refused."""

    __slots__ = ("answers", "asked_ns", "ends_ns", "expected_last", "expected_subject", "msg_id", "payload", "refused",
                 "rollup", "seq", "subject")

    def __init__(self, subject: bytes, payload: bytes, asked_ns: int, msg_id: bytes = b"", rollup: str = "") -> None:
        self.subject = subject
        self.payload = payload
        self.asked_ns = asked_ns
        self.msg_id = msg_id
        self.rollup = rollup
        self.expected_last: int | None = None
        self.expected_subject: int | None = None
        self.seq = 0
        self.refused = False
        self.answers = True
        """True if the client waits for its PubAck."""
        self.ends_ns = 0
        """The time at which the message may expire; 0: never."""

    def __repr__(self) -> str:
        ids = f" id {self.msg_id.decode()}" if self.msg_id else ""
        return f"{self.payload.decode()} on {self.subject.decode()}{ids}"


class Removal:
    """A client's request that removes messages.

    ``wanted`` b"" means every subject. ``below`` bounds the sequences that it may remove. ``certain`` is the highest
    sequence that it has certainly removed once ``answered``. ``seqs``: only these sequences.
    """

    __slots__ = ("answered", "below", "certain", "seqs", "wanted")

    def __init__(self, wanted: bytes = b"", below: int | None = None, certain: int = 0,
                 seqs: frozenset[int] | None = None) -> None:
        self.wanted = wanted
        self.below = below
        self.certain = certain
        self.seqs = seqs
        self.answered = False

    def may_remove(self, seq: int, subject: bytes) -> bool:
        if self.seqs is not None:
            return seq in self.seqs
        return (self.below is None or seq < self.below) and self._matches(subject)

    def has_removed(self, seq: int, subject: bytes) -> bool:
        if not self.answered:
            return False
        if self.seqs is not None:
            return seq in self.seqs
        return seq <= self.certain and self._matches(subject)

    def _matches(self, subject: bytes) -> bool:
        return not self.wanted or not subject or matches(self.wanted, subject)


class ConsumerRecord:
    """A durable consumer, from the answer to its creation until its deletion is requested."""

    def __init__(self, name: str, config: dict[str, Any], made_ns: int = 0) -> None:
        self.name = name
        self.made_ns = made_ns
        """The time at which its creation was answered."""
        self.config = config
        self.counts: dict[int, int] = {}
        """Sequence to the number of deliveries that the client saw from the owner of ``epoch``."""
        self.epoch = 0
        self.kept_counts: dict[int, int] = {}
        """These numbers as of the last answer that waited for their storage."""
        self.kept_delivered = 0
        self.acked: set[int] = set()
        """Sequences whose acks were answered: never again pending, never delivered again."""

    def served_by(self, epoch: int) -> dict[int, int]:
        """Return ``counts`` as this owner must know them: those of another owner may have been lost with it."""
        if epoch != self.epoch:
            self.epoch = epoch
            self.counts = {}
        return self.counts

    def delivered(self, seq: int, count: int, epoch: int) -> None:
        if seq in self.acked:
            raise Lost(f"consumer {self.name}: {seq} was acked, and the ack answered, and it is delivered again")
        kept = self.kept_counts.get(seq, 0)
        if count <= kept:
            raise Lost(f"consumer {self.name}: delivery {count} of {seq} is repeated, {kept} were stored")
        if (most := self.config.get("max_deliver", -1)) > 0 and count > most:
            raise Lost(f"consumer {self.name}: {seq} was delivered {count} times, at most {most} are allowed")
        counts = self.served_by(epoch)
        counts[seq] = max(count, counts.get(seq, 0))

    @property
    def begins_at_all(self) -> bool:
        """True if it delivers every live message."""
        return self.config.get("deliver_policy", "all") == "all"

    def record_stored(self, counts: dict[int, int], delivered: int) -> None:
        """Record an answer that waited until ``counts`` and ``delivered`` were stored."""
        self.kept_counts.update(counts)
        self.kept_delivered = max(self.kept_delivered, delivered)

    def wants(self, subject: bytes) -> bool:
        return matches_filter(self.config, subject)


class StreamRecord:
    """An incarnation of a stream. ``status`` is "asked" (requested), "made", "going" (its deletion is requested) or
    "gone"."""

    def __init__(self, stream_id: int, kind: str, config: dict[str, Any]) -> None:
        self.stream_id = stream_id
        self.kind = kind
        self.name: str = config["name"]
        self.life: str = config["metadata"]["life"]
        """The value that distinguishes it from others of its name for a client."""
        self.status = "asked"
        self.slack_ns = 0
        """Upper bound of the difference between the brokers' clocks, and between them and the clients'."""
        self.suspended_ns: Callable[[], int] = lambda: 0
        """Upper bound of the time by which a message's time may lie before its publish. A broker that does not trust
        its clocks does not notice that it was suspended. Once it trusts them, the message is closer to its end by that
        time."""
        self.memory = config.get("storage") == "memory"
        self.epoch = 0
        """The epoch of its first owner."""
        self.asynchronous = config.get("persist_mode") == "async"
        self.captures = kind in ("audit", "echo")
        """True if it gets messages that no client sent to it."""
        self.configs = [config]
        """Every configuration that was requested and not refused, the one at creation first."""
        self.config: dict[str, Any] | None = None
        """The last configuration that was answered, if no other was requested since."""
        self.updates = 0
        """Updates that were requested and not answered."""
        self.updates_asked = 0
        self.updates_uncertain = 0
        """The number of updates requested when one was answered that it could not be stored in time: it may have been
        stored after them."""
        self.shown: dict[str, Any] = {}
        """The configuration that the broker showed at the end."""
        self.sent: dict[bytes, Publish] = {}
        self.by_subject: defaultdict[bytes, list[Publish]] = defaultdict(list)
        self.acked: dict[int, Publish] = {}
        self.used_ids: list[bytes] = []
        self.ids: dict[bytes, int] = {}
        """Message id to the sequence that was answered for it."""
        self.named: dict[int, bytes] = {}
        """Sequence to the payload that was seen there."""
        self.removals: list[Removal] = []
        self.consumers: dict[str, ConsumerRecord] = {}
        self.consumer_ends: Counter[str] = Counter()
        """Consumer's name to the number of requests to delete it."""
        self.seen: defaultdict[str, set[int]] = defaultdict(set)
        """Consumer's name to the sequences that it ever delivered."""
        self.stored: set[int] = set()
        """Sequences of an async stream that are certainly in the store."""
        self.acked_by: dict[int, int] = {}
        """Sequence to the epoch of the owner that answered for it."""
        self.newest_epoch = 0
        """The epoch of the owner that answered last: what is not stored dies with that owner."""
        self.answered: defaultdict[str, set[int]] = defaultdict(set)
        """Consumer's name to the sequences that clients acked, whether or not the ack reached the broker."""
        self._excused: set[int] = set()
        self.high = 0
        """The highest sequence that any client received."""

    def __repr__(self) -> str:
        return f"stream {self.name} {self.stream_id:x}"

    # Requests.

    def send(self, publish: Publish) -> None:
        self.sent[publish.payload] = publish
        self.by_subject[publish.subject].append(publish)

    def remove(self, removal: Removal) -> Removal:
        self.removals.append(removal)
        return removal

    def withdraw(self, removal: Removal) -> None:
        """Remove a request that was refused."""
        self.removals.remove(removal)

    # Answers.

    def record_payload(self, seq: int, payload: bytes, where: str) -> None:
        """Record that ``payload`` was seen at ``seq``. Raises: Lost."""
        known = self.named.setdefault(seq, payload)
        if known != payload:
            raise Lost(f"{self}: sequence {seq} names two messages: {known!r}, and {where} {payload!r}")
        publish = self.sent.get(payload)
        if publish is None:
            if not self.captures:
                raise Lost(f"{self}: {where} {seq} reads {payload!r}, which nobody published")
        elif publish.refused:
            raise Lost(f"{self}: {where} {seq} reads {payload!r}, which was refused")
        elif publish.seq and publish.seq != seq:
            raise Lost(f"{self}: {payload!r} is both {publish.seq} and, {where}, {seq}")
        else:
            publish.seq = seq

    def pub_ack(self, publish: Publish, answer: dict[str, Any], epoch: int) -> None:
        """Record the answer to a publish. Raises: Lost."""
        if "error" in answer:
            publish.refused = True
            if publish.seq:
                raise Lost(f"{self}: {publish} was refused, and is there")
            return
        seq = answer["seq"]
        self.newest_epoch = max(self.newest_epoch, epoch)
        self.high = max(self.high, seq)
        if answer.get("duplicate"):
            self._duplicate(publish, seq)
            return
        self.record_payload(seq, publish.payload, "a PubAck of")
        self.acked[seq] = publish
        self.acked_by[seq] = epoch
        if publish.msg_id:
            first = self.ids.setdefault(publish.msg_id, seq)
            window_ns = self.configs[0].get("duplicate_window", 0)
            first_row = self.acked[first] if first != seq else publish
            within_window = publish.asked_ns - first_row.asked_ns < window_ns - self.slack_ns
            if first != seq and within_window and not self.may_be_gone(first, first_row.subject, publish.asked_ns):
                raise Lost(f"{self}: {publish} was stored as {seq}, though {first} has this id")
            self.ids[publish.msg_id] = seq
        if publish.expected_last is not None and publish.expected_last != seq - 1:
            raise Lost(f"{self}: {publish} expected the last sequence {publish.expected_last} and became {seq}")
        if publish.expected_subject is not None:
            between = [other for other in self.by_subject[publish.subject]
                       if publish.expected_subject < other.seq < seq]
            if any(not self.may_be_gone(other.seq, other.subject, publish.asked_ns) for other in between):
                raise Lost(f"{self}: {publish} expected {publish.expected_subject} and became {seq} after {between}")
        if publish.rollup:
            self.remove(Removal(publish.subject if publish.rollup == "sub" else b"", seq, seq - 1)).answered = True

    def _duplicate(self, publish: Publish, seq: int) -> None:
        """Record that ``seq`` has or had the id of ``publish``: its own PubAck may have been lost with a broker."""
        publish.refused = True
        if publish.seq:
            raise Lost(f"{self}: {publish} was called a duplicate of {seq}, and is there")
        original = self.acked.get(seq)
        if original is not None:
            if original.msg_id != publish.msg_id:
                raise Lost(f"{self}: {publish} was called a duplicate of {seq}, which is {original}")
            return
        unknown = [sent for sent in self.sent.values()
                   if sent.msg_id == publish.msg_id and not sent.refused and sent.seq in (0, seq)]
        if not unknown:
            raise Lost(f"{self}: {publish} was called a duplicate of {seq}, and nobody sent that")
        if len(unknown) == 1:
            self.record_payload(seq, unknown[0].payload, "a duplicate of")
            self.acked[seq] = unknown[0]

    # Conclusions.

    def may_be_gone(self, seq: int, subject: bytes, now_ns: int) -> bool:
        """Return whether a request may have removed an acknowledged message."""
        if seq in self._excused:
            return True
        if self.asynchronous and seq not in self.stored and self.acked_by.get(seq) != self.newest_epoch:
            return True
        if self._may_be_removed(seq, subject, now_ns):
            self._excused.add(seq)
            return True
        return False

    def _no_consumer_waits(self, seq: int) -> bool:
        """Return whether the stream may have removed, or never stored, a message because no consumer waits for it."""
        retention = self.configs[0].get("retention")
        if retention == "workqueue":
            return any(seq in answered for answered in self.answered.values())
        if retention != "interest":
            return False
        asked_ns = self.acked[seq].asked_ns if seq in self.acked else 0
        return not any(asked_ns > consumer.made_ns and "filter_subject" not in consumer.config
                       and self._waits(consumer, seq) for consumer in self.consumers.values())

    def _waits(self, consumer: ConsumerRecord, seq: int) -> bool:
        answered = self.answered[consumer.name]
        policy = consumer.config["ack_policy"]
        return (policy == "explicit" and seq not in answered) or (policy == "all" and seq > max(answered, default=0))

    def _may_be_removed(self, seq: int, subject: bytes, now_ns: int) -> bool:
        if self._no_consumer_waits(seq) or self.ended(seq, now_ns):
            return True
        if any(removal.may_remove(seq, subject) for removal in self.removals):
            return True
        if any(not p.refused and (not p.seq or p.seq > seq) for p in self.sent.values()
               if p.rollup and (p.rollup == "all" or p.subject == subject)):
            return True
        return any(self._limits_may_remove(config, seq, subject, now_ns) for config in self.configs)

    def ended(self, seq: int, now_ns: int) -> bool:
        """Return whether an acknowledged message has reached its end."""
        publish = self.acked.get(seq)
        return publish is not None and 0 < publish.ends_ns <= now_ns + self.slack_ns + self.suspended_ns()

    def _limits_may_remove(self, config: dict[str, Any], seq: int, subject: bytes, now_ns: int) -> bool:
        if age_ns := config.get("max_age"):
            publish = self.acked.get(seq)
            if publish is None or now_ns - publish.asked_ns >= age_ns - self.slack_ns - self.suspended_ns():
                return True
        if config.get("max_bytes", -1) > 0:
            return True
        if (most := config.get("max_msgs_per_subject", -1)) > 0 and self._later(self.by_subject[subject], seq) >= most:
            return True
        most = config.get("max_msgs", -1)
        return most > 0 and (self.captures or self._later(self.sent.values(), seq) >= most)

    @staticmethod
    def _later(publishes: Any, seq: int) -> int:
        return sum(1 for p in publishes if not p.refused and (not p.seq or p.seq > seq))

    def must_be_gone(self, seq: int, subject: bytes) -> bool:
        return any(removal.has_removed(seq, subject) for removal in self.removals)


def matches_filter(consumer: dict[str, Any], subject: bytes) -> bool:
    """Return whether a consumer of this configuration gets messages of ``subject``."""
    wanted = consumer.get("filter_subject", "")
    return not wanted or matches(wanted.encode(), subject)


def error_of(answer: bytes) -> dict[str, Any]:
    """Parse an answer; text that is not JSON (429) is a refusal."""
    try:
        value: dict[str, Any] = json.loads(answer)
    except ValueError:
        return {"error": {"err_code": 10167}}
    return value
