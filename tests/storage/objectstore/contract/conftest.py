"""The backends and wrappers that the contract's tests run on."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from broker.base.clock import SystemClock
from broker.storage.objectstore import open_store
from broker.storage.objectstore.base import ObjectStore
from broker.storage.objectstore.file import FileStore
from broker.storage.objectstore.instrumented import InstrumentedStore
from broker.storage.objectstore.memory import MemoryStore
from broker.storage.objectstore.retrying import RetryingStore
from tests.real.s3 import S3Server
from tests.storage.objectstore.faulty import Faults, FaultyStore

BACKENDS = ["memory", "file", "file-named", "retrying", "instrumented", "faulty", "retrying-faulty", "stack-file",
            "minio", "seaweed"]


@pytest.fixture(params=BACKENDS)
async def store(request: pytest.FixtureRequest, tmp_path: Path,
                monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ObjectStore]:
    """An empty store of each kind."""
    made = _make(request, tmp_path, monkeypatch)
    yield made
    await made.close()


def _make(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    kind: str = request.param
    clock, rng = SystemClock(), random.Random(1)
    match kind:
        case "memory":
            return MemoryStore()
        case "file":
            return FileStore(tmp_path / "store")
        case "file-named":
            return FileStore(tmp_path / "store", nameless=False)
        case "minio" | "seaweed":
            server: S3Server = request.getfixturevalue(kind)
            for variable, value in server.env.items():
                monkeypatch.setenv(variable, value)
            # SeaweedFS serializes concurrent puts of one key, a second each.
            return open_store(server.new_url(), put_timeout_ns=60_000_000_000)
        case "retrying":
            return RetryingStore(MemoryStore(), clock=clock, rng=rng)
        case "instrumented":
            return InstrumentedStore(MemoryStore(), clock=clock)
        case "faulty":
            return FaultyStore(MemoryStore(), rng=rng)
        case "retrying-faulty":
            # These are the faults after which it is certain whether a put was done, so retrying hides them all.
            faults = Faults(refused=0.2, lost=0.1, slow=0.1, slow_ns_max=1000, timeout_ns=1000)
            return RetryingStore(FaultyStore(MemoryStore(), rng=rng, faults=faults), clock=clock, rng=rng,
                                 sleep=lambda _seconds: asyncio.sleep(0))
        case "stack-file":
            inner = FileStore(tmp_path / "store")
            return RetryingStore(InstrumentedStore(inner, clock=clock), clock=clock, rng=rng)
    raise AssertionError(kind)
