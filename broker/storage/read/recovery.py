"""The state that a new owner starts from: a snapshot up to its own opening, or to its heartbeats after the opening."""

from __future__ import annotations

from broker.storage.format.errors import Corrupt
from broker.storage.format.header import Position
from broker.storage.objectstore.base import ObjectStore
from broker.storage.paths import ShardPaths
from broker.storage.put import Fenced, StoreRetry
from broker.storage.read.snapshot import Snapshot, replay
from broker.storage.read.steps import run

__all__ = ["recover"]


async def recover(store: ObjectStore, paths: ShardPaths, epoch: int, retry: StoreRetry | None = None) -> Snapshot:
    """Replay the shard up to the opening of ``epoch``, which this process has just put, or to its heartbeats after it.

    Raises: Fenced if there is a later epoch, or a checkpoint of ``epoch``, which this process cannot have written yet;
        Corrupt, which names the object; StoreError.
    """
    snapshot = await run(replay(paths, thorough=False), store, retry)
    end = snapshot.state.position
    if (snapshot.roots and snapshot.roots[-1].epoch >= epoch) or end.epoch > epoch:
        raise Fenced(f"the log continues beyond epoch {epoch}, which is ours: at {end}")
    if snapshot.sealed:
        raise Fenced(f"epoch {epoch} was sealed while it was being recovered")
    if end.epoch != epoch:
        raise Corrupt(paths.log(Position(epoch, 0)), "opening", 0,
                      f"the chain of openings does not reach it: it ends at {end}")
    return snapshot
