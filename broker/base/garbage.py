"""Garbage collection in small steps: a full collection of a large heap would stop the loop for a second.

Python's collector visits every container object again whenever the heap has grown by a quarter: 0.1 s for a million. A
broker has millions of objects that stay: entries of blocks, subjects, cached messages. So the objects that have
survived some young collections are examined once and then excluded from later collections (``gc.freeze``), a few ten
thousand at a time.

An excluded object that later dies in a cycle would never be found, so objects must not die in cycles. A connection
breaks its cycles when it closes (``tests/server/test_memory_of_connections.py``), because strangers decide how many
connections come. Streams and consumers, whose parts refer to each other, are reported when they close (``discarded``),
and so are connections. If too many discarded objects are in memory, all objects are examined, which takes long: if
possible, while the process has little to do.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import time
import weakref
from typing import Final

__all__ = ["Collector", "discarded", "keep_present"]

_log = logging.getLogger(__name__)

_EVERY_S: Final = 0.02
_YOUNG: Final = (700, 10)
"""The thresholds of the young and the middle generation: Python's own before 3.13, and a third of those since."""
_YOUNG_COLLECTIONS: Final = 5
"""Collections of the middle generation before its survivors are frozen. Each leaves some 7000 objects at most."""
_NEVER: Final = 1 << 30
_IDLE_EVERY: Final = 500
"""Steps between two checks of the discarded objects: 10 s."""
_IDLE_SHARE: Final = 0.05
"""Share of a core below which the process has little to do."""
_DISCARDED_IDLE: Final = 500
"""Discarded objects that are worth a full collection while the process is idle; 10 KB each."""
_DISCARDED_MAX: Final = 10_000
"""Discarded objects that are worth a full collection at any time."""

_discarded: set[weakref.ref[object]] = set()


def discarded(thing: object) -> None:
    """Report that ``thing`` is not needed any more, but may be part of a cycle."""
    _discarded.add(weakref.ref(thing, _discarded.discard))


def keep_present() -> None:
    """Freeze all present objects, unexamined, if a ``Collector`` runs: most of them will stay."""
    if gc.get_freeze_count():
        gc.freeze()


class Collector:
    """Collects the process's garbage until ``stop``, which returns to Python's own collector.

    Attributes: ``steps`` counts collections of survivors, ``full`` collections of all objects.
    """

    def __init__(self, *, every_s: float = _EVERY_S, idle_every: int = _IDLE_EVERY) -> None:
        self.steps = self.full = 0
        self._every_s, self._idle_every = every_s, idle_every
        self._timer: asyncio.TimerHandle | None = None
        self._thresholds = gc.get_threshold()
        self._until_check = self._idle_every
        self._checked_s = 0.0
        self._worked_s = 0.0

    def start(self) -> None:
        """Freeze all present objects, unexamined, and collect in steps from now on. A second call freezes the objects
        made since the first."""
        if self._timer is not None:
            gc.freeze()
            return
        self._loop = asyncio.get_running_loop()
        self._thresholds = gc.get_threshold()
        gc.set_threshold(*_YOUNG, _NEVER)
        gc.enable()
        gc.freeze()
        self._checked_s, self._worked_s = time.monotonic(), time.process_time()
        self._timer = self._loop.call_later(self._every_s, self._step)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            gc.set_threshold(*self._thresholds)
            gc.unfreeze()

    def _step(self) -> None:
        self._timer = self._loop.call_later(self._every_s, self._step)
        if gc.get_count()[2] >= _YOUNG_COLLECTIONS:
            gc.collect()
            gc.freeze()
            self.steps += 1
        self._until_check -= 1
        if self._until_check <= 0:
            self._until_check = self._idle_every
            self._check_discarded()

    def _check_discarded(self) -> None:
        now_s, worked_s = time.monotonic(), time.process_time()
        idle = worked_s - self._worked_s < _IDLE_SHARE * (now_s - self._checked_s)
        self._checked_s, self._worked_s = now_s, worked_s
        if len(_discarded) >= (_DISCARDED_IDLE if idle else _DISCARDED_MAX):
            self._collect_all(now_s)

    def _collect_all(self, began_s: float) -> None:
        before = len(_discarded)
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        self.full += 1
        _log.debug("garbage collection: %d of %d discarded connections, streams and consumers freed in %.3f s",
                   before - len(_discarded), before, time.monotonic() - began_s)
