"""Streams of a running nats-server, as snapshots over its API.

    request   $JS.API.STREAM.SNAPSHOT.<stream>    answered with configuration and numbers; then chunks arrive
    chunk     with a reply subject                an empty answer there makes the server send another chunk
    end       an empty message                    with a status: 204 or none is success

The answers are our flow control: a chunk is answered when the caller gets it. A server ends the snapshot after five
seconds without an answer. So while the target is slow, one chunk is answered every other second, and kept in memory.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any

from broker.client.connection import ApiRefusal, Connection
from broker.migration.consumers import Infos, consumer_infos
from broker.migration.errors import CannotMigrate, GaveUp, StreamFailed
from broker.migration.streams import Numbers, StreamToMove

if TYPE_CHECKING:
    from nats.aio.msg import Msg

__all__ = ["ServerSource", "snapshot"]

_CHUNK_BYTES = 128 << 10
_WINDOW_BYTES = 8 << 20
_SILENCE_SECONDS = 120.0
_ANSWER_SECONDS = 2.0


class ServerSource:
    """The streams of a connection's account as the source."""

    def __init__(self, connection: Connection) -> None:
        self.shown = connection.shown
        self._connection = connection

    async def streams(self) -> list[StreamToMove]:
        found: list[StreamToMove] = []
        try:
            while True:
                page = await self._connection.api("STREAM.LIST", {"offset": len(found)})
                infos = page.get("streams") or []
                found += [_stream(info) for info in infos]
                if not infos or len(found) >= int(page.get("total", 0)):
                    return found
        except ApiRefusal as error:
            raise CannotMigrate(f"{self.shown}: the streams cannot be listed: {error}") from None

    async def numbers(self, stream: StreamToMove) -> Numbers:
        try:
            info = await self._connection.api(f"STREAM.INFO.{stream.name}")
        except ApiRefusal as error:
            raise StreamFailed(f"its state cannot be read: {error}") from None
        return Numbers.of(info["state"])

    async def consumers(self, stream: StreamToMove) -> Infos | None:
        try:
            return await consumer_infos(self._connection, stream.name)
        except ApiRefusal as error:
            raise StreamFailed(f"its consumers cannot be listed: {error}") from None

    def archive(self, stream: StreamToMove, *, consumers: bool) -> AsyncGenerator[bytes, None]:
        return snapshot(self._connection, stream.name, consumers=consumers)

    async def close(self) -> None:
        await self._connection.close()


def _stream(info: dict[str, Any]) -> StreamToMove:
    state = info["state"]
    return StreamToMove(info["config"]["name"], info["config"], Numbers.of(state), info.get("created", ""),
                        state.get("first_ts", ""), consumers=int(state.get("consumer_count", 0)))


async def snapshot(connection: Connection, name: str, *, consumers: bool = True) -> AsyncGenerator[bytes, None]:
    """Yield the archive of a stream, in chunks. Raises: StreamFailed; CannotMigrate."""
    client = connection.client
    chunks = _Chunks(connection)
    inbox = client.new_inbox()
    subscription = await client.subscribe(inbox, cb=chunks.add, pending_msgs_limit=-1, pending_bytes_limit=-1)
    answering = asyncio.create_task(chunks.keep_answering(), name=f"answer the snapshot of {name}")
    try:
        try:
            await connection.api(f"STREAM.SNAPSHOT.{name}", {
                "deliver_subject": inbox, "no_consumers": not consumers, "chunk_size": _CHUNK_BYTES,
                "window_size": _WINDOW_BYTES})
        except ApiRefusal as error:
            raise StreamFailed(f"the source gives no snapshot: {error}") from None
        while (data := await chunks.next()) is not None:
            yield data
    finally:
        answering.cancel()
        if not client.is_closed:
            await subscription.unsubscribe()


class _Chunks:
    """A queue of the chunks that have arrived; the first ``_answered`` of them have been answered already."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._waiting: deque[Msg] = deque()
        self._answered = 0
        self._arrived = asyncio.Event()
        self._quiet = False

    async def add(self, msg: Msg) -> None:
        """Queue a chunk that has arrived."""
        self._waiting.append(msg)
        self._arrived.set()

    async def next(self) -> bytes | None:
        """Return the next chunk, and answer it; None after the last one. Raises: StreamFailed; CannotMigrate."""
        while not self._waiting:
            self._arrived.clear()
            lost = asyncio.ensure_future(self._connection.lost.wait())
            arrived = asyncio.ensure_future(self._arrived.wait())
            try:
                done, _ = await asyncio.wait((lost, arrived), timeout=_SILENCE_SECONDS,
                                             return_when=asyncio.FIRST_COMPLETED)
            finally:
                lost.cancel()
                arrived.cancel()
            if self._waiting:
                break
            if self._connection.lost.is_set():
                raise CannotMigrate(f"{self._connection.shown}: the connection was lost; run the same command again to "
                                    f"continue")
            if not done:
                raise StreamFailed(f"{self._connection.shown} has sent nothing of its archive for {_SILENCE_SECONDS:g} "
                                   "s")
        msg = self._waiting.popleft()
        if self._answered:
            self._answered -= 1
        else:
            await self._answer(msg)
        self._quiet = False
        if msg.data:
            return bytes(msg.data)
        status = (msg.headers or {}).get("Status", "")
        if status not in ("", "204"):
            text = f"the source ended its snapshot: {status} {(msg.headers or {}).get('Description', '')}".rstrip()
            raise (GaveUp if status.startswith("408") else StreamFailed)(text)
        return None

    async def keep_answering(self) -> None:
        """While ``next`` is not called, answer a chunk now and then, so that the server does not end the snapshot."""
        while True:
            self._quiet = True
            await asyncio.sleep(_ANSWER_SECONDS)
            if self._quiet and self._answered < len(self._waiting):
                await self._answer(self._waiting[self._answered])
                self._answered += 1

    async def _answer(self, msg: Msg) -> None:
        if msg.reply and not self._connection.client.is_closed:
            await self._connection.client.publish(msg.reply)
