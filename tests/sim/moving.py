"""A simulation in which streams move between shards: the steps of the owners (docs/adr/0028-moves.md) as actions.

    shard 0's owner    announces moves in the catalogue, and ends them once a shard has what it asked for
    any shard's owner  reads the catalogue in the store: streams leave, stay after all, come, and are forgotten

Each owner reads the other shards in the store, through its own faulty connection. The records, the merges, the reads
and the state that a stream leaves behind are the broker's own.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from broker.jetstream.account.unused import UnusedStream
from broker.storage.format.records.arrival import Arrival
from broker.storage.format.records.catalogue import Catalogue, CatalogueEntry
from broker.storage.format.records.departure import Departure
from broker.storage.format.records.stream_update import StreamUpdate
from broker.storage.read.followed import FollowedStream
from broker.storage.read.snapshot import read_snapshot
from broker.storage.shard import Shard
from broker.storage.state.applied import ShardState
from broker.storage.state.stream import MOVES, StreamState
from broker.storage.state.stream_entry import pack_whole
from tests.sim.owner import Owner, SimStream
from tests.sim.process import Broker
from tests.sim.world import World

__all__ = ["MovingOwner", "MovingWorld"]


class MovingWorld(World):
    """Two brokers for each of three shards."""

    shards = 3

    def __init__(self, seed: int, **settings: Any) -> None:
        super().__init__(seed, brokers=6, **settings)

    def make_owner(self, broker: Broker, shard: Shard) -> Owner:
        return MovingOwner(broker, shard)


class MovingOwner(Owner):
    """The owner of a shard whose streams may move to another one."""

    def __init__(self, broker: Broker, shard: Shard) -> None:
        super().__init__(broker, shard)
        self.number = broker.paths.shard
        self.streams = {stream_id: one for stream_id, one in self.streams.items()
                        if shard.state.streams[stream_id].departed is None}

    def create(self) -> None:
        """Create streams in shard 0 only: in any other shard a stream has an entry from before its creation."""
        if not self.number:
            super().create()

    def delete(self, stream: SimStream) -> None:
        """Do nothing: without the catalogue, nobody may delete a stream that moves."""

    async def between(self, rng: random.Random) -> None:
        """Take a step of some move, sometimes."""
        if rng.random() < 0.7:
            if not self.number:
                await self._lead(rng)
            await self._follow(rng)

    def _state(self, stream_id: int) -> StreamState | None:
        return self.log.state.streams.get(stream_id)

    async def _read(self, shard: int) -> ShardState:
        """Return the persisted state of a shard."""
        return self.log.state if shard == self.number else (await read_snapshot(self.log.store, shard)).state

    async def _commit(self) -> None:
        self.log.barrier()
        self.log.urgent()
        await self.log.persisted()

    # --- the owner of shard 0 -----------------------------------------------------------------------------------------

    async def _lead(self, rng: random.Random) -> None:
        states = {shard: await self._read(shard) for shard in range(self.world.shards)}
        entries = {one.stream_id: CatalogueEntry(one.stream_id, 0, one.account, one.name, {}, 1)
                   for one in self.log.state.streams.values()} | dict(self.log.state.catalogue)
        if entries:
            entry = rng.choice([entries[stream_id] for stream_id in sorted(entries)])
            if (changed := self._next(entry, states, rng)) is not None:
                self.log.block(self.log.shard).add(Catalogue([changed]))
                await self._commit()

    def _next(self, entry: CatalogueEntry, states: Mapping[int, ShardState], rng: random.Random,
              ) -> CatalogueEntry | None:
        here = states[entry.shard].streams.get(entry.stream_id)
        if entry.to is None:
            if here is None or here.departed is not None:
                return None
            return replace(entry, to=rng.choice([one for one in states if one != entry.shard]))
        there = states[entry.to].streams.get(entry.stream_id)
        if there is not None and there.departed is None:
            self.world.counts["moved"] += 1
            return replace(entry, shard=entry.to, to=None, moves=entry.moves + 1)
        if here is not None and here.departed is None and here.moves > entry.moves:
            self.world.counts["given up"] += 1
            return replace(entry, to=None, moves=entry.moves + 1)
        return None

    # --- the owner of any shard ---------------------------------------------------------------------------------------

    async def _follow(self, rng: random.Random) -> None:
        entries = dict((await self._read(0)).catalogue)
        for stream_id, entry in sorted(entries.items()):
            state = self._state(stream_id)
            if entry.to is not None and entry.shard == self.number:
                if state is not None and state.departed is None and state.moves <= entry.moves:
                    await (self._give_up(entry) if rng.random() < 0.2 else self._leave(entry))
            elif entry.to == self.number and (state is None or state.departed is not None):
                await self._take(entry)
        for state in [one for one in self.log.state.streams.values() if one.departed is not None]:
            known = entries.get(state.stream_id)
            if known is not None and self.number not in (known.shard, known.to):
                UnusedStream(state).delete(self.log)
                await self._commit()

    async def _give_up(self, entry: CatalogueEntry) -> None:
        stream = self.streams[entry.stream_id]
        self.log.block(stream).add(StreamUpdate({}, {MOVES: entry.moves + 1}))
        await self._commit()

    async def _leave(self, entry: CatalogueEntry) -> None:
        merger = self.shard.merger
        async with merger.working, merger.without_rounds():
            await merger.isolate(entry.stream_id)
            stream = self.streams.pop(entry.stream_id)
            self.log.barrier(stream)
            await self._commit()
            while await merger.isolate(entry.stream_id, hurried=True):
                pass
            state = self._state(entry.stream_id)
            assert state is not None
            assert entry.to is not None
            if any(True for page in state.blocks.pages for _ in page.log_keys()):
                self.streams[entry.stream_id] = SimStream(self, entry.stream_id, state)
                return
            self.log.block(UnusedStream(state)).add(Departure(entry.to))
            await self._commit()

    async def _take(self, entry: CatalogueEntry) -> None:
        log = self.log
        state = await FollowedStream(log.store, entry.shard, entry.account, entry.name, entry.stream_id,
                                     self.broker.clock, random.Random(1)).read()
        if state is None or state.departed != self.number:
            return
        log.settings.codec.adopt(state.stream_id)
        log.block(UnusedStream(state)).add(Arrival(entry.shard, pack_whole(state)))
        await self._commit()
        here = self._state(entry.stream_id)
        assert here is not None
        self.streams[entry.stream_id] = SimStream(self, entry.stream_id, here)
