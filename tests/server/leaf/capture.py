"""A proxy on a leaf connection that records what the two servers say to each other.

Names, times and ports differ from run to run: ``Capture.take`` replaces them. Pings are left out, as are these
differences: jetblock asks other domains which of their streams store a new stream's subjects; it subscribes to acks by
a pattern with ``>``, where nats-server counts the words; and of nats-server's messages on different subjects in one
step, those of a stream may come first.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

__all__ = ["Capture", "plain", "recording", "shown_body"]

_UNIQUE = [(re.compile(pattern), text) for pattern, text in (
    (rb"\$LDS\.[A-Za-z0-9]{22}", b"$LDS.#"),
    (rb"_R_\.[A-Za-z0-9]{6,}\.", b"_R_.#."),
    (rb"_INBOX\.[A-Za-z0-9]{22}", b"_INBOX.#"),
    (rb"(\$JS\.ACK\.\S*?\.)1\d{18}", rb"\1<time>"),
    (rb"(\$JS\.(?:ACK|FC)\.[a-z_]+\.)[A-Za-z0-9]{8}\.", rb"\1<account>."),
    (rb"(\$JS\.ACK\.\S+?)(?:\.\*){4,5}(?:\.>)?$", rb"\1.>"),
    (rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z", b"<time>"),
    (rb"^HMSG (\S+) \d+\b", rb"HMSG \1"),
)]

_VARYING = {"proto", "protocol", "port", "client_id", "nonce", "ip", "server_id", "leafnode_urls", "xkey"}
"""Fields of INFO and CONNECT whose values differ."""

_BUILD = {"git_commit", "go"}
"""Fields of INFO that describe a program in Go."""

_ANSWERED = ("type", "error", "stream", "seq", "domain", "duplicate", "name", "stream_name", "success")
"""Fields of JetStream's answers that are compared here; tests of JetStream compare all."""


class Capture:
    """The bytes of one connection, by their sender: ``hub`` or ``spoke``."""

    def __init__(self) -> None:
        self._data = {"hub": b"", "spoke": b""}

    def add(self, sender: str, data: bytes) -> None:
        self._data[sender] += data

    def take(self) -> dict[str, list[bytes]]:
        """Return the operations since the last call."""
        taken, self._data = self._data, {"hub": b"", "spoke": b""}
        return {sender: [line for line in _operations(data) if b".API.STREAM.NAMES " not in line
                         and b"_INBOX.#" not in line] for sender, data in taken.items()}


def plain(data: bytes) -> bytes:
    """Return ``data`` with fixed texts in place of names and times."""
    for pattern, text in _UNIQUE:
        data = pattern.sub(text, data)
    return data


def _operations(data: bytes) -> list[bytes]:
    found = []
    while data:
        line, end, data = data.partition(b"\r\n")
        assert end, line
        verb, _, rest = line.partition(b" ")
        if verb in (b"INFO", b"CONNECT"):
            found.append(verb + b" " + json.dumps(_shape(json.loads(rest)), sort_keys=True).encode())
        elif verb in (b"LMSG", b"HMSG"):
            *words, size = rest.split(b" ")
            body, data = data[:int(size)], data[int(size) + 2:]
            found.append(plain(b" ".join((verb, *_with_queues_in_order(words)))) + b"\n" + shown_body(body))
        elif verb not in (b"PING", b"PONG", b""):
            found.append(plain(line))
    return found


def _with_queues_in_order(words: list[bytes]) -> list[bytes]:
    """Return the arguments of a message with its queue groups sorted: their order is random on nats-server."""
    at = next((at + 1 for at, word in enumerate(words) if word in (b"|", b"+")), 0)
    if not at:
        return words
    at += words[at - 1] == b"+"
    return words[:at] + sorted(words[at:])


def shown_body(body: bytes) -> bytes:
    """Return a message's body; of JetStream's answers the fields that are compared."""
    try:
        fields = json.loads(body)
    except ValueError:
        return plain(body)
    if not isinstance(fields, dict):
        return plain(body)
    return json.dumps({name: fields[name] for name in _ANSWERED if name in fields}).encode()


def _shape(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: "#" if name in _VARYING else value for name, value in fields.items() if name not in _BUILD}


@asynccontextmanager
async def recording(port: int, to: int) -> AsyncIterator[Capture]:
    """Listen on ``port``, forward to the hub at ``to``, and record."""
    capture = Capture()
    tasks = set()

    async def copy(sender: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                capture.add(sender, data)
                writer.write(data)
        writer.close()

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there = await asyncio.open_connection("127.0.0.1", to)
        except OSError:
            writer.close()
            return
        for direction in (copy("spoke", reader, there[1]), copy("hub", there[0], writer)):
            task = asyncio.create_task(direction)
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(forward, "127.0.0.1", port)
    try:
        yield capture
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
