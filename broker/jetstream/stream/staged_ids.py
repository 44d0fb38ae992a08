"""Finds the duplicates of a request: messages whose ids are in the stream's duplicate window, or repeated in the
request.

    compare   compares the ids with the window and with each other, while publishes continue
    catch_up  compares them with ids published meanwhile, while publishes wait: usually none

There may be a million ids: all work is done in slices, with a turn of the loop after each.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from broker.jetstream.stream.publish.id_map import IdSet
from broker.storage.state.dead import DeadSet

if TYPE_CHECKING:
    from broker.base.clock import Clock
    from broker.jetstream.stream.publish.dedupe import Dedupe
    from broker.storage.staging.check import Staged, StagedBlock

__all__ = ["Dropped", "StagedIds"]

_AT_ONCE: Final = 512
"""Ids compared in one turn of the loop: about half a millisecond."""


class Dropped:
    """The messages of one block that do not join.

    Attributes: ``places``: their places among the block's ids; ``dead``: the same as sequences that count from 1;
        ``size_bytes``: their size.
    """

    __slots__ = ("dead", "places", "size_bytes")

    def __init__(self, block: StagedBlock) -> None:
        self.places = array("I")
        self.size_bytes = 0
        self.dead = DeadSet(1, block.ref.count, block.ref.count)

    def __len__(self) -> int:
        return len(self.places)

    def add(self, block: StagedBlock, at: int) -> None:
        """Add the message with the id at ``at``, unless it is added already."""
        seq = 1 + block.ids.ordinals[at]
        if self.dead.add(seq, seq):
            self.places.append(at)
            self.size_bytes += block.ids.sizes[at]


class StagedIds:
    """The ids of one request, compared with those of one stream.

    Attributes: ``dropped``: number of a block → its messages that are dropped as duplicates.
    """

    def __init__(self, staged: Staged, dedupe: Dedupe, clock: Clock) -> None:
        self.dropped: dict[int, Dropped] = {}
        self._staged = staged
        self._dedupe = dedupe
        self._clock = clock
        self._seen = IdSet()
        self._window_ns = -1
        """The stream's window when the ids were compared; -1: not compared yet."""
        self._newest_seq = 0
        """The window's newest sequence when the comparison began: later ids are above it. The stream's last sequence
        would be wrong, because its ids may not be in the window yet."""

    @property
    def msgs(self) -> int:
        """Number of messages that are dropped."""
        return sum(map(len, self.dropped.values()))

    @property
    def size_bytes(self) -> int:
        """Total size of the messages that are dropped."""
        return sum(one.size_bytes for one in self.dropped.values())

    async def compare(self) -> None:
        """Compare with all ids of the window, which must be loaded."""
        dedupe = self._dedupe
        self.dropped, self._seen, self._window_ns, self._newest_seq = {}, IdSet(), dedupe.window_ns, dedupe.newest_seq
        if dedupe.window_ns <= 0:
            return
        for number, block in enumerate(self._staged.blocks):
            ids = block.ids.ids
            for start in range(0, len(ids), _AT_ONCE):
                some = ids[start:start + _AT_ONCE]
                dedupe.expire(self._clock.now_ns())
                again = set(self._seen.add_new(some))
                if not dedupe.all_new(some):
                    again.update(at for at, msg_id in enumerate(some) if dedupe.seen(msg_id))
                self._drop(number, block, [start + at for at in sorted(again)])
                await asyncio.sleep(0)

    async def catch_up(self) -> None:
        """Compare with the ids added since ``compare``; no ids may be added meanwhile."""
        dedupe = self._dedupe
        if self._window_ns != dedupe.window_ns:  # the stream was updated
            await self.compare()
            return
        hits: set[bytes] = set()
        compared = 0
        dedupe.expire(self._clock.now_ns())
        newer, self._newest_seq = dedupe.since(self._newest_seq), max(self._newest_seq, dedupe.newest_seq)
        for ids in newer:
            for start in range(0, len(ids), _AT_ONCE):
                some = ids[start:start + _AT_ONCE]
                hits.update(msg_id for msg_id in some if msg_id in self._seen and dedupe.seen(msg_id))
                compared += len(some)
                if compared >= _AT_ONCE:
                    compared = 0
                    await asyncio.sleep(0)
        for number, block in enumerate(self._staged.blocks if hits else ()):
            ids = block.ids.ids
            for start in range(0, len(ids), _AT_ONCE):
                some = ids[start:start + _AT_ONCE]
                if not hits.isdisjoint(some):
                    self._drop(number, block, [at for at, msg_id in enumerate(some, start) if msg_id in hits])
            await asyncio.sleep(0)

    def _drop(self, number: int, block: StagedBlock, places: Sequence[int]) -> None:
        if places:
            dropped = self.dropped.get(number)
            if dropped is None:
                dropped = self.dropped[number] = Dropped(block)
            for at in places:
                dropped.add(block, at)
