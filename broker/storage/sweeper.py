"""Let go, then delete: what nothing needs any more is named in a record of the log, and goes once that is persisted.

    segments    no live block in them, and at or before the oldest kept root: no replay begins early enough to want them
    pages       objects that no kept root needs
    roots       older than the kept ones
    strays      what an owner before us left beyond his end, or put without a root to name it; looked for once, after our
                own first root, in a task of its own: no round waits for that, and so no commit

A fenced owner can let go of nothing, for his record does not persist. Claims are no candidates and seals are passed
over: put-if-absent remembers only what is still there. The grace period serves readers alone, who plan on an older
root and meet a 404 else; correctness would stand with none. Nothing is deleted while the clocks disagree.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from broker.clock import Clock
from broker.storage.applied import LetGo, position_key
from broker.storage.checkpointer import Checkpointer
from broker.storage.format.errors import FormatError
from broker.storage.format.header import HEADER_BYTES, ObjectHeader, ObjectKind, Position
from broker.storage.format.record import RecordKind
from broker.storage.log import Log
from broker.storage.objectstore.base import NotFound, StoreError
from broker.storage.paths import ShardPaths, parse
from broker.storage.settle import Backoff
from broker.storage.strays import stray_pages, stray_segments
from broker.storage.writer import SealedBlock

__all__ = ["SWEEP_GRACE_NS", "Sweeper"]

_log = logging.getLogger(__name__)

T = TypeVar("T")

SWEEP_GRACE_NS = 60_000_000_000
"""A reader without a broker plans on a root and reads for about this long before it looks for a newer one."""
_AT_ONCE = 8
_TRIES_TOLD = 4
"""After so many failures of one request the log tells it, once."""
_RUNS_MAX = 4096
"""Positions let go of by one record, of each kind: the rest waits for the next round."""


class Sweeper:
    """Deletes what one shard's log has let go of."""

    def __init__(self, log: Log, paths: ShardPaths, clock: Clock, rng: random.Random, *,
                 grace_ns: int = SWEEP_GRACE_NS, clock_trusted: Callable[[], bool] = lambda: True) -> None:
        self.deleted = 0
        """Objects deleted by this process run."""
        self._log = log
        self._store = log.store
        self._paths = paths
        self._clock = clock
        self._rng = rng
        self._grace_ns = grace_ns
        self._clock_trusted = clock_trusted
        self._finding: asyncio.Task[None] | None = None
        self._stray: dict[str, set[Position]] = {"segments": set(), "pages": set()}
        self._done: list[Position] = []
        self._queue: deque[tuple[int, LetGo]] = deque()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self, checkpointer: Checkpointer) -> None:
        """Begin: after each of the checkpointer's rounds, and with what earlier owners let go of and did not delete."""
        checkpointer.on_round = self.after_round
        self._log.shard.on_persisted = self._recorded
        due_ns = self._clock.monotonic_ns() + self._grace_ns
        self._queue.extend((due_ns, letgo) for letgo in self._log.state.letgo.values())
        self._task = asyncio.get_running_loop().create_task(self._run(), name="sweeper")

    async def stop(self) -> None:
        """End; what is let go of and still there is the next owner's to delete."""
        tasks = [task for task in (self._task, self._finding) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def after_round(self, checkpointer: Checkpointer) -> None:
        """Let go of what the kept roots no longer need. Raises: StoreError once the log has stopped."""
        kept = checkpointer.roots
        state = self._log.state
        if not self._clock_trusted() or any(stream.offline is not None for stream in state.streams.values()):
            return  # nobody counts what a stream that is off line needs
        if self._finding is None:
            self._finding = asyncio.get_running_loop().create_task(
                self._find_strays(kept[-1].position.epoch, checkpointer), name="looking for strays")
        keep: frozenset[Position] = frozenset().union(*(root.objects for root in kept))
        roots = [key.position for info in await self._list(self._paths.checkpoints)
                 if (key := parse(info)) is not None and key.position is not None and key.position < kept[0].position]
        full = len(kept) >= checkpointer.settings.roots_kept
        oldest = position_key(kept[0].position)
        pages_gone = {position for letgo in state.letgo.values() for position in letgo.pages}
        roots_gone = {position for letgo in state.letgo.values() for position in letgo.roots}
        unnamed = sorted(key for key in state.unnamed if key <= oldest)[:_RUNS_MAX] if full else []
        segments = [Position(key >> 48, key & ((1 << 48) - 1)) for key in unnamed]
        segments += sorted(self._stray["segments"])[:_RUNS_MAX]
        pages = sorted((checkpointer.dropped | self._stray["pages"]) - keep - pages_gone)[:_RUNS_MAX]
        roots = [root for root in roots if root not in roots_gone] if full else []
        self._let_go(segments, pages, roots)
        checkpointer.dropped.difference_update(pages)
        self._stray["segments"].difference_update(segments)
        self._stray["pages"].difference_update(pages)

    def _let_go(self, segments: list[Position], pages: list[Position], roots: list[Position]) -> None:
        done, self._done = self._done, []
        if not (segments or pages or roots or done):
            return
        body: dict[str, Any] = LetGo(Position(0, 0), segments, pages, roots).body()
        body["done"] = [list(position) for position in done]
        log = self._log
        log.block(log.shard).add_record(RecordKind.LETGO, body)

    def _recorded(self, block: SealedBlock[Any]) -> None:
        """A block of the shard's own persisted: what its records let go of may go, after the grace period."""
        letgo = self._log.state.letgo.get(block.core.position)
        if letgo is not None:
            self._queue.append((self._clock.monotonic_ns() + self._grace_ns, letgo))
            self._wake.set()

    async def _run(self) -> None:
        while True:
            while not self._queue:
                self._wake.clear()
                await self._wake.wait()
            due_ns, letgo = self._queue[0]
            wait_ns = due_ns - self._clock.monotonic_ns()
            if wait_ns > 0:
                await asyncio.sleep(wait_ns / 1e9)
                continue
            if not self._clock_trusted():
                await asyncio.sleep(1.0)
                continue
            await self._delete(letgo)
            self._queue.popleft()
            self._done.append(letgo.position)

    async def _delete(self, letgo: LetGo) -> None:
        """Delete all of it, however often that takes. Roots first, so that none is left that names what is gone."""
        paths = self._paths
        await self._delete_all([paths.checkpoint(p) for p in letgo.roots])
        await self._delete_all([paths.pages(p) for p in letgo.pages])
        await self._delete_all([paths.log(p) for p in letgo.segments], spare_seals=True)

    async def _delete_all(self, keys: list[str], spare_seals: bool = False) -> None:
        for at in range(0, len(keys), _AT_ONCE):
            await asyncio.gather(*[self._delete_one(key, spare_seals) for key in keys[at:at + _AT_ONCE]])

    async def _delete_one(self, key: str, spare_seals: bool) -> None:
        backoff = Backoff(self._rng)
        while True:
            try:
                if spare_seals and await self._is_seal(key):
                    return
                await self._store.delete(key)
                self.deleted += 1
                return
            except NotFound:
                return
            except StoreError as error:
                if backoff.tries == _TRIES_TOLD:
                    _log.warning("cannot delete %s: %s", key, error)
                await asyncio.sleep(backoff.next())

    async def _is_seal(self, key: str) -> bool:
        data = await self._store.get(key, 0, HEADER_BYTES)
        try:
            return ObjectHeader.unpack(data, key).kind == ObjectKind.SEAL
        except FormatError:
            return False  # damaged, and let go of: it was never needed again

    async def _find_strays(self, epoch: int, checkpointer: Checkpointer) -> None:
        """Look for what lies in the store from the epochs before ours, and neither the log nor our roots know."""
        log, stray = self._log, self._stray
        try:
            stray["segments"] |= await stray_segments(self._store, self._paths, log.state, epoch, self._is_seal,
                                                      self._asked, self._asked)
            pages = await stray_pages(self._store, self._paths, epoch, self._asked)
        except StoreError as error:
            _log.debug("strays were not looked for to the end: %s", error)  # the log has stopped
            return
        except Exception:
            _log.exception("looking for strays failed; the next owner looks again")
            return
        pages -= frozenset().union(*(root.objects for root in checkpointer.roots))
        pages.difference_update(*(letgo.pages for letgo in log.state.letgo.values()))
        stray["pages"].update(pages)
        # Now, not at the next round: an idle log has none.
        if self._clock_trusted() and log.failure is None:
            some, some_pages = sorted(stray["segments"])[:_RUNS_MAX], sorted(stray["pages"])[:_RUNS_MAX]
            self._let_go(some, some_pages, [])
            stray["segments"].difference_update(some)
            stray["pages"].difference_update(some_pages)

    async def _list(self, prefix: str) -> list[str]:
        return [info.key for info in await self._asked(prefix, lambda: self._store.list(prefix))]

    async def _asked(self, what: str, ask: Callable[[], Awaitable[T]]) -> T:
        """An answer of the store, however long that takes: nobody waits for it. Raises: NotFound; StoreError at the end."""
        backoff = Backoff(self._rng)
        while True:
            try:
                return await ask()
            except NotFound:
                raise
            except StoreError as error:
                if self._log.failure is not None:
                    raise
                if backoff.tries == _TRIES_TOLD:
                    _log.warning("what can be deleted is not known yet, %s cannot be read: %s", what, error)
                await asyncio.sleep(backoff.next())
