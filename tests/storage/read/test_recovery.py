"""The state that a new owner, and a reader without a broker, read from a store. The store is undamaged, damaged,
truncated, or changes during the read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from broker.cluster.ownership import Earlier, Watched, seal_at, take_shard
from broker.storage.checkpoint.settings import CheckpointSettings
from broker.storage.format.errors import Corrupt, CutOff, VersionUnknown
from broker.storage.format.header import Position
from broker.storage.format.records.body import RecordBody
from broker.storage.format.records.consumer_create import ConsumerCreate
from broker.storage.format.records.consumer_state import ConsumerDelta
from broker.storage.format.records.kinds import RecordKind
from broker.storage.format.records.table import BODIES
from broker.storage.log.settings import LogSettings
from broker.storage.objectstore.base import ObjectInfo
from broker.storage.objectstore.memory import MemoryStore
from broker.storage.put import Fenced, StoreRetry
from broker.storage.read.recovery import add_opening, recover, recover_ended
from broker.storage.read.snapshot import read_snapshot, replay, replay_from
from broker.storage.read.steps import run, run_blocking
from broker.storage.shard import ShardSettings
from broker.storage.state.applied import ShardState
from tests.manual_clock import ManualClock
from tests.plain_records import add_record
from tests.storage.rig import MS, PATHS, Counting, Publisher, Rig, Stream, dump, in_virtual_time, read_all

NEVER = ShardSettings(checkpoint=CheckpointSettings(segments=1 << 30, replayed_segments=1 << 30,
                                                    replayed_epochs=1 << 30))


async def filled(clock: ManualClock, shared: MemoryStore, count: int = 10, settings: ShardSettings = NEVER) -> Rig:
    rig = Rig(shared, clock, "a", 1, settings=settings)
    await rig.open()
    await Publisher(rig, {}).publish_many(count)
    return rig


def test_an_empty_store_is_an_empty_shard() -> None:
    """The state without a claim and a log is empty, at the beginning."""
    async def main(clock: ManualClock) -> None:
        snapshot = await read_snapshot(MemoryStore(), 0)
        assert snapshot.state.position == Position(0, 0)
        assert snapshot.state.streams == {}
    in_virtual_time(main)


def test_a_replay_arrives_at_the_applied_state() -> None:
    """The owner's applied state, a fresh reader's and the blocking driver's are the same."""
    async def main(clock: ManualClock) -> None:
        shared = MemoryStore()
        rig = await filled(clock, shared)
        stream = Stream(rig.log, 9, "t")
        stream.create()
        stream.publish(30)
        stream.record(RecordKind.CONSUMER_CREATE, {"name": "c", "config": {}, "created_ns": 1, "x": {"y": 1}})
        await rig.log.persisted()
        stream.remove(4, 7)
        await rig.log.persisted()
        want = dump(rig.log.state)
        assert dump((await read_snapshot(shared, 0)).state) == want

        def get(key: str, start: int, end: int | None) -> bytes | None:
            return shared.objects[key][start:end] if key in shared.objects else None

        def list_(prefix: str, after: str) -> list[ObjectInfo]:
            return [ObjectInfo(key, 0) for key in sorted(shared.objects) if key.startswith(prefix) and key > after]

        assert dump(run_blocking(replay(PATHS), get, list_).state) == want
        await rig.shard.checkpointer.cut()  # type: ignore[union-attr]
        assert dump((await read_snapshot(shared, 0)).state) == want
    in_virtual_time(main)


def test_heads_are_read_32_at_a_time() -> None:
    """300 segments on a store that takes 20 ms for a call: some twenty round trips, not three hundred; one GET for
    each segment."""
    async def main(clock: ManualClock) -> None:
        shared = MemoryStore()
        await filled(clock, shared, 300)
        b = Rig(Counting(shared), clock, "b", 2)
        taken = await b.take_shard()
        counting = b.shared
        assert isinstance(counting, Counting)
        counting.calls.clear()
        b.store.faults = b.store.faults.__class__(latency_ns=20 * MS)
        began_ns = clock.monotonic_ns()
        snapshot = await recover(b.store, PATHS, taken.epoch)
        assert snapshot.segments == 302
        assert clock.monotonic_ns() - began_ns < 24 * 20 * MS
        assert sum(operation == "get" for operation, _ in counting.calls) < 302 + 40
    in_virtual_time(main)


