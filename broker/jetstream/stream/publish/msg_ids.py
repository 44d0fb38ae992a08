"""Maintains a stream's window of message ids: loads it after a restart, and lets it expire.

Owns: which stored blocks have ids of the window, reading them, the expiry timer. Does not own: the ids (dedupe), what
happens to a duplicate (duplicates), the records that store ids (stream).
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING

from broker.storage.format.records.message_ids import MessageIds
from broker.storage.objectstore.base import NotFound

if TYPE_CHECKING:
    from broker.clock import Clock
    from broker.jetstream.stream.publish.dedupe import Dedupe
    from broker.jetstream.stream.state.block import LiveBlock
    from broker.jetstream.stream.state.live import Live
    from broker.storage.read.reader import BlockReader

__all__ = ["MsgIds"]

_IDS_BLOCKS_AT_ONCE = 24
"""Blocks whose ids are read in parallel after a restart: a busy window has thousands, and publishes wait for them."""

_IDS_AT_ONCE = 65_536
"""Messages in those blocks together, unless a single one has more: while they load, their ids are in memory twice."""

_IDS_A_TURN = 2048
"""Ids loaded or forgotten per turn of the loop: about 2 ms."""

_ONE_TIME_NS = 100_000_000
"""If a block spans at most this time, all its ids count from its last message's time."""

_last_time: Callable[[LiveBlock], int] = attrgetter("last_time_ns")


class MsgIds:
    """The stored ids of one stream."""

    def __init__(self, dedupe: Dedupe, live: Live, reader: BlockReader, clock: Clock) -> None:
        self._dedupe = dedupe
        self._live = live
        self._reader = reader
        self._clock = clock
        self._with_ids: list[LiveBlock] = []
        self._timer: asyncio.TimerHandle | None = None
        self.loading = False

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def looked(self, blocks: Sequence[LiveBlock]) -> None:
        """Take note of persisted blocks, as the stream loads their entries in order."""
        if self._dedupe.known or not blocks:
            return
        # Immediately, since a message may be removed before its id is looked up.
        since_ns, noted = self._clock.now_ns() - self._dedupe.window_ns, self._with_ids
        if noted and noted[-1].last_time_ns <= since_ns:
            noted.clear()  # of the blocks that are too old, only the last one matters
        noted += blocks[bisect_right(blocks, since_ns, key=_last_time):] or blocks[-1:]

    @property
    def owes(self) -> bool:
        """Whether ids of the window are still to be read from a block that has left the stream. The blocks are loaded."""
        since_ns, holds = self._clock.now_ns() - self._dedupe.window_ns, self._live.holds
        return any(block.last_time_ns > since_ns and not holds(block) for block in self._with_ids)

    def dropped(self) -> None:
        """The blocks are let go, and noted again when they are loaded again: nothing is removed before that. None is owed."""
        self._with_ids.clear()

    def swapped(self, old: Sequence[LiveBlock], new: LiveBlock | None) -> None:
        """``new`` has the ids of ``old`` that may still be asked for."""
        noted = self._with_ids
        if noted and (places := [at for at, block in enumerate(noted) if block in old]):
            noted[places[0]:places[-1] + 1] = [] if new is None else [new]

    async def load(self) -> None:
        """Load the ids of the window, and that of the last message, from the cores of recent blocks: newest first, as
        many as may be held, a slice per turn of the loop."""
        self.loading = True
        try:
            await self._load()
        finally:
            self.loading = False

    async def _load(self) -> None:
        live, dedupe = self._live, self._dedupe
        await live.look()
        blocks, more = self._with_ids, True
        while blocks and more:
            some, count = [blocks[-1]], blocks[-1].count
            while len(some) < min(_IDS_BLOCKS_AT_ONCE, len(blocks)) and count + blocks[-1 - len(some)].count <= _IDS_AT_ONCE:
                some.append(blocks[-1 - len(some)])
                count += some[-1].count
            for ids in await asyncio.gather(*map(self._ids_of, some)):
                if dedupe.last_id is None:
                    dedupe.last_id = ids[-1][1] if ids and ids[-1][0] == live.last_seq else b""
                for end in range(len(ids), 0, -_IDS_A_TURN):
                    more = more and dedupe.restore(ids[max(0, end - _IDS_A_TURN):end], self._clock.now_ns())
                    await asyncio.sleep(0)
            del blocks[-len(some):]
        if dedupe.last_id is None:
            dedupe.last_id = b""
        dedupe.restored()
        self._with_ids = []
        self.expire_later()

    async def _ids_of(self, block: LiveBlock) -> list[tuple[int, bytes, int]]:
        """The ids that a block records: (sequence, id, time_ns) in order; none if the block has been removed meanwhile."""
        try:
            core = await self._reader.core(block)
            pairs: list[tuple[int, bytes]] = []
            for record in core.records:
                if record.kind == MessageIds.KIND:
                    said = MessageIds.decode(record.body)
                    pairs += zip(said.ordinals, said.ids, strict=True)
            if not pairs:
                return []
            if block.gapless and block.last_time_ns - block.first_time_ns <= _ONE_TIME_NS:
                # The ids stay in the window slightly longer, which saves reading each block's index.
                return [(block.first_seq + at, msg_id, block.last_time_ns) for at, msg_id in pairs]
            rows = self._live.resident(block) or await self._reader.head(block)
        except NotFound:
            if self._live.holds(block):
                raise
            return []
        return [(rows.seq_of(at), msg_id, rows.time_of(at)) for at, msg_id in pairs]

    def expire_later(self) -> None:
        due_ns = self._dedupe.next_expiry_ns
        if self._timer is None and due_ns is not None:
            delay_ns = max(due_ns - self._clock.now_ns(), 5_000_000 if self._dedupe.behind else 50_000_000)
            self._timer = asyncio.get_running_loop().call_later(delay_ns / 1e9, self._expire)

    def _expire(self) -> None:
        self._timer = None
        self._dedupe.expire(self._clock.now_ns(), _IDS_A_TURN)
        self.expire_later()
