"""Tasks about streams that move or are deleted: one task at a time for each stream."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from broker.jetstream.wire.errors import ApiError
from broker.storage.put import Fenced

__all__ = ["StreamTasks"]

_log = logging.getLogger(__name__)


class StreamTasks:
    """The tasks by stream. ``name`` is that of each task; an unexpected error that ends one is logged."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def begin(self, stream_id: int, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run ``work()`` as the task of a stream, unless the stream has one that has not ended."""
        if (running := self._tasks.get(stream_id)) is None or running.done():
            task = asyncio.get_running_loop().create_task(work(), name=self._name)
            self._tasks[stream_id] = task
            task.add_done_callback(lambda _: self._ended(stream_id, task))

    async def wait(self, stream_id: int) -> None:
        """Return once the stream has no task, however the task ends."""
        if (task := self._tasks.get(stream_id)) is not None:
            await asyncio.wait((task,))

    def cancel(self, stream_id: int) -> None:
        """Cancel the task of a stream, which may have a new one at once."""
        if (task := self._tasks.pop(stream_id, None)) is not None:
            task.cancel()

    def cancel_all(self) -> None:
        """Cancel all tasks, as ``cancel``."""
        for stream_id in list(self._tasks):
            self.cancel(stream_id)

    async def stop(self) -> None:
        """Cancel all tasks, and return once they have ended."""
        tasks = list(self._tasks.values())
        self.cancel_all()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ended(self, stream_id: int, task: asyncio.Task[None]) -> None:
        if self._tasks.get(stream_id) is task:
            del self._tasks[stream_id]
        if not task.cancelled() and (error := task.exception()) is not None and not isinstance(
                error, ApiError | Fenced):
            _log.error("%s: the task failed", self._name, exc_info=error)
