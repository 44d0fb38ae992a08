"""The time for which a request waits for the removals that it causes."""

from __future__ import annotations

import asyncio
from typing import Any

__all__ = ["finished"]

_SECONDS = 4.0
"""The longest wait, in seconds: clients time out after 5."""


async def finished(sweep: asyncio.Future[Any]) -> None:
    """Wait for a request's removal, as long as a request may wait. The removal continues after that."""
    await asyncio.wait((sweep,), timeout=_SECONDS)
