"""Fixtures of tests with a whole broker."""

from __future__ import annotations

from functools import partial

import pytest

from broker.storage import shard
from broker.storage.compaction.settings import CompactionSettings


@pytest.fixture
def merges_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the brokers of this test's process merge nothing until the test asks for it."""
    monkeypatch.setattr(shard, "CompactionSettings",
                        partial(CompactionSettings, segments=1000, quiet_ns=3_600_000_000_000))
