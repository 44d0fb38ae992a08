"""Selections: NATS patterns, bounds, and narrowing by Spark's filters, against a model of Spark's own semantics."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from broker.pipeline.plan.selection import Selection, time_ns
from broker.protocol.subject import matches

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NOW_NS = 1_700_000_000_123_456_789


# Spark's filters by the class names that the source knows; the real ones are tested with Spark (test_spark_*).
@dataclass(frozen=True)
class _Filter:
    attribute: tuple[str, ...]
    value: Any = None


class EqualTo(_Filter):
    pass


class EqualNullSafe(_Filter):
    pass


class GreaterThan(_Filter):
    pass


class GreaterThanOrEqual(_Filter):
    pass


class LessThan(_Filter):
    pass


class LessThanOrEqual(_Filter):
    pass


class In(_Filter):
    pass


class StringStartsWith(_Filter):
    pass


class StringEndsWith(_Filter):
    pass


class StringContains(_Filter):
    pass


class IsNull(_Filter):
    pass


class IsNotNull(_Filter):
    pass


class UnknownFilter(_Filter):
    """A filter of a future Spark."""


@dataclass(frozen=True)
class Not:
    child: Any


@dataclass(frozen=True)
class Message:
    seq: int
    subject: bytes
    ns: int
    account: str = "$G"
    stream: str = "ORDERS"

    def column(self, name: str) -> Any:
        """Return the value of a column as Spark sees it."""
        return {"seq": self.seq, "ts_ns": self.ns, "ts": EPOCH + timedelta(microseconds=self.ns // 1000),
                "subject": self.subject.decode("utf-8", "replace"), "stream": self.stream, "account": self.account,
                "data": b"x", "headers": None, "block": "v1/x", "pos": 0}[name]


def by_spark(filter: Any, message: Message) -> bool | None:
    """Evaluate a filter in SQL's three values."""
    kind = type(filter).__name__
    if kind == "Not":
        inner = by_spark(filter.child, message)
        return None if inner is None else not inner
    have, want = message.column(filter.attribute[0]), filter.value
    if kind in ("IsNull", "IsNotNull"):
        return (have is None) == (kind == "IsNull")
    if kind == "EqualNullSafe":
        return bool(have == want)
    if kind == "In":
        if have is None:
            return None
        return True if have in [one for one in want if one is not None] else None if None in want else False
    if have is None or want is None:
        return None
    compared: dict[str, Any] = {
        "EqualTo": lambda: have == want, "GreaterThan": lambda: have > want, "GreaterThanOrEqual": lambda: have >= want,
        "LessThan": lambda: have < want, "LessThanOrEqual": lambda: have <= want,
        "StringStartsWith": lambda: have.startswith(want), "StringEndsWith": lambda: have.endswith(want),
        "StringContains": lambda: want in have, "UnknownFilter": lambda: hash((have, want)) % 2 == 0}
    return bool(compared[kind]())


def keeps(selection: Selection, message: Message) -> bool:
    """Apply a selection as a task does."""
    return (selection.matches_subject(message.subject) and message.seq >= selection.first_seq
            and (selection.last_seq is None or message.seq <= selection.last_seq)
            and selection.matches_times(message.ns, message.ns)
            and selection.matches_stream(message.account, message.stream))


WORDS = ["orders", "eu", "us", "ü", "a", "", "x.y", "\ufffd"]
SUBJECTS = [b"orders.eu.created", b"orders.us.created", b"orders.eu", b"alarm", "orders.ü".encode(), b"orders.\xff.x",
            b"\xc3", "bad\ufffd".encode(), b"a.b.c", b"a", b"orders.\xe2\x82", b"x.y"]


def a_message(rng: random.Random) -> Message:
    return Message(rng.choice([1, 2, 5, 6, 7, 100, 2**40]), rng.choice(SUBJECTS),
                   NOW_NS + rng.choice([-2000, -1000, -999, -1, 0, 1, 210, 211, 212, 999, 1000, 10**9]),
                   rng.choice(["$G", "ACME/é"]), rng.choice(["ORDERS", "logs", "LOGS-2"]))


def a_value(rng: random.Random, column: str) -> Any:
    if rng.random() < 0.05:
        return None
    if column == "seq":
        return rng.choice([-1, 0, 1, 2, 5, 6, 7, 8, 100, 2**40, 2**63 - 1])
    if column == "ts_ns":
        return rng.choice([-5, 0, NOW_NS - 1000, NOW_NS - 1, NOW_NS, NOW_NS + 1, NOW_NS + 211, 2**63 - 1])
    if column == "ts":
        micros = NOW_NS // 1000 + rng.choice([-2, -1, 0, 1, 10**6, -10**15])
        return (EPOCH + timedelta(microseconds=micros)).astimezone(rng.choice([UTC, timezone(timedelta(hours=-5))]))
    if column == "subject":
        text = rng.choice(SUBJECTS).decode("utf-8", "replace")
        start = rng.randrange(len(text))
        return rng.choice([text, text[:start], text[start:], rng.choice(WORDS)])
    return rng.choice(["ORDERS", "logs", "L", "S", "$G", "ACME/é", "é", ""])