def test_a_head_of_more_than_64_kib_is_read_whole() -> None:
    """A segment has a thousand streams: the first GET shows how many more bytes are needed."""
    async def main(clock: ManualClock) -> None:
        shared = MemoryStore()
        rig = await filled(clock, shared, 1)
        streams = [Stream(rig.log, 100 + i, f"s{i}") for i in range(1000)]
        for stream in streams:
            stream.create()
            stream.publish(1, urgent=False)
        await rig.log.persisted()
        snapshot = await read_snapshot(shared, 0)
        assert len(snapshot.state.streams) == 1001
        assert snapshot.head_bytes > 64 * 1024
        assert dump(snapshot.state) == dump(rig.log.state)
    in_virtual_time(main)


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "cut short": lambda data: data[:-1],
    "cut to nothing": lambda data: b"",
    "a bit flipped in the header": lambda data: data[:30] + bytes([data[30] ^ 1]) + data[31:],
    "a bit flipped in the directory": lambda data: data[:110] + bytes([data[110] ^ 1]) + data[111:],
    "a bit flipped in a block's core": lambda data: data[:170] + bytes([data[170] ^ 1]) + data[171:],
    "another object's bytes": lambda data: b"JETBLOCK" + bytes(200),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_corrupt_segment_is_never_the_end(damage: str) -> None:
    """The replay stops and names it: the messages after it were acknowledged."""
    async def main(clock: ManualClock) -> None:
        shared = MemoryStore()
        await filled(clock, shared)
        key = PATHS.log(Position(1, 5))
        shared.objects[key] = DAMAGE[damage](shared.objects[key])
        with pytest.raises(Corrupt) as error:
            await read_snapshot(shared, 0)
        assert "00000001-000000000005" in str(error.value)
    in_virtual_time(main)


def test_a_segment_moved_to_another_key_is_noticed() -> None:
    """A segment's header has its position."""
    async def main(clock: ManualClock) -> None:
        shared = MemoryStore()
        await filled(clock, shared)
        shared.objects[PATHS.log(Position(1, 5))] = shared.objects[PATHS.log(Position(1, 6))]
        with pytest.raises(Corrupt, match="000000000005"):
            await read_snapshot(shared, 0)
    in_virtual_time(main)


def test_a_segment_gone_from_the_middle_of_an_ended_epoch_stops() -> None:
    """The next opening has the end of the epoch, so a hole before that is a loss and not the end."""
    async def main(clock: ManualClock) -> None:
        shared = MemoryStore()
        await filled(clock, shared)
        b = Rig(shared, clock, "b", 2)
        await b.open()
        await shared.delete(PATHS.log(Position(1, 5)))
        with pytest.raises(Corrupt, match="00000001-000000000005 is gone"):
            await read_snapshot(shared, 0)
    in_virtual_time(main)


def test_the_logs_beginning_gone_stops() -> None:
    """The log is read from its first opening if there is no checkpoint; a later one does not count as its beginning."""
    async def main(clock: ManualClock) -> None:
        shared = MemoryStore()
        await filled(clock, shared)
        await Rig(shared, clock, "b", 2).open()
        for key in [key for key in shared.objects if "/log/00000001-" in key]:
            await shared.delete(key)
        with pytest.raises(Corrupt, match="neither a checkpoint"):
            await read_snapshot(shared, 0)
    in_virtual_time(main)


def test_puts_beyond_an_epochs_end_never_existed() -> None:
    """Puts in flight beyond the one that the seal refused are orphans for every reader."""
    async def main(clock: ManualClock) -> None:
        shared = MemoryStore()
        a = await filled(clock, shared, 3, ShardSettings(log=LogSettings(segment_bytes=10)))
        stream = Stream(a.log, 7, last_seq=3, msgs=3)
        stall = a.store.stall_put(a.store.puts)
        for i in range(3):
            stream.publish(1, b"stray number %d" % i)
            await asyncio.sleep(0.1)
        assert a.log_keys()[-1] > Position(1, 6)
        b = Rig(shared, clock, "b", 2)
        await b.open()
        assert len(await read_all(shared)) == 3
        stall.release()
        with pytest.raises(Fenced):
            await a.log.persisted()
        assert len(await read_all(shared)) == 3
        assert (await read_snapshot(shared, 0)).state.position == Position(2, 0)
    in_virtual_time(main)


