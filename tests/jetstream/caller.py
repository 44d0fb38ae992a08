"""A client of one account inside this process: it speaks to the account's router, as a connection would."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

from broker.base.clock import SystemClock
from broker.jetstream.bus import Msg
from broker.server.routing.router import Router

__all__ = ["Caller", "NoResponders"]


class NoResponders(Exception):
    """Raised if the subject has no subscriber."""


class Caller:
    """A client that sends requests; it is also the ``Source`` of the messages that it publishes."""

    headers = True
    no_echo = False
    closed = False
    fan_outs = 0
    wants_no_responders = True
    pending_bytes = 0

    def __init__(self, router: Router) -> None:
        self._router = router
        self._clock = SystemClock()
        self._waiting: dict[bytes, asyncio.Future[bytes]] = {}
        self._count = 0
        router.subscribe(b"_CALLER.*", self._on_answer)

    def identity(self) -> dict[str, Any]:
        return {"name": "caller"}

    def refuse_publish(self, subject: bytes) -> None: ...
    def hold(self) -> None: ...
    def release(self) -> None: ...

    def no_responders(self, subject: bytes, reply: bytes) -> None:
        self._waiting.pop(reply).set_exception(NoResponders(subject.decode()))

    def _on_answer(self, ops: Sequence[Msg], start: int, end: int, source: object, now_ns: int) -> None:
        for subject, _, hlen, body in ops[start:end]:
            self._waiting.pop(subject).set_result(body[hlen:])

    def send(self, subject: str, body: bytes = b"") -> asyncio.Future[bytes]:
        """Publish with a reply subject; returns a future of the answer."""
        self._count += 1
        reply = b"_CALLER.%d" % self._count
        answer = self._waiting[reply] = asyncio.get_running_loop().create_future()
        self._router.route([(subject.encode(), reply, 0, body)], 0, 1, self, self._clock.now_ns())
        return answer

    async def request(self, subject: str, body: bytes = b"") -> Any:
        """Return the answer, decoded. Raises: NoResponders; TimeoutError."""
        async with asyncio.timeout(30):
            return json.loads(await self.send(subject, body))

    async def api(self, subject: str, body: Any = None) -> dict[str, Any]:
        """Return the answer of an API request."""
        answer: dict[str, Any] = await self.request(f"$JS.API.{subject}",
                                                    b"" if body is None else json.dumps(body).encode())
        return answer
