"""Moves of streams between shards that an earlier owner began: finished or undone while nothing serves.

For a broker that owns all shards of a store. Brokers that share a store finish them while they serve (``owners``).

    entry with ``to``    the other shard has the stream                      the entry says so
                         it has left, and has not arrived                    it arrives
                         it has not left                                     it stays, and the entry says so
    entry without        its shard does not have the stream, another is      it arrives: the store is a copy, and the
                         where it left for that shard                        shards were copied one after the other
    a state of a stream that is in another shard                             is emptied, and the eraser begins
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from broker.jetstream.account.unused import UnusedStream
from broker.storage.format.records.arrival import Arrival
from broker.storage.format.records.catalogue import CatalogueEntry
from broker.storage.format.records.departure import Departure
from broker.storage.format.records.remains import Remains
from broker.storage.paths import ShardPaths
from broker.storage.read.ids import load_ids
from broker.storage.state.erasures import ALL_SEQS, REMAINS, Erasure, LeftBehind, remains_of
from broker.storage.state.stream_entry import pack_whole

if TYPE_CHECKING:
    from broker.storage.log.log import Log
    from broker.storage.state.stream import StreamState

__all__ = ["clear", "left_behind", "settle_moves"]

_REPORTED_NS: Final = 86_400_000_000_000
"""The time for which a shard lists the objects that it has deleted after a stream left: the reports of the stream's own
erasures name these objects."""


async def settle_moves(logs: Mapping[int, Log], now_ns: int) -> list[CatalogueEntry]:
    """Settle all moves in the shards' ``logs``; return the changed entries, which the caller stores.

    Raises: Fenced, or whatever stopped a log; StoreError; ValueError: a stream cannot arrive.
    """
    changed: list[CatalogueEntry] = []
    for entry in list(logs[0].state.catalogue.values()):
        if entry.to is not None:
            if not _has(logs[entry.to], entry):
                state = logs[entry.shard].state.streams.get(entry.stream_id)
                if state is None or state.departed is None:
                    changed.append(replace(entry, to=None, moves=max(entry.moves, state.moves if state else 0)))
                    continue
                await _arrive(logs, entry.shard, entry.to, state)
            changed.append(replace(entry, shard=entry.to, to=None, moves=entry.moves + 1))
        elif entry.moves and not entry.deleting and not _has(logs[entry.shard], entry):
            for number, log in logs.items():
                state = log.state.streams.get(entry.stream_id)
                if state is not None and state.departed == entry.shard and REMAINS not in state.extra:
                    await _arrive(logs, number, entry.shard, state)
                    break
    catalogue = logs[0].state.catalogue | {entry.stream_id: entry for entry in changed}
    for number, log in logs.items():
        cleared = False
        for state in list(log.state.streams.values()):
            entry_now = catalogue.get(state.stream_id)
            if state.departed is not None or (entry_now is not None and entry_now.shard != number):
                deleted = entry_now is None or entry_now.deleting
                cleared = clear(state, log, now_ns, deleted=deleted) or cleared
        if cleared:
            log.urgent()
            await log.persisted()
    return changed


def _has(log: Log, entry: CatalogueEntry) -> bool:
    state = log.state.streams.get(entry.stream_id)
    return state is not None and state.departed is None


async def _arrive(logs: Mapping[int, Log], source: int, to: int, state: StreamState) -> None:
    log = logs[to]
    for part in [part for part in state.ids.parts() if part.place is not None]:
        await load_ids(state, part, log.store, ShardPaths(source))
    log.settings.codec.adopt(state.stream_id)
    log.block(UnusedStream(state)).add(Arrival(source, pack_whole(state)))
    log.urgent()
    await log.persisted()


def clear(state: StreamState, log: Log, now_ns: int, *, deleted: bool = False) -> bool:
    """Empty the state of a stream that another shard has, so that the eraser removes its bytes from this shard's
    objects; a day after that is done, or at once if the stream was deleted, forget it.

    Returns: True if something was recorded.
    """
    unused, erasure = UnusedStream(state), remains_of(state.extra)
    if erasure is None:
        if state.departed is None:
            log.block(unused).add(Departure(0))
        log.block(unused).add(Remains(Erasure(REMAINS, now_ns, ALL_SEQS, reported=True).pack()))
        return True
    if erasure.done_ns and (deleted or now_ns - erasure.done_ns > _REPORTED_NS):
        unused.delete(log)
        return True
    return False


def left_behind(shard: int, state: StreamState | None, *, owned: bool) -> LeftBehind | None:
    """Return what a shard has of a stream that has left it, from its ``state`` there; None: nothing."""
    if state is None or state.departed is None:
        return None
    return LeftBehind(shard, owned, remains_of(state.extra))