def test_a_record_that_must_be_understood_takes_its_stream_offline() -> None:
    """A stream with a newer broker's record is offline, and the others are served. No sweep deletes the record."""
    async def main(clock: ManualClock) -> None:
        shared = MemoryStore()
        rig = await filled(clock, shared, 3)
        add_record(rig.log.block(Stream(rig.log, 7, last_seq=3, msgs=3)), 200, {"from": "the future"})
        other = Stream(rig.log, 9, "t")
        other.create()
        other.publish(2)
        await rig.log.persisted()
        b = Rig(shared, clock, "b", 2, settings=ShardSettings(checkpoint=CheckpointSettings(segments=1)))
        shard = await b.open()
        assert "record kind 200" in str(shard.state.streams[7].offline)
        assert shard.state.streams[9].last_seq == 2
        live = Stream(b.log, 9, "t", last_seq=2, msgs=2)
        for _ in range(12):
            live.publish()
            await b.log.persisted()
            await shard.checkpointer.cut()
        assert any("/checkpoint/" in key for key in shared.objects)
        assert not shard.state.released
        live = Stream(b.log, 7)
        live.record(RecordKind.STREAM_DELETE, {})
        await b.log.persisted()
        assert await shard.checkpointer.cut()
    in_virtual_time(main)


@dataclass
class FromTheFuture(RecordBody):
    """A record that only a newer broker knows."""

    KIND: ClassVar[Any] = 200

    def encode(self) -> object:
        return {}

    @classmethod
    def decode(cls, body: Any) -> FromTheFuture:
        return cls()


