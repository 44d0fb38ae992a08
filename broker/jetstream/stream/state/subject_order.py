"""The subjects of an index in order, so that a search for a few of very many need not visit them all.

Owns: the order, which costs 8 bytes a subject. Does not own: which subjects there are (subject_index), and when it pays
to make an order (subject_search).

    names in order, some of them removed     │ names added since, in no order
    [bench.1.a bench.1.b bench.2.a …]  stale │ {bench.1.c …}

New names are merged once they are an eighth of all, so each name is merged about eight times in its life. Removed names
stay in the list until they are half of it; then the index makes a new order. No name is in both parts.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from broker.jetstream.stream.state.in_turns import merged_in_turns, sorted_in_turns

__all__ = ["Part", "Span", "SubjectOrder"]

Span = tuple[bytes, bytes]
"""A range from the first subject to the second, exclusive."""
Part = tuple[list[bytes], int, int]
"""A part of a list of subjects that never changes, from one place to another, exclusive."""

_UNSORTED_MIN = 4096
"""Up to this number of names are not worth a merge."""


class SubjectOrder:
    """Subjects in order, once ``merge`` has run.

    Attributes: ``stale``: number of names in order that have been removed from the index.
    """

    __slots__ = ("_merging", "_names", "_new", "stale")

    def __init__(self) -> None:
        self._names: list[bytes] = []
        self._new: dict[bytes, None] = {}
        self._merging = False
        self.stale = 0

    @property
    def unsorted(self) -> int:
        """Number of names added since the last merge."""
        return len(self._new)

    @property
    def due(self) -> bool:
        """True if there are so many new names that they must be merged before the next search."""
        return len(self._new) > max(_UNSORTED_MIN, len(self._names) >> 3)

    @property
    def worn(self) -> bool:
        """True if so many names were removed that a new order is better."""
        return 2 * self.stale > max(_UNSORTED_MIN, len(self._names))

    def add(self, name: bytes) -> None:
        """Add ``name``, which is in the index from now on."""
        if self.stale and not self._merging and self._has(name):
            self.stale -= 1
        else:
            self._new[name] = None

    def drop(self, name: bytes) -> None:
        """Drop ``name``, which has left the index."""
        if name in self._new:
            del self._new[name]
        else:
            self.stale += 1

    async def merge(self, names: Sequence[bytes] = ()) -> None:
        """Merge all names added until now, and ``names``, which are in the index and were never added.

        Only one call may run at a time. After an error the order must not be used any more.
        """
        new, self._new = (names if not self._new else [*names, *self._new]), {}
        self._merging = True
        self._names = await merged_in_turns([self._names, await sorted_in_turns(new)])
        self._merging = False
        if self.stale:
            # Remove the names that were dropped and added again during the merge.
            for name in [name for name in self._new if self._has(name)]:
                del self._new[name]
                self.stale -= 1

    def within(self, spans: Sequence[Span]) -> list[Part]:
        """Return where the names within the disjoint ``spans`` are; without spans, where all names are.

        The parts are in order except for the last one, which has all names added since the last merge.
        """
        names = self._names
        parts = [(names, bisect_left(names, start), bisect_left(names, end)) for start, end in spans]
        return [*(parts or [(names, 0, len(names))]), (list(self._new), 0, len(self._new))]

    def _has(self, name: bytes) -> bool:
        at = bisect_left(self._names, name)
        return at < len(self._names) and self._names[at] == name
