"""Snapshots of the store's streams: the selected streams, their state at a position, few reads, and a broker that
writes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path

import msgpack
import pytest

from broker.pipeline.errors import BadOption, Damaged, DataLoss, Newer, NoStore, NoStream
from broker.pipeline.plan.follow import Follower
from broker.pipeline.plan.plan import tasks
from broker.pipeline.plan.schema import requested
from broker.pipeline.plan.selection import Selection
from broker.pipeline.plan.snapshot import AsOf, StreamSnapshot, last_of, matcher, names, newest, read_store, seq_at_time
from broker.pipeline.read.missing import LossRule
from broker.pipeline.read.scan import read_tasks
from broker.pipeline.store.objects import FileObjectClient, open_object_client
from broker.storage.compaction.settings import CompactionSettings
from broker.storage.format.block import BlockPlace, BlockRef
from broker.storage.format.codec import Unpackable, pack_value, unpack_value
from broker.storage.format.errors import Corrupt
from broker.storage.format.header import ObjectKind, Position
from broker.storage.format.records.kinds import RecordKind
from broker.storage.log.open_block import OpenBlock
from broker.storage.log.writer import encode_segment, seal_block
from broker.storage.objectstore.file import FileStore
from broker.storage.objectstore.memory import MemoryStore
from broker.storage.objectstore.url import open_store
from broker.storage.paths import FORMAT, parse
from broker.storage.read.lazy import LazyBlockRef, unpack_table_page
from broker.storage.read.snapshot import read_snapshot
from broker.storage.state import pages
from broker.storage.state.table import BlockEntry
from tests.pipeline.read.test_compacted import compacted
from tests.pipeline.stores import PATHS, T0, MemoryObjectClient, Owner, of_a_broker, varied
from tests.plain_records import add_record
from tests.real.s3 import S3Server


@pytest.fixture
def paged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints keep every block table in separate pages, as they do for large streams."""
    monkeypatch.setattr(pages, "INLINE_BLOCKS_MAX", 0)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.usefixtures("paged")
async def test_a_snapshot_equals_a_replay_of_the_log(seed: int) -> None:
    """In random stores, each stream equals that of a full replay, by any pattern that selects it."""
    store = MemoryStore()
    owner = await varied(store, seed, steps=25, large=False)
    await owner.round()
    for stream in owner.streams.values():  # Each stream has something after the checkpoint.
        stream.append([(b"x.%d" % seed, b"", b"")] * 3)
        stream.remove(stream.last_seq - 1, stream.last_seq - 1)
    await owner.log.persisted()
    state = (await read_snapshot(store, 0)).state
    objects = MemoryObjectClient(store)
    summaries = 0
    for snapshot in read_store(objects, account="*"):
        known = state.stream(snapshot.account, snapshot.name)
        assert known is not None
        assert (snapshot.stream_id, snapshot.config, snapshot.created_ns, snapshot.first_seq, snapshot.last_seq,
                snapshot.msgs, snapshot.bytes, snapshot.first_time_ns, snapshot.last_time_ns, snapshot.end_seq,
                snapshot.offline, snapshot.shard) == (
            known.stream_id, known.config, known.created_ns, known.first_seq, known.last_seq, known.msgs,
            known.bytes, known.first_time_ns, known.last_time_ns, known.last_seq, None, 0)
        assert snapshot.position == state.position
        assert [entry.pack() for entry in snapshot.blocks] == [entry.pack() for entry in known.blocks]
        assert len(snapshot.blocks) == len(known.blocks)
        summaries += sum(isinstance(entry.ref, LazyBlockRef) and entry.ref.subjects is not None
                         for entry in snapshot.blocks)
        assert {name: one.pack() for name, one in snapshot.consumers.items()} == {
            name: one.pack() for name, one in known.consumers.items()}
        assert snapshot.full_name == f"{snapshot.account}/{snapshot.name}"
        [alone] = read_store(objects, account=snapshot.account, stream=snapshot.name)
        assert [entry.pack() for entry in alone.blocks] == [entry.pack() for entry in known.blocks]
        again = newest(objects, 0, snapshot.account, snapshot.name, snapshot.stream_id)
        assert again is not None
        assert again.last_seq == snapshot.last_seq
        assert newest(objects, 0, snapshot.account, snapshot.name, snapshot.stream_id + 1) is None
    assert len(state.streams) == 6
    assert summaries > 0, "no table came from a page"
    await owner.kill()


