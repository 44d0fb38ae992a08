"""Subject transforms: a subject that matches a source pattern becomes another subject, made from a destination.

    orders.*.*    orders.{{wildcard(2)}}.{{wildcard(1)}}       orders.eu.7  →  orders.7.eu
    orders.>      archive.orders.>                             orders.eu.7  →  archive.orders.eu.7

A function may stand for a token of the destination; ``n`` counts the source's ``*`` from 1. Each word of a function's
name may begin in either case:

    {{wildcard(n)}} or $n               the token itself
    {{partition(buckets,n,…)}}          a number below ``buckets``: a hash of those tokens; without n, of the subject
    {{splitFromLeft(n,at)}}             the token with a dot after ``at`` characters; splitFromRight: from its end
    {{sliceFromLeft(n,size)}}           the token in pieces of ``size``; sliceFromRight: the short piece comes first
    {{split(n,text)}}                   the token, with dots for each ``text``
    {{left(n,size)}} {{right(n,size)}}  the token's first or last characters
    {{random(max)}}                     a random number below ``max``

A destination may repeat a token thousands of times, so a short subject could become one of megabytes. A transform makes
no subject of more than 65 535 bytes, and its partitions hash no more bytes for one subject. nats-server has no such
bounds, but its file store keeps a subject's length in 16 bits.

All subjects are bytes. Surprising behaviour of nats-server is kept ($0 is the source's first token), because
configurations depend on it.

Source: nats-server, server/subject_transform.go; server/sublist.go, ValidateMapping.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Final, NamedTuple

from broker.protocol.subject import subset

__all__ = ["SUBJECT_MAX", "SubjectTransform", "TransformError", "check_mapping", "make_transform", "numbered",
           "unnumbered"]

SUBJECT_MAX: Final = 65_535
"""Size of the longest subject that a transform makes, in bytes."""

_FULL: Final = b">"
_INT32_MAX: Final = (1 << 31) - 1
_INT64_MAX: Final = (1 << 63) - 1

_SPACE = rb"[\t\n\f\r ]"
_COMMA = re.compile(b"," + _SPACE + b"*")
_INTEGER = re.compile(rb"[+-]?[0-9]+")

_Tokens = Sequence[bytes]
_Part = Callable[[_Tokens], bytes]
"""Function from the subject's tokens to a token of the destination."""


class TransformError(ValueError):
    """The error of a transform that is not valid; the text is nats-server's."""


_BAD_SUBJECT: Final = "invalid subject"
_INVALID: Final = "invalid transform"
_UNKNOWN: Final = "unknown function"
_OUT_OF_RANGE: Final = "wildcard index out of range"
_NOT_ENOUGH: Final = "not enough arguments passed to the function"
_TOO_MANY: Final = "too many arguments passed to the function"
_BAD_ARGUMENT: Final = "function argument is invalid or in the wrong format"
_UNUSED: Final = "not using all of the token wildcard(s)"
_IRREVERSIBLE: Final = "the only mapping function allowed for import transforms is {{Wildcard()}}"


def _error(reason: str, token: bytes = b"") -> TransformError:
    where = f" in {token.decode('utf-8', 'replace')}" if token else ""
    return TransformError(f"invalid mapping destination: {reason}{where}")


class _Call(NamedTuple):
    """A mapping function in a destination: its wildcards (counted from 1), a number and a text."""

    name: str
    wildcards: tuple[int, ...] = ()
    number: int = -1
    text: bytes = b""


