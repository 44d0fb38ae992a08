"""Compiled subject filters: which of a stream's subjects a consumer or a request wants.

Owns: matching a literal subject against a set of filters, cached by subject.
Does not own: whether a filter is well formed (protocol.subject), nor which blocks are worth reading (stream_reader).

A subject matches a ``Filters`` when any of its filters matches it; no filters, or ``>`` among them, match everything.
A filter has NATS's form: tokens separated by dots, ``*`` for one token, a final ``>`` for one or more.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

__all__ = ["ALL", "Filters"]

# A cached result costs about 100 bytes; at this many the cache is cleared rather than growing with the stream.
_REMEMBERED_MAX = 65_536


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


def _pattern(wildcards: Iterable[bytes]) -> Callable[[bytes], object] | None:
    """A function that returns whether any of these wildcard filters matches, in one pass of the regex engine."""
    parts = []
    for wildcard in wildcards:
        tokens = [b"[^.]+" if token == b"*" else re.escape(token) for token in wildcard.split(b".")]
        if wildcard == b">" or wildcard.endswith(b".>"):
            tokens[-1] = b".+"
        parts.append(rb"\.".join(tokens))
    # DOTALL: a subject may hold any byte but white space and NUL, so this only guards against surprises.
    return re.compile(b"|".join(parts), re.DOTALL).fullmatch if parts else None


class Filters:
    """Filters of one consumer or request.

    Attributes:
        subjects: the filters as given.
        all: every subject matches.
        literals: the filters without wildcards.
        literal: there are filters and none has a wildcard, so ``literals`` is the whole answer.
        match: ``match(subject: bytes) -> bool``.
    """

    __slots__ = ("_pattern", "all", "literal", "literals", "match", "subjects")

    match: Callable[[bytes], bool]

    def __init__(self, subjects: Iterable[bytes] = ()) -> None:
        self.subjects = tuple(subjects)
        self.all = not self.subjects or b">" in self.subjects
        wild = [subject for subject in self.subjects if _has_wildcard(subject)]
        self.literals = frozenset(self.subjects) - frozenset(wild)
        self.literal = bool(self.subjects) and not wild
        self._pattern = _pattern(wild)
        if self.all:
            self.match = _always
        elif self.literal:
            self.match = self.literals.__contains__
        else:
            self.match = _Verdicts(self._decide).__getitem__

    def __repr__(self) -> str:
        return f"Filters({list(self.subjects)!r})"

    def decide(self, subject: bytes) -> bool:
        """``match`` without the cache: for a pass over very many distinct subjects."""
        return self.all or self._decide(subject)

    def _decide(self, subject: bytes) -> bool:
        return subject in self.literals or (self._pattern is not None and self._pattern(subject) is not None)

    def any(self, subjects: Iterable[bytes]) -> bool:
        """Whether one of ``subjects`` matches."""
        return self.all or any(map(self.match, subjects))


def _has_wildcard(subject: bytes) -> bool:
    return (b"*" in subject or b">" in subject) and any(token in (b"*", b">") for token in subject.split(b"."))


ALL = Filters()
"""Matches every subject."""