@pytest.mark.usefixtures("paged")
async def test_reads_only_the_pages_of_the_requested_stream() -> None:
    """Reading one stream costs its own pages, whatever other streams have, readable or not."""
    store = MemoryStore()
    owner = Owner(store)
    await owner.start()
    small, large = await owner.make("small"), await owner.make("large")
    for n in range(40):
        large.append([(b"large.%d" % n, b"", b"x" * 50)] * 3)
        await owner.log.persisted()
    small.append([(b"small.x", b"", b"y")])
    await owner.log.persisted()
    await owner.round()
    large.append([(b"large.z", b"", b"z")])
    small.append([(b"small.z", b"", b"z")])
    await owner.log.persisted()

    def pages_read(stream: str) -> int:
        objects = MemoryObjectClient(store)
        [snapshot] = read_store(objects, stream=stream)
        assert snapshot.msgs == len(owner.streams[stream].live)
        return sum((end or 0) - start for key, start, end in objects.asked if "/pages/" in key)

    assert pages_read("large") > pages_read("small") + 500
    snapshot = await read_snapshot(store, 0)
    assert snapshot.root is not None
    for entry in snapshot.state.streams[large.stream_id].blocks.pages:
        key = PATHS.pages(entry.place.position) if entry.place is not None else None
        if key is not None:
            at = entry.place.offset + entry.place.size - 1
            data = store.objects[key]
            store.objects[key] = data[:at] + bytes([data[at] ^ 1]) + data[at + 1:]
            break
    [snapshot] = read_store(MemoryObjectClient(store), stream="small")
    assert (snapshot.last_seq, snapshot.blocks and len(snapshot.blocks)) == (2, 2)  # type: ignore[attr-defined]
    await owner.kill()


@pytest.mark.usefixtures("paged")
async def test_streams_that_come_and_go_after_the_checkpoint() -> None:
    """Streams are created, deleted, and recreated under the same name in the log's tail: wanted ones and others."""
    store = MemoryStore()
    owner = Owner(store)
    await owner.start()
    for name in ("a", "b", "c"):
        stream = await owner.make(name)
        stream.append([(b"x", b"", name.encode())])
    await owner.log.persisted()
    await owner.round()
    for name in ("a", "b"):
        owner.streams[name].delete()
        await owner.log.persisted()
        stream = await owner.make(name)
        stream.append([(b"y", b"", b"new")] * 2)
    owner.streams["c"].delete()
    await owner.log.persisted()
    await owner.make("d")
    objects = MemoryObjectClient(store)
    assert [(m.name, m.last_seq, m.stream_id) for m in read_store(objects, stream="a")] == [
        ("a", 2, owner.streams["a"].stream_id)]
    assert [(m.name, m.last_seq) for m in read_store(objects)] == [("a", 2), ("b", 2), ("d", 0)]
    with pytest.raises(NoStream):
        read_store(objects, stream="c")
    await owner.kill()


@pytest.mark.parametrize("checkpoint", [False, True])
async def test_a_stream_that_is_being_restored_does_not_exist(checkpoint: bool) -> None:
    """The stream exists from the record that makes it complete."""
    store = MemoryStore()
    owner = Owner(store)
    await owner.start()
    await owner.make("a")
    stream = await owner.make("b", restoring=True)
    stream.append([(b"x", b"", b"1")])
    await owner.log.persisted()
    if checkpoint:
        await owner.round()
    objects, follow = MemoryObjectClient(store), Follower(MemoryObjectClient(store), "$G", "*")
    assert [m.name for m in read_store(objects)] == ["a"]
    assert list(follow.refresh()) == ["$G/a"]
    with pytest.raises(NoStream):
        read_store(objects, stream="b")
    assert newest(objects, 0, "$G", "b", stream.stream_id) is None
    add_record(owner.log.block(stream), RecordKind.STREAM_UPDATE,
                                       {"config": {"name": "b", "subjects": ["b"]}, "restoring": None})
    owner.log.urgent()
    await owner.log.persisted()
    assert [(m.name, m.last_seq) for m in read_store(objects)] == [("a", 0), ("b", 1)]
    assert list(follow.refresh()) == ["$G/a", "$G/b"]
    await owner.kill()


