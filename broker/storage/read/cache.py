"""A bounded cache of decoded parts of blocks that keeps what is used again, whatever is read once: S3-FIFO, in bytes.

Owns: the bound, in bytes, over everything put in, and what is evicted. Does not own: what the parts are, or how they are
loaded (reader).

    put ──> small ──┬── used again ──> main ──┬── used again: to the end of main
             1/4    │                   3/4   └── else: out
                    └── else: out, its key to ghost ── put again ──> main

A full scan passes through the small queue; what was used again stays in the main one. Where little is used again, the main
queue is short and the small one has nearly all of the room: then it is a FIFO, as good as any for readers of the tail.

An evicted value is still found for as long as anything references it. So an operation keeps what it loaded by holding a
reference, whatever the bound and whatever else is read meanwhile: two operations cannot evict each other's parts in turns.
Values referenced that way count against the bounds of the operation, not of the cache.

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
"""The small queue's share of the room is one in so many. The paper has one in ten; here consumers that follow each other at a
distance share what the first one loaded only while it is in this queue."""

_APART_SHARE = 8
"""A use counts once as much as this share of the small queue was put since the last that counted. A reader that takes a
chunk in small pulls uses it often, but it is one use."""

_USES_MAX = 3
"""Uses that are remembered: so often an entry may pass through the main queue without another."""

_GHOSTS_MAX = 16_384
"""Keys that are remembered, beside their bound in the bytes of their values: 3 MiB."""

_NEWEST = 2
"""The newest values are held even if they do not fit: a chunk just loaded is about to be used, with its head."""


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
    """Values by key, each with the number of bytes that it counts for. One larger than the main queue's share is not cached.

    Attributes, since the start: ``hits``, ``misses``; ``ghost_hits``: values put again soon after they were evicted;
        ``promotions`` to the main queue; ``small_evictions`` and ``main_evictions``. Now: ``bytes``, ``main_bytes``.
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
        """Of all values ever put: the clock by which uses are apart."""
        self._entries: dict[Hashable, _Entry] = {}
        self._small: OrderedDict[Hashable, None] = OrderedDict()
        self._main: OrderedDict[Hashable, None] = OrderedDict()
        self._ghost: OrderedDict[Hashable, int] = OrderedDict()
        self._ghost_bytes = 0
        self._newest: deque[Any] = deque(maxlen=_NEWEST)
        self._held: WeakValueDictionary[Hashable, Any] = WeakValueDictionary()
        """Everything that was put in and is still referenced, here or elsewhere."""

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._entries or key in self._held

    def get(self, key: Hashable) -> Any:
        """The value, which is used by that; None if it is not cached."""
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
        """The value, which is not used by that; None if it is not cached."""
        entry = self._entries.get(key)
        return self._held.get(key) if entry is None else entry.value

    def renew(self, value: Any) -> None:
        """Hold ``value``, which was put before, as one of the newest."""
        self._newest.append(value)

    def put(self, key: Hashable, value: Any, size: int) -> None:
        """Cache ``value``, which counts for ``size`` bytes; evict others until everything fits."""
        with suppress(TypeError):  # bytes cannot be referenced weakly
            self._held[key] = value
        self._newest.append(value)
        entry = self._entries.get(key)
        if size > self.bytes_max - self._small_max:
            # It would empty the small queue and not fit in the main one.
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
        """For monitoring."""
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
        """The oldest of the small queue goes to the main one if it was used, else out."""
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
        """The oldest of the main queue goes to its end if it was used, with one use less, else out."""
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
