"""A timer that starts a stream's periodic passes, one at a time.

Owns: the timer and the task of the current pass. Does not own: the due times and the work of a pass (retention.ttl,
scheduler).

No pass starts while the clock is not trusted. Its time may also be wrong then, so the delay of a timer that is set
meanwhile means nothing, and the clock is read again soon.
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
"""Maximum delay of the timer: the wall clock may be set in the meantime, so it is read again at least this often."""


class DuePasses:
    """The timer and the current pass of one stream.

    Args: ``carry_out`` runs one pass. It returns the time of the next one, or NEVER, and the minimum delay until then.
        ``what`` names the pass in logs. ``untrusted_ns`` is the delay after which an untrusted clock is checked again.
    """

    def __init__(self, log: StreamLog, tasks: Tasks, clock: Clock, what: str,
                 carry_out: Callable[[], Awaitable[tuple[int, int]]], *, untrusted_ns: int) -> None:
        self._log = log
        self._tasks = tasks
        self._clock = clock
        self._what = what
        self._carry_out = carry_out
        self._untrusted_ns = untrusted_ns
        self._timer: asyncio.TimerHandle | None = None
        self._due_ns = 0
        """The time of the next pass. The timer may be set for an earlier time, to read the clock again."""
        self._pass: asyncio.Task[None] | None = None

    @property
    def running(self) -> bool:
        """True while a pass is running."""
        return self._pass is not None

    @property
    def waiting(self) -> bool:
        """True if the timer is set, or if a running pass may set it when it ends."""
        return self._timer is not None or self._pass is not None

    def in_time_for(self, due_ns: int) -> bool:
        """Return whether the next pass is due at ``due_ns`` or earlier."""
        return self._timer is not None and due_ns >= self._due_ns

    def set(self, due_ns: int, least_ns: int = 0) -> None:
        """Start a pass at ``due_ns``, but not before ``least_ns`` from now."""
        delay_ns_max = _TIMER_NS_MAX if self._log.clock_trusted() else self._untrusted_ns
        delay_ns = min(max(due_ns - self._clock.now_ns(), least_ns, 0), delay_ns_max)
        self._due_ns = due_ns
        self._timer = asyncio.get_running_loop().call_later(delay_ns / 1e9, self._timed_out)

    def cancel(self) -> None:
        """Stop the timer; a running pass continues."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def begin(self) -> None:
        """Start a pass unless one is running."""
        self.cancel()
        if self._pass is not None:
            return
        if not self._log.clock_trusted():
            self.set(0, self._untrusted_ns)
        else:
            self._pass = self._tasks.start(self._run(), self._what)

    def _timed_out(self) -> None:
        self.cancel()
        if self._due_ns > self._clock.now_ns():
            self.set(self._due_ns)
        else:
            self.begin()

    async def _run(self) -> None:
        try:
            due_ns, least_ns = await self._carry_out()
        finally:
            self._pass = None
        if due_ns != NEVER:
            self.set(due_ns, least_ns)
