"""Reading a stream's messages for pages: from a sequence or a time, backwards, as they arrive, and by searching.

Lists have the payloads of small messages only, so that a page of messages of 8 MB costs no more than others; ``get``
reads a whole message. There are two ways to read:

    consumer    temporary, acknowledges nothing, and the server removes it by itself
    by number   one request for each message, for work queues and for streams that keep messages as long as consumers
                want them: there a consumer, even a temporary one, would change what happens to the messages
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from nats.errors import Error

from broker.base.gotime import format_time, parse_time
from broker.console.payload import PREVIEW_BYTES
from broker.console.server import Refused
from broker.jetstream.wire.error_table import ApiErrors

if TYPE_CHECKING:
    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription

    from broker.console.server import Server

__all__ = ["Message", "Messages", "Search", "Start"]

_IDLE_NS = 30_000_000_000
"""How long the server keeps a consumer that nobody uses."""
_PULL_SECONDS = 5.0
_AT_ONCE = 200
_BYTES_AT_ONCE = 8 << 20
_IN_THREAD_BYTES = 64 * 1024
"""A larger payload is searched in a thread, so that other users' pages do not wait."""
_FOLLOW_SECONDS = 0.5
_FOLLOWED_AT_ONCE = 100
_FOLLOWED_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Message:
    """A stored message. Attributes: ``data``: the payload; None if it was not read because it is large."""

    seq: int
    subject: str
    time: str
    """RFC 3339"""
    size: int
    data: bytes | None = field(repr=False)
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Start:
    """Where reading begins: at a sequence, or at a time (RFC 3339); with neither, at the first message."""

    seq: int = 0
    time: str = ""

    def config(self) -> dict[str, Any]:
        """Return the members of a consumer's configuration."""
        if self.time:
            return {"deliver_policy": "by_start_time", "opt_start_time": self.time}
        if self.seq > 1:
            return {"deliver_policy": "by_start_sequence", "opt_start_seq": self.seq}
        return {"deliver_policy": "all"}


@dataclass(slots=True)
class Search:
    """A search, and how far it is. Attributes: ``cancelled``: set it to end the search."""

    text: str
    is_regex: bool = False
    first: int = 1
    last: int = 0
    """The last sequence to search; 0: the stream's last one when the search begins."""
    at: int = 0
    found: list[Message] = field(default_factory=list)
    cancelled: bool = False

    @property
    def share(self) -> float:
        """The part of the range that was searched, from 0 to 1."""
        span = self.last - self.first + 1
        return min(max((self.at - self.first + 1) / span, 0.0), 1.0) if span > 0 and self.at else 0.0

    def matcher(self) -> Callable[[bytes], bool]:
        """Return the test of a message's bytes. Raises: Refused, for a bad expression.

        RE2 needs time in proportion to the bytes, whatever the expression: one user's cannot stop the console.
        """
        import re2  # type: ignore[import-untyped]

        options = re2.Options()
        options.case_sensitive, options.log_errors, options.literal = False, False, not self.is_regex
        try:
            pattern = re2.compile(self.text.encode(), options=options)
        except re2.error as error:
            text = error.args[0]
            raise Refused("The regular expression cannot be used: "
                          f"{text.decode('utf-8', 'replace') if isinstance(text, bytes) else text}.") from None
        return lambda data: pattern.search(data) is not None


