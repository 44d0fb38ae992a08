"""A stream moves between the logs of two shards: its state and its objects, without brokers. All in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import patch

import pytest

from broker.jetstream.account.unused import UnusedStream
from broker.jetstream.catalogue import settle
from broker.storage.checkpoint.settings import CheckpointSettings
from broker.storage.compaction.settings import CompactionSettings
from broker.storage.format.block import BlockPlace
from broker.storage.format.records.arrival import Arrival
from broker.storage.format.records.catalogue import Catalogue, CatalogueEntry
from broker.storage.format.records.departure import Departure
from broker.storage.format.records.kinds import RecordKind
from broker.storage.objectstore.memory import MemoryStore
from broker.storage.paths import ShardPaths, block_key
from broker.storage.read.followed import FollowedStream
from broker.storage.read.places import places
from broker.storage.read.snapshot import read_snapshot
from broker.storage.shard import ShardSettings
from broker.storage.state.erasures import REMAINS
from broker.storage.state.stream import StreamState
from broker.storage.state.stream_entry import pack_whole
from tests.manual_clock import ManualClock
from tests.storage import rig as rigs
from tests.storage.rig import SECOND, Rig, Stream, dump, in_virtual_time, read_stream

MINUTE = 60.0
S = 7


class Shards:
    """Shards 1 and 2 of a store, each with an owner."""

    def __init__(self, clock: ManualClock) -> None:
        self.store = MemoryStore()
        self.clock = clock
        self.rigs: dict[int, Rig] = {}

    async def own(self, number: int) -> Rig:
        """Take a shard, perhaps again."""
        settings = ShardSettings(checkpoint=CheckpointSettings(segments=4), sweep_grace_ns=SECOND,
                                 compaction=CompactionSettings(segments=8, quiet_ns=5 * SECOND, few=3))
        self.rigs[number] = rig = Rig(self.store, self.clock, f"owner-{number}", settings=settings)
        with patch.object(rigs, "PATHS", ShardPaths(number)):
            await rig.open()
        return rig

    def state(self, number: int) -> StreamState:
        return self.rigs[number].log.state.streams[S]

    async def leave(self, number: int, to: int) -> None:
        rig = self.rigs[number]
        assert rig.shard is not None
        async with rig.shard.merger.working:
            while await rig.shard.merger.isolate(S, hurried=True):
                pass
        rig.log.block(UnusedStream(self.state(number))).add(Departure(to))
        rig.log.urgent()
        await rig.log.persisted()

    async def arrive(self, number: int, source: int) -> Stream:
        rig = self.rigs[number]
        state = await FollowedStream(rig.store, source, "$G", "s", S, self.clock, rig.rng).read()
        assert state is not None
        assert state.departed == number
        rig.log.block(UnusedStream(state)).add(Arrival(source, pack_whole(state)))
        rig.log.urgent()
        await rig.log.persisted()
        here = self.state(number)
        stream = Stream(rig.log, S, "s", here.last_seq, here.msgs)
        stream.first_seq = here.first_seq
        return stream

    async def forget(self, number: int) -> None:
        rig = self.rigs[number]
        UnusedStream(self.state(number)).delete(rig.log)
        rig.log.urgent()
        await rig.log.persisted()

    async def check(self, number: int, msgs: int) -> None:
        """The stream is in this shard alone, with so many messages, whose objects exist; readers find the same."""
        entry = CatalogueEntry(S, number, "$G", "s", {}, 0)
        states = {one: (await read_snapshot(self.store, one)).state for one in self.rigs}
        [(shard, stream)] = [found for found in places(states.items(), {S: entry}) if found[1].stream_id == S]
        assert (shard, stream.msgs) == (number, msgs)
        assert len(await read_stream(self.store, stream, shard)) == msgs
        for block in stream.blocks:
            assert block_key(ShardPaths(shard), "$G", "s", block.ref) in self.store.objects
        for one, rig in self.rigs.items():
            assert dump(states[one]) == dump(rig.log.state)


@asynccontextmanager
async def two_shards(clock: ManualClock) -> AsyncIterator[Shards]:
    shards = Shards(clock)
    await shards.own(1)
    await shards.own(2)
    other = Stream(shards.rigs[1].log, 9, "other")
    other.create()
    other.publish(3)
    yield shards
    for rig in shards.rigs.values():
        assert rig.shard is not None
        await rig.shard.abandon()


@pytest.mark.shows("cluster.moves")
def test_a_stream_moves_back_and_forth() -> None:
    """Messages, removals, consumers, due times and message ids are the same after each move; objects are deleted by the
    shard that has the stream, and only by that one, whatever compaction, checkpoints and restarts do.
    """
    async def main(clock: ManualClock) -> None:
        async with two_shards(clock) as shards:
            stream = Stream(shards.rigs[1].log, S, "s")
            stream.create()
            stream.record(RecordKind.CONSUMER_CREATE, {"name": "c", "config": {"durable_name": "c"}, "created_ns": 1,
                                                       "d": [3, 3, 5], "add": [[3], [3], [5]], "re": {3: 1}})
            at, msgs = 1, 0
            for turn in range(1, 7):
                for _ in range(3):
                    stream.publish(4)
                    stream.expires_at_ns[stream.last_seq] = clock.now_ns() + 1000 * SECOND
                    await stream.log.persisted()
                msgs += 12
                stream.remove(stream.first_seq, stream.first_seq)
                stream.remove(stream.last_seq - 2, stream.last_seq - 2)
                msgs -= 2
                await stream.log.persisted()
                if turn == 2:
                    await shards.own(at)  # a take-over; the earlier owner is fenced
                    here = shards.state(at)
                    stream = Stream(shards.rigs[at].log, S, "s", here.last_seq, here.msgs)
                    stream.first_seq = here.first_seq
                to = 3 - at
                before = shards.state(at)
                await shards.leave(at, to)
                assert all(block.ref.place is BlockPlace.STREAM_RUN for block in before.blocks)
                await shards.check(at, msgs)  # on its way: as it was left
                stream = await shards.arrive(to, at)
                here = shards.state(to)
                assert _parts(here) == _parts(shards.state(at))
                assert (here.moves, here.departed) == (turn, None)
                if turn == 3:
                    await shards.own(to)
                    here = shards.state(to)
                    stream = Stream(shards.rigs[to].log, S, "s", here.last_seq, here.msgs)
                    stream.first_seq = here.first_seq
                await shards.check(to, msgs)
                if turn % 2:
                    await shards.forget(at)
                await asyncio.sleep(20 * MINUTE)  # compaction, checkpoints, orphans
                await shards.check(to, msgs)
                at = to
            stream.remove(stream.first_seq, stream.first_seq + 1)
            await asyncio.sleep(20 * MINUTE)
            await shards.forget(3 - at)
            stream.record(RecordKind.STREAM_DELETE, {})
            await asyncio.sleep(120 * MINUTE)
            assert not [key for key in shards.store.objects if "/streams/" in key]

    in_virtual_time(main)


def _parts(state: StreamState) -> dict[str, Any]:
    return {"outcome": state.outcome, "blocks": [block.pack() for block in state.blocks],
            "consumers": {one.name: one.pack() for one in state.consumers.values()},
            "expiries": list(map(list, state.expiries.rows(0, 1 << 62))),
            "ids": [(part.first_seq, part.last_seq, part.count) for part in state.ids.parts()]}


@pytest.mark.shows("cluster.moves")
@pytest.mark.parametrize("step", ["announced", "left", "arrived", "arrived in a copy"])
def test_a_start_settles_what_was_left(step: str) -> None:
    """One broker takes all shards in the middle of a move: the stream is in one shard, and the catalogue says which."""
    async def main(clock: ManualClock) -> None:
        async with two_shards(clock) as shards:
            first = await shards.own(0)
            stream = Stream(shards.rigs[1].log, S, "s")
            stream.create()
            stream.publish(5)
            await stream.log.persisted()
            entry = CatalogueEntry(S, 1, "$G", "s", dict(shards.state(1).config), 1, to=2)
            if step != "announced":
                await shards.leave(1, 2)
            if step.startswith("arrived"):
                await shards.arrive(2, 1)
            if step == "arrived in a copy":  # shard 2 was copied before the stream arrived, shard 0 after the move
                entry = CatalogueEntry(S, 2, "$G", "s", entry.config, 1, moves=1)
                UnusedStream(shards.state(2)).delete(shards.rigs[2].log)
                shards.rigs[2].log.urgent()
                await shards.rigs[2].log.persisted()
            other = CatalogueEntry(9, 1, "$G", "other", dict(shards.rigs[1].log.state.streams[9].config), 1)
            first.log.block(first.log.shard).add(Catalogue([entry, other]))
            first.log.urgent()
            await first.log.persisted()
            await settle({number: rig.log for number, rig in sorted(shards.rigs.items())}, clock.now_ns())
            now = first.log.state.catalogue[S]
            where = 1 if step == "announced" else 2
            assert (now.shard, now.to) == (where, None)
            states = {number: rig.log.state.streams for number, rig in shards.rigs.items()}
            had = {number: streams[S] for number, streams in states.items() if S in streams}
            assert sorted(had) == ([1] if where == 1 else [1, 2])
            assert had[where].departed is None
            for state in [state for number, state in had.items() if number != where]:
                assert (state.departed, len(state.blocks), REMAINS in state.extra) == (where, 0, True)
            found = await read_stream(shards.store, shards.state(where), where)
            assert len(found) == 5

    in_virtual_time(main)
