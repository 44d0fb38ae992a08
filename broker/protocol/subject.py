"""Subjects: tests for valid ones, for literal ones, and for patterns that overlap.

All are bytes as on the wire. Dots separate tokens. A token ``*`` matches any one token. ``>`` as the last token
matches one or more tokens. Inside longer tokens both are ordinary characters.

Source: nats-server, server/sublist.go (IsValidSubject, SubjectsCollide, SubjectMatchesFilter, matchLiteral).
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["collide", "is_literal", "is_valid", "matches", "matches_any", "subset"]

_STAR = b"*"
_REST = b">"
_SPACE = b" \t\n\r\f"


def is_valid(subject: bytes) -> bool:
    """Return whether ``subject`` may be subscribed to: no empty token, no white space, ``>`` only as the last token."""
    if not subject or len(subject.translate(None, _SPACE)) != len(subject):
        return False
    tokens = subject.split(b".")
    return b"" not in tokens and _REST not in tokens[:-1]


def is_literal(subject: bytes) -> bool:
    """Return whether no token of ``subject`` is a wildcard."""
    if _STAR not in subject and _REST not in subject:
        return True
    tokens = subject.split(b".")
    return _STAR not in tokens and _REST not in tokens


def matches(filter: bytes, subject: bytes) -> bool:
    """Return whether the pattern ``filter`` matches the literal ``subject``.

    A ``>`` in ``subject`` stands for itself, except as its last token.
    """
    return filter == subject or _is_covered(subject, filter, inner_rest=False)


def matches_any(filters: Iterable[bytes], subject: bytes) -> bool:
    """Return whether one of the patterns ``filters`` matches the literal ``subject``."""
    return any(one == subject or ((b"*" in one or b">" in one) and _is_covered(subject, one, inner_rest=False))
               for one in filters)


def subset(a: bytes, b: bytes) -> bool:
    """Return whether the pattern ``b`` matches every subject that the pattern ``a`` matches.

    A ``>`` in the middle of ``a``, which is then no valid pattern, is covered by a final ``>`` only.
    Source: nats-server, server/sublist.go (isSubsetMatchTokenized).
    """
    return _is_covered(a, b, inner_rest=True)


def _is_covered(a: bytes, b: bytes, *, inner_rest: bool) -> bool:
    """Return whether the pattern ``b`` covers ``a``. ``inner_rest``: a ``>`` in the middle of ``a`` is a wildcard."""
    tokens_a = a.split(b".")
    tokens_b = b.split(b".")
    count_a = len(tokens_a)
    if b"" in tokens_a or b"" in tokens_b:
        return False
    for i, token in enumerate(tokens_b):
        if i >= count_a:
            return False
        if token == _REST and i == len(tokens_b) - 1:
            return True
        own = tokens_a[i]
        if own == _REST and (inner_rest or i == count_a - 1):
            return False
        if token != own and token != _STAR:
            return False
    return count_a == len(tokens_b)


def collide(a: bytes, b: bytes) -> bool:
    """Return whether both patterns match some common subject."""
    if a == b:
        return True
    tokens_a = a.split(b".")
    tokens_b = b.split(b".")
    rest_a = tokens_a[-1] == _REST
    rest_b = tokens_b[-1] == _REST
    # ``>`` needs at least one token on the other side.
    if len(tokens_a) < len(tokens_b) and not rest_a:
        return False
    if len(tokens_b) < len(tokens_a) and not rest_b:
        return False
    for one, other in zip(tokens_a, tokens_b, strict=False):
        if one != other and one not in (_STAR, _REST) and other not in (_STAR, _REST):
            return False
    return True
