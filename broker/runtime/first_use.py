"""Modules that a start leaves out: what JetStream needs for its first stream, consumer and request.

A start is over sooner, and a broker that is stopped before anybody uses JetStream never loads them. They are loaded in a
thread half a second after the start, so that the first request does not wait for all of them: the interpreter's switch interval
bounds how long the loop waits for the thread. A request that comes earlier imports what it needs itself.
"""

from __future__ import annotations

import asyncio
from importlib import import_module
from typing import Final

__all__ = ["FIRST_USED", "load_first_used"]

FIRST_USED: Final = (
    "..jetstream.api.routes", "..jetstream.api.streams", "..jetstream.api.consumers",
    "..jetstream.api.messages", "..jetstream.api.direct_get", "..jetstream.api.backups",
    "..jetstream.api.inbox", "..jetstream.config.stream_rules", "..jetstream.config.consumer_rules",
    "..jetstream.config.upstream_rules", "..jetstream.stream.stream", "..jetstream.stream.upstream.mirror",
    "..jetstream.stream.upstream.source", "..jetstream.consumer.consumer", "..jetstream.consumer.start")


_DELAY_SECONDS: Final = 0.5


async def load_first_used() -> None:
    """Load them after a while; returns when all are there. A call that is cancelled leaves an import to its thread."""
    await asyncio.sleep(_DELAY_SECONDS)
    await asyncio.to_thread(_load)


def _load() -> None:
    for name in FIRST_USED:
        import_module(name, __package__)
