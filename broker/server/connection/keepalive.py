"""Keep-alive of one connection: when to ping the client, and when to close the connection as stale.

Owns: the timer, unanswered pings and the round-trip time. Does not own: sending and closing, which are callbacks.

Source: nats-server, server/client.go (processPingTimer, setFirstPingTimer).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Final

from broker.base.clock import Clock

__all__ = ["KeepAlive"]

_FIRST_PING_NS: Final = 2_000_000_000
_RTT_AGE_NS: Final = 3_600_000_000_000
"""Age of a round-trip time after which it is measured again, even if the client is busy."""


def _nothing() -> None:
    """Do nothing: the callback of a connection that has ended."""


class KeepAlive:
    """Pings one connection. ``ping()`` sends a PING, ``stale()`` closes the connection."""

    __slots__ = ("_clock", "_interval_ns", "_loop", "_ping", "_pings_max", "_rng", "_sent_ns", "_stale", "_timer",
                 "_unanswered", "input_at_ns", "rtt_ns")

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock, rng: random.Random, interval_ns: int,
                 pings_max: int, ping: Callable[[], None], stale: Callable[[], None]) -> None:
        self._loop = loop
        self._clock = clock
        self._rng = rng
        self._interval_ns = interval_ns
        self._pings_max = pings_max
        self._ping = ping
        self._stale = stale
        self._timer: asyncio.TimerHandle | None = None
        self._unanswered = 0
        self._sent_ns = 0
        self.input_at_ns = 0
        """Time at which the client last sent anything but a PONG; set by the connection."""

        self.rtt_ns = 0
        """Round-trip time; 0 if unknown."""

    @property
    def unanswered(self) -> int:
        """The number of pings without an answer."""
        return self._unanswered

    def start(self) -> None:
        """Schedule the first ping; called again at CONNECT, so that a client is not pinged while it connects."""
        interval_ns = min(self._interval_ns, _FIRST_PING_NS)
        # Add up to a fifth, so that clients that connected together are not pinged together.
        self._set_timer(interval_ns + int(self._rng.random() * interval_ns / 5))

    def change(self, interval_ns: int, pings_max: int) -> None:
        """Change the settings, beginning with the next ping."""
        self._interval_ns = interval_ns
        self._pings_max = pings_max

    def pong(self) -> None:
        """Record the client's answer."""
        self._unanswered = 0
        if self._sent_ns:
            self.rtt_ns = max(self._clock.monotonic_ns() - self._sent_ns, 1)

    def close(self) -> None:
        """Stop the timer: the connection ends."""
        if self._timer is not None:
            self._timer.cancel()

    def forget_connection(self) -> None:
        """Drop the references to the connection, which has ended."""
        self._ping = self._stale = _nothing

    def _set_timer(self, after_ns: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(after_ns / 1e9, self._due)

    def _due(self) -> None:
        now_ns = self._clock.monotonic_ns()
        wants_rtt = not self._sent_ns or now_ns - self._sent_ns > _RTT_AGE_NS
        if wants_rtt or self._clock.now_ns() - self.input_at_ns >= self._interval_ns:
            if self._unanswered + 1 > self._pings_max:
                self._stale()
                return
            self._unanswered += 1
            self._sent_ns = now_ns
            self._ping()
        self._set_timer(self._interval_ns)
