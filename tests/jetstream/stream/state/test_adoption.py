"""A live stream whose blocks compaction joins, while the stream loads its blocks and afterwards."""

from __future__ import annotations

import asyncio
import random
from bisect import bisect_left
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from broker.jetstream.stream.adoption import apply_compaction
from broker.jetstream.stream.state.live import Live
from broker.storage.format.block import BlockCore, BlockPlace, BlockRef, Outcome, Removed
from broker.storage.format.header import Position
from broker.storage.format.record import Record
from broker.storage.format.records.adoption import Adopted
from broker.storage.format.records.kinds import RecordKind
from broker.storage.state.applied import ShardState
from broker.storage.state.stream import StreamState
from broker.storage.state.table import BlockEntry

BLOCKS = 5000


def block(first: int, last: int, place: BlockPlace = BlockPlace.LOG, number: int = 1) -> BlockRef:
    count = last - first + 1
    return BlockRef(place, Position(1, number), int(place is BlockPlace.RUN), 7, 0, 200, 200, 100, 300, 10 * count,
                    first, last, count, 40 * count, 1, 1, ((b"s", count, first, last),))


def stored() -> StreamState:
    """Return a stream of five thousand blocks of two messages each."""
    state = StreamState(7, "$G", "S", {}, 1)
    for number in range(1, BLOCKS + 1):
        assert state.blocks.append(block(2 * number - 1, 2 * number, number=number).pack())
    state.first_seq, state.last_seq, state.msgs, state.bytes = 1, 2 * BLOCKS, 2 * BLOCKS, 80 * BLOCKS
    return state


def join(state: StreamState, first: int, last: int, number: int) -> None:
    state.blocks.swap(state.blocks.within(first, last), BlockEntry(block(first, last, BlockPlace.RUN, number)))


async def test_blocks_that_are_joined_while_the_table_is_loaded() -> None:
    """The table is loaded a slice in each turn of the loop; between two slices, blocks of both slices are joined.

    The stream then has each message once, and the blocks of the table.
    """
    state = stored()
    live = Live(lambda block: None, lambda: state)
    live.first_seq, live.last_seq = state.first_seq, state.last_seq
    live.msgs, live.size_bytes = state.msgs, state.bytes
    loading = asyncio.ensure_future(live.load_blocks())
    for turn in range(2):
        await asyncio.sleep(0)
        join(state, 4001 + 8 * turn, 4008 + 8 * turn, BLOCKS + 1 + turn)
    join(state, 1, 4000, BLOCKS + 4)
    join(state, 4001, 9000, BLOCKS + 5)
    await loading
    assert [(one.first_seq, one.last_seq, one.ref) for one in live.blocks] == [
        (entry.first_seq, entry.last_seq, entry.ref) for entry in state.blocks]
    assert len(live.blocks) == 2 + (2 * BLOCKS - 9000) // 2
    assert sum(one.live_msgs for one in live.blocks) == 2 * BLOCKS


class Rows:
    """The rows of a block with gaps, as far as a removal needs them."""

    def __init__(self, seqs: Sequence[int]) -> None:
        self.seqs = seqs

    def ordinal_of(self, seq: int) -> int:
        return bisect_left(self.seqs, seq)

    def seq_of(self, ordinal: int) -> int:
        return self.seqs[ordinal]


def size_of(seqs: Sequence[int]) -> int:
    return sum(40 + seq % 7 for seq in seqs)


