"""Opening a store by its URL.

    file://DIR              a directory; everything after the slashes is its path, which may be relative
    s3://BUCKET[/PREFIX]    a bucket, or the part of it below PREFIX; the rest comes from the AWS_* environment
    memory://               nothing is kept
"""

from __future__ import annotations

import re
from typing import NamedTuple

from broker.storage.objectstore.base import ObjectStore
from broker.storage.objectstore.file import FileStore
from broker.storage.objectstore.memory import MemoryStore

__all__ = ["StoreUrl", "open_store", "parse_store_url"]

_BUCKET = re.compile(r"[a-z0-9A-Z][a-z0-9A-Z._-]{1,62}\Z")
_FORMS = "file://DIR, s3://BUCKET/PREFIX or memory://"


class StoreUrl(NamedTuple):
    """scheme: ``file``, ``s3`` or ``memory``. where: the directory, or the bucket. prefix: of the keys, "" or without a
    slash at either end."""

    scheme: str
    where: str
    prefix: str = ""


def parse_store_url(url: str) -> StoreUrl:
    """Parse a store's URL. Raises: ValueError that says what is wrong and how to write it, without secrets."""
    scheme, colon, rest = url.partition("://")
    if not colon:
        raise ValueError(f"{_hide(url)!r} is not the URL of a store: write {_FORMS}")
    if scheme == "file":
        if not rest or "\0" in rest:
            raise ValueError("file:// needs a directory: write file:///var/lib/jetblock or file://DIR")
        return StoreUrl(scheme, rest)
    if scheme == "s3":
        if "@" in rest:
            raise ValueError(f"{_hide(url)!r}: no credentials in the URL, they would show in logs; "
                             f"set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
        if "?" in rest or "#" in rest:
            raise ValueError(f"{url!r}: s3:// takes no options; set AWS_ENDPOINT_URL, AWS_REGION and the like")
        bucket, _, prefix = rest.partition("/")
        if not _BUCKET.match(bucket):
            raise ValueError(f"{url!r}: {bucket!r} cannot be a bucket's name: write s3://BUCKET/PREFIX")
        prefix = prefix.strip("/")
        if any(s in ("", ".", "..") or not s.isprintable() for s in prefix.split("/")) and prefix:
            raise ValueError(f"{url!r}: the prefix may not have empty segments, '.' or '..'")
        return StoreUrl(scheme, bucket, prefix)
    if scheme == "memory":
        if rest:
            raise ValueError(f"{url!r}: memory:// takes nothing more")
        return StoreUrl(scheme, "")
    raise ValueError(f"{_hide(url)!r}: no store of the kind {scheme!r}: write {_FORMS}")


def open_store(url: str, *, read_only: bool = False, endpoint: str | None = None,
               region: str | None = None, put_timeout_ns: int = 5_000_000_000,
               get_timeout_ns: int = 30_000_000_000, connections_max: int = 32,
               sync_interval_ns: int | None = None) -> ObjectStore:
    """The store at ``url``, without wrappers; an S3 endpoint is not contacted before the first call.

    Args: ``read_only`` creates nothing, for inspection. ``sync_interval_ns`` is for a directory; None: every put is synced. The
        others are for S3; ``endpoint`` and ``region`` take precedence over AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL and AWS_REGION.
    Raises: ValueError for a URL of no known form; StoreRefused for a directory that cannot be used.
    """
    scheme, where, prefix = parse_store_url(url)
    if scheme == "file":
        return FileStore(where, read_only=read_only, sync_interval_ns=sync_interval_ns)
    if scheme == "memory":
        return MemoryStore()
    # Importing it costs some 200 ms and 35 MB, which a directory store should not pay.
    from broker.storage.objectstore.s3 import S3Store

    return S3Store(where, prefix, endpoint=endpoint, region=region, put_timeout_ns=put_timeout_ns,
                   get_timeout_ns=get_timeout_ns, connections_max=connections_max)


def _hide(url: str) -> str:
    """The URL without its part before an ``@``."""
    scheme, colon, rest = url.rpartition("://")
    return f"{scheme}{colon}…@{rest.rpartition('@')[2]}" if "@" in rest else url
