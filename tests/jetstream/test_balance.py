"""The rules by which brokers give shards away: a table of brokers with their shards, and the gift that follows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from broker.jetstream.owners.balance import Gift, heir, next_gift
from broker.jetstream.owners.roster import Line


def line(name: str, own: Any, shards: Mapping[int, float] | list[int]) -> Line:
    return Line(name, name, own, shards if isinstance(shards, dict) else dict.fromkeys(shards, 0.0))


@pytest.mark.parametrize(("me", "others", "gift"), [
    # own shards go home, from a broker that does not name them
    (line("a", (0,), [0, 1]), [line("b", (1,), [])], (1, "b")),
    (line("a", (0, 1), [0, 1]), [line("b", (1,), [])], None),
    (line("a", "auto", [0, 1]), [line("b", (0,), [])], (0, "b")),
    (line("a", (0,), [0, 1, 2]), [line("b", (), [])], None),
    # among brokers with auto, two shards more are one too many
    (line("a", "auto", [0, 1]), [line("b", "auto", [])], (1, "b")),
    (line("a", "auto", [0, 1]), [line("b", "auto", [2])], None),
    (line("a", "auto", [0, 1, 2]), [line("b", "auto", [3]), line("c", "auto", [])], (1, "c")),
    (line("a", "auto", [0, 1]), [], None),
    # the one that makes the loads most equal; shard 0 last
    (line("a", "auto", {0: 5.0, 1: 90.0, 2: 50.0}), [line("b", "auto", {3: 45.0})], (2, "b")),
    (line("a", "auto", {0: 0.0, 1: 0.0}), [line("b", "auto", {})], (1, "b")),
])
def test_next_gift(me: Line, others: list[Line], gift: tuple[int, str] | None) -> None:
    """One shard at a time, to one broker."""
    found = next_gift(me, others)
    assert (None if found is None else (found.shard, found.to.name)) == gift


def test_fixed_shards_stay() -> None:
    """Another shard goes instead, if that helps."""
    me, other = line("a", "auto", [0, 1, 2]), line("b", "auto", [])
    assert next_gift(me, [other], lambda number: number == 1) == Gift(2, other)
    assert next_gift(me, [other], lambda number: True) is None


def test_heirs() -> None:
    """A broker that stops gives a shard to its home, else to the broker with the fewest shards."""
    few, home = line("b", "auto", [3]), line("c", (0,), [1, 2])
    assert heir(0, [few, home]) is home
    assert heir(5, [few, home]) is few
    assert heir(5, []) is None
