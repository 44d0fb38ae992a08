"""The end of the log of a store without an owner: each entry is lost, one at a time, for each way in which its broker
stopped.

A reader, a broker that starts, ``fsck`` and a copy name the lost entry, except an entry after which nothing was put:
the store has no trace of it. After a clean stop, and after a kill that followed a heartbeat, that entry has no
message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from broker.cluster.ownership import seal_at
from broker.inspect.source import Source
from broker.maintenance.copy import Copier
from broker.maintenance.destination import Destination
from broker.storage.format.claim import Seal
from broker.storage.format.errors import Corrupt, CutOff
from broker.storage.format.header import ObjectHeader, ObjectKind, Position
from broker.storage.format.log_end import landed_before
from broker.storage.format.segment import PUTS_IN_FLIGHT_MAX
from broker.storage.objectstore.base import Buffers
from broker.storage.objectstore.memory import MemoryStore
from broker.storage.objectstore.wrapper import Wrapper
from broker.storage.paths import COPYING, parse
from broker.storage.read.snapshot import catch_up, read_snapshot
from broker.storage.read.steps import run
from tests.inspect.stores import PATHS, Owner, Stream
from tests.maintenance.test_fsck import checked, contents, copy_of, rows
from tests.manual_clock import ManualClock
from tests.storage.rig import SECOND, in_virtual_time

Objects = dict[str, bytes]

MESSAGES = 6


async def clean(owner: Owner) -> None:
    await owner.stop()


async def clean_without_a_checkpoint(owner: Owner) -> None:
    end = await owner.shard.close(checkpoint=False)
    await seal_at(owner.store, PATHS, end, owner.epoch, owner.me, owner.clock, owner.rng)


async def killed_after_a_heartbeat(owner: Owner) -> None:
    await asyncio.sleep(3)
    await owner.kill()


async def killed_at_once(owner: Owner) -> None:
    await owner.kill()


async def sealed_by_another(owner: Owner) -> None:
    """Kill the broker at once; the next owner was killed, too, before it had opened its epoch."""
    await owner.kill()
    await seal_at(owner.store, PATHS, Position(owner.epoch, owner.log.position.number + 1), owner.epoch + 1, owner.me,
                  owner.clock, owner.rng)


Stop = Callable[[Owner], Awaitable[None]]

UNNOTICED = {clean: ["seal"], clean_without_a_checkpoint: ["seal"], sealed_by_another: ["seal"],
             killed_after_a_heartbeat: ["heartbeat"], killed_at_once: ["message"]}
"""The kind of the only entry whose loss leaves no trace."""


def stopped(stop: Stop) -> Objects:
    """Make a store with a stream and two process runs, of which the second one stopped in this way."""
    async def main(clock: ManualClock) -> Objects:
        store = MemoryStore()
        owner = Owner(store, lease_ns=6 * SECOND)
        owner.clock = clock
        await owner.start()
        orders = await owner.stream("ORDERS")
        for run_ in range(2):
            for i in range(MESSAGES):
                orders.publish(("ORDERS.x", b"", b"run %d, message %d" % (run_, i)))
                await owner.log.persisted()
            if not run_:
                await owner.round()
                await owner.kill()
                await owner.start("broker-b")
        await stop(owner)
        return await contents(store)

    return in_virtual_time(main)


def entries(objects: Objects) -> list[str]:
    """Return the entries of the log's last epoch."""
    return sorted(key for key in objects if key.startswith(f"{PATHS.logs}{2:08x}-"))


def what(objects: Objects, key: str) -> str:
    header = ObjectHeader.unpack(objects[key])
    if header.kind == ObjectKind.SEAL:
        return "seal"
    return "heartbeat" if header.size == 104 else "message" if header.position.number else "opening"


@pytest.mark.parametrize("stop", UNNOTICED, ids=lambda stop: stop.__name__)
async def test_each_entry_is_lost(stop: Stop) -> None:
    """The lost entry is named, or the store has nothing newer. No reader silently takes the remaining log for the
    whole."""
    whole = await asyncio.to_thread(stopped, stop)
    wanted = await rows(await copy_of(whole), "ORDERS")
    assert len(wanted) == 2 * MESSAGES
    newest = max(key for key in whole if key.startswith(PATHS.checkpoints)).rpartition("/")[2]
    unnoticed = []
    for key in entries(whole):
        store = await copy_of({name: data for name, data in whole.items() if name != key})
        found = await checked(store)
        if not found.problems:
            unnoticed.append(what(whole, key))
            continue
        assert found.problems[0].object == key
        if key.rpartition("/")[2] <= newest:
            continue  # the checkpoint includes the entry: a start does not need it, and readers of its messages name it
        assert found.repairable, found.refused
        with pytest.raises(Corrupt) as read:
            await read_snapshot(store, 0)
        with pytest.raises(Corrupt) as started:
            await Owner(store, seed=9).start("later")
        assert read.value.name == started.value.name == key
        repaired = await checked(store, repair=True)
        assert repaired.repaired
        assert repaired.remaining == []
        there = await rows(store, "ORDERS")
        lost = {seq for row in repaired.lost for seq in range(row.first_seq, row.last_seq + 1)}
        gone = wanted.keys() - there.keys()
        assert len(gone) == (what(whole, key) == "message")
        # A stream without later messages leaves no trace of its messages in the lost entry.
        unknown = gone == {max(wanted)} and "streams with later messages are known" in repaired.notes[0]
        assert gone == lost or unknown
    assert unnoticed == UNNOTICED[stop]


