"""Random changes of configurations under live connections, played to the real nats-server and to jetblock."""

from __future__ import annotations

import pytest

from tests.fuzz.runs import SOAK_SECONDS, play_fresh_seeds, play_seeds

CHUNK = 60
SEEDS = 120


@pytest.mark.timeout(300)
@pytest.mark.parametrize("first", range(1, SEEDS + 1, CHUNK))
async def test_reloads(first: int) -> None:
    """SIGHUP makes both servers close the same connections with the same errors; the others continue alike."""
    await play_seeds("reload", range(first, first + CHUNK))


@pytest.mark.soak
@pytest.mark.timeout(SOAK_SECONDS + 600)
async def test_reloads_soak() -> None:
    """Fresh seeds show no difference for a long time."""
    await play_fresh_seeds("reload")
