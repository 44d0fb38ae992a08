"""What the router's caches of routes, by subject or by family of subjects, have in common: their bound, and what is dropped when
a subscription comes or goes."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from broker.server.routing.route import Route

__all__ = ["ROUTES_KEPT", "Cache", "drop_within", "halve", "root"]

ROUTES_KEPT: Final = 8192
"""Bound of each route cache, in entries; past it the older half is dropped."""

_SCAN_MAX: Final = 2048
"""Up to this many cached routes are searched for those that a wildcard affects; a larger cache is cleared."""

Cache = dict[bytes, "Route"] | dict[bytes, "Route | None"]


def drop_within(cache: Cache, prefix: bytes) -> None:
    """Drop the routes of ``prefix`` and of what begins with it and a dot; b"": all."""
    if not prefix or len(cache) > _SCAN_MAX:
        cache.clear()
        return
    dotted = prefix + b"."
    for key in [key for key in cache if key.startswith(dotted) or key == prefix]:
        del cache[key]


def halve(cache: Cache) -> None:
    """Drop the older half."""
    for key in list(islice(cache, len(cache) // 2)):
        del cache[key]


def root(subject: bytes) -> bytes:
    """The first two tokens, or the only one."""
    end = subject.find(b".", subject.find(b".") + 1)
    return subject if end < 0 else subject[:end]
