"""A shard is taken with pauses at every store call, against a live owner, repeatedly; no acknowledged message is
lost."""

from __future__ import annotations

import asyncio
import contextlib
import random

import pytest

from broker.cluster.entries import BATCH, entries
from broker.cluster.openings import known_ends
from broker.cluster.ownership import newest_checkpoint, seal_at, take_shard
from broker.storage.checkpoint.settings import CheckpointSettings
from broker.storage.format.errors import Corrupt
from broker.storage.format.header import ObjectHeader, ObjectKind, Position
from broker.storage.format.opening import encode_opening
from broker.storage.format.records.opening import Opening
from broker.storage.log.settings import LogSettings
from broker.storage.objectstore.base import Transient
from broker.storage.objectstore.memory import MemoryStore
from broker.storage.objectstore.wrapper import Wrapper
from broker.storage.put import Fenced, StoreRetry
from broker.storage.read.recovery import recover
from broker.storage.read.snapshot import read_snapshot
from broker.storage.shard import ShardSettings
from tests.manual_clock import ManualClock
from tests.storage.rig import MS, PATHS, SECOND, Counting, Publisher, Rig, in_virtual_time, read_all

OFTEN = ShardSettings(log=LogSettings(), checkpoint=CheckpointSettings(segments=3, roots_kept=2), sweep_grace_ns=0)
"""A checkpoint round every three segments, without grace: objects are deleted as soon as the rules allow."""


async def owner(shared: MemoryStore, clock: ManualClock, name: str, seed: int, settings: ShardSettings = OFTEN) -> Rig:
    rig = Rig(shared, clock, name, seed, settings=settings)
    await rig.open()
    return rig


async def compare(shared: MemoryStore, acked: dict[int, bytes]) -> None:
    """Check that a reader without a broker and a fresh owner find all acknowledged messages."""
    found = await read_all(shared)
    assert {seq: found.get(seq) for seq in acked} == acked


def test_the_first_owner_and_the_next() -> None:
    """Epochs count up; the opening names the end of each epoch before, and the old owner is fenced by name."""
    async def main(clock: ManualClock) -> None:
        shared, acked = MemoryStore(), {}
        a = await owner(shared, clock, "a", 1)
        assert a.taken is not None
        assert (a.taken.epoch, a.taken.ends) == (1, {})
        client = Publisher(a, acked)
        await client.publish_many(2)
        b = await owner(shared, clock, "b", 2, ShardSettings())
        assert b.taken is not None
        assert (b.taken.epoch, b.taken.ends) == (2, {1: 3})
        assert b.log.state.opening is not None
        assert b.log.state.opening.ends == ((1, 3),)
        with pytest.raises(Fenced) as fenced:
            await client.publish_many(1)
        assert fenced.value.by == "b"
        await Publisher(b, acked).publish_many(1)
        await compare(shared, acked)
        assert len(acked) == 3
    in_virtual_time(main)


@pytest.mark.parametrize("put", range(12))
def test_an_old_owner_stalls_before_a_put_for_longer_than_any_sweep(put: int) -> None:
    """O stalls before its put number ``put``: a segment, pages or a root. N takes over, checkpoints and sweeps as much
    as it may. Then O wakes and acts as the owner, and must acknowledge only messages that a reader finds."""
    async def main(clock: ManualClock) -> None:
        shared: MemoryStore = MemoryStore()
        acked: dict[int, bytes] = {}
        old = await owner(shared, clock, "old", 1)
        client = Publisher(old, acked)
        await old.log.persisted()
        stall = old.store.stall_put(old.store.puts + put)
        work = asyncio.ensure_future(client.publish_many(30))
        await stall.reached.wait()
        before = dict(acked)
        new = await owner(shared, clock, "new", 2)
        other = Publisher(new, acked)
        await other.publish_many(25)
        await asyncio.sleep(7200)
        assert new.shard is not None
        assert new.shard.sweeper.deleted > 0
        stall.release()
        with pytest.raises(Fenced):
            await work
        await other.publish_many(5)
        await compare(shared, acked)
        assert before.items() <= acked.items()
        third = await owner(shared, clock, "third", 3)
        state = third.log.state.stream("$G", "s")
        assert state is not None
        assert state.last_seq >= max(acked)
        await compare(shared, acked)
    in_virtual_time(main)


