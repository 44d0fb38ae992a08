"""What a record releases for deletion: segments, pages and roots, and their form in a record or a root."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from broker.storage.format.header import Position

__all__ = ["Released", "pack_runs", "unpack_runs"]


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

    def body(self) -> dict[str, Any]:
        """The record's body, and the root's: positions as [epoch, number], segments as runs [epoch, first, last]."""
        return {"segments": list(pack_runs(self.segments)), "pages": [list(p) for p in self.pages],
                "roots": [list(p) for p in self.roots]}

    @classmethod
    def of(cls, position: Position, body: Mapping[str, Any]) -> Released:
        return cls(position, unpack_runs(body.get("segments", ())), [Position(*p) for p in body.get("pages", ())],
                   [Position(*p) for p in body.get("roots", ())])


def pack_runs(positions: Iterable[Position]) -> Iterator[list[int]]:
    """Positions as [epoch, first, last] of neighbours, rising."""
    run: list[int] | None = None
    for epoch, number in sorted(positions):
        if run is not None and run[0] == epoch and run[2] == number - 1:
            run[2] = number
            continue
        if run is not None:
            yield run
        run = [epoch, number, number]
    if run is not None:
        yield run


def unpack_runs(runs: Iterable[Sequence[int]]) -> Iterator[Position]:
    """Undo ``pack_runs``."""
    for epoch, first, last in runs:
        for number in range(first, last + 1):
            yield Position(epoch, number)