async def test_names_and_accounts() -> None:
    """Lists, wildcards, a comma in a name; errors for missing streams list the existing ones."""
    store = MemoryStore()
    owner = Owner(store)
    await owner.start()
    for name, account in [("ORDERS", "$G"), ("ORDERS-eu", "$G"), ("logs", "$G"), ("a,b", "$G"), ("x", "ACME"),
                          ("x", "B")]:
        await owner.make(name, account)
    objects = MemoryObjectClient(store)

    def found(stream: str, account: str = "$G", *, none_ok: bool = False) -> list[str]:
        return [snapshot.full_name for snapshot in read_store(objects, stream=stream, account=account, none_ok=none_ok)]

    assert found("ORDERS") == ["$G/ORDERS"]
    assert found("ORDERS*") == ["$G/ORDERS", "$G/ORDERS-eu"]
    assert found("logs, ORDERS-*,logs") == ["$G/ORDERS-eu", "$G/logs"]
    assert found(r"a\,b") == ["$G/a,b"]
    assert found("x", "*") == ["ACME/x", "B/x"]
    assert found("x", "A*") == ["ACME/x"]
    assert found("*", "none", none_ok=True) == []
    with pytest.raises(NoStream,
                       match=r"no stream 'orders' in account '\$G'; existing streams: 'ORDERS', 'ORDERS-eu', 'a,b', "
                             r"'logs'$"):
        found("ORDERS,orders")
    with pytest.raises(NoStream,
                       match=r"no stream 'x' in account '\$G'; account ACME, B has a stream of that name: set"):
        found("x")
    with pytest.raises(NoStream, match=r"no stream 'Z\*' in account 'none'; existing streams: none"):
        found("Z*", "none")
    assert names(r" a , b\,c ,,") == ["a", "b,c"]
    assert [matcher("a*b.c")(name) for name in ("ab.c", "axxb.c", "abxc", "ab.cd")] == [True, True, False, False]
    await owner.kill()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.usefixtures("paged")
async def test_as_of(seed: int) -> None:
    """Each form of asOf is compared with the content at that time. A position reads the stream as it was, deletions
    undone. If the store no longer has that state, the query fails or reads the remaining messages. A sequence or time
    bounds the newest state."""
    rng = random.Random(seed)
    store = MemoryStore()
    owner = Owner(store, seed=seed)
    await owner.start()
    stream, other = await owner.make("s"), await owner.make("t")
    then: list[tuple[Position, int, list[int]]] = []
    for n in range(30):
        for _ in range(rng.randrange(3)):
            stream.append([(b"s.x", b"", b"%d" % n)] * rng.randrange(1, 5), gap=rng.choice([0, 0, 3]),
                          after_ns=rng.choice([0, 1, 1000, 10**9]))
        other.append([(b"t", b"", b"x")])
        await owner.log.persisted()
        then.append((owner.log.state.position, stream.last_seq, list(stream.live)))
        if rng.random() < 0.3 and stream.live:
            stream.remove(seq := rng.choice(list(stream.live)), seq)
        if rng.random() < 0.1:
            stream.purge(min(stream.live, default=0))
        if rng.random() < 0.15:
            await owner.round()
        if rng.random() < 0.1:
            await owner.again()
    await owner.log.persisted()
    objects = MemoryObjectClient(store)

    def live(as_of: str, fail: bool = False) -> list[int]:
        snapshot = next((m for m in read_store(objects, as_of=as_of, fail_on_loss=fail, none_ok=True) if m.name == "s"),
                        None)
        if snapshot is None:
            return []
        found = tasks(snapshot, Selection())
        schema = requested("messages", [("seq", "bigint")])
        rule = LossRule(fail)
        return [seq for batch in read_tasks(objects, found, Selection(), schema, rule=rule)
                for seq in batch[0].to_pylist()]

    exact = 0
    for position, last, seqs in then:
        left = [seq for seq in seqs if seq in stream.live]
        assert left == [seq for seq in stream.live if seq <= last]
        assert set(left) <= set(live(str(position))) <= set(seqs), position
        try:
            assert live(str(position), fail=True) == seqs
            exact += 1
        except DataLoss:
            assert list(stream.live) != list(range(1, stream.last_seq + 1))
    assert exact >= 3
    assert live(str(Position(9, 0))) == list(stream.live)
    assert live(str(Position(1, 0))) == []
    for seq in (0, 1, 5, stream.last_seq, stream.last_seq + 10):
        assert live(f"seq:{seq}") == [one for one in stream.live if one <= seq]
    for at in {row[4] + off for row in stream.live.values() for off in (-1, 0, 1)}:
        assert live(str(at)) == [row[0] for row in stream.live.values() if row[4] <= at], at
    assert live("1970-01-01T00:00:00Z") == []
    assert live("2100-01-01") == list(stream.live)
    await owner.kill()


