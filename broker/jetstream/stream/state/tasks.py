"""The tasks of one stream, and its log lines.

Owns: each task is kept, named, and cancelled with the stream; an unexpected failure is logged.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

from broker.storage.format.errors import FormatError
from broker.storage.objectstore.base import StoreError

__all__ = ["Tasks"]

T = TypeVar("T")

_log = logging.getLogger(__name__)


class Tasks:
    """The tasks of the stream called ``name``."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, T], what: str, *, awaited: bool = False) -> asyncio.Task[T]:
        """Run ``work`` as a task, named after ``what`` it does.

        ``awaited``: the caller waits and reports any failure.
        """
        task = asyncio.get_running_loop().create_task(work, name=f"{what} {self._name}")
        self._tasks.add(task)
        task.add_done_callback(self._awaited if awaited else self._finished)
        return task

    @property
    def running(self) -> bool:
        """True if any task is running."""
        return bool(self._tasks)

    def cancel(self) -> None:
        """Cancel all tasks."""
        for task in self._tasks:
            task.cancel()

    def warn(self, text: str, *args: object, unexpected: bool = False) -> None:
        """Log a warning about this stream; ``unexpected``: log an error, with the traceback of the last argument."""
        error = args[-1] if unexpected and isinstance(args[-1], BaseException) else None
        _log.log(logging.WARNING if error is None else logging.ERROR, "stream %s: " + text, self._name, *args,
                 exc_info=error)

    def _awaited(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # otherwise asyncio logs it if the waiting caller was cancelled at the same moment

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        # A store failure or a damaged object is logged by the task's caller, which knows the consequences.
        if not isinstance(error, (StoreError, FormatError)):
            _log.error("stream %s: %s failed", self._name, task.get_name(), exc_info=error)
