"""Tests of many patterns at once give the same answers as ``collide`` and ``subset`` one by one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker.protocol.subject import collide, subset
from broker.protocol.subject_shapes import FirstMatch, SubjectShapes, first_overlap, first_subset, overlapping

_TOKENS = st.lists(st.sampled_from([b"a", b"b", b"*", b"a*", b">x"]), min_size=1, max_size=4)
PATTERNS = st.lists(st.builds(lambda tokens, rest: b".".join([*tokens, b">"] if rest else tokens), _TOKENS,
                              st.booleans()),
                    min_size=1, max_size=15)
SUBJECTS = st.lists(st.sampled_from([b"a", b"b", b"a*", b">x", b"c"]), min_size=1, max_size=5).map(b".".join)


@given(PATTERNS, SUBJECTS)
def test_a_subject_matches_what_one_of_the_patterns_matches(patterns: list[bytes], subject: bytes) -> None:
    assert SubjectShapes(patterns).match(subject) == any(collide(pattern, subject) for pattern in patterns)


@given(PATTERNS, SUBJECTS)
def test_the_first_pattern_that_matches(patterns: list[bytes], subject: bytes) -> None:
    assert FirstMatch(patterns).of(subject) == next((i for i, one in enumerate(patterns) if collide(one, subject)),
                                                    None)


@given(PATTERNS)
def test_the_first_pattern_that_another_contains(patterns: list[bytes]) -> None:
    """A pattern that occurs twice counts, too."""
    first = next((i for i, one in enumerate(patterns)
                  if any(i != j and subset(one, other) for j, other in enumerate(patterns))), len(patterns))
    assert first_subset(patterns) == first


@given(PATTERNS)
def test_the_first_pattern_that_overlaps_a_later_one(patterns: list[bytes]) -> None:
    first = next((i for i, one in enumerate(patterns) if any(collide(one, other) for other in patterns[i + 1:])),
                 len(patterns))
    assert first_overlap(patterns) == first


@given(PATTERNS, st.one_of(st.just([]), PATTERNS))
def test_the_patterns_that_overlap_others(patterns: list[bytes], others: list[bytes]) -> None:
    assert overlapping(patterns, others) == [
        i for i, one in enumerate(patterns) if any(collide(one, other) for other in others)]


def test_the_work_grows_with_the_patterns_not_with_their_pairs() -> None:
    """Ten thousand patterns have two shapes, and one pattern is contained in another."""
    patterns = [b"orders.%d.*" % i for i in range(5_000)] + [b"events.*.%d" % i for i in range(5_000)]
    assert len(SubjectShapes(patterns)) == 2
    assert first_subset(patterns) == len(patterns)
    assert first_subset([*patterns, b"events.7.>", b"events.7.8"]) == len(patterns) + 1


def test_an_empty_token_is_in_nothing() -> None:
    shapes = SubjectShapes([b"a.*", b"b.>"])
    assert not shapes.match(b"a.")
    assert not shapes.match(b"b.")
    assert shapes.supersets(b"a.") == 0
