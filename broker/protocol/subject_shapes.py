"""Tests of very many patterns at once, without comparing each with each.

Patterns with their wildcards in the same places have the same *shape*; their literal tokens distinguish them.

    a.*.1  b.*.2    ->  three tokens, of which the first and the third are  {(a, 1), (b, 2)}
    a.>    b.>      ->  two or more, of which the first is                  {a, b}

Two patterns overlap if they agree in every place where both are literal. These places depend on the two shapes only, so
one lookup of these tokens answers for a pair of shapes:

    a.*.1  b.*.2    and    c.x.*  b.y.*    ->  the first place is literal in both:  {a, b} and {c, b} have b in common

The work is patterns × shapes. A thousand patterns usually have a shape or two; ``SHAPES_MAX`` bounds the shapes of a
request. Nothing here checks that a pattern is valid.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import Final, NamedTuple

__all__ = ["SHAPES_MAX", "FirstMatch", "SubjectShapes", "first_overlap", "first_subset", "overlapping"]

SHAPES_MAX: Final = 256
"""Bound on the shapes of the subjects of one configuration, or of the filters of one request."""

_STAR, _REST = b"*", b">"

_Tokens = Sequence[bytes]
_Pick = Callable[[_Tokens], object]


class _Shape(NamedTuple):
    """The common properties of patterns of one shape: ``places`` are the indexes of the literal tokens.

    With ``rest`` the patterns end in ``>``, and ``length`` is the smallest number of tokens that match.
    """

    length: int
    rest: bool
    places: tuple[int, ...]

    def common(self, other: _Shape) -> _Pick | None:
        """Return a function that selects the tokens in which patterns of both shapes must agree to overlap.

        None: no two of them overlap.
        """
        if (self.length < other.length and not self.rest) or (other.length < self.length and not other.rest):
            return None
        return _picker(sorted(set(self.places).intersection(other.places)))


class SubjectShapes:
    """A set of patterns, with wildcards or without."""

    __slots__ = ("_shapes",)

    def __init__(self, patterns: Iterable[bytes]) -> None:
        shapes: dict[_Shape, tuple[_Pick, dict[object, int]]] = {}
        for pattern in patterns:
            tokens = pattern.split(b".")
            shape = _shape(tokens)
            known = shapes.get(shape)
            if known is None:
                known = shapes[shape] = _picker(shape.places), {}
            pick, wanted = known
            key = pick(tokens)
            wanted[key] = wanted.get(key, 0) + 1
        self._shapes = [(shape.length, shape.rest, pick, wanted) for shape, (pick, wanted) in shapes.items()]

    def __len__(self) -> int:
        return len(self._shapes)

    def match(self, subject: bytes) -> bool:
        """Return whether one of the patterns matches a literal subject."""
        tokens = subject.split(b".")
        if b"" in tokens:
            return False
        count = len(tokens)
        for length, rest, pick, wanted in self._shapes:
            if (count == length or (rest and count > length)) and pick(tokens) in wanted:
                return True
        return False

    def supersets(self, pattern: bytes) -> int:
        """Return the number of patterns that match all that ``pattern`` matches; a pattern equal to it counts, too."""
        tokens = pattern.split(b".")
        if b"" in tokens:
            return 0
        count, open_ended, found = len(tokens), tokens[-1] == _REST, 0
        for length, rest, pick, wanted in self._shapes:
            if count >= length if rest else count == length and not open_ended:
                found += wanted.get(pick(tokens), 0)
        return found


class FirstMatch:
    """A list of patterns, to find the first that matches a subject."""

    __slots__ = ("_shapes",)

    def __init__(self, patterns: Iterable[bytes]) -> None:
        self._shapes: list[tuple[int, bool, _Pick, dict[object, int]]] = []
        for shape, members in _by_shape(patterns).items():
            pick = _picker(shape.places)
            indexes = {pick(tokens): index for index, tokens in reversed(members)}
            self._shapes.append((shape.length, shape.rest, pick, indexes))

    def of(self, subject: bytes) -> int | None:
        """Return the index of the first pattern that matches a literal subject; None if none does."""
        tokens = subject.split(b".")
        count = len(tokens)
        found = [indexes[key] for length, rest, pick, indexes in self._shapes
                 if (count == length or (rest and count > length)) and (key := pick(tokens)) in indexes]
        return min(found, default=None)


def first_subset(patterns: Sequence[bytes]) -> int:
    """Return the index of the first pattern that another one contains or equals; ``len(patterns)`` if there is none."""
    shapes = SubjectShapes(patterns)
    return next((i for i, pattern in enumerate(patterns) if shapes.supersets(pattern) > 1), len(patterns))


def first_overlap(patterns: Sequence[bytes]) -> int:
    """Return the index of the first pattern that overlaps a later one; ``len(patterns)`` if there is none."""
    first, groups = len(patterns), list(_by_shape(patterns).items())
    for at, (shape, members) in enumerate(groups):
        for other, others in groups[at:]:
            if (pick := shape.common(other)) is None:
                continue
            earliest: dict[object, int] = {}
            for index, tokens in members:
                earlier = earliest.setdefault(pick(tokens), index)
                if other is shape and earlier != index:
                    first = min(first, earlier)
            if other is not shape:
                for index, tokens in others:
                    if (earliest_here := earliest.get(pick(tokens))) is not None:
                        first = min(first, earliest_here, index)
    return first


def overlapping(patterns: Sequence[bytes], others: Iterable[bytes]) -> list[int]:
    """Return the indexes of the ``patterns`` that overlap one of ``others``, in ascending order."""
    found: set[int] = set()
    theirs = _by_shape(others)
    for shape, members in _by_shape(patterns).items():
        for other, rivals in theirs.items():
            if (pick := shape.common(other)) is not None:
                keys = {pick(tokens) for _, tokens in rivals}
                found.update(index for index, tokens in members if pick(tokens) in keys)
    return sorted(found)


def _by_shape(patterns: Iterable[bytes]) -> dict[_Shape, list[tuple[int, _Tokens]]]:
    """Return the patterns of each shape, by index and as tokens."""
    groups: dict[_Shape, list[tuple[int, _Tokens]]] = {}
    for index, pattern in enumerate(patterns):
        tokens = pattern.split(b".")
        groups.setdefault(_shape(tokens), []).append((index, tokens))
    return groups


def _shape(tokens: _Tokens) -> _Shape:
    rest = tokens[-1] == _REST
    last = len(tokens) - 1
    return _Shape(len(tokens), rest, tuple(
        [i for i, token in enumerate(tokens) if token != _STAR and not (rest and i == last)]))


def _picker(places: Sequence[int]) -> _Pick:
    return itemgetter(*places) if places else _nothing


def _nothing(_: _Tokens) -> tuple[()]:
    return ()
