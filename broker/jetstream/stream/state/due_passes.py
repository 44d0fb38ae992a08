"""What a stream does once it is due: passes over that, one at a time, begun by a timer.

Owns: the timer, the task of the pass. Does not own: what is due and when, what a pass does (retention.ttl, scheduler).

Nothing begins while the clock is not trusted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from broker.storage.state.expiries import NEVER

if TYPE_CHECKING:
    from broker.base.clock import Clock
    from broker.jetstream.stream.state.tasks import Tasks
    from broker.storage.log.stream_log import StreamLog

__all__ = ["DuePasses"]

_TIMER_NS_MAX = 3_600_000_000_000
"""The wall clock may be set meanwhile, so it is read again at least this often."""


class DuePasses:
    """Args: ``carry_out`` is one pass; it returns when the next one is due, or NEVER, and how long that waits at least.
    ``untrusted_ns``: how long to wait before the clock is asked again whether it is trusted."""

    def __init__(self, log: StreamLog, tasks: Tasks, clock: Clock, what: str,
                 carry_out: Callable[[], Awaitable[tuple[int, int]]], *, untrusted_ns: int) -> None:
        self._log = log
        self._tasks = tasks
        self._clock = clock
        self._what = what
        self._carry_out = carry_out
        self._untrusted_ns = untrusted_ns
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due_ns = 0
        self._pass: asyncio.Task[None] | None = None

    @property
    def running(self) -> bool:
        """Whether a pass is under way."""
        return self._pass is not None

    @property
    def waiting(self) -> bool:
        """Whether the timer is set, or will be by the pass under way."""
        return self._timer is not None or self._pass is not None

    def in_time_for(self, due_ns: int) -> bool:
        """Whether the timer is set for then, or for earlier."""
        return self._timer is not None and due_ns >= self._timer_due_ns

    def set(self, due_ns: int, least_ns: int = 0) -> None:
        """Begin a pass then, though not before ``least_ns`` have gone by."""
        now_ns = self._clock.now_ns()
        delay_ns = min(max(due_ns - now_ns, least_ns, 0), _TIMER_NS_MAX)
        self._timer_due_ns = now_ns + delay_ns
        self._timer = asyncio.get_running_loop().call_later(delay_ns / 1e9, self.begin)

    def cancel(self) -> None:
        """Stop the timer; a pass under way goes on."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def begin(self) -> None:
        """The timer's callback."""
        self.cancel()
        if self._pass is not None:
            return
        if not self._log.clock_trusted():
            self.set(0, self._untrusted_ns)
        else:
            self._pass = self._tasks.start(self._run(), self._what)

    async def _run(self) -> None:
        try:
            due_ns, least_ns = await self._carry_out()
        finally:
            self._pass = None
        if due_ns != NEVER:
            self.set(due_ns, least_ns)
