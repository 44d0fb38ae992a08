"""Tests that make a world run with the default cache size, and with a cache that holds next to nothing."""

from __future__ import annotations

import pytest

from tests.jetstream.stream import paged_world, world

WORLDS = (world.__name__, paged_world.__name__)
SIZES = (world.CACHE_BYTES, world.TINY_CACHE_BYTES)


@pytest.fixture(autouse=True)
def long_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise the time limits of decisions: they are in real time, which passes quickly on a busy machine."""
    for module in ("appending", "publish.copies", "retention.enforcement", "stream"):
        monkeypatch.setattr(f"broker.jetstream.stream.{module}.WAIT_SECONDS", 60.0)


@pytest.fixture(autouse=True)
def cache_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int | None:
    """The cache size of worlds that do not set their own; None: the test's module makes no worlds."""
    size: int | None = getattr(request, "param", None)
    monkeypatch.setattr(world, "CACHE_BYTES", size)
    return size


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run tests of modules that import worlds with both cache sizes, unless a module has its own ``cache_bytes``."""
    names = vars(metafunc.module)
    if "cache_bytes" not in names and any(getattr(value, "__module__", None) in WORLDS for value in names.values()):
        metafunc.parametrize("cache_bytes", SIZES, ids=["", "tiny-cache"], indirect=True)
