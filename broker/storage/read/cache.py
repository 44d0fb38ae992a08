"""A bounded cache of decoded parts of blocks. It keeps parts that are used repeatedly, even during full scans: S3-FIFO.

Owns: the bound in bytes, and the choice of the values to evict. Does not own: the meaning of the values, and loading
them (reader).

    put ──> small ──┬── used again ──> main ──┬── used again: to the end of main
             1/4    │                   3/4   └── else: evicted
                    └── else: evicted, its key to ghost ── put again ──> main

A full scan passes through the small queue, while values that were used again stay in the main queue. If few values are
used again, the main queue is short and the small one has nearly all of the room. The cache is a FIFO then, which is
good enough for readers of the tail.

An evicted value can be found as long as anything references it. So an operation keeps the parts it loaded by holding
references, whatever else is read meanwhile: two operations cannot evict each other's parts in turns. Values that are
only referenced elsewhere count against the bounds of that operation, not of the cache.

Source: Yang et al., "FIFO queues are all you need for cache eviction" (SOSP 2023).
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable
from contextlib import suppress
from typing import Any
from weakref import WeakValueDictionary

__all__ = ["Cache"]

_SMALL_SHARE = 4
"""The small queue's bound is the cache's bound divided by this.

The paper divides by ten. Here consumers that follow each other at a distance share a loaded part only while it is in
this queue.
"""

_APART_SHARE = 8
"""A use counts only if bytes of the small queue's bound divided by this were put since the last use that counted.

