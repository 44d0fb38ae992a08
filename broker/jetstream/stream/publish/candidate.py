"""A publish on its way through a stream's checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from broker.jetstream.stream.publish.headers import as_stored, has_unstored
from broker.storage.format.message_size import HEADERS_BYTES, ROW_BYTES

if TYPE_CHECKING:
    from broker.jetstream.bus import Msg
    from broker.jetstream.stream.publish.pending import Pending
    from broker.jetstream.stream.publish.totals import Total
    from broker.jetstream.stream.state.subject_index import SubjectIndex

__all__ = ["Candidate", "Check", "Duplicate", "Unwanted"]

_NO_HEADERS: Mapping[bytes, bytes] = {}


class Duplicate(Exception):
    """Raised for a message that was stored before, as ``seq``."""

    def __init__(self, seq: int) -> None:
        super().__init__(seq)
        self.seq = seq


class Unwanted(Exception):
    """Raised for a message that no consumer waits for: it is acknowledged, not stored.

    No other message is pending then.
    """


class Candidate:
    """A message as it will be stored unless a check refuses it. A check that changes it keeps ``size`` correct.

    One object serves a whole run: a new object for each message took a tenth of the time of its decision.

    Attributes:
        hlen, body: headers (the first ``hlen`` bytes of ``body``) and payload.
        size: the bytes that it adds to the stream's ``bytes``.
        headers: the headers that the stream's checks read, parsed only if ``Nats-`` occurs.
        copied: True if it comes from another stream, not from a client.
        pending: messages accepted before it that are not in the stream yet.
        msg_id: the message id to remember, or b"".
        rollup: b"", b"sub" or b"all".
        ttl: seconds to live; -1: forever; 0: as long as the stream's limits allow.
        total: its subject's total including it, in a stream of counters; otherwise None.
        due: for a schedule, (0, due time); for a message published by one, the schedule's sequence and next time.
        ends: subject of the schedule that it ends, or b"".
        index: the subject index that counts it, in a stream that limits subjects; otherwise None.
        after: called when it has become the stream's last message, or None.
    """

    __slots__ = ("after", "body", "copied", "due", "ends", "headers", "hlen", "index", "msg_id", "pending", "reply",
                 "rollup", "size", "subject", "total", "ttl")

    def __init__(self, pending: Pending) -> None:
        self.pending = pending
        self.copied = False

    def begin(self, msg: Msg) -> None:
        """Set all fields from ``msg``, as it would be stored if no check refused or changed it."""
        subject, self.reply, hlen, body = msg
        size = ROW_BYTES
        if hlen:
            if has_unstored(hlen, body):
                hlen, body = as_stored(hlen, body)
            size = ROW_BYTES + HEADERS_BYTES if hlen else ROW_BYTES
            self.headers = _NO_HEADERS
        self.subject, self.hlen, self.body = subject, hlen, body
        self.size = size + len(subject) + len(body)
        self.msg_id = self.rollup = b""
        self.ttl = 0
        self.total: Total | None = None
        self.due: tuple[int, int] | None = None
        self.ends = b""
        self.index: SubjectIndex | None = None
        self.after: Callable[[], None] | None = None


Check = Callable[[Candidate], None]
"""A check. Raises: ApiError, Duplicate, BatchMember, Unwanted or NotLoaded if the candidate is not stored, or not
yet."""
