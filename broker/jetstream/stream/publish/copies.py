"""Stores messages copied from another stream, between the publishes of clients.

Owns: waiting for the stream's turn, for room in the log, and for loading the data of a decision. Does not own: the
choice of messages (upstream), the decision on each (sequencer).

    upstream ──> Copies ──(turn in the publish queue)──> sequencer.copy ──> live ──> open block ──> log

No client waits for an answer, so messages wait here instead of being refused. If a message cannot be stored, the caller
gets the error and retries.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from broker.jetstream.stream.state.decision import WAIT_SECONDS, Decision
from broker.jetstream.stream.state.rows import NotLoaded
from broker.jetstream.wire.error_table import ApiErrors
from broker.jetstream.wire.errors import ApiError

if TYPE_CHECKING:
    from broker.jetstream.bus import Msg
    from broker.jetstream.stream.publish.sequencer import Sequencer
    from broker.jetstream.stream.shared.stream_parts import StreamParts

__all__ = ["Copies", "Run"]


class Run(NamedTuple):
    """Consecutive messages, each with its time.

    ``first_seq``: the sequence of the first one; 0: they take the next sequences.
    """

    first_seq: int
    times_ns: Sequence[int]
    msgs: Sequence[Msg]


class Copies:
    """The copying side of one stream."""

    __slots__ = ("_heads", "_live", "_log", "_queue", "_sequencer")

    def __init__(self, parts: StreamParts, sequencer: Sequencer) -> None:
        self._sequencer = sequencer
        self._queue, self._live, self._heads, self._log = parts.queue, parts.live, parts.heads, parts.log

    async def room(self) -> None:
        """Wait until the log has room: back-pressure, however long it lasts."""
        while not self._log.room():
            room = asyncio.Event()
            self._log.when_room(room.set)
            await room.wait()

    async def persisted(self) -> None:
        """Wait until everything stored so far is persisted; this never returns if the log has failed."""
        persisted = asyncio.Event()
        self._log.wait(persisted.set)
        await persisted.wait()

    def skip_to(self, last_seq: int) -> None:
        """Skip the sequences up to ``last_seq``, as the origin did."""
        self._sequencer.appender.skip_to(last_seq)

    async def store(self, runs: Sequence[Run], stored: Callable[[int], None]) -> ApiError | None:
        """Store messages in order until one is refused; return its error, or None.

        Args: ``stored(n)`` is called when the first ``n`` of all messages are in the stream, now or from before. The
            call is in the same turn of the loop, before a segment may close, so that the caller's records are stored
            with them.
        Raises: StoreError, FormatError, Stuck: data for a decision cannot be read.
        """
        await self.room()
        done = 0
        try:
            async with self._queue.turn(), asyncio.timeout(WAIT_SECONDS):
                for run in runs:
                    before = done
                    decision: Decision | None = None
                    while done < before + len(run.msgs):
                        start, at = done, done - before
                        done, error = self._copy(run, at, done, stored)
                        if isinstance(error, ApiError):
                            return error
                        if error is not None:
                            if decision is None or done > start:
                                decision = Decision(self._live, self._heads)
                            await decision.load_missing(error)
        except TimeoutError:
            # Publishes wait during the turn, and must not wait as long as a store may take.
            return ApiError(ApiErrors.CLUSTER_NOT_AVAIL)
        return None

    def _copy(self, run: Run, at: int, done: int,
              stored: Callable[[int], None]) -> tuple[int, ApiError | NotLoaded | None]:
        """Copy messages from ``at`` on; return how many of all are done (``done`` before), and why the next is not."""
        reached = done

        def note(count: int) -> None:
            nonlocal reached
            reached = done + count
            stored(reached)

        error = self._sequencer.copy(run.msgs[at:], run.first_seq and run.first_seq + at, run.times_ns[at:], note)
        self._log.urgent()
        return reached, error