async def test_as_of_a_position_outlives_the_stream() -> None:
    """A stream is read as it was before it was purged, and before it was deleted, as long as nothing is swept."""
    store = MemoryStore()
    owner = Owner(store)
    await owner.start()
    stream = await owner.make("s")
    stream.append([(b"s.x", b"", b"1")] * 10)
    await owner.log.persisted()
    full = str(owner.log.state.position)
    stream.purge(7)
    await owner.log.persisted()
    purged = str(owner.log.state.position)
    stream.delete()
    await owner.log.persisted()
    objects = MemoryObjectClient(store)
    for position, first in ((full, 1), (purged, 8)):
        [snapshot] = read_store(objects, stream="s", as_of=position)
        assert (snapshot.first_seq, snapshot.last_seq, str(snapshot.position)) == (first, 10, position)
    with pytest.raises(NoStream):
        read_store(objects, stream="s")
    await owner.kill()


async def test_as_of_a_position_that_is_no_longer_known() -> None:
    """The position's checkpoint was swept. A stream of which nothing was ever removed is read up to the position. For
    another one it is an error, which names the option to read the remaining messages."""
    store = MemoryStore()
    owner = Owner(store)
    await owner.start()
    whole, thinned = await owner.make("whole"), await owner.make("thinned")
    for stream in (whole, thinned):
        stream.append([(b"x", b"", b"1")] * 10)
    await owner.log.persisted()
    position = str(owner.log.state.position)
    thinned.remove(3, 3)
    objects = MemoryObjectClient(store)
    first_log = PATHS.log(Position(1, 1))
    async with asyncio.timeout(30):
        while first_log in store.objects:
            for stream in (whole, thinned):
                stream.append([(b"x", b"", b"2")])
            await owner.log.persisted()
            await owner.round()
            await asyncio.sleep(0)
    [snapshot] = read_store(objects, stream="whole", as_of=position)
    assert snapshot.end_seq == 10 < snapshot.last_seq
    with pytest.raises(DataLoss, match=rf"asOf={position}: the store no longer has .* removed from stream \$G/thinned.*"
                                       r"failOnDataLoss=false"):
        read_store(objects, stream="thinned", as_of=position)
    [snapshot] = read_store(objects, stream="thinned", as_of=position, fail_on_loss=False)
    assert snapshot.end_seq == 10
    await owner.kill()


@pytest.mark.parametrize("text", ["", "x", "seq:", "seq:-1", "seq:x", "3-2a", "00000001-1", "yesterday", "seq:1.5"])
def test_as_of_that_is_none(text: str) -> None:
    with pytest.raises(BadOption, match=r"option asOf=.*write a position .*seq:N, or a time"):
        AsOf.parse(text)


