"""Rounds: the content of a root and its pages compared with the log, when rounds start, and their cost."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

import broker.storage.checkpoint.checkpointer as checkpointer
import broker.storage.checkpoint.directory_pages as directory_pages
import broker.storage.state.expiries as expiries
import broker.storage.state.packed as packed
import broker.storage.state.pages as pages
import broker.storage.state.table as table
from broker.cluster.identity import Identity
from broker.cluster.ownership import seal_at
from broker.inspect.source import Source
from broker.inspect.survey import read_survey
from broker.inspect.verify import verify
from broker.storage.checkpoint.settings import CheckpointSettings
from broker.storage.checkpoint.subject_pages import SubjectSettings
from broker.storage.format.checkpoint import Root
from broker.storage.format.codec import unpack_value
from broker.storage.format.header import ObjectHeader, Position
from broker.storage.format.page import Page, PageBody, decode_page, encode_pages
from broker.storage.format.records.kinds import RecordKind
from broker.storage.format.records.release import Release
from broker.storage.log.settings import LogSettings
from broker.storage.objectstore.memory import MemoryStore
from broker.storage.paths import parse
from broker.storage.read.snapshot import read_snapshot
from broker.storage.shard import ShardSettings
from tests.manual_clock import ManualClock
from tests.storage.objectstore.faulty import Faults
from tests.storage.rig import MS, PATHS, SECOND, Counting, Publisher, Rig, Stream, dump, in_virtual_time

NEVER = ShardSettings(checkpoint=CheckpointSettings(segments=1 << 30, replayed_segments=1 << 30,
                                                    replayed_epochs=1 << 30))


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "PAGE_ENTRIES", 4)
    monkeypatch.setattr(pages, "INLINE_BLOCKS_MAX", 3)
    monkeypatch.setattr(pages, "LISTED_BLOCKS_MAX", 1)
    monkeypatch.setattr(packed, "_recent", packed._Recent(4))
    monkeypatch.setattr(pages, "INLINE_CONSUMER_MAX", 20)
    monkeypatch.setattr(pages, "INLINE_EXPIRIES_MAX", 3)
    monkeypatch.setattr(expiries, "PAGE_ROWS", 4)
    monkeypatch.setattr(directory_pages, "DIRECTORY_STREAMS", 3)
    monkeypatch.setattr(directory_pages, "_PAGE_OBJECTS_MAX", 5)
    monkeypatch.setattr(directory_pages, "_TURN_WEIGHT", 1)
    monkeypatch.setattr(checkpointer, "_STREAMS_AT_ONCE", 1)
    monkeypatch.setattr(directory_pages, "_STREAMS_AT_ONCE", 1)
    monkeypatch.setattr(pages, "_CONSUMERS_AT_ONCE", 1)


def roots_in(shared: MemoryStore) -> list[Position]:
    return [parse(key).position for key in sorted(shared.objects) if "/checkpoint/" in key]  # type: ignore[union-attr]


async def ahead(rig: Rig) -> Root:
    """Return the root of a round during which a release record was persisted, while its page of subjects was put."""
    rig.settings = ShardSettings(checkpoint=CheckpointSettings(
        segments=1 << 30, interval_ns=None, subjects=SubjectSettings(blocks_min=2)))
    shard = await rig.open()
    stream = Stream(rig.log)
    stream.record(RecordKind.STREAM_CREATE, {"account": "$G", "name": stream.name, "created_ns": 1,
                                             "config": {"max_msgs_per_subject": 9}})
    for _ in range(4):
        stream.publish()
        await rig.log.persisted()
    stall = rig.store.stall_put(rig.store.puts)
    cutting = asyncio.create_task(shard.checkpointer.cut())
    await stall.reached.wait()
    rig.log.block(rig.log.shard).add(Release([Position(1, 0)], [], [], []))
    rig.log.urgent()
    await rig.log.persisted()
    assert rig.log.state.released
    stall.release()
    assert await cutting
    assert isinstance(rig.shared, MemoryStore)
    [at] = roots_in(rig.shared)
    return Root.decode(rig.shared.objects[PATHS.checkpoint(at)], at)


def test_a_root_includes_nothing_after_its_position() -> None:
    """Shows that the shard's own state in it is that of its position, although the log continues meanwhile."""
    async def main(clock: ManualClock) -> None:
        rig = Rig(MemoryStore(), clock)
        root = await ahead(rig)
        assert all(Position(epoch, last) <= root.position for epoch, _, last in root.extra["segments"])
        assert all(Position(*at) <= root.position for at, _ in root.extra["letgo"])
        assert root.extra["letgo"], "the round did put a page while the record was persisted"
        assert dump((await read_snapshot(rig.shared, 0)).state) == dump(rig.log.state)
    in_virtual_time(main)


