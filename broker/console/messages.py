"""Reading a stream's messages for pages: from a sequence or a time, backwards, as they arrive, and by searching.

Messages are read by a temporary consumer that acknowledges nothing and that the server removes by itself, so a work
queue is refused: any consumer of it would take its messages from those that are meant to have them.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nats.errors import Error

from broker.base.gotime import format_time
from broker.console.server import Refused

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


@dataclass(frozen=True, slots=True)
class Message:
    """A stored message."""

    seq: int
    subject: str
    time: str
    """RFC 3339"""
    data: bytes = field(repr=False)
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

    def matcher(self) -> Callable[[Message], bool]:
        """Return the test of a message: its subject, headers and payload. Raises: Refused, for a bad expression."""
        try:
            pattern = re.compile(self.text.encode() if self.is_regex else re.escape(self.text.encode()), re.IGNORECASE)
        except re.error as error:
            raise Refused(f"The regular expression cannot be used: {error}.") from None

        def matches(msg: Message) -> bool:
            return any(pattern.search(part) for part in (
                msg.data, msg.subject.encode(), *(f"{key}: {value}".encode() for key, value in msg.headers.items())))

        return matches


class Messages:
    """The messages of one stream. All methods raise Refused."""

    def __init__(self, server: Server, stream: str) -> None:
        self._server = server
        self._stream = stream

    async def state(self) -> dict[str, Any]:
        """Return the stream's state. Raises: Refused, also for a work queue."""
        info = await self._server.api(f"STREAM.INFO.{self._stream}")
        if info["config"].get("retention") == "workqueue":
            raise Refused("This stream is a work queue: a consumer for reading would take messages from its workers. "
                          "Single messages can be read by their sequence.")
        return dict(info["state"])

    async def get(self, seq: int) -> Message:
        """Return one message."""
        answer = (await self._server.api(f"STREAM.MSG.GET.{self._stream}", {"seq": seq}))["message"]
        headers = _headers(base64.b64decode(answer.get("hdrs", "")))
        return Message(seq, answer["subject"], answer["time"], base64.b64decode(answer.get("data", "")), headers)

    async def read(self, start: Start, count: int, subject: str = "") -> list[Message]:
        """Return up to ``count`` messages from ``start`` on, oldest first."""
        await self.state()
        async with self._consumer(start, subject) as pull:
            found: list[Message] = []
            async for msg in pull(wait=False):
                found.append(msg)
                if len(found) >= count:
                    break
            return found

    async def before(self, seq: int, count: int, subject: str = "") -> list[Message]:
        """Return up to ``count`` messages before sequence ``seq``, oldest first; 0: the last ones of the stream."""
        state = await self.state()
        end = seq or int(state["last_seq"]) + 1
        span = count
        while True:
            start = max(end - span, int(state["first_seq"]))
            found = [msg for msg in await self.read(Start(start), span, subject) if msg.seq < end]
            if len(found) >= count or start <= int(state["first_seq"]):
                return found[-count:]
            span *= 8  # messages are missing, or of other subjects

    async def follow(self, subject: str = "") -> AsyncIterator[Message]:
        """Yield messages as they arrive."""
        state = await self.state()
        async with self._consumer(Start(int(state["last_seq"]) + 1), subject) as pull:
            async for msg in pull(wait=True):
                yield msg

    async def search(self, search: Search, subject: str = "", most: int = 1000) -> None:
        """Search until the end of the range, until ``most`` messages are found, or until the search is cancelled."""
        state = await self.state()
        search.last = min(search.last or int(state["last_seq"]), int(state["last_seq"]))
        search.first = max(search.first, int(state["first_seq"]))
        matches = search.matcher()
        if search.first > search.last:
            return
        async with self._consumer(Start(search.first), subject) as pull:
            async for msg in pull(wait=False):
                if msg.seq > search.last or search.cancelled:
                    break
                search.at = msg.seq
                if matches(msg):
                    search.found.append(msg)
                    if len(search.found) >= most:
                        return
        if not search.cancelled:
            search.at = search.last

    @asynccontextmanager
    async def _consumer(self, start: Start, subject: str) -> AsyncIterator[Callable[..., AsyncIterator[Message]]]:
        server = self._server
        config = {"ack_policy": "none", "mem_storage": True, "inactive_threshold": _IDLE_NS, "num_replicas": 1,
                  **start.config(), **({"filter_subject": subject} if subject else {})}
        made = await server.api(f"CONSUMER.CREATE.{self._stream}", {"stream_name": self._stream, "config": config},
                                reads=True)
        name = made["name"]
        inbox = server.client.new_inbox()
        answers = await server.client.subscribe(inbox)

        async def pull(*, wait: bool) -> AsyncIterator[Message]:
            next_subject = f"{server.api_prefix}.CONSUMER.MSG.NEXT.{self._stream}.{name}"
            while True:
                body = {"batch": _AT_ONCE, "max_bytes": _BYTES_AT_ONCE,
                        **({"expires": round(_PULL_SECONDS * 1e9)} if wait else {"no_wait": True})}
                await server.client.publish(next_subject, json.dumps(body).encode(), reply=inbox)
                got = 0
                while (msg := await self._next(answers, wait=wait)) is not None:
                    yield _message(msg)
                    got += 1
                    if got == _AT_ONCE:
                        break
                if not wait and not got:
                    return
                await asyncio.sleep(0)

        try:
            yield pull
        finally:
            try:
                await answers.unsubscribe()
                await server.api(f"CONSUMER.DELETE.{self._stream}.{name}", reads=True)
            except (Refused, Error):
                pass  # it ends by itself

    async def _next(self, answers: Subscription, *, wait: bool) -> Msg | None:
        """Return the next message, or None at the end of what the request gave."""
        try:
            msg = await answers.next_msg(timeout=_PULL_SECONDS + 2)
        except (Error, TimeoutError):
            if wait and self._server.connected:
                return None
            raise Refused("The server sent no messages; it may have gone away.") from None
        status = (msg.headers or {}).get("Status", "")
        if not status:
            return msg
        if status in ("404", "408"):
            return None
        if status == "409" and "MaxBytes" in (msg.headers or {}).get("Description", ""):
            return None
        raise Refused(f"The server stopped sending: {(msg.headers or {}).get('Description', status)}.")


def _message(msg: Msg) -> Message:
    # $JS.ACK.[<domain>.<account>.]<stream>.<consumer>.<delivered>.<stream sequence>.<sequence>.<time>.<pending>
    tokens = msg.reply.split(".")
    _, seq, _, time_ns = tokens[4:8] if len(tokens) == 9 else tokens[6:10]
    return Message(int(seq), msg.subject, format_time(int(time_ns)), msg.data, dict(msg.headers or {}))


def _headers(raw: bytes) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in raw.split(b"\r\n")[1:]:
        key, colon, value = line.partition(b":")
        if colon:
            found[key.decode("utf-8", "replace")] = value.strip().decode("utf-8", "replace")
    return found
