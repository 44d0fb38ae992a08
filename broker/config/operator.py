"""Where account tokens come from, as a plain value."""

from __future__ import annotations

from typing import Literal

from broker.base.value import Value

__all__ = ["ResolverSettings", "shown_url"]


class ResolverSettings(Value, hidden=["url"]):
    """``directory`` for full and cache, ``url`` for url."""

    kind: Literal["memory", "full", "cache", "url"]
    directory: str = ""
    url: str = ""
    allow_delete: bool = False
    hard_delete: bool = False
    limit: int = 0
    """How many tokens the directory may have; 0: any number."""

    ttl_ns: int = 0
    """How long an unused token stays in a cache; 0: for ever."""

    timeout_ns: int = 2_000_000_000
    """For one look-up."""


def shown_url(url: str, mask: str = "xxxxx") -> str:
    """``url`` without the password that it may have; the default is Go's mask."""
    from urllib.parse import urlsplit  # takes 10 ms to import, and is rarely needed

    password = urlsplit(url).password
    return url.replace(f":{password}@", f":{mask}@") if password else url
