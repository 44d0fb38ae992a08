"""Streams that live again and again while brokers die: each acknowledged message must be there once."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

import nats
from nats.js import JetStreamContext
from nats.js.errors import NotFoundError

__all__ = ["Life", "again"]

T = TypeVar("T")


class Life:
    """A client that creates, fills, changes, reads and deletes one stream after another, while brokers are killed."""

    def __init__(self, js: JetStreamContext, number: int) -> None:
        self._js = js
        self.name = f"S{number}"
        self._rng = random.Random(number)
        self.lives = 0
        self.stored: set[str] | None = None
        """The messages of the stream that is there; None: there is none."""

    async def live(self) -> None:
        """Let the stream live once. Raises: AssertionError if it is not as it was acknowledged."""
        js, name = self._js, self.name
        self.lives += 1
        subject = f"{name}.{self.lives}"
        await again(lambda: js.add_stream(name=name, subjects=[subject]))
        self.stored = set()
        for number in range(self._rng.randint(1, 12)):
            one = f"{subject}-{number}"
            await again(lambda one=one: js.publish(  # type: ignore[misc]
                subject, one.encode(), headers={"Nats-Msg-Id": one}, stream=name))
            self.stored.add(one)
            if number == 5:
                await again(lambda: js.update_stream(name=name, subjects=[subject, f"more.{subject}"]))
                await again(lambda: js.publish(f"more.{subject}", b"more", headers={"Nats-Msg-Id": "more"}))
                self.stored.add("more")
        await self.check()
        await again(lambda: js.delete_stream(name), NotFoundError)
        self.stored = None

    async def check(self) -> None:
        """Each acknowledged message is there once."""
        if self.stored is None:
            return
        info = await again(lambda: self._js.stream_info(self.name))
        found = [(await again(lambda seq=seq: self._js.get_msg(self.name, seq))).data.decode()  # type: ignore[misc]
                 for seq in range(1, info.state.last_seq + 1)]
        assert sorted(found) == sorted(self.stored)


async def again(ask: Callable[[], Awaitable[T]], *done: type[Exception]) -> T | None:
    """Return the answer to a request, which is repeated until it has one; an error in ``done`` is one, too."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await ask()
            except done:
                return None
            except (nats.errors.Error, TimeoutError):
                await asyncio.sleep(0.05)
