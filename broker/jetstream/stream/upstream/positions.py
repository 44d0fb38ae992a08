"""The position of each source of a stream: the last copied message, and the identity of its origin.

Positions are written into the same block as the messages, with the stream's configuration (record 2), so a crash loses
both or neither.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

__all__ = ["Position", "Positions"]

_KEY = "source:"


class Position(NamedTuple):
    """A sequence in the origin that has this ``identity``; a later stream of the same name has another identity.

    The identity "" is unknown: it equals any identity.
    """

    seq: int = 0
    identity: str = ""

    def seq_in(self, identity: str) -> int:
        """Return the position in the origin with this identity; 0 if none of its messages are stored yet."""
        return self.seq if not self.identity or self.identity == identity else 0


class Positions:
    """The positions of one stream's sources by their names (``source_name``).

    The positions of sources that were removed from the configuration are kept: a source that is added again continues
    there.

    Args: ``stored``: the values that the stream's state keeps with the configuration.
    Attributes: ``moved``: names of the sources whose positions have moved since ``pop_changes``.
    """

    __slots__ = ("_by_name", "moved")

    def __init__(self, stored: Mapping[str, Any]) -> None:
        self._by_name: dict[str, Position] = {}
        # Most streams have no such values.
        if stored:
            self._by_name = {key.removeprefix(_KEY): Position(*value)
                             for key, value in stored.items() if key.startswith(_KEY)}
        self.moved: set[str] = set()

    def get(self, name: str) -> Position:
        """Return the source's position; sequence 0: it has stored nothing yet."""
        return self._by_name.get(name, Position())

    def move(self, name: str, position: Position) -> None:
        """Set the position of a source, whose messages up to it are in the stream."""
        self._by_name[name] = position
        self.moved.add(name)

    def pop_changes(self) -> dict[str, Any]:
        """Return the positions that have moved since the last call, for the record."""
        moved, self.moved = self.moved, set()
        return {_KEY + name: list(self._by_name[name]) for name in sorted(moved)}
