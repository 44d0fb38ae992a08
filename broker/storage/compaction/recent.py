"""The newest small segments as they were put, so that compaction need not get them: on a bucket each GET is paid for.

Owns: the bound on their bytes; beyond it the oldest are dropped, and are got from the store when they are merged. A segment is
handed out once: what is merged has no use here any more.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["RecentSegments"]


class RecentSegments:
    """Segments by key, up to ``bytes_max`` bytes of them; 0: none are kept."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes = 0
        self._bytes_max = bytes_max
        self._data: dict[str, Sequence[bytes]] = {}

    def __len__(self) -> int:
        return len(self._data)

    def add(self, key: str, data: Sequence[bytes]) -> None:
        """Keep a segment that has just been persisted. Its buffers are joined when they are taken: commits do not wait for that."""
        size = sum(map(len, data))
        if size > self._bytes_max:
            return
        self._data[key] = data
        self.bytes += size
        while self.bytes > self._bytes_max:
            self._drop(next(iter(self._data)))

    def take(self, key: str) -> bytes | None:
        """The whole segment, which is not kept any longer; None if it is not here."""
        data = self._data.get(key)
        if data is None:
            return None
        self._drop(key)
        return data[0] if len(data) == 1 else b"".join(data)

    def size(self, key: str) -> int | None:
        """Bytes of a segment; None if it is not here."""
        data = self._data.get(key)
        return None if data is None else sum(map(len, data))

    def _drop(self, key: str) -> None:
        self.bytes -= sum(map(len, self._data.pop(key)))