@pytest.mark.parametrize("staged", [False, True], ids=["published", "staged too"])
async def test_as_of_a_position_before_blocks_were_merged(staged: bool) -> None:
    """Two merges, one of merged blocks, keep the position of each commit, of two epochs; the search reads a few cores.
    With staged messages among them, a position just before these is refused, and never guessed."""
    store = MemoryStore()
    owner = Owner(store)
    owner.settings.compaction = CompactionSettings(few=2, cpu=1.0, bytes_per_second=1 << 40)
    await owner.start()
    stream = await owner.make("s", config={"subjects": ["s.>"]})
    then: list[tuple[Position, int, bool]] = []
    for step in range(60):
        stream.append([(b"s.a", b"", b"%d" % step)] * (1 + step % 3))
        await owner.log.persisted()
        before_staged = staged and step % 10 == 5
        then.append((owner.log.state.position, stream.last_seq, before_staged))
        if before_staged:
            await stream.adopt([(b"s.b", b"", b"x")] * 2)
        if step in (20, 59):
            await compacted(owner, store)
        if step == 30:
            await owner.again(clean=True)
    objects = MemoryObjectClient(store)
    [snapshot] = read_store(objects, stream="s")
    assert len(list(snapshot.blocks)) < 5
    for position, last_seq, unknown in then:
        bound = AsOf(position=position)
        if unknown:
            with pytest.raises(BadOption, match=rf"messages {last_seq + 1} to {last_seq + 2} joined stream \$G/s"):
                last_of(objects, snapshot, bound)
        else:
            assert last_of(objects, snapshot, bound) == last_seq
    assert last_of(objects, snapshot, AsOf(position=Position(0, 1))) == 0
    await owner.kill()


async def test_as_of_a_position_before_an_earlier_release_merged_blocks() -> None:
    """Runs of earlier releases do not have the positions of their messages: this is an error, never a guess."""
    store = MemoryStore()
    owner = Owner(store)
    await owner.start()
    stream = await owner.make("s")
    stream.append([(b"s", b"", b"x")] * 3)
    await owner.log.persisted()
    snapshot = read_store(MemoryObjectClient(store), stream="s")[0]
    block: OpenBlock[None] = OpenBlock(snapshot.stream_id, None)
    block.append_run(1, [b"s"] * 3, None, [b"x"] * 3, T0)
    sealed = seal_block(block, Position(1, 500), object_id=7)
    await store.put(PATHS.run(Position(1, 500), 7), encode_segment(
        Position(1, 500), bytes(16), [sealed], kind=ObjectKind.RUN, object_id=7, place=BlockPlace.RUN))
    assert sealed.ref is not None
    await owner.kill()

    objects = MemoryObjectClient(store)
    assert last_of(objects, snapshot, AsOf(position=snapshot.position)) == 3
    snapshot.blocks, snapshot.position = [BlockEntry(sealed.ref)], Position(2, 0)
    assert last_of(objects, snapshot, AsOf(position=Position(1, 500))) == 3
    with pytest.raises(BadOption, match=r"messages 1 to 3 joined .* an earlier release; give a sequence \(seq:N\)"):
        last_of(objects, snapshot, AsOf(position=Position(1, 4)))


@pytest.mark.parametrize("seed", range(3))
async def test_sequences_by_time(seed: int) -> None:
    """The first message of a time or later is found by one get at most."""
    store = MemoryStore()
    owner = await varied(store, seed, steps=20, large=False)
    objects = MemoryObjectClient(store)
    tried = 0
    for snapshot in read_store(objects, account="*"):
        rows = owner.streams[snapshot.name].rows()
        times = {row[4] + off for row in rows for off in (-1, 0, 1)}
        for at in [*random.Random(seed).sample(sorted(times), min(len(times), 40)), 0, T0 * 2]:
            objects.asked.clear()
            seq = seq_at_time(objects, snapshot, at)
            assert len(objects.asked) <= 1
            assert snapshot.first_seq <= seq <= snapshot.last_seq + 1
            assert all(row[4] < at for row in rows if row[0] < seq), (at, seq)
            assert all(row[4] >= at for row in rows if row[0] >= seq), (at, seq)
            tried += 1
    assert tried > 50
    await owner.kill()


