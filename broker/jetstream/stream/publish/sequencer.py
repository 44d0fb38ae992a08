"""Decides on publishes by the live state at their turn, and turns them into messages of a stream, or refusals.

Owns: the order of a run, its sequences, and which of its messages are appended at once. Does not own: the checks
(checks), appending accepted messages (appender), the live state (live), the subjects (subject_state), the ids (dedupe),
removal by limits afterwards (retention), waiting for a turn (queue), the bytes of replies (replies).

    run of publishes ─┬─ no check concerns one message ──> one append, one waiter for all its PubAcks    (``_bulk``)
                      ├─ the same, and a single message ─> a faster ``_bulk`` for one message            (``run_one``)
                      └─ headers or limits that decide ──> message by message, appended as runs       (``_one_by_one``)
                                                            └──> members of batches                      (batching)
    messages copied from another stream ─────────────────> message by message, or all at once            (``copy``)

Refusals come before sequencing, never after: an appended message gets a PubAck or no answer. A decision that needs data
that is not in memory raises ``NotLoaded`` before changing anything; the rest of the run then waits at the head of the
queue. Nothing else enters the stream during a decision (see bus). The appender makes the state consistent again after
an unexpected error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from broker.jetstream.stream.publish import traces
from broker.jetstream.stream.publish.appender import Appender
from broker.jetstream.stream.publish.batches import FAST_INGEST, BatchMember, FastMember
from broker.jetstream.stream.publish.batching import Committing
from broker.jetstream.stream.publish.candidate import Candidate, Duplicate, Unwanted
from broker.jetstream.stream.publish.checks import COPIED, Checks, may_go_in_bulk
from broker.jetstream.stream.publish.headers import msg_ids
from broker.jetstream.stream.publish.limits import HEADERS_BYTES_MAX, RECORD_BYTES_MAX, Limits
from broker.jetstream.stream.publish.pending import Pending
from broker.jetstream.stream.publish.pub_ack_receiver import PubAckReceiver
from broker.jetstream.stream.publish.replies import Replies
from broker.jetstream.stream.state.rows import NotLoaded
from broker.jetstream.wire.error_table import ApiErrors
from broker.jetstream.wire.errors import ApiError
from broker.jetstream.wire.numbers import SEQ_MAX
from broker.protocol.traced import TracedMsg
from broker.storage.format.message_size import ROW_BYTES, message_size, messages_size
from broker.storage.log.open_block import NAMES_BYTES

if TYPE_CHECKING:
    from broker.jetstream.bus import Msg, Source
    from broker.jetstream.config.stream import StreamConfig
    from broker.jetstream.stream.publish.batching import Batching
    from broker.jetstream.stream.publish.blocked import BlockedPublish
    from broker.jetstream.stream.publish.ceiling import SequenceCeiling
    from broker.jetstream.stream.publish.context import CheckContext
    from broker.jetstream.stream.shared.stream_parts import StreamParts
    from broker.jetstream.stream.state.subject_index import SubjectIndex

__all__ = ["Sequencer"]

_CEILING_MARGIN = 32_768
"""An async stream requests its next ceiling this many sequences before it needs it."""

_DECISION_WORK = 16
"""Cost of a message decided by itself, in messages of a run that is sequenced as a whole: 15 to 25 µs."""


class Sequencer:
    """The publishing side of one stream. Call ``configure`` after each change of its configuration."""

    def __init__(self, parts: StreamParts, context: CheckContext, ceiling: SequenceCeiling, appender: Appender,
                 blocked: BlockedPublish, batching: Batching, replies: Replies) -> None:
        self._stream, self._log, self._queue = parts.stream, parts.log, parts.queue
        self._live, self._subjects = parts.live, parts.subjects
        self._pub_acks_each, self._count_work = parts.bus.pub_acks_each, parts.bus.count_work
        self._tracer, self._name, self._account = parts.bus.tracer, parts.name, parts.account
        self.context = context
        self._dedupe, self._retention = context.dedupe, context.retention
        self._ceiling, self._blocked, self._batching = ceiling, blocked, batching
        self.appender = appender
        self.replies = replies

    def configure(self, config: StreamConfig) -> None:
        """Apply the limits of ``config``, and the checks that it requires."""
        self._config = config
        self._limits = limits = Limits(config)
        self._limited, self._per_subject = limits.whole, limits.per_subject
        self._max_msg_size = config.max_msg_size if config.max_msg_size >= 0 else -1
        self._acks = not config.no_ack
        self._ages = config.max_age > 0
        self._async = config.persist_mode == "async" and config.storage != "memory"
        self._batching.configure(config)
        self._selective = config.retention == "interest"
        self.reset_checks()
        self.replies.configure(config)
        self._prefix = self.replies.prefix

    def reset_checks(self) -> None:
        """Select the checks again, after the stream's last sequence was set instead of counted up."""
        self.checks: Checks | None = None
        self._batching.reset_checks()
        self._checks_of_copies: Checks | None = None
        self._bulky = may_go_in_bulk(self.context, self._config)
        self._plain = self._bulky and self._acks and not (self._async or self._selective)

    # --- runs ---------------------------------------------------------------------------------------------------------

    def run(self, ops: Sequence[Msg], start: int, end: int, source: Source | None, now_ns: int) -> int:
        """Sequence ops[start:end]; messages that must wait go back to the queue.

        Returns: the cost of this call, in messages of a run that is sequenced as a whole.
        """
        live = self._live
        work = end - start
        time_ns = now_ns if now_ns > live.last_time_ns else live.last_time_ns
        if time_ns != now_ns:
            live.ahead.notice(now_ns, time_ns)
        if isinstance(traced := ops[start], TracedMsg):
            if (untraced := self._decide_traced(traced, source, now_ns, time_ns)) is None:
                return work
            ops, start, end = (untraced,), 0, 1
        if (self._async and (last_seq := live.last_seq + end - start) >= self._ceiling.value - _CEILING_MARGIN
                and live.last_seq < SEQ_MAX):
            self._ceiling.request_if_near(last_seq)
            if last_seq >= self._ceiling.value:
                self._queue.requeue((ops, start, end, source, now_ns))
                self._ceiling.wait()
                return work
        if not (self._bulky and self._all_at_once(ops if end - start == len(ops) else ops[start:end], source, time_ns)):
            done = self._one_by_one(ops, start, end, source, time_ns)
            work = _DECISION_WORK * (done - start)
            self._count_work(work)
            if done < end:
                # The queue is busy with the preceding publish, or with this one, so the rest of the run comes next.
                self._queue.requeue((ops, done, end, source, now_ns))
        try:
            if self._limited:
                self._retention.enforce()
            if self._ages:
                self._retention.arm()
        except Exception as error:
            self.appender.handle_unexpected(error, index=True)
        self._log.urgent()
        return work

    def _decide_traced(self, msg: TracedMsg, source: Source | None, now_ns: int, time_ns: int) -> Msg | None:
        """Report the decision on a traced message to its trace.

        Returns: the message to publish; None if it must not be published, or has to wait.
        """
        try:
            untraced = traces.decide(msg, source, time_ns, self.context, self._config, self.replies)
            if untraced is None:
                self._blocked.decided()
                self._log.urgent()
            return untraced
        except NotLoaded as not_loaded:
            if self._blocked.begin(msg, source, not_loaded):
                self._queue.requeue(((msg,), 0, 1, source, now_ns))
                return None
        except Exception as error:
            self.appender.handle_unexpected(error, index=False)
        self.replies.refused(source, msg[1], ApiError(ApiErrors.CLUSTER_NOT_AVAIL))
        return None

    def run_one(self, msg: Msg, now_ns: int) -> bool:
        """Sequence a single message that needs no checks and exceeds no limit of the whole stream.

        Runs have one message if clients publish to many streams in turn, or wait for each PubAck, so this path is fast.

        Returns: False if the message needs ``run``.
        """
        subject, reply, hlen, body = msg
        size = len(body)
        if (not self._plain or hlen or size > RECORD_BYTES_MAX // 2 or 0 <= self._max_msg_size < size
                or len(subject) + len(reply) > NAMES_BYTES or FAST_INGEST in reply):
            return False
        live, log = self._live, self._log
        size += ROW_BYTES + len(subject)
        usage = live.usage
        if usage.size_bytes + size > usage.bytes_max or (self._limited and self._limits.exceeded(live, 1, size)):
            return False
        index = None
        if self._per_subject and ((index := self._subjects.index) is None or index.merged_seq != live.last_seq):
            return False
        seq = live.last_seq + 1
        time_ns = now_ns if now_ns > live.last_time_ns else live.last_time_ns
        if time_ns != now_ns:
            live.ahead.notice(now_ns, time_ns)
        try:
            replaced = None if index is None else index.add_run((subject,), (size,), seq, self._per_subject,
                                                                live.first_seq)
            block = live.open or log.block(self._stream)
            block.append_one(seq, subject, body, time_ns)
            live.appended(block, 1, size, seq, time_ns)
            self._dedupe.last_id = b""
            if reply:
                log.wait_batched(self._pub_acks_each, reply, self._prefix, seq)
            if replaced:
                self._retention.remove_listed(replaced)
            if self._ages:
                self._retention.arm()
        except Exception as error:
            self.appender.handle_unexpected(error, index=index is not None)
            if live.last_seq < seq:
                self.replies.refused(None, reply, ApiError(ApiErrors.CLUSTER_NOT_AVAIL))
        log.urgent()
        return True

    def append_batch(self, msgs: Sequence[Msg], source: Source | None, time_ns: int) -> bool:
        """Append the messages of an atomic batch, which have no headers but the batch's own.

        Returns: False if they must be checked one by one. Raises: ApiError after an unexpected error; then none of them
            is in the stream.
        """
        last_seq = self._live.last_seq
        try:
            return self._bulky and self._bulk(msgs, source, time_ns, batched=True)
        except Exception as error:
            self.appender.handle_unexpected(error, index=bool(self._per_subject))
            if self._live.last_seq == last_seq:
                raise ApiError(ApiErrors.CLUSTER_NOT_AVAIL) from error
            return True

    def _all_at_once(self, run: Sequence[Msg], source: Source | None, time_ns: int,
                     times_ns: Sequence[int] = ()) -> bool:
        """Call ``_bulk``; return False if messages must be decided one by one.

        That also isolates the message that causes an unexpected error.
        """
        last_seq = self._live.last_seq
        try:
            return self._bulk(run, source, time_ns, times_ns=times_ns)
        except Exception as error:
            self.appender.handle_unexpected(error, index=bool(self._per_subject))
            return self._live.last_seq > last_seq

    def _bulk(self, run: Sequence[Msg], source: Source | None, time_ns: int, batched: bool = False,
              times_ns: Sequence[int] = ()) -> bool:
        """Append a whole run at once if no message in it needs checks of its own.

        Args: ``batched``: see ``append_batch``; ``times_ns``: the times of the messages, if not all of them are
            ``time_ns``.
        """
        subjects: Sequence[bytes]
        replies: Sequence[bytes]
        bodies: Sequence[bytes]
        subjects, replies, hlens, bodies = zip(*run, strict=True)
        if self._selective and not batched and not self.context.interest.wants_all(subjects):
            return False
        count = len(bodies)
        with_headers = count - hlens.count(0)
        ids: Sequence[bytes] | None = None
        if with_headers and not batched:
            ids = msg_ids(hlens, bodies)
            if ids is None:
                return False
            if any(ids):
                if times_ns:
                    return False
                dedupe = self._dedupe
                dedupe.expire(self._live.ahead.decision_ns(time_ns))
                if not dedupe.known or dedupe.full or not dedupe.all_new(ids):
                    return False
            else:
                ids = None
        raw_bytes = sum(map(len, bodies))
        if raw_bytes > RECORD_BYTES_MAX // 2 or (
                0 <= self._max_msg_size < raw_bytes and max(map(len, bodies)) > self._max_msg_size):
            return False
        joined = b" ".join(replies)
        if with_headers and max(hlens) > HEADERS_BYTES_MAX:
            return False
        ingest = None
        if FAST_INGEST in joined and not isinstance(source, PubAckReceiver) and (
                with_headers or (ingest := self._batching.run_of(replies)) is None):
            return False
        live = self._live
        first_seq = live.last_seq + 1
        subjects_bytes = sum(map(len, subjects))
        size = messages_size(count, with_headers, subjects_bytes, raw_bytes)
        if live.usage.size_bytes + size > live.usage.bytes_max:
            return False
        if self._limits.each and self._limits.exceeded(live, count, size):
            return False
        removed = None
        if self._per_subject:
            index = self._subjects.index
            if index is None or index.merged_seq != live.last_seq:
                return False
            removed = index.add_run(subjects, map(message_size, subjects, hlens, bodies), first_seq, self._per_subject,
                                    live.first_seq)
        block = self._log.block(self._stream)
        if times_ns:
            block.append_timed(first_seq, subjects, hlens if with_headers else None, bodies, times_ns,
                               subjects_bytes + len(joined))
            live.appended(block, count, size, first_seq, time_ns, times_ns[0])
        else:
            block.append_run(first_seq, subjects, hlens if with_headers else None, bodies, time_ns,
                             subjects_bytes + len(joined))
            live.appended(block, count, size, first_seq, time_ns)
        if ids:
            self._dedupe.add_run(ids, first_seq, live.ahead.decision_ns(time_ns))
        else:
            self._dedupe.last_id = b""
        if ingest is None:
            self.replies.accepted(source, replies, first_seq)
        else:
            self._batching.ingested(ingest, replies)
        if with_headers and self._tracer is not None:
            self._tracer.published(self._account, self._stream, self._name, self._log, first_seq, subjects, hlens,
                                   bodies)
        if removed:
            self._retention.remove_listed(removed)
        return True

    def _one_by_one(self, ops: Sequence[Msg], start: int, end: int, source: Source | None, time_ns: int) -> int:
        """Decide each message; return the index of the first one that must wait, or ``end``."""
        replies = self.replies
        pending = Pending(self._live.last_seq + 1, source, time_ns, self.appender.append)
        candidate = Candidate(pending)
        if (checks := self.checks) is None:
            checks = self.checks = Checks(self.context, self._config)
        batching, i = self._batching if self._config.allow_atomic else None, start - 1
        while (i := i + 1) < end:
            msg = ops[i]
            if batching is not None and msg[2] and not pending.msgs and (staged := batching.stage_run(ops, i, end)):
                i += staged - 1
                continue
            try:
                if (after := self._accept(pending, checks, candidate, msg)) is not None and pending.append():
                    self.appender.follow_up(after)
            except ApiError as error:
                pending.append()
                replies.refused(source, msg[1], error)
            except Duplicate as duplicate:
                pending.append()
                replies.duplicate(source, msg[1], duplicate.seq)
            except Unwanted:
                self.appender.acknowledge_unstored(pending, candidate)
            except Committing:
                self._blocked.decided()
                return i + 1
            except NotLoaded as not_loaded:
                pending.append()
                if self._blocked.begin(msg, source, not_loaded):
                    return i
                replies.refused(source, msg[1], ApiError(ApiErrors.CLUSTER_NOT_AVAIL))
            except Exception as error:
                pending.append()
                self.appender.handle_unexpected(error, index=pending.indexed)
                pending.indexed = False
                replies.refused(source, msg[1], ApiError(ApiErrors.CLUSTER_NOT_AVAIL))
            if i == start:
                # A waiting publish is the first of its run.
                self._blocked.decided()
        pending.append()
        return end

    # --- copies -------------------------------------------------------------------------------------------------------

    def copy(self, run: Sequence[Msg], first_seq: int, times_ns: Sequence[int],
             stored: Callable[[int], None]) -> ApiError | NotLoaded | None:
        """Append messages of another stream, with the sequences from ``first_seq`` on (0: the next ones).

        They get their times, or a later one if the stream has a later one. Nothing waits for the log here: the caller
        calls ``log.urgent`` when its own state is complete.

        Args: ``stored(n)`` is called when the first ``n`` of them are in the stream, now or from before.
        Returns: the reason why the next message is not stored; None if all are.
        """
        live = self._live
        if first_seq > live.last_seq + 1:
            self.appender.skip_to(first_seq - 1)
        elif first_seq and first_seq <= live.last_seq:
            raise RuntimeError(f"a copy is to be message {first_seq}, but the stream is at {live.last_seq}")
        last_seq = live.last_seq
        times_ns = list(accumulate(times_ns, max, initial=live.last_time_ns))[1:]
        error: ApiError | NotLoaded | None = None
        if self._bulky and self._all_at_once(run, None, times_ns[-1], times_ns):
            stored(len(run))
        else:
            error = self._copy_one_by_one(run, times_ns, stored)
        try:
            # In an interest stream, messages that no consumer waits for are removed in the block that adds them.
            self.context.interest.drop_unwanted(last_seq + 1)
            if self._limited:
                self._retention.enforce()
            if self._ages:
                self._retention.arm()
        except Exception as unexpected:
            self.appender.handle_unexpected(unexpected, index=True)
        return error

    def _copy_one_by_one(self, run: Sequence[Msg], times_ns: Sequence[int],
                         stored: Callable[[int], None]) -> ApiError | NotLoaded | None:
        accepted, failed = 0, False

        def append(pending: Pending) -> bool:
            nonlocal failed
            failed = failed or not self.appender.append(pending)
            if not failed:
                stored(accepted)
            return not failed

        pending = Pending(self._live.last_seq + 1, None, times_ns[0], append)
        candidate = Candidate(pending)
        candidate.copied = True
        if (checks := self._checks_of_copies) is None:
            checks = self._checks_of_copies = Checks(self.context, self._config, COPIED)
        for msg, time_ns in zip(run, times_ns, strict=True):
            if time_ns != pending.time_ns:
                if not pending.append():
                    return ApiError(ApiErrors.CLUSTER_NOT_AVAIL)
                pending.time_ns = time_ns
            try:
                after = self._accept(pending, checks, candidate, msg)
                accepted += 1
                if after is not None and pending.append():
                    self.appender.follow_up(after)
            except Duplicate:
                accepted += 1
            except (ApiError, NotLoaded) as error:
                pending.append()
                return error if not failed else ApiError(ApiErrors.CLUSTER_NOT_AVAIL)
            except Exception as error:
                pending.append()
                self.appender.handle_unexpected(error, index=pending.indexed)
                return ApiError(ApiErrors.CLUSTER_NOT_AVAIL)
            if failed:
                return ApiError(ApiErrors.CLUSTER_NOT_AVAIL)
        pending.append()
        return ApiError(ApiErrors.CLUSTER_NOT_AVAIL) if failed else None

    # --- one message --------------------------------------------------------------------------------------------------

    def _accept(self, pending: Pending, checks: Checks, candidate: Candidate, msg: Msg) -> Callable[[], None] | None:
        """Add one message to ``pending``. Returns: the follow-up to run when it is appended, or None.

        Raises: ApiError or Duplicate if it is not stored; NotLoaded.
        """
        candidate.begin(msg)
        try:
            for check in checks.for_headers(candidate) if candidate.hlen else checks.without_headers:
                check(candidate)
        except BatchMember as member:
            pending.append()
            self._batching.stage_or_commit(self, pending, candidate, msg, member.batch_id)
            return None
        except FastMember:
            self._batching.ingest(self, pending, candidate, msg)
            return None
        return self.add(pending, candidate)

    def add(self, pending: Pending, candidate: Candidate) -> Callable[[], None] | None:
        """Add a message that has passed its checks to ``pending``; return its follow-up, as ``_accept``."""
        subject, size = candidate.subject, candidate.size
        replaced: Sequence[tuple[int, int]] = ()
        if (index := candidate.index) is not None:
            pending.indexed = True
            replaced = self._index(index, subject, pending.last_seq + 1, size, bool(candidate.rollup))
            pending.indexed = False
        pending.add((subject, candidate.reply, candidate.hlen, candidate.body), size, candidate.msg_id, replaced,
                    candidate.ttl)
        if candidate.due is not None:
            seq, due_ns = candidate.due
            pending.due.append((seq or pending.last_seq, due_ns))
        if candidate.total is not None:
            pending.count(subject, candidate.total)
        return candidate.after

    def _index(self, index: SubjectIndex, subject: bytes, seq: int, size: int,
               rollup: bool) -> Sequence[tuple[int, int]]:
        """Add a message to the index of a stream that limits subjects.

        Returns: (sequence, size) of the messages that it replaces; none for a roll-up, whose removals are planned.
        """
        if not rollup:
            return index.add_run((subject,), (size,), seq, self._per_subject, self._live.first_seq)
        index.add(subject, seq, size)
        index.merged_seq = seq
        return ()
