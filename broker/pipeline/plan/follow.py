"""The state of a store's streams, followed while a broker writes: refreshed before each batch of a streaming query.

The first refresh replays each shard's log from its newest checkpoint. A later one continues where that ended: two
listings and a few gets if little is new, however large the store. If the next segments have been swept, it replays
from a checkpoint again. ``storage.read.chain`` decides where a log ends.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from broker.pipeline.errors import Damaged, Gone, from_format_error
from broker.pipeline.plan.snapshot import StreamSnapshot, key_of, replay_shard, run_steps, snapshot_of, wanted_by
from broker.pipeline.store.objects import ObjectClient, check_store
from broker.storage.format.errors import CutOff, FormatError
from broker.storage.format.header import Position
from broker.storage.format.index import decode_index
from broker.storage.objectstore.base import NotFound
from broker.storage.paths import ShardPaths
from broker.storage.read.places import places
from broker.storage.read.snapshot import catch_up
from broker.storage.state.applied import ShardState
from broker.storage.state.stream import StreamState
from broker.storage.state.table import BlockEntry

__all__ = ["FollowedStream", "Follower"]

_log = logging.getLogger(__name__)


class FollowedStream(NamedTuple):
    """A stream at the last refresh; the next refresh changes ``state``."""

    shard: int
    position: Position
    state: StreamState

    @property
    def name(self) -> str:
        """ACCOUNT/NAME."""
        return f"{self.state.account}/{self.state.name}"

    def snapshot(self, first_seq: int = 1, end_seq: int | None = None) -> StreamSnapshot:
        """Return the stream with only the blocks that hold ``first_seq`` up to but not including ``end_seq``."""
        blocks: list[BlockEntry] = []
        for entry in self.entries(first_seq):
            if end_seq is not None and entry.ref.first_seq >= end_seq:
                break
            blocks.append(entry)
        return snapshot_of(self.state, self.shard, self.position, blocks)

    def entries(self, first_seq: int) -> Iterator[BlockEntry]:
        """Iterate over its blocks, beginning with the one that holds ``first_seq``."""
        return self.state.blocks.since(first_seq)


class Follower:
    """The state of the streams that the options ``account`` and ``stream`` name, refreshed on request."""

    def __init__(self, objects: ObjectClient, account: str, stream: str) -> None:
        self._objects = objects
        self._wanted = wanted_by(account, stream)
        self._states: dict[int, ShardState] = {}

    def refresh(self) -> dict[str, FollowedStream]:
        """Bring the state up to date, and return the streams by ACCOUNT/NAME, in order of name.

        Raises: NoStore; Damaged, also for an offline stream; Newer; Unreachable. The next refresh then starts over.
        """
        if not self._states:
            check_store(self._objects)
        found: dict[str, FollowedStream] = {}
        for shard in self._shards():
            self._states[shard] = self._replay(shard, self._states.pop(shard, None))
        for shard, stream in places(self._states.items(), self._states[0].catalogue if self._states else None):
            # A damaged create record leaves a stream without a name; the others are still read.
            if self._wanted(stream.account, stream.name) and not stream.restoring:
                seen = FollowedStream(shard, self._states[shard].position, stream)
                if (other := found.get(seen.name)) is None or other.state.created_ns <= stream.created_ns:
                    found[seen.name] = seen  # a stream that was created again in another shard may be found twice
                if stream.offline is not None:
                    self._states.clear()
                    raise Damaged(f"{self._objects.url}: stream {seen.name} is offline: {stream.offline}; "
                                  f"see `jetblock inspect --verify`")
        return dict(sorted(found.items()))

    def others(self) -> Iterator[tuple[str, str]]:
        """Iterate over accounts and names of the streams that the options do not name, as of the last refresh."""
        for state in self._states.values():
            yield from state.unwanted.values()

    def seqs(self, seen: FollowedStream, entry: BlockEntry) -> Sequence[int]:
        """Return the sequences of a block's messages, live and dead, ascending; reads its index.

        Raises: Damaged; Newer; Gone; Unreachable.
        """
        ref = entry.ref
        key = key_of(seen.shard, seen.state.account, seen.state.name, ref)
        try:
            head = decode_index(self._objects.get(key, ref.index_offset, ref.index_offset + ref.index_bytes), ref, key)
        except NotFound:
            raise Gone(f"{self._objects.url}: {key} is missing, and stream {seen.name} has messages in it") from None
        except FormatError as error:
            raise from_format_error(error, f"{self._objects.url}: stream {seen.name}", key) from None
        return head.seqs if head.seqs is not None else range(ref.first_seq, ref.last_seq + 1)

    def _shards(self) -> list[int]:
        """Return the shards' numbers. They are dense from 0, so only those beyond the known ones are searched for."""
        known = len(self._states)
        while self._objects.list(ShardPaths(known).epochs):
            known += 1
        return list(range(known))

    def _replay(self, shard: int, state: ShardState | None) -> ShardState:
        if state is not None:
            try:
                run_steps(self._objects, shard, catch_up(ShardPaths(shard), state))
                return state
            except CutOff as gone:
                _log.info("%s: replaying shard %d from its checkpoint: %s", self._objects.url, shard, gone)
        return replay_shard(self._objects, shard, self._wanted).state