class Merged:
    """A stream whose messages are removed while runs made before replace its blocks.

    It has a live state, to which the compaction is applied late, and an applied state.
    """

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.messages: dict[tuple[int, int], list[int]] = {}
        """The messages of each block, by the number and the id of its object."""
        self.shard = ShardState()
        create = Record.of(RecordKind.STREAM_CREATE, 0, {"account": "$G", "name": "S", "config": {}, "created_ns": 5})
        self.seqs: set[int] = set()
        self.number = 0
        self.apply(records=[create])
        self.live = self.loaded()
        self.stream: Any = SimpleNamespace(
            live=self.live, queue=SimpleNamespace(busy=False), heads=SimpleNamespace(walks=0),
            msg_ids=SimpleNamespace(loading=False, blocks_replaced=lambda old, new: None),
            rollups=SimpleNamespace(forget=lambda: None))
        self.not_applied: list[Adopted] = []

    @property
    def state(self) -> StreamState:
        return self.shard.streams[7]

    def ref(self, seqs: list[int], number: int, object_id: int = 0) -> BlockRef:
        self.messages[number, object_id] = seqs
        place = BlockPlace.RUN if object_id else BlockPlace.LOG
        return BlockRef(place, Position(1, number), object_id, 7, 0, 200, 200, 100, 300, 100, seqs[0], seqs[-1],
                        len(seqs), size_of(seqs), 1, 1, ((b"s", len(seqs), seqs[0], seqs[-1]),))

    def loaded(self) -> Live:
        """Return the live state after a restart."""
        state = self.state
        live = Live(lambda block: Rows(self.messages[block.ref.position.number, block.ref.object_id]),  # type: ignore
                    lambda: state)
        live.first_seq, live.last_seq = state.first_seq, state.last_seq
        live.msgs, live.size_bytes = state.msgs, state.bytes
        live.ensure_blocks()
        return live

    def apply(self, block: list[int] | None = None, removed: Sequence[Removed] = (),
              records: Sequence[Record] = ()) -> None:
        self.number += 1
        position = Position(1, self.number)
        self.seqs.update(block or ())
        last = max(self.seqs, default=0)
        core = BlockCore(7, position, count=len(block or ()), last_time_ns=1, removed=list(removed),
                         records=list(records),
                         outcome=Outcome(1, last, len(self.seqs), size_of([*self.seqs]), 1))
        self.shard.apply_segment(position)
        self.shard.apply_block(core, self.ref(block, self.number) if block else None)

    def remove(self) -> None:
        """Remove some live messages of one block, as acks do."""
        block = self.rng.choice([one for one in self.live.blocks if one.first_seq > 1])
        assert block.ref is not None
        found = [seq for seq in self.messages[block.ref.position.number, block.ref.object_id]
                 if self.live.is_live(block, seq)]
        gone = sorted(self.rng.sample(found, self.rng.randint(1, min(3, len(found)))))
        removals = self.live.remove_seqs(block, gone, size_of(gone))
        self.seqs -= set(gone)
        self.apply(removed=[Removed(one.first, one.last, one.msgs, one.size) for one in removals])

    def merge(self) -> Adopted:
        """Return a run of some neighbours, which keeps some of the dead messages, for their ids."""
        entries = [entry for entry in self.state.blocks if entry.first_seq > 1]
        start = self.rng.randrange(len(entries))
        parts = entries[start:start + self.rng.randint(1, 4)]
        seqs = [seq for part in parts for seq in self.messages[part.ref.position.number, part.ref.object_id]
                if not part.is_dead(seq) or self.rng.random() < 0.6]
        ref = self.ref(seqs, self.number, self.rng.getrandbits(60) | 1)
        return Adopted(parts[0].first_seq, parts[-1].last_seq, ref.pack())

    def adopt(self, adopted: Adopted) -> None:
        self.number += 1
        self.shard.apply_segment(Position(1, self.number))
        record = Record.of(RecordKind.ADOPTION, 0, {"blocks": [[*adopted[:2], list(adopted.ref)]]})
        self.shard.apply_block(BlockCore(0, Position(1, self.number), records=[record]), None)
        self.not_applied.append(adopted)

    def check(self) -> None:
        assert self.state.offline is None
        here = []
        for entry in self.state.blocks:
            seqs = self.messages[entry.ref.position.number, entry.ref.object_id]
            dead = [seq for seq in seqs if entry.is_dead(seq)]
            here += [seq for seq in seqs if not entry.is_dead(seq)]
            assert (entry.dead_count, entry.dead_bytes) == (len(dead), size_of(dead)), entry.ref
            assert len(dead) < len(seqs)
        assert here == sorted(self.seqs)
        assert all(block.live_msgs > 0 for block in self.loaded().blocks)


@pytest.mark.parametrize("seed", range(30))
def test_removals_around_a_compaction_are_counted(seed: int) -> None:
    """The table counts each block's dead messages and their bytes exactly, whenever messages are removed.

    They are removed before the run is made, after it, and between the record and the change of the live stream. A block
    without live messages is removed, and after a restart each block has some.
    """
    rng = random.Random(seed)
    merged = Merged(rng)
    merged.apply([1])  # this message stays, so that no block is removed because the stream begins later
    for first in range(2, 242, 8):
        merged.apply(list(range(first, first + 8)))
    merged.stream.live = merged.live = merged.loaded()
    while len(merged.seqs) > 1:
        for _ in range(rng.randrange(3)):
            if len(merged.seqs) > 1:
                merged.remove()
                merged.check()
        if len(merged.seqs) == 1:
            break
        adopted = merged.merge()
        for step in (merged.remove, lambda adopted=adopted: merged.adopt(adopted), merged.remove, merged.remove):
            if len(merged.seqs) > 1:
                step()
                merged.check()
        if rng.random() < 0.8:
            for adopted in merged.not_applied:
                assert apply_compaction(merged.stream, adopted)
            merged.not_applied.clear()
    assert len(merged.state.blocks) == 1
