"""The source of account tokens, as a plain value."""

from __future__ import annotations

from typing import Literal

from broker.base.value import Value

__all__ = ["ResolverSettings", "shown_url"]


class ResolverSettings(Value, hidden=["url"]):
    """A resolver. ``directory`` is for the kinds full and cache, ``url`` for the kind url."""

    kind: Literal["memory", "full", "cache", "url"]
    directory: str = ""
    url: str = ""
    allow_delete: bool = False
    hard_delete: bool = False
    limit: int = 0
    """The most tokens in the directory; 0: no limit."""

    ttl_ns: int = 0
    """The time for which an unused token stays in a cache; 0: for ever."""

    timeout_ns: int = 2_000_000_000
    """The time-out of one look-up."""


def shown_url(url: str, mask: str = "xxxxx") -> str:
    """Return ``url`` with ``mask`` in place of a password; the default is Go's mask."""
    from urllib.parse import urlsplit  # takes 10 ms to import, and is rarely needed

    password = urlsplit(url).password
    return url.replace(f":{password}@", f":{mask}@") if password else url
