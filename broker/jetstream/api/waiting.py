"""The number of waiting API requests of all accounts: one count for info requests, and one for all others.

Source: nats-server, server/jetstream_api.go (apiDispatch), which empties its queue at the limit. Here the waiting
requests are served, and new ones are dropped.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from broker.config.settings import JetStreamSettings

__all__ = ["Waiting", "is_info_request"]

_log = logging.getLogger(__name__)

_REPORT_SECONDS: Final = 1.0

_INFO_REQUESTS: Final = frozenset({
    ("INFO",), ("STREAM", "NAMES"), ("STREAM", "LIST"), ("STREAM", "INFO"), ("CONSUMER", "NAMES"), ("CONSUMER", "LIST"),
    ("CONSUMER", "INFO")})


class Waiting:
    """The counts of waiting requests, against ``request_queue_limit`` and ``info_queue_limit``.

    Args: ``on_dropped(count)`` is called with the number of dropped requests: at once for the first, then once a second
        while more are dropped.
    """

    def __init__(self, settings: JetStreamSettings, on_dropped: Callable[[int], object]) -> None:
        requests = settings.request_queue_limit
        self._limits = requests, settings.info_queue_limit or requests
        self._counts = [0, 0]
        self._on_dropped = on_dropped
        self._dropped = [0, 0]
        self._timer: asyncio.TimerHandle | None = None

    @property
    def count(self) -> int:
        """The number of requests that wait now."""
        return sum(self._counts)

    def admit(self, info: bool) -> bool:
        """Count a request that is to wait. Returns: False if too many wait, and the request is dropped."""
        if self._counts[info] < self._limits[info]:
            self._counts[info] += 1
            return True
        self._dropped[info] += 1
        if self._timer is None:
            self._report_dropped()
        return False

    def done(self, info: bool) -> None:
        """Subtract a request that waits no longer."""
        self._counts[info] -= 1

    def close(self) -> None:
        """Stop reporting dropped requests."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _report_dropped(self) -> None:
        dropped, self._dropped = self._dropped, [0, 0]
        self._timer = None
        for name, count in zip(("queue", "info queue"), dropped, strict=True):
            if count:
                _log.warning("JetStream API %s limit reached, dropping %d requests", name, count)
                self._on_dropped(count)
        if any(dropped):
            self._timer = asyncio.get_running_loop().call_later(_REPORT_SECONDS, self._report_dropped)


def is_info_request(tokens: list[str]) -> bool:
    """Return whether a request, by the tokens of its subject, is one of nats-server's info requests."""
    return tuple(tokens[:2]) in _INFO_REQUESTS
