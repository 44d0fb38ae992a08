"""The messages that a query wants, by subject, sequence and time: from its options, narrowed by Spark's filters.

A selection is a conjunction: every bound and every test must hold. The driver makes it and prunes blocks with it; each
task then applies it exactly. A Spark filter is *handled* when the selection keeps exactly the messages that Spark
would, so Spark need not apply it again. Otherwise the selection applies the certain part of the filter, keeps too
many messages, and reports that Spark must apply the filter again.

    seq, ts_ns      =  <=>  IN  <  <=  >  >=  and their negations, as bounds; handled if they are one interval
    ts              the same; the column is the time rounded down to microseconds: ``ts > T`` is ``ns >= (T+1)*1000``
    subject, stream, account     =  <=>  IN, LIKE 'a%' '%a' '%a%', and their negations
    IS NULL, IS NOT NULL         for columns that are never NULL

A subject that is not UTF-8 reads as text containing U+FFFD, so nothing is concluded from values with that character.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Final, TypeVar

from broker.storage.format.block import SubjectSummary
from broker.storage.format.subject_filter import may_hold, pattern_hash, prefix_hash, subject_hash

__all__ = ["Selection", "TextTests", "time_ns"]

NS_MAX: Final = (1 << 63) - 1
SEQ_MAX: Final = (1 << 63) - 1
_NEVER_NULL: Final = frozenset(("seq", "subject", "ts", "ts_ns", "stream", "account", "block", "pos", "data"))
_T = TypeVar("_T", bound="TextTests")


@dataclass(frozen=True)
class TextTests:
    """Tests of one text, as UTF-8 bytes; all must hold."""

    equal: frozenset[bytes] | None = None
    """The allowed texts; None: any text is allowed."""
    prefixes: tuple[bytes, ...] = ()
    suffixes: tuple[bytes, ...] = ()
    contains: tuple[bytes, ...] = ()
    excluded: tuple[TextTests, ...] = ()
    """Tests that must all fail."""

    def allows(self, text: bytes) -> bool:
        """Return whether all tests hold for ``text``."""
        return ((self.equal is None or text in self.equal)
                and (not self.prefixes or all(map(text.startswith, self.prefixes)))
                and (not self.suffixes or all(map(text.endswith, self.suffixes)))
                and (not self.contains or all(part in text for part in self.contains))
                and (not self.excluded or not any(test.allows(text) for test in self.excluded)))

    @property
    def always(self) -> bool:
        """Return whether there are no tests."""
        return (self.equal is None and not self.prefixes and not self.suffixes and not self.contains
                and not self.excluded)


@dataclass(frozen=True)
class Selection(TextTests):
    """The tests that a wanted message passes. The inherited tests are for the subject.

    All bounds are inclusive, and None means no bound; times are Unix UTC in ns.
    """

    subjects: tuple[bytes, ...] | None = None
    """NATS patterns, at least one of which must match the subject; None: any subject is allowed."""
    first_seq: int = 1
    last_seq: int | None = None
    first_ns: int | None = None
    last_ns: int | None = None
    stream: TextTests = field(default_factory=TextTests)
    account: TextTests = field(default_factory=TextTests)
    view: str = "messages"
    """The view whose columns the filters name."""

    def matches_subject(self, subject: bytes) -> bool:
        """Return whether a message on ``subject`` may be wanted."""
        return self.allows(subject) and (self.subjects is None or _compiled(self.subjects)(subject) is not None)

    def subject_test(self) -> Callable[[bytes], object]:
        """Return a faster ``matches_subject`` for many subjects; only the truth of its result has a meaning."""
        if self.subjects is None:
            return self.allows
        matches_one = _compiled(self.subjects)
        return matches_one if self.always else lambda subject: self.allows(subject) and matches_one(subject)

    def needs_subject(self) -> bool:
        """Return whether any test needs the subject."""
        return self.subjects is not None or not self.always

    def needs_time(self) -> bool:
        """Return whether any test needs the time."""
        return self.first_ns is not None or self.last_ns is not None

    @property
    def nothing(self) -> bool:
        """Return whether it is certain that no message can match."""
        return ((self.last_seq is not None and self.last_seq < self.first_seq)
                or (self.first_ns is not None and self.last_ns is not None and self.last_ns < self.first_ns)
                or (self.equal is not None and not self.equal) or self.subjects == ())

    def matches_stream(self, account: str, name: str) -> bool:
        """Return whether the stream's messages may be wanted."""
        return (self.stream.allows(name.encode("utf-8", "surrogatepass"))
                and self.account.allows(account.encode("utf-8", "surrogatepass")))

    def matches_times(self, first_ns: int, last_ns: int) -> bool:
        """Return whether a message from ``first_ns`` to ``last_ns`` may be wanted."""
        return ((self.first_ns is None or last_ns >= self.first_ns)
                and (self.last_ns is None or first_ns <= self.last_ns))

    def rows_of(self, summary: SubjectSummary) -> SubjectSummary:
        """Return the rows of a block's subject summary that may be wanted. If there are none, no message of the block
        is wanted, since a summary names every subject of its block."""
        test = self.subject_test()
        return tuple([row for row in summary if test(row[0])])

    def may_be_in(self, subject_filter: bytes) -> bool:
        """Return whether a block with this subject filter may hold wanted messages."""
        return all(may_hold(subject_filter, hashes) for hashes in _hashes(self.equal, self.subjects, self.prefixes))

    def narrowed(self, filter: object) -> tuple[Selection, bool]:
        """Return this selection, narrowed by one filter that Spark pushes down (a class of pyspark.sql.datasource).

        Returns: a selection that keeps at least the messages that both this one and the filter keep; and whether it
            keeps no others, so that Spark need not apply the filter again (False for views except ``messages``).
        """
        found = self._narrowed(filter)
        if found is None:
            return self, False
        if self.view == "messages":
            return found
        attribute = getattr(getattr(filter, "child", filter), "attribute", ())
        certain = self.view == "subjects" and attribute in (("subject",), ("stream",))
        return found[0] if certain else self, False

    def _narrowed(self, filter: object) -> tuple[Selection, bool] | None:
        """Narrow the selection as for ``messages``; None if nothing can be concluded from the filter."""
        name, negated = type(filter).__name__, False
        if name == "Not":
            filter, negated = getattr(filter, "child", None), True
            name = type(filter).__name__
        attribute = getattr(filter, "attribute", None)
        if not isinstance(attribute, tuple) or len(attribute) != 1:
            return None
        column, value = attribute[0], getattr(filter, "value", None)
        if name in ("IsNull", "IsNotNull"):
            if column not in _NEVER_NULL:
                return None
            return (self if (name == "IsNull") == negated else replace(self, last_seq=0), True)
        if name == "EqualNullSafe":
            if value is None and column in _NEVER_NULL:
                return (self if negated else replace(self, last_seq=0), True)
            name = "EqualTo"
        if column in ("seq", "ts", "ts_ns"):
            return self._bounded(column, name, value, negated)
        if column == "subject":
            return _tested(self, name, value, negated)
        if column in ("stream", "account"):
            found = _tested(getattr(self, column), name, value, negated)
            return None if found is None else (replace(self, **{column: found[0]}), found[1])
        return None

    def _bounded(self, column: str, name: str, value: object, negated: bool) -> tuple[Selection, bool] | None:
        found = _interval(name, value, negated, _micros if column == "ts" else _whole)
        if found is None:
            return None
        low, high, handled = found
        if column == "seq":
            if low is not None and low > SEQ_MAX:
                return replace(self, last_seq=0), handled
            return replace(self, first_seq=self.first_seq if low is None else max(self.first_seq, low),
                           last_seq=self.last_seq if high is None else _least(self.last_seq, max(high, 0))), handled
        if column == "ts":
            low = None if low is None else low * 1000
            high = None if high is None else high * 1000 + 999
        if (low is not None and low > NS_MAX) or (high is not None and high < 0):
            return replace(self, last_seq=0), handled
        first_ns = self.first_ns if low is None else max(low, 0, self.first_ns or 0)
        last_ns = self.last_ns if high is None else _least(self.last_ns, min(high, NS_MAX))
        return replace(self, first_ns=first_ns, last_ns=last_ns), handled


