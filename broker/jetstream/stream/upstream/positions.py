"""The position of each source of a stream: the last message copied, and of which origin.

Written into the same block as the messages, beside the stream's configuration (record 2), so a crash loses both or
neither.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

__all__ = ["Position", "Positions"]

_KEY = "source:"


class Position(NamedTuple):
    """``seq`` in the origin with this ``identity``; a later stream of the same name has another identity. "": it is not known,
    and any is taken to be the one."""

    seq: int = 0
    identity: str = ""

    def seq_in(self, identity: str) -> int:
        """The position in the origin with this identity; 0: none of its messages are stored yet."""
        return self.seq if not self.identity or self.identity == identity else 0


class Positions:
    """The positions of one stream's sources, by their names (``source_name``). Those of sources removed from the
    configuration are kept: a source that is added back continues where it was.

    Args: ``stored`` is what the stream's state keeps beside the configuration.
    Attributes: ``moved``: names of those that have moved since ``pop_changes``.
    """

    __slots__ = ("_by_name", "moved")

    def __init__(self, stored: Mapping[str, Any]) -> None:
        self._by_name: dict[str, Position] = {}
        # Most streams store nothing there.
        if stored:
            self._by_name = {key.removeprefix(_KEY): Position(*value) for key, value in stored.items() if key.startswith(_KEY)}
        self.moved: set[str] = set()

    def of(self, name: str) -> Position:
        """The source's position; sequence 0: it has stored nothing yet."""
        return self._by_name.get(name, Position())

    def move(self, name: str, position: Position) -> None:
        """``position`` is in the stream."""
        self._by_name[name] = position
        self.moved.add(name)

    def pop_changes(self) -> dict[str, Any]:
        """The positions that have moved since the last call, for the record."""
        moved, self.moved = self.moved, set()
        return {_KEY + name: list(self._by_name[name]) for name in sorted(moved)}
