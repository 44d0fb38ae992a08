"""Sets of dead messages: what two sets of a block have in common, and together."""

from __future__ import annotations

import random

import pytest

from broker.storage.state.dead import DeadSet

pytestmark = pytest.mark.shows("auth.erasure")


@pytest.mark.parametrize("step", [1, 1000])  # bits, and ranges of a block with wide gaps
def test_sets_are_joined_and_cut_to_each_other(step: int) -> None:
    rng = random.Random(5)
    for _ in range(50):
        sets = [{seq for _ in range(rng.randrange(1, 30)) if (seq := rng.randrange(200))} for _ in range(2)]
        one, other = (DeadSet(7, 7 + 200 * step, 200) for _ in range(2))
        assert (one.bits is None) == (step > 1)
        for dead, seqs in zip((one, other), sets, strict=True):
            for seq in seqs:
                dead.add(7 + seq * step, 7 + seq * step)
        joined = DeadSet(7, 7 + 200 * step, 200)
        joined.join(one)
        joined.join(other)
        one.keep(other)
        for dead, wanted in ((one, sets[0] & sets[1]), (joined, sets[0] | sets[1])):
            assert [seq for seq in range(200) if 7 + seq * step in dead] == sorted(wanted)
