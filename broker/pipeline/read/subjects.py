"""Tests of a block's subjects by a selection: once for each name, not for each row."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from broker.pipeline.plan.selection import Selection

__all__ = ["SubjectTest"]

_KNOWN_SUBJECTS_MAX: Final = 200_000
_FEW: Final = 64
"""Up to this number of names, testing all is faster than a binary search."""


class SubjectTest:
    """A selection's subject tests; each subject is tested once, however many blocks have it."""

    def __init__(self, selection: Selection) -> None:
        self._matches = selection.matches_subject
        self._known: dict[bytes, bool] = {}
        self._heads = _heads(selection)

    def ids(self, names: pa.BinaryArray) -> npt.NDArray[np.bool_]:
        """Return for each of ``names``, sorted by bytes, whether it is wanted."""
        wanted = np.zeros(len(names), np.bool_)
        for first, last in self._candidates(names):
            wanted[first:last] = [self(name) for name in names[first:last].to_pylist()]
        return wanted

    def __call__(self, name: bytes) -> bool:
        known = self._known.get(name)
        if known is None:
            if len(self._known) >= _KNOWN_SUBJECTS_MAX:
                self._known.clear()
            known = self._known[name] = self._matches(name)
        return known

    def _candidates(self, names: pa.BinaryArray) -> list[tuple[int, int]]:
        """The ranges of names with a prefix of some wanted one; a block may have as many names as messages."""
        if len(names) <= _FEW or len(self._heads) > len(names) // _FEW or b"" in self._heads:
            return [(0, len(names))]
        places = range(len(names))
        found = []
        for head in self._heads:
            first = bisect_left(places, head, key=lambda i: names[i].as_py())
            # The bound sorts after nearly all names that begin with ``head``; the loop finds the others.
            last = bisect_left(places, head + b"\xff" * 8, first, key=lambda i: names[i].as_py())
            while last < len(names) and names[last].as_py().startswith(head):
                last += 1
            found.append((first, last))
        return found


def _heads(selection: Selection) -> list[bytes]:
    """Return prefixes, of which every wanted subject has one; b"" admits any."""
    if selection.equal is not None:
        return sorted(selection.equal)
    if selection.prefixes:
        return [max(selection.prefixes, key=len)]
    if selection.subjects is None:
        return [b""]
    heads = []
    for pattern in selection.subjects:
        tokens = pattern.split(b".")
        wild = next((i for i, token in enumerate(tokens) if token in (b"*", b">")), None)
        heads.append(pattern if wild is None else b"".join(token + b"." for token in tokens[:wild]))
    return sorted(set(heads))
