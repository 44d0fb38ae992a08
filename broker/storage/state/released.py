"""The objects that a record releases for deletion: segments, pages, roots and runs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from broker.storage.format.header import Position
from broker.storage.format.records.release import Release, pack_runs, unpack_runs

__all__ = ["Released", "Runs"]


class Runs(Collection[Position]):
    """Positions, stored as runs of successive ones: a shard with much churn has hundreds of thousands."""

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
    """The objects that one record releases. Once it is persisted, its writer or a later owner may delete them."""

    __slots__ = ("pages", "position", "roots", "runs", "segments")

    def __init__(self, position: Position, segments: Iterable[Position] = (), pages: Iterable[Position] = (),
                 roots: Iterable[Position] = (), runs: Iterable[str] = ()) -> None:
        self.position = position
        """The position of the segment with the record."""
        self.segments = Runs(segments)
        self.pages = list(pages)
        self.roots = list(roots)
        self.runs = list(runs)
        """The keys of runs."""

    def to_record(self) -> Release:
        """Return a record, whose body a root stores."""
        return Release(self.segments, self.pages, self.roots, runs=self.runs)

    @classmethod
    def of(cls, position: Position, release: Release) -> Released:
        """Return the objects that the record in the segment at ``position`` releases."""
        return cls(position, release.segments or (), release.pages or (), release.roots or (), release.runs or ())
