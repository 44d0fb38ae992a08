"""The heartbeat of an owner during its recovery: empty segments after its opening, before it serves.

On S3 the log is the lease, and a recovery may take longer than the lease (a long log, a slow store). A standby reads
only the log's next number. It would take a recovering owner that puts nothing for dead; the next owner would need as
long to recover, and so on for ever.

Owns the epoch's numbers from 1 on until ``renew_during`` returns. The log continues after the last of them. An empty
segment holds nothing for a replay, so it may be put before the state is known. An owner whose epoch was sealed finds
the seal here, as it would later in the log.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from broker.base.clock import Clock
from broker.storage.format.errors import CutOff, FormatError
from broker.storage.format.header import Position
from broker.storage.log.putter import Putter, Segment
from broker.storage.log.settings import LogSettings
from broker.storage.objectstore.base import ObjectStore

__all__ = ["RecoveryHeartbeat"]

T = TypeVar("T")


class RecoveryHeartbeat:
    """Renews the lease of a recovering owner by empty segments.

    Attributes: ``position`` of our last segment, the opening at first; ``proved_ns`` is when, by the outside clock, the
        put of that segment began: the lease counts from then.
    """

    def __init__(self, store: ObjectStore, key_of: Callable[[Position], str], epoch: int, nonce: bytes, clock: Clock,
                 rng: random.Random, settings: LogSettings, began_ns: int) -> None:
        """Args: ``epoch`` was just opened; ``began_ns`` is when the put of the opening began, by the outside clock."""
        self.position = Position(epoch, 0)
        self.proved_ns = began_ns
        self._clock = clock
        self._lease_ns = settings.lease_ns
        self._putter = Putter(store, key_of, nonce, clock, rng, settings, None, lambda: None, _fail)
        self._work_done = asyncio.Event()

    async def renew_during(self, work: Coroutine[Any, Any, T]) -> T:
        """Await ``work``, a recovery, and renew the lease until it is done.

        Raises: Fenced, as soon as a seal is found; Corrupt if another writer's object has our key; otherwise the error
            of ``work``. Before an error of damaged or missing objects is raised, one more put proves that the shard is
            still ours: another owner may have deleted these objects.
        """
        if self._lease_ns is None:
            return await work
        working = asyncio.ensure_future(work)
        beating = asyncio.create_task(self._beat(self._lease_ns // 3), name="heartbeat")
        try:
            await asyncio.wait((working, beating), return_when=asyncio.FIRST_COMPLETED)
            self._work_done.set()
            error = working.exception() if working.done() else None
            damaged = isinstance(error, FormatError | CutOff)
            if error is None or damaged:
                # Wait for a put in flight, however long the store takes: its number is used, or it finds a seal.
                await beating
            if damaged:
                await self._put()
            return await working
        finally:
            for task in (working, beating):
                task.cancel()
            await asyncio.gather(working, beating, return_exceptions=True)

    async def _beat(self, interval_ns: int) -> None:
        while not self._work_done.is_set():
            wait_ns = self.proved_ns + interval_ns - self._clock.outside_ns()
            if wait_ns <= 0:
                await self._put()
                continue
            try:
                async with asyncio.timeout(wait_ns / 1e9):
                    await self._work_done.wait()
            except TimeoutError:
                continue

    async def _put(self) -> None:
        segment = Segment(Position(self.position.epoch, self.position.number + 1), [], [], 0)
        segment.began_ns = self._clock.monotonic_ns()
        segment.stored_before = self.position.number
        self.proved_ns = await self._putter.put(segment)
        self.position = segment.position


def _fail(owner: object, number: int, error: Exception) -> None:
    """Raise ``error``: an empty segment has no block that could fail."""
    raise error
