"""The bytes of the live messages of all streams of one storage kind, and their bound.

One ``Usage`` for memory and one for what is stored; every stream of the kind adds to it what it sequences and takes from
it what leaves. So a bound on all streams costs a publish one comparison.

nats-server's rule: a publish is refused once *more* than the bound is held, so the message that passes it is still taken.

Source: nats-server, server/jetstream.go (limitsExceeded), server/jetstream_cluster.go (resourcesExceededError).
"""

from __future__ import annotations

import logging
import sys

__all__ = ["Usage"]

_log = logging.getLogger(__name__)

_TOLD_APART_NS = 10_000_000_000


class Usage:
    """Attributes: ``bytes``: user bytes of all live messages; ``bytes_max``: past it publishes are refused."""

    __slots__ = ("_kind", "_told_at_ns", "bytes", "bytes_max")

    def __init__(self, kind: str = "", bytes_max: int = -1) -> None:
        """``kind`` as in a stream's ``storage``; ``bytes_max`` -1: no bound."""
        self.bytes = 0
        self.bytes_max = bytes_max if bytes_max >= 0 else sys.maxsize
        self._kind = kind
        self._told_at_ns: int | None = None

    def refused(self, now_ns: int) -> None:
        """A publish was refused for it: log that, but not for each one."""
        if self._told_at_ns is None or now_ns - self._told_at_ns > _TOLD_APART_NS:
            self._told_at_ns = now_ns
            _log.error("JetStream %s resource limits exceeded for server", self._kind)