async def test_an_object_that_is_deleted_while_a_time_is_searched() -> None:
    """The sequence is then searched in a newer state; a deleted stream is reported as such."""
    store = MemoryStore()
    owner = Owner(store)
    await owner.start()
    stream = await owner.make("s")
    stream.append([(b"s", b"", b"1")] * 3)
    stream.append([(b"s", b"", b"1")] * 3)  # the same block, a millisecond later
    await owner.log.persisted()
    objects = MemoryObjectClient(store)
    [snapshot] = read_store(objects, stream="s")
    assert seq_at_time(objects, snapshot, snapshot.last_time_ns) == 4
    stream.purge(6)
    stream.append([(b"s", b"", b"2")])
    await owner.log.persisted()
    await owner.round()
    [entry] = snapshot.blocks
    store.objects.pop(PATHS.log(entry.ref.position), None)  # as the sweeper does, once it is released
    assert seq_at_time(objects, snapshot, snapshot.last_time_ns) == 7
    stream.delete()
    await owner.log.persisted()
    with pytest.raises(NoStream, match=r"stream \$G/s was deleted while it was read"):
        seq_at_time(objects, snapshot, snapshot.last_time_ns)
    await owner.kill()


async def test_while_a_broker_publishes_checkpoints_and_sweeps(tmp_path: Path) -> None:
    """Snapshots are read in a thread meanwhile. Each is of one position, at which two streams that are always written
    together agree, and the next one is not before it."""
    store = FileStore(tmp_path / "store")
    owner = Owner(store, seed=3)
    await owner.start()
    one, two = await owner.make("one"), await owner.make("two")
    objects = FileObjectClient(str(tmp_path / "store"))
    snapshots: list[list[StreamSnapshot]] = []
    done = False

    def read() -> None:
        while not done:
            snapshots.append(read_store(objects))

    reading = asyncio.create_task(asyncio.to_thread(read))
    rounds = 0
    while len(snapshots) < 25 or rounds < 12:
        assert not reading.done(), reading.result()
        for stream in (one, two):
            stream.append([(b"x", b"", b"data")] * 3)
        if one.last_seq > 30:
            one.purge(one.last_seq - 30)
            two.purge(two.last_seq - 30)
        await owner.log.persisted()
        if one.last_seq % 5 == 0:
            await owner.round()
            rounds += 1
        if one.last_seq % 33 == 0:
            await owner.again(clean=bool(rounds % 2))
        await asyncio.sleep(0)
    done = True
    await reading
    last = Position(0, 0)
    for a, b in snapshots:
        assert a.position == b.position >= last
        last = a.position
        assert (a.first_seq, a.last_seq, a.msgs) == (b.first_seq, b.last_seq, b.msgs)
        assert a.msgs == a.last_seq - a.first_seq + 1
        assert [(e.ref.first_seq, e.ref.last_seq) for e in a.blocks] == [(e.ref.first_seq, e.ref.last_seq)
                                                                         for e in b.blocks]
        assert sum(min(e.ref.last_seq, a.last_seq) - max(e.ref.first_seq, a.first_seq) + 1 for e in a.blocks) == a.msgs
    assert len({a.position for a, _ in snapshots}) > 5
    await owner.kill()
    await store.close()


async def test_a_store_that_a_broker_left(tmp_path: Path) -> None:
    """A broker process wrote it: the numbers include limits, deletes and a purge."""
    live = await of_a_broker(tmp_path / "store")
    orders, logs = (read_store(FileObjectClient(str(tmp_path / "store")), stream=name)[0]
                    for name in ("ORDERS", "LOGS"))
    assert (orders.msgs, logs.msgs) == (len(live["ORDERS"]), len(live["LOGS"]))
    assert (logs.first_seq, logs.last_seq) == (live["LOGS"][0][0], live["LOGS"][-1][0])
    assert orders.config["subjects"] == ["orders.*.*"]
    assert orders.consumers["worker"].floor_sseq > 0


