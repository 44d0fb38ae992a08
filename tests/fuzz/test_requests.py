"""Random JetStream requests, publishes and deliveries, played to the real nats-server and to jetblock."""

from __future__ import annotations

import pytest

from tests.fuzz.runs import SOAK_SECONDS, play_fresh_seeds, play_seeds

CHUNK = 42
SEEDS = 42


@pytest.mark.timeout(300)
@pytest.mark.parametrize("first", range(1, SEEDS + 1, CHUNK))
async def test_requests(first: int) -> None:
    """Answers, deliveries and states are equal, field by field."""
    await play_seeds("requests", range(first, first + CHUNK))


@pytest.mark.soak
@pytest.mark.timeout(SOAK_SECONDS + 600)
async def test_requests_soak() -> None:
    """Fresh seeds show no difference for a long time."""
    await play_fresh_seeds("requests")