class SubjectTransform:
    """A transform. Immutable.

    Args:
        ``src``: b"" means ``>``;
        ``strict``: for imports; the destination uses all wildcards and no other function, so ``reverse`` can undo it.
    Raises: TransformError.
    """

    __slots__ = ("_hashed", "_identity", "_parts", "_random", "_src_tokens", "_tail", "dest", "repeatable", "src")

    def __init__(self, src: bytes, dest: bytes, *, strict: bool = False, rng: random.Random | None = None) -> None:
        src = src or _FULL
        self.src, self.dest = src, dest
        self._random = rng or random.Random()
        src_tokens, dest_tokens = _tokens(src), _tokens(dest)
        if b"*" in dest_tokens or (src_tokens[-1] == _FULL) != (dest_tokens[-1] == _FULL):
            raise TransformError(_BAD_SUBJECT)
        stars = [at for at, token in enumerate(src_tokens) if token == b"*"]
        self._src_tokens = src_tokens
        self._identity = src == dest == _FULL
        self._tail = len(src_tokens) - 1 if dest_tokens[-1] == _FULL else -1
        self._parts: list[bytes | _Part] = []
        self._hashed: list[int] = []
        """Indexes of the tokens that partitions hash, as often as each is hashed; -1: all tokens."""
        self.repeatable = True
        """Flag: the result depends on the subject alone."""

        used = 0
        for token in dest_tokens[:-1] if self._tail >= 0 else dest_tokens:
            call = _call(token)
            self._parts.append(token if call is None else self._part(token, call, stars, strict))
            if call is not None:
                used += len(call.wildcards)
                self.repeatable &= call.name != "random"
        if strict and used < len(stars):
            raise _error(_UNUSED, dest)

    def _part(self, token: bytes, call: _Call, stars: Sequence[int], strict: bool) -> _Part:
        if not stars and self._tail < 0:
            if call.name not in ("partition", "random"):
                raise _error(_OUT_OF_RANGE, token)
            # No part of the subject varies; like nats-server, ignore the wildcards.
            call = call._replace(wildcards=())
        elif strict and call.name != "wildcard":
            raise _error(_IRREVERSIBLE, token)
        places = []
        for n in call.wildcards:
            if n > len(stars):
                raise _error(_OUT_OF_RANGE, b"%b: [%d]" % (token, n))
            places.append(stars[n - 1] if n > 0 else 0)
        if call.name == "random":
            return lambda tokens: b"%d" % self._below(call.number)
        if call.name == "partition":
            self._hashed += places or [-1]
            def partition(tokens: _Tokens) -> bytes:
                key = b"".join([tokens[i] for i in places]) if places else b".".join(tokens)
                return b"%d" % _partition(key, call.number)

            return partition
        [place] = places
        if call.name == "wildcard":
            return lambda tokens: tokens[place]
        if call.name == "split":
            return lambda tokens: _split(tokens[place], call.text)
        cut, size = _CUTS[call.name], call.number
        return lambda tokens: cut(tokens[place], size) if 0 < size < len(tokens[place]) else tokens[place]

    def _below(self, number: int) -> int:
        """Return a random number below ``abs(number)``, or 0 if ``number`` is 0, as nats-server does."""
        return self._random.randrange(1 << 31) % abs(number) if number else 0

    def match(self, subject: bytes) -> bytes | None:
        """Return the subject that the literal ``subject`` becomes.

        None: it does not match the source, or is not literal. b"": the result would exceed ``SUBJECT_MAX`` bytes.
        """
        if self._identity:
            return subject
        tokens = subject.split(b".")
        if b"" in tokens or b"*" in tokens or _FULL in tokens or not subset(subject, self.src):
            return None
        return self._make(tokens)

    def apply(self, subject: bytes) -> bytes:
        """Return the result for a ``subject`` that is known to match; b"" as for ``match``.

        The subject may be a pattern within the source.
        """
        return self._make(subject.split(b"."))

    def _make(self, tokens: list[bytes]) -> bytes:
        made: list[bytes] = []
        left = SUBJECT_MAX + 1
        # Hashing takes 50 ns a byte: without the bound, a destination with thousands of partitions would take seconds.
        if self._hashed and sum(
                len(tokens[at]) if at >= 0 else sum(map(len, tokens)) for at in self._hashed) > SUBJECT_MAX:
            return b""
        for part in self._parts:
            token = part if isinstance(part, bytes) else part(tokens)
            left -= len(token) + 1
            if left < 0:
                return b""
            made.append(token)
        if self._tail >= 0:
            made += tokens[self._tail:]
            if left < sum(map(len, tokens[self._tail:])) + len(tokens) - self._tail:
                return b""
        return b".".join(made)

    def reverse(self) -> SubjectTransform:
        """Return the transform that undoes this strict one. Raises: TransformError.

        nats-server's reverse transform orders wildcards wrongly if three or more change places; this one is right.
        """
        src: list[bytes] = []
        places: dict[int, int] = {}
        stars = 0
        for token in self.dest.split(b"."):
            call = _call(token)
            if call is not None and call.name == "wildcard":
                stars += 1
                places.setdefault(call.wildcards[0], stars)
                token = b"*"
            src.append(token)
        dest, star = [], 0
        for token in self._src_tokens:
            if token == b"*":
                star += 1
                token = b"$%d" % places.get(star, 0)
            dest.append(token)
        return SubjectTransform(b".".join(src), b".".join(dest), strict=True)


