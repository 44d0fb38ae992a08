"""The state that a new owner starts from: a snapshot up to its own opening, or to its heartbeats after the opening."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from broker.storage.format.errors import Corrupt, CutOff, FormatError
from broker.storage.format.header import Position
from broker.storage.format.segment import decode_head
from broker.storage.objectstore.base import ObjectStore
from broker.storage.paths import ShardPaths
from broker.storage.put import Fenced, StoreRetry
from broker.storage.read.chain import Chain
from broker.storage.read.snapshot import Snapshot, extended, replay, replay_ended
from broker.storage.read.steps import run

__all__ = ["add_opening", "recover", "recover_ended"]


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


async def recover_ended(store: ObjectStore, paths: ShardPaths, roots: Sequence[Position], ends: Mapping[int, int],
                        retry: StoreRetry, ahead: Snapshot | None = None) -> Snapshot | None:
    """Replay the epochs before a taker's own, which cannot change any more: this may begin before the opening is put.

    Args: ``ends``, ``roots``, ``ahead``: as for ``replay_ended``.
    Returns: None if that is not possible, such as with a damaged checkpoint. ``recover`` uses an older one, or raises.
    Raises: StoreError.
    """
    try:
        return await run(replay_ended(paths, roots, ends, ahead), store, retry)
    except (CutOff, FormatError):
        return None


def add_opening(snapshot: Snapshot, paths: ShardPaths, epoch: int, opening: bytes) -> Snapshot:
    """Return the snapshot of ``recover_ended`` with the opening of ``epoch``, which this process has just put."""
    position = Position(epoch, 0)
    head = decode_head(opening, position, complete=True)
    assert not isinstance(head, int)
    chain = Chain(paths, snapshot.state)
    chain.apply(position, head)
    return extended(snapshot, chain)._replace(epochs=snapshot.epochs + 1)
