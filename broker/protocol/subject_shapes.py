"""Very many patterns by the places of their wildcards, so that a question about all of them is a look-up or two.

Patterns with their wildcards in the same places are one *shape*; what tells them apart are their other tokens.

    a.*.1  b.*.2    ->  three tokens, of which the first and the third are  {(a, 1), (b, 2)}
    a.>    b.>      ->  two or more, of which the first is                  {a, b}

Validates nothing. A thousand patterns usually have a shape or two; where each has its own, nothing is gained.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import NamedTuple

__all__ = ["SubjectShapes", "first_subset"]

_STAR, _REST = b"*", b">"


class _Shape(NamedTuple):
    """``wanted`` counts patterns by the tokens that ``pick`` takes from theirs, or from a subject's.

    With ``rest`` they end in ``>``, and ``length`` tokens are the fewest.
    """

    length: int
    rest: bool
    pick: Callable[[Sequence[bytes]], object]
    wanted: dict[object, int]


class SubjectShapes:
    """Some patterns, with wildcards or without."""

    def __init__(self, patterns: Iterable[bytes]) -> None:
        shapes: dict[tuple[int, bool, tuple[int, ...]], _Shape] = {}
        for pattern in patterns:
            tokens = pattern.split(b".")
            rest = tokens[-1] == _REST
            places = tuple(i for i, token in enumerate(tokens) if token != _STAR and not (rest and i == len(tokens) - 1))
            shape = shapes.get((len(tokens), rest, places))
            if shape is None:
                shape = _Shape(len(tokens), rest, itemgetter(*places) if places else _nothing, {})
                shapes[len(tokens), rest, places] = shape
            key = shape.pick(tokens)
            shape.wanted[key] = shape.wanted.get(key, 0) + 1
        self._shapes = list(shapes.values())

    def __len__(self) -> int:
        return len(self._shapes)

    def match(self, subject: bytes) -> bool:
        """Whether one of the patterns matches a literal subject."""
        tokens = subject.split(b".")
        if b"" in tokens:
            return False
        count = len(tokens)
        for length, rest, pick, wanted in self._shapes:
            if (count == length or (rest and count > length)) and pick(tokens) in wanted:
                return True
        return False

    def supersets(self, pattern: bytes) -> int:
        """How many of the patterns match all that ``pattern`` matches: itself, where it is one of them, among others."""
        tokens = pattern.split(b".")
        if b"" in tokens:
            return 0
        count, open_ended, found = len(tokens), tokens[-1] == _REST, 0
        for length, rest, pick, wanted in self._shapes:
            if count >= length if rest else count == length and not open_ended:
                found += wanted.get(pick(tokens), 0)
        return found


def first_subset(patterns: Sequence[bytes]) -> int:
    """Place of the first pattern that another one contains, or that is there twice; ``len(patterns)`` if there is none."""
    shapes = SubjectShapes(patterns)
    return next((i for i, pattern in enumerate(patterns) if shapes.supersets(pattern) > 1), len(patterns))


def _nothing(_: Sequence[bytes]) -> tuple[()]:
    return ()