class Ordered(Wrapper):
    """A store whose puts of log entries from ``first`` on wait until the test releases them, one by one."""

    def __init__(self, inner: MemoryStore, first: Position) -> None:
        super().__init__(inner)
        self.first = PATHS.log(first)
        self.waiting: dict[str, asyncio.Future[None]] = {}

    async def put(self, key: str, data: Buffers) -> None:
        if key.startswith(PATHS.logs) and key >= self.first:
            await self.waiting.setdefault(key, asyncio.get_running_loop().create_future())
        await super().put(key, data)

    async def land(self, number: int) -> None:
        self.waiting.pop(PATHS.log(Position(1, number))).set_result(None)
        await asyncio.sleep(0.01)


async def one_message(inner: MemoryStore, clock: ManualClock, **log: int) -> tuple[Ordered, Owner, Stream]:
    """Make an owner with a stream of one stored message; entries from 3 on, four at a time, wait."""
    store = Ordered(inner, Position(1, 3))
    owner = Owner(store, puts_in_flight=4, commit_interval_ns=1_000_000, **log)
    owner.clock = clock
    await owner.start()
    orders = await owner.stream("ORDERS")
    orders.publish(("ORDERS.x", b"", b"first"))
    await owner.log.persisted()
    return store, owner, orders


def test_entries_in_flight_prove_nothing() -> None:
    """A kill leaves later entries without an earlier one: that one is the log's end, for readers and the next owner."""
    async def main(clock: ManualClock) -> None:
        inner = MemoryStore()
        store, owner, orders = await one_message(inner, clock)
        for i in range(6):
            orders.publish(("ORDERS.x", b"", b"%d" % i))
            await asyncio.sleep(0.01)
        # 3, 4, 5 and 6 are in flight; then 7 and 8, once 3 and 4 are stored.
        for number in (6, 4, 3):
            await store.land(number)
        orders.publish(("ORDERS.x", b"", b"last"))
        await asyncio.sleep(0.01)
        await store.land(8)
        await owner.kill()
        there = sorted(parse(info.key).position.number
                       for info in await inner.list(PATHS.logs))  # type: ignore[union-attr]
        assert there == [0, 1, 2, 3, 4, 6, 8]
        assert (await read_snapshot(inner, 0)).state.position == Position(1, 4)
        assert (await checked(inner)).problems == []
        later = Owner(inner, seed=9)
        await later.start("later")
        assert later.log.state.opening.ends == (Position(1, 5),)
        await later.kill()
        assert list(await rows(inner, "ORDERS")) == [1, 2, 3]

    in_virtual_time(main)


def test_a_deposed_owner_that_continues_proves_nothing() -> None:
    """Entries and heartbeats that a deposed owner puts beyond its seal prove nothing, before and after the next
    epoch is opened."""
    async def main(clock: ManualClock) -> None:
        inner = MemoryStore()
        store, owner, orders = await one_message(inner, clock, lease_ns=6 * SECOND)
        for i in range(4):
            orders.publish(("ORDERS.x", b"", b"%d" % i))
            await asyncio.sleep(3)
        await seal_at(inner, PATHS, Position(1, 3), 2, owner.me, owner.clock, owner.rng)
        for number in (6, 5, 4):
            await store.land(number)
            assert (await read_snapshot(inner, 0)).state.position == Position(1, 2)
            assert (await checked(inner)).problems == []
        await inner.delete(PATHS.log(Position(1, 3)))  # not even if the seal is lost
        assert (await read_snapshot(inner, 0)).state.position == Position(1, 2)
        await owner.kill()
        later = Owner(inner, seed=9)
        await later.start("later")
        assert later.log.state.opening.ends == (Position(1, 3),)
        await later.kill()

    in_virtual_time(main)


@pytest.mark.parametrize("lost", [False, True])
async def test_entries_deleted_between_two_reads(lost: bool) -> None:
    """Entries are released and deleted between two reads. With a checkpoint beyond them they are not lost; without
    one they are."""
    store = MemoryStore()
    owner = Owner(store)
    await owner.start()
    orders = await owner.stream("ORDERS")
    for i in range(4):
        orders.publish(("ORDERS.x", b"", b"%d" % i))
        await owner.log.persisted()
    before = await contents(store)
    await owner.round()
    after = await contents(store)
    await owner.kill()

    class Sweeping(Wrapper):
        """A store whose next reads see the state before a checkpoint round, then the state after it, or after a
        loss."""

        async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
            if key == PATHS.log(Position(1, 3)):
                self.inner = await copy_of({name: data for name, data in (before if lost else after).items()
                                            if name != key})
            return await self.inner.get(key, start, end)

    looking = Sweeping(await copy_of(before))
    if lost:
        with pytest.raises(Corrupt):
            await read_snapshot(looking, 0)
    else:
        assert (await read_snapshot(looking, 0)).state.position == owner.log.position


