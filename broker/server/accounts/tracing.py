"""Choice of an account's messages that are traced because an outer trace (``traceparent``) samples them.

Source: nats-server, server/msgtrace.go (initMsgTrace, sample).
"""

from __future__ import annotations

import random

from broker.access.accounts import OuterTrace

__all__ = ["OuterTracing"]


class OuterTracing:
    """The tracing of one account (``broker.server.routing.neighbours.Tracing``)."""

    def __init__(self, settings: OuterTrace, rng: random.Random) -> None:
        self.dest = settings.dest.encode()
        self._sampling = settings.sampling
        self._rng = rng

    def sampled(self) -> bool:
        """Return whether to trace this message; a random choice."""
        return self._sampling >= 100 or self._rng.randrange(100) <= self._sampling
