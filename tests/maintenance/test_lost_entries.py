"""Objects of the log's chain that a store has lost: claims, openings, entries in the middle of an epoch.

A lost claim prevents nobody from reading or taking the shard. A lost entry is never taken for the log's end, neither
by a reader nor by a broker, which would end the log there for good. Readers, brokers and ``fsck`` name the entry,
and ``fsck`` repairs the log.
"""

from __future__ import annotations

import random

import pytest

from broker.cluster.identity import Identity
from broker.cluster.ownership import take_shard
from broker.cluster.standby import wait_for_lease
from broker.storage.format.errors import Corrupt
from broker.storage.format.header import Position
from broker.storage.objectstore.base import NotFound
from broker.storage.objectstore.memory import MemoryStore
from broker.storage.objectstore.wrapper import Wrapper
from broker.storage.read.snapshot import read_snapshot
from tests.inspect.stores import PATHS, Owner
from tests.maintenance.test_fsck import checked, contents, copy_of, rows
from tests.manual_clock import ManualClock
from tests.storage.rig import SECOND, in_virtual_time

Objects = dict[str, bytes]

LAST_EPOCH = 4
ENTRIES = 24
"""The entries of the last epoch, its opening included: more than can be in flight at once."""


@pytest.fixture
async def whole() -> Objects:
    """Make a store of four process runs that were killed: a checkpoint in the first, ``ENTRIES`` entries in the
    last."""
    store = MemoryStore()
    owner = Owner(store)
    await owner.start()
    orders = await owner.stream("ORDERS")
    for run in range(LAST_EPOCH):
        if run:
            await owner.start(f"broker-{run}")
        for i in range(ENTRIES - 1 if run == LAST_EPOCH - 1 else 3):
            orders.publish((f"ORDERS.{run}", b"", b"run %d, message %d" % (run, i)))
            await owner.log.persisted()
        if run == 0:
            await owner.round()
        await owner.kill()
    return await contents(store)


async def without(objects: Objects, key: str) -> MemoryStore:
    assert key in objects
    return await copy_of({name: data for name, data in objects.items() if name != key})


async def run_owner(store: MemoryStore) -> int:
    """Start a broker that takes the shard, and stop it; return its epoch."""
    owner = Owner(store, seed=99)
    await owner.start("later")
    await owner.stop()
    return owner.epoch


@pytest.mark.parametrize("epoch", range(1, LAST_EPOCH + 1))
async def test_a_lost_claim(whole: Objects, epoch: int) -> None:
    """All messages are read and served, the next owner takes a new epoch, and fsck replaces the claim."""
    key = PATHS.epoch(epoch)
    wanted = await rows(await copy_of(whole), "ORDERS")
    store = await without(whole, key)
    assert await rows(store, "ORDERS") == wanted
    assert [problem.object for problem in (await checked(store)).problems] == [key]
    assert await run_owner(store) == LAST_EPOCH + 1
    assert await rows(store, "ORDERS") == wanted
    done = await checked(store, repair=True)
    assert done.repaired
    assert done.lost == done.remaining == []
    assert await rows(store, "ORDERS") == wanted


@pytest.mark.parametrize("position", [Position(2, 0), Position(3, 0), Position(3, 2), Position(LAST_EPOCH, 0),
                                      Position(LAST_EPOCH, 1), Position(LAST_EPOCH, ENTRIES - 1 - 16)])
async def test_a_lost_entry_is_not_the_end(whole: Objects, position: Position) -> None:
    """Readers, brokers and fsck name the entry. A broker that tried to start has ended nothing: once the entry is
    put back, nothing is missing."""
    key = PATHS.log(position)
    wanted = await rows(await copy_of(whole), "ORDERS")
    store = await without(whole, key)
    with pytest.raises(Corrupt) as read:
        await read_snapshot(store, 0)
    assert read.value.name == key
    for _ in range(2):
        with pytest.raises(Corrupt) as started:
            await run_owner(store)
        assert started.value.name == key
    dry = await checked(store)
    assert dry.problems[0].object == key
    assert dry.repairable, dry.refused
    await store.put(key, [whole[key]])
    await run_owner(store)
    assert await rows(store, "ORDERS") == wanted


@pytest.mark.parametrize("position", [Position(2, 0), Position(3, 2), Position(LAST_EPOCH, 0), Position(LAST_EPOCH, 5)])
async def test_a_lost_entry_is_repaired(whole: Objects, position: Position) -> None:
    """Only the entry's own messages are missing after a repair, and fsck lists them."""
    wanted = await rows(await copy_of(whole), "ORDERS")
    store = await without(whole, PATHS.log(position))
    done = await checked(store, repair=True)
    assert done.repaired
    assert done.remaining == []
    await run_owner(store)
    there = await rows(store, "ORDERS")
    lost = {seq for row in done.lost for seq in range(row.first_seq, row.last_seq + 1)}
    assert len(lost) == (position.number > 0)
    assert there == {seq: data for seq, data in wanted.items() if seq not in lost}


async def test_the_end_of_the_log_may_be_anywhere(whole: Objects) -> None:
    """A crash may leave fewer entries: any last entry gives a store without problems."""
    for number in range(1, ENTRIES):
        store = await copy_of({key: data for key, data in whole.items()
                               if not PATHS.log(Position(LAST_EPOCH, number)) <= key
                               < PATHS.log(Position(LAST_EPOCH + 1, 0))})
        assert (await read_snapshot(store, 0)).state.position == Position(LAST_EPOCH, number - 1)
        await run_owner(store)


class Late(Wrapper):
    """A store in which ``key`` appears only after ``times`` requests for it."""

    def __init__(self, inner: MemoryStore, key: str, times: int = 1) -> None:
        super().__init__(inner)
        self.key = key
        self.left = times

    async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        if key == self.key and self.left:
            self.left -= 1
            raise NotFound(key)
        return await super().get(key, start, end)


@pytest.mark.parametrize("number", [0, 1, 5])
async def test_an_entry_that_appears_while_the_log_is_read(whole: Objects, number: int) -> None:
    """An entry is missing in one request and exists in the next, as do later ones: it is neither lost nor the end."""
    store = await copy_of(whole)
    wanted = (await read_snapshot(store, 0)).state.position
    late = Late(store, PATHS.log(Position(LAST_EPOCH, number)))
    assert (await read_snapshot(late, 0)).state.position == wanted
    assert not late.left


async def test_an_opening_that_appears_during_a_take_over(whole: Objects) -> None:
    """The new owner seals after the opening that it did not find at first."""
    owner = Owner(Late(await copy_of(whole), PATHS.log(Position(LAST_EPOCH, 0))), seed=99)
    await owner.start("later")
    await owner.stop()
    assert owner.log.state.opening.ends[-1] == (LAST_EPOCH, ENTRIES)


def test_a_standby_without_the_newest_claim(whole: Objects) -> None:
    """The standby waits for the owner of the epoch whose claim is lost, and takes over from that owner."""
    async def main(clock: ManualClock) -> None:
        store = await without(whole, PATHS.epoch(LAST_EPOCH))
        me, rng = Identity("later", bytes(range(16))), random.Random(1)
        watched = await wait_for_lease(store, PATHS, me, clock, rng, 6 * SECOND)
        assert watched is not None
        assert (watched.epoch, watched.number, watched.silent) == (LAST_EPOCH, ENTRIES, True)
        assert (await take_shard(store, PATHS, me, clock, rng, watched, 6 * SECOND)).epoch == LAST_EPOCH + 1
    in_virtual_time(main)
