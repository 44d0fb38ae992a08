"""The event loop's lag is counted by its size."""

from __future__ import annotations

import asyncio
import time

from broker.runtime.loop_lag import LoopLag


async def test_late_samples_are_counted_by_how_late_they_were() -> None:
    """If the loop is blocked for 40 ms once, that sample counts beyond 1, 5, 10 and 20 ms; no bound has a higher count
    than the bound before."""
    lag = LoopLag()
    assert lag.snapshot()["over"] == dict.fromkeys(("1", "5", "10", "20", "50", "100"), 0)
    lag.start()
    asyncio.get_running_loop().call_soon(time.sleep, 0.04)
    await asyncio.sleep(0.06)
    lag.stop()
    seen = lag.snapshot()
    counts = list(seen["over"].values())
    assert counts == sorted(counts, reverse=True)
    assert seen["over"]["20"] >= 1
    assert seen["max"] > 20