class Messages:
    """The messages of one stream. All methods raise Refused."""

    def __init__(self, server: Server, stream: str) -> None:
        self._server = server
        self._stream = stream

    async def get(self, seq: int) -> Message:
        """Return one message with its payload."""
        if self._by_number:
            return await self._request({"seq": seq})
        async with self._consumer(Start(seq), "") as pull, aclosing(pull()) as found:
            async for msg in found:
                if msg.seq == seq:
                    return msg
                break
        raise Refused(f"There is no message {seq}.", int(ApiErrors.NO_MESSAGE_FOUND))

    async def read(self, start: Start, count: int, subject: str = "") -> list[Message]:
        """Return up to ``count`` messages from ``start`` on, oldest first."""
        state, consumable = await self._state()
        found: list[Message] = []
        async with aclosing(self._from(start, subject, state, consumable=consumable)) as messages:
            async for msg in messages:
                found.append(msg)
                if len(found) >= count:
                    break
        return await self._with_payloads(found)

    async def before(self, seq: int, count: int, subject: str = "") -> list[Message]:
        """Return up to ``count`` messages before sequence ``seq``, oldest first; 0: the last ones of the stream."""
        state, consumable = await self._state()
        first, end = int(state["first_seq"]), seq or int(state["last_seq"]) + 1
        span = count
        while True:
            start = max(end - span, first)
            found: deque[Message] = deque(maxlen=count)
            async with aclosing(self._from(Start(start), subject, state, consumable=consumable)) as messages:
                async for msg in messages:
                    if msg.seq >= end:
                        break
                    found.append(msg)
            if len(found) >= count or start <= first:
                return await self._with_payloads(list(found))
            span *= 8  # messages are missing, or of other subjects

    async def follow(self, subject: str = "") -> AsyncGenerator[tuple[list[Message], int], None]:
        """Yield messages as they arrive, and how many were passed over: a page cannot show thousands a second."""
        at = int((await self._state())[0]["last_seq"])
        pause = _FOLLOW_SECONDS
        while True:
            await asyncio.sleep(pause)
            pause = _FOLLOW_SECONDS
            try:
                last = int((await self._state())[0]["last_seq"])
            except Refused:
                if self._server.connected:
                    raise
                continue  # the header says that the server is away
            passed = 0
            if not subject and last - at > _FOLLOWED_AT_ONCE:
                passed, at = last - at - _FOLLOWED_AT_ONCE, last - _FOLLOWED_AT_ONCE
            found: list[Message] = []
            size = 0
            async with aclosing(self._by_numbers(at + 1, subject)) as messages:
                async for msg in messages:
                    found.append(msg)
                    size += msg.size
                    if len(found) >= _FOLLOWED_AT_ONCE or size > _FOLLOWED_BYTES:
                        pause /= 10  # there may be more
                        break
                else:
                    at = max(at, last)
            at = found[-1].seq if found and found[-1].seq > at else at
            if found or passed:
                yield found, passed

    async def whole(self, subject: str) -> AsyncGenerator[Message, None]:
        """Yield all messages of a subject with their payloads."""
        state, consumable = await self._state()
        async with aclosing(self._from(Start(), subject, state, consumable=consumable, whole=True)) as messages:
            async for msg in messages:
                yield msg

    async def search(self, search: Search, subject: str = "", most: int = 1000) -> None:
        """Search until the end of the range, until ``most`` messages are found, or until the search is cancelled."""
        state, consumable = await self._state()
        search.last = min(search.last or int(state["last_seq"]), int(state["last_seq"]))
        search.first = max(search.first, int(state["first_seq"]))
        matches = search.matcher()
        if search.first > search.last:
            return
        async with aclosing(self._from(Start(search.first), subject, state, consumable=consumable,
                                       whole=True)) as messages:
            async for msg in messages:
                if msg.seq > search.last or search.cancelled:
                    break
                search.at = msg.seq
                if await _any_matches(matches, msg):
                    search.found.append(_without_large(msg))
                    if len(search.found) >= most:
                        return
        if not search.cancelled:
            search.at = search.last

    # --- both ways ----------------------------------------------------------------------------------------------------

    async def _state(self) -> tuple[dict[str, Any], bool]:
        """Return the stream's state, and whether a temporary consumer changes nothing."""
        info = await self._server.api(f"STREAM.INFO.{self._stream}")
        return dict(info["state"]), info["config"].get("retention", "limits") == "limits"

    @property
    def _by_number(self) -> bool:
        return self._server.may_call(f"STREAM.MSG.GET.{self._stream}")

    async def _from(self, start: Start, subject: str, state: dict[str, Any], *, consumable: bool,
                    whole: bool = False) -> AsyncGenerator[Message, None]:
        """Yield the stored messages; ``whole``: with all payloads."""
        if consumable:
            async with self._consumer(start, subject, headers_only=not whole and self._by_number) as pull, \
                    aclosing(pull()) as messages:
                async for msg in messages:
                    yield msg
            return
        seq = await self._first_at(start.time, state) if start.time else max(start.seq, 1)
        async with aclosing(self._by_numbers(seq, subject)) as messages:
            async for msg in messages:
                yield msg

    async def _with_payloads(self, found: list[Message]) -> list[Message]:
        """Add the payloads of small messages."""
        async def read(msg: Message) -> Message:
            if msg.data is not None or msg.size > PREVIEW_BYTES:
                return _without_large(msg)
            try:
                return replace(msg, data=(await self._request({"seq": msg.seq})).data)
            except Refused:
                return msg  # deleted in the meantime

        return list(await asyncio.gather(*(read(msg) for msg in found)))

    # --- by number ----------------------------------------------------------------------------------------------------

    async def _request(self, body: dict[str, Any]) -> Message:
        answer = (await self._server.api(f"STREAM.MSG.GET.{self._stream}", body))["message"]
        data = base64.b64decode(answer.get("data") or "")
        return Message(int(answer["seq"]), answer["subject"], answer["time"], len(data), data,
                       _headers(base64.b64decode(answer.get("hdrs") or "")))

    async def _by_numbers(self, seq: int, subject: str) -> AsyncGenerator[Message, None]:
        while True:
            try:
                msg = await self._request({"seq": seq, "next_by_subj": subject or ">"})
            except Refused as error:
                if error.code == ApiErrors.NO_MESSAGE_FOUND:
                    return
                raise
            yield msg
            seq = msg.seq + 1

    async def _first_at(self, time: str, state: dict[str, Any]) -> int:
        """Return the sequence of the first message at or after a time, by halving the range."""
        wanted = parse_time(time)
        low, high = int(state["first_seq"]), int(state["last_seq"]) + 1
        while low < high:
            middle = (low + high) // 2
            async with aclosing(self._by_numbers(middle, "")) as messages:
                msg = await anext(messages, None)
            if msg is None or parse_time(msg.time) >= wanted:
                high = middle
            else:
                low = msg.seq + 1
        return low

    # --- by a consumer ------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _consumer(self, start: Start, subject: str, *,
                        headers_only: bool = False) -> AsyncIterator[Callable[[], AsyncGenerator[Message, None]]]:
        server = self._server
        config = {"ack_policy": "none", "mem_storage": True, "inactive_threshold": _IDLE_NS, "num_replicas": 1,
                  "headers_only": headers_only, **start.config(), **({"filter_subject": subject} if subject else {})}
        made = await server.api(f"CONSUMER.CREATE.{self._stream}", {"stream_name": self._stream, "config": config},
                                reads=True)
        name = made["name"]
        inbox = server.client.new_inbox()
        answers = await server.client.subscribe(inbox)

        async def pull() -> AsyncGenerator[Message, None]:
            next_subject = f"{server.api_prefix}.CONSUMER.MSG.NEXT.{self._stream}.{name}"
            batch = _AT_ONCE
            while True:
                body: dict[str, Any] = {"batch": batch, "no_wait": True}
                if batch > 1:
                    body["max_bytes"] = _BYTES_AT_ONCE
                await server.client.publish(next_subject, json.dumps(body).encode(), reply=inbox)
                got = 0
                while got < batch and (msg := await self._next(answers)) is not None:
                    yield _message(msg, headers_only=headers_only)
                    got += 1
                if not got and batch == 1:
                    return
                batch = _AT_ONCE if got else 1  # a message larger than max_bytes is delivered alone
                await asyncio.sleep(0)

        try:
            yield pull
        finally:
            try:
                await answers.unsubscribe()
                await server.api(f"CONSUMER.DELETE.{self._stream}.{name}", reads=True)
            except (Refused, Error):
                pass  # it ends by itself

    async def _next(self, answers: Subscription) -> Msg | None:
        """Return the next message, or None at the end of what the request gave."""
        try:
            msg = await answers.next_msg(timeout=_PULL_SECONDS + 2)
        except (Error, TimeoutError):
            raise Refused("The server sent no messages; it may have gone away.") from None
        status = (msg.headers or {}).get("Status", "")
        if not status:
            return msg
        described = (msg.headers or {}).get("Description", status)
        if status in ("404", "408") or (status == "409" and "MaxBytes" in described):
            return None
        raise Refused(f"The server stopped sending: {described}.")


