"""The views other than messages, compared with the streams' records."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from broker.pipeline.plan.plan import ScanTask, tasks
from broker.pipeline.plan.schema import VIEWS, arrow_schema, requested, spark_type
from broker.pipeline.plan.selection import Selection
from broker.pipeline.plan.snapshot import StreamSnapshot, read_store
from broker.pipeline.read.views import catalogue_rows, live_messages, read_subjects
from broker.pipeline.store.objects import open_object_client
from broker.storage.objectstore.memory import MemoryStore
from broker.storage.state.table import BlockEntry
from tests.pipeline.stores import T0, MemoryObjectClient, Owner, Row, Stream, of_a_broker, varied

SUBJECTS = requested("subjects", [("stream", "string"), ("subject", "binary"), ("block", "string"), ("count", "bigint"),
                                  ("first_seq", "bigint"), ("last_seq", "bigint"), ("account", "string")])


def all_columns(view: str) -> pa.Schema:
    return requested(view, [(column.name, spark_type(column.type)) for column in VIEWS[view]])


def tuples(batches: Iterable[pa.RecordBatch]) -> list[tuple[Any, ...]]:
    found = []
    for batch in batches:
        batch.validate(full=True)
        found += list(zip(*(column.to_pylist() for column in batch.columns), strict=True))
    return found


def dicts(view: str, snapshots: Iterable[StreamSnapshot]) -> list[dict[str, Any]]:
    schema = all_columns(view)
    batches = list(catalogue_rows(view, snapshots, schema))
    assert all(batch.schema.equals(schema) for batch in batches)
    return [row for batch in batches for row in batch.to_pylist()]


def counted(stream: Stream, found: list[ScanTask], rows: list[Row]) -> list[tuple[Any, ...]]:
    """Count the view's rows message by message."""
    wanted = []
    for task in found:
        of_subject: dict[bytes, list[int]] = {}
        for seq, subject, _, _, _ in rows:
            if task.first_seq <= seq <= task.last_seq:
                of_subject.setdefault(subject, []).append(seq)
        wanted += [(stream.name, subject, task.key, len(seqs), seqs[0], seqs[-1], stream.account)
                   for subject, seqs in sorted(of_subject.items())]
    return wanted


# ---- subjects


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("summaries", [True, False])
async def test_subjects_are_counted_as_they_live(seed: int, summaries: bool) -> None:
    """Counts and sequences are those of live messages alone, by block, for all and for some subjects, sequences and
    times. They come from summaries where available and from indexes, without reading a frame."""
    store = MemoryStore()
    owner = await varied(store, seed)
    objects = MemoryObjectClient(store)
    rng = random.Random(seed)
    for name, stream in owner.streams.items():
        rows = stream.rows()
        middle = rng.choice(rows) if rows else (1, b"", b"", b"", T0)
        for selection in (Selection(), Selection(subjects=(b"few.1.x", b"many.alarm.*", b"mixed.>")),
                          Selection(first_seq=middle[0]), Selection(last_seq=middle[0], subjects=(b"*.a", b"few.>")),
                          Selection(first_ns=middle[4])):
            [snapshot] = read_store(objects, account=stream.account, stream=name)
            found = tasks(snapshot, selection, summaries=summaries)
            objects.asked.clear()
            wanted = counted(stream, found, [
                row for row in rows if selection.matches_subject(row[1]) and row[4] >= (selection.first_ns or 0)])
            assert tuples(read_subjects(objects, found, selection, SUBJECTS)) == wanted
            frames = {task.key: task.ref.frames_offset for task in found}
            assert all(end is not None and end <= frames[key] for key, _, end in objects.asked)
            if summaries and all(task.ref.subjects is not None and task.dead is None for task in found) and (
                    selection == Selection()) and rows and snapshot.first_seq == found[0].ref.first_seq:
                assert objects.asked == []
    await owner.kill()


