"""How long a request waits for what it removes."""

from __future__ import annotations

import asyncio
from typing import Any

__all__ = ["finished"]

_SECONDS = 4.0
"""Clients time out after 5 seconds."""


async def finished(sweep: asyncio.Future[Any]) -> None:
    """Wait for a request's removal, as long as a request may wait; the rest of it continues after the answer."""
    await asyncio.wait((sweep,), timeout=_SECONDS)
