"""Publishes become messages of a stream, or refusals: nats-server's checks, in its order, taken from the live state.

Owns: every decision on a publish. Does not own: the live state (live), the subjects (subject_state), the ids (dedupe),
what limits remove afterwards (retention), what waits before it gets here (queue), the bytes of replies (replies).

    run of publishes ─┬─ nothing special in it ─────────> one append, one waiter for all its PubAcks   (``_bulk``)
                      ├─ the same, and a single message > as lean as it gets: many streams in turn     (``one``)
                      └─ headers or limits that decide ─> message by message, appended as runs         (``_one_by_one``)

Refusals come before sequencing, never after: what is appended gets a PubAck or no answer. A decision that needs what is
not in memory raises ``NotLoaded`` before it has changed anything; the rest of the run then waits at the queue's head. Nothing
enters the stream from inside a decision (see bus), and what one leads to is done in one place (``_commit``).

An unexpected error refuses the message that caused it. What was appended stands with its PubAcks, and nothing remembers
what was not; if even that does not hold, the log stops.

Source: nats-server, server/stream.go, processJetStreamMsgWithBatch; server/filestore.go, storeRawMsg.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

from broker.jetstream.filters import Filters
from broker.jetstream.stream.publish import headers as publish_headers
from broker.jetstream.stream.publish.accepted import Pending
from broker.jetstream.stream.publish.headers import HINT, PublishHeaders
from broker.jetstream.stream.publish.replies import Replies
from broker.jetstream.stream.state.rows import NotLoaded
from broker.jetstream.wire.errors import NOT_AVAILABLE, ApiError
from broker.jetstream.wire.numbers import SEQ_MAX
from broker.protocol.subject import is_literal
from broker.storage.format.message_size import ROW_BYTES, message_size, messages_size
from broker.storage.log.open_block import NAMES_BYTES
from broker.storage.log.owner import BlockOwner

if TYPE_CHECKING:
    from broker.clock import Clock
    from broker.jetstream.bus import Bus, Msg, Source
    from broker.jetstream.config.stream import StreamConfig
    from broker.jetstream.stream.publish.blocked import Standstill
    from broker.jetstream.stream.publish.dedupe import Dedupe
    from broker.jetstream.stream.state.live import Live
    from broker.jetstream.stream.state.subject_index import SubjectIndex
    from broker.jetstream.stream.state.subject_state import SubjectState
    from broker.storage.log.log import Log
    from broker.storage.log.memory_log import MemoryLog

__all__ = ["Sequencer"]

_log = logging.getLogger(__name__)

_RECORD_BYTES_MAX = 32 << 20
"""nats-server's bound on one message's record."""

_HEADERS_BYTES_MAX = 65_535

_FAST_BATCH = b".$FI"
"""Replies that end so belong to a fast-ingest batch."""

_COMMON = frozenset((publish_headers.MSG_ID, b"Nats-Expected-Stream", b"Nats-Expected-Last-Sequence",
                     b"Nats-Expected-Last-Subject-Sequence", b"Nats-Expected-Last-Msg-Id", b"Nats-Rollup"))
"""Headers of everyday publishes; with these alone the checks for the others are passed over."""

_CEILING_MARGIN = 32_768
"""An async stream asks for its next ceiling this long before it needs it."""

_IDS = "the ids of the duplicate window"

_FAR = SEQ_MAX >> 1
"""A stream below it has sequences for a century of a billion messages a second."""

_NO_HEADERS: PublishHeaders = {}

_TELL_NS = 1_000_000_000
"""Unexpected errors are logged no more often: they may come with each message."""


class _Duplicate(Exception):
    """The message was stored before, as ``seq``."""

    def __init__(self, seq: int) -> None:
        super().__init__(seq)
        self.seq = seq


class Queue(Protocol):
    """The queue that runs come from."""

    def requeue(self, run: tuple[Sequence[Msg], int, int, Source | None, int]) -> None: ...


class Owner(BlockOwner, Protocol):
    """What this module asks of the stream."""

    @property
    def name(self) -> str: ...
    @property
    def queue(self) -> Queue: ...
    @property
    def ceiling(self) -> int: ...
    def raise_ceiling(self, last_seq: int) -> None: ...
    def wait_for_ceiling(self) -> None: ...


class Retention(Protocol):
    """The limits, carried out after publishes, and before those decisions that depend on them."""

    def enforce(self) -> None: ...
    def arm(self) -> None: ...
    def trim(self) -> None: ...
    def take_out(self, found: Iterable[tuple[int, int]]) -> None: ...


class Rollups(Protocol):
    """What roll-ups take out."""

    def plan(self, subject: bytes | None) -> Callable[[], None]: ...


class Sequencer:
    """The publishing side of one stream. ``configure`` follows each change of its configuration."""

    def __init__(self, owner: Owner, live: Live, log: Log | MemoryLog, dedupe: Dedupe, subjects: SubjectState,
                 retention: Retention, rollups: Rollups, standstill: Standstill, replies: Replies, bus: Bus, clock: Clock,
                 last_seq_of: Callable[[Filters], Awaitable[int]],
                 load_ids: Callable[[], Awaitable[None]]) -> None:
        self._owner = owner
        self._live, self._log, self._dedupe, self._subjects = live, log, dedupe, subjects
        self._retention, self._rollups, self._standstill = retention, rollups, standstill
        self._clock = clock
        self._last_seq_of = last_seq_of
        self._load_ids = load_ids
        self._pub_acks_each = bus.pub_acks_each
        self.replies = replies
        self._last_by_filter: tuple[bytes, int, int] | None = None
        """What was looked up for the publish at the head of the queue: a filter, its last sequence, the stream's."""
        self._told_ns = -_TELL_NS

    def configure(self, config: StreamConfig) -> None:
        """Take the limits of ``config``."""
        self._per_subject = config.max_msgs_per_subject if config.max_msgs_per_subject > 0 else 0
        self._max_msgs = config.max_msgs if config.max_msgs > 0 else 0
        self._max_bytes = config.max_bytes if config.max_bytes > 0 else 0
        self._limited = bool(self._max_msgs or self._max_bytes)
        # What a message replaces frees room, so here the order of replacing and trimming shows.
        self._trim_each = self._limited and bool(self._per_subject)
        self._max_msg_size = config.max_msg_size if config.max_msg_size >= 0 else -1
        self._discard_new = config.discard == "new" and bool(self._limited or self._per_subject)
        self._discard_new_per_subject = self._discard_new and config.discard_new_per_subject
        self._allow_rollup = config.allow_rollup_hdrs and not config.deny_purge
        self._sealed = config.sealed
        self._acks = not config.no_ack
        self._ages = config.max_age > 0
        self._async = config.persist_mode == "async" and config.storage != "memory"
        self.renumbered()
        self.replies.configure(config)
        self._prefix = self.replies.prefix

    def renumbered(self) -> None:
        """The stream's last sequence was set, not counted up. Counting up leads from below ``_FAR`` to the last sequence
        there is in no process's life, so only a stream that was set beyond looks at each message's."""
        self._ending = self._live.last_seq >= _FAR
        self._bulky = not (self._discard_new or self._sealed or self._ending)
        self._lean = self._bulky and self._acks and not (self._async or self._limited or self._ages or self._per_subject)

    # --- runs ---------------------------------------------------------------------------------------------------------

    def run(self, ops: Sequence[Msg], start: int, end: int, source: Source | None, now_ns: int) -> None:
        """Sequence ops[start:end], whose turn it is; what must wait goes back to the queue."""
        live = self._live
        time_ns = now_ns if now_ns > live.last_time_ns else live.last_time_ns
        if (self._async and (last_seq := live.last_seq + end - start) >= self._owner.ceiling - _CEILING_MARGIN
                and live.last_seq < SEQ_MAX):
            self._owner.raise_ceiling(last_seq)
            if last_seq >= self._owner.ceiling:
                self._owner.queue.requeue((ops, start, end, source, now_ns))
                self._owner.wait_for_ceiling()
                return
        if not (self._bulky and self._all_at_once(ops if end - start == len(ops) else ops[start:end], source, time_ns)):
            done = self._one_by_one(ops, start, end, source, time_ns)
            if done < end:
                # Behind it the queue is busy, so what is left is what comes next.
                self._owner.queue.requeue((ops, done, end, source, now_ns))
        try:
            if self._limited:
                self._retention.enforce()
            if self._ages:
                self._retention.arm()
        except Exception as error:
            self._unforeseen(error, index=True)
        self._log.urgent()

    def one(self, msg: Msg, now_ns: int) -> bool:
        """``run`` for a single message that nothing limits: publishes that go round over many streams come as nothing
        else. False: it must be ``run``."""
        subject, reply, hlen, body = msg
        size = len(body)
        if (not self._lean or hlen or size > _RECORD_BYTES_MAX // 2 or 0 <= self._max_msg_size < size
                or len(subject) + len(reply) > NAMES_BYTES or _FAST_BATCH in reply):
            return False
        live, log = self._live, self._log
        usage = live.usage
        if usage.bytes > usage.bytes_max:
            return False
        seq = live.last_seq + 1
        time_ns = now_ns if now_ns > live.last_time_ns else live.last_time_ns
        try:
            block = live.open or log.block(self._owner)
            block.append_one(seq, subject, body, time_ns)
            live.appended(block, 1, ROW_BYTES + len(subject) + size, seq, time_ns)
            self._dedupe.last_id = b""
            if reply:
                log.wait_batched(self._pub_acks_each, reply, self._prefix, seq)
        except Exception as error:
            self._unforeseen(error, index=False)
            if live.last_seq < seq:
                self.replies.refused(reply, ApiError(NOT_AVAILABLE))
        log.urgent()
        return True

    def _all_at_once(self, run: Sequence[Msg], source: Source | None, time_ns: int) -> bool:
        """``_bulk``, or False: message by message, which also finds the one that an unforeseen error comes from."""
        last_seq = self._live.last_seq
        try:
            return self._bulk(run, source, time_ns)
        except Exception as error:
            self._unforeseen(error, index=bool(self._per_subject))
            return self._live.last_seq > last_seq

    def _bulk(self, run: Sequence[Msg], source: Source | None, time_ns: int) -> bool:
        """Append a whole run at once, if no message in it needs a look of its own."""
        subjects: Sequence[bytes]
        replies: Sequence[bytes]
        bodies: Sequence[bytes]
        subjects, replies, hlens, bodies = zip(*run, strict=True)
        count = len(bodies)
        with_headers = count - hlens.count(0)
        ids: Sequence[bytes] | None = None
        if with_headers:
            ids = publish_headers.msg_ids(hlens, bodies)
            if ids is None:
                return False
            if any(ids):
                dedupe = self._dedupe
                dedupe.expire(time_ns)
                if not dedupe.known or dedupe.full or not dedupe.news(ids):
                    return False
            else:
                ids = None
        raw_bytes = sum(map(len, bodies))
        if raw_bytes > _RECORD_BYTES_MAX // 2 or (
                0 <= self._max_msg_size < raw_bytes and max(map(len, bodies)) > self._max_msg_size):
            return False
        joined = b" ".join(replies)
        if _FAST_BATCH in joined or (with_headers and max(hlens) > _HEADERS_BYTES_MAX):
            return False
        live = self._live
        first_seq = live.last_seq + 1
        subjects_bytes = sum(map(len, subjects))
        size = messages_size(count, with_headers, subjects_bytes, raw_bytes)
        if live.usage.bytes + size > live.usage.bytes_max:
            return False
        removed = None
        if self._per_subject:
            index = self._subjects.index
            if index is None or index.merged_seq != live.last_seq or (
                    self._trim_each and self._over_with(count, size)):
                return False
            removed = index.add_run(subjects, map(message_size, subjects, hlens, bodies), first_seq, self._per_subject,
                                    live.first_seq)
        block = self._log.block(self._owner)
        block.append_run(first_seq, subjects, hlens if with_headers else None, bodies, time_ns,
                         subjects_bytes + len(joined))
        live.appended(block, count, size, first_seq, time_ns)
        if ids:
            self._dedupe.add_run(ids, first_seq, time_ns)
        else:
            self._dedupe.last_id = b""
        self.replies.accepted(source, replies, first_seq)
        if removed:
            self._retention.take_out(removed)
        return True

    def _one_by_one(self, ops: Sequence[Msg], start: int, end: int, source: Source | None, time_ns: int) -> int:
        """Decide on each message; returns the place of the first one that must wait, or ``end``."""
        replies = self.replies
        pending = Pending(self._live.last_seq + 1)
        over = self._standstill.over
        for i in range(start, end):
            op = ops[i]
            try:
                if (plan := self._accept(pending, op, source, time_ns)) is not None:
                    self._roll_up(pending, plan, source, time_ns)
            except ApiError as error:
                self._append(pending, source, time_ns)
                replies.refused(op[1], error)
            except _Duplicate as duplicate:
                self._append(pending, source, time_ns)
                replies.duplicate(op[1], duplicate.seq)
            except NotLoaded as not_loaded:
                self._append(pending, source, time_ns)
                if self._standstill.begin(op, not_loaded):
                    return i
                replies.refused(op[1], ApiError(NOT_AVAILABLE))
            except Exception as error:
                self._append(pending, source, time_ns)
                self._unforeseen(error, index=pending.indexed)
                pending.indexed = False
                replies.refused(op[1], ApiError(NOT_AVAILABLE))
            if i == start:
                # A publish that waits is the first of its run.
                over()
        self._append(pending, source, time_ns)
        return end

    def _append(self, pending: Pending, source: Source | None, time_ns: int) -> bool:
        """Append what was accepted; False: it was refused, since that failed. ``pending`` is empty after it."""
        appended = True
        if pending.msgs:
            try:
                self._commit(pending, source, time_ns)
            except Exception as error:
                appended = self._live.last_seq >= pending.first_seq
                self._unforeseen(error, index=True)
                if not appended:
                    for _, reply, _, _ in pending.msgs:
                        self.replies.refused(reply, ApiError(NOT_AVAILABLE))
        # A roll-up or a trim may have removed or skipped, too; sequences go on from wherever the stream is.
        pending.begin(self._live.last_seq + 1)
        return appended

    def _commit(self, pending: Pending, source: Source | None, time_ns: int) -> None:
        """Make messages of what was accepted: in the block, the numbers and the window of ids, then take out what they
        replace. Their PubAcks are promised before that, since messages they are by then."""
        live, first_seq = self._live, pending.first_seq
        if first_seq != live.last_seq + 1:
            raise RuntimeError(f"accepted as {first_seq}, but the stream is at {live.last_seq}")
        subjects, replies, hlens, bodies = zip(*pending.msgs, strict=True)
        block = self._log.block(self._owner)
        block.append_run(first_seq, subjects, hlens if any(hlens) else None, bodies, time_ns,
                         sum(map(len, subjects)) + sum(map(len, replies)))
        live.appended(block, len(bodies), pending.bytes, first_seq, time_ns)
        self._dedupe.add(pending.ids, pending.last_id, time_ns)
        self.replies.accepted(source, replies, first_seq)
        if pending.removed:
            self._retention.take_out(pending.removed)

    def _roll_up(self, pending: Pending, carry_out: Callable[[], None], source: Source | None, time_ns: int) -> None:
        """Append the roll-up, which stands last in ``pending``, and take out what it replaces."""
        if self._append(pending, source, time_ns):
            try:
                carry_out()
            except Exception as error:
                self._unforeseen(error, index=True)

    def _unforeseen(self, error: Exception, *, index: bool) -> None:
        """Log an unexpected error, and make sure that nothing is built on a wrong state.

        ``index``: the subjects may be out of step; they are read again from the messages.
        """
        if index:
            self._subjects.forget()
        now_ns = self._clock.monotonic_ns()
        if now_ns - self._told_ns >= _TELL_NS:
            self._told_ns = now_ns
            _log.error("stream %s: a publish failed", self._owner.name, exc_info=error)
        if not self._live.counts(self._log.block(self._owner)):
            _log.critical("stream %s: its numbers are not those of its messages, so nothing more is stored", self._owner.name)
            self._log.fail(error)

    # --- one message --------------------------------------------------------------------------------------------------

    def _accept(self, pending: Pending, op: Msg, source: Source | None, time_ns: int) -> Callable[[], None] | None:
        """Add one message to ``pending``. Returns: for a roll-up, what carries it out once it is appended.

        Raises: ApiError or _Duplicate when it is not stored; NotLoaded.
        """
        subject, reply, hlen, body = op
        headers = _NO_HEADERS
        if self._trim_each and self._over_with(len(pending.msgs) - len(pending.removed),
                                               pending.bytes - pending.removed_bytes):
            self._append(pending, source, time_ns)
            self._retention.trim()
        if hlen:
            if body[8:10] != b"\r\n" or b"Nats-Request-Info:" in body[:hlen]:
                hlen, body = publish_headers.as_stored(hlen, body)
                op = subject, reply, hlen, body
            if body.find(HINT, 0, hlen) >= 0:
                headers = publish_headers.find(body[:hlen])
        size = message_size(subject, hlen, body)
        if size > _RECORD_BYTES_MAX:
            raise ApiError(10077, err="message too large")
        if reply.endswith(_FAST_BATCH):
            self._check_batch(10205, body)
        if headers.get(b"Nats-Batch-Id"):
            self._check_batch(10174, body)
        if self._sealed:
            raise ApiError(10109)
        msg_id, rollup = b"", b""
        if headers:
            if len(headers) > 1 or publish_headers.MSG_ID not in headers:
                self._check_headers(headers, subject, pending, source, time_ns)
            msg_id = headers.get(publish_headers.MSG_ID, b"")
            if msg_id:
                self._check_msg_id(msg_id, pending, time_ns)
            self._check_last_msg_id(headers, pending)
            rollup = publish_headers.parse_rollup(headers, allowed=self._allow_rollup)
        if 0 <= self._max_msg_size < len(body):
            raise ApiError(10054)
        if hlen > _HEADERS_BYTES_MAX:
            raise ApiError(10097)
        usage = self._live.usage
        if usage.bytes + pending.bytes - pending.removed_bytes > usage.bytes_max:
            # What the stream's own limits take out for those before it makes room.
            self._append(pending, source, time_ns)
            self._retention.trim()
            if usage.bytes > usage.bytes_max:
                usage.refused(time_ns)
                raise ApiError(10023)
        ttl = headers.get(b"Nats-TTL")
        if ttl and publish_headers.parse_ttl(ttl) == publish_headers.TTL_INVALID:
            raise ApiError(10165)
        index = None
        if self._per_subject:
            index = self._subjects.index
            if index is None or index.merged_seq < pending.last_seq:
                self._append(pending, source, time_ns)
                index = self._subjects.ready()
        if self._ending and pending.last_seq >= SEQ_MAX:
            raise ApiError(10077, err="the stream has used its last sequence")
        if self._discard_new:
            self._check_room(pending, subject, size, bool(rollup))
        plan = None
        if rollup:
            # Before anything is stored: a roll-up and what it removes stand in one block.
            self._append(pending, source, time_ns)
            self._retention.trim()
            plan = self._rollups.plan(subject if rollup == b"sub" else None)
        seq = pending.last_seq + 1
        replaced: Sequence[tuple[int, int]] = ()
        if index is not None:
            pending.indexed = True
            replaced = self._index(index, subject, seq, size, plan is not None)
            pending.indexed = False
        pending.msgs.append(op)
        pending.bytes += size
        if msg_id:
            pending.ids[msg_id] = seq
        pending.last_id = msg_id
        if replaced:
            pending.replaces(replaced)
        return plan

    def _index(self, index: SubjectIndex, subject: bytes, seq: int, size: int, rollup: bool) -> Sequence[tuple[int, int]]:
        """Add a message to the index of a stream that limits subjects; returns (sequence, size) of those it replaces, none
        for a roll-up, which has a plan."""
        if not rollup:
            return index.add_run((subject,), (size,), seq, self._per_subject, self._live.first_seq)
        index.add(subject, seq, size)
        index.merged_seq = seq
        return ()

    def _over_with(self, msgs: int, size: int) -> bool:
        """Whether ``msgs`` more messages of ``size`` user bytes take the stream past max_msgs or max_bytes."""
        live = self._live
        return bool((self._max_msgs and live.msgs + msgs > self._max_msgs)
                    or (self._max_bytes and live.bytes + size > self._max_bytes))

    def _check_batch(self, disabled: int, body: bytes) -> None:
        if self._sealed:
            raise ApiError(10109)
        if 0 <= self._max_msg_size < len(body):
            raise ApiError(10054)
        raise ApiError(disabled)

    def _check_headers(self, headers: PublishHeaders, subject: bytes, pending: Pending, source: Source | None,
                       time_ns: int) -> None:
        """The checks before deduplication, in nats-server's order."""
        get = headers.get
        rare = not headers.keys() <= _COMMON
        if rare and (incr := get(b"Nats-Incr")):
            if not publish_headers.is_integer(incr):
                raise ApiError(10171)
            raise ApiError(10168)
        expected = get(b"Nats-Expected-Stream")
        if expected and expected != self._owner.name.encode():
            raise ApiError(10060)
        if rare and (ttl := get(b"Nats-TTL")) and publish_headers.parse_ttl(ttl) != publish_headers.TTL_INVALID:
            raise ApiError(10166)
        if text := get(b"Nats-Expected-Last-Subject-Sequence"):
            wanted = get(b"Nats-Expected-Last-Subject-Sequence-Subject") or subject
            index = self._subjects.index
            if (wanted is subject and self._per_subject and not self._limited and index is not None
                    and index.merged_seq == pending.last_seq):
                # A tracked stream's index has what is pending too.
                last = index.last(subject, self._live.first_seq) or 0
            else:
                self._append(pending, source, time_ns)
                self._retention.trim()
                last = self._last_of(wanted)
            if last != publish_headers.parse_sequence(text):
                raise ApiError(10071, seq=last)
        elif get(b"Nats-Expected-Last-Subject-Sequence-Subject"):
            raise ApiError(10193)
        if text := get(b"Nats-Expected-Last-Sequence"):
            last = pending.last_seq
            if last != publish_headers.parse_sequence(text):
                raise ApiError(10071, seq=last)
        if rare:
            publish_headers.check_schedule(headers, subject)
            if get(b"Nats-Stream-Source"):
                raise ApiError(10227)

    def _check_msg_id(self, msg_id: bytes, pending: Pending, time_ns: int) -> None:
        dedupe = self._dedupe
        if not dedupe.known:
            raise NotLoaded(_IDS, work=self._load_ids)
        dedupe.expire(time_ns)
        if seq := dedupe.seen(msg_id) or (dedupe.window_ns > 0 and pending.ids.get(msg_id, 0)):
            raise _Duplicate(seq)
        if dedupe.full:
            raise ApiError(10167)

    def _check_last_msg_id(self, headers: PublishHeaders, pending: Pending) -> None:
        expected = headers.get(b"Nats-Expected-Last-Msg-Id")
        if not expected:
            return
        last_id = pending.last_id if pending.msgs else self._dedupe.last_id
        if last_id is None:
            raise NotLoaded(_IDS, work=self._load_ids)
        if expected != last_id:
            raise ApiError(10070, id=last_id.decode("utf-8", "replace"))

    def _check_room(self, pending: Pending, subject: bytes, size: int, rollup: bool) -> None:
        """Discard policy new. Raises: ApiError 10077."""
        live = self._live
        msgs = live.msgs + len(pending.msgs) - len(pending.removed)
        used = live.bytes + pending.bytes - pending.removed_bytes
        replaces, replaced_size = False, 0
        if self._per_subject:
            index = self._subjects.index
            assert index is not None
            if index.count(subject, live.first_seq) >= self._per_subject:
                if self._discard_new_per_subject and not rollup:
                    raise ApiError(10077, err="maximum messages per subject exceeded")
                replaces, replaced_size = True, index.first(subject, live.first_seq)[1]
        if self._max_msgs and msgs >= self._max_msgs and not replaces:
            raise ApiError(10077, err="maximum messages exceeded")
        if self._max_bytes and used + size > self._max_bytes and (not replaces or replaced_size < size):
            raise ApiError(10077, err="maximum bytes exceeded")

    def _last_of(self, subject: bytes) -> int:
        """Last sequence of ``subject``, which may have wildcards. Raises: NotLoaded."""
        live = self._live
        if is_literal(subject):
            return self._subjects.last(subject)
        known = self._last_by_filter
        if known is not None and known[0] == subject and known[2] == live.last_seq:
            # Nothing came since; what was the last may have left.
            last = known[1]
            if not last or live.find(last) is not None:
                return last
        raise NotLoaded(f"the last message of {subject!r}", work=partial(self._look_up_last, subject))

    async def _look_up_last(self, subject: bytes) -> None:
        last = await self._last_seq_of(Filters((subject,)))
        self._last_by_filter = subject, last, self._live.last_seq