A client that reads a chunk in many small pulls uses it often, but that is one use.
"""

_USES_MAX = 3
"""The most uses that are remembered, so the number of passes through the main queue without another use."""

_GHOSTS_MAX = 16_384
"""The most keys of evicted values that are remembered (3 MiB), besides the bound in the bytes of their values."""

_NEWEST = 2
"""The number of newest values that are held even if they do not fit: a new chunk and its head are used at once."""


class _Entry:
    __slots__ = ("at", "main", "size", "uses", "value")

    def __init__(self, value: Any, size: int, at: int) -> None:
        self.value = value
        self.size = size
        self.at = at
        """``Cache._put_bytes`` at the last use that counted."""
        self.uses = 0
        self.main = False


class Cache:
    """Values by key, each with its size in bytes. A value larger than the main queue's share is not cached.

    Attributes that count since the start: ``hits``, ``misses``; ``ghost_hits``: values put again soon after they were
        evicted; ``promotions`` to the main queue; ``small_evictions`` and ``main_evictions``.
    Attributes that give the present state: ``bytes``, ``main_bytes``.
    """

    __slots__ = ("_apart", "_entries", "_ghost", "_ghost_bytes", "_held", "_main", "_newest", "_put_bytes", "_small",
                 "_small_max", "bytes", "bytes_max", "ghost_hits", "hits", "main_bytes", "main_evictions", "misses",
                 "promotions", "small_evictions")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes = self.main_bytes = 0
        self.hits = self.misses = self.ghost_hits = 0
        self.promotions = self.small_evictions = self.main_evictions = 0
        self._small_max = bytes_max // _SMALL_SHARE
        self._apart = self._small_max // _APART_SHARE
        self._put_bytes = 0
        """The bytes of all values ever put: the clock that separates uses."""
        self._entries: dict[Hashable, _Entry] = {}
        self._small: OrderedDict[Hashable, None] = OrderedDict()
        self._main: OrderedDict[Hashable, None] = OrderedDict()
        self._ghost: OrderedDict[Hashable, int] = OrderedDict()
        self._ghost_bytes = 0
        self._newest: deque[Any] = deque(maxlen=_NEWEST)
        self._held: WeakValueDictionary[Hashable, Any] = WeakValueDictionary()
        """Every value that was put and is still referenced, here or elsewhere."""

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._entries or key in self._held

    def get(self, key: Hashable) -> Any:
        """Return a value and count this as a use; None if it is not cached."""
        entry = self._entries.get(key)
        if entry is None:
            held = self._held.get(key)
            if held is None:
                self.misses += 1
            else:
                self.hits += 1
            return held
        self.hits += 1
        if self._put_bytes - entry.at >= self._apart:
            entry.at = self._put_bytes
            if entry.uses < _USES_MAX:
                entry.uses += 1
        return entry.value

    def peek(self, key: Hashable) -> Any:
        """Return a value without counting a use; None if it is not cached."""
        entry = self._entries.get(key)
        return self._held.get(key) if entry is None else entry.value

    def renew(self, value: Any) -> None:
        """Hold ``value``, which was put before, as one of the newest values."""
        self._newest.append(value)

    def put(self, key: Hashable, value: Any, size: int) -> None:
        """Cache ``value``, which counts for ``size`` bytes; evict other values until everything fits."""
        with suppress(TypeError):  # bytes cannot be referenced weakly
            self._held[key] = value
        self._newest.append(value)
        entry = self._entries.get(key)
        if size > self.bytes_max - self._small_max:
            # The value would empty the small queue and not fit in the main one.
            if entry is not None:
                self._drop(key, entry)
            return
        if entry is not None:
            self.bytes += size - entry.size
            if entry.main:
                self.main_bytes += size - entry.size
            entry.value, entry.size = value, size
        else:
            self._put_bytes += size
            entry = self._entries[key] = _Entry(value, size, self._put_bytes)
            self.bytes += size
            ghost = self._ghost.pop(key, None)
            if ghost is None:
                self._small[key] = None
            else:
                self._ghost_bytes -= ghost
                self.ghost_hits += 1
                self._promote(key, entry)
        while self.bytes > self.bytes_max:
            if not self._main or self.bytes - self.main_bytes > self._small_max:
                self._evict_small()
            else:
                self._evict_main()

    def figures(self) -> dict[str, Any]:
        """Return the counts for monitoring."""
        return {"bytes": self.bytes, "main_bytes": self.main_bytes, "hits": self.hits, "misses": self.misses,
                "ghost_hits": self.ghost_hits, "promotions": self.promotions, "small_evictions": self.small_evictions,
                "main_evictions": self.main_evictions}

    def clear(self) -> None:
        """Forget everything."""
        self._entries.clear()
        self._small.clear()
        self._main.clear()
        self._ghost.clear()
        self._newest.clear()
        self._held.clear()
        self.bytes = self.main_bytes = self._ghost_bytes = 0

    def _drop(self, key: Hashable, entry: _Entry) -> None:
        del self._entries[key]
        self.bytes -= entry.size
        if entry.main:
            del self._main[key]
            self.main_bytes -= entry.size
        else:
            del self._small[key]

    def _promote(self, key: Hashable, entry: _Entry) -> None:
        entry.main = True
        self._main[key] = None
        self.main_bytes += entry.size
        self.promotions += 1

    def _evict_small(self) -> None:
        """Move the oldest value of the small queue to the main queue if it was used, else evict it."""
        key, _ = self._small.popitem(last=False)
        entry = self._entries[key]
        if entry.uses:
            entry.uses = 0
            self._promote(key, entry)
            return
        del self._entries[key]
        self.bytes -= entry.size
        self.small_evictions += 1
        self._ghost[key] = entry.size
        self._ghost_bytes += entry.size
        while self._ghost_bytes > self.bytes_max - self._small_max or len(self._ghost) > _GHOSTS_MAX:
            _, size = self._ghost.popitem(last=False)
            self._ghost_bytes -= size

    def _evict_main(self) -> None:
        """Move the oldest value of the main queue to its end if it was used, with one use less, else evict it."""
        key, _ = self._main.popitem(last=False)
        entry = self._entries[key]
        if entry.uses:
            entry.uses -= 1
            self._main[key] = None
            return
        del self._entries[key]
        self.bytes -= entry.size
        self.main_bytes -= entry.size
        self.main_evictions += 1
