"""Deletes channels that had neither a message nor an active subscription for their ``max_inactivity``.

The channels are looked at several times in that period, and only monotonic time counts: a step of the clock deletes
nothing. So a channel is deleted at most an eighth of the shortest period late.

Source: nats-streaming-server, server/server.go handleChannelDelete.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broker.base.clock import Clock
    from broker.config.streaming import StreamingSettings
    from broker.streaming.channels import Channels

__all__ = ["Inactivity"]

_LOOKS = 8
_SHORTEST_PAUSE_NS = 10_000_000
_AT_ONCE = 500


@dataclass(slots=True)
class _Quiet:
    """A channel without active subscriptions: its last sequence, and since when it has had that one."""

    last_seq: int
    since_ns: int


class Inactivity:
    """The watch over all channels of a gateway.

    Args: ``in_use`` returns whether a channel has an active subscription; ``delete`` deletes a channel.
    """

    def __init__(self, clock: Clock, settings: StreamingSettings, channels: Channels, in_use: Callable[[str], bool],
                 delete: Callable[[str], Awaitable[None]]) -> None:
        self._clock = clock
        self._channels = channels
        self._in_use = in_use
        self._delete = delete
        self._quiet: dict[str, _Quiet] = {}
        limits = (settings.max_inactivity_ns, *(limits.max_inactivity_ns for _, limits in settings.channels))
        shortest_ns = min((limit for limit in limits if limit > 0), default=0)
        self.pause_ns = max(shortest_ns // _LOOKS, _SHORTEST_PAUSE_NS) if shortest_ns else 0
        """Time between two looks; 0: no channel has such a limit."""

    async def run(self) -> None:
        """Watch the channels until cancelled."""
        while True:
            await asyncio.sleep(self.pause_ns / 1e9)
            await self._look()

    async def _look(self) -> None:
        before, self._quiet = self._quiet, {}
        for at, channel in enumerate(self._channels.names(), 1):
            if at % _AT_ONCE == 0:
                await asyncio.sleep(0)
            limit_ns = self._channels.limits(channel).max_inactivity_ns
            stream = self._channels.existing(channel)
            if limit_ns <= 0 or stream is None or self._in_use(channel):
                continue
            now_ns = self._clock.monotonic_ns()
            quiet = before.get(channel)
            if quiet is None or quiet.last_seq != stream.last_seq:
                quiet = _Quiet(stream.last_seq, now_ns)
            if now_ns - quiet.since_ns >= limit_ns:
                await self._delete(channel)
            else:
                self._quiet[channel] = quiet
