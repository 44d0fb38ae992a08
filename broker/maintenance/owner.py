"""An owner that serves no clients: it takes the shard as a broker does, corrects streams, cuts checkpoints, and seals.

It writes only what a broker writes: a claim, seals, an opening, blocks with removed ranges and outcomes, pages and
roots. It releases and deletes nothing. The earlier owner is fenced.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

from broker.base.clock import Clock
from broker.cluster.identity import Identity
from broker.cluster.ownership import seal_at, take_shard
from broker.maintenance.substitute import SUBSTITUTE
from broker.storage.checkpoint.settings import CheckpointSettings
from broker.storage.checkpoint.subject_pages import SubjectSettings
from broker.storage.format.block import Outcome, Removed
from broker.storage.format.errors import FormatError
from broker.storage.format.records.release import Release
from broker.storage.keys.shard_keys import KeyedStore, keys_for_repair
from broker.storage.log.owner import OutcomeOwner
from broker.storage.log.settings import LogSettings
from broker.storage.objectstore import ObjectStore
from broker.storage.objectstore.base import NotFound
from broker.storage.paths import ShardPaths
from broker.storage.shard import Shard, ShardSettings
from broker.storage.state.ids import decode_ids
from broker.storage.state.stream import StreamState

__all__ = ["Correction", "correct_shard"]

_NEVER = 1 << 62


class Correction(NamedTuple):
    """The removal of messages that cannot be read from a stream."""

    stream_id: int
    removed: Sequence[Removed]
    outcome: Outcome
    """The stream's figures without these messages."""


async def correct_shard(store: ObjectStore, paths: ShardPaths, corrections: Sequence[Correction], clock: Clock,
                        rng: random.Random) -> bool:
    """Apply the corrections, and cut as many checkpoints as a store keeps.

    Returns: True if all of these checkpoints were stored; an offline stream may prevent that.
    Raises: Fenced; FormatError if the log cannot be read; StoreError.
    """
    me = Identity(SUBSTITUTE, rng.randbytes(16))
    taken = await take_shard(store, paths, me, clock, rng)
    checkpoint = CheckpointSettings(segments=_NEVER, head_bytes=_NEVER, empty_segments=_NEVER, interval_ns=None,
                                    replayed_segments=_NEVER, replayed_epochs=_NEVER,
                                    subjects=SubjectSettings(enabled=False))
    keys = await keys_for_repair(store, paths, me.nonce)
    log = LogSettings()
    if keys is not None:
        log, store = LogSettings(codec=keys.codec), KeyedStore(store, keys)
    settings = ShardSettings(log=log, sweep_grace_ns=_NEVER, checkpoint=checkpoint)
    shard = await Shard.open(store, paths, taken.epoch, me.nonce, clock, rng, settings)
    if keys is not None:
        await keys.begin(taken.epoch, list(shard.state.streams.values()), store)
    new = True
    for stream in shard.state.streams.values():
        # Checkpoints would name a damaged page for ever, so all pages of subjects are dropped; a broker makes new ones.
        stream.dirty = stream.dirty or bool(stream.subjects)
        stream.subjects = ()
        await _check_ids(store, paths, stream)
    try:
        for correction in corrections:
            block = shard.log.block(OutcomeOwner(correction.stream_id, correction.outcome))
            for removed in correction.removed:
                block.remove(*removed)
        for _ in range(settings.checkpoint.roots_kept):
            # A checkpoint needs a new record in the log; this record releases nothing.
            shard.log.block(shard.log.shard).add(Release())
            shard.log.urgent()
            await shard.log.persisted()
            new = await shard.checkpointer.cut() and new
        end = await shard.close(checkpoint=False)
    except BaseException:
        await shard.abandon()
        raise
    await seal_at(store, paths, end, taken.epoch, me, clock, rng)
    return new


async def _check_ids(store: ObjectStore, paths: ShardPaths, stream: StreamState) -> None:
    """Remove references to pages of message ids that cannot be read. Raises: StoreError."""
    for part in stream.ids.parts():
        if (ref := part.place) is None:
            continue
        try:
            decode_ids(part, await store.get(paths.pages(ref.position), ref.offset, ref.offset + ref.size))
        except (NotFound, FormatError):
            stream.dirty = stream.ids.replace([part], part.lost()) or stream.dirty
