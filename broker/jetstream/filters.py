"""Compiled subject filters: which of a stream's subjects a consumer or a request wants.

Owns: matching a literal subject against a set of filters, cached by subject.
Does not own: whether a filter is well formed (protocol.subject), which blocks to read for a filter (stream.shared).

A subject matches a ``Filters`` when any of its filters matches it; no filters, or ``>`` among them, match everything.
A filter has NATS's form: tokens separated by dots, ``*`` for one token, a final ``>`` for one or more.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import takewhile

from broker.protocol.subject_shapes import SubjectShapes

__all__ = ["ALL", "Filters", "filters_of"]

# A cached result costs about 100 bytes; at this many the cache is cleared rather than growing with the stream.
_REMEMBERED_MAX = 65_536

_TRIED_MAX = 32
"""The largest number of wildcard filters that are always tried one after the other."""

_TRIED_IN_A_SHAPE = 8
"""Wildcard filters tried in the time of one look-up by the tokens of one shape, 0.12 µs."""

_MANY = 256
"""Filters that take a millisecond to compile."""


class _Verdicts(dict[bytes, bool]):
    """Cache of subject to result. As a dict, a hit costs one look-up in C."""

    __slots__ = ("_decide",)

    def __init__(self, decide: Callable[[bytes], bool]) -> None:
        super().__init__()
        self._decide = decide

    def __missing__(self, subject: bytes) -> bool:
        if len(self) >= _REMEMBERED_MAX:
            self.clear()
        verdict = self[subject] = self._decide(subject)
        return verdict


def _always(subject: bytes) -> bool:
    return True


def _any_of(wildcards: Sequence[bytes]) -> Callable[[bytes], object] | None:
    """Return a function that returns whether any of these wildcard filters matches."""
    if len(wildcards) > _TRIED_MAX:
        shapes = SubjectShapes(wildcards)
        if len(shapes) * _TRIED_IN_A_SHAPE <= len(wildcards):
            return shapes.match
    return _pattern(wildcards)


def _pattern(wildcards: Iterable[bytes]) -> Callable[[bytes], object] | None:
    """Return a function that returns whether any of these wildcard filters matches.

    It is one pass of the regex engine, which tries the filters one after the other.
    """
    parts = []
    for wildcard in wildcards:
        tokens = [b"[^.]+" if token == b"*" else re.escape(token) for token in wildcard.split(b".")]
        if wildcard == b">" or wildcard.endswith(b".>"):
            tokens[-1] = b".+"
        parts.append(rb"\.".join(tokens))
    # DOTALL: a subject may hold any byte but white space and NUL, so this only guards against surprises.
    return re.compile(b"|".join(parts), re.DOTALL).fullmatch if parts else None


class Filters:
    """The filters of one consumer or request.

    Attributes:
        subjects: the filters as given.
        all: true if every subject matches.
        contiguous: true if everything in ``spans`` matches, and nothing else.
        literals: the filters without wildcards.
        literal: true if there are filters and none has a wildcard, so ``literals`` is the whole answer.
        match: ``match(subject: bytes) -> bool``.
        spans: disjoint ranges [start, end) that contain all matching subjects; empty: they may be anywhere.
    """

    __slots__ = ("_prefix", "_wild", "all", "contiguous", "literal", "literals", "match", "spans", "subjects")

    match: Callable[[bytes], bool]

    def __init__(self, subjects: Iterable[bytes] = ()) -> None:
        self.subjects = tuple(subjects)
        self.all = not self.subjects or b">" in self.subjects
        text = b" ".join(self.subjects)
        wild = [subject for subject in self.subjects if _has_wildcard(subject)] if b"*" in text or b">" in text else []
        self.literals = frozenset(self.subjects).difference(wild)
        self.literal = bool(self.subjects) and not wild
        self._wild = _any_of(wild)
        self._prefix = _common_prefix(list(map(_lead, self.subjects))) if wild else b""
        self.spans = _spans(wild, self.literals)
        self.contiguous = self.all or (len(self.subjects) == 1 and self.subjects[0] == self._prefix + b">")
        if self.all:
            self.match = _always
        elif self.literal:
            self.match = self.literals.__contains__
        else:
            self.match = _Verdicts(self._decide).__getitem__

    def __repr__(self) -> str:
        return f"Filters({list(self.subjects)!r})"

    def decide(self, subject: bytes) -> bool:
        """Do as ``match`` without the cache: for a pass over very many distinct subjects."""
        return self.all or self._decide(subject)

    def select(self, subjects: Sequence[bytes]) -> list[bytes]:
        """Return the subjects that match, in order, without the cache: for a pass over very many distinct subjects."""
        if self.all:
            return list(subjects)
        prefix = self._prefix
        if self.contiguous:
            return [subject for subject in subjects if subject.startswith(prefix) and subject != prefix]
        if prefix:
            # In most passes most subjects differ here, and this costs a quarter of the pattern.
            subjects = [subject for subject in subjects if subject.startswith(prefix)]
        if len(self.subjects) == 1 and self._wild is not None:
            return list(filter(self._wild, subjects))
        return list(filter(self._decide, subjects))

    def _decide(self, subject: bytes) -> bool:
        return subject in self.literals or (self._wild is not None and bool(self._wild(subject)))

    def any(self, subjects: Iterable[bytes]) -> bool:
        """Return whether one of ``subjects`` matches."""
        return self.all or any(map(self.match, subjects))


def filters_of(subjects: Sequence[str]) -> Filters:
    """Return the compiled filters of a consumer. If there are very many,
    a second call for the same ones costs little."""
    return _many(tuple(subjects)) if len(subjects) > _MANY else Filters([one.encode() for one in subjects])


@lru_cache(maxsize=4)
def _many(subjects: tuple[str, ...]) -> Filters:
    return Filters([one.encode() for one in subjects])


def _lead(subject: bytes) -> bytes:
    """Return the tokens before the first wildcard, with their dots."""
    tokens = subject.split(b".")
    lead = list(takewhile(lambda token: token not in (b"*", b">"), tokens))
    return subject if len(lead) == len(tokens) else b"".join(token + b"." for token in lead)


def _common_prefix(subjects: Sequence[bytes]) -> bytes:
    low, high = min(subjects), max(subjects)  # all others lie between these
    for i, (a, b) in enumerate(zip(low, high, strict=False)):
        if a != b:
            return low[:i]
    return low


def _spans(wild: Sequence[bytes], literals: Iterable[bytes]) -> tuple[tuple[bytes, bytes], ...]:
    leads = sorted(set(map(_lead, wild)))
    if not leads or b"" in leads:
        return ()
    # A lead that begins with another one comes directly after it.
    apart: list[bytes] = []
    for lead in leads:
        if not apart or not lead.startswith(apart[-1]):
            apart.append(lead)
    # No token is empty, and none has a NUL; "/" follows the dot that it replaces.
    spans = [(lead + b"\x01", lead[:-1] + b"/") for lead in apart]
    outside = (one for one in literals if not one.startswith(apart[bisect_right(apart, one) - 1]))
    return (*spans, *((one, one + b"\0") for one in outside))


def _has_wildcard(subject: bytes) -> bool:
    return (b"*" in subject or b">" in subject) and any(token in (b"*", b">") for token in subject.split(b"."))


ALL = Filters()
"""Filters that match every subject."""
