"""Random configurations with protocol operations, played to the real nats-server and to jetblock."""

from __future__ import annotations

import pytest

from tests.fuzz.runs import SOAK_SECONDS, play_fresh_seeds, play_seeds

CHUNK = 5
SEEDS = 15
"""Number of configurations, each with ``DIALOGUES`` dialogues."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("first", range(1, SEEDS + 1, CHUNK))
async def test_operations(first: int) -> None:
    """Both servers accept the same configurations, and send the same messages and errors."""
    await play_seeds("protocol", range(first, first + CHUNK))


@pytest.mark.soak
@pytest.mark.timeout(SOAK_SECONDS + 600)
async def test_operations_soak() -> None:
    """Fresh seeds show no difference for a long time."""
    await play_fresh_seeds("protocol")
