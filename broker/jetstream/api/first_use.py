"""Modules that a start does not import: JetStream needs them only for its first stream, consumer and request.

So a start is faster, and a broker that is stopped before JetStream is used never loads them. A thread loads them half a
second after the start, or once a request comes, which waits for them. They take some 0.1 s, for which other clients
must not wait; the interpreter's switch interval bounds how long the loop waits for the thread.
"""

from __future__ import annotations

import asyncio
import sys
from importlib import import_module
from typing import Final

from broker.base.garbage import keep_present

__all__ = ["first_used_loaded", "import_first_used", "load_first_used", "load_first_used_later"]

_NAMES: Final = tuple(f"{__package__.rpartition('.')[0]}.{name}" for name in (
    "api.routes", "api.streams", "api.consumers", "api.messages", "api.direct_get", "api.backups", "api.inbox",
    "api.erasures", "config.stream_rules", "config.consumer_rules", "config.upstream_rules", "stream.stream",
    "stream.state.in_turns", "stream.upstream.mirror", "stream.upstream.source", "consumer.consumer", "consumer.start"))

_DELAY_SECONDS: Final = 0.5

_missing = list(_NAMES)
"""The modules that may not have been loaded yet."""


def first_used_loaded() -> bool:
    """Return whether all of the modules are loaded."""
    while _missing and _is_loaded(_missing[-1]):
        _missing.pop()
    return not _missing


async def load_first_used() -> None:
    """Load the modules in a thread. If the call is cancelled, the thread finishes its imports."""
    if not first_used_loaded():
        await asyncio.to_thread(import_first_used)


async def load_first_used_later() -> None:
    """Load the modules after a while."""
    await asyncio.sleep(_DELAY_SECONDS)
    await load_first_used()


def _is_loaded(name: str) -> bool:
    module = sys.modules.get(name)
    return module is not None and not getattr(module.__spec__, "_initializing", False)


def import_first_used() -> None:
    """Load the modules in this thread."""
    for name in _NAMES:
        import_module(name)
        keep_present()
