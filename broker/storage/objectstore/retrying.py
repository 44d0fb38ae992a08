"""A store that retries Transient errors, with growing pauses, up to a bound in time.

    try ── Transient ──> pause ──> try ── Transient ──> pause … past give_up_ns ──> the last Transient
     └── anything else: done, at once

The n-th pause is drawn from the upper half of ``pause_ns * 2**n``, at most ``pause_ns_max``: brokers that were refused
at the same time do not retry at the same time.

A put is retried like the rest, with the same bytes. A later try may find the object of an earlier one, so a put that
succeeded can raise PreconditionFailed; the caller reads the object's header to find that out, as after any refusal.
``put_sync`` is tried once: after a Transient the caller continues with ``put``, on the loop, where waiting costs
nothing.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from broker.base.clock import Clock
from broker.storage.objectstore.base import Buffers, Listing, ObjectStore, Transient
from broker.storage.objectstore.wrapper import Wrapper

__all__ = ["RetryingStore"]

_T = TypeVar("_T")


class RetryingStore(Wrapper):
    """Retries every call to ``inner``; see the module's docstring."""

    def __init__(self, inner: ObjectStore, *, clock: Clock, rng: random.Random, give_up_ns: int = 30_000_000_000,
                 pause_ns: int = 50_000_000, pause_ns_max: int = 2_000_000_000,
                 on_trouble: Callable[[], object] = lambda: None,
                 sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        """Wrap ``inner``.

        Args: ``give_up_ns`` counts from a call's beginning; no pause starts that would end later. ``on_trouble`` is
            called after each failed try.
        """
        super().__init__(inner)
        self._clock = clock
        self._rng = rng
        self._give_up_ns = give_up_ns
        self._pause_ns = pause_ns
        self._pause_ns_max = pause_ns_max
        self._sleep = sleep
        self.retries = 0
        """The number of retries so far, of all calls together."""
        self._on_trouble = on_trouble

    async def put(self, key: str, data: Buffers) -> None:
        await self._tried(lambda: self.inner.put(key, data))

    async def replace(self, key: str, data: Buffers) -> None:
        await self._tried(lambda: self.inner.replace(key, data))

    async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        return await self._tried(lambda: self.inner.get(key, start, end))

    async def list(self, prefix: str, after: str = "", limit: int | None = None) -> Listing:
        return await self._tried(lambda: self.inner.list(prefix, after, limit))

    async def delete(self, key: str) -> None:
        await self._tried(lambda: self.inner.delete(key))

    async def close(self) -> None:
        """Close ``inner``, and retry no call that is in progress."""
        self._give_up_ns = -1
        await self.inner.close()

    async def _tried(self, call: Callable[[], Awaitable[_T]]) -> _T:
        began_ns = self._clock.monotonic_ns()
        ceiling_ns = self._pause_ns
        while True:
            try:
                return await call()
            except Transient:
                self._on_trouble()
                pause_ns = int(ceiling_ns * self._rng.uniform(0.5, 1.0))
                if self._clock.monotonic_ns() + pause_ns - began_ns > self._give_up_ns:
                    raise
                await self._sleep(pause_ns / 1e9)
                ceiling_ns = min(2 * ceiling_ns, self._pause_ns_max)
                self.retries += 1
