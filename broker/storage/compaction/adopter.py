"""Adoption of a run: records in the log replace the old blocks by the run's blocks, and live streams are notified.

Owns: the exclusion of checkpoint rounds and adoptions, and the list of blocks that are not rewritten for a while. Does
not own: the effect of a record (``storage.state``), the deletion of old objects (``storage.checkpoint.sweeper``).
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
from broker.storage.state.swap import is_newer
from broker.storage.state.table import RunKey, run_keys

__all__ = ["Adopter", "runs_of"]

_log = logging.getLogger(__name__)

_REPLACED_AT_ONCE = 1024
"""The most blocks that one record replaces, so that applying it takes only some milliseconds."""
_NOTIFY_SECONDS, _NOTIFY_SECONDS_MAX = 0.02, 1.0
"""The first and the longest pause before live streams are notified again."""


class Adopter:
    """Adopts the runs of one shard."""

    def __init__(self, log: Log, checkpointer: Checkpointer, sweeper: Sweeper, clock: Clock,
                 settings: CompactionSettings) -> None:
        self.settings = settings
        self._log = log
        self._checkpointer = checkpointer
        self._sweeper = sweeper
        self._clock = clock
        self._dead_kept: dict[tuple[int, int], int] = {}
        """The time until which a block is not rewritten, by stream and first sequence: it keeps dead messages for
        ids."""

    async def adopt(self, run: Run, key: str) -> bool:
        """Record that the run's blocks replace the old ones, wait until the records are persisted, notify live streams.

        Returns: True if at least one block was adopted.
        """
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
                    self._log.urgent()  # the last record is stored with the next commit, or within a second
                await self._log.persisted()
                await self._notify_streams(recorded)
        if not any(map(self._log.state.counts.has_counted, runs_of(run))):
            # The state does not count this run: all blocks to replace had been removed before, or their streams
            # deleted.
            self._sweeper.abandon_run(key)
        self._exclude_dead(run)
        return adopted > 0

    def _exclude_dead(self, run: Run) -> None:
        """Exclude blocks of ``run`` that kept many dead messages from rewrites for a while.

        Within the duplicate window such messages are kept for their ids, so the block would be rewritten in vain.
        """
        for adopted in run.blocks:
            ref = BlockRef.of(tuple(adopted.ref))
            stream = self._log.state.streams.get(ref.stream_id)
            entry = stream.blocks.find(ref.first_seq) if stream is not None else None
            if stream is None or entry is None or not entry.dead_bytes:
                continue
            if entry.dead_bytes >= min(self.settings.dead_share, 0.5) * ref.bytes:
                self._dead_kept[ref.stream_id, ref.first_seq] = self._clock.now_ns() + window_ns(stream)

    def excluded(self) -> set[tuple[int, int]]:
        """Return the blocks whose dead messages a merge would keep, by stream and first sequence; forget the others."""
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
        """Return True if at least one of the old blocks is still there, and no newer block is in their range."""
        ref = BlockRef.of(tuple(adopted.ref))
        stream = self._log.state.streams.get(ref.stream_id)
        if stream is None or stream.offline is not None or stream.departed is not None:
            return False
        try:
            parts = stream.blocks.within(adopted.first_seq, adopted.last_seq)
        except ValueError:
            _log.exception("compaction made a block of other blocks than stream %s has", stream.name)
            return False
        return bool(parts) and not any(is_newer(part.ref, ref) for part in parts)

    async def _notify_streams(self, adopted: Sequence[Adopted]) -> None:
        """Make the live streams read from the new blocks; streams that cannot do so yet are notified again later."""
        backoff = Backoff(_NOTIFY_SECONDS, _NOTIFY_SECONDS_MAX)
        while adopted := self._log.notify_adopted(adopted):  # noqa: ASYNC110 (no event reports when all can follow)
            await asyncio.sleep(backoff.next())


def runs_of(run: Run) -> Iterator[RunKey]:
    """Yield the state's key of ``run``, for each of its blocks."""
    for adopted in run.blocks:
        yield from run_keys(BlockRef.of(tuple(adopted.ref)).stream_id, [tuple(adopted.ref)])


def _records(run: Run) -> Iterator[tuple[list[Adopted], bool]]:
    """Yield the blocks of a run, as many at a time as one record adopts, and True with the last ones."""
    some: list[Adopted] = []
    replaced = 0
    for adopted, inputs in zip(run.blocks, run.inputs, strict=True):
        if some and replaced + inputs > _REPLACED_AT_ONCE:
            yield some, False
            some, replaced = [], 0
        some.append(adopted)
        replaced += inputs
    yield some, True