@pytest.mark.parametrize("call", range(10))
def test_a_take_over_while_the_owner_lives_checkpoints_and_sweeps(call: int) -> None:
    """N pauses before its store call number ``call`` while O continues, checkpoints and sweeps objects that N has read.
    N then seals a number that was swept, not missing, and must notice that by listing the checkpoints again."""
    async def main(clock: ManualClock) -> None:
        shared, acked = MemoryStore(), {}
        old = await owner(shared, clock, "old", 1)
        client = Publisher(old, acked)
        await client.publish_many(4)
        new = Rig(shared, clock, "new", 2, settings=OFTEN)
        reached, go = asyncio.Event(), asyncio.Event()
        calls = 0

        async def pause(operation: str, key: str) -> None:
            nonlocal calls
            if calls == call:
                reached.set()
                await go.wait()
            calls += 1

        new.store.before = pause
        taking = asyncio.ensure_future(new.open())
        await asyncio.wait([taking, asyncio.ensure_future(reached.wait())], return_when=asyncio.FIRST_COMPLETED)
        try:
            await client.publish_many(40)
        except Fenced:
            pass
        await asyncio.sleep(60)
        go.set()
        await taking
        await compare(shared, acked)
        with pytest.raises(Fenced):
            await client.publish_many(3)
        await Publisher(new, acked).publish_many(3)
        await compare(shared, acked)
    in_virtual_time(main)


def test_a_seal_at_a_swept_number_is_not_the_end() -> None:
    """The same case step by step: N has listed the checkpoints, O sweeps past them, and N puts its first seal at a
    swept number far behind O."""
    async def main(clock: ManualClock) -> None:
        shared, acked = MemoryStore(), {}
        old = await owner(shared, clock, "old", 1)
        client = Publisher(old, acked)
        await client.publish_many(4)
        await asyncio.sleep(1)
        assert old.shard is not None
        stale = await newest_checkpoint(shared, PATHS, StoreRetry(shared, clock, old.rng))
        new = Rig(shared, clock, "new", 2, settings=OFTEN)
        swept = False

        async def outrun(operation: str, key: str) -> None:
            # The new broker reads the first number after the checkpoint that it knows.
            nonlocal swept
            if not swept and operation == "get" and key == PATHS.log(Position(1, stale.number + 1)):
                swept = True
                client.stream.remove(1, client.stream.last_seq)  # so that the old segments may go
                acked.clear()
                await client.publish_many(20)
                await asyncio.sleep(5)
                await client.publish_many(20)
                await asyncio.sleep(5)
                assert key not in shared.objects

        new.store.before = outrun
        taken = await new.take_shard()
        assert swept
        assert shared.objects[PATHS.log(Position(1, stale.number + 1))][8] == ObjectKind.SEAL
        assert taken.ends[1] > stale.number + 30
        await compare(shared, acked)
    in_virtual_time(main)