@pytest.mark.parametrize("server", ["minio", "seaweed"])
@pytest.mark.usefixtures("paged")
async def test_on_s3(server: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Snapshots are the same through obstore: many pages and segments requested at a time, and missing ones."""
    s3: S3Server = request.getfixturevalue(server)
    for name, value in s3.env.items():
        monkeypatch.setenv(name, value)
    url = s3.new_url()
    store = open_store(url)
    owner = Owner(store)
    await owner.start()
    streams = [await owner.make(name) for name in ("one", "two")]
    for n in range(45):
        for stream in streams:
            stream.append([(b"x.%d" % n, b"", b"data")] * 2)
        await owner.log.persisted()
        if n == 3:
            await owner.round()
    streams[0].purge(9)
    await owner.log.persisted()
    state = (await read_snapshot(store, 0)).state
    objects = open_object_client(url)
    for snapshot in read_store(objects):
        known = state.stream("$G", snapshot.name)
        assert known is not None
        assert [entry.pack() for entry in snapshot.blocks] == [entry.pack() for entry in known.blocks]
        assert (snapshot.position, snapshot.msgs) == (state.position, len(owner.streams[snapshot.name].live))
    [one] = read_store(objects, stream="one", as_of=str(streams[0].rows()[7][4]))
    assert [seq for seq in streams[0].live if seq <= one.end_seq][-1] in (streams[0].rows()[7][0],
                                                                          streams[0].rows()[8][0])
    with pytest.raises(NoStream, match=rf"{url}: no stream 'three' .* existing streams: 'one', 'two'"):
        read_store(objects, stream="three")
    await owner.kill()
    await store.close()


# ---- stores that cannot be read

async def _three_segments() -> tuple[MemoryStore, Owner]:
    store = MemoryStore()
    owner = Owner(store)
    await owner.start()
    stream = await owner.make("s")
    for _ in range(2):
        stream.append([(b"s", b"", b"x" * 40)] * 5)
        await owner.log.persisted()
    await owner.kill()
    return store, owner


async def test_damage_names_its_object() -> None:
    """A bit is flipped, or bytes are missing, in a segment's heads or in a checkpoint that every read needs."""
    store, _ = await _three_segments()
    key = max(key for key in store.objects if "/log/" in key)
    data = store.objects[key]
    for broken in (data[:70] + bytes([data[70] ^ 4]) + data[71:], data[:100], b""):
        store.objects[key] = broken
        with pytest.raises(Damaged, match=rf"{key.rpartition('/')[2]}.*inspect"):
            read_store(MemoryObjectClient(store), stream="s")


async def test_damage_in_a_stream_s_own_part_affects_no_other_stream() -> None:
    """The block core of one stream in the log's tail is damaged: a query for another stream does not read it."""
    store = MemoryStore()
    owner = Owner(store)
    await owner.start()
    good, bad = await owner.make("good"), await owner.make("bad")
    await owner.round()
    good.append([(b"x", b"", b"1")])
    bad.append([(b"the.bad.one", b"", b"2")])
    await owner.log.persisted()
    await owner.kill()
    key = max(key for key in store.objects if "/log/" in key)
    data = store.objects[key]
    at = data.index(b"the.bad.one")
    store.objects[key] = data[:at] + b"T" + data[at + 1:]
    assert read_store(MemoryObjectClient(store), stream="good")[0].last_seq == 1
    for stream in ("bad", "*"):
        with pytest.raises(Damaged, match=rf"{key.rpartition('/')[2]}"):
            read_store(MemoryObjectClient(store), stream=stream)


async def test_a_newer_segment_or_store() -> None:
    """The object is intact, but of a version unknown to this reader."""
    from zlib import crc32

    store, _ = await _three_segments()
    key = max(key for key in store.objects if "/log/" in key)
    data = bytearray(store.objects[key])
    data[10:12] = (3).to_bytes(2, "little")
    data[60:64] = crc32(data[:60]).to_bytes(4, "little")
    store.objects[key] = bytes(data)
    with pytest.raises(Newer, match=rf"{key.rpartition('/')[2]}.*version 3.*upgrade jetblock"):
        read_store(MemoryObjectClient(store), stream="s")
    del store.objects[FORMAT]
    with pytest.raises(Damaged, match="v1/format is missing"):
        read_store(MemoryObjectClient(store), stream="s")
    with pytest.raises(NoStore):
        read_store(MemoryObjectClient(MemoryStore()), stream="s")


async def test_an_offline_stream_affects_no_other_stream() -> None:
    """A stream has a record of a newer broker: its error names the record, and others are read."""
    store = MemoryStore()
    owner = Owner(store)
    await owner.start()
    bad, good = await owner.make("bad"), await owner.make("good")
    bad.append([(b"x", b"", b"1")])
    add_record(owner.log.block(bad), 200, {"from": "the future"})
    good.append([(b"x", b"", b"1")])
    await owner.log.persisted()
    snapshots = {snapshot.name: snapshot for snapshot in read_store(MemoryObjectClient(store))}
    assert "record kind 200" in str(snapshots["bad"].offline)
    assert snapshots["good"].offline is None
    assert read_store(MemoryObjectClient(store), stream="good")[0].last_seq == 1
    await owner.kill()


async def test_finds_all_shards() -> None:
    """Shards are numbered from 0 without gaps; a position belongs to its own shard."""
    store = MemoryStore()
    for shard, name in enumerate(["a", "b", "c"]):
        owner = Owner(store, shard=shard)
        await owner.start()
        stream = await owner.make(name)
        stream.append([(b"x", b"", b"1")] * (shard + 1))
        await owner.log.persisted()
        await owner.kill()
    assert [(m.name, m.shard, m.last_seq)
            for m in read_store(MemoryObjectClient(store))] == [("a", 0, 1), ("b", 1, 2), ("c", 2, 3)]
    assert {key.shard for key in map(parse, store.objects) if key is not None} == {None, 0, 1, 2}


async def test_a_store_on_which_no_broker_ran_yet() -> None:
    store, _ = await _three_segments()
    only = {FORMAT: store.objects[FORMAT]}
    store.objects.clear()
    store.objects.update(only)
    assert read_store(MemoryObjectClient(store), none_ok=True) == []
    with pytest.raises(NoStream, match="existing streams: none"):
        read_store(MemoryObjectClient(store), stream="s")


# ---- pages without their summaries unpacked

def _bodies() -> Iterator[bytes]:
    rng = random.Random(5)
    for _ in range(50):
        entries = []
        for n in range(rng.randrange(5)):
            rows = None if rng.random() < 0.3 else tuple(
                (rng.randbytes(rng.randrange(1, 20)), i, i * 7, 2**40 + i) for i in range(rng.randrange(17)))
            entry = BlockEntry(BlockRef(BlockPlace.LOG, Position(1, n), 0, 2**63 + n, 1, 2, 3, 4, 5, 6, n * 100 + 1,
                                        n * 100 + 100, 100, 7, T0, T0, rows))
            if rng.random() < 0.3:
                entry.remove(n * 100 + 5, n * 100 + 9, 5, 50)
            entries.append(entry.pack())
        yield pack_value([rng.randrange(1024), entries])


def test_lean_pages_are_the_same_pages() -> None:
    """A page that is walked and one that is unpacked have the same entries, and summaries on request."""
    for body in _bodies():
        room, entries = unpack_table_page(body)
        plain_room, plain = unpack_value(body)
        assert room == plain_room
        assert [BlockEntry.unpack(one, LazyBlockRef.unpack).pack() for one in entries] == [
            BlockEntry.unpack(one).pack() for one in plain]


def test_lean_pages_that_are_none() -> None:
    """Cut, added or malformed bytes are refused; a malformed summary when it is requested."""
    for body in _bodies():
        for cut in range(0, len(body), 7):
            with pytest.raises(Unpackable):
                unpack_table_page(body[:cut])
        with pytest.raises(Unpackable):
            unpack_table_page(body + b"\0")
    for value in ([1], [1, [[[1, 2]]]], {"a": 1}, 5, [1, [5]], [1, 2, 3]):
        with pytest.raises(Unpackable):
            unpack_table_page(msgpack.packb(value))
    ref = BlockRef(BlockPlace.LOG, Position(1, 1), 0, 1, 1, 2, 3, 4, 5, 6, 1, 100, 100, 7, T0, T0, ())
    for summary in ([[b"a", 1, 2]], [["text", 1, 2, 3]], 5, [[b"a", 1.5, 2, 3]]):
        lean = LazyBlockRef.unpack([*ref.pack()[:-1], msgpack.packb(summary)])
        with pytest.raises(Corrupt, match="subjects"):
            _ = lean.subjects
