"""A bounded cache of decoded parts of blocks; the least recently used are evicted first.

Owns: the bound, in bytes, over everything put in. Does not own: what the parts are, or how they are loaded (reader).

An evicted value is still found for as long as anything references it. So an operation keeps what it loaded by holding a
reference, whatever the bound and whatever else is read meanwhile: two operations cannot evict each other's parts in turns.
Values referenced that way count against the bounds of the operation, not of the cache.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from contextlib import suppress
from typing import Any
from weakref import WeakValueDictionary

__all__ = ["Cache"]

_STAY = 2
"""The newest entries always stay, even if larger than the bound: a chunk just loaded is about to be used, with its head."""


class Cache:
    """Values by key, each with the number of bytes that it counts for.

    Attributes: ``bytes`` cached now; ``hits`` and ``misses`` since the start.
    """

    __slots__ = ("_entries", "_held", "bytes", "bytes_max", "hits", "misses")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0
        self.hits = 0
        self.misses = 0
        self._entries: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._held: WeakValueDictionary[Hashable, Any] = WeakValueDictionary()
        """Everything that was put in and is still referenced, here or elsewhere."""

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._entries or key in self._held

    def get(self, key: Hashable) -> Any:
        """The value, now the most recently used; None if it is not cached."""
        entry = self._entries.get(key)
        if entry is None:
            held = self._held.get(key)
            if held is None:
                self.misses += 1
            else:
                self.hits += 1
            return held
        self.hits += 1
        self._entries.move_to_end(key)
        return entry[0]

    def put(self, key: Hashable, value: Any, size: int) -> None:
        """Cache ``value``, which counts for ``size`` bytes; evict others until everything fits."""
        entries = self._entries
        before = entries.pop(key, None)
        if before is not None:
            self.bytes -= before[1]
        entries[key] = (value, size)
        with suppress(TypeError):  # bytes cannot be referenced weakly
            self._held[key] = value
        self.bytes += size
        while self.bytes > self.bytes_max and len(entries) > _STAY:
            _, (_, gone) = entries.popitem(last=False)
            self.bytes -= gone

    def clear(self) -> None:
        """Forget everything."""
        self._entries.clear()
        self._held.clear()
        self.bytes = 0
