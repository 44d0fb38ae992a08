"""While a stream is offline, objects of other streams are merged and deleted as usual, and objects that it needs are
kept.

An owner that knows a record (kind 200) writes it; for owners that do not know it, the stream is offline. All tests run
in virtual time.
"""

from __future__ import annotations

import asyncio
import random

import pytest

from broker.storage.format.header import Position, position_key
from broker.storage.format.records.kinds import RecordKind
from broker.storage.paths import StreamPaths
from tests.storage.owners import Owners, S, T, U, owners
from tests.storage.rig import PATHS, Stream

MINUTE = 60.0


@pytest.mark.parametrize("newer_merges", [False, True])
def test_the_objects_of_other_streams_are_deleted(newer_merges: bool) -> None:
    """A stream of 80 messages goes offline. Then the others get 1000 messages and lose most of them, under three
    owners, two of which are killed. The store has about as many objects as at first, and the stream is online with a
    newer owner.

    ``newer_merges``: the newer owner merged blocks of the stream after the record that older ones do not know. So runs
    are named by records that could not be applied.
    """
    async def main(world: Owners) -> None:
        await world.open(newer=True, segments=1 << 20, compaction=newer_merges)
        for _ in range(20):
            await world.publish_together(S, T)
            await world.publish(S)
        await world.write_unknown_record()
        for _ in range(20):
            await world.publish_together(S, U)
            await world.publish(S)
        await world.remove(S, 1, 5)
        if newer_merges:
            await asyncio.sleep(20)
            assert world.shard.compactor is not None
            assert world.shard.compactor.merges
            await world.publish(S, 3)
        assert any("/runs/" in key for key in world.shared.objects) == newer_merges
        await world.shard.abandon()
        before = len(world.data_objects())
        for owner in range(3):
            await world.open(newer=False)
            assert world.offline
            for at in range(120):
                await world.publish_together(T, U)
                await world.publish(T)
                if at % 40 == 39:
                    await world.remove(T, 1, world.last_seqs[T] - 10)
                    await world.check_newer_version()
            await asyncio.sleep(20 * MINUTE)
            assert world.offline
            assert len(world.data_objects()) < before + 60
            await world.check_newer_version()
            if owner < 2:
                await world.shard.abandon()
        await world.shard.close()
        await world.open(newer=True)
        assert not world.offline
        await world.check_newer_version()
        await world.publish(S, 5)
        await asyncio.sleep(20 * MINUTE)
        assert len(world.data_objects()) < 40, "objects that only an offline stream needed are deleted"
        await world.check_newer_version()
    owners(main)


def test_deleting_an_offline_stream_releases_its_objects() -> None:
    """Shows it for its segments, and for the run that a record names which could not be applied."""
    async def main(world: Owners) -> None:
        await world.open(newer=True, segments=1 << 20)
        await world.publish(T, 10)
        await world.publish(S, 10)
        await world.write_unknown_record()
        await world.publish(S, 20)
        await asyncio.sleep(20)
        await world.shard.abandon()
        await world.open(newer=False)
        stream = world.shard.state.streams[S]
        assert stream.held
        assert stream.held_runs
        await world.publish(T, 100)
        await asyncio.sleep(20 * MINUTE)
        kept = {PATHS.log(position) for position in stream.held}
        assert kept <= world.shared.objects.keys()
        runs = [key for key in world.shared.objects if "/runs/" in key]
        Stream(world.shard.log, S).record(RecordKind.STREAM_DELETE, {})
        del world.messages[S]
        await world.shard.log.persisted()
        await asyncio.sleep(20 * MINUTE)
        assert not kept & world.shared.objects.keys()
        assert len([key for key in runs if key in world.shared.objects]) < len(runs)
        await world.check_newer_version()
        await world.shard.close()
        await world.open(newer=True)
        await asyncio.sleep(20 * MINUTE)
        assert len(world.data_objects()) < 30
        await world.check_newer_version()
    owners(main)