def make_transform(src: bytes, dest: bytes, rng: random.Random | None = None) -> SubjectTransform | None:
    """Return the transform; None if ``dest`` is empty, because subjects then do not change. Raises: TransformError."""
    return SubjectTransform(src, dest, rng=rng) if dest else None


def numbered(pattern: bytes) -> bytes:
    """Return ``pattern`` as a destination: its ``*`` become ``$1``, ``$2``, … in order."""
    tokens, stars = [], 0
    for token in pattern.split(b"."):
        if token == b"*":
            stars += 1
            token = b"$%d" % stars
        tokens.append(token)
    return b".".join(tokens)


def unnumbered(dest: bytes) -> bytes:
    """Return the pattern that the destination ``dest`` fills: ``$1`` and ``{{wildcard(1)}}`` become ``*``."""
    return b".".join(b"*" if _NUMBERED.match(token) or _is_wildcard(token) else token for token in dest.split(b"."))


def check_mapping(src: bytes, dest: bytes) -> None:
    """Check the transform of a stream's configuration. Raises: TransformError."""
    if not dest:
        return
    full = False
    for token in dest.split(b"."):
        if not token or full:
            raise _error(_INVALID, token)
        if _is_function(token):
            if not any(pattern.search(token) for _, pattern in _functions()):
                raise _error(_UNKNOWN, token)
        elif token == _FULL:
            full = True
        elif not _SPACES.isdisjoint(token):
            raise _error(_INVALID)
    SubjectTransform(src, dest)


# --- parsing ----------------------------------------------------------------------------------------------------------

_SPACES = frozenset(b"\t\n\f\r ")


def _function(name: str) -> tuple[str, re.Pattern[bytes]]:
    """Return a function's name, and a pattern in which each word of the name may begin in either case."""
    either = re.sub("(^.|[A-Z])", lambda letter: f"[{letter[1].lower()}{letter[1].upper()}]", name)
    return name, re.compile(rb"{{%b*%b%b*\((.*)\)%b*}}" % (_SPACE, either.encode(), _SPACE, _SPACE))


@cache
def _functions() -> tuple[tuple[str, re.Pattern[bytes]], ...]:
    """Return the functions in nats-server's order: the first that occurs in a token applies.

    They are compiled on demand, since most brokers transform no subjects.
    """
    return tuple(_function(name) for name in (
        "wildcard", "partition", "splitFromLeft", "splitFromRight", "sliceFromLeft", "sliceFromRight", "right", "left",
        "split", "random"))


_NUMBERED = re.compile(rb"\$[1-9]")


def _is_wildcard(token: bytes) -> bool:
    found = _functions()[0][1].search(token)
    return found is not None and found[1] != b"" and b"," not in found[1]


def _tokens(subject: bytes) -> list[bytes]:
    tokens = subject.split(b".")
    if b"" in tokens or _FULL in tokens[:-1]:
        raise TransformError(_BAD_SUBJECT)
    return tokens


def _is_function(token: bytes) -> bool:
    return len(token) > 4 and token.startswith(b"{{") and token.endswith(b"}}")


