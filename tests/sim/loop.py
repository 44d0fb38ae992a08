"""An event loop in virtual time: if nothing is ready it moves the clock to the next timer, without waiting.

The loop has no selector and no threads: the same program with the same seed runs the same way. Work for a thread runs
in the loop, since virtual time does not wait for a real thread: minutes of it pass before a thread has run for a
millisecond.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from functools import partial
from heapq import heappop, heappush
from typing import Any

from tests.manual_clock import ManualClock

__all__ = ["SimLoop", "Stuck"]

TURNS_MAX = 100_000
"""Upper bound of turns at one virtual time. A program that takes more turns repeats itself for ever."""
ENDING_TURNS_MAX = 1000
"""Number of turns within which cancelled tasks end."""
THREAD_SECONDS = (0.0, 0.0, 0.0, 0.001, 0.03, 0.5, 4.0)
"""Virtual times for work in a thread to begin, and to return its result: a random one of these each."""
_RESOLUTION = 1e-9
"""Seconds: a timer that is due within this time is due."""


class Stuck(AssertionError):
    """Nothing is ready, no timer is set, and the program has not ended; or it spins, and time does not pass."""


class _Call:
    """A call, with the interface of ``asyncio.Handle`` and ``asyncio.TimerHandle``."""

    __slots__ = ("args", "at", "fn")

    def __init__(self, fn: Callable[..., object], args: tuple[Any, ...], at: float = 0.0) -> None:
        self.fn: Callable[..., object] | None = fn
        self.args = args
        self.at = at

    def cancel(self) -> None:
        self.fn, self.args = None, ()

    def cancelled(self) -> bool:
        return self.fn is None

    def when(self) -> float:
        return self.at


class _Task(asyncio.Task[Any]):
    """A task whose hash is its number. A set of tasks is walked in an order that depends on their hashes, which must
    not be their addresses in memory."""

    __slots__ = ("number",)
    number: int

    def __init__(self, work: Coroutine[Any, Any, Any], loop: SimLoop, **given: Any) -> None:
        self.number = loop.tasks_made = loop.tasks_made + 1
        super().__init__(work, loop=loop, **given)

    def __hash__(self) -> int:
        return self.number


class SimLoop(asyncio.BaseEventLoop):
    """``asyncio`` with ``clock`` for time.

    A turn is defined as in asyncio: the calls that were ready when it began. Timers of one instant run in the order in
    which they were set. Calls do not run in a context of their own, since the simulation has no context variables;
    this,
    and the light calls, make a simulation a quarter cheaper.

    Args: ``rng`` decides how long work in threads takes; None: it ends within a turn.
    """

    def __init__(self, clock: ManualClock, rng: random.Random | None = None) -> None:
        super().__init__()
        self.clock = clock
        self._rng = rng
        self.errors: list[dict[str, Any]] = []
        """Calls of the exception handler: a test fails if there is any."""
        self._calls: deque[_Call] = deque()
        self._timers: list[tuple[float, int, _Call]] = []
        self._timers_set = 0
        self._turns_at_one_time = 0
        self.tasks_made = 0
        self.set_task_factory(lambda loop, work, **given: _Task(work, self, **given))
        self.set_exception_handler(lambda loop, context: self._failed(context))

    def time(self) -> float:
        return self.clock.monotonic_ns() / 1e9

    def call_soon(self, callback: Callable[..., object], *args: Any,  # type: ignore[override]
                  context: contextvars.Context | None = None) -> _Call:
        call = _Call(callback, args)
        self._calls.append(call)
        return call

    def call_soon_threadsafe(self, callback: Callable[..., object], *args: Any,  # type: ignore[override]
                             context: contextvars.Context | None = None) -> _Call:
        if self._thread_id not in (None, threading.get_ident()):  # type: ignore[attr-defined]
            # The time at which a real thread calls is random, and so would be the further history.
            self.errors.append({"message": f"a thread calls {callback!r} in a simulation"})
        return self.call_soon(callback, *args)

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any,  # type: ignore[override]
                   context: contextvars.Context | None = None) -> _Call:
        return self.call_at(self.clock.monotonic_ns() / 1e9 + delay, callback, *args)

    def call_at(self, when: float, callback: Callable[..., object], *args: Any,  # type: ignore[override]
                context: contextvars.Context | None = None) -> _Call:
        call = _Call(callback, args, when)
        self._timers_set = number = self._timers_set + 1
        heappush(self._timers, (when, number, call))
        return call

    def run_in_executor(self, executor: Executor | None, func: Callable[..., Any],  # type: ignore[override]
                        *args: Any) -> asyncio.Future[Any]:
        """Call ``func`` in the loop. As in a pool of threads, a call whose future is cancelled before it begins is not
        made; one that has begun runs to its end."""
        future = self.create_future()

        def run() -> None:
            if not future.cancelled():
                done: Callable[[], None]
                try:
                    done = partial(future.set_result, func(*args))
                except Exception as error:
                    done = partial(future.set_exception, error)
                self._after_a_while(lambda: future.done() or done())

        self._after_a_while(run)
        return future

    def _after_a_while(self, callback: Callable[[], object]) -> None:
        if self._rng is not None and (seconds := self._rng.choice(THREAD_SECONDS)):
            self.call_later(seconds, callback)
        else:
            self.call_soon(callback)

    def _run_once(self) -> None:
        """Run one turn, for ``run_forever``."""
        calls, timers = self._calls, self._timers
        while timers and timers[0][2].fn is None:
            heappop(timers)
        if calls or self._stopping:  # type: ignore[attr-defined]
            self._turns_at_one_time += 1
            if self._turns_at_one_time > TURNS_MAX:
                raise Stuck(f"{TURNS_MAX} turns, and no time has passed")
        elif timers:
            wait = timers[0][0] - self.time()
            if wait > 0:
                self._turns_at_one_time = 0
                self.clock.advance(int(wait * 1e9) + 1)
        else:
            raise Stuck("nothing will ever happen again")
        if timers:
            now = self.time() + _RESOLUTION
            while timers and timers[0][0] < now:
                calls.append(heappop(timers)[2])
        for _ in range(len(calls)):
            call = calls.popleft()
            if (fn := call.fn) is not None:
                try:
                    fn(*call.args)
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:
                    self.call_exception_handler({"message": f"Exception in callback {fn!r}", "exception": error})

    def end(self) -> None:
        """Cancel all tasks until all have ended, and close.

        A remaining task would be collected during a later test, where it can neither await anything nor raise.
        """
        for _ in range(ENDING_TURNS_MAX):
            if not (tasks := asyncio.all_tasks(self)):
                break
            for task in tasks:
                task.cancel()
            self.run_until_complete(asyncio.sleep(0))
        self.close()

    def close(self) -> None:
        super().close()
        self._calls.clear()
        self._timers.clear()

    def _failed(self, context: dict[str, Any]) -> None:
        # A killed process's tasks are never finished, and this message says only that.
        if "was destroyed but it is pending" not in context["message"]:
            self.errors.append(context)

    def _asyncgen_finalizer_hook(self, agen: Any) -> None:
        # The garbage collector calls this at any time, only for generators of a killed process.
        pass

    def _asyncgen_firstiter_hook(self, agen: Any) -> None:
        # asyncio would keep all of them, to close them at its end.
        pass

    def _process_events(self, event_list: list[Any]) -> None:
        pass

    def _write_to_self(self) -> None:
        pass
