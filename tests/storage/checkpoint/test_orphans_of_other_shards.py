"""Runs below ``streams/`` name no shard: an owner must not take those of other shards for orphans of its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from broker.storage.checkpoint.orphans import orphan_runs
from broker.storage.format.header import Position
from broker.storage.format.records.catalogue import CatalogueEntry
from broker.storage.objectstore.memory import MemoryStore
from broker.storage.paths import ShardPaths, StreamPaths
from broker.storage.state.applied import ShardState


async def _ask(what: str, call: Callable[[], Awaitable[list[str]]]) -> list[str]:
    return await call()


async def test_runs_of_streams_in_other_shards_are_no_orphans() -> None:
    """Shard 0 leaves the runs of streams in the catalogue, another shard all runs but those of its streams."""
    store, state = MemoryStore(), ShardState()
    key = StreamPaths("$G", "S", 5).run(Position(2, 3), 9)
    await store.put(key, [b"run"])
    assert await orphan_runs(store, ShardPaths(1), state, 7, _ask) == []
    assert await orphan_runs(store, ShardPaths(0), state, 7, _ask) == [key]
    state.catalogue[5] = CatalogueEntry(5, 1, "$G", "S", {}, 0)
    assert await orphan_runs(store, ShardPaths(0), state, 7, _ask) == []
