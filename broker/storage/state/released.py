"""What a record releases for deletion: segments, pages and roots."""

from __future__ import annotations

from collections.abc import Iterable

from broker.storage.format.header import Position
from broker.storage.format.records.release import Release

__all__ = ["Released"]


class Released:
    """What one record releases: it may be deleted once the record is persisted, by that record's writer or a later one."""

    __slots__ = ("pages", "position", "roots", "segments")

    def __init__(self, position: Position, segments: Iterable[Position] = (), pages: Iterable[Position] = (),
                 roots: Iterable[Position] = ()) -> None:
        self.position = position
        """Of the segment that holds the record."""
        self.segments = list(segments)
        self.pages = list(pages)
        self.roots = list(roots)

    def to_record(self) -> Release:
        """As a record says it; a root keeps its body."""
        return Release(self.segments, self.pages, self.roots)

    @classmethod
    def of(cls, position: Position, release: Release) -> Released:
        """By the record in the segment at ``position``."""
        return cls(position, release.segments or (), release.pages or (), release.roots or ())
