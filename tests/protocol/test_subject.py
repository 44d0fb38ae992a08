"""Subjects, compared with a matcher that is too simple to be wrong."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.protocol.subject import collide, is_literal, is_valid, matches, subset

TOKENS = ["a", "b", "*", "a*", ">b"]
patterns = st.lists(st.sampled_from(TOKENS), min_size=1, max_size=4).flatmap(
    lambda tokens: st.sampled_from([".".join(tokens), ".".join([*tokens[:-1], ">"])]))
SUBJECTS = [".".join(tokens) for size in range(1, 6)
            for tokens in itertools.product(["a", "b", "a*", ">b"], repeat=size)]


def naive(pattern: str) -> re.Pattern[str]:
    tokens = pattern.split(".")
    parts = [r"[^.]+" if token == "*" else r"[^.]+(?:\.[^.]+)*" if token == ">" and at == len(tokens) - 1
             else re.escape(token) for at, token in enumerate(tokens)]
    return re.compile(r"\.".join(parts))


@pytest.mark.shows("core.wildcards")
@given(patterns)
def test_matches(pattern: str) -> None:
    """``matches`` agrees with a regular expression on every subject of up to five tokens of a small alphabet."""
    wanted = naive(pattern)
    for subject in SUBJECTS:
        assert matches(pattern.encode(), subject.encode()) == bool(wanted.fullmatch(subject)), (pattern, subject)


@given(patterns, patterns)
def test_collide_and_subset(one: str, other: str) -> None:
    """Both agree with the sets of matched subjects."""
    first = {subject for subject in SUBJECTS if naive(one).fullmatch(subject)}
    second = {subject for subject in SUBJECTS if naive(other).fullmatch(subject)}
    assert collide(one.encode(), other.encode()) == bool(first & second)
    assert subset(one.encode(), other.encode()) == (first <= second)


@pytest.mark.parametrize("subject", [b"a", b"a.b", b"*", b">", b"a.*.b", b"a.>", b"a*", b"a.b>", b"\xff.\xc3\xa9"])
def test_valid(subject: bytes) -> None:
    assert is_valid(subject)


@pytest.mark.parametrize("subject", [b"", b".", b"a.", b".a", b"a..b", b">.a", b"a.>.b", b"a b", b"a\tb", b"a.\n",
                                     b">.>"])
def test_invalid(subject: bytes) -> None:
    assert not is_valid(subject)


def test_literal() -> None:
    """Wildcards count only as whole tokens."""
    assert is_literal(b"a.b")
    assert is_literal(b"a*.b>")
    assert is_literal(b"*a")
    assert not is_literal(b"a.*")
    assert not is_literal(b">")
    assert not is_literal(b"*.b")
