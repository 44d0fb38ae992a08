"""Containers of message ids: several of bounded size if there are very many ids.

A dictionary or set that grows copies all its entries, which holds the event loop for 40 ms and more with a million ids.
So a full one is left as it is, and the next ids go into another one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

__all__ = ["IdMap", "IdSet"]

_MAP_IDS_MAX: Final = 300_000
"""Maximum size of one dictionary: its next growth would take 20 ms."""

_SET_IDS_MAX: Final = 150_000


class IdMap:
    """A map from ids to sequences; usually one dictionary. Each call adds some thousands of ids at most."""

    __slots__ = ("_parts",)

    def __init__(self) -> None:
        self._parts: list[dict[bytes, int]] = [{}]
        """New ids go into the last part. If an id is in several parts, the last one has its present sequence."""

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def get(self, msg_id: bytes) -> int:
        """Return the sequence of an id, or 0."""
        for part in reversed(self._parts):
            if seq := part.get(msg_id):
                return seq
        return 0

    def has_none_of(self, ids: Iterable[bytes]) -> bool:
        """Return whether none of ``ids`` is in the map."""
        parts = self._parts
        return all(part.keys().isdisjoint(ids) for part in parts) if len(parts) > 1 else parts[0].keys().isdisjoint(ids)

    def update(self, ids: Mapping[bytes, int] | Iterable[tuple[bytes, int]]) -> None:
        """Add ids, or change the sequences of ids that are in the map."""
        if len(self._parts[-1]) >= _MAP_IDS_MAX:
            self._parts.append({})
        self._parts[-1].update(ids)

    def put(self, msg_id: bytes, seq: int) -> None:
        """Set the sequence of one id, which may be in any part."""
        for part in self._parts:
            if msg_id in part:
                part[msg_id] = seq
                return
        self.update(((msg_id, seq),))

    def forget(self, msg_id: bytes, last_seq: int) -> None:
        """Remove an id, unless its sequence is above ``last_seq``."""
        for part in self._parts:
            if part.get(msg_id, _NEVER) <= last_seq:
                del part[msg_id]
                return

    def shrink(self) -> None:
        """Release empty parts: a dictionary itself never shrinks while it is in use."""
        if len(self._parts) > 1:
            self._parts = [part for part in self._parts if part] or [{}]
        elif not self._parts[0]:
            self._parts = [{}]


class IdSet:
    """A set of ids that are only ever added."""

    __slots__ = ("_parts",)

    def __init__(self) -> None:
        self._parts: list[set[bytes]] = [set()]

    def __contains__(self, msg_id: bytes) -> bool:
        return any(msg_id in part for part in self._parts)

    def add_new(self, ids: Iterable[bytes]) -> list[int]:
        """Add some thousands of ids at most.

        Returns: the places in ``ids`` of those that were in the set before, or occur earlier in ``ids``.
        """
        parts = self._parts
        if len(parts[-1]) >= _SET_IDS_MAX:
            parts.append(set())
        last, full = parts[-1], parts[:-1]
        again = []
        for at, msg_id in enumerate(ids):
            if msg_id in last or (full and any(msg_id in part for part in full)):
                again.append(at)
            else:
                last.add(msg_id)
        return again


_NEVER: Final = 1 << 64
