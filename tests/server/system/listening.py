"""A user of the system account that receives its events and sends it requests."""

from __future__ import annotations

import asyncio
import json
from types import TracebackType
from typing import Any, Self

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg

__all__ = ["Listener"]

SECONDS = 30.0


class Listener:
    """Connects, and collects the messages to ``subject``."""

    def __init__(self, url: str, subject: str = "", user: str = "sys", password: str = "p") -> None:
        self._url = url
        self._subject = subject
        self._credentials = {"user": user, "password": password}
        self.events: asyncio.Queue[Msg] = asyncio.Queue()

    async def __aenter__(self) -> Self:
        self.client: Client = await nats.connect(self._url, allow_reconnect=False, **self._credentials)
        if self._subject:
            await self.client.subscribe(self._subject, cb=self.events.put)
        await self.client.flush()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None,
                        trace: TracebackType | None) -> None:
        await self.client.close()

    async def next(self, subject: str) -> Any:
        """Return the next event on ``subject``; others are dropped."""
        async with asyncio.timeout(SECONDS):
            while (msg := await self.events.get()).subject != subject:
                pass
        return json.loads(msg.data)

    async def ask(self, subject: str, request: object = None, **how: Any) -> Any:
        """Return the answer's JSON. ``request``: None, a JSON value, or raw bytes."""
        body = b"" if request is None else request if isinstance(request, bytes) else json.dumps(request).encode()
        return json.loads((await self.ask_raw(subject, body, **how)).data)

    async def ask_raw(self, subject: str, body: bytes = b"", **how: Any) -> Msg:
        return await self.client.request(subject, body, timeout=SECONDS, **how)

    async def is_unanswered(self, subject: str, request: object) -> bool:
        """Return whether a request is received and not answered, while a later one is answered."""
        answers: asyncio.Queue[str] = asyncio.Queue()
        inbox = self.client.new_inbox()

        async def answered(msg: Msg) -> None:
            answers.put_nowait(msg.subject)

        sub = await self.client.subscribe(f"{inbox}.*", cb=answered)
        await self.client.publish(subject, json.dumps(request).encode(), reply=f"{inbox}.first")
        await self.client.publish("$SYS.REQ.SERVER.PING.IDZ", b"", reply=f"{inbox}.last")
        async with asyncio.timeout(SECONDS):
            first = await answers.get()
        await sub.unsubscribe()
        return first.endswith(".last")
