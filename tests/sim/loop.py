"""An event loop in virtual time: if nothing is ready it moves the clock to the next timer, without waiting.

No selector, no threads, no randomness of its own: the same program with the same seed runs the same way.
"""

from __future__ import annotations

import asyncio
from typing import Any

from broker.clock import ManualClock

__all__ = ["SimLoop", "Stuck"]

TURNS_MAX = 100_000
"""Turns of the loop that the clock may stand still for: whoever takes more asks the same question for ever."""
ENDING_TURNS_MAX = 1000
"""Turns of the loop within which cancelled tasks end."""


class Stuck(AssertionError):
    """Nothing is ready, no timer is set, and the program has not ended; or it spins, and time does not pass."""


class _Selector:
    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self._turns = 0

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:
            raise Stuck("nothing will ever happen again")
        if timeout <= 0:
            self._turns += 1
            if self._turns > TURNS_MAX:
                raise Stuck(f"{TURNS_MAX} turns, and no time has passed")
        else:
            self._turns = 0
            self._clock.advance(int(timeout * 1e9) + 1)
        return []


class SimLoop(asyncio.BaseEventLoop):
    """``asyncio`` with ``clock`` for time."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self.clock = clock
        self.errors: list[dict[str, Any]] = []
        """What the exception handler was told: a test fails when there is any."""
        self._clock_resolution = 1e-9
        self._selector = _Selector(clock)
        self.set_exception_handler(lambda loop, context: self._failed(context))

    def time(self) -> float:
        return self.clock.monotonic_ns() / 1e9

    def end(self) -> None:
        """Cancel whatever runs until all of it has ended, and close.

        A task that is left goes with the garbage of a later test, where it can neither await anything nor raise.
        """
        for _ in range(ENDING_TURNS_MAX):
            if not (tasks := asyncio.all_tasks(self)):
                break
            for task in tasks:
                task.cancel()
            self.run_until_complete(asyncio.sleep(0))
        self.close()

    def _failed(self, context: dict[str, Any]) -> None:
        # What a killed process was doing is never finished, and that is all this message says.
        if "was destroyed but it is pending" not in context["message"]:
            self.errors.append(context)

    def _asyncgen_finalizer_hook(self, agen: Any) -> None:
        # Called by the garbage collector, whenever that may be: only what a killed process was in the middle of gets here.
        pass

    def _process_events(self, event_list: list[Any]) -> None:
        pass

    def _write_to_self(self) -> None:
        pass
