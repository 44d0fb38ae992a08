"""The heartbeats of other processes, as the standbys of this one see them.

All shards of one process share its heartbeats (``heartbeat``), so one task asks for them, however many shards wait. A
heartbeat counts from the answer that shows it: it may have begun while the question was on its way.

Heartbeats come each T/3. The next one is asked for T/48 before it is due, and each T/48 until it comes. So there are
two questions for each, and it is found within T/48:

    put      |                   |                   |
    asked     ·x                 ·x                  ·x
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from broker.base.clock import Clock
from broker.cluster.heartbeat import heartbeats_after
from broker.storage.format.errors import FormatError
from broker.storage.format.heartbeat import Heartbeat
from broker.storage.objectstore.base import NotFound, ObjectStore, StoreError
from broker.storage.paths import HeartbeatPaths
from broker.storage.put import StoreRetry

__all__ = ["Followed", "HeartbeatWatch"]


_OVERDUE: Final = 8
"""The questions without an answer after which a heartbeat is overdue: usually it is found by the fourth."""
_OFTEN_MAX: Final = 24
"""Questions in quick succession that find nothing; then the process may have ended."""


class Pauses:
    """Decides the pauses between two questions. ``lease_ns`` is T."""

    def __init__(self, lease_ns: int) -> None:
        self._lease_ns = lease_ns
        self._missed = 0
        """The questions since the last one that found a heartbeat."""

    @property
    def overdue(self) -> bool:
        """True once for each heartbeat that does not come when it is due."""
        return self._missed == _OVERDUE

    def after(self, *, found: bool) -> int:
        """Return the pause after a question, in nanoseconds."""
        lease_ns, missed = self._lease_ns, self._missed
        self._missed = 0 if found else missed + 1
        if not found:
            return lease_ns // 48 if missed < _OFTEN_MAX else lease_ns // 6
        # If the question before found nothing, this heartbeat is new; otherwise it may be older: ask sooner next time.
        return lease_ns // 3 - lease_ns // (48 if missed else 12)


class Followed:
    """The heartbeats of one process run, as long as a standby waits for one of its shards.

    Attributes: ``number`` of the newest heartbeat found. ``seen_at_ns`` is when it was found. ``last``: the run owns no
        shard any more.
    """

    def __init__(self, run_id: bytes) -> None:
        self.run_id = run_id
        self.number = 0
        self.seen_at_ns = 0
        self.last = False
        self._wakes: list[Callable[[], object]] = []
        self.task: asyncio.Task[None] | None = None

    def found(self, beat: Heartbeat, seen_at_ns: int) -> None:
        """Record a new heartbeat; wake the standbys after the last one."""
        self.number, self.seen_at_ns, self.last = beat.number, seen_at_ns, beat.last
        if beat.last:
            self.wake_all()

    def wake_all(self) -> None:
        """Wake the standbys: the process may have ended."""
        for wake in self._wakes:
            wake()

    def wait(self, wake: Callable[[], object]) -> None:
        """Call ``wake`` after the last heartbeat, and when one is overdue."""
        self._wakes.append(wake)

    def end(self, wake: Callable[[], object]) -> int:
        """Undo one ``wait``. Returns: the number of standbys that still wait."""
        self._wakes.remove(wake)
        return len(self._wakes)


class HeartbeatWatch:
    """Follows the heartbeats of other process runs while standbys wait for their shards."""

    def __init__(self, store: ObjectStore, clock: Clock, rng: random.Random, lease_ns: int) -> None:
        self._store = store
        self._clock = clock
        self._retry = StoreRetry(store, clock, rng)
        self._lease_ns = lease_ns
        self._followed: dict[bytes, Followed] = {}

    async def follow(self, run_id: bytes, wake: Callable[[], object]) -> Followed | None:
        """Follow a run until ``leave``; return None if it has no heartbeats. ``wake`` is called after the last one.

        Raises: StoreError, FormatError.
        """
        if run_id not in self._followed:
            followed = Followed(run_id)
            if await self.has_newer(followed) and run_id not in self._followed:
                self._followed[run_id] = followed
                followed.task = asyncio.get_running_loop().create_task(self._read(followed), name="read heartbeats")
        found = self._followed.get(run_id)
        if found is not None:
            found.wait(wake)
        return found

    async def has_newer(self, followed: Followed) -> bool:
        """Return whether the run has a heartbeat beyond those found, and record it. The owner deletes old ones, so the
        next one may be gone. Raises: as ``follow``.
        """
        numbers = await heartbeats_after(self._store, followed.run_id, followed.number, self._retry)
        if not numbers:
            return False
        number = numbers[-1]
        try:
            key = HeartbeatPaths(followed.run_id).heartbeat(number)
            beat = Heartbeat.decode(await self._retry.call(lambda: self._store.get(key), f"get {key}"), number)
        except NotFound:
            return True  # deleted since: there are newer ones
        if number > followed.number:
            followed.found(beat, self._clock.monotonic_ns())
        return True

    async def leave(self, followed: Followed, wake: Callable[[], object]) -> None:
        """End what ``follow`` began."""
        if not followed.end(wake) and followed.task is not None:
            self._followed.pop(followed.run_id, None)
            followed.task.cancel()
            await asyncio.gather(followed.task, return_exceptions=True)

    async def _read(self, followed: Followed) -> None:
        paths, pauses = HeartbeatPaths(followed.run_id), Pauses(self._lease_ns)
        while True:
            found, number = False, followed.number + 1
            try:
                with suppress(NotFound):
                    beat = Heartbeat.decode(await self._store.get(paths.heartbeat(number)), number)
                    found = True
                    if number > followed.number:
                        followed.found(beat, self._clock.monotonic_ns())
            except (StoreError, FormatError):
                # A store that does not answer us may not have answered the owner either: the lease starts again.
                followed.seen_at_ns = self._clock.monotonic_ns()
            pause_ns = pauses.after(found=found)
            if pauses.overdue:
                followed.wake_all()
            await asyncio.sleep(pause_ns / 1e9)
