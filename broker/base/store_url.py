"""The URL of a store: its parts, and a proposal in place of a text that is none.

    file://DIR              a directory; everything after the slashes is its path, which may be relative
    s3://BUCKET[/PREFIX]    a bucket, or the part of it below PREFIX; the rest comes from the AWS_* environment
    memory://               nothing is kept
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple

__all__ = ["StoreUrl", "has_scheme", "hidden", "parse_store_url", "proposal"]

_BUCKET = re.compile(r"[a-z0-9A-Z][a-z0-9A-Z._-]{1,62}\Z")
_SCHEME = re.compile(r"(s3|s3a|s3n|file|memory|https?|nats|tls|wss?|[a-z][a-z0-9+.-]*(?=://)):(/*)(.*)",
                     re.IGNORECASE | re.DOTALL)
"""A known scheme, also if the slashes after it are missing; or any other one with both slashes."""
_FORMS = "file://DIR, s3://BUCKET/PREFIX or memory://"


class StoreUrl(NamedTuple):
    """A parsed URL.

    scheme: ``file``, ``s3`` or ``memory``. where: the directory or the bucket. prefix: the prefix of keys, without a
    slash at either end.
    """

    scheme: str
    where: str
    prefix: str = ""


def parse_store_url(url: str) -> StoreUrl:
    """Parse a store's URL. Raises: ValueError with the mistake and the right form, without secrets."""
    if not url:
        raise ValueError(f"the URL of the store is empty: write {_FORMS}")
    scheme, colon, rest = url.partition("://")
    if not colon:
        raise ValueError(f"{hidden(url)!r} is not the URL of a store: write {_FORMS}; try {proposal(url)}")
    if scheme == "file":
        if not rest or "\0" in rest:
            raise ValueError("file:// needs a directory: write file:///var/lib/jetblock or file://DIR")
        if rest.startswith("~"):
            raise ValueError(f"{url!r}: ~ has no meaning in a URL: write file://{os.path.expanduser(rest)}")
        return StoreUrl(scheme, rest)
    if scheme == "s3":
        if "@" in rest:
            raise ValueError(f"{hidden(url)!r}: no credentials in the URL, they would show in logs; "
                             "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
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
    raise ValueError(f"{hidden(url)!r}: no store of the kind {scheme!r}: write {_FORMS}; try {proposal(url)}")


def hidden(url: str) -> str:
    """Return the URL without its part before an ``@``."""
    scheme, colon, rest = url.rpartition("://")
    return f"{scheme}{colon}…@{rest.rpartition('@')[2]}" if "@" in rest else url


def has_scheme(text: str) -> bool:
    """Return whether a text is a URL, or was meant as one, such as ``s3:/bucket``; otherwise it is a path."""
    return _SCHEME.match(text) is not None


def proposal(text: str) -> str:
    """Return the URL that was probably meant by ``text``, which is no URL of a store; never with credentials."""
    found = _SCHEME.match(text)
    if found is None:
        path = os.path.expanduser(text)
        bucket = text.partition("/")[0]
        if text.startswith(("/", ".", "~")) or not _BUCKET.match(bucket):
            return f"file://{path}"
        return f"file://{path} for a directory, or s3://{text} for a bucket"
    scheme, slashes, rest = found[1].lower(), found[2], found[3]
    rest = rest.rpartition("@")[2]
    if scheme == "file":
        return f"file://{'/' if len(slashes) % 2 else ''}{rest}"
    if scheme in ("s3", "s3a", "s3n"):
        return f"s3://{rest}" if rest else "s3://BUCKET/PREFIX"
    if scheme in ("http", "https"):
        return f"s3://BUCKET/PREFIX with AWS_ENDPOINT_URL={scheme}://{rest.partition('/')[0]}"
    if scheme == "memory":
        return "memory://"
    return "file:///dir or s3://bucket/prefix"