@pytest.mark.parametrize("call", range(56))  # a take-over has fewer
@pytest.mark.parametrize("second", [0, 3])
def test_three_takers_pause_at_each_call(call: int, second: int) -> None:
    """A claims and pauses, B claims the next epoch and pauses too, O continues, C takes the shard; then A and B wake.
    Every broker but the owner of the last epoch is fenced before it acknowledges anything that a reader does not
    find."""
    async def main(clock: ManualClock) -> None:
        shared, acked = MemoryStore(), {}
        old = await owner(shared, clock, "old", 1)
        client = Publisher(old, acked)
        await client.publish_many(5)
        gates: list[asyncio.Event] = []
        takers: list[Rig] = []
        tasks: list[asyncio.Future[None]] = []

        async def live(rig: Rig) -> None:
            try:
                await rig.open()
                await Publisher(rig, acked).publish_many(5)
            except Fenced:
                pass

        for i, at in enumerate((call, second)):
            rig = Rig(shared, clock, f"t{i}", 10 + i, settings=OFTEN)
            gate = asyncio.Event()
            calls = 0

            async def pause(operation: str, key: str, at: int = at, gate: asyncio.Event = gate, i: int = i) -> None:
                nonlocal calls
                if i == len(gates) - 1:
                    calls += 1
                    if calls == at + 1:
                        await gate.wait()

            rig.store.before = pause
            gates.append(gate)
            takers.append(rig)
            tasks.append(asyncio.ensure_future(live(rig)))
            await asyncio.sleep(1)
            try:
                await client.publish_many(3)
            except Fenced:
                pass
        last = await owner(shared, clock, "last", 3)
        await Publisher(last, acked).publish_many(20)
        for gate in gates:
            gate.set()
        await asyncio.gather(*tasks)
        await compare(shared, acked)
        nonces = {}
        for key, data in shared.objects.items():
            header = ObjectHeader.unpack(data[:64], key)
            if header.kind == ObjectKind.SEGMENT:
                assert nonces.setdefault(header.position.epoch, header.nonce) == header.nonce
    in_virtual_time(main)


def test_every_epoch_below_is_sealed_used_or_not() -> None:
    """Claims that were never opened are sealed at number 0: if their owners wake, they cannot open the epochs."""
    async def main(clock: ManualClock) -> None:
        shared = MemoryStore()
        a = Rig(shared, clock, "a", 1)
        stall = a.store.stall_put(1)  # the claim is put 0, the opening put 1
        opening = asyncio.ensure_future(a.take_shard())
        await stall.reached.wait()
        b = Rig(shared, clock, "b", 2)
        taken = await b.take_shard()
        assert taken.ends == {1: 0}
        stall.release()
        with pytest.raises(Fenced) as fenced:
            await opening
        assert fenced.value.by == "b"
    in_virtual_time(main)


@pytest.mark.parametrize("silence_s", [0, 5, 10])
@pytest.mark.parametrize("what", ["take", "recover"])
def test_a_store_that_does_not_answer_is_waited_for_15_seconds(
        what: str, silence_s: int, caplog: pytest.LogCaptureFixture) -> None:
    """No try begins later than 15 s after the first, and after 2 s one log line names the request and, if known, the
    error."""
    async def main(clock: ManualClock) -> None:
        a = Rig(MemoryStore(), clock, "a", 1)
        taken = await a.take_shard()
        began_ns = last_ns = clock.monotonic_ns()

        async def silent(operation: str, key: str) -> None:
            nonlocal last_ns
            last_ns = clock.monotonic_ns()
            await asyncio.sleep(silence_s)
            raise Transient(f"{key}: 503")

        a.store.before = silent
        retry = StoreRetry(a.store, clock, random.Random(1))
        with pytest.raises(Transient):
            await (a.take_shard() if what == "take" else recover(a.store, PATHS, taken.epoch, retry))
        assert 10 * SECOND <= last_ns - began_ns <= 15 * SECOND
        assert clock.monotonic_ns() - began_ns <= (15.1 + silence_s) * SECOND
    in_virtual_time(main)
    [line] = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "no answer for 2 s to list shards/0/checkpoint" in line.replace("v1/", "")
    assert ("503" in line) == (silence_s == 0)


