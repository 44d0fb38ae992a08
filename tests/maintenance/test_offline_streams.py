"""Stores with an offline stream: inspection, checks and copies agree with the sweeper about the objects that are
needed."""

from __future__ import annotations

import asyncio
import random

import pytest

from broker.inspect.source import Source
from broker.inspect.survey import read_survey
from broker.inspect.verify import verify
from broker.maintenance.copy import Copier
from broker.maintenance.destination import Destination
from broker.maintenance.fsck import fsck
from broker.storage.objectstore.memory import MemoryStore
from broker.storage.paths import run_key
from tests.storage.owners import Owners, S, T, U, owners
from tests.storage.rig import PATHS


async def with_an_offline_stream(world: Owners) -> None:
    """Make a store in which a newer owner merged blocks of a stream after a record that its successor does not know.
    The successor deletes much."""
    await world.open(newer=True, segments=1 << 20)
    await world.publish(T, 10)
    await world.publish(S, 20)
    await world.write_unknown_record()
    for _ in range(20):
        await world.publish_together(S, U)
    await asyncio.sleep(20)
    await world.publish(S, 3)
    await world.shard.abandon()
    await world.open(newer=False)
    await world.publish(T, 150)
    await world.remove(T, 1, 100)
    await asyncio.sleep(1200)
    await world.shard.abandon()
    assert world.offline
    assert world.shard.sweeper.deleted > 100
    assert world.shard.state.streams[S].held_runs


def test_objects_of_an_offline_stream_are_no_orphans() -> None:
    """The only problem is the stream's record, and there is no orphan. A copy has all objects."""
    async def main(world: Owners) -> None:
        await with_an_offline_stream(world)
        source = Source(world.shared)
        survey = await read_survey(source)
        [shard] = survey.shards
        assert survey.problems == []
        assert shard.held.count == len(world.shard.state.streams[S].held)
        verified = await verify(source, survey)
        # The record is not understood, and the scripted streams do not count bytes as real ones do.
        unknown = PATHS.log(world.shard.state.streams[S].held[0])
        assert {problem.object for problem in verified.problems} <= {unknown, *(f"stream $G/{name}" for name in "stu")}
        assert verified.orphans == []
        done = await fsck(world.shared, world.clock, random.Random(1), repair=True)
        assert "newer jetblock" in done.refused
        copy = MemoryStore()
        copied = await Copier(source, Destination(copy)).run(verifying=True)
        assert copied.whole
        world.shared = copy
        await world.check_newer_version()
    owners(main)


@pytest.mark.parametrize("what", ["segment", "run"])
def test_the_loss_of_an_object_of_an_offline_stream_is_reported(what: str) -> None:
    async def main(world: Owners) -> None:
        await with_an_offline_stream(world)
        stream = world.shard.state.streams[S]
        lost = PATHS.log(stream.held[1]) if what == "segment" else run_key(PATHS, stream.held_runs[0], "$G", "s")
        await world.shared.delete(lost)
        survey = await read_survey(Source(world.shared))
        assert any(lost in (problem.object, *problem.what.split()) for problem in survey.problems)
    owners(main)