def test_a_root_that_is_ahead_of_its_position_is_read_correctly() -> None:
    """Earlier releases wrote such roots: their state was copied later than their position. A replay applies the
    segments in between again, and a release record counts once."""
    async def main(clock: ManualClock) -> None:
        rig = Rig(MemoryStore(), clock)
        root = await ahead(rig)
        assert isinstance(rig.shared, MemoryStore)
        before = Position(root.position.epoch, root.position.number - 1)
        rig.shared.objects[PATHS.checkpoint(before)] = root._replace(
            position=before, replay_from=before).encode(rig.me.nonce)
        del rig.shared.objects[PATHS.checkpoint(root.position)]
        rig.shared._keys[:] = sorted(rig.shared.objects)
        found = await read_snapshot(rig.shared, 0)
        assert found.root is not None
        assert found.root.position == before
        assert dump(found.state) == dump(rig.log.state)
        source = Source(rig.shared)
        assert [problem for problem in (await verify(source, await read_survey(source))).problems
                if "differs" in problem.what] == []
    in_virtual_time(main)


class ChangingStreams:
    """Streams with consumers, changed randomly by every kind of record."""

    def __init__(self, rig: Rig, rng: random.Random) -> None:
        self.rig, self.rng = rig, rng
        self.streams: dict[int, Stream] = {}
        self.live: dict[int, list[int]] = {}
        self.number = 10
        self.cseq = 0

    def step(self) -> None:
        rng = self.rng
        if len(self.streams) < 3 or (len(self.streams) < 12 and rng.random() < 0.1):
            self.number += 1
            stream = Stream(self.rig.log, self.number, f"s{self.number % 13}-{self.number}")
            self.streams[self.number], self.live[self.number] = stream, []
            stream.create()
            for name in "cde":
                stream.record(RecordKind.CONSUMER_CREATE, {"name": name, "config": {}, "created_ns": 1})
            return
        stream = rng.choice(list(self.streams.values()))
        live = self.live[stream.stream_id]
        draw = rng.random()
        if draw < 0.5:
            count = rng.randint(1, 5)
            stream.publish(count, b"x" * 5)
            live += range(stream.last_seq - count + 1, stream.last_seq + 1)
            if rng.random() < 0.5:
                stream.expires_at_ns |= {seq: rng.randint(1, 9) for seq in live[-rng.randint(1, count):]}
        elif draw < 0.7 and live:
            seq = live.pop(rng.randrange(len(live)))
            self.rig.log.block(stream).remove(seq, seq, 1, 43)
            stream.expires_at_ns.pop(seq, None)
            stream.msgs -= 1
            stream.first_seq = live[0] if live else stream.last_seq + 1
            self.rig.log.urgent()
        elif draw < 0.92:
            self.cseq += 1
            seqs = sorted(rng.sample(range(1, 60), rng.randint(1, 9)))
            stream.record(RecordKind.CONSUMER_STATE, {
                "n": rng.choice("cde"), "d": [self.cseq, seqs[-1], 1], "add": [seqs, seqs, seqs],
                "drop": rng.sample(range(1, 60), 5), "re": {rng.choice(seqs): 2}, "x": {"n": self.cseq}})
        elif draw < 0.95:
            stream.record(RecordKind.STREAM_UPDATE, {"config": {"n": self.cseq}})
        elif draw < 0.98:
            name = rng.choice("cde")
            stream.record(RecordKind.CONSUMER_DELETE, {"name": name})
            stream.record(RecordKind.CONSUMER_CREATE, {"name": name, "config": {"again": 1}, "created_ns": 2})
        else:
            del self.streams[stream.stream_id]
            stream.record(RecordKind.STREAM_DELETE, {})


