"""The channels of a running nats-streaming-server as streams to move.

    channel            the stream that the gateway keeps it in: sequences, times, reply subjects in a header
    durable position   a consumer of that stream, which the gateway accepts as an offline durable subscription
    limits             limits of the stream

The monitoring pages show which channels there are, their limits, and the durable positions. Without them, the channels
are named by the caller, have the limits that a nats-streaming-server has by default, and move without positions.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from broker.base.gotime import format_time
from broker.base.suggest import did_you_mean
from broker.client.connection import Connection
from broker.config.streaming import StreamingSettings
from broker.jetstream.archive.contents import ArchiveWriter
from broker.jetstream.archive.values import ArchivedConsumer, ArchivedMsg, ArchivedStream
from broker.migration.errors import CannotMigrate, GaveUp, StreamFailed
from broker.migration.streaming_client import ClientIdInUse, StreamingClient
from broker.migration.streaming_pages import Channel, Position, StreamingPages
from broker.migration.streams import ORIGIN_KEY, Numbers, StreamToMove
from broker.streaming.names import channel_of
from broker.streaming.stored import consumer_metadata, reply_header, stream_config
from broker.streaming.wire import stan_pb2 as wire

__all__ = ["StreamingSource"]

_SECOND = 1_000_000_000
_EDGE_SECONDS = 5.0
_JETSTREAM_BYTES = 80
"""The most bytes by which JetStream counts a message as larger, besides its reply subject."""


class StreamingSource:
    """The channels of one cluster ID as the source.

    Args: ``pages``: None if the source has no monitoring port; ``channels``: those to move, or all if it is empty.
    """

    def __init__(self, connection: Connection, client: StreamingClient, cluster_id: str, pages: StreamingPages | None,
                 channels: Sequence[str]) -> None:
        self.shown = connection.shown
        self._connection = connection
        self._client = client
        self._cluster_id = cluster_id
        self._pages = pages
        self._names = list(channels)
        self._limits = StreamingSettings()

    @classmethod
    async def open(cls, connection: Connection, cluster_id: str, pages: StreamingPages | None,
                   channels: Sequence[str]) -> StreamingSource:
        """Register at the server. Raises: CannotMigrate; ConnectionFailed."""
        client = await StreamingClient.open(connection, cluster_id, f"jetblock-migrate-{secrets.token_hex(6)}")
        return cls(connection, client, cluster_id, pages, channels)

    async def streams(self) -> list[StreamToMove]:
        if self._pages is not None:
            known = await self._pages.names()
            if unknown := [name for name in self._names if name not in known]:
                raise CannotMigrate(f"{self.shown} has no channel {unknown[0]}{did_you_mean(unknown[0], known)}; it "
                                    f"has {', '.join(sorted(known)[:20]) or 'none'}")
            self._names = self._names or known
            self._limits = await self._pages.limits()
        return [await self._stream(name) for name in self._names]

    async def _stream(self, name: str) -> StreamToMove:
        channel = await self._channel(name)
        limits = self._limits.limits_of(name)
        config = stream_config(name, limits) | {"metadata": {ORIGIN_KEY: self._client.identity}}
        stream = StreamToMove(config["name"], config, _numbers(channel), consumers=len(_groups(channel.positions)))
        needed = channel.bytes + channel.msgs * (_JETSTREAM_BYTES + len(name.encode()))
        if 0 < limits.max_bytes < needed:
            config["max_bytes"] = needed
            stream.notes.append(f"max_bytes {limits.max_bytes} became {needed}: JetStream counts more bytes for a "
                                f"message, and the oldest ones would be discarded")
        if self._pages is None:
            stream.notes.append("its durable positions and its limits are not known; give --monitoring")
        return stream

    async def numbers(self, stream: StreamToMove) -> Numbers:
        return _numbers(await self._channel(channel_of(stream.name)))

    async def consumers(self, stream: StreamToMove) -> dict[str, dict[str, Any]] | None:
        if self._pages is None:
            return None
        name = channel_of(stream.name)
        found = await self._positions(name, await self._channel(name), stream)
        return {one.name: {"config": one.config, "delivered": {"consumer_seq": one.delivered[0]},
                           "ack_floor": {"stream_seq": one.ack_floor[1]}} for one in found}

    async def archive(self, stream: StreamToMove, *, consumers: bool) -> AsyncGenerator[bytes, None]:
        name = channel_of(stream.name)
        channel = await self._channel(name)
        positions = await self._positions(name, channel, stream) if consumers else []
        numbers = _numbers(channel)
        writer, now = ArchiveWriter(time.time_ns()), format_time(time.time_ns())
        yield writer.begin(ArchivedStream(numbers.messages, 0, numbers.first_seq, numbers.last_seq, now, now,
                                          len(positions)))
        for position in positions:
            yield writer.consumer(position)
        if numbers.messages:
            msgs = self._client.messages(name, numbers.first_seq, numbers.last_seq)
            try:
                async for some in msgs:
                    yield writer.messages([_archived(msg, stream) for msg in some])
            except GaveUp:
                # Messages may have been discarded meanwhile, up to the last one.
                now_there = _numbers(await self._channel(name))
                if now_there.first_seq <= numbers.last_seq:
                    raise
            finally:
                await msgs.aclose()
        yield writer.end()

    async def close(self) -> None:
        try:
            await self._client.close()
        finally:
            await self._connection.close()

    async def _channel(self, name: str) -> Channel:
        """Return a channel as it is now. Raises: StreamFailed; CannotMigrate."""
        if self._pages is not None:
            channel = await self._pages.channel(name)
            if channel is None:
                raise StreamFailed(f"channel {name} was deleted at the source")
            return channel
        last = await self._client.edge(name, wire.LAST_RECEIVED, _EDGE_SECONDS)
        if last is None:
            return Channel(0, 0, 0, 0, ())
        first = await self._client.edge(name, wire.FIRST, _EDGE_SECONDS) or last
        return Channel(last.sequence - first.sequence + 1, 0, first.sequence, last.sequence, ())

    async def _positions(self, name: str, channel: Channel, stream: StreamToMove) -> list[ArchivedConsumer]:
        """Return the durable positions of a channel. Raises: StreamFailed; CannotMigrate; ConnectionFailed."""
        return [await self._position(name, channel, members, stream) for members in _groups(channel.positions)]

    async def _position(self, name: str, channel: Channel, members: list[Position],
                        stream: StreamToMove) -> ArchivedConsumer:
        first = members[0]
        last_sent = min(max(one.last_sent for one in members), channel.last_seq)
        count = sum(one.pending for one in members)
        unacked: dict[int, int] = {}
        if count:
            found = await self._unacked(name, first, count) if first.offline else None
            if found is None:
                who = f"client {first.client_id}" if not first.queue else f"queue group {first.queue}"
                stream.problems.append(
                    f"durable {first.durable} is in use by {who}, so the source does not tell which {count} messages "
                    f"it has not acknowledged; its last {count} are taken for these. Stop its clients, and run this "
                    f"again with --replace")
                found = dict.fromkeys(range(max(last_sent - count + 1, 1), last_sent + 1), 0)
            unacked = {seq: redelivered for seq, redelivered in found.items() if seq <= last_sent}
        floor = min(unacked, default=last_sent + 1) - 1
        consumer = _consumer_name(name, first)
        now_ns = time.time_ns()
        config = {"durable_name": consumer, "name": consumer, "ack_policy": "explicit", "deliver_policy": "all",
                  "max_deliver": -1, "ack_wait": max(one.ack_wait_seconds for one in members) * _SECOND,
                  "max_ack_pending": sum(one.max_in_flight for one in members), "replay_policy": "instant",
                  "metadata": consumer_metadata(name, first.client_id, first.durable, first.queue)}
        return ArchivedConsumer(consumer, config, (last_sent, last_sent), (floor, floor),
                                {seq: (seq, now_ns) for seq in sorted(unacked)},
                                {seq: redelivered for seq, redelivered in unacked.items() if redelivered})

    async def _unacked(self, name: str, position: Position, count: int) -> dict[int, int] | None:
        """Return what an offline durable has not acknowledged; None if its client is connected after all."""
        if position.queue:
            return await self._client.unacked(name, position.durable, position.queue, count)
        try:
            owner = await StreamingClient.open(self._connection, self._cluster_id, position.client_id)
        except ClientIdInUse:
            return None
        try:
            return await owner.unacked(name, position.durable, "", count)
        finally:
            await owner.close()


def _numbers(channel: Channel) -> Numbers:
    """Return the figures of a stream; the bytes are not known, because JetStream counts them in another way."""
    first_seq = channel.first_seq if channel.msgs else channel.last_seq + 1
    return Numbers(channel.msgs, 0, first_seq, channel.last_seq)


def _groups(positions: Sequence[Position]) -> list[list[Position]]:
    """Return the members of each durable position."""
    groups: dict[tuple[str, str, str], list[Position]] = {}
    for one in positions:
        groups.setdefault(_key(one), []).append(one)
    return list(groups.values())


def _key(position: Position) -> tuple[str, str, str]:
    return ("", position.durable, position.queue) if position.queue else (position.client_id, position.durable, "")


def _consumer_name(channel: str, position: Position) -> str:
    """Return a name that a later run finds again."""
    return "stan-" + hashlib.sha256("\n".join((channel, *_key(position))).encode()).hexdigest()[:22]


def _archived(msg: wire.MsgProto, stream: StreamToMove) -> ArchivedMsg:
    if "\n" in msg.reply or "\r" in msg.reply:
        stream.notes.append(f"message {msg.sequence} had a reply subject with a line feed, which was left out")
        msg.reply = ""
    header = reply_header(msg.reply)
    return ArchivedMsg(msg.sequence, msg.timestamp, msg.subject.encode(), len(header), header + msg.data)
