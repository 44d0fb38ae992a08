"""The log of streams with ``storage: memory``: the same interface as ``Log``, without a store.

Each turn of the loop closes one segment with what was added since the last turn; it counts as persisted at once. Its
blocks get no BlockRef: a stream keeps its messages by keeping its blocks as they were gathered.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from broker.storage.format.header import Position
from broker.storage.log.open_block import OpenBlock
from broker.storage.log.owner import BlockOwner
from broker.storage.log.waiters import Batch, Waiter, Waiters, resolve
from broker.storage.log.writer import SealedBlock
from broker.storage.state.applied import ShardState

__all__ = ["MemoryLog"]

_log = logging.getLogger(__name__)

_LAZY_SECONDS = 1.0


class MemoryLog:
    """A log that stores nothing; for its methods, see ``Log``. The tail is what one turn of the loop added."""

    epoch = 0
    lease_expired = False
    full = False
    stuck = False
    tail_bytes = 0
    waiting_bytes = 0
    failure: BaseException | None = None

    def __init__(self, clock_trusted: Callable[[], bool] = lambda: True) -> None:
        self.state = ShardState()
        """The empty applied state: memory streams are never replayed."""
        self.tail_bytes_max = 1 << 62
        self.clock_trusted = clock_trusted
        """Returns False while no message may expire: the shard's value."""
        self._blocks: dict[int, OpenBlock[Any]] = {}
        self._lazy: dict[int, BlockOwner] = {}
        self._waiters: list[Waiter] = []
        self._answers = Waiters()
        """Its ``due`` has the calls whose commit is done; its other fields are not used."""
        self._answering = False
        self._failed: set[int] = set()
        self._number = 0
        self._content = False
        self._soon: asyncio.Handle | None = None
        self._later: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    def block(self, owner: BlockOwner) -> OpenBlock[Any]:
        block = self._blocks.get(owner.stream_id)
        if block is None:
            block = self._blocks[owner.stream_id] = OpenBlock(owner.stream_id, owner)
        self._commit_soon()
        return block

    def lease_held(self) -> bool:
        return True

    def urgent(self) -> None:
        self._commit_soon()

    def skip_interval(self) -> None:
        """See ``Log.skip_interval``: there is no interval."""

    def lazy(self, owner: BlockOwner) -> None:
        self._lazy[owner.stream_id] = owner
        if self._later is None:
            self._later = self._loop.call_later(_LAZY_SECONDS, self._commit)

    def barrier(self, owner: BlockOwner | None = None) -> None:
        if self._lazy if owner is None else owner.stream_id in self._lazy:
            self._content = True
            self._commit_soon()

    def wait(self, fn: Callable[..., object], *args: Any, of: BlockOwner | None = None) -> None:
        if of is not None and of.stream_id in self._failed:
            return
        if self._content or any(not block.empty for block in self._blocks.values()):
            self._waiters.append((fn, args, of, True))
        elif self._answers.due:
            self._due(fn, args, of)
        else:
            fn(*args)

    wait_safe = wait

    def wait_batched(self, fn: Callable[[list[Any]], object], *items: Any) -> None:
        """See ``Log.wait_batched``."""
        if self._waiters and self._waiters[-1][0] == fn:
            self._waiters[-1][1][0].extend(items)
        else:
            self.wait(fn, Batch(items))

    async def persisted(self) -> None:
        future: asyncio.Future[None] = self._loop.create_future()
        self.wait(resolve, future)
        await future

    safe = persisted

    def room(self) -> bool:
        return self.failure is None

    def when_room(self, fn: Callable[[], object]) -> None:
        if self.room():
            fn()

    def fail(self, error: BaseException) -> None:
        """Accept nothing more, because the state of a stream may be wrong."""
        self.failure = error
        self.stop()

    async def drain(self) -> None:
        self.barrier()
        await self.persisted()

    def stop(self) -> None:
        """Commit nothing more."""
        for timer in (self._soon, self._later):
            if timer is not None:
                timer.cancel()

    def _commit_soon(self) -> None:
        if self._soon is None:
            self._soon = self._loop.call_soon(self._commit)

    def _commit(self) -> None:
        for timer in (self._soon, self._later):
            if timer is not None:
                timer.cancel()
        self._soon = self._later = None
        lazy, self._lazy = self._lazy, {}
        blocks, self._blocks = self._blocks, {}
        waiters, self._waiters = self._waiters, []
        self._content = False
        for owner in lazy.values():
            if owner.stream_id not in blocks:
                blocks[owner.stream_id] = OpenBlock(owner.stream_id, owner)
        self._number += 1
        position = Position(0, self._number)
        # As in Log: until all owners have been called, a stream's block is the one that is being sealed.
        self._blocks = blocks
        for block in list(blocks.values()):
            if block.stream_id not in self._failed and (block.stream_id in lazy or not block.empty):
                try:
                    block.owner.sealing(block)
                except Exception as error:
                    self._set_offline(block.owner, error)
        self._blocks = {}
        sealed = []
        for block in blocks.values():
            if block.stream_id not in self._failed and not block.empty:
                # It is never encoded; its core, head and chunks are made if something reads them.
                sealed.append(SealedBlock.of_small(block, position))
        for done in sealed:
            try:
                done.owner.persisted(done)
            except Exception as error:
                self._set_offline(done.owner, error)
        for fn, args, of, _ in waiters:
            if self._failed:
                if of is not None and of.stream_id in self._failed:
                    continue
                for owner in [block.owner for block in blocks.values() if block.stream_id in self._failed]:
                    if args and type(args[0]) is Batch:
                        args = (Batch(owner.withdrawn(fn, args[0])),)
                if args and args[0] == []:
                    continue
            self._due(fn, args, of)
        if not self._answering:
            self._answer()

    def _due(self, fn: Callable[..., object], args: tuple[Any, ...], of: BlockOwner | None) -> None:
        self._answers.hold(args)
        self._answers.due.append((fn, args, of, True))

    def _answer(self) -> None:
        """Make some of the due calls, the others in later turns of the loop."""
        self._answers.answer_some()
        self._answering = bool(self._answers.due)
        if self._answering:
            self._loop.call_soon(self._answer)

    def _set_offline(self, owner: BlockOwner, error: Exception) -> None:
        """Answer nothing that depends on ``owner``, as ``Log`` does; other streams continue."""
        if owner.stream_id not in self._failed:
            owner.failed(error)
            self._failed.add(owner.stream_id)
            _log.error("memory stream %016x failed; it is offline, others continue", owner.stream_id, exc_info=error)