@pytest.mark.usefixtures("small_pages")
@pytest.mark.parametrize("seed", range(12))
def test_checkpoint_and_log_agree(seed: int) -> None:
    """Streams are created, changed and deleted while rounds run over a slow store. A reader arrives at the owner's
    applied state from every root, and from the log without any root."""
    async def main(clock: ManualClock) -> None:
        shared = MemoryStore()
        rng = random.Random(seed)
        for life in range(3):
            rig = Rig(shared, clock, "a", life, faults=Faults(latency_ns=5 * MS), settings=NEVER)
            shard = await rig.open()
            streams = ChangingStreams(rig, rng)
            streams.number = 100 * life + 10
            for _ in range(6):
                cutting = asyncio.ensure_future(shard.checkpointer.cut())
                for _ in range(rng.randint(5, 25)):
                    streams.step()
                    await asyncio.sleep(rng.choice((0.0, 0.001, 0.004)))
                await cutting
            await rig.log.persisted()
            want = dump(rig.log.state)
            kept = dict(shared.objects)
            for drop in range(5):
                snapshot = await read_snapshot(shared, 0)
                assert dump(snapshot.state) == want, f"without the newest {drop} roots"
                if not snapshot.roots:
                    break
                await shared.delete(PATHS.checkpoint(snapshot.roots[-1]))
            for key, data in kept.items():
                if key not in shared.objects:
                    await shared.put(key, [data])
            await shard.abandon()
    in_virtual_time(main)


def inline(body: bytes, stream_id: int) -> list[Any]:
    """Return the block entries that are inline in a directory page with a summary of them."""
    entries: list[Any] = unpack_value(PageBody.unpack(body, stream_id).raw())[1]
    return entries


def without_summaries(shared: MemoryStore) -> None:
    """Rewrite the newest root and its directory in the format of earlier versions."""
    at = roots_in(shared)[-1]
    key = PATHS.checkpoint(at)
    root, nonce = Root.decode(shared.objects[key], at), ObjectHeader.unpack(shared.objects[key], key).nonce
    objects: dict[Position, list[Page]] = {}
    for ref in root.pages:
        data = shared.objects[PATHS.pages(ref.position)]
        page = decode_page(data[ref.offset:ref.offset + ref.size], ref)
        for entry in page.body:
            entry[14] = [[room, body if body is None or not summary else inline(body, entry[0]), place]
                         for room, body, place, *summary in entry[14]]
        objects.setdefault(ref.position, []).append(page._replace(summaries=False))
    refs = []
    for position, some in objects.items():
        buffers, places = encode_pages(position, nonce, some)
        shared.objects[PATHS.pages(position)] = b"".join(buffers)
        refs += places
    shared.objects[key] = root._replace(pages=tuple(refs)).encode(nonce)


@pytest.mark.usefixtures("small_pages")
def test_a_checkpoint_of_an_earlier_version() -> None:
    """A checkpoint without summaries is read correctly, and the next round writes them in any case."""
    def summaries(shared: MemoryStore) -> set[bool]:
        at = roots_in(shared)[-1]
        root = Root.decode(shared.objects[PATHS.checkpoint(at)], at)
        found = [decode_page(shared.objects[PATHS.pages(ref.position)][ref.offset:ref.offset + ref.size], ref)
                 for ref in root.pages]
        return {page.summaries for page in found}

    async def main(clock: ManualClock) -> None:
        shared = MemoryStore()
        rig = Rig(shared, clock, settings=NEVER)
        await rig.open()
        for number, blocks in ((7, 11), (8, 3), (9, 1)):
            stream = Stream(rig.log, number, f"s{number}")
            stream.create()
            for _ in range(blocks):
                stream.publish(3)
                await rig.log.persisted()
            stream.remove(2, 2)
        await rig.log.persisted()
        want = dump(rig.log.state)
        await rig.shard.close()  # type: ignore[union-attr]
        assert summaries(shared) == {True}
        without_summaries(shared)
        assert summaries(shared) == {False}
        assert dump((await read_snapshot(shared, 0)).state)["streams"] == want["streams"]
        shard = await Rig(shared, clock, "b", settings=NEVER).open()
        now = dump(shard.state)
        assert (now["streams"], now["runs"]) == (want["streams"], want["runs"])
        assert await shard.checkpointer.cut()
        assert summaries(shared) == {True}
        assert dump((await read_snapshot(shared, 0)).state) == dump(shard.state)
        await shard.abandon()
    in_virtual_time(main)


