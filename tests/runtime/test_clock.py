"""A broker logs that its machine's clock is wrong, by how much, and when it is right again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from broker.base.clock import GuardedClock
from broker.config.settings import StorageSettings
from broker.runtime import store_host
from broker.runtime.store_host import StoreHost

HOUR = 3600 * 1_000_000_000


@pytest.mark.parametrize(("off", "said"), [(3 * HOUR, "is 3h0m0s ahead of what it was plus the time since then"),
                                           (-3 * HOUR, "is 3h0m0s behind what it was plus the time since then")])
async def test_a_wrong_clock_is_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                       caplog: pytest.LogCaptureFixture,
                                       off: int, said: str) -> None:
    """Each change is logged once."""
    caplog.set_level("INFO", "broker")
    monkeypatch.setattr(store_host, "_CLOCK_SECONDS", 0.01)
    boot_ns, off_ns = time.monotonic_ns(), 0
    clock = GuardedClock(lambda: HOUR * 10**6 + boot_ns + off_ns, lambda: boot_ns)
    host = StoreHost(StorageSettings(url=f"file://{tmp_path}"), "", clock, lambda: 1 << 20)
    try:
        await host.check()
        for times in (1, 2):
            off_ns = off
            await _until(lambda times=times: caplog.text.count(said) == times)
            off_ns = 0
            await _until(lambda times=times: caplog.text.count("clock is right again") == times)
    finally:
        await host.close()


async def _until(done: Callable[[], bool]) -> None:
    for _ in range(2000):
        if done():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("nothing was said")
