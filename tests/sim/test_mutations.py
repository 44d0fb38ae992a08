"""Each planted mistake is noticed by one of the worlds, most within a few seeds."""

from __future__ import annotations

import pytest

from tests.sim.mutations import MUTATIONS
from tests.sim.streams.world import World

KNOWN: dict[str, list[int]] = {}
"""The seed to look at first, where most seeds do without the rule: those are left to the soak."""


def noticed(seed: int) -> bool:
    try:
        World(seed).run()
    except AssertionError:
        return True
    return False


@pytest.mark.timeout(900)
@pytest.mark.parametrize("mutation", [
    pytest.param(mutation, marks=pytest.mark.soak if mutation in KNOWN else ()) for mutation in sorted(MUTATIONS)])
def test_the_oracle_notices(mutation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one mistake planted some promise is broken, and the oracle says so."""
    MUTATIONS[mutation](monkeypatch)
    if not any(map(noticed, [*KNOWN.get(mutation, ()), *range(300)])):
        pytest.fail(f"nothing was noticed of {mutation}")