def a_filter(rng: random.Random) -> Any:
    column = rng.choice(["seq", "seq", "ts", "ts", "ts_ns", "subject", "subject", "subject", "stream", "account",
                         "data", "headers"])
    kinds: list[Any] = [IsNull, IsNotNull]
    if column in ("seq", "ts", "ts_ns"):
        kinds += [EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual, In]
    elif column not in ("data", "headers"):
        kinds += [EqualTo, EqualNullSafe, In, StringStartsWith, StringEndsWith, StringContains, GreaterThan, LessThan,
                  UnknownFilter]
    kind = rng.choice(kinds)
    if kind in (IsNull, IsNotNull):
        made = kind((column,))
    elif kind is In:
        made = In((column,), tuple(a_value(rng, column) for _ in range(rng.randrange(4))))
    else:
        made = kind((column,), a_value(rng, column))
    return Not(made) if rng.random() < 0.3 else made


@pytest.mark.parametrize("seed", range(8))
def test_keeps_what_spark_keeps(seed: int) -> None:
    """A selection by random filters never loses a message that Spark would keep, and keeps no
    others if it reports the filter as handled."""
    rng = random.Random(seed)
    handled_ones = pruned = 0
    for _ in range(1000):
        selection, left = Selection(), []
        filters = [a_filter(rng) for _ in range(rng.choice([1, 1, 2, 4]))]
        for one in filters:
            selection, handled = selection.narrowed(one)
            handled_ones += handled
            if not handled:
                left.append(one)
        for message in [a_message(rng) for _ in range(8)]:
            wanted = all(by_spark(one, message) is True for one in filters)
            kept = keeps(selection, message)
            pruned += not kept
            then = kept and all(by_spark(one, message) is True for one in left)
            assert then == wanted, (seed, filters, message, selection)
            assert not (selection.nothing and kept), (filters, message)
    assert handled_ones > 300
    assert pruned > 1500


@pytest.mark.parametrize(("filter", "handled", "kept"), [
    (GreaterThan(("ts",), EPOCH + timedelta(microseconds=5)), True, [6000, 6001, 6999, 7000]),
    (GreaterThanOrEqual(("ts",), EPOCH + timedelta(microseconds=5)), True, [5000, 5001, 5999, 6000, 6001, 6999, 7000]),
    (LessThan(("ts",), EPOCH + timedelta(microseconds=6)), True, [4999, 5000, 5001, 5999]),
    (LessThanOrEqual(("ts",), EPOCH + timedelta(microseconds=5)), True, [4999, 5000, 5001, 5999]),
    (EqualTo(("ts",), EPOCH + timedelta(microseconds=6)), True, [6000, 6001, 6999]),
    (Not(LessThan(("ts",), EPOCH + timedelta(microseconds=6))), True, [6000, 6001, 6999, 7000]),
    (In(("ts",), (EPOCH + timedelta(microseconds=4), EPOCH + timedelta(microseconds=6))), False,
     [4999, 5000, 5001, 5999, 6000, 6001, 6999]),
    (Not(EqualTo(("ts",), EPOCH)), False, [4999, 5000, 5001, 5999, 6000, 6001, 6999, 7000]),
    (GreaterThan(("ts",), datetime(2030, 1, 1)), False, [4999, 5000, 5001, 5999, 6000, 6001, 6999, 7000]),
    (GreaterThan(("ts_ns",), 5001), True, [5999, 6000, 6001, 6999, 7000]),
    (LessThan(("ts_ns",), 5001), True, [4999, 5000]),
    (LessThan(("ts_ns",), -1), True, []),
])
def test_microseconds_are_nanoseconds_rounded_down(filter: Any, handled: bool, kept: list[int]) -> None:
    """Each bound is exact to the nanosecond. Times without a zone, and anything but an interval, are left to Spark."""
    selection, reported = Selection().narrowed(filter)
    assert reported == handled
    assert [ns for ns in (4999, 5000, 5001, 5999, 6000, 6001, 6999, 7000)
            if keeps(selection, Message(1, b"a", ns))] == kept


@pytest.mark.parametrize("filter", [
    EqualTo(("seq",), 5.0), EqualTo(("seq",), True), GreaterThan(("seq",), "5"), EqualTo(("headers", "name"), "x"),
    EqualTo(("elsewhere",), 5), IsNull(("headers",)), Not(Not(EqualTo(("seq",), 5))), StringContains(("data",), "x"),
    EqualTo(("subject",), "a\ufffd"), StringStartsWith(("subject",), "\ud800"), Not(In(("subject",), ("a", None))),
    In(("subject",), ("a", "b\ufffd")), GreaterThan(("subject",), "a"), object()])