async def _any_matches(matches: Callable[[bytes], bool], msg: Message) -> bool:
    head = "\n".join((msg.subject, *(f"{key}: {value}" for key, value in msg.headers.items()))).encode()
    if matches(head):
        return True
    data = msg.data or b""
    return await asyncio.to_thread(matches, data) if len(data) > _IN_THREAD_BYTES else matches(data)


def _without_large(msg: Message) -> Message:
    return replace(msg, data=None) if msg.data is not None and len(msg.data) > PREVIEW_BYTES else msg


def _message(msg: Msg, *, headers_only: bool) -> Message:
    # $JS.ACK.[<domain>.<account>.]<stream>.<consumer>.<delivered>.<stream sequence>.<sequence>.<time>.<pending>
    tokens = msg.reply.split(".")
    _, seq, _, time_ns = tokens[4:8] if len(tokens) == 9 else tokens[6:10]
    headers = dict(msg.headers or {})
    size = int(headers.pop("Nats-Msg-Size", 0)) if headers_only else len(msg.data)
    data = None if headers_only and size else msg.data
    return Message(int(seq), msg.subject, format_time(int(time_ns)), size, data, headers)


def _headers(raw: bytes) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in raw.split(b"\r\n")[1:]:
        key, colon, value = line.partition(b":")
        if colon:
            found[key.decode("utf-8", "replace")] = value.strip().decode("utf-8", "replace")
    return found
