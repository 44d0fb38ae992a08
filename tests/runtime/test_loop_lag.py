"""The figures about the event loop's lag."""

from __future__ import annotations

import asyncio
import time

from broker.runtime.loop_lag import LoopLag


async def test_late_samples_are_counted_by_how_late_they_were() -> None:
    """The loop is held for 40 ms once: that sample is over 1, 5, 10 and 20 ms, and the counts fall from each bound to
    the next."""
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
