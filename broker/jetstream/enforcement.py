"""Sees to it that a stream's limits hold for what is there: after an update, after a start, after a trim that failed.

Owns: what is still to be carried out, trying again, and the word in the log that says how far it got.
Does not own: what a limit takes out (retention), expiry by age, which has a timer of its own (retention).

    max_msgs, max_bytes     told by the stream's numbers alone, so each start compares them. It takes a head or two
    max_msgs_per_subject    told by the index of subjects alone, which takes the heads of all blocks

What leaves does so in the stream's turn, before anything else is published. Where that takes too long, the sweep subject by
subject goes on without the turn: each publish keeps its own subject within the limit.

    STREAM_CREATE, STREAM_UPDATE carry ``per_subject``: the most messages that any subject can have. A create and an update
    to more say their own limit, an update to less leaves it as it was, the end of the sweep says the new one. A stream whose
    record says more than its limit, or nothing (older versions did not write it), is swept at the next start.

An update that cannot be carried out now is answered with the error; carrying it out is tried until it succeeds.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from broker.jetstream.decision import Stuck, decide
from broker.jetstream.standstill import WAIT_SECONDS
from broker.storage.format.errors import FormatError
from broker.storage.format.record import RecordKind
from broker.storage.objectstore.base import StoreError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from broker.jetstream.stream import Stream
    from broker.jetstream.stream_config import StreamConfig

__all__ = ["Enforcement"]

_MOST = "per_subject"

_ROWS_AT_ONCE = 2000
"""Removed in one turn of the loop: about 2 ms."""

_RETRY_SECONDS = 1.0
_RETRY_SECONDS_MAX = 60.0


def _limit(config: StreamConfig) -> int:
    return max(config.max_msgs_per_subject, 0)


class Enforcement:
    """The limits of one stream. ``begin`` is for a new configuration, ``resume`` for a start, ``soon`` for a failed trim.

    Args: ``config``: what the stream is made with, ``empty``: it holds no message yet.
    """

    def __init__(self, stream: Stream, config: StreamConfig, *, empty: bool) -> None:
        self._stream = stream
        self._most = _limit(config) if empty else 0
        """The most messages that any subject can have; 0: not known."""
        self._round = 0
        self._sweeping = asyncio.Lock()
        self._soon = False

    def create_record(self) -> dict[str, Any]:
        """The body of the stream's STREAM_CREATE."""
        stream = self._stream
        body = {"account": stream.account, "name": stream.name, "config": stream.config.to_json(),
                "created_ns": stream.created_ns}
        return body | {_MOST: self._most} if self._most else body

    def update_record(self, config: StreamConfig) -> dict[str, Any]:
        """The body of a STREAM_UPDATE to ``config``, before what it demands is carried out."""
        body: dict[str, Any] = {"config": config.to_json()}
        limit = _limit(config)
        if self._most and not limit:
            body[_MOST] = None
        elif 0 < self._most < limit:
            body[_MOST] = limit
        return body

    def updated(self) -> asyncio.Future[None]:
        """The stream took another configuration: ``begin`` to carry it out."""
        limit = _limit(self._stream.config)
        if self._most and (not limit or self._most < limit):
            self._most = limit
        return self.begin()

    def resume(self, extra: Mapping[str, Any], msgs: int) -> None:
        """Compare what a start found with the limits; ``extra`` is what the stream's records say besides."""
        most = extra.get(_MOST)
        if isinstance(most, int):
            self._most = most
        if self._stream.retention.over or (self._to_sweep and msgs > _limit(self._stream.config)):
            self.begin()

    @property
    def _to_sweep(self) -> bool:
        limit = _limit(self._stream.config)
        return limit > 0 and not 0 < self._most <= limit

    def begin(self) -> asyncio.Future[None]:
        """Carry out the limits as they are now, at this place among publishes and requests.

        Returns: done once they hold, or failed when that must wait; then it is tried again here.
        """
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.add_done_callback(_heard)
        self._round += 1
        self._stream.start(self._carry_out(self._round, self._stream.inlet.ticket(), done), "limits")
        return done

    def soon(self) -> None:
        """A trim found a head missing: bring it in, at the next turn, and trim then."""
        if not self._soon:
            self._soon = True
            self._stream.start(self._trim_soon(self._stream.inlet.ticket()), "trim")

    async def _trim_soon(self, ticket: asyncio.Future[None] | None) -> None:
        delay = _RETRY_SECONDS
        while True:
            try:
                async with self._stream.inlet.turn(ticket):
                    await self._trim()
            except Exception as error:
                self._failed("what is past max_msgs or max_bytes", error, delay)
                ticket = None
                await asyncio.sleep(delay)
                delay = min(2 * delay, _RETRY_SECONDS_MAX)
            else:
                self._soon = False
                return

    async def _carry_out(self, number: int, ticket: asyncio.Future[None] | None, done: asyncio.Future[None]) -> None:
        stream, delay = self._stream, _RETRY_SECONDS
        try:
            # Until it succeeds, or a newer configuration takes over.
            while True:
                try:
                    async with stream.inlet.turn(ticket):
                        await self._trim()
                        sweep = stream.start(self._sweep(), "sweep")
                        await asyncio.wait((sweep,), timeout=WAIT_SECONDS)
                    await sweep
                except Exception as error:
                    if number == self._round:
                        self._failed("what its limits remove", error, delay)
                    if not done.done():
                        done.set_exception(error)
                    if number != self._round:
                        return
                    ticket = None
                    await asyncio.sleep(delay)
                    if number != self._round:
                        return
                    delay = min(2 * delay, _RETRY_SECONDS_MAX)
                else:
                    break
            stream.retention.arm()
            stream.log.urgent()
            if not done.done():
                done.set_result(None)
        finally:
            done.cancel()

    def _failed(self, what: str, error: Exception, delay: float) -> None:
        self._stream.warn("%s stays for now, trying again in %g s: %s", what, delay, error,
                          unforeseen=not isinstance(error, (StoreError, FormatError, Stuck, TimeoutError)))

    async def _trim(self) -> None:
        """Take out what is past max_msgs and max_bytes."""
        stream = self._stream
        while stream.retention.over:
            async with asyncio.timeout(WAIT_SECONDS):
                await decide(stream.live, stream.heads, stream.retention.trim)
            stream.log.urgent()
            # Of very many blocks a slice has left.
            await asyncio.sleep(0)

    async def _sweep(self) -> None:
        """Take out what is past max_msgs_per_subject, and say so."""
        stream = self._stream
        async with self._sweeping:
            while self._to_sweep:
                limit = _limit(stream.config)
                if not await self._swept(limit):
                    continue
                self._most = limit
                if stream.stored:
                    stream.log.block(stream).add_record(
                        RecordKind.STREAM_UPDATE, {"config": stream.config.to_json(), _MOST: limit})
                    stream.log.urgent()

    async def _swept(self, limit: int) -> bool:
        """Go over all subjects; False when the limit or the index was changed meanwhile."""
        stream = self._stream
        index = await stream.subjects.build()
        if _limit(stream.config) != limit:
            return False
        removed = list[tuple[int, int]]()
        for looked_at, subject in enumerate(list(index), 1):
            first_seq = stream.live.first_seq
            if index.count(subject, first_seq) > limit:
                for seq, size in index.messages(subject, first_seq)[:-limit]:
                    index.remove(subject, seq)
                    removed.append((seq, size))
            if len(removed) >= _ROWS_AT_ONCE or looked_at % (4 * _ROWS_AT_ONCE) == 0:
                stream.retention.take_out(removed)
                removed = []
                await asyncio.sleep(0)
                if stream.subjects.index is not index or _limit(stream.config) != limit:
                    return False
        stream.retention.take_out(removed)
        return True


def _heard(done: asyncio.Future[None]) -> None:
    """Nobody has to wait for it."""
    if not done.cancelled():
        done.exception()
