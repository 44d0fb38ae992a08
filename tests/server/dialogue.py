"""A dialogue over raw connections, and the bytes that a server answers in it.

A dialogue is a list of steps (connection, bytes). After each step every open connection sends PING and is read up to
the PONG, so a step's transcript has all of its effects. A step marked with ``END`` ends its connection, which is then
read to its end. A step marked ``PARTIAL`` leaves its connection in the middle of an operation.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

from tests.server.raw_client import Wire

__all__ = ["BETWEEN", "END", "NO_ECHO", "OLD", "PARTIAL", "PEDANTIC", "QUIET", "VERBOSE", "Step", "Transcript", "play"]

END = "end"
PARTIAL = "partial"

QUIET = b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":true,"protocol":1}\r\n'
OLD = b'CONNECT {"verbose":false,"pedantic":false}\r\n'
PEDANTIC = b'CONNECT {"verbose":false,"pedantic":true}\r\n'
VERBOSE = b'CONNECT {"pedantic":false,"headers":true}\r\n'
NO_ECHO = b'CONNECT {"verbose":false,"pedantic":false,"echo":false,"headers":true,"no_responders":true}\r\n'

Step = tuple[str, bytes] | tuple[str, bytes, str]

BETWEEN: Step = ("", b"")
"""The step that calls the player's ``between``; no client sends anything."""

Transcript = list[tuple[str, bytes]]


async def play(port: int, steps: list[Step], between: Callable[[], Awaitable[object]] | None = None, *,
               pings: bool = False) -> Transcript:
    """Play a dialogue. Returns: the bytes received, step by step and connection by connection.

    Args: ``between`` is called by the step ``BETWEEN``; ``pings``: include the server's PINGs.
    """
    transcript: Transcript = []
    wires: dict[str, Wire] = {}
    busy: set[str] = set()
    async with AsyncExitStack() as stack:
        for name, data, *how in steps:
            if name == BETWEEN[0]:
                if between is None:
                    raise ValueError("nothing to do between two steps")
                await between()
                continue
            if name not in wires:
                wires[name] = await stack.enter_async_context(Wire(port, pings=pings))
            wires[name].send(data)
            busy.discard(name)
            if how == [END]:
                transcript.append((name, Wire.plain(await wires[name].end())))
            elif how == [PARTIAL]:
                busy.add(name)
                continue
            else:
                transcript.append((name, Wire.plain(await wires[name].settled())))
            for other, wire in wires.items():
                if other != name and other not in busy and not wire.closed:
                    transcript.append((other, Wire.plain(await wire.settled())))
    return transcript
