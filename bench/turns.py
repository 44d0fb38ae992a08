"""The processor time that a loop takes in one turn, unaffected by other processes; and a broker on such a loop.

    python -m bench.turns FILE [flags of the broker]

The broker appends a JSON line of its longest turns to FILE on SIGRTMIN, and when it stops (``bench.many_consumers``
drives one). A turn is one pass over the ready callbacks. Wall time would count other processes' work, too.
"""

from __future__ import annotations

import asyncio
import gc
import heapq
import json
import logging
import signal
import sys
import time
from pathlib import Path
from typing import Any, Final, NamedTuple

__all__ = ["MeasuredLoop", "Turn", "measured_loop"]

_KEPT: Final = 5


class Turn(NamedTuple):
    """Milliseconds of processor time of a turn, of garbage collection in it, and of its longest callback."""

    ms: float
    gc_ms: float
    callback_ms: float
    callback: str


class MeasuredLoop(asyncio.SelectorEventLoop):
    """A loop that keeps the ``longest`` turns since the last ``reset``."""

    def __init__(self) -> None:
        super().__init__()
        self._gc_began_s = 0.0
        self._gc_s = 0.0
        self.reset()

    def reset(self) -> None:
        self.longest: list[Turn] = []
        self.turns = 0

    def collecting(self, phase: str, _: dict[str, int]) -> None:
        """Measure a garbage collection; registered in ``gc.callbacks``."""
        if phase == "start":
            self._gc_began_s = time.thread_time()
        else:
            self._gc_s += time.thread_time() - self._gc_began_s

    def ran(self, callback: Any, seconds: float) -> None:
        """Record that ``callback`` ran for this time, in this turn."""
        if seconds > self._callback_s:
            self._callback_s, self._callback = seconds, _name(callback) if seconds > 0.001 else ""

    def _run_once(self) -> None:
        self._callback_s, self._callback, self._gc_s = 0.0, "", 0.0
        began_s = time.thread_time()
        super()._run_once()  # type: ignore[misc]
        ms = 1e3 * (time.thread_time() - began_s)
        self.turns += 1
        if len(self.longest) < _KEPT or ms > self.longest[0].ms:
            turn = Turn(round(ms, 1), round(1e3 * self._gc_s, 1), round(1e3 * self._callback_s, 1), self._callback)
            (heapq.heappush if len(self.longest) < _KEPT else heapq.heapreplace)(self.longest, turn)


def _name(callback: Any) -> str:
    task = getattr(callback, "__self__", None)
    if isinstance(task, asyncio.Task):
        coro = task.get_coro()
        return f"task {task.get_name()} {_where(coro)}"
    return str(getattr(callback, "__qualname__", callback))


def _where(coro: Any) -> str:
    """Return the place of a coroutine: the functions that await each other, with lines."""
    found = []
    while (frame := getattr(coro, "cr_frame", None)) is not None:
        found.append(f"{frame.f_code.co_qualname}:{frame.f_lineno}")
        coro = coro.cr_await
    return " > ".join(found[-4:]) or getattr(coro, "__qualname__", "")


class _Measured(asyncio.Handle):
    """The handle of a callback that also measures it: only in the process that calls ``measured_loop``."""

    plain = asyncio.Handle._run

    def _run(self) -> None:
        loop = self._loop  # type: ignore[attr-defined]
        if type(loop) is not MeasuredLoop:
            return _Measured.plain(self)
        callback, began_s = self._callback, time.thread_time()  # type: ignore[attr-defined]
        _Measured.plain(self)
        loop.ran(callback, time.thread_time() - began_s)
        return None


def measured_loop() -> MeasuredLoop:
    """Make a loop; from then on callbacks and garbage collections of this process are measured."""
    asyncio.Handle._run = _Measured._run  # type: ignore[method-assign]
    loop = MeasuredLoop()
    gc.callbacks.append(loop.collecting)
    return loop


def main() -> None:
    from broker import cli
    from broker.runtime import process

    path, loops = Path(sys.argv[1]), []

    def factory() -> MeasuredLoop:
        loops.append(measured_loop())
        return loops[-1]

    def report(*_: object) -> None:
        if loops:
            with path.open("a") as lines:
                lines.write(json.dumps({"turns": loops[-1].turns, "longest": sorted(loops[-1].longest, reverse=True)})
                            + "\n")
            loops[-1].reset()

    process._loop_factory = lambda: factory  # type: ignore[assignment,return-value]
    signal.signal(signal.SIGRTMIN, report)
    gc.disable()
    # logging.shutdown ends the process's work, so the last report is written there.
    shutdown = logging.shutdown
    logging.shutdown = lambda *args: (report(), shutdown(*args))[1]
    sys.exit(cli.run(sys.argv[2:]))


if __name__ == "__main__":
    main()
