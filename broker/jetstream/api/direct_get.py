"""DIRECT.GET: raw messages, with headers that give their stream and sequence, and statuses instead of JSON errors.

    DIRECT.GET.<stream>              a GetRequest: one message, a batch of next ones, or the last of several subjects
    DIRECT.GET.<stream>.<subject>    the last message of the subject

Only streams with ``allow_direct`` answer; requests to others get "no responders". A get of one message that is in
memory is answered at once, together with the others of its run. A few tasks serve the rest, so that a get that reads
the store does not delay gets that need not.

Source: nats-server 2.15, server/stream.go processDirectGetRequest, getDirectRequest, getDirectMulti.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from broker.jetstream.account.long_work import in_thread_if_long
from broker.jetstream.api import raw_answers
from broker.jetstream.api.messages import GetRequest, find
from broker.jetstream.api.routes import API_PREFIX, DIRECT_GET
from broker.jetstream.filters import ALL, Filters
from broker.jetstream.settings import level_refused
from broker.jetstream.stream.state.rows import NotLoaded
from broker.jetstream.stream.state.stored import StoredMsgs
from broker.jetstream.wire import fields as wire
from broker.jetstream.wire.errors import ApiError
from broker.protocol.subject import is_literal
from broker.protocol.subject_shapes import SHAPES_MAX, SubjectShapes
from broker.storage.format.errors import FormatError
from broker.storage.objectstore.base import StoreError

if TYPE_CHECKING:
    from broker.jetstream.account.account import Account
    from broker.jetstream.bus import Msg
    from broker.jetstream.stream.state.stored import StoredMsg
    from broker.jetstream.stream.stream import Stream

__all__ = ["DirectGets"]

_log = logging.getLogger(__name__)

WORKERS_MAX = 8
GETS_MAX = 10_000
"""The largest number of waiting direct gets; more are dropped unanswered, as API requests are."""
SUBJECTS_MAX = 1024
"""The largest number of subjects that one multi_last may match."""

_LEVEL = b"412 Required Api Level"
_EMPTY = b"408 Empty Request"
_MALFORMED = b"408 Malformed Request"
_BAD = b"408 Bad Request"
_NOT_FOUND = b"404 Message Not Found"
_NO_RESULTS = b"404 No Results"
_TOO_MANY = b"413 Too Many Results"
_PREFIX_LEN = len(API_PREFIX + DIRECT_GET)

_BY_SEQUENCE = re.compile(rb'\{"seq": ?([1-9]\d{0,17})\}').fullmatch
"""The request that all clients send for one message by its sequence.

