"""Subject filters: a present subject is never excluded, for any pattern; few others are included."""

from __future__ import annotations

import random
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.pipeline.plan.selection import Selection
from broker.protocol.subject import matches
from broker.storage.format.subject_filter import (
    FILTER_ENTRIES_MAX,
    check_filter,
    encode_filter,
    entry_hashes,
    holds_all,
    may_hold,
    pattern_hash,
    prefix_hash,
    subject_hash,
)

TOKENS = st.sampled_from([b"a", b"b", b"orders", b"eu", b"17", b"", b"*", b">", b"\xff", "é".encode(), b"a b"]
                         ) | st.binary(max_size=6)
SUBJECTS = st.lists(TOKENS, min_size=1, max_size=5).map(b".".join)
MANY = st.lists(SUBJECTS, min_size=1, max_size=60, unique=True)


@given(MANY, SUBJECTS, st.integers(0, 8))
def test_a_present_subject_is_never_excluded(subjects: list[bytes], pattern: bytes, cut: int) -> None:
    """Shows that any present subjects are included: as literals, by patterns and by the bytes that they begin with."""
    data = encode_filter(sorted(subjects))
    assert data is not None
    assert check_filter(data) == data
    assert holds_all(data, entry_hashes(subjects))
    for subject in subjects:
        assert may_hold(data, (subject_hash(subject),))
        assert Selection(equal=frozenset((subject, b"absent"))).may_be_in(data)
        assert Selection(prefixes=(subject[:cut],), subjects=(subject, b"absent.>")).may_be_in(data)
        if (wanted := prefix_hash(subject[:cut])) is not None:
            assert may_hold(data, (wanted,))
    for one in (pattern, *(b".".join([*subject.split(b".")[:cut % 4], last]) for subject in subjects[:9]
                           for last in (b"*", b">"))):
        found = any(matches(one, subject) for subject in subjects)
        wanted = pattern_hash(one)
        if found and wanted is not None:
            assert may_hold(data, (wanted,))
        if any(map(Selection(subjects=(one,)).matches_subject, subjects)):
            assert Selection(subjects=(one,)).may_be_in(data)


@pytest.mark.parametrize("name", ["k.%d", "sensor.eu.%08d", "$KV.bucket.%x", "device.%d.temperature"])
@pytest.mark.parametrize("count", [17, 100, 500, 1000])
def test_few_others_are_included_and_an_entry_takes_a_byte(name: str, count: int) -> None:
    """Shows for similar subjects, as most are: at most 3 % are included, at 1.1 bytes an entry."""
    rng = random.Random(count)
    numbers = rng.sample(range(1 << 20), count + 3000)
    subjects = [(name % one).encode() for one in numbers[:count]]
    data = encode_filter(subjects)
    assert data is not None
    assert len(data) <= 8 + 1.1 * len(entry_hashes(subjects))
    absent = numbers[count:]
    assert sum(may_hold(data, (subject_hash((name % one).encode()),)) for one in absent) <= 0.03 * len(absent)


def test_long_subjects() -> None:
    """Shows a subject of 60 000 bytes and 1500 tokens among others: all its beginnings are in the filter, and the
    memory used is at most some times the subject's length."""
    long = b".".join([b"token" * 8] * 1500)
    subjects = [b"orders.eu", long, long[:1000] + b".x"]
    tracemalloc.start()
    data = encode_filter(subjects)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert data is not None
    assert peak < 10 * len(long)
    beginnings = {long[:at] for at in range(len(long)) if long[at:at + 1] == b"."}
    wanted = {subject_hash(one) for one in (*subjects, *beginnings, b"orders", long[:1000].rpartition(b".")[0])}
    wanted |= {subject_hash(long[:1000])}
    assert holds_all(data, wanted)
    assert entry_hashes(subjects) == wanted
    assert encode_filter([b"a." * 3000 + b"a"]) is None


def test_several_hashes_are_checked_at_once() -> None:
    """Shows that one present subject among any number is enough."""
    data = encode_filter([b"a.%d" % i for i in range(50)])
    assert data is not None
    absent = [subject_hash(b"b.%d" % i) for i in range(200)]
    absent = [one for one in absent if not may_hold(data, (one,))]
    assert len(absent) > 180
    for n in range(1, 12):
        assert not may_hold(data, absent[:n])
        assert may_hold(data, [*absent[:n], subject_hash(b"a.7")])
    assert not may_hold(data, ())


def test_patterns_without_a_beginning_exclude_nothing() -> None:
    data = encode_filter([b"a.b"])
    assert data is not None
    assert [pattern_hash(one) for one in (b">", b"*", b"*.b", b".*")] == [None] * 4
    assert prefix_hash(b"ord") is None
    assert Selection(subjects=(b"x.y", b"*.b")).may_be_in(data)
    assert not Selection(subjects=(b"x.y.>",)).may_be_in(data)
    assert Selection(suffixes=(b"no",), contains=(b"no",)).may_be_in(data)


def test_too_many_entries_are_no_filter() -> None:
    assert encode_filter([]) is None
    assert encode_filter([b"k.%d" % i for i in range(FILTER_ENTRIES_MAX)]) is None
    assert encode_filter([b"k.%d" % i for i in range(FILTER_ENTRIES_MAX - 1)]) is not None


def test_very_deep_subjects_take_no_memory() -> None:
    """Shows that the filter gives up early: 2000 subjects of 1000 tokens have two million beginnings."""
    deep = [b"%d." % i + b"a." * 1000 + b"z" for i in range(2000)]
    tracemalloc.start()
    assert encode_filter(deep) is None
    assert tracemalloc.get_traced_memory()[1] < 20 << 20
    tracemalloc.stop()


@pytest.mark.parametrize("data", [None, "text", b"", b"\x05\0\0\0", bytes(5), b"\x05" + bytes(1 << 16)])
def test_a_value_that_is_no_filter_is_refused(data: object) -> None:
    with pytest.raises(ValueError, match="filter"):
        check_filter(data)
