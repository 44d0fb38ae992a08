"""Filters: NATS's matching rules, including cached results."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.jetstream import filters as filters_module
from broker.jetstream.filters import ALL, Filters

CASES = [
    # filters, matching, not matching
    ([], [b"a", b"a.b"], []),
    ([b">"], [b"a", b"a.b"], []),
    ([b"a.b"], [b"a.b"], [b"a", b"a.b.c", b"a.bb", b"aXb"]),
    ([b"a.*"], [b"a.b", b"a.c"], [b"a", b"a.b.c", b"b.a", b"a."]),
    ([b"*.b"], [b"a.b", b"c.b"], [b"a.c", b"a.a.b"]),
    ([b"a.>"], [b"a.b", b"a.b.c"], [b"a", b"b.a"]),
    ([b"a.*.c", b"x", b"y.>"], [b"a.b.c", b"x", b"y.z"], [b"a.c", b"y", b"xx"]),
    # A wildcard character inside a longer token is an ordinary character.
    ([b"a*.b"], [b"a*.b"], [b"ab.b", b"aa.b"]),
    ([b"a.b>"], [b"a.b>"], [b"a.bc"]),
    ([b"a.+(b)"], [b"a.+(b)"], [b"a.bb"]),
]


@pytest.mark.parametrize("filters, matching, others", CASES)
def test_matching(filters: list[bytes], matching: list[bytes], others: list[bytes]) -> None:
    """Each filter set matches by NATS's rules; it is asked twice, because the second answer is cached."""
    compiled = Filters(filters)
    for _ in range(2):
        assert all(compiled.match(subject) for subject in matching)
        assert not any(compiled.match(subject) for subject in others)
    assert all(compiled.decide(subject) for subject in matching)
    assert not any(compiled.decide(subject) for subject in others)


def test_all_pass_and_all_literal_sets() -> None:
    """All-pass and all-literal sets are recognised, because readers have fast paths for them."""
    assert ALL.all
    assert Filters([b"a", b">"]).all
    assert not ALL.literal
    assert Filters([b"a", b"b.c"]).literal
    assert not Filters([b"a", b"b.*"]).literal
    assert Filters([b"a.*"]).any([b"b", b"a.x"])
    assert not Filters([b"a.*"]).any([b"b", b"a"])


def test_memory_is_bounded() -> None:
    """Shows that a filter asked about ever new subjects stays correct."""
    compiled = Filters([b"a.*"])
    for i in range(140_000):
        assert compiled.match(b"a.%d" % i)
    assert not compiled.match(b"b.1")


TOKENS = st.lists(st.sampled_from([b"a", b"b", b"ab", b"-", b"/", b"0", b"\xff", b"\x01"]), min_size=1, max_size=4)
PATTERNS = st.lists(st.sampled_from([b"a", b"b", b"ab", b"*", b"*", b"/"]), min_size=1, max_size=3)


@given(st.lists(st.tuples(PATTERNS, st.booleans()), min_size=1, max_size=3), st.lists(TOKENS, max_size=20))
def test_a_pass_over_many_subjects_selects_what_matches(patterns: list[tuple[list[bytes], bool]],
                                                        many: list[list[bytes]]) -> None:
    """``select`` agrees with ``match``, and ``spans`` hold every match; if the filter is contiguous,
    they hold nothing else."""
    filters = Filters([b".".join([*tokens, b">"] if rest else tokens) for tokens, rest in patterns])
    subjects = [b".".join(tokens) for tokens in many]
    matching = [subject for subject in subjects if filters.match(subject)]
    assert filters.select(subjects) == matching
    if not filters.spans:
        return
    within = [subject for subject in subjects if any(start <= subject < end for start, end in filters.spans)]
    assert [subject for subject in within if filters.match(subject)] == matching
    if filters.contiguous:
        assert within == matching
    ordered = sorted(filters.spans)
    assert all(end <= start for (_, end), (start, _) in pairwise(ordered))


@given(st.lists(st.tuples(PATTERNS, st.booleans()), min_size=1, max_size=12, unique_by=repr),
       st.lists(TOKENS, max_size=20))
def test_many_wildcards_match_by_their_tokens_as_one_by_one(patterns: list[tuple[list[bytes], bool]],
                                                            many: list[list[bytes]]) -> None:
    """Shows that a set matches what one of its filters matches, wherever the wildcards are."""
    wild = [b".".join([*tokens, b">"] if rest else tokens) for tokens, rest in patterns]
    wild = [one for one in wild if one != b">" and (b"*" in one or b">" in one)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(filters_module, "_TRIED_MAX", 0)
        patch.setattr(filters_module, "_TRIED_IN_A_SHAPE", 0)
        patch.setattr(filters_module, "_pattern", lambda _: None)
        by_tokens = Filters(wild)
    for subject in map(b".".join, many):
        assert by_tokens.match(subject) == (any(Filters([one]).match(subject) for one in wild) if wild
                                            else by_tokens.all)


def test_a_thousand_wildcards_are_no_pattern(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pattern of them takes 30 ms to compile, and tries all of them if they begin with a wildcard."""
    monkeypatch.setattr(filters_module, "_pattern", lambda _: pytest.fail("a pattern of a thousand"))
    filters = Filters([b"*.k%d.>" % i for i in range(1000)])
    assert filters.select([b"a.k7.b", b"a.k7", b"a.k1000.b", b"a.b.k7", b"b.k999.c.d"]) == [b"a.k7.b", b"b.k999.c.d"]


def test_a_prefix_is_no_match_of_what_is_below_it() -> None:
    """``a.>`` wants a token after the dot."""
    assert Filters([b"a.>"]).select([b"a.", b"a.b", b"a", b"a/"]) == [b"a.b"]