def _least(one: int | None, other: int) -> int:
    return other if one is None else min(one, other)


def _whole(value: object) -> int | None:
    return value if type(value) is int else None


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def _micros(value: object) -> int | None:
    """Convert a time from a Spark filter to microseconds; None for a time without a zone, whose meaning is
    uncertain."""
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    return (value - _EPOCH) // timedelta(microseconds=1)


def _interval(name: str, value: object, negated: bool, number: Callable[[object], int | None]
              ) -> tuple[int | None, int | None, bool] | None:
    """Return the range of the numbers for which a comparison holds, as low and high (None: unbounded).

    The third result tells whether the comparison holds for all numbers of the range.
    """
    if name == "In":
        numbers = _members(value, number)
        if numbers is None or negated:
            return None
        if not numbers:
            return 1, 0, True
        low, high = min(numbers), max(numbers)
        return low, high, high - low + 1 == len(numbers)
    one = number(value)
    if one is None:
        return None
    if negated:
        name = _NEGATED.get(name, "")
    if name == "EqualTo":
        return one, one, True
    if name == "GreaterThan":
        return one + 1, None, True
    if name == "GreaterThanOrEqual":
        return one, None, True
    if name == "LessThan":
        return None, one - 1, True
    if name == "LessThanOrEqual":
        return None, one, True
    return None


_NEGATED: Final = {"GreaterThan": "LessThanOrEqual", "GreaterThanOrEqual": "LessThan", "LessThan": "GreaterThanOrEqual",
                   "LessThanOrEqual": "GreaterThan"}


