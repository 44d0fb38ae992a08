"""Fixtures of the object store tests: a scripted S3 server."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.storage.objectstore.fake_s3 import FakeS3, fake_s3


@pytest.fixture
async def fake(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FakeS3]:
    """Start a scripted S3 server, with credentials in the environment that a test would notice in any text."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "verysecret")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "tokensecret")
    async with fake_s3() as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint)
        yield server