def test_one_warning_for_many_concurrent_calls(caplog: pytest.LogCaptureFixture) -> None:
    """A short delay of 32 concurrent header requests is not logged, and a long one is logged once."""
    async def main(clock: ManualClock, seconds: float) -> None:
        a = Rig(MemoryStore(), clock, "a", 1)
        until_ns = clock.monotonic_ns() + int(seconds * SECOND)

        async def down(operation: str, key: str) -> None:
            if clock.monotonic_ns() < until_ns:
                raise Transient("503")

        a.store.before = down
        found = await entries(a.store, PATHS, 1, range(BATCH), StoreRetry(a.store, clock, a.rng))
        assert found == [None] * BATCH

    for seconds, lines in [(0.5, 0), (5.0, 1)]:
        caplog.clear()
        in_virtual_time(lambda clock, seconds=seconds: main(clock, seconds))  # type: ignore[misc]
        assert len([record for record in caplog.records if record.levelname == "WARNING"]) == lines


def test_a_claim_whose_answer_was_lost_is_ours() -> None:
    """The put is retried and refused; the nonce in the claim's header shows that the epoch is ours."""
    async def main(clock: ManualClock) -> None:
        a = Rig(MemoryStore(), clock, "a", 1)
        lost = 0

        async def lose(operation: str, key: str) -> None:
            nonlocal lost
            if operation == "put" and lost < 2:
                lost += 1
                raise Transient("no answer")

        a.store.after = lose
        assert (await a.take_shard()).epoch == 1
        assert lost == 2
    in_virtual_time(main)


def test_a_late_segment_of_our_own_is_not_taken_for_our_seal() -> None:
    """A process run is fenced and becomes owner again, and a late put of its first ownership takes the number that it
    seals now. The nonce is its own, but the object is a segment, so the epoch ends at a later number."""
    async def main(clock: ManualClock) -> None:
        shared, acked = MemoryStore(), {}
        a = await owner(shared, clock, "a", 1, ShardSettings())
        await Publisher(a, acked).publish_many(3)
        late = shared.objects[PATHS.log(Position(1, 3))]
        await shared.delete(PATHS.log(Position(1, 3)))

        async def land(operation: str, key: str) -> None:
            if operation == "put" and key == PATHS.log(Position(1, 3)) and key not in shared.objects:
                await shared.put(key, [late])

        again = Rig(shared, clock, "a", 1)
        again.me = a.me
        again.store.before = land
        taken = await again.take_shard()
        assert taken.ends == {1: 4}
        await compare(shared, acked)
    in_virtual_time(main)


def test_sealing_reads_headers_in_batches() -> None:
    """A take-over from a log of 100 segments past the checkpoint costs a header each, 32 at a time, and one put."""
    async def main(clock: ManualClock) -> None:
        shared, acked = MemoryStore(), {}
        a = await owner(shared, clock, "a", 1, ShardSettings())
        await Publisher(a, acked).publish_many(100)
        counting = Counting(shared)
        b = Rig(counting, clock, "b", 2)
        began_ns = clock.monotonic_ns()
        await b.take_shard()
        puts = [key for operation, key in counting.calls if operation == "put"]
        assert len(puts) == 3
        assert sum(operation == "get" for operation, _ in counting.calls) <= 1 + 100 + 33
        assert clock.monotonic_ns() - began_ns < 16 * 2 * MS
    in_virtual_time(main)


def test_a_damaged_entry_is_not_the_end() -> None:
    """A segment that exists and cannot be read stops the take-over with an error that names it."""
    async def main(clock: ManualClock) -> None:
        shared, acked = MemoryStore(), {}
        a = await owner(shared, clock, "a", 1, ShardSettings())
        await Publisher(a, acked).publish_many(5)
        key = PATHS.log(Position(1, 4))
        shared.objects[key] = b"\0" * len(shared.objects[key])
        b = Rig(shared, clock, "b", 2)
        with pytest.raises(Corrupt, match=key):
            await take_shard(b.store, PATHS, b.me, clock, b.rng)
    in_virtual_time(main)