def test_leaves_uncertain_filters_to_spark(filter: Any) -> None:
    assert Selection(first_seq=3).narrowed(filter) == (Selection(first_seq=3), False)


def test_bytes_are_compared_with_subjects_as_they_are() -> None:
    """This holds if the column is requested as BINARY."""
    selection, handled = Selection().narrowed(EqualTo(("subject",), bytearray(b"a\xff")))
    assert handled
    assert selection.matches_subject(b"a\xff")
    assert not selection.matches_subject("a\ufffd".encode())


def test_narrows_what_options_chose() -> None:
    """Options and filters both apply, whichever is narrower."""
    selection = Selection(subjects=(b"orders.*.created", b"alarm.>"), first_seq=10, last_seq=20, first_ns=5000)
    for one in (GreaterThan(("seq",), 4), LessThanOrEqual(("seq",), 15), GreaterThan(("ts_ns",), 7000),
                StringStartsWith(("subject",), "orders."), Not(EqualTo(("subject",), "orders.us.created"))):
        selection, handled = selection.narrowed(one)
        assert handled
    assert (selection.first_seq, selection.last_seq, selection.first_ns, selection.last_ns) == (10, 15, 7001, None)
    assert [subject for subject in (b"orders.eu.created", b"orders.us.created", b"alarm.x", b"orders.eu.paid")
            if selection.matches_subject(subject)] == [b"orders.eu.created"]
    assert not selection.nothing
    assert selection.narrowed(EqualTo(("seq",), 16))[0].nothing
    assert selection.narrowed(In(("subject",), ()))[0].nothing


@pytest.mark.parametrize("view", ["subjects", "blocks", "streams", "consumers"])
def test_filters_on_other_views_are_spark_s(view: str) -> None:
    """The columns of other views have other meanings; only subjects and streams of the view of subjects narrow the
    selection."""
    for one in (EqualTo(("account",), "A"), IsNull(("seq",)), GreaterThan(("ts",), EPOCH), EqualTo(("subject",), "a")):
        selection, handled = Selection(view=view).narrowed(one)
        assert not handled
        narrowed = view == "subjects" and one == EqualTo(("subject",), "a")
        assert (selection != Selection(view=view)) == narrowed


def test_patterns_are_nats_s() -> None:
    """Random patterns on random subjects, some with wildcards and empty tokens in them, match as in
    protocol.subject."""
    rng = random.Random(7)
    tokens = [b"a", b"b", b"*", b">", b"a*", b"*>", b"", b"\xff", b"\n", b"."]

    def subject() -> bytes:
        return b".".join(rng.choice(tokens) for _ in range(rng.randrange(1, 5)))

    hits = 0
    for _ in range(8_000):
        patterns, one = tuple(subject() for _ in range(rng.randrange(1, 4))), subject()
        want = any(matches(pattern, one) for pattern in patterns)
        hits += want
        assert Selection(subjects=patterns).matches_subject(one) == want, (patterns, one)
    assert hits > 400


def test_summaries_narrow_a_block_to_wanted_rows() -> None:
    summary = ((b"alarm.x", 1, 7, 7), (b"orders.eu.created", 5, 1, 9), (b"orders.us.paid", 2, 3, 4))
    assert Selection(subjects=(b"orders.*.created",)).rows_of(summary) == summary[1:2]
    assert Selection(prefixes=(b"orders.",)).rows_of(summary) == summary[1:]
    assert Selection(subjects=(b"metrics.>",)).rows_of(summary) == ()
    assert Selection().rows_of(summary) == summary


@pytest.mark.parametrize(("text", "ns"), [
    ("1970-01-01", 0), ("1970-01-01T00:00Z", 0), ("2026-11-21T14:00:00Z", 1795269600 * 10**9),
    ("2026-11-21 14:00:00", 1795269600 * 10**9), ("2026-11-21T15:00:00+01:00", 1795269600 * 10**9),
    ("2026-11-21T14:00:00.5-0000", 1795269600 * 10**9 + 500_000_000),
    ("2026-11-21T14:00:00.123456789Z", 1795269600_123456789), ("1700000000000000001", 1700000000000000001), (" 0 ", 0)])
def test_times(text: str, ns: int) -> None:
    assert time_ns(text) == ns


@pytest.mark.parametrize("text", ["", "yesterday", "2026-13-01", "2026-11-21T25:00:00Z", "-5", "1969-12-31", "9" * 20,
                                  "2026-11-21T14:00:00.1234567890Z", "٣", "2300-01-01"])
def test_times_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match=r"write|range|larger|is no time"):
        time_ns(text)
