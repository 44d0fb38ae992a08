"""Partitioning: several servers of one cluster ID, each with channels of its own, in one NATS system.

    connect, close, ping     every server handles them; the client takes the first answer
    publish                  each server subscribes to the publish subjects of its own channels
    subscribe, unsubscribe   the server that has the channel answers; the others are silent

A server sends the list of its channels to ``_STAN.part.<cluster ID>``. Each other server answers with the name of a
channel that both have, or with an empty name.

Source: nats-streaming-server, server/partitions.go; util/channels.go.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from google.protobuf.message import DecodeError

from broker.jetstream.wire.ids import secret_id
from broker.protocol.subject import is_literal, subset
from broker.protocol.subject_tree import SubjectTree
from broker.streaming.wire.stan_pb2 import CtrlMsg

if TYPE_CHECKING:
    from broker.jetstream.bus import Bus, Msg, Source

__all__ = ["Partition", "decoded", "encoded"]

_PARTITIONING = 4
_ANSWERS_SECONDS = 1.0
"""Time without an answer after which the check is over: nobody knows how many servers there are."""
_CHECK_SECONDS = 10.0
"""Time after which the check is over, whatever else is answered."""
_LIST_BYTES = 500_000
"""The most bytes of one list; a longer one is sent in parts."""
_LISTS_MAX = 64
"""Lists of other servers, and answers, that wait at once; more are dropped, as by a server that is too slow."""
_COMPARED_AT_ONCE = 1000


class Partition:
    """The channels of one server; a channel may be a pattern.

    Args: ``start(coroutine, name)`` runs a coroutine as a task.
    """

    def __init__(self, bus: Bus, cluster_id: str, server_id: str, channels: Sequence[str],
                 start: Callable[[Coroutine[Any, Any, None], str], object]) -> None:
        self._bus = bus
        self._server_id = server_id
        self._start = start
        self._channels = [channel.encode() for channel in channels]
        self._literals = {channel for channel in self._channels if is_literal(channel)}
        self._patterns = [channel for channel in self._channels if channel not in self._literals]
        self._tree: SubjectTree[bytes] = SubjectTree()
        for channel in self._channels:
            self._tree.add(channel, channel)
        self._waiting: deque[tuple[bytes, bytes]] = deque()
        """The lists of other servers that are not answered yet, each with the subject for the answer."""
        self._answering = False
        self._subject = f"_STAN.part.{cluster_id}".encode()
        self._subscription = bus.subscribe(self._subject, self._on_lists)

    def serves(self, channel: str) -> bool:
        """Return whether this server has a channel."""
        name = channel.encode()
        return name in self._literals or any(subset(name, pattern) for pattern in self._patterns)

    def widest(self) -> list[str]:
        """Return the channels and patterns that no other pattern covers."""
        return [one.decode() for one in self._channels
                if not any(other != one and subset(one, other) for other in self._patterns)]

    async def conflict(self) -> str:
        """Ask the other servers of the cluster ID; return the error, if one of them has one of these channels."""
        answers: asyncio.Queue[bytes] = asyncio.Queue(_LISTS_MAX)

        def on_answers(ops: Sequence[Msg], start: int, end: int, source: Source | None, now_ns: int) -> None:
            with suppress(asyncio.QueueFull):
                for _, _, hlen, body in ops[start:end]:
                    answers.put_nowait(body[hlen:])

        inbox = f"_INBOX.{secret_id()}".encode()
        subscription = self._bus.subscribe(inbox, on_answers)
        try:
            for part in encoded(self._channels):
                request = CtrlMsg(MsgType=_PARTITIONING, ServerID=self._server_id, Data=part)
                self._bus.publish(self._subject, inbox, 0, request.SerializeToString())
            async with asyncio.timeout(_CHECK_SECONDS):
                while True:
                    async with asyncio.timeout(_ANSWERS_SECONDS):
                        answer = CtrlMsg.FromString(await answers.get())
                    if answer.Data:
                        return (f'channel "{answer.Data.decode(errors="replace")}" causes conflict with channels on '
                                f'server "{answer.ServerID}"')
        except TimeoutError:
            return ""
        except DecodeError as error:
            return f"unable to decode partitioning response: {error}"
        finally:
            self._bus.unsubscribe(subscription)

    def close(self) -> None:
        """Answer no other servers any more."""
        self._bus.unsubscribe(self._subscription)

    def _on_lists(self, ops: Sequence[Msg], start: int, end: int, source: Source | None, now_ns: int) -> None:
        for _, reply, hlen, body in ops[start:end]:
            try:
                request = CtrlMsg.FromString(body[hlen:])
            except DecodeError:
                continue
            if reply and request.ServerID != self._server_id and len(self._waiting) < _LISTS_MAX:
                self._waiting.append((reply, request.Data))
        if self._waiting and not self._answering:
            self._answering = True
            self._start(self._answer_all(), "partitioning requests")

    async def _answer_all(self) -> None:
        """Answer the lists that wait, one after the other; one that ends within a name gets no answer."""
        try:
            while self._waiting:
                reply, channels = self._waiting.popleft()
                with suppress(ValueError):
                    answer = CtrlMsg(MsgType=_PARTITIONING, ServerID=self._server_id, Data=await self._common(channels))
                    self._bus.send(reply, b"", 0, answer.SerializeToString())
        finally:
            self._answering = False

    async def _common(self, channels: bytes) -> bytes:
        """Return a channel of a list that this server has, too; b"" if there is none. Raises: ValueError."""
        for compared, channel in enumerate(decoded(channels), 1):
            if compared % _COMPARED_AT_ONCE == 0:
                await asyncio.sleep(0)
            for own in self._tree.overlapping(channel):
                return own if own in self._literals and subset(own, channel) else channel
        return b""


def encoded(channels: Iterable[bytes]) -> Iterator[bytes]:
    """Return the lists of channels, each name after its length in two bytes, lowest first."""
    part = bytearray()
    for channel in channels:
        part += len(channel).to_bytes(2, "little") + channel
        if len(part) > _LIST_BYTES:
            yield bytes(part)
            part.clear()
    if part:
        yield bytes(part)


def decoded(data: bytes) -> Iterator[bytes]:
    """Yield the channels of a list. Raises: ValueError, if it ends within a name."""
    at = 0
    while at < len(data):
        end = at + 2 + int.from_bytes(data[at:at + 2], "little")
        if end > len(data):
            raise ValueError(f"the list of channels ends within the name at byte {at}")
        yield data[at + 2:end]
        at = end