def _call(token: bytes) -> _Call | None:
    """Parse a token of the destination. Returns: its mapping function; None if it has none. Raises: TransformError."""
    if len(token) > 1 and token[:1] == b"$":
        n = _integer(token[1:])
        # A ``$`` without a number is an ordinary token: subjects of the server itself begin with it.
        return None if n is None else _Call("wildcard", (n,))
    if not _is_function(token):
        return None
    for name, pattern in _functions():
        if (found := pattern.search(token)) is not None:
            return _arguments(token, name, _COMMA.split(found[1]))
    raise _error(_UNKNOWN, token)


def _arguments(token: bytes, name: str, given: Sequence[bytes]) -> _Call:
    def integer(text: bytes, low: int = -_INT64_MAX - 1, high: int = _INT64_MAX) -> int:
        value = _integer(text.strip(b" "))
        if value is None or not low <= value <= high:
            raise _error(_BAD_ARGUMENT, token)
        return value

    if name == "partition":
        buckets = integer(given[0], high=_INT32_MAX)
        return _Call(name, tuple(map(integer, given[1:])), _int32(buckets))
    if name == "random":
        if len(given) > 1:
            raise _error(_NOT_ENOUGH, token)
        return _Call(name, (), _int32(integer(given[0], high=_INT32_MAX)))
    wanted = 1 if name == "wildcard" else 2
    if len(given) < wanted or (name == "wildcard" and given == [b""]):
        raise _error(_NOT_ENOUGH, token)
    if len(given) > wanted:
        raise _error(_TOO_MANY, token)
    n = integer(given[0])
    if name == "wildcard":
        return _Call(name, (n,))
    if name == "split":
        if b" " in given[1] or b"." in given[1]:
            raise _error(_BAD_ARGUMENT, token)
        return _Call(name, (n,), text=given[1])
    return _Call(name, (n,), integer(given[1], -_INT32_MAX - 1, _INT32_MAX))


def _integer(text: bytes) -> int | None:
    if _INTEGER.fullmatch(text) is None or len(text) > 40:
        return None
    value = int(text)
    return value if -_INT64_MAX - 1 <= value <= _INT64_MAX else None


def _int32(value: int) -> int:
    """Convert a number to 32 bits as Go does."""
    return (value + (1 << 31) & 0xFFFF_FFFF) - (1 << 31)


# --- functions --------------------------------------------------------------------------------------------------------

def _partition(key: bytes, buckets: int) -> int:
    """Return FNV-1a of ``key`` modulo ``buckets``, which is read as an unsigned number of 32 bits."""
    buckets &= 0xFFFF_FFFF
    if not buckets:
        return 0
    value = 0x811C_9DC5
    for byte in key:
        value = (value ^ byte) * 0x0100_0193 & 0xFFFF_FFFF
    return value % buckets


def _split(token: bytes, text: bytes) -> bytes:
    """Return ``token`` with a dot for each ``text``; several in a row become one dot, and one at either end none.

    As in nats-server, two or more at the start do become a dot.
    """
    pieces = token.split(text) if text else [
        one.encode("utf-8", "surrogateescape") for one in token.decode("utf-8", "surrogateescape")]
    made = []
    for at, piece in enumerate(pieces):
        made.append(piece)
        if at + 1 < len(pieces) and pieces[at + 1] and not (at == 0 and not piece):
            made.append(b".")
    return b"".join(made)


def _slices(token: bytes, size: int, first: int) -> bytes:
    """Split ``token`` with dots into pieces of ``size`` bytes, after a piece of ``first`` bytes if that is not 0."""
    pieces = [token[:first]] if first else []
    return b".".join(pieces + [token[at:at + size] for at in range(first, len(token), size)])


_CUTS: Final[dict[str, Callable[[bytes, int], bytes]]] = {
    "splitFromLeft": lambda token, at: token[:at] + b"." + token[at:],
    "splitFromRight": lambda token, at: token[:-at] + b"." + token[-at:],
    "sliceFromLeft": lambda token, size: _slices(token, size, 0),
    "sliceFromRight": lambda token, size: _slices(token, size, len(token) % size),
    "left": lambda token, size: token[:size],
    "right": lambda token, size: token[-size:],
}
"""Functions that change a token if it is longer than their number argument, and only if that is above 0."""
