"""The stores for tests of whole brokers: a directory, and a bucket on a real MinIO or SeaweedFS."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.real.s3 import S3Server

__all__ = ["Store", "make_store"]


@dataclass(frozen=True)
class Store:
    """A store for one test: its URL, and the environment that a broker needs to reach it."""

    url: str
    environ: Mapping[str, str] = field(default_factory=dict)


def make_store(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> Store:
    """Make a store; ``kind`` is ``directory``, ``minio`` or ``seaweed``. The first test that needs a server starts
    it."""
    if kind == "directory":
        return Store(f"file://{tmp_path / 'store'}")
    server: S3Server = request.getfixturevalue(kind)
    # A broker that is killed and started again takes over at once only under a configured name.
    return Store(server.new_url(), {**server.env, "JETBLOCK_SERVER_NAME": "one"})
