"""The channels: each is a stream with one subject, made when a client first publishes or subscribes to it.

Owns: which streams are channels, and the limits of new ones. Does not own: messages (JetStream).

A channel's stream is a stream like any other: JetStream clients may read it and publish to it. If they delete
it, the channel is deleted; its subscriptions go on when a client makes it again.

Source: nats-streaming-server, server/server.go lookupOrCreateChannel; stores/limits.go.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from broker.base.shielded import shielded
from broker.jetstream.config.stream import StreamConfig
from broker.streaming.errors import StanError, StanErrors
from broker.streaming.names import STREAM_PREFIX, channel_of, is_literal_channel, stream_of
from broker.streaming.stored import stream_config

if TYPE_CHECKING:
    from broker.config.streaming import ChannelLimits, StreamingSettings
    from broker.jetstream.account.account import Account
    from broker.jetstream.stream.stream import Stream

__all__ = ["Channels"]


_MADE_AT_ONCE = 16
"""Channels that are made at once, each of which takes about a millisecond: a client may ask for many together."""


class Channels:
    """The channels of one gateway."""

    def __init__(self, account: Account, settings: StreamingSettings,
                 made: Callable[[Stream, str], Awaitable[None]]) -> None:
        """Args: ``made`` is called with the stream and the name of each new channel, before anybody uses it."""
        self._made = made
        self._account = account
        self._settings = settings
        self._reserved = ("_STAN.", settings.discover_prefix + ".")
        """The beginnings of the gateway's own subjects: a stream there would answer its requests, too."""
        self._names: list[str] = []
        self._version = 0, 0
        """Number of streams and incarnation of the newest one for which ``_names`` is true."""
        self._making: dict[str, asyncio.Task[Stream]] = {}
        self._deleting: set[str] = set()
        self._turns = asyncio.Semaphore(_MADE_AT_ONCE)

    def existing(self, channel: str) -> Stream | None:
        """Return the stream of a channel, or None if there is no such channel."""
        return self._account.streams.get(stream_of(channel)) if channel not in self._deleting else None

    def names(self) -> Sequence[str]:
        """Return the names of all channels."""
        streams = self._account.streams
        newest = next(reversed(streams.values()), None)
        version = len(streams), newest.stream_id if newest is not None else 0  # another set differs in one of them
        if version != self._version:
            self._version = version
            self._names = [channel for name in streams
                           if name.startswith(STREAM_PREFIX) and (channel := channel_of(name))]
        return self._names

    async def stream(self, channel: str) -> Stream:
        """Return the stream of a channel; make the channel if it does not exist. Raises: StanError; ApiError."""
        if (stream := self.existing(channel)) is not None:
            return stream
        self.check(channel)
        making = self._making.get(channel)
        if making is None:
            making = self._making[channel] = asyncio.get_running_loop().create_task(
                self._make(channel), name=f"make channel {channel}")
            making.add_done_callback(lambda _: self._making.pop(channel, None))
        return await shielded(making)

    async def _make(self, channel: str) -> Stream:
        async with self._turns:
            stream = await self._account.changes.create(self._config(channel))
        await self._made(stream, channel)
        return stream

    def check(self, channel: str) -> None:
        """Check that a channel that does not exist may be made. Raises: StanError."""
        if channel in self._making:
            return
        if not is_literal_channel(channel) or channel.startswith(self._reserved):
            raise StanError(StanErrors.SUBJECT)
        if channel in self._deleting:
            raise StanError(StanErrors.CHANNEL_BEING_DELETED)
        if 0 < self._settings.max_channels <= len(self.names()) + len(self._making):
            raise StanError(StanErrors.TOO_MANY_CHANNELS)

    async def delete(self, channel: str) -> None:
        """Delete a channel with its messages; nobody may use it meanwhile. Raises: ApiError; StoreError."""
        stream = self.existing(channel)
        if stream is None:
            return
        self._deleting.add(channel)
        try:
            await self._account.changes.delete(stream)
        finally:
            self._deleting.discard(channel)

    def check_subscriptions(self, channel: str, count: int) -> None:
        """Check that a channel may have one more subscription. Raises: StanError."""
        most = self.limits(channel).max_subs
        if 0 < most <= count:
            raise StanError(StanErrors.TOO_MANY_SUBSCRIPTIONS)

    @property
    def replaces_durables(self) -> bool:
        """True if a durable subscription replaces one that is in use."""
        return self._settings.replace_durable

    def limits(self, channel: str) -> ChannelLimits:
        """Return the limits of a channel; 0 stands for no limit."""
        return self._settings.limits_of(channel)

    def _config(self, channel: str) -> StreamConfig:
        return StreamConfig(**stream_config(channel, self.limits(channel)))

    def close(self) -> None:
        """Stop making channels."""
        for making in self._making.values():
            making.cancel()
