"""The lag of the event loop: the delay that every client sees besides its own work.

A timer is due every ``EVERY_S``; the time by which it is late is one sample.
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
"""The number of samples in a minute."""
_BOUNDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)
_OVER_MS = (1, 5, 10, 20, 50, 100)
"""The bounds, in milliseconds, that ``snapshot`` counts samples beyond."""


class LoopLag:
    """Samples of the lag: ``snapshot`` has p50 and p99 of the last minute, and ``max`` and ``over`` since the start."""

    def __init__(self) -> None:
        self._samples = array("f", bytes(4 * SAMPLES))
        self._count = 0
        self._max_ms = 0.0
        self._due = 0.0
        self.histogram = Histogram(_BOUNDS)
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._schedule()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def snapshot(self) -> dict[str, Any]:
        """Return p50, p99 and max in milliseconds; ``over`` counts the samples above each number of milliseconds."""
        seen = sorted(self._samples[:min(self._count, SAMPLES)]) or [0.0]
        counts = self.histogram.counts
        over = {str(ms): sum(counts[_BOUNDS.index(ms / 1000) + 1:]) for ms in _OVER_MS}
        return {"p50": round(seen[len(seen) // 2], 3), "p99": round(seen[len(seen) * 99 // 100], 3),
                "max": round(self._max_ms, 3), "over": over}

    def _schedule(self) -> None:
        # The loop's own clock is too coarse: uvloop's counts whole milliseconds.
        self._due = time.perf_counter() + EVERY_S
        self._timer = self._loop.call_later(EVERY_S, self._sample)

    def _sample(self) -> None:
        late_ms = max(0.0, (time.perf_counter() - self._due) * 1e3)
        self._samples[self._count % SAMPLES] = late_ms
        self._count += 1
        self._max_ms = max(self._max_ms, late_ms)
        self.histogram.observe(late_ms / 1e3)
        self._schedule()
