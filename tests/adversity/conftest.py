"""Real servers for the tests of this folder."""

from __future__ import annotations

from tests.real.s3 import minio

__all__ = ["minio"]
