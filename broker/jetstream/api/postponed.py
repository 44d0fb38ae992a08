"""Requests that wait for something that all of them need."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from broker.jetstream.api.waiting import Waiting

__all__ = ["Postponed"]


class Postponed:
    """Requests that wait for the same, and are then served in the order in which they came.

    It refers to its owner only while requests wait, so that the two are no reference cycle.

    Args: ``waiting`` counts them, and drops those above its limit. ``tasks`` gets the task that waits, called ``name``,
        which the owner cancels.
    """

    def __init__(self, waiting: Waiting, tasks: set[asyncio.Task[None]], name: str) -> None:
        self._waiting = waiting
        self._tasks = tasks
        self._name = name
        self._requests: list[Callable[[], object]] = []

    def __bool__(self) -> bool:
        """True if requests wait."""
        return bool(self._requests)

    def add(self, serve: Callable[[], object], until: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Let a request wait until ``until`` returns, then call ``serve``; drop it if too many wait."""
        if not self._waiting.admit(False):
            return
        if not self._requests:
            task = asyncio.get_running_loop().create_task(self._serve_after(until), name=self._name)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        self._requests.append(serve)

    def drop(self) -> None:
        """Drop all of them unanswered."""
        self._take()

    async def _serve_after(self, until: Callable[[], Coroutine[Any, Any, object]]) -> None:
        try:
            await until()
        finally:
            requests = self._take()
        for serve in requests:
            serve()

    def _take(self) -> list[Callable[[], object]]:
        requests, self._requests = self._requests, []
        for _ in requests:
            self._waiting.done(False)
        return requests
