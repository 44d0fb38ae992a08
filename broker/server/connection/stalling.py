"""Slowing down a producer whose receivers are far behind: it is not read until they catch up, for a bounded time.

Source: nats-server, server/client.go (stalledWait).
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from typing import Final, Protocol

from broker.server.connection.outbound import Outbound

__all__ = ["stall"]

_STALL_PER_READ_NS: Final = 10_000_000
_READ_BYTES: Final = 64 * 1024
"""Bytes read for which a producer is stalled at most 10 ms, as in nats-server's read loop."""


class Reader(Protocol):
    """A connection whose reading can be held; holds nest."""

    def hold(self) -> None: ...

    def release(self) -> None: ...


def stall(reader: Reader, stalled: Iterable[Outbound], read_bytes: int) -> None:
    """Hold ``reader`` for the ``stalled`` receivers of its messages; ``read_bytes`` is the size of the read just
    served."""
    behind = {id(outbound): outbound for outbound in stalled}
    reads = -(-read_bytes // _READ_BYTES)
    _hold_until_caught_up(reader, behind.values(), reads * _STALL_PER_READ_NS / 1e9)


def _hold_until_caught_up(reader: Reader, behind: Collection[Outbound], seconds: float) -> None:
    """Hold ``reader`` until all of ``behind``, to which it published, have caught up, but no longer than
    ``seconds``."""
    reader.hold()
    left = len(behind)
    held = True

    def release_once() -> None:
        nonlocal held
        if held:
            held = False
            timer.cancel()
            reader.release()

    def caught_up() -> None:
        nonlocal left
        left -= 1
        if not left:
            release_once()

    timer = asyncio.get_running_loop().call_later(seconds, release_once)
    for outbound in behind:
        outbound.waiting.append(caught_up)
