"""What a record releases for deletion: segments, pages, roots and runs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from broker.storage.format.header import Position
from broker.storage.format.records.release import Release, pack_runs, unpack_runs

__all__ = ["Released", "Runs"]


class Runs(Collection[Position]):
    """Positions, kept as runs of neighbours: of segments, a shard with much churn has hundreds of thousands waiting."""

    __slots__ = ("_runs",)

    def __init__(self, positions: Iterable[Position] = ()) -> None:
        self._runs = [tuple(run) for run in pack_runs(positions)]

    def __iter__(self) -> Iterator[Position]:
        return unpack_runs(self._runs)

    def __contains__(self, position: object) -> bool:
        return isinstance(position, Position) and any(
            epoch == position.epoch and first <= position.number <= last for epoch, first, last in self._runs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Runs) and list(pack_runs(self)) == list(pack_runs(other))

    def __len__(self) -> int:
        return sum(last - first + 1 for _, first, last in self._runs)

    def __iadd__(self, positions: Iterable[Position]) -> Runs:
        self._runs += [tuple(run) for run in pack_runs(positions)]
        return self


class Released:
    """What one record releases: it may be deleted once the record is persisted, by that record's writer or a later one."""

    __slots__ = ("pages", "position", "roots", "runs", "segments")

    def __init__(self, position: Position, segments: Iterable[Position] = (), pages: Iterable[Position] = (),
                 roots: Iterable[Position] = (), runs: Iterable[str] = ()) -> None:
        self.position = position
        """Of the segment that holds the record."""
        self.segments = Runs(segments)
        self.pages = list(pages)
        self.roots = list(roots)
        self.runs = list(runs)
        """Their keys."""

    def to_record(self) -> Release:
        """As a record, whose body a root keeps."""
        return Release(self.segments, self.pages, self.roots, runs=self.runs)

    @classmethod
    def of(cls, position: Position, release: Release) -> Released:
        """From the record in the segment at ``position``."""
        return cls(position, release.segments or (), release.pages or (), release.roots or (), release.runs or ())
