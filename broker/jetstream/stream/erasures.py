"""The erasures of one live stream: marks in its log, which name removed messages whose bytes must leave the store.

    STREAM.MSG.DELETE ──> one message removed ──> its sequence joins the newest unreported erasure
    STREAM.PURGE, JETBLOCK.ERASE ──> an erasure with an id ──> all of its messages are removed

A mark and the removals that follow it are in the same block, or the mark is earlier: after a crash between the two, the
next owner removes what the mark names. ``storage.erasure`` does the rest.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from broker.storage.format.records.stream_update import StreamUpdate
from broker.storage.state.erasures import Erasure, erasures_of, unfinished
from broker.storage.state.seq_ranges import SeqRanges

if TYPE_CHECKING:
    from broker.jetstream.stream.retention.retention import Retention
    from broker.jetstream.stream.shared.stream_parts import StreamParts

__all__ = ["Erasures"]

_log = logging.getLogger(__name__)

_GATHERED_NS: Final = 5_000_000_000
_GATHERED_MAX: Final = 64
"""Secure deletes within this time join one mark, up to so many ranges: each of them writes the mark again."""
_REPORTS_MAX: Final = 32
_REPORTS_NS: Final = 90 * 86_400_000_000_000
_FOLLOWED_NS: Final = 3_600_000_000_000
"""Finished erasures that are kept for their reports: how many of a stream, for how long, and for how long any number:
one command may have made many."""
_AT_ONCE: Final = 256


class Erasures:
    """The erasures of one stream. ``on_marked`` is called after a mark was added."""

    def __init__(self, parts: StreamParts, retention: Retention, stored: Mapping[str, Any]) -> None:
        """Args: ``stored``: the stream's extra members."""
        self.on_marked: Callable[[], object] = lambda: None
        self._parts = parts
        self._retention = retention
        self._by_key: dict[str, Erasure] = {}
        if stored:  # most streams have no extra members
            try:
                self._by_key = {one.key: one for one in erasures_of(stored)}
            except (TypeError, ValueError) as error:
                _log.warning("the erasures of stream %s cannot be read: %s", parts.name, error)
        self._gathering = ""
        """The key of the mark that secure deletes join."""
        self._unremoved = [unfinished(self._by_key.values())]
        """Marked sequences that may be live, or become so: a mirror may be about to store them."""

    def get(self, erasure_id: str) -> Erasure | None:
        """Return a reported erasure, or None."""
        found = self._by_key.get(Erasure(erasure_id, 0, SeqRanges()).key)
        return found if found is not None and found.reported else None

    @property
    def unfinished(self) -> list[Erasure]:
        """The erasures whose messages may still be in the store."""
        return [one for one in self._by_key.values() if not one.done_ns]

    @property
    def reported(self) -> list[Erasure]:
        """The erasures whose reports may be asked for, the oldest first."""
        return sorted((one for one in self._by_key.values() if one.reported), key=lambda one: one.at_ns)

    def removed(self, seq: int) -> None:
        """Mark one message, which was just removed."""
        if not self._parts.stored:
            return
        now_ns = self._parts.clock.now_ns()
        newest = self._by_key.get(self._gathering)
        if newest is None or now_ns - newest.at_ns > _GATHERED_NS or len(newest.seqs) >= _GATHERED_MAX:
            newest = Erasure(f"{seq:016x}", now_ns, SeqRanges())  # a sequence is removed once, so the id is new
            self._gathering = newest.key
        self._record([newest._replace(seqs=newest.seqs | SeqRanges.of((seq,)))], ())
        self.on_marked()

    async def erase(self, seqs: SeqRanges, erasure_id: str) -> int:
        """Mark these sequences, and remove the live messages among them; return how many were live. A known id gets
        more sequences: another broker may send its part in several requests.

        Returns once the removals are sequenced. Raises: ApiError; StoreError; FormatError.
        """
        known = self.get(erasure_id)
        marked = seqs if known is None or known.done_ns else known.seqs | seqs
        self._record([Erasure(erasure_id, self._parts.clock.now_ns(), marked, reported=True)], ())
        self._unremoved.append(seqs)
        removed = await self._remove(seqs)
        self.on_marked()
        return removed

    def mark_removed(self, seqs: SeqRanges, erasure_id: str) -> None:
        """Mark those of ``seqs`` that are not live. The stream's blocks must be loaded."""
        live = self._parts.live
        alive: list[tuple[int, int]] = []
        for block in live.blocks:
            if seqs.overlaps(block.first_seq, block.last_seq):
                dead = SeqRanges(block.dead.seqs()) if block.dead is not None else SeqRanges()
                first = max(block.first_seq, live.first_seq)
                if first <= block.last_seq:
                    alive += SeqRanges(((first, block.last_seq),)) - dead
        gone = seqs - SeqRanges(alive)
        self._record([Erasure(erasure_id, self._parts.clock.now_ns(), gone, reported=True)], ())
        self.on_marked()

    async def remove_marked(self) -> None:
        """Remove the live messages that unfinished erasures name. Raises: StoreError; FormatError."""
        for seqs in list(self._unremoved):
            await self._remove(seqs)

    def record(self, changed: Sequence[Erasure], finished: Sequence[Erasure]) -> None:
        """Record changed erasures, and forget the finished ones, unless more messages have joined them meanwhile."""
        gone = [one.key for one in finished
                if (known := self._by_key.get(one.key)) is not None and known.seqs == one.seqs]
        now_ns = self._parts.clock.now_ns()
        done = [one for one in self.reported if one.done_ns]
        gone += [one.key for at, one in enumerate(done)
                 if now_ns - one.done_ns > (_REPORTS_NS if len(done) - at <= _REPORTS_MAX else _FOLLOWED_NS)]
        self._record(changed, gone)

    def _record(self, changed: Sequence[Erasure], gone: Sequence[str]) -> None:
        changes: dict[str, Any] = {one.key: one.pack() for one in changed} | dict.fromkeys(gone)
        if not changes:
            return
        self._by_key.update((one.key, one) for one in changed)
        for key in gone:
            self._by_key.pop(key, None)
        parts = self._parts
        parts.log.block(parts.stream).add(StreamUpdate(parts.stream.config.to_json(), changes))
        parts.log.urgent()

    async def _remove(self, seqs: SeqRanges) -> int:
        """Remove the live messages among ``seqs``; return how many."""
        parts = self._parts
        live, removed = parts.live, 0
        await live.load_blocks()
        at, end = 0, live.last_seq
        while (index := live.index_at(max(at, live.first_seq))) < len(live.blocks):
            block = live.blocks[index]
            first, last = max(at, block.first_seq), block.last_seq
            at = last + 1
            if not seqs.overlaps(first, last):
                if not any(seqs.within(at, 1 << 64)):
                    break
                at = max(at, next(seqs.within(at, 1 << 64))[0])
                continue
            rows = await parts.heads.load(block)
            if rows is None:
                continue
            wanted = (seq for low, high in seqs.within(first, last)
                      for ordinal in range(rows.ordinal_of(low), min(rows.ordinal_of(high + 1), block.count))
                      if (seq := rows.seq_of(ordinal)) <= last)
            for number, seq in enumerate(wanted, 1):
                removed += await self._retention.delete(seq)
                if number % _AT_ONCE == 0:
                    await asyncio.sleep(0)
        later = seqs.cut(end + 1, 1 << 64)
        self._unremoved = [one for one in self._unremoved if one is not seqs] + [later] * bool(later)
        return removed
