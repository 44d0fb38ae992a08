"""The store of the end-to-end tests: each test runs on a directory and on MinIO."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.stores import Store, make_store


@pytest.fixture(params=["directory", "minio"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return make_store(request.param, tmp_path, request)
