"""Record 10, in the shard's own block: objects that may be deleted once the record is persisted."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from broker.storage.format.header import EPOCH_MAX, NUMBER_MAX, Position
from broker.storage.format.records.body import RecordBody, as_map, damaged, optional, pack_positions, unpack_positions
from broker.storage.format.records.kinds import RecordKind

__all__ = ["Release", "pack_runs", "unpack_runs"]

_RUN = [int, int, int]
_POSITIONS_MAX = 1 << 26
"""The most positions of a list, more than a log has: a damaged list must not fill the memory."""


@dataclass(slots=True, eq=False, repr=False)
class Release(RecordBody):
    """The released objects, by their positions.

    ``done`` are the segments of earlier releases whose objects are all deleted. ``runs`` are keys of runs, relative to
    the store's prefix. None: the key is missing, which means the same as an empty list.
    """

    KIND: ClassVar = RecordKind.RELEASE

    segments: Collection[Position] | None = None
    """Positions in ascending order."""
    pages: Sequence[Position] | None = None
    roots: Sequence[Position] | None = None
    done: Sequence[Position] | None = None
    runs: Sequence[str] | None = None

    def encode(self) -> dict[str, Any]:
        body: dict[str, Any] = {}
        if self.segments is not None:
            body["segments"] = list(pack_runs(self.segments))
        if self.pages is not None:
            body["pages"] = pack_positions(self.pages)
        if self.roots is not None:
            body["roots"] = pack_positions(self.roots)
        if self.done is not None:
            body["done"] = pack_positions(self.done)
        if self.runs:
            body["runs"] = list(self.runs)
        return body

    @classmethod
    def decode(cls, body: Any) -> Release:
        body = as_map(cls.KIND, body)
        pages, roots, done = [unpack_positions(cls.KIND, key, body[key]) if key in body else None
                              for key in ("pages", "roots", "done")]
        runs = optional(cls.KIND, body, "runs", list, [])
        if not all(type(key) is str for key in runs):
            raise damaged(cls.KIND, "runs", "not a list of keys")
        return cls(cls._segments(body["segments"]) if "segments" in body else None, pages, roots, done, runs or None)

    @classmethod
    def _segments(cls, runs: Any) -> list[Position]:
        if type(runs) is not list or not all(type(run) is list and [*map(type, run)] == _RUN for run in runs):
            raise damaged(cls.KIND, "segments", "not a list of runs")
        try:
            return list(unpack_runs(runs))
        except ValueError as error:
            raise damaged(cls.KIND, "segments", str(error)) from None


def pack_runs(positions: Iterable[Position]) -> Iterator[list[int]]:
    """Iterate over [epoch, first number, last number] of successive positions, ascending."""
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
    """Iterate over the positions that ``pack_runs`` packed. Raises: ValueError or TypeError for anything else, or if
    there are more than any log has."""
    left = _POSITIONS_MAX
    for epoch, first, last in runs:
        left -= last - first + 1
        if not (0 <= epoch <= EPOCH_MAX and 0 <= first <= last <= NUMBER_MAX) or left < 0:
            raise ValueError(f"no log has segments {first} to {last} of epoch {epoch}")
        for number in range(first, last + 1):
            yield Position(epoch, number)
