"""The backends and wrappers that the contract is tried on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from broker.storage.objectstore import open_store
from broker.storage.objectstore.base import ObjectStore
from broker.storage.objectstore.file import FileStore
from broker.storage.objectstore.memory import MemoryStore
from tests.real.s3 import S3Server, minio, seaweed, tell_missing

__all__ = ["minio", "seaweed"]

BACKENDS = ["memory", "file", "file-named", "minio", "seaweed"]


@pytest.fixture(params=BACKENDS)
async def store(request: pytest.FixtureRequest, tmp_path: Path,
                monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ObjectStore]:
    """An empty store of each kind."""
    made = _make(request, tmp_path, monkeypatch)
    yield made
    await made.close()


def _make(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    match request.param:
        case "memory":
            return MemoryStore()
        case "file":
            return FileStore(tmp_path / "store")
        case "file-named":
            return FileStore(tmp_path / "store", nameless=False)
        case "minio" | "seaweed" as name:
            server: S3Server = request.getfixturevalue(name)
            for variable, value in server.env.items():
                monkeypatch.setenv(variable, value)
            return open_store(server.new_url())
    raise AssertionError(request.param)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    tell_missing(terminalreporter)
