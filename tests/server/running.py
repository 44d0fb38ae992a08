"""Our server in the test's own process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from broker.server.options import ServerOptions
from broker.server.server import Server

__all__ = ["running"]


@asynccontextmanager
async def running(**fields: Any) -> AsyncIterator[Server]:
    """A server on a port of its own; ``fields`` of its options."""
    server = Server(ServerOptions(host="127.0.0.1", port=-1, **fields))
    await server.start()
    try:
        yield server
    finally:
        await server.close()
