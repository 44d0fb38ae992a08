"""The queue before a stream's sequencer: holds back publishes, and slows or refuses their sources.

Owns: the order of publishes and mutations while one of them waits for the store; back-pressure on publishers.
Does not own: the effects of a publish (sequencer), the room in the log (log).

A stream is usually *open*: publishes pass straight through. It is

    busy    while an operation waits for data from the store: later publishes and mutations queue behind it
    full    while the log has no room: publishes queue

Queued bytes are bounded; publishes beyond that are refused. Sources of queued publishes are held (their reads pause)
for at most ``HOLD_SECONDS``. If the log still has no room then, the queued publishes and all later ones are refused
until it has: with 429 and error 10167 if they have a reply subject; otherwise they are dropped and counted. While the
store is full they are refused at once, with 503 and error 10023.

Source of the refusals: nats-server, server/stream.go (queueInbound, processJetStreamMsg).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broker.jetstream.bus import Msg, Source
    from broker.storage.log.stream_log import StreamLog

__all__ = ["HOLD_SECONDS", "PublishQueue", "Run"]

HOLD_SECONDS = 1.0

_ROW_BYTES = 200
"""Memory of a queued message in addition to its body and names: its tuple and object headers."""

_WORK_AT_ONCE = 5000
"""Work in one turn of the loop when a queue drains, in messages of a run that is sequenced whole: some milliseconds."""

_RUN_MAX = 512
"""Maximum number of messages in one call of ``sequence``."""

Run = tuple["Sequence[Msg]", int, int, "Source | None", int]
"""ops, start, end, source, now_ns: as the bus passes them on."""


class PublishQueue:
    """The queue of one stream.

    Attributes: ``closed``: True if publishes must pass through the queue; ``refused``: number of messages refused so
        far.
    """

    def __init__(self, log: StreamLog, *, bytes_max: int = 16 << 20) -> None:
        self.closed = False
        self.busy = False
        self.bytes = 0
        self.bytes_max = bytes_max
        self.refused = 0
        self._log = log
        self._queue: deque[tuple[Run, int] | asyncio.Future[None]] = deque()
        self._held: dict[int, Source] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._refusing = False
        self._awaiting_room = False
        self._scheduled = False
        """True if a later turn of the loop continues ``_drain``."""
        self._shut = False

    def connect(self, sequence: Callable[[Sequence[Msg], int, int, Source | None, int], int],
                refuse: Callable[[Source | None, Sequence[Msg]], None]) -> None:
        """Set the functions for runs that leave the queue.

        Args: ``sequence`` decides a run when its turn comes, and returns the cost of that (see ``_WORK_AT_ONCE``).
            ``refuse`` answers a run that is not accepted.
        """
        self._sequence, self._refuse = sequence, refuse

    # --- publishes ----------------------------------------------------------------------------------------------------

    def enqueue(self, ops: Sequence[Msg], start: int, end: int, source: Source | None, now_ns: int) -> None:
        """Queue a run, or refuse it."""
        run = ops[start:end]
        full = not self._log.room()
        size = _size(run)
        if (full and (self._refusing or self._log.full)) or self.bytes + size > self.bytes_max:
            self._refuse_run(source, run)
            return
        self._queue.append(((run, 0, len(run), source, now_ns), size))
        self.bytes += size
        self.closed = True
        if source is not None and (full or self.bytes > self.bytes_max // 4):
            self._hold(source)
        if full:
            self._await_room()
        elif not self.busy and not self._scheduled:
            self._drain()

    def requeue(self, run: Run) -> None:
        """Put the rest of a run back at the head of the queue, because it waits for data to be loaded."""
        size = _size(run[0][run[1]:run[2]])
        self._queue.appendleft((run, size))
        self.bytes += size
        self.closed = True

    def drop_first(self, msg: Msg) -> bool:
        """Remove ``msg``, which cannot be decided, from the queue; return False if it is not the first.

        It is not the first if it was refused in the meantime.
        """
        for at, item in enumerate(self._queue):
            if not isinstance(item, asyncio.Future):
                (ops, start, end, source, now_ns), size = item
                if ops[start] is not msg:
                    break
                if start + 1 < end:
                    self._queue[at] = (ops, start + 1, end, source, now_ns), size
                else:
                    del self._queue[at]
                    self.bytes -= size
                return True
        return False

    async def quiet(self) -> None:
        """Wait until everything that was queued before this call has been handled."""
        if self.busy or self._queue:
            async with self.turn():
                pass

    # --- busy ---------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Queue everything until ``end``, because the current operation waits for the store.

        Raises: RuntimeError if an operation is waiting already.
        """
        if self.busy:
            raise RuntimeError("one operation at a time waits for the store")
        self.busy = self.closed = True

    def end(self) -> None:
        """End the operation that was waiting, and drain the queue."""
        if not self.busy:
            raise RuntimeError("no operation is waiting")
        self.busy = False
        self._drain()

    def ticket(self) -> asyncio.Future[None]:
        """Reserve a place in the queue immediately; for ``turn``."""
        ticket: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.busy or self._queue:
            self._queue.append(ticket)
        else:
            self.begin()
            ticket.set_result(None)
        return ticket

    @asynccontextmanager
    async def turn(self, ticket: asyncio.Future[None] | None = None) -> AsyncIterator[None]:
        """Wait until everything before this call (or the ticket) is done, and make everything later wait."""
        ticket = ticket or self.ticket()
        try:
            if not ticket.done():
                await ticket
        except asyncio.CancelledError:
            if ticket.done() and not ticket.cancelled():
                self.end()
            raise
        try:
            yield
        finally:
            self.end()

    def shut(self) -> None:
        """Stop passing publishes on: they are queued until ``refuse_all`` or ``close``."""
        self._shut = self.closed = True

    def take(self) -> list[Run]:
        """Stop passing publishes on, and return those that are queued; operations that wait for their turn end."""
        self.shut()
        taken = [item[0] for item in self._queue if not isinstance(item, asyncio.Future)]
        self.close()
        return taken

    def refuse_all(self, refuse: Callable[[Source | None, Sequence[Msg]], None]) -> None:
        """Refuse the queued publishes."""
        queue, self._queue = self._queue, deque()
        for item in queue:
            if isinstance(item, asyncio.Future):
                item.cancel()
            else:
                (ops, start, end, source, _), _ = item
                refuse(source, ops[start:end])
        self.bytes = 0

    def close(self) -> None:
        """Drop the queue without replying: the stream was deleted, or belongs to another owner."""
        for item in self._queue:
            if isinstance(item, asyncio.Future):
                item.cancel()
        self._queue.clear()
        self.bytes = 0
        self._release()

    # --- internals ----------------------------------------------------------------------------------------------------

    def _drain(self) -> None:
        queue, work = self._queue, 0
        while queue and not self.busy and not self._shut:
            item = queue[0]
            if isinstance(item, asyncio.Future):
                queue.popleft()
                if not item.done():
                    self.busy = True
                    item.set_result(None)
                continue
            if not self._log.room():
                self._await_room()
                return
            if work >= _WORK_AT_ONCE:
                self._drain_later()
                return
            (ops, start, end, source, now_ns), size = item
            if end - start <= _RUN_MAX:
                queue.popleft()
            else:
                rest, end = end, start + _RUN_MAX
                part = _size(ops[start:end])
                queue[0] = (ops, end, rest, source, now_ns), size - part
                size = part
            self.bytes -= size
            try:
                work += self._sequence(ops, start, end, source, now_ns)
            except BaseException:
                # The caller reports the error; the rest of the queue continues in a later turn.
                self._drain_later()
                raise
        if not queue:
            self._release()
        self.closed = self.busy or bool(queue) or self._refusing or self._shut

    def _drain_later(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._scheduled_drain)

    def _scheduled_drain(self) -> None:
        self._scheduled = False
        self._has_room()

    def _await_room(self) -> None:
        if self._awaiting_room:
            return
        self._awaiting_room = True
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(HOLD_SECONDS, self._held_long_enough)
        self._log.when_room(self._has_room)

    def _has_room(self) -> None:
        self._awaiting_room = self._refusing = False
        if not self.busy:
            self._drain()

    def _hold(self, source: Source) -> None:
        if id(source) not in self._held and not self._refusing:
            self._held[id(source)] = source
            source.hold()
            if self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(HOLD_SECONDS, self._held_long_enough)

    def _release(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        held, self._held = self._held, {}
        for source in held.values():
            source.release()

    def _held_long_enough(self) -> None:
        self._timer = None
        if self._awaiting_room and not self._log.room():
            self._refusing = True
            kept: deque[tuple[Run, int] | asyncio.Future[None]] = deque()
            for item in self._queue:
                if isinstance(item, asyncio.Future):
                    kept.append(item)
                else:
                    self.bytes -= item[1]
                    ops, start, end, source, _ = item[0]
                    self._refuse_run(source, ops[start:end])
            self._queue = kept
            if not self.busy:
                self._drain()
            self.closed = True
        self._release()

    def _refuse_run(self, source: Source | None, run: Sequence[Msg]) -> None:
        self.refused += len(run)
        self._refuse(source, run)


def _size(run: Sequence[Msg]) -> int:
    return sum([len(subject) + len(reply) + len(body) for subject, reply, _, body in run]) + _ROW_BYTES * len(run)