Parsing it as any other JSON costs as much as the rest of the get.
"""

_AT_ONCE_BYTES = 1 << 20
"""The bytes answered in one turn of the loop; each get counts for ``_GET_BYTES`` and its body."""
_GET_BYTES = 1024
_AT_ONCE_BODY_BYTES = 4096
"""The size up to which a request is served at once; a longer one may take long to decode."""
_FILTER_BYTES = 8
"""The smallest size of one filter in JSON."""
_MESSAGES_AT_ONCE = 256
"""The messages of one batch that are sent in one turn of the loop."""


class _Refused(Exception):
    """A refusal with the status of the answer."""

    def __init__(self, status: bytes) -> None:
        super().__init__(status)
        self.status = status


class DirectGets:
    """The direct gets of one account."""

    def __init__(self, account: Account) -> None:
        self._account = account
        self._waiting: deque[tuple[Stream, bytes, Msg]] = deque()
        self._workers: set[asyncio.Task[None]] = set()
        self._serving = 0
        """The number of workers that will check the queue again; others in ``_workers`` may be finishing."""

    def serve(self, ops: Sequence[Msg], start: int, end: int) -> list[int]:
        """Serve the gets ops[start:end].

        Returns: the indexes of gets from streams that do not exist here, or do not allow direct gets.
        """
        unserved: list[int] = []
        available = self._account.available
        replies: list[Msg] = []
        room = _AT_ONCE_BYTES
        for at in range(start, end):
            op = ops[at]
            name, _, subject = op[0][_PREFIX_LEN:].partition(b".")
            stream = self._answering(name.decode("utf-8", "replace"))
            if stream is None or not (available or self._account.serves(stream.name)):
                unserved.append(at)
            elif op[1]:
                reply = _at_once(stream, subject, op) if room > 0 else None
                if reply is not None:
                    replies.append(reply)
                    room -= _GET_BYTES + len(reply[3])
                else:
                    self._enqueue(stream, subject, op)
        if replies:
            self._account.bus.publish_all(replies)
        return unserved

    def _enqueue(self, stream: Stream, subject: bytes, op: Msg) -> None:
        if len(self._waiting) >= GETS_MAX:
            _log.warning("%d direct gets are waiting, dropping one of %s", GETS_MAX, stream.name)
            return
        self._waiting.append((stream, subject, op))
        if self._serving < min(WORKERS_MAX, len(self._waiting)):
            self._serving += 1
            task = asyncio.get_running_loop().create_task(self._serve(), name="direct gets")
            self._workers.add(task)
            task.add_done_callback(self._workers.discard)

    def _answering(self, name: str) -> Stream | None:
        """Return the stream that answers gets from ``name``: itself or, if it does not exist, a mirror of it.

        None: its configuration does not allow direct gets, or there is no such stream.
        """
        stream = self._account.streams.get(name)
        if stream is not None:
            return stream if stream.config.allow_direct else None
        mirror = self._account.upstreams.mirror_of(name)
        stream = self._account.streams.get(mirror) if mirror is not None else None
        return stream if stream is not None and stream.config.mirror_direct else None

    async def drop(self) -> None:
        """Drop all waiting and running gets unanswered."""
        self._waiting.clear()
        workers = list(self._workers)
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        self._serving = 0

    async def _serve(self) -> None:
        try:
            while self._waiting:
                stream, subject, (_, reply, hlen, body) = self._waiting.popleft()
                await self._serve_one(stream, subject, reply, hlen, body)
                await asyncio.sleep(0)  # a get that needs no reads would not pause
        finally:
            self._serving -= 1

    async def _serve_one(self, stream: Stream, subject: bytes, reply: bytes, hlen: int, body: bytes) -> None:
        try:
            if hlen and level_refused(body[:hlen]):
                raise _Refused(_LEVEL)
            asked = await in_thread_if_long((len(body) - hlen) // _FILTER_BYTES,
                                            partial(_request, subject, body[hlen:]))
            await self._answer(stream, asked, reply)
        except _Refused as refused:
            self._status(reply, refused.status)
        except (ApiError, StoreError, FormatError) as error:
            # nats-server reports an error of its store in this way, too; the next get may succeed.
            _log.warning("direct get from %s: %s", stream.name, error)
            text = error.description if isinstance(error, ApiError) else type(error).__name__
            self._status(reply, b"500 " + text.encode())
        except Exception:
            _log.exception("direct get from %s failed", stream.name)
            self._status(reply, b"500 Internal Error")

    async def _answer(self, stream: Stream, asked: GetRequest, reply: bytes) -> None:
        if asked.multi_last:
            await self._multi(stream, asked, reply)
        elif asked.batch:
            await self._batch(stream, asked, reply)
        else:
            msg = await find(stream, asked)
            if msg is None:
                raise _Refused(_NOT_FOUND)
            self._account.bus.publish(*raw_answers.message(stream.name, reply, msg, asked.no_hdr))

    async def _batch(self, stream: Stream, asked: GetRequest, reply: bytes) -> None:
        """Send up to ``batch`` messages from a position on, skipping missing ones, and then the end of the batch."""
        wanted = asked.next_by_subj.encode() or b">"
        filters = ALL if wanted == b">" else Filters([wanted])
        seq = asked.seq if asked.start_time is None else await stream.seq_at(asked.start_time)
        pending, _ = await stream.count_from(max(seq, 1), None if filters.all else filters)
        last_seq = sent = 0
        room = self._bytes_max(asked)
        while sent < asked.batch and room > 0:
            msgs = await stream.next_msgs(filters, seq, min(asked.batch - sent, _MESSAGES_AT_ONCE))
            if not msgs.seqs:
                if not sent:
                    raise _Refused(_NOT_FOUND)
                break
            count, size = raw_answers.fitting(msgs, room)
            msgs = msgs.first(count)
            pendings = [max(0, left) for left in range(pending - 1, pending - 1 - count, -1)]
            answers = raw_answers.messages(stream.name, reply, msgs, asked.no_hdr, pendings, last_seq)
            self._account.bus.publish_all(answers)
            if not asked.no_hdr:
                # nats-server decrements the count only where it shows it.
                pending = pendings[-1]
            last_seq = msgs.seqs[-1]
            room -= size
            sent += count
            seq = last_seq + 1
            if sent < asked.batch:
                await asyncio.sleep(0)
        self._end(reply, pending, last_seq)

    async def _multi(self, stream: Stream, asked: GetRequest, reply: bytes) -> None:
        """Send the last message of each matching subject, at or below a sequence or time: a consistent view."""
        up_to_seq = asked.up_to_seq
        if asked.up_to_time is not None:
            up_to_seq = await stream.seq_at(asked.up_to_time)
            if up_to_seq <= stream.first_seq:
                raise _Refused(_NO_RESULTS)
            up_to_seq -= 1
        up_to_seq = up_to_seq or stream.last_seq
        if up_to_seq > stream.last_seq and stream.config.storage == "file":
            raise _Refused(_NO_RESULTS)  # a quirk of nats-server's file store that its memory store does not have
        filters = await in_thread_if_long(len(asked.multi_last), partial(_filters, asked.multi_last))
        found = await stream.last_seqs_by_subject(filters, up_to_seq)
        if len(found) > SUBJECTS_MAX:
            raise _Refused(_TOO_MANY)
        seqs = [seq for seq in found if seq >= asked.seq]
        if not seqs:
            raise _Refused(_NO_RESULTS)
        last_seq = 0
        at, left, room = 0, asked.batch or len(seqs), self._bytes_max(asked)
        while at < len(seqs) and left > 0 and room > 0:
            if at:
                await asyncio.sleep(0)
            # Messages removed meanwhile are left out, and count neither as sent nor as pending.
            msgs, there, checked = stream.peek_some(seqs[at:at + min(left, _MESSAGES_AT_ONCE)], _AT_ONCE_BYTES)
            if not checked:
                msg, checked = await stream.get(seqs[at]), 1
                there, msgs = ((), StoredMsgs.of(())) if msg is None else ((0,), StoredMsgs.of((msg,)))
            count, size = raw_answers.fitting(msgs, room)
            if count:
                follow = len(seqs) - at - 1
                pendings = [follow - i for i in there[:count]]
                msgs = msgs.first(count)
                self._account.bus.publish_all(raw_answers.messages(stream.name, reply, msgs, False, pendings, last_seq))
                last_seq = msgs.seqs[-1]
            at += checked if count == len(there) else there[count - 1] + 1
            left -= count
            room -= size
        self._end(reply, len(seqs) - at, last_seq, up_to_seq)

    def _bytes_max(self, asked: GetRequest) -> int:
        return asked.max_bytes or self._account.direct_bytes_max

    def _end(self, reply: bytes, pending: int, last_seq: int, up_to_seq: int | None = None) -> None:
        self._account.bus.publish(*raw_answers.end(reply, pending, last_seq, up_to_seq))

    def _status(self, reply: bytes, status: bytes) -> None:
        self._account.bus.publish(*raw_answers.status(reply, status))


def _at_once(stream: Stream, subject: bytes, op: Msg) -> Msg | None:
    """Return the answer to a get of one message, if everything that it needs is in memory."""
    _, reply, hlen, body = op
    if hlen or len(body) > _AT_ONCE_BODY_BYTES:
        return None
    try:
        msg, bare = _peek(stream, subject, body)
    except _Refused as refused:
        return raw_answers.status(reply, refused.status)
    except Exception:  # the task that serves the get then meets the same error, and reports it
        return None
    if msg is None:
        return raw_answers.status(reply, _NOT_FOUND)
    return raw_answers.message(stream.name, reply, msg, bare)


def _peek(stream: Stream, subject: bytes, body: bytes) -> tuple[StoredMsg | None, bool]:
    """Return the one message that a get asks for, and whether to leave out its headers.

    Raises: _Refused; NotLoaded; as ``Stream.peek``.
    """
    bare = False
    if body:
        if not subject and (one := _BY_SEQUENCE(body)) is not None:
            return stream.peek(int(one[1])), False
        asked = _request(subject, body)
        if asked.batch or asked.multi_last or asked.next_by_subj or asked.start_time is not None:
            raise NotLoaded("more than one message, or one that must be searched for")
        if not asked.last_by_subj:
            return stream.peek(asked.seq), asked.no_hdr
        subject, bare = asked.last_by_subj.encode(), asked.no_hdr
    elif not subject:
        raise _Refused(_EMPTY)
    if not is_literal(subject):
        raise NotLoaded("the last message of several subjects")
    return stream.peek_last(subject), bare


def _filters(subjects: Sequence[str]) -> Filters:
    """Compile the filters of a multi_last. Raises: _Refused."""
    patterns = [one.encode() for one in subjects]
    if len(patterns) > SHAPES_MAX and len(SubjectShapes(patterns)) > SHAPES_MAX:
        raise _Refused(_BAD)
    return Filters(patterns)


def _request(subject: bytes, payload: bytes) -> GetRequest:
    """Parse a request. Raises: _Refused."""
    if not payload and not subject:
        raise _Refused(_EMPTY)
    asked = GetRequest()
    if payload:
        try:
            asked = wire.read(GetRequest, wire.load_one(payload), lenient=True)
        except ApiError:
            raise _Refused(_MALFORMED) from None
    anywhere = bool(asked.seq or asked.last_by_subj or asked.next_by_subj or asked.multi_last
                    or asked.start_time is not None)
    if subject:
        if anywhere or asked.batch or asked.up_to_seq or asked.up_to_time is not None:
            raise _Refused(_BAD)
        asked.last_by_subj = subject.decode("utf-8", "replace")
        return asked
    if not anywhere:
        raise _Refused(_EMPTY)
    if (asked.conflicting or (asked.last_by_subj and (asked.batch > 0 or asked.multi_last))
            or (asked.next_by_subj and asked.multi_last) or (asked.up_to_seq and asked.up_to_time is not None)):
        raise _Refused(_BAD)
    return asked
