"""Keeps botocore's data files in memory: each client of S3 that a test makes would read and decode 2 MB of JSON again.

A client takes 50 ms of processor time with them, and 160 ms without. Clients of one session share the decoded files in
botocore, too.
"""

from __future__ import annotations

import asyncio
from functools import cache
from typing import Any

from botocore.loaders import JSONFileLoader

__all__ = ["keep_files", "load_files"]


def keep_files() -> None:
    """Let all loaders of this process share what they have read."""
    load = JSONFileLoader.load_file
    kept = cache(lambda path: load(JSONFileLoader(), path))
    JSONFileLoader.load_file = lambda self, path: kept(path)


def load_files() -> None:
    """Read the files that a client of S3 needs, by making one. It makes no connection."""
    from aiobotocore.session import AioSession

    async def make() -> Any:
        session = AioSession()
        session.set_credentials("key", "secret")
        async with session.create_client("s3", region_name="us-east-1", endpoint_url="http://127.0.0.1:1"):
            pass

    asyncio.run(make())
