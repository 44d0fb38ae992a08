"""jetblock with workers behind a nats-server, as a process, for tests."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Awaitable, Callable
from typing import Any

from tests.harness import BrokerProcess

__all__ = ["FrontedProcess", "until"]


class FrontedProcess(BrokerProcess):
    """``jetblock --workers 1``, or as many as ``workers`` says."""

    def __init__(self, *flags: str, workers: int = 1, **options: Any) -> None:
        super().__init__("--workers", str(workers), *flags, **options)
        self.workers = workers

    def child(self, name: str) -> int:
        """Return the newest process id of ``nats-server`` or ``worker 1``, as the log names it."""
        found = [match for line in self.stderr if (match := re.search(rf"Started {name} as process (\d+)", line))]
        return int(found[-1][1])

    async def kill_child(self, name: str) -> None:
        """Kill a child, and wait until the supervisor has started it again."""
        before = self.child(name)
        os.kill(before, signal.SIGKILL)
        await until(lambda: self._is_newer(name, before))

    async def _is_newer(self, name: str, before: int) -> bool:
        return self.child(name) != before


async def until(holds: Callable[[], Awaitable[bool]], seconds: float = 60.0) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(seconds):
        while not await holds():  # noqa: ASYNC110  # the condition is in other processes
            await asyncio.sleep(0.02)