@pytest.mark.parametrize("creation", [False, True])
def test_checkpoints_are_cut_while_a_stream_is_offline_and_lose_nothing_of_it(
        creation: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A newer broker writes records that the next two owners do not know; they cut checkpoints, also of each other's. A
    newer broker that begins with the last of these arrives at the same state as one that reads the whole log.

    ``creation``: the block that creates the stream has such a record already.
    """
    async def main(clock: ManualClock) -> None:
        shared = MemoryStore()
        rig = await filled(clock, shared, 0)
        other, stream = Stream(rig.log, 9, "t"), Stream(rig.log, 7)
        other.create()
        stream.create()
        if creation:
            stream.record(200, {})
        stream.publish(3)
        await rig.log.persisted()
        stream.record(200, {})
        stream.publish(2)
        await rig.log.persisted()
        for _ in range(40):
            stream.publish(2)
            other.publish()
            await rig.log.persisted()
        stream.remove(1, 4)
        created = ConsumerCreate("C", {"durable_name": "C"}, 5, ConsumerDelta("C"))
        stream.record(RecordKind.CONSUMER_CREATE, created.encode())
        await rig.log.persisted()
        seen: list[object] = []
        for number, name in ((2, "b"), (3, "c")):
            old = Rig(shared, clock, name, number, settings=ShardSettings(checkpoint=CheckpointSettings(segments=1000)))
            shard = await old.open()
            seen.append(list(shard.state.streams[7].held))
            live = Stream(old.log, 9, "t", last_seq=shard.state.streams[9].last_seq, msgs=shard.state.streams[9].msgs)
            for _ in range(4):
                live.publish()
                await old.log.persisted()
                assert await shard.checkpointer.cut()
            assert shard.state.streams[7].offline
            assert (await read_snapshot(shared, 0)).segments <= 1, "only segments after the checkpoint are replayed"
        assert seen[0] == seen[1]
        monkeypatch.setitem(BODIES, 200, FromTheFuture)
        whole = await run(replay_from(PATHS, None, shard.state.position), shared)
        newest = await read_snapshot(shared, 0)
        assert newest.root is not None
        assert newest.state.streams[7].offline is None
        assert newest.state.streams[7].last_seq == 85
        assert dump(newest.state) == dump(whole.state)
        new = Rig(shared, clock, "d", 4, settings=ShardSettings(checkpoint=CheckpointSettings(segments=1000)))
        shard = await new.open()
        live = Stream(new.log, 7, last_seq=85, msgs=81)
        live.first_seq = 5
        for _ in range(5):
            live.publish()
            await new.log.persisted()
            assert await shard.checkpointer.cut()
        assert dump((await read_snapshot(shared, 0)).state) == dump(shard.state)
    in_virtual_time(main)


def test_a_newer_reader_finds_a_stream_that_an_older_owner_could_not_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner did not understand the block that creates the stream. A newer reader that wants only this stream
    finds it by the checkpoint's held segments. A reader that wants another stream does not get it. An older reader
    that wants it gets the reason why it is offline."""
    async def main(clock: ManualClock) -> None:
        shared = MemoryStore()
        rig = await filled(clock, shared, 0)
        other, stream = Stream(rig.log, 9, "t"), Stream(rig.log, 7)
        other.create()
        stream.create()
        stream.record(200, {})
        stream.publish(3)
        await rig.log.persisted()
        old = Rig(shared, clock, "b", 2, settings=ShardSettings(checkpoint=CheckpointSettings(segments=1000)))
        shard = await old.open()
        Stream(old.log, 9, "t").publish()
        await old.log.persisted()
        assert await shard.checkpointer.cut()

        async def found(wanted: str) -> list[tuple[str, int, bool]]:
            state = (await run(replay(PATHS, lambda account, name: name == wanted), shared)).state
            return [(one.name, len(one.blocks), one.offline is None) for one in state.streams.values()]

        assert await found("s") == [("unknown-0000000000000007", 0, False)]
        monkeypatch.setitem(BODIES, 200, FromTheFuture)
        assert await found("s") == [("s", 1, True)]
        assert await found("t") == [("t", 1, True)]
    in_virtual_time(main)


def test_a_segment_of_an_offline_stream_is_needed_until_the_stream_is_deleted() -> None:
    """The checkpoint names a segment that is gone. So it cannot be used, unless the log after it deletes the stream."""
    async def main(clock: ManualClock) -> None:
        shared = MemoryStore()
        rig = await filled(clock, shared, 3)
        add_record(rig.log.block(Stream(rig.log, 7, last_seq=3, msgs=3)), 200, {})
        await rig.log.persisted()
        b = Rig(shared, clock, "b", 2, settings=ShardSettings(checkpoint=CheckpointSettings(segments=1000)))
        shard = await b.open()
        [held] = shard.state.streams[7].held
        assert await shard.checkpointer.cut()
        [root] = (await read_snapshot(shared, 0)).roots
        del shared.objects[PATHS.log(held)]
        with pytest.raises(CutOff, match=str(held)):
            await run(replay_from(PATHS, root, shard.state.position), shared)
        Stream(b.log, 7).record(RecordKind.STREAM_DELETE, {})
        await b.log.persisted()
        assert (await run(replay_from(PATHS, root, shard.state.position), shared)).state.streams == {}
    in_virtual_time(main)


@pytest.mark.parametrize("damage", ["newer record", "unreadable state"])
def test_deleting_an_offline_stream_takes_nothing_from_the_others(damage: str) -> None:
    """The stream's blocks share segments with those of another stream. When it is deleted, these segments have one
    block less, and are needed nevertheless."""
    async def main(clock: ManualClock) -> None:
        shared = MemoryStore()
        rig = await filled(clock, shared, 0)
        one, other = Stream(rig.log, 7), Stream(rig.log, 9, "t")
        one.create()
        other.create()
        for _ in range(3):
            one.publish(2)
            other.publish(3)
            await rig.log.persisted()
        if damage == "newer record":
            one.record(200, {"from": "the future"})
        else:
            one.record(RecordKind.SCHEDULE, {"seqs": [1], "due_at_ns": "not a column"})
        await rig.log.persisted()
        b = Rig(shared, clock, "b", 2, settings=NEVER)
        shard = await b.open()
        assert shard.state.streams[7].offline
        Stream(b.log, 7).record(RecordKind.STREAM_DELETE, {})
        await b.log.persisted()
        assert list(shard.state.streams) == [9]
        while shard.state.counts.update(1000):
            pass
        for _ in range(10):
            await asyncio.sleep(0)
        replayed = (await read_snapshot(shared, 0)).state
        named = {key: count for key, count in shard.state.counts.segments.items() if count}
        assert named == {key: count for key, count in replayed.counts.segments.items() if count}
        assert list(named.values()) == [1, 1, 1]
        assert not shard.state.counts.unreferenced & named.keys()
    in_virtual_time(main)


def test_a_newer_format_is_left_alone() -> None:
    """An opening that requires a newer reader ends the reading with an error that gives this reason."""
    async def main(clock: ManualClock) -> None:
        shared = MemoryStore()
        rig = Rig(shared, clock, "a", 1)
        import broker.cluster.ownership as ownership
        real = ownership.Opening  # type: ignore[attr-defined]
        try:
            ownership.Opening = lambda *args: real(*args[:3], 99)  # type: ignore[assignment, attr-defined, call-arg, misc]
            await rig.take_shard()
        finally:
            ownership.Opening = real  # type: ignore[attr-defined, misc]
        with pytest.raises(VersionUnknown, match="99"):
            await read_snapshot(shared, 0)
    in_virtual_time(main)


async def with_roots(clock: ManualClock, shared: MemoryStore, rounds: int) -> tuple[Rig, list[str]]:
    """Make a shard with ``count`` checkpoints, and segments after the last."""
    rig = await filled(clock, shared, 5)
    client = Publisher(rig, {})
    for _ in range(rounds):
        await client.publish_many(5)
        assert rig.shard is not None
        assert await rig.shard.checkpointer.cut()
    await client.publish_many(5)
    return rig, sorted(key for key in shared.objects if "/checkpoint/" in key)


@pytest.mark.parametrize("rounds", [1, 2, 4])
@pytest.mark.parametrize("what", ["root", "page", "page gone"])
def test_a_damaged_checkpoint_falls_back_to_the_one_before(what: str, rounds: int) -> None:
    """The replay uses the root before, or the log's beginning. The state is the same, and the damage is reported."""
    async def main(clock: ManualClock) -> None:
        shared = MemoryStore()
        rig, roots = await with_roots(clock, shared, rounds)
        want = dump(rig.log.state)
        key = roots[-1] if what == "root" else sorted(key for key in shared.objects if "/pages/" in key)[-1]
        data = shared.objects[key]
        if what == "page gone":
            await shared.delete(key)
        else:
            shared.objects[key] = data[:-3] + bytes(3)
        snapshot = await read_snapshot(shared, 0)
        assert dump(snapshot.state) == want
        assert len(snapshot.problems) == 1
        assert snapshot.root is None or PATHS.checkpoint(snapshot.root.position) == roots[-2]
        b = Rig(shared, clock, "b", 2)
        shard = await b.open()
        assert shard.state.streams[7].last_seq == want["streams"][7]["outcome"].last_seq
    in_virtual_time(main)


def test_a_checkpoint_that_appears_while_reading() -> None:
    """The segment that the reader needs next was deleted: it starts again from the newer checkpoint."""
    async def main(clock: ManualClock) -> None:
        shared = MemoryStore()
        rig = await filled(clock, shared, 20, ShardSettings(
            checkpoint=CheckpointSettings(segments=2, roots_kept=1), sweep_grace_ns=0))
        client = Publisher(rig, {})
        steps = replay(PATHS)
        answer: Any = None
        gets = 0
        while True:
            try:
                request = steps.send(answer)
            except StopIteration as done:
                state: ShardState = done.value.state
                break
            if hasattr(request, "prefix"):
                answer = await shared.list(request.prefix, request.after)
                continue
            gets += 1
            if gets == 3:  # the root and its pages are read: now the owner continues, and deletes old segments
                client.stream.remove(1, client.stream.last_seq)
                await client.publish_many(15)
                await asyncio.sleep(5)
                await client.publish_many(2)
            answer = [shared.objects[k][start:end] if k in shared.objects else None for k, start, end in request.ranges]
        assert state.streams[7].last_seq == client.stream.last_seq
    in_virtual_time(main)


def test_recovery_meets_a_later_owner() -> None:
    """Another broker took the shard between our opening and our replay: the replay raises Fenced."""
    async def main(clock: ManualClock) -> None:
        shared = MemoryStore()
        await filled(clock, shared)
        b, c = Rig(shared, clock, "b", 2), Rig(shared, clock, "c", 3)
        taken = await b.take_shard()
        await c.take_shard()
        with pytest.raises(Fenced):
            await recover(b.store, PATHS, taken.epoch)
    in_virtual_time(main)


@pytest.mark.parametrize("checkpoint", [False, True], ids=["no checkpoint", "a checkpoint"])
@pytest.mark.parametrize("ahead", ["not read ahead", "read ahead", "read ahead of the checkpoint"])
def test_a_taker_that_reads_before_it_opens_its_epoch(checkpoint: bool, ahead: str) -> None:
    """It arrives at the state that it would have replayed afterwards, whatever it has read before the seal. If no
    checkpoint was written since, it reads only the segments that were added."""
    async def main(clock: ManualClock) -> None:
        shared = MemoryStore()
        old = await filled(clock, shared, 20)
        assert old.shard is not None
        new = Rig(shared, clock, "b", 2)
        retry = StoreRetry(new.store, clock, new.rng)
        before = await run(replay(PATHS, thorough=False), new.store, retry) if "of" in ahead else None
        if checkpoint:
            await old.shard.checkpointer.cut()
        if ahead == "read ahead":
            before = await run(replay(PATHS, thorough=False), new.store, retry)
        stream = Stream(old.log, 9, "later")
        stream.create()
        stream.publish(30)
        await old.log.persisted()
        stream.remove(4, 7)
        end = await old.shard.close(checkpoint=False)
        await seal_at(old.store, PATHS, end, end.epoch, old.me, clock, old.rng)
        watched = Watched(end.epoch, end.number, silent=False)
        earlier: list[Earlier] = []
        counting = Counting(new.store)
        taken = await take_shard(counting, PATHS, new.me, clock, new.rng, watched, 15_000_000_000, ended=earlier.append)
        assert sorted(operation for operation, _ in counting.calls) == ["get", "get", "list", "list", "put", "put"]
        assert taken.ends == {end.epoch: end.number}
        assert not taken.serve_from_ns
        counting.calls.clear()
        snapshot = await recover_ended(counting, PATHS, earlier[0].roots, earlier[0].ends, retry, before)
        assert snapshot is not None
        extended = before is not None and snapshot.state is before.state
        assert extended is (before is not None and not (checkpoint and "of" in ahead))
        if extended:
            assert {key.rpartition("/")[0] for _, key in counting.calls} == {"v1/shards/0/log"}
            assert len(counting.calls) < 5
        snapshot = add_opening(snapshot, PATHS, taken.epoch, taken.opening)
        wanted = await recover(new.store, PATHS, taken.epoch)
        assert dump(snapshot.state) == dump(wanted.state)
        assert snapshot.state.opening == wanted.state.opening
        assert snapshot.roots == wanted.roots
    in_virtual_time(main)


def test_a_taker_that_cannot_use_the_newest_checkpoint_replays_as_ever() -> None:
    """The root is damaged: an older one is used."""
    async def main(clock: ManualClock) -> None:
        shared = MemoryStore()
        old = await filled(clock, shared, 5)
        assert old.shard is not None
        await old.shard.checkpointer.cut()
        root = max(key for key in shared.objects if "/checkpoint/" in key)
        shared.objects[root] = shared.objects[root][:70] + b"damaged" + shared.objects[root][77:]
        end = await old.shard.close(checkpoint=False)
        await seal_at(old.store, PATHS, end, end.epoch, old.me, clock, old.rng)
        new = Rig(shared, clock, "b", 2)
        watched = Watched(end.epoch, end.number, silent=False)
        earlier: list[Earlier] = []
        taken = await take_shard(new.store, PATHS, new.me, clock, new.rng, watched, ended=earlier.append)
        retry = StoreRetry(new.store, clock, new.rng)
        assert await recover_ended(new.store, PATHS, earlier[0].roots, earlier[0].ends, retry) is None
        assert (await recover(new.store, PATHS, taken.epoch)).problems
    in_virtual_time(main)
