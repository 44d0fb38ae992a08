"""Publishes become messages of a stream, or refusals: nats-server's checks, in its order, taken from the live state.

Owns: every decision on a publish, and the reply that goes with it. Does not own: the live state (live), the subjects
(subject_state), the ids (dedupe), what limits remove afterwards (retention), who waits before it gets here (inlet).

    run of publishes ─┬─ nothing special in it ─────────> one append, one waiter for all its PubAcks   (``_bulk``)
                      ├─ the same, and a single message > as lean as it gets: many streams in turn     (``one``)
                      └─ headers or limits that decide ─> message by message, appended as runs         (``_one_by_one``)

Refusals come before sequencing, never after: what is appended gets a PubAck or no answer. A decision that needs what is
not in memory raises ``Cold`` before it has changed anything; the rest of the run then waits at the inlet's head.

Source: nats-server, server/stream.go, processJetStreamMsgWithBatch; server/filestore.go, storeRawMsg.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from broker.jetstream import publish_headers
from broker.jetstream.errors import ApiError
from broker.jetstream.filters import Filters
from broker.jetstream.publish_headers import HINT, PublishHeaders
from broker.jetstream.rows import Cold
from broker.jetstream.stored import user_size
from broker.protocol import headers as header_block
from broker.protocol.subject import is_literal, is_valid
from broker.storage.open_block import NAMES_BYTES

if TYPE_CHECKING:
    from broker.jetstream.bus import Msg, Source
    from broker.jetstream.stream import Stream
    from broker.jetstream.stream_config import StreamConfig

__all__ = ["Sequencer"]

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

_NO_HEADERS: PublishHeaders = {}

_TOO_MANY_REQUESTS = b"NATS/1.0 429 Too Many Requests\r\n\r\n"


class _Pending:
    """Messages accepted and not yet appended: all of one publisher, with consecutive sequences."""

    __slots__ = ("bodies", "bytes", "first_seq", "hlens", "removed", "removed_bytes", "replies", "subjects")

    def __init__(self, first_seq: int) -> None:
        self.begin(first_seq)

    def begin(self, first_seq: int) -> None:
        """Hold nothing; the next message accepted is ``first_seq``."""
        self.first_seq = first_seq
        self.subjects: list[bytes] = []
        self.replies: list[bytes] = []
        self.hlens: list[int] = []
        self.bodies: list[bytes] = []
        self.bytes = 0
        self.removed: list[tuple[int, int]] = []
        """(sequence, size) of messages that the accepted ones replace."""
        self.removed_bytes = 0


class _Duplicate(Exception):
    """The message was stored before, as ``seq``."""

    def __init__(self, seq: int) -> None:
        super().__init__(seq)
        self.seq = seq


class Sequencer:
    """The publishing side of one stream. ``configure`` follows each change of its configuration."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._live, self._log, self._dedupe = stream.live, stream.log, stream.dedupe
        self._pub_acks_each = stream.bus.pub_acks_each
        self.last_by_filter: dict[bytes, int] = {}
        """Answers that were loaded for the publish at the inlet's head: filter to last sequence."""
        self.dropped = 0
        """Publishes without a reply that were refused."""

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
        self._bulky = not (self._discard_new or self._sealed)
        self._lean = self._bulky and self._acks and not (self._async or self._limited or self._ages or self._per_subject)
        name = json.dumps(config.name, ensure_ascii=False)
        domain = f'"domain":{json.dumps(self._stream.domain, ensure_ascii=False)},' if self._stream.domain else ""
        self._prefix = f'{{"stream":{name},{domain}"seq":'.encode()
        self._refusal_tail = f',"stream":{name},"seq":0}}'.encode()

    # --- runs ---------------------------------------------------------------------------------------------------------

    def run(self, ops: Sequence[Msg], start: int, end: int, source: Source | None, now_ns: int) -> None:
        """Sequence ops[start:end], whose turn it is; what must wait goes back to the inlet."""
        stream = self._stream
        live = stream.live
        time_ns = now_ns if now_ns > live.last_time_ns else live.last_time_ns
        if self._async and (last_seq := live.last_seq + end - start) >= stream.ceiling - _CEILING_MARGIN:
            stream.raise_ceiling(last_seq)
            if last_seq >= stream.ceiling:
                stream.inlet.requeue((ops, start, end, source, now_ns))
                stream.wait_for_ceiling()
                return
        if not (self._bulky and self._bulk(ops if end - start == len(ops) else ops[start:end], source, time_ns)):
            done = self._one_by_one(ops, start, end, source, time_ns)
            if done < end:
                # Behind it the inlet is busy, so what is left is what comes next.
                stream.inlet.requeue((ops, done, end, source, now_ns))
        if self._limited:
            stream.retention.enforce()
        if self._ages:
            stream.retention.arm()
        stream.log.urgent()

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
        block = live.open or log.block(self._stream)
        block.append_one(seq, subject, body, time_ns)
        live.appended(block, 1, size + 30 + len(subject), seq, time_ns)
        self._dedupe.last_id = b""
        if reply:
            log.gather(self._pub_acks_each, reply, self._prefix, seq)
        log.urgent()
        return True

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
                dedupe = self._stream.dedupe
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
        stream = self._stream
        live = stream.live
        first_seq = live.last_seq + 1
        subjects_bytes = sum(map(len, subjects))
        size = raw_bytes + 30 * count + subjects_bytes + 4 * with_headers
        if live.usage.bytes + size > live.usage.bytes_max:
            return False
        removed = None
        if self._per_subject:
            index = stream.subjects.index
            if index is None or index.merged_seq != live.last_seq or (
                    self._trim_each and self._over_with(count, size)):
                return False
            removed = index.add_run(subjects, map(user_size, subjects, hlens, bodies), first_seq, self._per_subject,
                                    live.first_seq)
        block = stream.log.block(stream)
        block.append_run(first_seq, subjects, hlens if with_headers else None, bodies, time_ns,
                         subjects_bytes + len(joined))
        live.appended(block, count, size, first_seq, time_ns)
        if removed:
            stream.retention.take_out(removed)
        if ids:
            stream.dedupe.add_run(ids, first_seq, time_ns)
        else:
            stream.dedupe.last_id = b""
        self._answer(source, replies, first_seq)
        return True

    def _one_by_one(self, ops: Sequence[Msg], start: int, end: int, source: Source | None, time_ns: int) -> int:
        """Decide on each message; returns the place of the first one that must wait, or ``end``."""
        stream = self._stream
        pending = _Pending(stream.live.last_seq + 1)
        i = start
        try:
            for i in range(start, end):
                subject, reply, hlen, body = ops[i]
                try:
                    self._accept(pending, subject, reply, hlen, body, source, time_ns)
                    if self.last_by_filter:
                        self.last_by_filter.clear()
                except ApiError as error:
                    self._append(pending, source, time_ns)
                    self._refuse(reply, error)
                except _Duplicate as duplicate:
                    self._append(pending, source, time_ns)
                    if self._acks and reply:
                        self._later(stream.bus.publish, reply, b"", 0,
                                    b'%b%d,"duplicate": true}' % (self._prefix, duplicate.seq))
        except Cold as cold:
            self._append(pending, source, time_ns)
            stream.load_then_go_on(cold)
            return i
        self._append(pending, source, time_ns)
        return end

    def _append(self, pending: _Pending, source: Source | None, time_ns: int) -> None:
        """Append what was accepted, take out what it replaces, and promise the PubAcks. ``pending`` is empty after it."""
        count = len(pending.bodies)
        stream = self._stream
        live = stream.live
        if count:
            first_seq = pending.first_seq
            block = stream.log.block(stream)
            hlens = pending.hlens if any(pending.hlens) else None
            block.append_run(first_seq, pending.subjects, hlens, pending.bodies, time_ns,
                             sum(map(len, pending.subjects)) + sum(map(len, pending.replies)))
            live.appended(block, count, pending.bytes, first_seq, time_ns)
            removed, replies = pending.removed, pending.replies
            pending.begin(first_seq + count)
            if removed:
                stream.retention.take_out(removed)
            self._answer(source, replies, first_seq)
        else:
            # A roll-up may have skipped or removed; sequences go on from wherever the stream is.
            pending.first_seq = live.last_seq + 1

    # --- one message --------------------------------------------------------------------------------------------------

    def _accept(self, pending: _Pending, subject: bytes, reply: bytes, hlen: int, body: bytes, source: Source | None,
                time_ns: int) -> None:
        """Add one message to ``pending``. Raises: ApiError or _Duplicate when it is not stored; Cold."""
        stream = self._stream
        headers = _NO_HEADERS
        if self._trim_each and self._over_with(len(pending.bodies) - len(pending.removed),
                                               pending.bytes - pending.removed_bytes):
            self._append(pending, source, time_ns)
            stream.retention.trim()
        if hlen:
            if body[8:10] != b"\r\n" or b"Nats-Request-Info:" in body[:hlen]:
                hlen, body = _without_status(hlen, body)
            if body.find(HINT, 0, hlen) >= 0:
                headers = publish_headers.find(body[:hlen])
        size = user_size(subject, hlen, body)
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
                self._check_msg_id(msg_id, time_ns)
            self._check_last_msg_id(headers)
            rollup = self._rollup(headers)
        if 0 <= self._max_msg_size < len(body):
            raise ApiError(10054)
        if hlen > _HEADERS_BYTES_MAX:
            raise ApiError(10097)
        usage = self._live.usage
        if usage.bytes + pending.bytes - pending.removed_bytes > usage.bytes_max:
            # What the stream's own limits take out for those before it makes room.
            self._append(pending, source, time_ns)
            stream.retention.trim()
            if usage.bytes > usage.bytes_max:
                usage.refused(time_ns)
                raise ApiError(10023)
        ttl = headers.get(b"Nats-TTL")
        if ttl and publish_headers.parse_ttl(ttl) == publish_headers.TTL_INVALID:
            raise ApiError(10165)
        index = None
        if self._per_subject:
            index = stream.subjects.index
            if index is None or index.merged_seq < pending.first_seq + len(pending.bodies) - 1:
                self._append(pending, source, time_ns)
                index = stream.subjects.ready()
        if self._discard_new:
            self._check_room(pending, subject, size, bool(rollup))
        plan = None
        if rollup:
            # Before anything is stored: a roll-up and what it removes stand in one block.
            self._append(pending, source, time_ns)
            stream.retention.trim()
            plan = stream.retention.plan_rollup(subject if rollup == b"sub" else None)
        seq = pending.first_seq + len(pending.bodies)
        if index is not None:
            first_seq = stream.live.first_seq
            one = index.replace(subject, seq, size) if self._per_subject == 1 and plan is None else None
            if one is not None:
                if one[0] and one[0] >= first_seq:
                    pending.removed.append(one)
                    pending.removed_bytes += one[1]
            elif index.add(subject, seq, size) > self._per_subject and plan is None:
                for one in index.messages(subject, first_seq)[:-self._per_subject]:
                    index.remove(subject, one[0])
                    pending.removed.append(one)
                    pending.removed_bytes += one[1]
            index.merged_seq = seq
        pending.subjects.append(subject)
        pending.replies.append(reply)
        pending.hlens.append(hlen)
        pending.bodies.append(body)
        pending.bytes += size
        if msg_id:
            stream.dedupe.add(msg_id, seq, time_ns)
        stream.dedupe.last_id = msg_id
        if plan is not None:
            self._append(pending, source, time_ns)
            stream.retention.carry_out(plan)

    def _over_with(self, msgs: int, size: int) -> bool:
        """Whether ``msgs`` more messages of ``size`` user bytes take the stream past max_msgs or max_bytes."""
        live = self._stream.live
        return bool((self._max_msgs and live.msgs + msgs > self._max_msgs)
                    or (self._max_bytes and live.bytes + size > self._max_bytes))

    def _check_batch(self, disabled: int, body: bytes) -> None:
        if self._sealed:
            raise ApiError(10109)
        if 0 <= self._max_msg_size < len(body):
            raise ApiError(10054)
        raise ApiError(disabled)

    def _check_headers(self, headers: PublishHeaders, subject: bytes, pending: _Pending, source: Source | None,
                       time_ns: int) -> None:
        """The checks before deduplication, in nats-server's order."""
        get = headers.get
        rare = not headers.keys() <= _COMMON
        if rare and (incr := get(b"Nats-Incr")):
            if not _is_integer(incr):
                raise ApiError(10171)
            raise ApiError(10168)
        expected = get(b"Nats-Expected-Stream")
        if expected and expected != self._stream.name.encode():
            raise ApiError(10060)
        if rare and (ttl := get(b"Nats-TTL")) and publish_headers.parse_ttl(ttl) != publish_headers.TTL_INVALID:
            raise ApiError(10166)
        if text := get(b"Nats-Expected-Last-Subject-Sequence"):
            wanted = get(b"Nats-Expected-Last-Subject-Sequence-Subject") or subject
            index = self._stream.subjects.index
            if (wanted is subject and self._per_subject and not self._limited and index is not None
                    and index.merged_seq == pending.first_seq + len(pending.bodies) - 1):
                # A tracked stream's index has what is pending too.
                last = index.last(subject, self._stream.live.first_seq) or 0
            else:
                self._append(pending, source, time_ns)
                self._stream.retention.trim()
                last = self._last_of(wanted)
            if last != publish_headers.parse_sequence(text):
                raise ApiError(10071, seq=last)
        elif get(b"Nats-Expected-Last-Subject-Sequence-Subject"):
            raise ApiError(10193)
        if text := get(b"Nats-Expected-Last-Sequence"):
            last = pending.first_seq + len(pending.bodies) - 1
            if last != publish_headers.parse_sequence(text):
                raise ApiError(10071, seq=last)
        if rare:
            self._check_schedule(headers, subject)
            if get(b"Nats-Stream-Source"):
                raise ApiError(10227)

    def _check_schedule(self, headers: PublishHeaders, subject: bytes) -> None:
        get = headers.get
        if get(b"Nats-Schedule") or _bad_zone(get(b"Nats-Schedule-Time-Zone")):
            raise ApiError(10188)
        scheduler = get(b"Nats-Scheduler")
        if following := get(b"Nats-Schedule-Next"):
            literal = scheduler and is_valid(scheduler) and is_literal(scheduler)
            if following != b"purge" or not literal or scheduler == subject:
                raise ApiError(10212)
            raise ApiError(10188)
        if scheduler:
            raise ApiError(10212)

    def _check_msg_id(self, msg_id: bytes, time_ns: int) -> None:
        dedupe = self._stream.dedupe
        if not dedupe.known:
            raise Cold
        dedupe.expire(time_ns)
        if seq := dedupe.seen(msg_id):
            raise _Duplicate(seq)
        if dedupe.full:
            raise ApiError(10167)

    def _check_last_msg_id(self, headers: PublishHeaders) -> None:
        expected = headers.get(b"Nats-Expected-Last-Msg-Id")
        if not expected:
            return
        last_id = self._stream.dedupe.last_id
        if last_id is None:
            raise Cold
        if expected != last_id:
            raise ApiError(10070, id=last_id.decode("utf-8", "replace"))

    def _rollup(self, headers: PublishHeaders) -> bytes:
        """b"", b"sub" or b"all"."""
        value = headers.get(b"Nats-Rollup", b"").lower()
        if not value:
            return b""
        if not self._allow_rollup:
            raise ApiError(10111, err="rollup not permitted")
        if value not in (b"sub", b"all"):
            raise ApiError(10111, err=f"rollup value invalid: {json.dumps(value.decode('utf-8', 'replace'))}")
        return value

    def _check_room(self, pending: _Pending, subject: bytes, size: int, rollup: bool) -> None:
        """Discard policy new. Raises: ApiError 10077."""
        live = self._stream.live
        msgs = live.msgs + len(pending.bodies) - len(pending.removed)
        used = live.bytes + pending.bytes - pending.removed_bytes
        replaces, replaced_size = False, 0
        if self._per_subject:
            index = self._stream.subjects.index
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
        """Last sequence of ``subject``, which may have wildcards. Raises: Cold."""
        if is_literal(subject):
            return self._stream.subjects.last(subject)
        if subject not in self.last_by_filter:
            raise Cold(filters=Filters((subject,)))
        return self.last_by_filter[subject]

    # --- replies ------------------------------------------------------------------------------------------------------

    def _answer(self, source: Source | None, replies: Sequence[bytes], first_seq: int) -> None:
        if self._acks and any(replies):
            self._later(self._stream.bus.pub_acks, source, replies, self._prefix, first_seq, b"}")

    def _later(self, fn: object, *args: object) -> None:
        """Send a reply: in log order, or at once where a PubAck depends on nothing."""
        log = self._stream.log
        if self._async and not log.muted:
            fn(*args)  # type: ignore[operator]
        else:
            log.wait(fn, *args)  # type: ignore[arg-type]

    def _refuse(self, reply: bytes, error: ApiError) -> None:
        if self._acks and reply:
            self._later(self._stream.bus.publish, reply, b"", 0, self._refusal(error))

    def _refusal(self, error: ApiError) -> bytes:
        told = json.dumps(error.to_json(), separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")
        return b'{"error":%b%b' % (told, self._refusal_tail)

    def turn_away(self, run: Sequence[Msg]) -> None:
        """Refuse publishes that there is no room for: at once, since nothing was decided about them."""
        body = _TOO_MANY_REQUESTS + self._refusal(ApiError(10167))
        hlen = len(_TOO_MANY_REQUESTS)
        for _, reply, _, _ in run:
            if reply:
                self._stream.bus.publish(reply, b"", hlen, body)
            else:
                self.dropped += 1

    def fail(self, run: Sequence[Msg], error: ApiError) -> None:
        """Refuse publishes whose decision could not be taken, because the store did not answer."""
        body = self._refusal(error)
        for reply in (op[1] for op in run):
            if reply and self._acks:
                self._stream.bus.publish(reply, b"", 0, body)


def _without_status(hlen: int, body: bytes) -> tuple[int, bytes]:
    """Headers as they are stored: without a status, and without what the server alone may say of a request."""
    block, payload = body[:hlen], body[hlen:]
    if block[8:10] != b"\r\n" and block.startswith(header_block.VERSION):
        line_end = block.find(b"\r\n")
        rest = block[line_end:] if line_end >= 0 else b""
        block = header_block.VERSION + rest if rest != b"\r\n\r\n" else b""
    if b"Nats-Request-Info:" in block:
        block = header_block.remove(block, b"Nats-Request-Info")
    return len(block), block + payload


def _is_integer(text: bytes) -> bool:
    digits = text[1:] if text[:1] in (b"+", b"-") else text
    return digits.isdigit()


def _bad_zone(name: bytes | None) -> bool:
    """Whether a schedule's time zone header is there and names none that is known."""
    if name is None:
        return False
    try:
        ZoneInfo(name.decode())
    except (ValueError, OSError, KeyError):
        return True
    return False