def test_after_a_clean_stop_the_next_owner_replays_next_to_nothing() -> None:
    """After drain, checkpoint and seal, the next owner replays almost nothing."""
    async def main(clock: ManualClock) -> None:
        shared, acked = MemoryStore(), {}
        a = await owner(shared, clock, "a", 1, ShardSettings())
        await Publisher(a, acked).publish_many(10)
        assert a.shard is not None
        end = await a.shard.close()
        assert await seal_at(a.store, PATHS, end, 1, a.me, clock, a.rng) == ObjectKind.SEAL
        b = await owner(shared, clock, "b", 2)
        assert b.shard is not None
        assert b.shard.recovered.segments == 1
        assert (await read_snapshot(shared, 0)).state.position == Position(2, 0)
        await compare(shared, acked)
    in_virtual_time(main)


def test_the_wall_clock_ten_years_off_changes_nothing() -> None:
    """Leases use the monotonic clock, and order uses numbers: leaps of the wall clock neither fence an owner nor end
    its lease."""
    async def main(clock: ManualClock) -> None:
        shared, acked = MemoryStore(), {}
        settings = ShardSettings(log=LogSettings(lease_ns=15_000_000_000))
        a = await owner(shared, clock, "a", 1, settings)
        client = Publisher(a, acked)
        for leap in (10, -20, 10):
            clock.leap(leap * 365 * 86_400_000_000_000)
            await client.publish_many(3)
            await asyncio.sleep(20)
            assert not a.log.lease_expired
        await compare(shared, acked)
    in_virtual_time(main)


def test_a_busy_owner_cannot_outrun_its_seal() -> None:
    """A seal is put ahead of an owner that puts a segment before each put of the taker, and would win every number."""
    async def main(clock: ManualClock) -> None:
        shared, acked = MemoryStore(), {}
        old = await owner(shared, clock, "old", 1, ShardSettings())
        client = Publisher(old, acked)
        await client.publish_many(3)
        new = Rig(shared, clock, "new", 2)
        puts = 0

        async def race(operation: str, key: str) -> None:
            nonlocal puts
            if operation == "put":
                puts += 1
                assert puts < 40, "the taker never wins"
                with contextlib.suppress(Fenced):
                    await client.publish_many(1)

        new.store.before = race
        await new.open()
        with pytest.raises(Fenced):
            await client.publish_many(1)
        new.store.before = None
        await Publisher(new, acked).publish_many(3)
        await compare(shared, acked)
    in_virtual_time(main)


def test_a_root_beyond_the_end_of_its_epoch() -> None:
    """A root at or beyond the end of its epoch, which no owner puts, ends the take-over with an error that names it."""
    async def main(clock: ManualClock) -> None:
        shared, acked = MemoryStore(), {}
        for seed, name in enumerate("ab"):
            rig = await owner(shared, clock, name, seed, ShardSettings())
            await Publisher(rig, acked).publish_many(3)
        root = PATHS.checkpoint(Position(1, 50))
        await shared.put(root, [b"whatever it holds"])
        c = Rig(shared, clock, "c", 3)
        with pytest.raises(Corrupt, match=root):
            await take_shard(c.store, PATHS, c.me, clock, c.rng)
    in_virtual_time(main)


def test_openings_are_read_in_batches() -> None:
    """After thousands of restarts without a checkpoint, the number of concurrent requests is bounded as for entries."""
    async def main(clock: ManualClock) -> None:
        shared = MemoryStore()
        now = most = 0

        class Crowded(Wrapper):
            async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
                nonlocal now, most
                now += 1
                most = max(most, now)
                await asyncio.sleep(0.001)
                try:
                    return await super().get(key, start, end)
                finally:
                    now -= 1

        epochs = 3 * BATCH
        store = Crowded(shared)
        for epoch in range(1, epochs):
            at = Position(epoch, 0)
            opening = Opening("a", (Position(epoch - 1, 7),), 1)
            await shared.put(PATHS.log(at), [encode_opening(opening, at, bytes(16))])
        found = await known_ends(store, PATHS, range(1, epochs + 1), StoreRetry(store, clock, random.Random(1)))
        assert found == dict.fromkeys(range(epochs - 1), 7)
        assert most == BATCH
    in_virtual_time(main)
