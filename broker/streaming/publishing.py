"""Publishes of NATS Streaming clients: from the message on the wire to the channel's stream, and back to the PubAck.

    PubMsg ──> checks ──> the channel's stream ── persisted ──> PubAck with the guid
                 └── refused ──> PubAck with an error

A run of messages to one channel is one call of the stream. If the channel does not exist yet, its messages wait
in order while it is made, and their publishers are held back.

Source: nats-streaming-server, server/server.go: processClientPublish, ioLoop, ackPublisher, sendPublishErr.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from google.protobuf.message import DecodeError

from broker.jetstream.stream.publish.pub_ack_receiver import PubAckReceiver
from broker.jetstream.wire.errors import ApiError
from broker.protocol.subject import matches_any
from broker.streaming.errors import StanError, StanErrors
from broker.streaming.names import is_literal_channel
from broker.streaming.stored import reply_header
from broker.streaming.wire.encoding import PubMsgFields, pub_ack, pub_run
from broker.streaming.wire.stan_pb2 import PubAck, PubMsg

if TYPE_CHECKING:
    from broker.jetstream.bus import Bus, Msg, Source
    from broker.jetstream.stream.stream import Stream
    from broker.streaming.channels import Channels
    from broker.streaming.traffic import Traffic

__all__ = ["Publishing"]


class Publishing:
    """The handler of publishes. Args: ``registered(client_id, conn_id)`` returns whether a client may publish."""

    def __init__(self, bus: Bus, channels: Channels, registered: Callable[[str, bytes], bool],
                 start: Callable[[Any, str], object], traffic: Traffic,
                 registration: Callable[[str, bytes], Awaitable[bool]] | None) -> None:
        """Args: ``start(coroutine, name)`` runs a coroutine as a task; ``registration``: with partitioning only."""
        self._bus = bus
        self._channels = channels
        self._registered = registered
        self._start = start
        self._traffic = traffic
        self._waiting: dict[str, list[_Run]] = {}
        """Messages for channels that are being made, in order."""
        self._registration = registration
        """Waits a moment until a client is registered, and returns whether it is. With partitioning, a client may
        publish before this server has registered it, because another one has answered it."""
        self._early: dict[tuple[str, bytes], list[tuple[str, _Run]]] = {}
        """Messages of clients that are not registered yet, in order."""

    def on_msgs(self, ops: Sequence[Msg], start: int, end: int, source: Source | None, now_ns: int) -> None:
        """Handle publishes (a BatchHandler)."""
        accepted: dict[str, list[_Run]] = {}
        self._traffic.received(ops[start:end])
        while start < end:
            _, reply, hlen, body = ops[start]
            fields, msgs, start = pub_run(ops, start, end)
            if fields is None:
                if (fields := _decoded(body[hlen:])) is None:
                    _Publisher(self._bus, source, reply).refuse("", StanErrors.PUBLISH_REQUEST)
                    continue
                msgs = [(fields[2], pub_ack(fields[1]), 0, fields[4])]
            client_id, guid, to, answer_to, data, conn_id = fields
            channel, sender = to.decode(), (client_id.decode(), conn_id)
            runs = accepted.get(channel, [])
            publisher = runs[-1][0] if runs and runs[-1][0].reply == reply else _Publisher(self._bus, source, reply)
            known = self._is_known(*sender)
            # A reply subject becomes a header: a line feed in it would begin another one.
            if (not guid or not is_literal_channel(channel) or b"\n" in answer_to or b"\r" in answer_to
                    or (not known and self._registration is None)):
                publisher.refuse_all([msg[1] for msg in msgs], StanErrors.PUBLISH_REQUEST)
                continue
            if answer_to:
                header = reply_header(answer_to.decode())
                msgs = [(to, pub_ack(guid), len(header), header + data)]
            if not known:
                self._keep_early(sender, publisher, channel, msgs)
            elif runs and runs[-1][0] is publisher:
                runs[-1][1].extend(msgs)
            else:
                runs.append((publisher, msgs))
                accepted[channel] = runs
        for channel, runs in accepted.items():
            for publisher, msgs in runs:
                self._store(channel, publisher, msgs)

    def _is_known(self, client_id: str, conn_id: bytes) -> bool:
        """Return whether a client may publish now."""
        return (client_id, conn_id) not in self._early and self._registered(client_id, conn_id)

    def _store(self, channel: str, publisher: _Publisher, msgs: list[Msg]) -> None:
        if channel in self._waiting:
            publisher.hold()
            self._waiting[channel].append((publisher, msgs))
            return
        if (stream := self._channels.existing(channel)) is not None:
            _publish(stream, channel, publisher, msgs)
            return
        try:
            self._channels.check(channel)
        except StanError as error:
            publisher.refuse_all([msg[1] for msg in msgs], str(error))
        else:
            publisher.hold()
            self._waiting[channel] = [(publisher, msgs)]
            self._start(self._make(channel), f"first publish to {channel}")

    def _keep_early(self, sender: tuple[str, bytes], publisher: _Publisher, channel: str, msgs: list[Msg]) -> None:
        """Keep messages of a client that may be about to be registered; their publisher is held back."""
        publisher.hold()
        if sender in self._early:
            self._early[sender].append((channel, (publisher, msgs)))
        else:
            self._early[sender] = [(channel, (publisher, msgs))]
            self._start(self._store_early(sender), f"first publishes of {sender[0]}")

    async def _store_early(self, sender: tuple[str, bytes]) -> None:
        assert self._registration is not None
        registered = False
        try:
            registered = await self._registration(*sender)
        finally:
            for channel, (publisher, msgs) in self._early.pop(sender):
                publisher.release()
                if registered:
                    self._store(channel, publisher, msgs)
                else:
                    publisher.refuse_all([msg[1] for msg in msgs], StanErrors.PUBLISH_REQUEST)

    async def _make(self, channel: str) -> None:
        """Make a channel, then store what waits for it."""
        stream: Stream | None = None
        error = ""
        try:
            stream = await self._channels.stream(channel)
        except (StanError, ApiError) as failed:
            error = str(failed)
        finally:
            for publisher, msgs in self._waiting.pop(channel):
                publisher.release()
                if stream is not None:
                    _publish(stream, channel, publisher, msgs)
                elif error:
                    publisher.refuse_all([msg[1] for msg in msgs], error)


def _publish(stream: Stream, channel: str, publisher: _Publisher, msgs: list[Msg]) -> None:
    """Publish messages of a channel to its stream, unless that is a mirror or stores other subjects."""
    subjects = stream.config.subjects
    if channel in subjects or matches_any((subject.encode() for subject in subjects), channel.encode()):
        stream.publish_for(publisher, msgs)
    else:
        publisher.refuse_all([msg[1] for msg in msgs],
                             f"stream {stream.name} does not store subject {channel}")


def _decoded(body: bytes) -> PubMsgFields | None:
    """Decode a publish by protobuf; None, if it is not one."""
    try:
        msg = PubMsg.FromString(body)
    except DecodeError:
        return None
    return (msg.client_id.encode(), msg.guid.encode(), msg.subject.encode(), msg.reply.encode(), msg.data, msg.conn_id)


_Run = tuple["_Publisher", list["Msg"]]
"""Messages with one reply subject, which are stored together."""


class _Publisher(PubAckReceiver):
    """The client connection that published a run of messages, and the way back for their PubAcks.

    The token of a message is its PubAck for the case that it is stored. Args: ``reply``: their reply subject.
    """

    def __init__(self, bus: Bus, source: Source | None, reply: bytes) -> None:
        self._bus = bus
        self._source = source
        self.reply = reply

    def refuse(self, guid: str, error: str) -> None:
        """Answer a message that is not stored."""
        if self.reply:
            self._bus.send(self.reply, b"", 0, PubAck(guid=guid, error=error).SerializeToString())

    def refuse_all(self, tokens: Sequence[bytes], error: str) -> None:
        """Answer messages that are not stored, by their tokens."""
        for token in tokens:
            self.refuse(PubAck.FromString(token).guid, error)

    # --- PubAckReceiver

    def stored(self, replies: Sequence[bytes], first_seq: int) -> None:
        if self.reply:
            self._bus.send_run(self.reply, replies)

    def duplicate(self, reply: bytes, seq: int) -> None:
        self.stored((reply,), seq)

    def refused(self, replies: Sequence[bytes], error: ApiError) -> None:
        self.refuse_all(replies, str(error))

    def identity(self) -> dict[str, Any]:
        return {} if self._source is None else self._source.identity()

    def hold(self) -> None:
        if self._source is not None:
            self._source.hold()

    def release(self) -> None:
        if self._source is not None:
            self._source.release()
