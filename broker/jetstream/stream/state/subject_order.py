"""The subjects of an index in order, so that a question about a few of very many does not look at them all.

Owns: the order, which costs 8 bytes a subject. Does not own: which subjects there are (subject_index), nor when an order
is worth its making (subject_search).

    names in order, some of them gone        │ names that came since, in no order
    [bench.1.a bench.1.b bench.2.a …]  stale │ {bench.1.c …}

Names that came are merged once they are an eighth of all, so each is merged about eight times in its life. Names that are
gone stay until they are half of all; then the index makes a new order. No name is in both parts.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from broker.jetstream.stream.state.in_turns import merged_in_turns, sorted_in_turns

__all__ = ["Part", "Span", "SubjectOrder"]

Span = tuple[bytes, bytes]
"""From the first subject to the second, exclusive."""
Part = tuple[list[bytes], int, int]
"""Subjects in a list that never changes, from one place to another, exclusive."""

_UNSORTED_MIN = 4096
"""So many are not worth merging."""


class SubjectOrder:
    """Subjects in order, once ``merge`` has run.

    Attributes: ``stale``: how many of those in order are gone from the index.
    """

    __slots__ = ("_merging", "_names", "_new", "stale")

    def __init__(self) -> None:
        self._names: list[bytes] = []
        self._new: dict[bytes, None] = {}
        self._merging = False
        self.stale = 0

    @property
    def unsorted(self) -> int:
        """How many names came since the last merge."""
        return len(self._new)

    @property
    def due(self) -> bool:
        """Whether these are so many that they are to be merged before the next question."""
        return len(self._new) > max(_UNSORTED_MIN, len(self._names) >> 3)

    @property
    def worn(self) -> bool:
        """Whether so many are gone that a new order is better."""
        return 2 * self.stale > max(_UNSORTED_MIN, len(self._names))

    def add(self, name: bytes) -> None:
        """``name`` is in the index from now on."""
        if self.stale and not self._merging and self._has(name):
            self.stale -= 1
        else:
            self._new[name] = None

    def drop(self, name: bytes) -> None:
        """``name`` left the index."""
        if name in self._new:
            del self._new[name]
        else:
            self.stale += 1

    async def merge(self, names: Sequence[bytes] = ()) -> None:
        """Bring in order all that came until now, and ``names``, which are in the index and were not added.

        One call at a time; after an error the order is of no more use.
        """
        new, self._new = (names if not self._new else [*names, *self._new]), {}
        self._merging = True
        self._names = await merged_in_turns([self._names, await sorted_in_turns(new)])
        self._merging = False
        if self.stale:
            # Those that were dropped and came again while they were merged.
            for name in [name for name in self._new if self._has(name)]:
                del self._new[name]
                self.stale -= 1

    def within(self, spans: Sequence[Span]) -> list[Part]:
        """Where the names are that are in one of the disjoint ``spans``, or anywhere if there are none; in order but for the
        last part, all names that came since."""
        names = self._names
        parts = [(names, bisect_left(names, start), bisect_left(names, end)) for start, end in spans]
        return [*(parts or [(names, 0, len(names))]), (list(self._new), 0, len(self._new))]

    def _has(self, name: bytes) -> bool:
        at = bisect_left(self._names, name)
        return at < len(self._names) and self._names[at] == name
