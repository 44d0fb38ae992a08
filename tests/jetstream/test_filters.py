"""Filters: NATS's matching rules, including cached results."""

from __future__ import annotations

import pytest

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
    # A wildcard character inside a longer token is an ordinary one.
    ([b"a*.b"], [b"a*.b"], [b"ab.b", b"aa.b"]),
    ([b"a.b>"], [b"a.b>"], [b"a.bc"]),
    ([b"a.+(b)"], [b"a.+(b)"], [b"a.bb"]),
]


@pytest.mark.parametrize("filters, matching, others", CASES)
def test_matching(filters: list[bytes], matching: list[bytes], others: list[bytes]) -> None:
    """Each filter set matches by NATS's rules; asked twice, since the second answer is cached."""
    compiled = Filters(filters)
    for _ in range(2):
        assert all(compiled.match(subject) for subject in matching)
        assert not any(compiled.match(subject) for subject in others)
    assert all(compiled.decide(subject) for subject in matching)
    assert not any(compiled.decide(subject) for subject in others)


def test_all_pass_and_all_literal_sets() -> None:
    """All-pass and all-literal sets are recognized, since readers have fast paths for them."""
    assert ALL.all
    assert Filters([b"a", b">"]).all
    assert not ALL.literal
    assert Filters([b"a", b"b.c"]).literal
    assert not Filters([b"a", b"b.*"]).literal
    assert Filters([b"a.*"]).any([b"b", b"a.x"])
    assert not Filters([b"a.*"]).any([b"b", b"a"])


def test_memory_is_bounded() -> None:
    """A filter asked about ever new subjects stays correct."""
    compiled = Filters([b"a.*"])
    for i in range(140_000):
        assert compiled.match(b"a.%d" % i)
    assert not compiled.match(b"b.1")
