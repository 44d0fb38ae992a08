"""Serves a stream again that was stopped for a move: it has come into a shard, or stays in one after all."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from broker.base.backoff import Backoff

if TYPE_CHECKING:
    from broker.jetstream.account.account import Account
    from broker.storage.format.records.catalogue import CatalogueEntry
    from broker.storage.log.log import Log

__all__ = ["serve_again"]

_log = logging.getLogger(__name__)

_PAUSE_SECONDS: Final = 1.0
_PAUSE_SECONDS_MAX: Final = 30.0
"""The first and the longest pause between two attempts."""


async def serve_again(account: Account, entry: CatalogueEntry, log: Log, may_serve: Callable[[], bool],
                      ) -> list[asyncio.Task[None]] | None:
    """Restore a stream from its applied state. No other shard may serve it, so after an error it is tried again.

    Returns: the openings of its consumers; None once ``may_serve`` is false: the shard was lost, or is given away.
    """
    backoff = Backoff(_PAUSE_SECONDS, _PAUSE_SECONDS_MAX)
    while may_serve():
        try:
            return account.restore([log.state.streams[entry.stream_id]])
        except Exception:
            _log.exception("stream %s > %s, which was stopped for a move, cannot be served again yet", entry.account,
                           entry.name)
        await asyncio.sleep(backoff.next())
    return None