@pytest.mark.usefixtures("small_pages")
def test_a_round_writes_what_changed() -> None:
    """Shows that for a stream with many blocks, only its entry and the last page of its table are rewritten."""
    async def main(clock: ManualClock) -> None:
        shared = MemoryStore()
        rig = Rig(shared, clock, settings=NEVER)
        shard = await rig.open()
        big, small = Stream(rig.log, 7, "big"), [Stream(rig.log, 20 + i, f"small{i}") for i in range(8)]
        for stream in (big, *small):
            stream.create()
        for _ in range(42):
            big.publish()
            await rig.log.persisted()
        await shard.checkpointer.cut()
        first = max((k for k in shared.objects if "/pages/" in k), key=lambda k: len(shared.objects[k]))
        big.publish()
        await rig.log.persisted()
        before = set(shared.objects)
        await shard.checkpointer.cut()
        new = [key for key in shared.objects if key not in before and "/pages/" in key]
        assert len(new) == 2
        assert sum(len(shared.objects[key]) for key in new) < len(shared.objects[first])
        root = Root.decode(shared.objects[PATHS.checkpoint(roots_in(shared)[-1])], roots_in(shared)[-1])
        assert len({ref.position for ref in root.pages}) == 2, "two of three directory pages stay where they are"
        assert dump((await read_snapshot(shared, 0)).state) == dump(rig.log.state)
    in_virtual_time(main)


@pytest.mark.usefixtures("small_pages")
def test_no_old_object_is_kept_for_one_page() -> None:
    """Shows that the pages in the oldest object are rewritten when a root would name too many objects."""
    async def main(clock: ManualClock) -> None:
        shared = MemoryStore()
        rig = Rig(shared, clock, settings=NEVER)
        shard = await rig.open()
        streams = [Stream(rig.log, 20 + i, f"s{i}") for i in range(30)]
        for stream in streams:
            stream.create()
            await rig.log.persisted()
            await shard.checkpointer.cut()
        assert len(shard.checkpointer.roots[-1].objects) <= 7
        for _ in range(4):
            streams[0].publish()
            await rig.log.persisted()
            await shard.checkpointer.cut()
        assert len(shard.checkpointer.roots[-1].objects) <= 7
        assert dump((await read_snapshot(shared, 0)).state) == dump(rig.log.state)
    in_virtual_time(main)


def test_rounds_start_after_a_number_of_segments() -> None:
    """Shows that segments with a block of a stream count; an idle owner's empty ones have their own bound."""
    async def main(clock: ManualClock) -> None:
        shared = MemoryStore()
        settings = ShardSettings(log=LogSettings(lease_ns=3 * SECOND),
                                 checkpoint=CheckpointSettings(segments=10, empty_segments=40, interval_ns=None))
        rig = Rig(shared, clock, settings=settings)
        await rig.open()
        await asyncio.sleep(36)
        assert len(rig.log_keys()) > 35
        assert roots_in(shared) == []
        client = Publisher(rig, {})
        await client.publish_many(8)
        await asyncio.sleep(0.5)
        assert len(roots_in(shared)) == 0
        await client.publish_many(12)
        await asyncio.sleep(0.5)
        assert len(roots_in(shared)) == 2
        await asyncio.sleep(39)
        assert len(roots_in(shared)) == 2
        await asyncio.sleep(5)
        assert len(roots_in(shared)) == 3
    in_virtual_time(main)


@pytest.mark.parametrize("lease_ns", [None, 15 * SECOND])
def test_a_round_starts_in_time_after_any_write_and_then_none(lease_ns: int | None) -> None:
    """A minute after an owner began, and after the first commit since the last round. A round's own records start no
    other: without a lease an idle broker writes nothing, with one it runs a round after many empty segments."""
    async def main(clock: ManualClock) -> None:
        shared = MemoryStore()
        rig = Rig(shared, clock, settings=ShardSettings(log=LogSettings(lease_ns=lease_ns)))
        shard = await rig.open()
        await asyncio.sleep(59)
        assert shard.checkpointer.rounds == 0
        await asyncio.sleep(2)
        assert shard.checkpointer.rounds == 1
        await asyncio.sleep(200 if lease_ns is None else 20)
        assert shard.checkpointer.rounds == 1
        client = Publisher(rig, {})
        await client.publish_many(1)
        await asyncio.sleep(59)
        assert shard.checkpointer.rounds == 1
        await asyncio.sleep(2)
        assert shard.checkpointer.rounds == 2
        await asyncio.sleep(60)
        before = dict(shared.objects)
        await asyncio.sleep(6 * 3600)
        if lease_ns is None:
            assert shared.objects == before
        else:
            assert 6 * 3600 / 5 / 20 <= shard.checkpointer.rounds <= 6 * 3600 / 5 / 20 * 1.1 + 8
            assert len(rig.log_keys()) < 20 * 4 + 600 / 5 + 10, "a few rounds' worth, and segments in the grace period"
    in_virtual_time(main)


