"""The state of a store's streams, followed while a broker writes: refreshed before each batch of a streaming query.

The first look replays each shard's log from its newest checkpoint. A later one resumes there: two listings and a few
gets if little is new, however large the store. If the next segments have been swept, it replays from a checkpoint
again. ``storage.read.chain`` decides where a log ends.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from broker.pipeline.errors import Damaged, Gone, of_format
from broker.pipeline.plan.snapshot import StreamSnapshot, key_of, replayed, snapshot_of, stepped, wanted_by
from broker.pipeline.store.objects import ObjectClient, check_store
from broker.storage.format.errors import CutOff, FormatError
from broker.storage.format.header import Position
from broker.storage.format.index import decode_index
from broker.storage.objectstore.base import NotFound
from broker.storage.paths import ShardPaths
from broker.storage.read.snapshot import catch_up
from broker.storage.state.applied import ShardState
from broker.storage.state.stream import StreamState
from broker.storage.state.table import BlockEntry

__all__ = ["Follower", "Seen"]

_log = logging.getLogger(__name__)


class Seen(NamedTuple):
    """A stream as of the last look; the next look changes ``state``."""

    shard: int
    position: Position
    state: StreamState

    @property
    def name(self) -> str:
        """ACCOUNT/NAME"""
        return f"{self.state.account}/{self.state.name}"

    def snapshot(self, first_seq: int = 1, end_seq: int | None = None) -> StreamSnapshot:
        """The stream with only the blocks that hold ``first_seq`` up to but not including ``end_seq``."""
        blocks: list[BlockEntry] = []
        for entry in self.entries(first_seq):
            if end_seq is not None and entry.ref.first_seq >= end_seq:
                break
            blocks.append(entry)
        return snapshot_of(self.state, self.shard, self.position, blocks)

    def entries(self, first_seq: int) -> Iterator[BlockEntry]:
        """Its blocks, beginning with the one that holds ``first_seq``."""
        return self.state.blocks.since(first_seq)


class Follower:
    """Keeps the state of the streams that the options ``account`` and ``stream`` name."""

    def __init__(self, objects: ObjectClient, account: str, stream: str) -> None:
        self._objects = objects
        self._wanted = wanted_by(account, stream)
        self._states: dict[int, ShardState] = {}

    def look(self) -> dict[str, Seen]:
        """The streams as they are now, by ACCOUNT/NAME, in order of name.

        Raises: NoStore; Damaged, also for an offline stream; Newer; Unreachable. The next look then starts over.
        """
        if not self._states:
            check_store(self._objects)
        found: dict[str, Seen] = {}
        for shard in self._shards():
            state = self._states[shard] = self._replayed(shard, self._states.pop(shard, None))
            for stream in state.streams.values():
                # A damaged create record leaves a stream without a name; the others are still read.
                if self._wanted(stream.account, stream.name) and not stream.restoring:
                    seen = Seen(shard, state.position, stream)
                    found[seen.name] = seen
                    if stream.offline is not None:
                        self._states.clear()
                        raise Damaged(f"{self._objects.url}: stream {seen.name} is offline: {stream.offline}; "
                                      f"see `jetblock inspect --verify`")
        return dict(sorted(found.items()))

    def seqs(self, seen: Seen, entry: BlockEntry) -> Sequence[int]:
        """The sequences of a block's messages, live and dead, ascending; reads its index. Raises: Damaged; Newer; Gone;
        Unreachable."""
        ref = entry.ref
        key = key_of(seen.shard, seen.state.account, seen.state.name, ref)
        try:
            head = decode_index(self._objects.get(key, ref.index_offset, ref.index_offset + ref.index_bytes), ref, key)
        except NotFound:
            raise Gone(f"{self._objects.url}: {key} is missing, and stream {seen.name} has messages in it") from None
        except FormatError as error:
            raise of_format(error, f"{self._objects.url}: stream {seen.name}", key) from None
        return head.seqs if head.seqs is not None else range(ref.first_seq, ref.last_seq + 1)

    def _shards(self) -> list[int]:
        """Numbers are dense from 0, so only those beyond the known ones are searched for."""
        known = len(self._states)
        while self._objects.list(ShardPaths(known).epochs):
            known += 1
        return list(range(known))

    def _replayed(self, shard: int, state: ShardState | None) -> ShardState:
        if state is not None:
            try:
                stepped(self._objects, shard, catch_up(ShardPaths(shard), state))
                return state
            except CutOff as gone:
                _log.info("%s: replaying shard %d from its checkpoint: %s", self._objects.url, shard, gone)
        return replayed(self._objects, shard, self._wanted).state
