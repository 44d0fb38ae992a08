"""Rules of the protocol, each removed in turn to prove that the oracle detects it. Only for tests.

Each entry patches one rule of the real engine; its text says which.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import broker.cluster.entries as log_entries
import broker.cluster.ownership as ownership
import broker.storage.checkpoint.orphans as orphans
import broker.storage.checkpoint.sweeper as sweeper
import broker.storage.read.chain as chain
import broker.storage.state.applied as applied
from broker.cluster.entries import entries
from broker.cluster.identity import Identity
from broker.storage.checkpoint.checkpointer import Checkpointer
from broker.storage.checkpoint.sweeper import Sweeper
from broker.storage.format.header import ObjectHeader, ObjectKind, Position, position_key
from broker.storage.log.log import Log
from broker.storage.log.putter import Putter, Segment
from broker.storage.objectstore.base import ObjectStore
from broker.storage.paths import ShardPaths, parse
from broker.storage.put import StoreRetry
from broker.storage.read.steps import Steps
from broker.storage.state.applied import ShardState
from broker.storage.state.released import Released

__all__ = ["RULES"]


def ack_in_order(patch: pytest.MonkeyPatch) -> None:
    """A stored put is answered though an earlier one was not stored."""
    put = Putter.put

    async def broken(self: Putter, segment: Segment) -> int:
        proved_ns = await put(self, segment)
        waiters, segment.waiters = segment.waiters, []
        for fn, args, *_ in waiters:
            fn(*args)
        return proved_ns

    patch.setattr(Putter, "put", broken)


def read_the_header(patch: pytest.MonkeyPatch) -> None:
    """A refused put is taken for one that was stored earlier."""
    holder_of = ownership.put_ours.__globals__["holder_of"]  # type: ignore[attr-defined]

    async def broken(store: ObjectStore, key: str) -> ObjectHeader:
        header: ObjectHeader = await holder_of(store, key)
        return header._replace(nonce=_nonce_of_log[0], kind=ObjectKind.SEGMENT) if _nonce_of_log else header

    _nonce_of_log: list[bytes] = []
    put = Putter.put

    async def putting(self: Putter, segment: Segment) -> int:
        _nonce_of_log[:] = [self._nonce]
        return await put(self, segment)

    patch.setattr("broker.storage.log.putter.holder_of", broken)
    patch.setattr(Putter, "put", putting)


def seal_all(patch: pytest.MonkeyPatch) -> None:
    """Only the epoch before one's own is sealed; for the others the next free number is read, without a seal."""
    seal_epoch = ownership._seal_epoch

    async def broken(store: ObjectStore, paths: ShardPaths, first: Position, known: int | None, epoch: int,
                     me: Identity, retry: StoreRetry) -> int:
        if known is not None or first.epoch == epoch - 1:
            return await seal_epoch(store, paths, first, known, epoch, me, retry)
        number = first.number
        while True:
            [header] = await entries(store, paths, first.epoch, [number], retry)
            if header is None or header.kind == ObjectKind.SEAL:
                return number
            number += 1

    patch.setattr(ownership, "_seal_epoch", broken)


def relist(patch: pytest.MonkeyPatch) -> None:
    """Checkpoints are not listed again after sealing."""
    positions = ownership.positions
    seal_below = ownership._seal_below

    async def broken(store: ObjectStore, paths: ShardPaths, *args: Any) -> ownership.Earlier:
        first: list[Position] | None = None

        async def same(store: ObjectStore, prefix: str, *more: Any) -> list[Position]:
            nonlocal first
            found = await positions(store, prefix, *more)
            if prefix == paths.checkpoints:
                first = found if first is None else first
            return first if prefix == paths.checkpoints and first is not None else found

        patch.setattr(ownership, "positions", same)
        try:
            return await seal_below(store, paths, *args)
        finally:
            patch.setattr(ownership, "positions", positions)

    patch.setattr(ownership, "_seal_below", broken)


def keep_seals(patch: pytest.MonkeyPatch) -> None:
    """Seals are swept like segments, and by every round."""
    find_strays = Sweeper._find_orphans

    async def never(self: Sweeper, key: str) -> bool:
        return False

    async def all_of_them(positions: list[Position], *_: Any) -> set[Position]:
        return set(positions)

    async def broken(self: Sweeper, epoch: int, checkpointer: Checkpointer) -> None:
        await find_strays(self, epoch, checkpointer)
        self._finding = None

    patch.setattr(orphans, "_without_seals", all_of_them)
    patch.setattr(Sweeper, "_is_seal", never)
    patch.setattr(Sweeper, "_find_orphans", broken)


