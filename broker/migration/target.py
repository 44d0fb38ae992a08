"""The target: a running jetblock. Its API restores streams from archives, each whole or not at all.

A broker ends a restore after five seconds without a chunk, so while the source is slow, one byte is sent every other
second.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

from broker.client.connection import ApiRefusal, Connection, NobodyAnswers
from broker.jetstream.wire.error_table import ApiErrors
from broker.migration.consumers import Infos, consumer_infos
from broker.migration.errors import GaveUp, StreamFailed
from broker.migration.streams import Numbers, StreamToMove

__all__ = ["Target"]

_CHUNK_BYTES_MAX = 256 << 10
_KEEP_ALIVE_SECONDS = 2.0
_CHUNK_SECONDS = 300.0
"""The time-out of a chunk's answer. A broker answers once its log has room, which a slow store delays."""
_END_SECONDS = 3600.0

_IN_USE_TRIES = 40
"""The tries, half a second apart, until the broker has ended the restore of an earlier run that was killed."""


class Target:
    """An account of a jetblock as the target."""

    def __init__(self, connection: Connection) -> None:
        self.shown = connection.shown
        self.connection = connection
        info = connection.client._server_info
        self._chunk_bytes = min(_CHUNK_BYTES_MAX, int(info.get("max_payload", _CHUNK_BYTES_MAX)))

    async def find(self, name: str) -> dict[str, Any] | None:
        """Return the stream's info; None if there is no such stream. Raises: StreamFailed; ConnectionFailed."""
        try:
            return await self.connection.api(f"STREAM.INFO.{name}")
        except ApiRefusal as error:
            if error.err_code == ApiErrors.STREAM_NOT_FOUND:
                return None
            raise StreamFailed(f"the target does not answer whether it has this stream: {error}") from None

    async def consumers(self, name: str) -> Infos:
        """Return the infos of the stream's consumers. Raises: StreamFailed; ConnectionFailed."""
        try:
            return await consumer_infos(self.connection, name)
        except ApiRefusal as error:
            raise StreamFailed(f"the target does not list its consumers: {error}") from None

    async def delete(self, name: str) -> None:
        """Delete the stream. Raises: StreamFailed; ConnectionFailed."""
        try:
            await self.connection.api(f"STREAM.DELETE.{name}")
        except ApiRefusal as error:
            raise StreamFailed(f"the target did not delete its own stream: {error}") from None

    async def restore(self, stream: StreamToMove, config: dict[str, Any], archive: AsyncIterator[bytes], *,
                      any_origin: bool, sent: Any) -> Numbers:
        """Create the stream from its archive, and return its figures afterwards.

        Args: any_origin: all origins of the stream are restored by this run. sent(bytes) is called after each chunk.
        Raises: StreamFailed, and the target has no such stream then; ConnectionFailed.
        """
        chunks = _rechunk(archive, self._chunk_bytes)
        try:
            # The restore begins once there is a chunk to send: a source may be slow, and the target does not wait.
            first = await anext(chunks, b"")
            to = await self._begin(stream, config, any_origin=any_origin)
            async for chunk in _after(first, chunks):
                if answer := await self.connection.request(to, chunk, _CHUNK_SECONDS):
                    Connection.decode(answer)
                    raise StreamFailed("the target sent an unexpected answer to a chunk")
                sent(len(chunk))
            info = Connection.decode(await self.connection.request(to, b"", _END_SECONDS))
        except ApiRefusal as error:
            raise StreamFailed(f"the target did not take it: {error}") from None
        except NobodyAnswers:
            raise GaveUp("the target waited too long for the next chunk") from None
        finally:
            await chunks.aclose()
        return Numbers.of(info["state"])

    async def _begin(self, stream: StreamToMove, config: dict[str, Any], *, any_origin: bool) -> str:
        asked: dict[str, Any] = {"config": config, "state": stream.numbers.to_json()}
        if stream.created:
            asked["created"] = stream.created
        elif any_origin:
            asked["origins_restored"] = True
        for _ in range(_IN_USE_TRIES):
            try:
                return str((await self.connection.api(f"STREAM.RESTORE.{stream.name}", asked))["deliver_subject"])
            except ApiRefusal as error:
                if error.err_code == ApiErrors.INVALID_JSON and asked.keys() > {"config", "state"}:
                    asked = {key: asked[key] for key in ("config", "state")}
                    again = ", and this stream has sources: it may copy their messages again"
                    stream.notes.append("the target does not keep its time of creation"
                                        + (again if stream.config.get("sources") else ""))
                    continue
                if (error.err_code != ApiErrors.STREAM_NAME_EXIST_RESTORE_FAILED
                        or await self.find(stream.name) is not None):
                    raise StreamFailed(f"the target refuses its configuration: {error}") from None
            await asyncio.sleep(0.5)
        raise StreamFailed("another client is restoring a stream of this name at the target; wait until that is done")


async def _after(first: bytes, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    if first:
        yield first
    async for chunk in chunks:
        yield chunk


async def _rechunk(archive: AsyncIterator[bytes], chunk_bytes: int) -> AsyncGenerator[bytes, None]:
    """Yield the archive in chunks of about one size; hold some bytes back for times when the source is slow."""
    rest = bytearray()
    source = aiter(archive)
    coming: asyncio.Future[bytes] | None = None
    try:
        while True:
            coming = asyncio.ensure_future(anext(source))
            while True:
                done, _ = await asyncio.wait((coming,), timeout=_KEEP_ALIVE_SECONDS)
                if done:
                    break
                if rest:
                    yield bytes(rest[:1])
                    del rest[:1]
            try:
                rest += coming.result()
            except StopAsyncIteration:
                break
            at = 0
            while len(rest) - at > chunk_bytes:
                yield bytes(rest[at:at + chunk_bytes])
                at += chunk_bytes
            del rest[:at]
        if rest:
            yield bytes(rest)
    finally:
        if coming is not None and not coming.done():
            coming.cancel()
            await asyncio.gather(coming, return_exceptions=True)
        if (close := getattr(source, "aclose", None)) is not None:
            await close()
