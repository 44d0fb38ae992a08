"""The backends and wrappers that the contract is tried on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from broker.storage.objectstore.base import ObjectStore
from broker.storage.objectstore.file import FileStore
from broker.storage.objectstore.memory import MemoryStore

BACKENDS = ["memory", "file", "file-named"]


@pytest.fixture(params=BACKENDS)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ObjectStore]:
    """An empty store of each kind."""
    made = _make(request, tmp_path)
    yield made
    await made.close()


def _make(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    match request.param:
        case "memory":
            return MemoryStore()
        case "file":
            return FileStore(tmp_path / "store")
        case "file-named":
            return FileStore(tmp_path / "store", nameless=False)
    raise AssertionError(request.param)
