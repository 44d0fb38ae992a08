"""Every test of a stream runs with the cache as it is by default, and with one that holds next to nothing."""

from __future__ import annotations

import pytest

from tests.jetstream.stream import world


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a decision may wait for is bounded in real time, which passes quickly on a busy machine."""
    for module in ("appending", "publish.copies", "retention.enforcement", "stream"):
        monkeypatch.setattr(f"broker.jetstream.stream.{module}.WAIT_SECONDS", 60.0)


@pytest.fixture(autouse=True, params=[world.CACHE_BYTES, world.TINY_CACHE_BYTES], ids=["", "tiny-cache"])
def cache_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """The cache size of worlds that do not set their own."""
    monkeypatch.setattr(world, "CACHE_BYTES", request.param)
    return int(request.param)
