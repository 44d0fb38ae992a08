"""A dialogue over raw connections with a server whose accounts share subjects, as comparable frames.

A connection is named after its user: ``b``, ``b2`` are two connections of user b. ``{R}`` in a connection's input
stands for the reply subject that it received last.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

from tests.server.raw_client import Wire

__all__ = ["BETWEEN", "Frame", "Step", "both", "hpub", "masked", "play"]

Step = tuple[str, bytes] | tuple[str, bytes, bytes]
"""A step: connection, input, and, for output that comes at any time, a mark that the connection must receive by the
end."""

BETWEEN: Step = ("-", b"")

Frame = tuple[str, Any]

_REPLY = re.compile(r"_R_\.[A-Za-z0-9.]+")
_HEAD = re.compile(rb"(H?MSG) ([^\r\n]*)\r\n")
_INFO = b"Nats-Request-Info"
_VARIES = {"rtt", "start", "id", "server", "host", "timestamp", "service", "system", "total", "time", "seq", "ts",
           "cid", "ver",
           "cluster", "jetstream", "tags", "flags"}


def hpub(subject: bytes, reply: bytes, headers: dict[str, str], body: bytes) -> bytes:
    """Return an HPUB operation."""
    block = b"NATS/1.0\r\n" + b"".join(b"%b: %b\r\n" % (name.encode(), value.encode())
                                       for name, value in headers.items()) + b"\r\n"
    return b"HPUB %b %b%d %d\r\n%b%b\r\n" % (subject, reply and reply + b" ", len(block), len(block) + len(body), block,
                                             body)


async def play(port: int, steps: list[Step], between: Callable[[], Awaitable[object]] | None = None,
               ) -> list[tuple[str, list[Frame]]]:
    """Play a dialogue. Returns: the frames of all connections after each step.

    Connections with marks have all their frames together at the end.
    Args: ``between`` is called by the step ``BETWEEN``.
    """
    transcript: list[tuple[str, list[Frame]]] = []
    pooled = {name: b"" for name, _, *end in steps if end}
    wires: dict[str, Wire] = {}
    replies: dict[str, bytes] = {}
    async with AsyncExitStack() as stack:
        for name, data, *end in steps:
            if name == BETWEEN[0]:
                assert between is not None
                await between()
                continue
            if name not in wires:
                wires[name] = wire = await stack.enter_async_context(Wire(port))
                user = name.rstrip("0123456789")
                wire.send(b"CONNECT " + json.dumps({
                    "verbose": False, "pedantic": False, "headers": True, "no_responders": True, "protocol": 1,
                    "user": user, "pass": user, "name": name}).encode() + b"\r\n")
                await wire.settled()
            wires[name].send(data.replace(b"{R}", replies.get(name, b"?")))
            if end and end[0] not in pooled[name]:
                pooled[name] += await wires[name].until(end[0])
            for other in [name, *(wire for wire in wires if wire != name)]:
                received = await wires[other].settled()
                if (found := re.findall(rb"MSG \S+ \S+ (_R_\S+) \d", received)):
                    replies[other] = found[-1]
                if other in pooled:
                    pooled[other] += received
                elif frames := _frames(received):
                    transcript.append((other, frames))
    return transcript + [(name, _frames(data)) for name, data in pooled.items()]


def _frames(data: bytes) -> list[Frame]:
    """Return messages and errors, in order; copies of one message are ordered by subscription id."""
    frames: list[Frame] = []
    at = 0
    while at < len(data):
        line, _, rest = data[at:].partition(b"\r\n")
        at = len(data) - len(rest)
        if (head := _HEAD.match(line + b"\r\n")) is None:
            if line.startswith((b"-ERR", b"+OK")):
                frames.append(("line", _plain(line)))
            continue
        words = head[2].split()
        size, hlen = int(words[-1]), int(words[-2]) if head[1] == b"HMSG" else 0
        body, at = data[at:at + size], at + size + 2
        reply = words[2] if len(words) == (5 if hlen else 4) else b""
        frames.append(("msg", (_plain(words[0]), _headers(body[:hlen]), _payload(body[hlen:]), _plain(reply),
                               words[1].decode())))

    def place(frame: Frame) -> tuple[int, str]:
        first = next(at for at, other in enumerate(frames) if other[1][:4] == frame[1][:4])
        return first, frame[1][4] if frame[0] == "msg" else ""

    return sorted(frames, key=place)


def _plain(subject: bytes) -> str:
    return _REPLY.sub("_R_", subject.decode())


def _headers(block: bytes) -> list[str]:
    lines = _plain(block).split("\r\n")
    return [f"{_INFO.decode()}: {_payload(line.partition(': ')[2].encode())}" if line.startswith(_INFO.decode())
            else line
            for line in lines if line]


def _payload(body: bytes) -> Any:
    if not body.startswith(b"{"):
        return body.decode()
    try:
        return masked(json.loads(body))
    except ValueError:
        return body.decode()


def masked(value: Any) -> Any:
    """Return JSON without values that differ from run to run; only their names and types remain."""
    if isinstance(value, dict):
        return {name: f"<{type(inner).__name__}>" if name in _VARIES else masked(inner) for name,
                inner in value.items()}
    if isinstance(value, list):
        # nats-server shows patterns in any order.
        return sorted(value) if all(isinstance(inner, str) for inner in value) else [masked(inner) for inner in value]
    return _REPLY.sub("_R_", value) if isinstance(value, str) else value


async def both(real_port: int, our_port: int, steps: list[Step]) -> tuple[Any, Any]:
    """Return the transcripts of both servers."""
    real, ours = await asyncio.gather(play(real_port, steps), play(our_port, steps))
    return real, ours
