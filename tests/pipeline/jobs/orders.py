"""A stream of orders in a directory store, for the jobs' tests: several days, regions, and JSON payloads."""

from __future__ import annotations

import json
from pathlib import Path

from broker.storage.objectstore.file import FileStore
from tests.pipeline.stores import Owner, Row, Stream

__all__ = ["Orders"]

_EIGHT_HOURS_NS = 8 * 3600 * 10**9


class Orders:
    """The stream ORDERS on an engine that can be started again; ``live`` has the expected messages."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.url = f"file://{folder}"
        self._store = FileStore(folder)
        self._owner = Owner(self._store)
        self._stream: Stream | None = None
        self._started = False

    async def append(self, blocks: int, messages: int = 100) -> None:
        """Append blocks of messages, eight hours apart, and end the process run."""
        if not self._started:
            self._started = True
            await self._owner.start()
            self._stream = await self._owner.make("ORDERS")
        else:
            await self._owner.start("again")
        stream = self._orders()
        for _ in range(blocks):
            first = stream.last_seq
            stream.append([self._message(number) for number in range(first, first + messages)],
                          after_ns=_EIGHT_HOURS_NS)
            await self._owner.log.persisted()
        await self._owner.kill()

    @property
    def live(self) -> list[Row]:
        """The expected messages: sequence, subject, headers, data, time in ns."""
        return list(self._orders().live.values())

    async def close(self) -> None:
        await self._store.close()

    def _orders(self) -> Stream:
        assert self._stream is not None
        return self._stream

    @staticmethod
    def _message(number: int) -> tuple[bytes, bytes, bytes]:
        headers = f"NATS/1.0\r\nNats-Msg-Id: {number}\r\n\r\n".encode() if number % 3 == 0 else b""
        region = ("eu", "us", "asia")[number % 3]
        return f"ORDERS.{region}.{number % 5}".encode(), headers, json.dumps({"id": number, "ts": "now"}).encode()