async def test_subjects_with_many_to_a_block() -> None:
    """A block with more subjects than a summary has gives the default columns."""
    store = MemoryStore()
    owner = Owner(store)
    await owner.start()
    stream = await owner.make("s")
    stream.append([(b"s.%03d" % (i % 200), b"", b"x") for i in range(1000)])
    stream.append([(b"s.\xff", b"", b"x")])
    await owner.log.persisted()
    objects = MemoryObjectClient(store)
    [snapshot] = read_store(objects, stream="s")
    [batch] = read_subjects(objects, tasks(snapshot, Selection(), summaries=True), Selection(),
                            arrow_schema("subjects"))
    assert batch.schema.names == ["stream", "subject", "block", "count", "first_seq", "last_seq"]
    found = tuples([batch])
    assert len(found) == 201
    assert found[7] == ("s", "s.007", found[0][2], 5, 8, 808)
    assert found[200][1] == "s.�"
    await owner.kill()


# ---- the catalogue


async def test_blocks() -> None:
    """Each block has the values of its reference, and the exact number of its live messages if its sequences have no
    gaps. In ``few`` they have, and the number is never too low."""
    store = MemoryStore()
    owner = await varied(store, 2)
    snapshots = read_store(MemoryObjectClient(store), account="*")
    found = dicts("blocks", snapshots)
    for snapshot in snapshots:
        stream = next(one for one in owner.streams.values()
                      if (one.account, one.name) == (snapshot.account, snapshot.name))
        mine = [row for row in found if (row["account"], row["stream"]) == (snapshot.account, snapshot.name)]
        assert len(mine) == len(snapshot.blocks)
        for row, entry in zip(mine, snapshot.blocks, strict=True):
            ref = entry.ref
            live = [seq for seq in stream.live if ref.first_seq <= seq <= ref.last_seq]
            gapless = ref.last_seq - ref.first_seq + 1 == ref.count
            assert row["live"] == len(live) if gapless else row["live"] >= len(live)
            assert row["live"] + row["dead"] == row["messages"] == ref.count
            assert row["block"] in store.objects
            assert (row["epoch"], row["number"]) == ref.position
            assert row["last_time"].timestamp() == pytest.approx(ref.last_time_ns / 1e9, abs=1e-6)
            for name in ("first_seq", "last_seq", "bytes", "core_offset", "core_bytes", "index_offset", "index_bytes",
                         "frames_offset", "frames_bytes"):
                assert row[name] == getattr(ref, name)
            assert row["subjects"] == (None if ref.subjects is None else [
                {"subject": subject.decode("utf-8", "replace"), "count": count, "first_seq": first, "last_seq": last}
                for subject, count, first, last in ref.subjects])
    assert {row["stream"] for row in found} == {"one", "few", "many", "mixed", "again"} & {
        name for name, stream in owner.streams.items() if stream.live}
    await owner.kill()


async def test_live_messages_of_a_block_that_is_cut() -> None:
    """Only live messages from the stream's first sequence on count if that is within the block, with dead ones before
    and after it."""
    store = MemoryStore()
    owner = Owner(store)
    await owner.start()
    stream = await owner.make("s")
    stream.append([(b"s.a", b"", b"x")] * 100)
    await owner.log.persisted()
    for first, last in ((5, 5), (30, 34), (1, 20), (60, 60), (21, 21)):
        stream.remove(first, last)
    await owner.log.persisted()
    [snapshot] = read_store(MemoryObjectClient(store), stream="s")
    [entry] = snapshot.blocks
    assert snapshot.first_seq == 22
    assert live_messages(entry, snapshot.first_seq) == len(stream.live) == 73
    assert live_messages(BlockEntry(entry.ref), 51) == 50
    await owner.kill()


