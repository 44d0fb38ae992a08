"""Modules that a start does not import: JetStream needs them only for its first stream, consumer and request.

So a start is faster, and a broker that is stopped before JetStream is used never loads them. A thread loads them half a
second after the start, so that the first request does not wait for all of them; the interpreter's switch interval
bounds how long the loop waits for the thread. An earlier request imports the modules that it needs.
"""

from __future__ import annotations

import asyncio
from importlib import import_module
from typing import Final

__all__ = ["FIRST_USED", "load_first_used"]

FIRST_USED: Final = (
    "..jetstream.api.routes", "..jetstream.api.streams", "..jetstream.api.consumers",
    "..jetstream.api.messages", "..jetstream.api.direct_get", "..jetstream.api.backups",
    "..jetstream.api.inbox", "..jetstream.api.erasures", "..jetstream.config.stream_rules",
    "..jetstream.config.consumer_rules", "..jetstream.config.upstream_rules",
    "..jetstream.stream.stream", "..jetstream.stream.upstream.mirror", "..jetstream.stream.upstream.source",
    "..jetstream.consumer.consumer", "..jetstream.consumer.start")


_DELAY_SECONDS: Final = 0.5


async def load_first_used() -> None:
    """Load the modules after a while. If the call is cancelled, the thread finishes its import."""
    await asyncio.sleep(_DELAY_SECONDS)
    await asyncio.to_thread(_load)


def _load() -> None:
    for name in FIRST_USED:
        import_module(name, __package__)
