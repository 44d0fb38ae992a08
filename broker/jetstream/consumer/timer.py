"""The one timer of a consumer."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from broker.base.clock import Clock

__all__ = ["DeadlineTimer", "Scheduler"]

_NEVER_NS = 1 << 63


class Scheduler(Protocol):
    """The part of an event loop that a consumer uses."""

    def call_soon(self, callback: Callable[..., object], *args: Any) -> Any: ...

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any) -> Any: ...

    def create_task(self, coro: Coroutine[Any, Any, None]) -> Any: ...


class DeadlineTimer:
    """A timer that fires once, at the earliest time set since it last fired;
    the callback handles everything that is due."""

    def __init__(self, loop: Scheduler, clock: Clock, callback: Callable[[], None]) -> None:
        self._loop = loop
        self._clock = clock
        self._callback = callback
        self._handle: Any = None
        self._at_ns = 0

    def set(self, at_ns: int | None) -> None:
        """Let it fire at ``at_ns`` (monotonic) or earlier; None: no change."""
        if at_ns is None or at_ns >= _NEVER_NS or (self._handle is not None and self._at_ns <= at_ns):
            return
        self.cancel()
        self._at_ns = at_ns
        self._handle = self._loop.call_later(max(0, at_ns - self._clock.monotonic_ns()) / 1e9, self._fire)

    def cancel(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _fire(self) -> None:
        self._handle = None
        self._callback()