async def test_streams_and_consumers() -> None:
    """Streams of any account have their numbers and configuration, and consumers their positions."""
    store = MemoryStore()
    owner = await varied(store, 4)
    one = owner.streams["one"]
    one.append([(b"one.only", b"", b"x")] * 9)
    one.deliver(one.last_seq, one.last_seq - 4)
    await owner.log.persisted()
    snapshots = read_store(MemoryObjectClient(store), account="*")
    streams = {row["name"]: row for row in dicts("streams", snapshots)}
    assert set(streams) == set(owner.streams)
    for name, stream in owner.streams.items():
        row, rows = streams[name], stream.rows()
        assert (row["account"], row["stream_id"]) == (stream.account, f"{stream.stream_id:016x}")
        assert (row["messages"], row["last_seq"]) == (len(rows), stream.last_seq)
        assert row["first_seq"] == (rows[0][0] if rows else stream.last_seq + 1)
        assert json.loads(row["config"])["name"] == name
        assert row["created"].timestamp() == T0 / 1e9
        assert (row["first_time"] is None) == (not rows)
        assert bool(row["blocks"]) == bool(row["stored_bytes"]) == bool(rows)
        assert (row["consumers"], row["offline"], row["shard"]) == (1, None, 0)
    assert json.loads(streams["mixed"]["config"])["description"] == "of another account"
    consumers = {row["stream"]: row for row in dicts("consumers", snapshots)}
    assert set(consumers) == set(owner.streams)
    shown = consumers["one"]
    assert (shown["name"], shown["account"], json.loads(shown["config"])) == ("c", "$G", {"durable_name": "c"})
    assert (shown["delivered_stream_seq"], shown["ack_floor_stream_seq"]) == (one.last_seq, one.last_seq - 4)
    assert (shown["num_ack_pending"], shown["num_redelivered"]) == (4, 1)
    assert shown["last_delivered"].microsecond == 0
    assert shown["last_ack"] is not None
    assert consumers["few"]["last_delivered"] is None
    await owner.kill()


async def test_names_that_no_utf8_has() -> None:
    """A lone surrogate, which API JSON may hold, becomes a question mark and no error."""
    store = MemoryStore()
    owner = Owner(store)
    await owner.start()
    stream = await owner.make("s\ud800", config={"description": "\udfff"})
    stream.append([(b"s.a", b"", b"x")])
    await owner.log.persisted()
    objects = MemoryObjectClient(store)
    snapshots = read_store(objects)
    assert [row["name"] for row in dicts("streams", snapshots)] == ["s?"]
    assert [row["stream"] for row in dicts("consumers", snapshots)] == ["s?"]
    assert [row["stream"] for row in dicts("blocks", snapshots)] == ["s?"]
    [row] = tuples(read_subjects(objects, tasks(snapshots[0], Selection()), Selection(), SUBJECTS))
    assert (row[0], row[1], row[3]) == ("s?", b"s.a", 1)
    await owner.kill()


async def test_a_store_of_a_broker(tmp_path: Path) -> None:
    """All views of a store that a broker wrote are right after deletes, a purge, a limit, a kill and a consumer."""
    live = await of_a_broker(tmp_path / "store", messages=90)
    objects = open_object_client(f"file://{tmp_path}/store")
    snapshots = read_store(objects)
    streams = {row["name"]: row for row in dicts("streams", snapshots)}
    assert {name: row["messages"] for name, row in streams.items()} == {name: len(rows) for name, rows in live.items()}
    assert json.loads(streams["LOGS"]["config"])["max_msgs"] == 100
    assert sum(row["live"] for row in dicts("blocks", snapshots)) == sum(map(len, live.values()))
    [consumer] = dicts("consumers", snapshots)
    assert (consumer["stream"], consumer["name"], consumer["num_ack_pending"]) == ("ORDERS", "worker", 0)
    assert consumer["delivered_consumer_seq"] == consumer["ack_floor_consumer_seq"] == 10
    for snapshot in snapshots:
        counts: dict[bytes, int] = {}
        for _, subject, _, count, *_ in tuples(read_subjects(
                objects, tasks(snapshot, Selection(), summaries=True), Selection(), SUBJECTS)):
            counts[subject] = counts.get(subject, 0) + count
        wanted: dict[bytes, int] = {}
        for _, subject, _, _ in live[snapshot.name]:
            wanted[subject] = wanted.get(subject, 0) + 1
        assert counts == wanted
