"""How many API requests of all accounts wait at once: of those that only ask, and of the others.

Source: nats-server, server/jetstream_api.go (apiDispatch), which empties its queue at the limit; here what waits is served,
and what comes then is dropped.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from broker.config.settings import JetStreamSettings

__all__ = ["Waiting", "only_asks"]

_log = logging.getLogger(__name__)

_TELL_SECONDS: Final = 1.0

_ASKING: Final = frozenset({("INFO",), ("STREAM", "NAMES"), ("STREAM", "LIST"), ("STREAM", "INFO"), ("CONSUMER", "NAMES"),
                            ("CONSUMER", "LIST"), ("CONSUMER", "INFO")})


class Waiting:
    """The counts, against ``request_queue_limit`` and ``info_queue_limit``.

    Args: ``tell`` is told how many requests were dropped: of the first at once, then once a second while there are more.
    """

    def __init__(self, settings: JetStreamSettings, tell: Callable[[int], object]) -> None:
        requests = settings.request_queue_limit
        self._limits = requests, settings.info_queue_limit or requests
        self._counts = [0, 0]
        self._tell = tell
        self._dropped = [0, 0]
        self._until_told: asyncio.TimerHandle | None = None

    @property
    def count(self) -> int:
        """Requests that wait now."""
        return sum(self._counts)

    def admit(self, asks: bool) -> bool:
        """Count a request that is to wait; False: too many do, and it is dropped."""
        if self._counts[asks] < self._limits[asks]:
            self._counts[asks] += 1
            return True
        self._dropped[asks] += 1
        if self._until_told is None:
            self._tell_dropped()
        return False

    def done(self, asks: bool) -> None:
        """One of them waits no longer."""
        self._counts[asks] -= 1

    def close(self) -> None:
        """Tell no more."""
        if self._until_told is not None:
            self._until_told.cancel()
            self._until_told = None

    def _tell_dropped(self) -> None:
        dropped, self._dropped = self._dropped, [0, 0]
        self._until_told = None
        for name, count in zip(("queue", "info queue"), dropped, strict=True):
            if count:
                _log.warning("JetStream API %s limit reached, dropping %d requests", name, count)
                self._tell(count)
        if any(dropped):
            self._until_told = asyncio.get_running_loop().call_later(_TELL_SECONDS, self._tell_dropped)


def only_asks(tokens: list[str]) -> bool:
    """Whether a request, by the tokens of its subject, is one of nats-server's info requests."""
    return tuple(tokens[:2]) in _ASKING
