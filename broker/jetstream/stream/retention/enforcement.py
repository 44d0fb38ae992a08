"""Enforces a stream's limits on the messages that it already has: after an update, a start, or a trim that failed.

Owns: the work that is left, retries, and the record in the log that shows how far the sweep got.
Does not own: the removals by a limit (retention), expiry by age, which has a timer of its own (retention).

    max_msgs, max_bytes     compared with the stream's numbers alone, at each start; a trim loads at most a few heads
    max_msgs_per_subject    compared with the subject index alone; building it may load the heads of all blocks

Messages are removed in the stream's turn, before anything else is published. If that takes too long, the sweep of all
subjects continues outside the turn; meanwhile each publish keeps its own subject within the limit. After an
update, the stream is trimmed first and swept then, as by nats-server. A start sweeps first: a batch may have joined
before the crash, and the messages that it has beyond the limits of subjects must go before any others.

    STREAM_CREATE, STREAM_UPDATE carry ``per_subject``: the most messages that any subject can have. A create, or an
    update that raises the limit, records its own limit. An update that lowers it leaves the value, and the end of the
    sweep records the new limit. A stream whose value exceeds its limit, or is missing (older versions), is swept at
    the next start.

An update that cannot be enforced now is answered with the error, and enforcing it is retried until it succeeds.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from broker.base.backoff import Backoff
from broker.jetstream.stream.state.decision import WAIT_SECONDS, Stuck, decide
from broker.storage.format.errors import FormatError
from broker.storage.format.records.stream_create import PER_SUBJECT, StreamCreate
from broker.storage.format.records.stream_update import StreamUpdate
from broker.storage.objectstore.base import StoreError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from broker.jetstream.config.stream import StreamConfig
    from broker.jetstream.stream.retention.retention import Retention
    from broker.jetstream.stream.shared.stream_parts import StreamParts

__all__ = ["Enforcement"]

_ROWS_AT_ONCE = 2000
"""Messages removed in one turn of the loop: about 2 ms."""

_RETRY_SECONDS = 1.0
_RETRY_SECONDS_MAX = 60.0


def _limit(config: StreamConfig) -> int:
    return max(config.max_msgs_per_subject, 0)


class Enforcement:
    """The enforcement of one stream's limits.

    Call ``begin`` for a new configuration, ``resume`` at a start, ``schedule_trim`` after a failed trim.

    Args: ``config``: the stream's initial configuration; ``empty``: the stream has no messages yet.
    """

    def __init__(self, parts: StreamParts, retention: Retention, config: StreamConfig, *, empty: bool) -> None:
        self._parts = parts
        self._retention = retention
        self._stream, self._log, self._queue, self._tasks = parts.stream, parts.log, parts.queue, parts.tasks
        self._most = _limit(config) if empty else 0
        """The most messages that any subject can have; 0: unknown."""
        self._round = 0
        self._sweeping = asyncio.Lock()
        self._trim_scheduled = False

    def create_record(self) -> StreamCreate:
        """Return the record of the stream's creation."""
        parts = self._parts
        return StreamCreate(parts.account, parts.name, self._stream.config.to_json(), parts.created_ns,
                            extra={PER_SUBJECT: self._most} if self._most else {})

    def suspend(self) -> None:
        """Stop relying on recorded counts, because messages arrive unchecked; call ``begin`` after the last one."""
        self._most = 0

    @property
    def sweep_due(self) -> bool:
        """True if subjects may have more messages than their limit allows."""
        limit = _limit(self._stream.config)
        return limit > 0 and not 0 < self._most <= limit

    def suspend_record(self) -> dict[str, Any]:
        """Do the same as ``suspend``, and return the members to be recorded with the arriving messages."""
        if not _limit(self._stream.config):
            return {}
        self._most = 0
        return {PER_SUBJECT: None}

    def update_record(self, config: StreamConfig) -> StreamUpdate:
        """Return the record of an update to ``config`` that is not enforced yet."""
        limit = _limit(config)
        if self._most and not limit:
            return StreamUpdate(config.to_json(), {PER_SUBJECT: None})
        return StreamUpdate(config.to_json(), {PER_SUBJECT: limit} if 0 < self._most < limit else {})

    def updated(self) -> asyncio.Future[None]:
        """Enforce the stream's new configuration. Returns: as ``begin``."""
        limit = _limit(self._stream.config)
        if self._most and (not limit or self._most < limit):
            self._most = limit
        return self.begin()

    def resume(self, extra: Mapping[str, Any], msgs: int, first: asyncio.Task[None] | None = None) -> None:
        """Compare the restored stream with its limits, and enforce them if it exceeds one.

        Args: ``extra``: the extra members of the stream's records. ``first``: a task that removes messages that no
            consumer waits for; max_msgs and max_bytes need not count these messages.
        """
        most = extra.get(PER_SUBJECT)
        if isinstance(most, int):
            self._most = most
        if self._retention.over or (self.sweep_due and msgs > _limit(self._stream.config)):
            self._begin(() if first is None else (first,))

    def begin(self) -> asyncio.Future[None]:
        """Enforce the present limits, at this place among publishes and requests.

        Returns: a future that is done once the limits hold. It fails if that must wait; then enforcing is retried here.
        """
        return self._begin(None)

    def _begin(self, first: Sequence[asyncio.Task[None]] | None) -> asyncio.Future[None]:
        """Enforce the limits: ``first`` and the sweep, then max_msgs and max_bytes; None: these two, then the sweep."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.add_done_callback(_retrieve_error)
        self._round += 1
        self._tasks.start(self._carry_out(self._round, self._queue.ticket(), done, first), "limits")
        return done

    def schedule_trim(self) -> None:
        """Schedule a trim that failed because it needs a head: load it at the stream's next turn, then trim."""
        if not self._trim_scheduled:
            self._trim_scheduled = True
            self._tasks.start(self._trim_soon(self._queue.ticket()), "trim")

    async def _trim_soon(self, ticket: asyncio.Future[None] | None) -> None:
        backoff = Backoff(_RETRY_SECONDS, _RETRY_SECONDS_MAX)
        while True:
            try:
                async with self._queue.turn(ticket):
                    await self.trim()
                    # Reset it within the turn: its end drains the queue, and those publishes may need another trim.
                    self._trim_scheduled = False
            except Exception as error:
                delay = self._failed("the excess over max_msgs or max_bytes", error, backoff)
                ticket = None
                await asyncio.sleep(delay)
            else:
                return

    async def _carry_out(self, number: int, ticket: asyncio.Future[None] | None, done: asyncio.Future[None],
                         first: Sequence[asyncio.Task[None]] | None) -> None:
        backoff = Backoff(_RETRY_SECONDS, _RETRY_SECONDS_MAX)
        try:
            # Repeat until it succeeds, or a newer configuration takes over.
            while True:
                try:
                    async with self._queue.turn(ticket):
                        if first is None:
                            await self.trim()
                        sweep = self._tasks.start(self._sweep(), "sweep")
                        _, late = await asyncio.wait((sweep, *(first or ())), timeout=WAIT_SECONDS)
                        if not late:
                            await self.trim()
                    await sweep
                    if late:
                        async with self._queue.turn():
                            await self.trim()
                except Exception as error:
                    if not done.done():
                        done.set_exception(error)
                    if number != self._round:
                        return
                    delay = self._failed("the excess over its limits", error, backoff)
                    ticket = None
                    await asyncio.sleep(delay)
                    if number != self._round:
                        return
                else:
                    break
            self._retention.arm()
            self._log.urgent()
            if not done.done():
                done.set_result(None)
        finally:
            done.cancel()

    def _failed(self, what: str, error: Exception, backoff: Backoff) -> float:
        """Log that a try failed. Returns: the seconds until the next try."""
        delay = backoff.next()
        unexpected = not isinstance(error, (StoreError, FormatError, Stuck, TimeoutError))
        self._tasks.warn("%s stays for now, trying again in %g s: %s", what, delay, error, unexpected=unexpected)
        return delay

    def sweep(self) -> asyncio.Task[None] | None:
        """Start to remove what exceeds max_msgs_per_subject. Returns: the task; None if nothing can exceed it."""
        return self._tasks.start(self._sweep(), "sweep") if self.sweep_due else None

    async def trim(self) -> None:
        """Remove what exceeds max_msgs and max_bytes."""
        while self._retention.over:
            async with asyncio.timeout(WAIT_SECONDS):
                await decide(self._parts.live, self._parts.heads, self._retention.trim)
            self._log.urgent()
            # There are very many blocks, and one slice was removed.
            await asyncio.sleep(0)

    async def _sweep(self) -> None:
        """Remove what exceeds max_msgs_per_subject, and record it."""
        async with self._sweeping:
            while self.sweep_due:
                limit = _limit(self._stream.config)
                if not await self._swept(limit):
                    continue
                self._most = limit
                if self._parts.stored:
                    self._log.block(self._stream).add(StreamUpdate(self._stream.config.to_json(), {PER_SUBJECT: limit}))
                    self._log.urgent()

    async def _swept(self, limit: int) -> bool:
        """Remove what exceeds the limit of all subjects; return False if the limit or the index changed meanwhile."""
        index = await self._parts.subjects.build()
        if _limit(self._stream.config) != limit:
            return False
        removed = list[tuple[int, int]]()
        for visited, subject in enumerate(list(index), 1):
            first_seq = self._parts.live.first_seq
            if index.count(subject, first_seq) > limit:
                for seq, size in index.messages(subject, first_seq)[:-limit]:
                    index.remove(subject, seq)
                    removed.append((seq, size))
            if len(removed) >= _ROWS_AT_ONCE or visited % (4 * _ROWS_AT_ONCE) == 0:
                self._retention.remove_listed(removed)
                removed = []
                await self._retention.yield_to_consumers()
                if self._parts.subjects.index is not index or _limit(self._stream.config) != limit:
                    return False
        self._retention.remove_listed(removed)
        return True


def _retrieve_error(done: asyncio.Future[None]) -> None:
    """Retrieve the error, so that asyncio does not report it: waiting for ``done`` is optional."""
    if not done.cancelled():
        done.exception()
