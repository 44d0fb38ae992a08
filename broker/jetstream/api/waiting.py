"""How many API requests of all accounts wait at once: of those that only ask, and of the others.

Source: nats-server, server/jetstream_api.go (apiDispatch), which empties its queue at the limit; here what waits is served,
and what comes then is dropped.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from broker.clock import Clock
    from broker.config.settings import JetStreamSettings

__all__ = ["Waiting", "only_asks"]

_log = logging.getLogger(__name__)

_TELL_NS: Final = 1_000_000_000

_ASKING: Final = frozenset({("INFO",), ("STREAM", "NAMES"), ("STREAM", "LIST"), ("STREAM", "INFO"), ("CONSUMER", "NAMES"),
                            ("CONSUMER", "LIST"), ("CONSUMER", "INFO")})


class Waiting:
    """The counts, against ``request_queue_limit`` and ``info_queue_limit``."""

    def __init__(self, settings: JetStreamSettings, clock: Clock) -> None:
        requests = settings.request_queue_limit
        self._limits = requests, settings.info_queue_limit or requests
        self._counts = [0, 0]
        self._clock = clock
        self._dropped = 0
        self._told_ns = -_TELL_NS

    @property
    def count(self) -> int:
        """Requests that wait now."""
        return sum(self._counts)

    def admit(self, asks: bool) -> bool:
        """Count a request that is to wait; False: too many do, and it is dropped. The log tells once a second."""
        if self._counts[asks] < self._limits[asks]:
            self._counts[asks] += 1
            return True
        self._dropped += 1
        now_ns = self._clock.monotonic_ns()
        if now_ns - self._told_ns >= _TELL_NS:
            _log.warning("JetStream API %s limit reached, dropping %d requests", "info queue" if asks else "queue", self._dropped)
            self._told_ns, self._dropped = now_ns, 0
        return False

    def done(self, asks: bool) -> None:
        """One of them waits no longer."""
        self._counts[asks] -= 1


def only_asks(tokens: list[str]) -> bool:
    """Whether a request, by the tokens of its subject, is one of nats-server's info requests."""
    return tuple(tokens[:2]) in _ASKING
