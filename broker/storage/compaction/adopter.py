"""Has the blocks of a run take the places of those that it was made of, by records in the log, and tells live streams.

Owns: that rounds and adoptions exclude each other, and which blocks are to be left for a while. Does not own: what a record
does (``storage.state``), when old objects are deleted (``storage.checkpoint.sweeper``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence

from broker.base.backoff import Backoff
from broker.base.clock import Clock
from broker.storage.checkpoint.checkpointer import Checkpointer
from broker.storage.checkpoint.sweeper import Sweeper
from broker.storage.compaction.merge import Run
from broker.storage.compaction.settings import CompactionSettings
from broker.storage.compaction.source import window_ns
from broker.storage.format.block import BlockRef
from broker.storage.format.records.adoption import Adopted, Adoption
from broker.storage.log.log import Log
from broker.storage.state.table import RunKey, run_keys

__all__ = ["Adopter", "runs_of"]

_log = logging.getLogger(__name__)

_REPLACED_AT_ONCE = 1024
"""Blocks that one record replaces, so that applying it takes some milliseconds. More need more records."""
_TELL_SECONDS, _TELL_SECONDS_MAX = 0.02, 1.0


class Adopter:
    """Of one shard."""

    def __init__(self, log: Log, checkpointer: Checkpointer, sweeper: Sweeper, clock: Clock, settings: CompactionSettings) -> None:
        self.settings = settings
        self._log = log
        self._checkpointer = checkpointer
        self._sweeper = sweeper
        self._clock = clock
        self._dead_kept: dict[tuple[int, int], int] = {}
        """Blocks that were rewritten and are as dead as before, by stream and first sequence: until when they are left."""

    async def adopt(self, run: Run, key: str) -> bool:
        """Record that the run's blocks take their places, wait until that is persisted, and tell live streams; returns
        whether any of them does."""
        adopted = 0
        for some, last in _records(run):
            recorded: list[Adopted] = []

            def record(some: Sequence[Adopted] = some, recorded: list[Adopted] = recorded) -> None:
                recorded += filter(self._fits, some)
                if recorded:
                    self._log.block(self._log.shard).add(Adoption(recorded))

            await self._checkpointer.between_rounds(record)
            if recorded:
                adopted += len(recorded)
                if not last:
                    self._log.urgent()  # otherwise it rides along, or goes within a second
                await self._log.persisted()
                await self._tell(recorded)
        state, runs = self._log.state, set(runs_of(run))
        if runs.isdisjoint(state.runs) and runs.isdisjoint(state.freed_runs):
            # Nobody counts it: when a record was applied, all that it replaces had been removed, or its stream deleted.
            self._sweeper.abandon_run(key)
        self._note_dead(run)
        return adopted > 0

    def _note_dead(self, run: Run) -> None:
        """Which blocks of ``run`` are to be left for a while: of those within the duplicate window the dead messages stay for
        their ids, and it would be rewritten again at once."""
        for adopted in run.blocks:
            ref = BlockRef.of(tuple(adopted.ref))
            stream = self._log.state.streams.get(ref.stream_id)
            entry = stream.blocks.find(ref.first_seq) if stream is not None else None
            if stream is None or entry is None or not entry.dead_bytes:
                continue
            if entry.dead_bytes >= min(self.settings.dead_share, 0.5) * ref.bytes:
                self._dead_kept[ref.stream_id, ref.first_seq] = self._clock.now_ns() + window_ns(stream)

    def still_kept(self) -> set[tuple[int, int]]:
        """Those of ``_dead_kept`` of which no more could be left out now."""
        now_ns, streams = self._clock.now_ns(), self._log.state.streams
        kept: dict[tuple[int, int], int] = {}
        for (stream_id, first_seq), until_ns in self._dead_kept.items():
            stream = streams.get(stream_id)
            entry = stream.blocks.find(first_seq) if stream is not None else None
            if stream is not None and entry is not None and (now_ns < until_ns or entry.last_seq >= stream.last_seq):
                kept[stream_id, first_seq] = until_ns
        self._dead_kept = kept
        return set(kept)

    def _fits(self, adopted: Adopted) -> bool:
        """Whether something of what the block was made of is still there, and nothing else."""
        ref = BlockRef.of(tuple(adopted.ref))
        stream = self._log.state.streams.get(ref.stream_id)
        if stream is None or stream.offline is not None:
            return False
        try:
            parts = stream.blocks.within(adopted.first_seq, adopted.last_seq)
        except ValueError:
            _log.exception("compaction made a block of others than stream %s has", stream.name)
            return False
        return bool(parts) and all(part.ref.position <= ref.position for part in parts)

    async def _tell(self, adopted: Sequence[Adopted]) -> None:
        """Have the live streams read from the new blocks. Those in the middle of something are told again."""
        backoff = Backoff(_TELL_SECONDS, _TELL_SECONDS_MAX)
        while adopted := self._log.notify_adopted(adopted):  # noqa: ASYNC110 (no event says when all can follow)
            await asyncio.sleep(backoff.next())


def runs_of(run: Run) -> Iterator[RunKey]:
    """The key of ``run``, for each of its blocks."""
    for adopted in run.blocks:
        yield from run_keys(BlockRef.of(tuple(adopted.ref)).stream_id, [tuple(adopted.ref)])


def _records(run: Run) -> Iterator[tuple[list[Adopted], bool]]:
    """The blocks of a run, as many at a time as one record adopts; and whether they are the last."""
    some: list[Adopted] = []
    replaced = 0
    for adopted, inputs in zip(run.blocks, run.inputs, strict=True):
        if some and replaced + inputs > _REPLACED_AT_ONCE:
            yield some, False
            some, replaced = [], 0
        some.append(adopted)
        replaced += inputs
    yield some, True
