"""Reloads of the configuration, one after the other in the order in which they were asked for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

__all__ = ["Reloads"]

_log = logging.getLogger(__name__)


class Reloads:
    """The reloads of a server, none of which begins before the one that was asked for earlier has ended."""

    def __init__(self, read_and_apply: Callable[[], Awaitable[None]], *refusals: type[Exception]) -> None:
        """Args:
        read_and_apply: reads the configuration again and applies it, or raises an error and changes nothing.
        refusals: the errors of ``read_and_apply`` whose text is for the operator; any other is logged as a fault.
        """
        self._read_and_apply = read_and_apply
        self._refusals = refusals
        self._tasks: set[asyncio.Task[None]] = set()
        self._turn = asyncio.Lock()

    def begin(self, done: Callable[[str], object]) -> None:
        """Begin a reload. ``done`` is called at its end: with "", or with a line for each error."""
        task = asyncio.get_running_loop().create_task(self._reload(done), name="reload")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def cancel(self) -> None:
        """Cancel the reloads that have not ended, and wait for them."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _reload(self, done: Callable[[str], object]) -> None:
        try:
            async with self._turn:
                await self._read_and_apply()
        except self._refusals as error:
            done(str(error))
        except Exception:
            _log.exception("The configuration could not be reloaded")
            done("internal error")
        else:
            done("")
