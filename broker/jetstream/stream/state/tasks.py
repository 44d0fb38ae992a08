"""The tasks of one stream, and what it logs.

Owns: that each task is kept, named, cancelled with the stream, and that an unexpected failure is logged.
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
        """Run ``work`` as a task, named by ``what`` it does. ``awaited``: its caller waits for it and tells of any failure."""
        task = asyncio.get_running_loop().create_task(work, name=f"{what} {self._name}")
        self._tasks.add(task)
        task.add_done_callback(self._awaited if awaited else self._finished)
        return task

    @property
    def running(self) -> bool:
        """Whether there is one."""
        return bool(self._tasks)

    def cancel(self) -> None:
        """Cancel them all."""
        for task in self._tasks:
            task.cancel()

    def warn(self, text: str, *args: object, unforeseen: bool = False) -> None:
        """Log a line about this stream; ``unforeseen``: with the traceback of the last argument, an error."""
        error = args[-1] if unforeseen and isinstance(args[-1], BaseException) else None
        _log.log(logging.WARNING if error is None else logging.ERROR, "stream %s: " + text, self._name, *args,
                 exc_info=error)

    def _awaited(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # else asyncio tells of it, should whoever waited be cancelled just then

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        # A failing store or a damaged object is logged by the task's caller, which knows what it means.
        if not isinstance(error, (StoreError, FormatError)):
            _log.error("stream %s: %s failed", self._name, task.get_name(), exc_info=error)
