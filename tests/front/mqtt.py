"""A small MQTT 3.1.1 client, for tests: QoS 0 and 1, retained messages, persistent sessions.

Source: MQTT Version 3.1.1, OASIS Standard.
"""

from __future__ import annotations

import asyncio
import struct
from typing import Self

__all__ = ["MqttClient"]

_CONNECT, _CONNACK, _PUBLISH, _PUBACK, _SUBSCRIBE, _SUBACK, _DISCONNECT = 1, 2, 3, 4, 8, 9, 14
_SECONDS = 30.0


class MqttClient:
    """One connection; a context manager."""

    def __init__(self, name: str, port: int, *, clean: bool = True, user: str = "", password: str = "") -> None:
        self._name, self._port, self._clean, self._login = name, port, clean, (user, password)
        self._messages: asyncio.Queue[tuple[str, bytes, int, bool]] = asyncio.Queue()
        self._answers: asyncio.Queue[tuple[int, bytes]] = asyncio.Queue()
        self._id = 0
        self.session_present = False

    async def __aenter__(self) -> Self:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        user, password = self._login
        flags = (2 if self._clean else 0) | (0xC0 if user else 0)
        self._send(_CONNECT << 4, _text("MQTT") + bytes((4, flags)) + struct.pack(">H", 60) + _text(self._name)
                   + (_text(user) + _text(password) if user else b""))
        self._reading = asyncio.create_task(self._read(), name=f"MQTT client {self._name}")
        body = await self._answer(_CONNACK)
        assert body[1] == 0, f"CONNACK {body[1]}"
        self.session_present = bool(body[0])
        return self

    async def __aexit__(self, *_: object) -> None:
        self._send(_DISCONNECT << 4, b"")
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        self._writer.close()

    async def subscribe(self, pattern: str, qos: int) -> None:
        """Subscribe, and wait for the answer."""
        self._id += 1
        self._send(_SUBSCRIBE << 4 | 2, struct.pack(">H", self._id) + _text(pattern) + bytes((qos,)))
        assert (await self._answer(_SUBACK))[2] == qos

    async def publish(self, topic: str, payload: bytes, *, qos: int = 0, retain: bool = False) -> None:
        """Publish, and wait for the answer if ``qos`` is 1."""
        self._id += 1
        number = struct.pack(">H", self._id) if qos else b""
        self._send(_PUBLISH << 4 | qos << 1 | retain, _text(topic) + number + payload)
        if qos:
            assert (await self._answer(_PUBACK))[:2] == number

    async def receive(self) -> tuple[str, bytes, int, bool]:
        """Return the next message: topic, payload, QoS, and whether it was retained. It is acknowledged."""
        async with asyncio.timeout(_SECONDS):
            return await self._messages.get()

    async def _answer(self, kind: int) -> bytes:
        async with asyncio.timeout(_SECONDS):
            found, body = await self._answers.get()
        assert found == kind, (found, body)
        return body

    def _send(self, head: int, body: bytes) -> None:
        size, length = len(body), b""
        while True:
            size, low = divmod(size, 128)
            length += bytes((low | (128 if size else 0),))
            if not size:
                break
        self._writer.write(bytes((head,)) + length + body)

    async def _read(self) -> None:
        while True:
            [head] = await self._reader.readexactly(1)
            size = shift = 0
            while True:
                [low] = await self._reader.readexactly(1)
                size |= (low & 127) << shift
                shift += 7
                if low < 128:
                    break
            body = await self._reader.readexactly(size)
            if head >> 4 != _PUBLISH:
                await self._answers.put((head >> 4, body))
                continue
            qos = head >> 1 & 3
            [length] = struct.unpack_from(">H", body)
            topic, rest = body[2:2 + length].decode(), body[2 + length:]
            if qos:
                self._send(_PUBACK << 4, rest[:2])
                rest = rest[2:]
            await self._messages.put((topic, rest, qos, bool(head & 1)))


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack(">H", len(data)) + data