def released(patch: pytest.MonkeyPatch) -> None:
    """The objects that a root covers are deleted at once, without a record of it in the log, and also by a former
    owner."""
    async def broken(self: Sweeper, checkpointer: Checkpointer) -> None:
        state, kept = self._log.state, checkpointer.roots
        keep = frozenset().union(*(root.objects for root in kept))
        pages = [key.position for info in await self._store.list(self._paths.page_objects)
                 if (key := parse(info.key)) is not None and key.position is not None and key.position not in keep]
        roots = [key.position for info in await self._store.list(self._paths.checkpoints)
                 if (key := parse(info.key)) is not None and key.position not in {root.position for root in kept}]
        keys = [key for key in state.counts.unreferenced if key <= position_key(kept[-1].position)]
        segments = [Position(key >> 48, key & ((1 << 48) - 1)) for key in keys]
        for key in keys:
            state.counts.segments.pop(key)  # type: ignore[call-overload]
            state.counts.unreferenced.discard(key)
        self._queue.append((0, Released(kept[-1].position, segments, pages, [r for r in roots if r is not None])))
        self._wake.set()

    patch.setattr(Sweeper, "after_round", broken)


def applied_only(patch: pytest.MonkeyPatch) -> None:
    """A root claims to contain puts in flight, not only persisted segments."""
    run = Checkpointer._round

    async def broken(self: Checkpointer, start: Position, *, anew: bool) -> None:
        await run(self, Position(start.epoch, self._log._segments.next.number - 1), anew=anew)

    patch.setattr(Checkpointer, "_round", broken)


def dead_stays_dead(patch: pytest.MonkeyPatch) -> None:
    """A run's block replaces others as it was made: messages removed since are back."""
    patch.setattr(applied, "dead_in", lambda ref, parts: None)


def own_runs_stay(patch: pytest.MonkeyPatch) -> None:
    """A run that nothing names yet is taken for an orphan, though its own writer is about to adopt it."""
    find = orphans.orphan_runs

    async def broken(store: ObjectStore, paths: ShardPaths, state: ShardState, epoch: int, list_: Any) -> list[str]:
        return await find(store, paths, state, epoch + 1, list_)

    find_orphans = Sweeper._find_orphans

    async def each_round(self: Sweeper, epoch: int, checkpointer: Checkpointer) -> None:
        await find_orphans(self, epoch, checkpointer)
        self._finding = None

    patch.setattr(sweeper, "orphan_runs", broken)
    patch.setattr(Sweeper, "_find_orphans", each_round)


def bounded_window(patch: pytest.MonkeyPatch) -> None:
    """A new owner seals the first number beyond the last stored segment, as if no put before it could be missing."""
    patch.setattr(log_entries, "PUTS_IN_FLIGHT_MAX", 0)
    patch.setattr(log_entries, "_NEAR", (1,))
    patch.setattr(log_entries, "_GENTLE_NEAR", (1,))


def end_is_the_end(patch: pytest.MonkeyPatch) -> None:
    """A fenced owner's puts beyond the end of its epoch are read with the rest of it."""
    read = chain.Chain._epoch

    def broken(self: chain.Chain, epoch: int, number: int, end: int | None) -> Steps[int]:
        reached = yield from read(self, epoch, number, end)
        if end is not None and reached == end:
            sealed = self.sealed
            yield from read(self, epoch, end + 1, None)
            self.sealed = sealed
        return reached

    patch.setattr(chain.Chain, "_epoch", broken)


def stored_before_is_a_fact(patch: pytest.MonkeyPatch) -> None:
    """A segment claims that all before it were stored, whatever is in flight: a crash looks like a loss."""
    begin = Log._begin

    def broken(self: Log, segment: Segment) -> None:
        begin(self, segment)
        segment.stored_before = segment.position.number - 1

    patch.setattr(Log, "_begin", broken)


RULES: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    rule.__name__.replace("_", "-"): rule
    for rule in (ack_in_order, read_the_header, seal_all, relist, keep_seals, released, applied_only,
                 dead_stays_dead, own_runs_stay, bounded_window, end_is_the_end, stored_before_is_a_fact)}

