"""The newest small segments as they were put, so that compaction need not get them: on a bucket each GET costs money.

Owns: the bound on their bytes; beyond it the oldest are dropped, and a merge gets those from the store. A segment is
handed out once, since it is not needed here after its merge.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["RecentSegments"]


class RecentSegments:
    """Segments by key, up to ``bytes_max`` bytes in all; 0 keeps none."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes = 0
        self._bytes_max = bytes_max
        self._data: dict[str, Sequence[bytes]] = {}

    def __len__(self) -> int:
        return len(self._data)

    def add(self, key: str, data: Sequence[bytes]) -> None:
        """Keep a segment that has just been persisted. Only ``pop`` joins its buffers, so commits do not wait."""
        size = sum(map(len, data))
        if size > self._bytes_max:
            return
        self._data[key] = data
        self.bytes += size
        while self.bytes > self._bytes_max:
            self._drop(next(iter(self._data)))

    def pop(self, key: str) -> bytes | None:
        """Remove and return a whole segment; None if it is not here."""
        data = self._data.get(key)
        if data is None:
            return None
        self._drop(key)
        return data[0] if len(data) == 1 else b"".join(data)

    def size(self, key: str) -> int | None:
        """Return the size of a segment in bytes; None if it is not here."""
        data = self._data.get(key)
        return None if data is None else sum(map(len, data))

    def _drop(self, key: str) -> None:
        self.bytes -= sum(map(len, self._data.pop(key)))