def _members(value: object, convert: Callable[[object], Any]) -> set[Any] | None:
    """Convert the members of an IN list, without NULL, which equals nothing; None if one cannot be converted."""
    if not isinstance(value, tuple | list | set | frozenset):
        return None
    members = {convert(one) for one in value if one is not None}
    return None if None in members else members


def _tested(tests: _T, name: str, value: object, negated: bool) -> tuple[_T, bool] | None:
    """Add the test of one filter to ``tests``; None if nothing can be concluded from it."""
    more: TextTests | None = None
    if name == "In":
        members = _members(value, _text)
        if members is None or (negated and None in value):  # type: ignore[operator]  # NOT IN (…, NULL) is never true
            return None
        more = TextTests(equal=frozenset(members))
    elif (text := _text(value)) is None:
        return None
    elif name == "EqualTo":
        more = TextTests(equal=frozenset((text,)))
    elif isinstance(value, str):
        if name == "StringStartsWith":
            more = TextTests(prefixes=(text,))
        elif name == "StringEndsWith":
            more = TextTests(suffixes=(text,))
        elif name == "StringContains":
            more = TextTests(contains=(text,))
    if more is None:
        return None
    if negated:
        return replace(tests, excluded=(*tests.excluded, more)), True
    equal = tests.equal if more.equal is None else more.equal if tests.equal is None else tests.equal & more.equal
    return replace(tests, equal=equal, prefixes=tests.prefixes + more.prefixes, suffixes=tests.suffixes + more.suffixes,
                   contains=tests.contains + more.contains), True


def _text(value: object) -> bytes | None:
    if isinstance(value, bytes | bytearray):
        return bytes(value)
    if not isinstance(value, str) or "\ufffd" in value:
        return None
    try:
        return value.encode()
    except UnicodeEncodeError:
        return None


@lru_cache(maxsize=64)
def _hashes(equal: frozenset[bytes] | None, patterns: tuple[bytes, ...] | None, prefixes: tuple[bytes, ...]
            ) -> tuple[tuple[int, ...], ...]:
    """Return groups of hashes. The subject filter of a block with a wanted subject has one hash of each group."""
    groups: list[tuple[int | None, ...]] = [(prefix_hash(prefix),) for prefix in prefixes]
    if equal is not None:
        groups.append(tuple(subject_hash(subject) for subject in equal))
    if patterns is not None:
        groups.append(tuple(map(pattern_hash, patterns)))
    return tuple(tuple(one for one in group if one is not None) for group in groups if None not in group)


@lru_cache(maxsize=64)
def _compiled(patterns: tuple[bytes, ...]) -> Callable[[bytes], object]:
    """Return a test whether any pattern matches a literal subject, by the rules of ``protocol.subject.matches``.

    One regular expression for all patterns takes a fifth of the time of that function.
    """
    return re.compile(b"|".join(map(_expression, patterns)) if patterns else b"(?!)", re.DOTALL).fullmatch


def _expression(pattern: bytes) -> bytes:
    tokens = pattern.split(b".")
    if b"" in tokens:
        return re.escape(pattern)
    parts = [_TOKEN if token == b"*" else re.escape(token) for token in tokens]
    if tokens[-1] == b">":
        parts[-1] = _TOKEN + rb"(?:\." + _TOKEN + rb")*"
    elif tokens[-1] == b"*":
        parts[-1] = rb"(?!>\Z)" + _TOKEN  # nats-server treats a last > in the subject as more than one token
    return rb"\.".join(parts)


_TOKEN: Final = rb"[^.]+"

_TIME: Final = re.compile(
    r"(\d{4}-\d\d-\d\d)(?:[T ](\d\d:\d\d)(?::(\d\d)(?:[.,](\d{1,9}))?)?)? ?(Z|[+-]\d\d(?::?\d\d)?)?", re.IGNORECASE)


def time_ns(text: str) -> int:
    """Parse a time: ISO 8601 (UTC without a zone; up to nine decimals), or a whole number of nanoseconds.

    Raises: ValueError with the reason.
    """
    word = text.strip()
    if word.isascii() and word.isdigit():
        ns = int(word)
        if ns > NS_MAX:
            raise ValueError(f"{text!r} is no number of nanoseconds since 1970: it is larger than {NS_MAX}")
        return ns
    match = _TIME.fullmatch(word)
    if match is None:
        raise ValueError(f"{text!r} is no time: write 2026-11-21T14:00:00Z, or nanoseconds since 1970")
    day, minute, second, fraction, zone = match.groups()
    zone = "+00:00" if zone in (None, "Z", "z") else zone
    try:
        instant = datetime.fromisoformat(f"{day}T{minute or '00:00'}:{second or '00'}{zone}")
    except ValueError as error:
        raise ValueError(f"{text!r} is no time: {error}") from None
    ns = (instant - _EPOCH) // timedelta(seconds=1) * 1_000_000_000 + int((fraction or "").ljust(9, "0"))
    if not 0 <= ns <= NS_MAX:
        raise ValueError(f"{text!r} is out of range: streams hold times from 1970 to 2262")
    return ns
