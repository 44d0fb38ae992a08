"""How late the event loop is: the delay that every client sees on top of its own work.

A timer is due every ``EVERY_S``; its delay is one sample.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from typing import Any

from broker.base.histogram import Histogram

__all__ = ["LoopLag"]

EVERY_S = 0.01
SAMPLES = 6000
"""A minute of them."""
_BOUNDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)
_OVER_MS = (1, 5, 10, 20, 50, 100)
"""Some of the bounds."""


class LoopLag:
    """Samples while it runs; ``snapshot`` is over the last minute, ``max`` and ``over`` since the start."""

    def __init__(self) -> None:
        self._samples = array("f", bytes(4 * SAMPLES))
        self._count = 0
        self._max_ms = 0.0
        self._due = 0.0
        self.histogram = Histogram(_BOUNDS)
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._again()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def snapshot(self) -> dict[str, Any]:
        """Milliseconds: p50, p99 and max; over: how many samples were later than so many milliseconds."""
        seen = sorted(self._samples[:min(self._count, SAMPLES)]) or [0.0]
        counts = self.histogram.counts
        over = {str(ms): sum(counts[_BOUNDS.index(ms / 1000) + 1:]) for ms in _OVER_MS}
        return {"p50": round(seen[len(seen) // 2], 3), "p99": round(seen[len(seen) * 99 // 100], 3),
                "max": round(self._max_ms, 3), "over": over}

    def _again(self) -> None:
        # Not the loop's own clock: uvloop's counts whole milliseconds.
        self._due = time.perf_counter() + EVERY_S
        self._timer = self._loop.call_later(EVERY_S, self._sample)

    def _sample(self) -> None:
        late_ms = max(0.0, (time.perf_counter() - self._due) * 1e3)
        self._samples[self._count % SAMPLES] = late_ms
        self._count += 1
        self._max_ms = max(self._max_ms, late_ms)
        self.histogram.observe(late_ms / 1e3)
        self._again()