def test_runs_below_the_prefix_of_an_offline_stream_stay_until_it_is_deleted() -> None:
    """Shows that they are kept, since an unknown record may name them; another stream's orphan is deleted."""
    async def main(world: Owners) -> None:
        await world.open(newer=True, segments=1 << 20, compaction=False)
        await world.publish(S, 3)
        await world.write_unknown_record()
        await world.publish(T, 3)
        named, orphan = (StreamPaths("$G", name, stream_id).run(Position(1, 2), 99)
                         for name, stream_id in (("s", S), ("t", T)))
        for key in (named, orphan):
            await world.shared.put(key, [b"a run of the first epoch"])
        await world.shard.abandon()
        for _ in range(2):
            await world.open(newer=False)
            await world.publish(T, 20)
            await asyncio.sleep(20 * MINUTE)
            assert named in world.shared.objects
            assert orphan not in world.shared.objects
            await world.shard.close()
        await world.open(newer=False)
        Stream(world.shard.log, S).record(RecordKind.STREAM_DELETE, {})
        await world.shard.log.persisted()
        await world.shard.close()
        await world.open(newer=False)
        await world.publish(T, 20)
        await asyncio.sleep(20 * MINUTE)
        assert named not in world.shared.objects
    owners(main)


def test_a_kept_checkpoint_that_names_held_segments_keeps_them() -> None:
    """A newer owner has the stream online again, and dies after one checkpoint; so does the next. Objects that
    checkpoints of the older owner name are kept as long as these checkpoints, since a start may have to fall back to
    them."""
    async def main(world: Owners) -> None:
        await world.open(newer=True, segments=1 << 20, compaction=False)
        await world.publish(S, 10)
        await world.write_unknown_record()
        await world.publish(S, 10)
        await world.shard.abandon()
        await world.open(newer=False, segments=1 << 20, compaction=False)
        held = {PATHS.log(position) for position in world.shard.state.streams[S].held}
        assert len(held) == 11
        for _ in range(3):
            await world.publish(T)
            assert await world.shard.checkpointer.cut()
        await world.shard.abandon()
        for left in range(2, -1, -1):
            assert held <= world.shared.objects.keys()
            await world.open(newer=True, segments=1 << 20, compaction=False)
            assert not world.offline
            await world.remove(S, 1, 20)
            await world.publish(T)
            assert await world.shard.checkpointer.cut()
            await world.shard.sweeper.after_round(world.shard.checkpointer)
            await world.shard.log.persisted()
            await asyncio.sleep(2)
            assert bool(held & world.shared.objects.keys()) == (left > 0), left
            await world.check_newer_version()
            await world.shard.abandon()
    owners(main)


@pytest.mark.parametrize("seed", range(12))
def test_random_histories(seed: int) -> None:
    """Newer and older owners take turns and act randomly: publish, remove, write checkpoints, merge, sweep, end, die. A
    newer version could read every message all the time."""
    rng = random.Random(seed)

    async def main(world: Owners) -> None:
        for turn in range(8):
            newer = turn % 2 == 0 if rng.random() < 0.8 else rng.random() < 0.5
            await world.open(newer=newer or not turn, segments=rng.choice([4, 16, 1 << 20]),
                             compaction=rng.random() < 0.8)
            for _ in range(rng.randrange(5, 40)):
                mine = [S, T, U] if not world.offline else [T, U]
                action = rng.random()
                if action < 0.35:
                    await world.publish(rng.choice(mine), rng.randrange(1, 6))
                elif action < 0.6:
                    await world.publish_together(*mine)
                elif action < 0.75:
                    stream_id = rng.choice(mine)
                    if have := world.messages.get(stream_id):
                        first = rng.choice([min(have), rng.choice(list(have))])
                        last = first
                        while last + 1 in have and rng.random() < 0.9:
                            last += 1
                        await world.remove(stream_id, first, last)
                elif action < 0.85 and newer and S in world.messages and S in mine:
                    await world.write_unknown_record()
                elif action < 0.95:
                    await asyncio.sleep(rng.choice([1, 10, 100]))
                else:
                    await world.shard.checkpointer.cut()
            await world.check_newer_version()
            state = world.shard.state
            for position in state.streams[S].held if S in state.streams else ():
                assert state.counts.segments.get(position_key(position))
            if rng.random() < 0.3:
                await world.shard.close()
            else:
                await world.shard.abandon()
        await world.open(newer=True)
        assert not world.offline
        await world.publish(S)
        await asyncio.sleep(20 * MINUTE)
        await world.check_newer_version()
        assert len(world.data_objects()) < 60
    owners(main)