async def test_a_follower_of_the_log_sees_it() -> None:
    """A reader that follows the log makes no more requests than before, and finds that an entry is gone."""
    whole = await asyncio.to_thread(stopped, killed_after_a_heartbeat)
    log = entries(whole)
    start = await copy_of({key: data for key, data in whole.items() if key not in log[3:]})
    asked: list[str] = []

    class Counted(Wrapper):
        async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
            asked.append(key)
            return await self.inner.get(key, start, end)

    for lost in (None, *log[3:-1]):
        state = (await read_snapshot(start, 0)).state
        followed = Counted(await copy_of({key: data for key, data in whole.items() if key != lost}))
        if lost is None:
            await run(catch_up(PATHS, state), followed)
            assert state.position == parse(log[-1]).position  # type: ignore[union-attr]
            asked.clear()
            await run(catch_up(PATHS, state), followed)
            assert len(asked) == 5
        else:
            with pytest.raises(CutOff) as gone:
                await run(catch_up(PATHS, state), followed)
            assert gone.value.key == lost


def test_a_seal_after_a_heartbeat_that_begins_during_the_stop() -> None:
    """All entries up to the number in the seal are stored, even if another put begins while the log drains."""
    async def main(clock: ManualClock) -> None:
        store = MemoryStore()
        owner = Owner(store, lease_ns=6 * SECOND)
        owner.clock = clock
        await owner.start()
        await owner.stream("ORDERS")
        await asyncio.sleep(1.9)
        drain, times = owner.log.drain, 0

        async def and_one_more() -> None:
            nonlocal times
            await drain()
            times += 1
            if times == 2:
                owner.log._segments.close([], [])
                owner.log._begin(owner.log._segments.begin(0))

        owner.log.drain = and_one_more
        await owner.stop()
        last = max(info.key for info in await store.list(PATHS.logs))
        seal = Seal.decode(await store.get(last), parse(last).position)  # type: ignore[union-attr, arg-type]
        assert seal.landed == seal.position.number - 1
        assert PATHS.log(Position(1, seal.landed)) in await contents(store)

    in_virtual_time(main)


@pytest.mark.parametrize("kept", range(1, MESSAGES + 1))
async def test_an_update_of_a_copy_that_was_interrupted(kept: int) -> None:
    """Entries arrive in any order, so a missing one does not count as lost, for readers and for a broker on the
    copy. Lost entries of that broker's own epochs, and of a finished copy, are found."""
    whole = await asyncio.to_thread(stopped, killed_after_a_heartbeat)
    log = entries(whole)
    old = {key: data for key, data in whole.items() if key not in log[2:]}
    source, store = await copy_of(whole), await copy_of(old)
    late = log[1 + kept]

    class Stopped(Wrapper):
        async def put(self, key: str, data: Buffers) -> None:
            if key == late:
                await asyncio.sleep(3600)  # waits until it is cancelled
            await super().put(key, data)

    updating = asyncio.create_task(Copier(Source(source), Destination(Stopped(store))).run())
    for _ in range(300):
        await asyncio.sleep(0.001)
        if log[-1] in store.objects:
            break
    updating.cancel()
    await asyncio.gather(updating, return_exceptions=True)
    assert late not in store.objects
    assert COPYING in store.objects
    assert (await read_snapshot(store, 0)).state.position == Position(2, kept)
    assert (await checked(store)).problems == []
    again = await copy_of(await contents(store))
    await Copier(Source(source), Destination(again)).run()
    assert await contents(again) == whole
    opened = Owner(store, seed=9)
    await opened.start("later")
    assert opened.log.state.opening.ends[-1] == Position(2, kept + 1)
    stream = opened.streams["ORDERS"] = await opened.stream("NEW")
    for _ in range(3):
        stream.publish(("NEW.x", b"", b"new"))
        await opened.log.persisted()
    await opened.kill()
    await store.delete(PATHS.log(Position(3, 2)))
    with pytest.raises(Corrupt):
        await read_snapshot(store, 0)


def test_the_proof_of_an_entry() -> None:
    """Damaged bytes, and bytes from another place, prove only that a segment was put there."""
    whole = stopped(killed_after_a_heartbeat)
    last = entries(whole)[-1]
    at = parse(last).position  # type: ignore[union-attr]
    assert at is not None
    assert landed_before(whole[last], at) == at.number - 1
    least = max(0, at.number - PUTS_IN_FLIGHT_MAX)
    for place in range(len(whole[last])):
        data = bytearray(whole[last])
        data[place] ^= 4
        landed = landed_before(bytes(data), at)
        assert landed == (None if place == 8 else least)
    for size in range(len(whole[last])):
        assert landed_before(whole[last][:size], at) == (None if size <= 8 else least)
    assert landed_before(whole[last], Position(at.epoch, at.number + 40)) == at.number + 40 - PUTS_IN_FLIGHT_MAX
    assert landed_before(whole[entries(whole)[0]], Position(2, 0)) is None