def test_rounds_start_after_a_number_of_bytes_of_heads() -> None:
    """Shows a bound on consumer state, which is replayed too, for few segments."""
    async def main(clock: ManualClock) -> None:
        shared = MemoryStore()
        rig = Rig(shared, clock, settings=ShardSettings(checkpoint=CheckpointSettings(head_bytes=100_000)))
        await rig.open()
        stream = Stream(rig.log)
        stream.create()
        for _ in range(10):
            stream.record(RecordKind.CONSUMER_STATE, {"n": "none", "x": {"k": bytes(20_000)}})
            await rig.log.persisted()
        await asyncio.sleep(1)
        assert len(roots_in(shared)) == 2
    in_virtual_time(main)


def test_commits_wait_for_a_delayed_checkpoint() -> None:
    """Shows that at four times the bound nothing more is put until a root is stored; then commits continue."""
    async def main(clock: ManualClock) -> None:
        shared = MemoryStore()
        rig = Rig(shared, clock, settings=ShardSettings(checkpoint=CheckpointSettings(segments=5)))
        await rig.open()
        acked: dict[int, bytes] = {}
        client = Publisher(rig, acked)
        put = shared.put

        async def no_pages(key: str, data: Any) -> None:
            if "/pages/" in key:
                from broker.storage.objectstore.base import Transient
                raise Transient("busy")
            await put(key, data)

        shared.put = no_pages  # type: ignore[method-assign]
        work = asyncio.ensure_future(client.publish_many(60))
        await asyncio.sleep(600)
        assert len(acked) == 18, "with the opening and the create record, twenty segments"
        assert not work.done()
        shared.put = put  # type: ignore[method-assign]
        await work
        assert len(acked) == 60
    in_virtual_time(main)


def test_a_recovery_that_replayed_much_starts_a_round_at_once() -> None:
    """Shows it for more than 64 segments, and for more than 8 epochs."""
    async def main(clock: ManualClock) -> None:
        shared = MemoryStore()
        rig = Rig(shared, clock, settings=NEVER)
        await rig.open()
        await Publisher(rig, {}).publish_many(70)
        again = Rig(shared, clock, seed=2)
        await again.open()
        await asyncio.sleep(1)
        assert roots_in(shared) == [Position(2, 0)]
        for epoch in range(3, 13):
            await Rig(shared, clock, seed=epoch, settings=NEVER).open()
        assert len(roots_in(shared)) == 1
        last = Rig(shared, clock, seed=99)
        await last.open()
        await asyncio.sleep(1)
        assert roots_in(shared)[-1] == Position(13, 0)
    in_virtual_time(main)


def test_a_clean_stop_writes_a_checkpoint() -> None:
    """Shows that the next start reads a root, its pages and one opening."""
    async def main(clock: ManualClock) -> None:
        shared = MemoryStore()
        rig = Rig(shared, clock)
        shard = await rig.open()
        await Publisher(rig, {}).publish_many(20)
        end = await shard.close()
        assert end == Position(1, 21)
        await seal_at(shared, PATHS, end, 1, Identity("broker-1", bytes(16)), clock, random.Random(1))
        assert roots_in(shared) == [Position(1, 20)]
        counting = Counting(shared)
        again = Rig(counting, clock, seed=2)
        await again.open()
        gets = [key for operation, key in counting.calls if operation == "get"]
        assert len(gets) < 16
    in_virtual_time(main)


def test_a_round_is_retried_until_it_is_stored_and_lost_answers_are_recognized() -> None:
    """Shows that pages and roots whose answers are lost are recognized as ours by their nonce."""
    async def main(clock: ManualClock) -> None:
        shared = MemoryStore()
        rig = Rig(shared, clock, settings=NEVER)
        shard = await rig.open()
        await Publisher(rig, {}).publish_many(5)
        rig.store.faults = Faults(unanswered=0.5, refused=0.2, latency_ns=MS)
        assert await shard.checkpointer.cut()
        assert not await shard.checkpointer.cut(), "nothing new"
        assert dump((await read_snapshot(shared, 0)).state) == dump(rig.log.state)
    in_virtual_time(main)
