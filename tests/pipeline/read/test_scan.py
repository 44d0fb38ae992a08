"""Reading tasks: the same rows as the plain reader, for any query; errors, never wrong rows; no thread left."""

from __future__ import annotations

import asyncio
import random
import re
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import pytest_asyncio

from broker.inspect.messages import read_messages
from broker.pipeline.errors import Damaged, DataLoss, Gone, Newer, PipelineError
from broker.pipeline.plan.options import Options
from broker.pipeline.plan.plan import ScanTask, tasks
from broker.pipeline.plan.schema import PAIRS, VIEWS, arrow_schema, requested, spark_type
from broker.pipeline.plan.selection import Selection
from broker.pipeline.plan.snapshot import StreamSnapshot, read_store
from broker.pipeline.read import missing, query
from broker.pipeline.read import scan as reading
from broker.pipeline.read.missing import LossRule
from broker.pipeline.read.scan import read_tasks
from broker.pipeline.read.small import SMALL_COUNT
from broker.pipeline.store.objects import ObjectClient, open_object_client
from broker.protocol import headers as protocol_headers
from broker.storage.format.block import BlockPlace, BlockRef
from broker.storage.format.header import ObjectKind, Position
from broker.storage.format.section import SECTIONS, UNCOMPRESSED, SectionCodec
from broker.storage.log.open_block import OpenBlock
from broker.storage.log.writer import encode_segment, seal_block
from broker.storage.objectstore.base import ObjectStore
from broker.storage.objectstore.file import FileStore
from broker.storage.objectstore.memory import MemoryStore
from broker.storage.state.table import BlockEntry
from tests.pipeline.stores import HEADERS, PATHS, T0, MemoryObjectClient, Owner, Row, varied

EXACT = requested("messages", [("seq", "bigint"), ("subject", "binary"), ("headers", "binary"), ("data", "binary"),
                               ("ts_ns", "bigint")])
SEQ = requested("messages", [("seq", "bigint")])
EVERYTHING = Selection()


def planned(objects: ObjectClient, name: str, selection: Selection = EVERYTHING, account: str = "$G") -> list[ScanTask]:
    [snapshot] = read_store(objects, account=account, stream=name)
    return list(tasks(snapshot, selection))


def rows_of(batches: Iterable[pa.RecordBatch]) -> list[Row]:
    """The rows of ``EXACT`` batches."""
    rows: list[Row] = []
    for batch in batches:
        batch.validate(full=True)
        columns = [column.to_pylist() for column in batch.columns]
        rows += [(seq, subject, headers or b"", data, at)
                 for seq, subject, headers, data, at in zip(*columns, strict=True)]
    return rows


def matching(rows: Iterable[Row], selection: Selection) -> list[Row]:
    """Filter ``rows`` one by one."""
    return [row for row in rows if selection.matches_subject(row[1])
            and row[0] >= selection.first_seq and (selection.last_seq is None or row[0] <= selection.last_seq)
            and (selection.first_ns is None or row[4] >= selection.first_ns)
            and (selection.last_ns is None or row[4] <= selection.last_ns)]


def some_selection(rng: random.Random, rows: list[Row]) -> Selection:
    """Return a selection that wants anything from nothing to all of ``rows``."""
    seqs = sorted(rng.choice(rows)[0] + rng.choice([-1, 0, 0, 1]) for _ in range(2)) if rows else [1, 1]
    times = sorted(rng.choice(rows)[4] + rng.choice([-1, 0, 0, 1]) for _ in range(2)) if rows else [T0, T0]
    how: dict[str, Any] = {}
    if rng.random() < 0.5:
        how |= {"first_seq": max(1, seqs[0]), "last_seq": rng.choice([None, max(1, seqs[1])])}
    if rng.random() < 0.3:
        how |= {"first_ns": rng.choice([None, times[0]]), "last_ns": rng.choice([None, times[1]])}
    if rng.random() < 0.6:
        how["subjects"] = rng.choice([(b">",), (b"few.*.x",), (b"many.alarm.>", b"one.only"), (b"few.3.x", b"few.1.x"),
                                      (b"many.orders.*.created",), (b"mixed.b",), (b"mixed.*", b"many.alarm.7"),
                                      (b"none",)])
    if rng.random() < 0.2:
        how |= rng.choice([{"equal": frozenset((b"few.2.x", b"mixed.a", b"many.alarm.1"))},
                           {"prefixes": (b"many.alarm.1",)},
                           {"suffixes": (b"1", b".1")}, {"contains": (b"orders",)}, {"prefixes": (b"mixed.\xff",)}])
    return Selection(**how)


@pytest_asyncio.fixture(params=["memory", "directory"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ObjectStore]:
    store: ObjectStore = MemoryStore() if request.param == "memory" else FileStore(tmp_path / "store")
    yield store
    await store.close()


@pytest.fixture(autouse=True)
def no_threads() -> Iterator[None]:
    """Fails a test that leaves a thread of the reader behind."""
    yield
    assert reading_threads() == []


def reading_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("jetblock-read")]


def client_of(store: ObjectStore) -> ObjectClient:
    return MemoryObjectClient(store) if isinstance(store, MemoryStore) else open_object_client(store.url)


# ---- the right rows


@pytest.mark.parametrize("seed", range(6))
async def test_as_the_plain_reader_reads(store: ObjectStore, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows, for random stores and selections, are those of ``read_messages`` filtered in Python, in its order. This
    holds with the default bounds, and with bounds so small that every path through the reader is used."""
    rng = random.Random(seed)
    owner = await varied(store, seed, steps=25, large=seed % 3 == 0)
    objects = client_of(store)
    for name, stream in owner.streams.items():
        rows = [tuple(message) async for message in read_messages(store, f"{stream.stream_id:016x}")]
        assert rows == stream.rows()
        for _ in range(8):
            if rng.random() < 0.5:
                for bound, values in (("_GROUP_BYTES", (1, 9000)), ("_GROUP_ROWS", (1, 50)), ("_GAP_BYTES", (0, 500)),
                                      ("_GET_BYTES_MAX", (1, 5000)), ("_TOGETHER_BYTES", (0, 2000)),
                                      ("_LOAD_BYTES", (1, 1 << 30)), ("_BATCH_ROWS", (1, 500)),
                                      ("_AHEAD_BYTES", (1, 9000))):
                    monkeypatch.setattr(reading, bound, rng.choice(values))
            selection = some_selection(rng, rows)
            found = planned(objects, name, selection, stream.account)
            batches = read_tasks(objects, found, selection, EXACT, prefetch=rng.choice([0, 1, 3]))
            assert rows_of(batches) == matching(rows, selection), (name, selection)
            batches = read_tasks(objects, found, selection, SEQ, prefetch=rng.choice([0, 2]))
            assert [seq for batch in batches for seq in batch[0].to_pylist()] == [
                row[0] for row in matching(rows, selection)], (name, selection)
            monkeypatch.undo()
    await owner.kill()


async def test_every_column() -> None:
    """Each column of the view has its defined values, in any order and subset, with the exact types."""
    store = MemoryStore()
    owner = await varied(store, 3)
    objects = MemoryObjectClient(store)
    rng = random.Random(3)
    for name, stream in owner.streams.items():
        found = planned(objects, name, account=stream.account)
        blocks = {seq: task for task in found for seq in range(task.ref.first_seq, task.ref.last_seq + 1)
                  if seq in stream.live}
        rows = stream.rows()
        wanted: dict[str, Callable[[Row], Any]] = {
            "seq": lambda row: row[0], "subject": lambda row: row[1].decode("utf-8", "replace"),
            "ts": lambda row: row[4] // 1000, "headers": lambda row: row[2] or None, "data": lambda row: row[3],
            "ts_ns": lambda row: row[4], "stream": lambda row, name=name: name,
            "account": lambda row, account=stream.account: account,
            "block": lambda row, blocks=blocks: blocks[row[0]].key}
        for _ in range(4):
            names = rng.sample([column.name for column in VIEWS["messages"]], rng.randrange(1, 8))
            schema = requested("messages", [(one, spark_type(column.type)) for one in names
                                            for column in VIEWS["messages"] if column.name == one])
            batches = list(read_tasks(objects, found, EVERYTHING, schema))
            assert all(batch.schema.equals(schema, check_metadata=True) for batch in batches)
            table = pa.Table.from_batches(batches, schema)
            for one in names:
                if one == "pos":
                    if name != "few":  # whose sequences have gaps
                        assert table["pos"].to_pylist() == [row[0] - blocks[row[0]].ref.first_seq for row in rows]
                    continue
                column = table[one].cast(pa.int64()) if one == "ts" else table[one]
                assert column.to_pylist() == [wanted[one](row) for row in rows], (name, one)
        parsed = requested("messages", [("HEADERS", spark_type(PAIRS))])
        assert [pair for batch in read_tasks(objects, found, EVERYTHING, parsed)
                for pair in batch["HEADERS"].to_pylist()] == [
            [{"name": of.decode("utf-8", "replace"), "value": value.decode("utf-8", "replace")}
             for of, value in protocol_headers.items(row[2])] if row[2] else None for row in rows]
    assert protocol_headers.items(HEADERS) == [(b"Nats-Msg-Id", b"1"), (b"X-Kind", b"a: b"), (b"X-Kind", b"twice")]
    await owner.kill()


async def test_positions_in_a_block_with_gaps() -> None:
    """``pos`` is the ordinal among all messages of the block, dead ones included."""
    store = MemoryStore()
    owner, stream = await one_stream(store)
    for gap in (0, 5, 1):
        stream.append([(b"s.a", b"", b"x")] * 3, gap=gap)
    await owner.log.persisted()
    stream.remove(2, 9)
    await owner.log.persisted()
    objects = MemoryObjectClient(store)
    [batch] = read_tasks(objects, planned(objects, "s"), EVERYTHING,
                          requested("messages", [("seq", "bigint"), ("pos", "int")]))
    assert batch.to_pydict() == {"seq": [1, 10, 11, 13, 14, 15], "pos": [0, 4, 5, 6, 7, 8]}
    await owner.kill()


async def test_sequences_that_no_long_holds() -> None:
    """Such sequences are refused, not wrapped, and only if requested."""
    store = MemoryStore()
    owner, stream = await one_stream(store)
    stream.append([(b"s.a", b"", b"x")], gap=(1 << 63) - 2)
    await owner.log.persisted()
    stream.append([(b"s.a", b"", b"y")])
    await owner.log.persisted()
    objects = MemoryObjectClient(store)
    first, second = planned(objects, "s")
    data = requested("messages", [("data", "binary")])
    assert [batch[0].to_pylist() for batch in read_tasks(objects, [first, second], EVERYTHING,
                                                         data)] == [[b"x"], [b"y"]]
    assert [batch[0].to_pylist() for batch in read_tasks(objects, [first], EVERYTHING, SEQ)] == [[(1 << 63) - 1]]
    with pytest.raises(PipelineError, match="9223372036854775808 do not fit"):
        list(read_tasks(objects, [second], EVERYTHING, SEQ))
    await owner.kill()


# ---- only the necessary reads


async def one_stream(store: ObjectStore, codec: SectionCodec = SECTIONS) -> tuple[Owner, Any]:
    owner = Owner(store, codec=codec, segment_bytes=1 << 30, segment_count=1 << 30)
    await owner.start()
    return owner, await owner.make("s")


async def test_only_needed_ranges_are_fetched() -> None:
    """Nothing is fetched for sequences alone, and no frame without payloads. Of payloads only the frames that hold a
    wanted row are fetched, neighbours by one get."""
    store = MemoryStore()
    owner, stream = await one_stream(store, UNCOMPRESSED)
    body = random.Random(1).randbytes(1000)
    stream.append([(b"s.rare" if i in (5, 700, 705, 900, 4000) else b"s.often", b"", body) for i in range(5000)])
    await owner.log.persisted()
    objects = MemoryObjectClient(store)
    [task] = planned(objects, "s")
    ref = task.ref
    assert ref.frames_bytes == 5_000_000

    def asked(schema: pa.Schema, selection: Selection = EVERYTHING, of: ScanTask = task
              ) -> tuple[int, list[tuple[int, int | None]]]:
        objects.asked.clear()
        found = sum(batch.num_rows for batch in read_tasks(objects, [of], selection, schema))
        return found, [(start, end) for _, start, end in objects.asked]

    index = (ref.index_offset, ref.index_offset + ref.index_bytes)
    rare = Selection(subjects=(b"s.rare",))
    assert asked(SEQ) == (5000, [])
    assert asked(requested("messages",
                           [("seq", "bigint"), ("subject", "string"), ("ts", "timestamp")])) == (5000, [index])
    assert asked(SEQ, rare) == (5, [index])
    assert asked(EXACT, Selection(subjects=(b"other",))) == (0, [index])
    found, gets = asked(EXACT, rare)
    frame = 131 * 1000  # bytes of a frame: as many messages as fit into 128 KiB
    first, second = ref.frames_offset, ref.frames_offset + 5 * frame
    assert (found, gets[0]) == (5, index)
    assert gets[1:] == [(first, first + frame), (second, second + 2 * frame), (first + 30 * frame, first + 31 * frame)]
    assert asked(EXACT) == (5000, [(index[0], ref.frames_offset + ref.frames_bytes)])
    found, gets = asked(EXACT, of=task._replace(first_seq=2000, last_seq=2001))
    assert (found, gets) == (2, [index, (first + 15 * frame, first + 16 * frame)])
    await owner.kill()


async def test_small_blocks_are_read_together() -> None:
    """Many small blocks become few batches, the first of which comes at once; few are fetched if the caller stops
    early."""
    store = MemoryStore()
    owner, stream = await one_stream(store)
    for i in range(300):
        stream.append([(b"s.a", b"", b"%d" % i)] * 3)
        await owner.log.persisted()
    objects = MemoryObjectClient(store)
    found = planned(objects, "s")
    assert len(found) == 300
    batches = list(read_tasks(objects, found, EVERYTHING, EXACT))
    assert rows_of(batches) == stream.rows()
    assert batches[0].num_rows == 3
    assert len(batches) <= 8
    objects.asked.clear()
    some = read_tasks(objects, found, EVERYTHING, EXACT, prefetch=3)
    assert next(some).num_rows == 3
    some.close()  # type: ignore[attr-defined]
    assert len(objects.asked) < 30
    assert reading_threads() == []
    await owner.kill()


def run_of(name_seqs: list[tuple[int, int]], number: int = 9) -> tuple[str, bytes, list[BlockRef]]:
    """Return a run (an object of compacted blocks) with a block of messages first..last for each of ``name_seqs``."""
    blocks = []
    for first, last in name_seqs:
        block: OpenBlock[None] = OpenBlock(7, None)
        block.append_run(first, [b"s.a"] * (last - first + 1), None, [b"%d" % seq for seq in range(first, last + 1)],
                         T0)
        blocks.append(seal_block(block, Position(1, number), object_id=77))
    data = b"".join(encode_segment(Position(1, number), bytes(16), blocks, kind=ObjectKind.RUN, object_id=77,
                                   place=BlockPlace.RUN))
    refs = [block.ref for block in blocks]
    return PATHS.run(Position(1, number), 77), data, [ref for ref in refs if ref is not None]


async def test_blocks_of_one_object_share_gets() -> None:
    """Neighbouring blocks of an object are fetched together: their indexes and frames are contiguous."""
    store = MemoryStore()
    key, data, refs = run_of([(1, 100), (101, 150), (200, 400)])
    await store.put(key, [data])
    objects = MemoryObjectClient(store)
    found = [ScanTask("$G", "s", 7, 0, key, ref, ref.first_seq, ref.last_seq, None) for ref in refs]
    # The first load has one block, so that LIMIT reads little; later loads grow.
    batches = read_tasks(objects, found, EVERYTHING, EXACT, prefetch=0)
    assert [row[0] for row in rows_of(batches)] == [*range(1, 151), *range(200, 401)]
    assert len(objects.asked) == 2
    assert objects.asked[1][1:] == (refs[1].index_offset, len(data))


async def test_blocks_of_several_streams_share_gets(monkeypatch: pytest.MonkeyPatch) -> None:
    """A query of several streams reads their blocks in one segment by one get, each stream's messages in order."""
    store = MemoryStore()
    owner = Owner(store, segment_bytes=1 << 30, segment_count=1 << 30)
    await owner.start()
    streams = [await owner.make(name) for name in "abcdefgh"]
    for n in range(20):
        for stream in streams:
            stream.append([(b"s.a", b"", b"%d" % n)])
        await owner.log.persisted()
    objects = MemoryObjectClient(store)
    monkeypatch.setattr(query, "open_object_client", lambda url: objects)
    options = Options.parse({"store": "s3://bucket/there", "stream": "*"})
    schema = requested("messages", [("stream", "string"), ("seq", "bigint"), ("data", "binary")])
    parts = query.partitions(options, options.selection(), schema)
    objects.asked.clear()
    rows = [row for part in parts for batch in query.read(options, options.selection(), schema, part)
            for row in batch.to_pylist()]
    assert len(objects.asked) <= 20 + 8  # The first loads have few blocks, so they divide a segment.
    for stream in streams:
        assert [(row["seq"], row["data"]) for row in rows if row["stream"] == stream.name] == [
            (seq, data) for seq, _, _, data, _ in stream.rows()]
    await owner.kill()


@pytest.mark.parametrize("count", [1, SMALL_COUNT, SMALL_COUNT + 1])
async def test_small_blocks_give_the_same_rows_as_others(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every column of blocks around the size bound of small ones equals that of the same blocks read the other way."""
    store = MemoryStore()
    owner, stream = await one_stream(store)
    for i in range(40):
        stream.append([(b"s.%d" % (n % 3) if n % 5 else b"s.\xff", HEADERS if n % 2 else b"", b"%d" % i)
                       for n in range(count)],
                      gap=i % 7 == 3)
        await owner.log.persisted()
    stream.remove(5, 5)
    await owner.log.persisted()
    objects = MemoryObjectClient(store)
    columns = [(column.name, spark_type(kind)) for column in VIEWS["messages"] for kind in (column.type, column.other)
               if kind is not None]
    for names in (columns[:1] + columns[2:4] + columns[5:], [columns[1], columns[4]], [columns[2]], [columns[3]]):
        schema = requested("messages", [(name, kind) for i, (name, kind) in enumerate(names)
                                        if name not in [one for one, _ in names[:i]]])
        for selection in (EVERYTHING, Selection(subjects=(b"s.1",)), Selection(first_seq=7, last_seq=31),
                          Selection(first_ns=T0 + 5_000_000, last_ns=T0 + 20_000_000)):
            found = planned(objects, "s", selection)
            few = pa.Table.from_batches(read_tasks(objects, found, selection, schema), schema)
            with monkeypatch.context() as patch:
                patch.setattr(reading, "SMALL_COUNT", 0)
                assert few.equals(pa.Table.from_batches(read_tasks(objects, found, selection, schema), schema))
            few.validate(full=True)
    await owner.kill()


# ---- bounds


async def test_reading_ahead_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """No more is fetched ahead than ``prefetch`` and the bound in bytes allow; one load is always allowed."""
    store = MemoryStore()
    owner, stream = await one_stream(store)
    for _ in range(12):
        stream.append([(b"s.a", b"", owner.rng.randbytes(100_000))])
        await owner.log.persisted()
    objects = MemoryObjectClient(store)
    found = planned(objects, "s")
    monkeypatch.setattr(reading, "_LOAD_BYTES", 1)
    monkeypatch.setattr(reading, "_BATCH_BYTES", 1)
    for prefetch, ahead, most in ((3, 1 << 30, 4), (8, 500_000, 3), (8, 1, 1)):
        monkeypatch.setattr(reading, "_AHEAD_BYTES", ahead)
        objects.asked.clear()
        seen = 0
        for batch in read_tasks(objects, found, EVERYTHING, EXACT, prefetch=prefetch):
            seen += batch.num_rows
            assert len(objects.asked) <= seen + most, (prefetch, ahead)
        assert seen == 12
    await owner.kill()


@pytest.mark.parametrize("ending", ["all", "close", "error", "garbage"])
async def test_threads_end(ending: str) -> None:
    """No thread outlives the reading, for each way in which it can end; ``no_threads`` checks this, too."""
    store = MemoryStore()
    owner, stream = await one_stream(store)
    for _ in range(40):
        stream.append([(b"s.a", b"", owner.rng.randbytes(300_000))])
        await owner.log.persisted()
    objects = MemoryObjectClient(store)
    found = planned(objects, "s")
    objects.asked.clear()
    batches = read_tasks(objects, found, EVERYTHING, EXACT)
    assert next(batches).num_rows == 1
    assert reading_threads() != []
    if ending == "all":
        assert len(rows_of(batches)) == 39
    elif ending == "error":
        key = found[20].key
        store.objects[key] = bytes(len(store.objects[key]))
        with pytest.raises(Damaged, match=key):
            list(batches)
    elif ending == "close":
        batches.close()  # type: ignore[attr-defined]
        assert len(objects.asked) < 20
    del batches
    assert reading_threads() == []
    await owner.kill()


async def test_a_block_larger_than_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """A large block comes in several batches, fetched one after another, and no thread holds the later ones."""
    store = MemoryStore()
    owner, stream = await one_stream(store)
    stream.append([(b"s.%d" % (i % 3), HEADERS if i % 7 == 0 else b"", owner.rng.randbytes(50_000)) for i in range(60)])
    await owner.log.persisted()
    objects = MemoryObjectClient(store)
    found = planned(objects, "s")
    monkeypatch.setattr(reading, "_GROUP_BYTES", 400_000)
    monkeypatch.setattr(reading, "_BATCH_BYTES", 1)
    batches = list(read_tasks(objects, found, EVERYTHING, EXACT))
    assert rows_of(batches) == stream.rows()
    assert len(batches) >= 8
    assert all(batch.nbytes < 450_000 for batch in batches)
    objects.asked.clear()
    some = read_tasks(objects, found, EVERYTHING, EXACT)
    next(some)
    some.close()  # type: ignore[attr-defined]
    assert len(objects.asked) <= 4
    await owner.kill()


async def test_a_block_of_many_messages_and_no_payload() -> None:
    """Columns of a block with more messages than a batch come in parts: from the block's index, or from its reference
    alone."""
    store = MemoryStore()
    owner, stream = await one_stream(store)
    stream.append([(b"s.a", b"", b"")] * 150_000)
    await owner.log.persisted()
    stream.remove(3, 3)
    await owner.log.persisted()
    objects = MemoryObjectClient(store)
    found = planned(objects, "s")
    for columns in ([("seq", "bigint")], [("seq", "bigint"), ("subject", "string")]):
        batches = list(read_tasks(objects, found, EVERYTHING, requested("messages", columns)))
        assert [batch.num_rows for batch in batches] == [65536, 65536, 18927]
        assert [seq for batch in batches for seq in batch[0].to_pylist()] == [1, 2, *range(4, 150_001)]
    await owner.kill()


# ---- damage


def until_error(batches: Iterator[pa.RecordBatch]) -> tuple[list[Row], PipelineError]:
    """The rows before the expected error, and the error."""
    got: list[Row] = []
    try:
        for batch in batches:
            got += rows_of([batch])
    except PipelineError as error:
        return got, error
    raise AssertionError("no error")


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 0x41]) + data[at + 1:]


@pytest.mark.parametrize("codec", [SECTIONS, UNCOMPRESSED])
async def test_damage_is_an_error_and_never_a_row(codec: SectionCodec) -> None:
    """A flipped bit at any of many places of index and frames, or an object cut short, gives an error. It names object,
    section and offset, and only correct rows come before it."""
    store = MemoryStore()
    owner, stream = await one_stream(store, codec)
    for i in range(4):
        stream.append([(b"s.%d" % (j % 5), HEADERS if j % 3 == 0 else b"", b"line %d of log %d, " % (j, i) * 60)
                       for j in range(300)])
        await owner.log.persisted()
    await owner.kill()
    objects = MemoryObjectClient(store)
    found = planned(objects, "s")
    rows = stream.rows()
    task = found[2]
    ref, sound = task.ref, store.objects[task.key]
    rng = random.Random(int(codec.compression))
    places = [(section, start + rng.randrange(size)) for section, start, size in (
        ("index", ref.index_offset, 76), ("index", ref.index_offset, ref.index_bytes),
        ("frame", ref.frames_offset, ref.frames_bytes)) for _ in range(12)]
    cuts = [("index", ref.index_offset), ("index", ref.index_offset + 70),
            ("index", ref.index_offset + ref.index_bytes - 1),
            ("frame", ref.frames_offset), ("frame", ref.frames_offset + 1), ("frame", len(sound) - 1)]
    for prefetch in (0, 3):
        for damaged, section in [(flipped(sound, at), section) for section, at in places] + [
                (sound[:at], section) for section, at in cuts]:
            store.objects[task.key] = damaged
            got, error = until_error(read_tasks(objects, found, EVERYTHING, EXACT, prefetch=prefetch))
            text = str(error)
            assert isinstance(error, Damaged | Newer), text
            assert task.key in text
            assert "stream $G/s" in text
            assert section in text
            assert "at byte " in text
            assert got == rows[:len(got)]
            assert len(got) <= 600
    # Frames that are not needed are not checked.
    store.objects[task.key] = flipped(sound, ref.frames_offset)
    names = requested("messages", [("subject", "string")])
    assert sum(batch.num_rows for batch in read_tasks(objects, found, EVERYTHING, names)) == 1200
    # The object now has another block's index in the right place, with its checksums.
    store.objects[task.key] = store.objects[found[1].key]
    with pytest.raises(Damaged, match="belongs to another block"):
        list(read_tasks(objects, [task], EVERYTHING, names))


# ---- objects that are deleted


SKIP = LossRule(fail=False)


async def test_blocks_that_are_swept_after_the_plan(caplog: pytest.LogCaptureFixture) -> None:
    """Messages were removed since the plan, and a running broker deleted their objects: the query fails, or, on
    request, skips them with a warning and reads everything else. Messages removed from an object that still exists are
    read as planned."""
    store = MemoryStore()
    owner, stream = await one_stream(store)
    for _ in range(12):
        stream.append([(b"s.a", b"", b"x" * 50)] * 50)
        await owner.log.persisted()
    objects = MemoryObjectClient(store)
    found = planned(objects, "s")
    rows = stream.rows()
    stream.remove(1, 420)
    for _ in range(4):
        stream.append([(b"s.a", b"", b"later")])
        await owner.log.persisted()
        await owner.round()
    gone = [task.key for task in found if task.key not in store.objects]
    assert gone == [task.key for task in found[:8]]
    for prefetch in (0, 3):
        caplog.clear()
        assert rows_of(read_tasks(objects, found, EVERYTHING, EXACT, prefetch=prefetch, rule=SKIP)) == rows[400:]
        assert len(caplog.messages) == 8
        assert "messages between 351 and 400 were removed" in caplog.messages[-1]
        got, error = until_error(read_tasks(objects, [*found[8:], *found], EVERYTHING, EXACT, prefetch=prefetch))
        assert isinstance(error, DataLoss)
        assert got == rows[400:400 + len(got)]
        assert re.search(r"stream \$G/s: messages between 1 and 50 were removed after this query was planned.*"
                         r"reader_grace.*failOnDataLoss=false$", str(error))
        assert rows_of(read_tasks(objects, found[8:], EVERYTHING, EXACT, prefetch=prefetch)) == rows[400:]
    await owner.kill()


@pytest.mark.parametrize("gap", [0, 3])
async def test_messages_removed_before_the_plan_are_no_loss(gap: int) -> None:
    """A block whose messages in the wanted range were already dead may be deleted, with gaps in its sequences, too."""
    store = MemoryStore()
    owner, stream = await one_stream(store)
    stream.append([(b"s.a", b"", b"x")] * 10)
    stream.append([(b"s.a", b"", b"x")] * 10, gap=gap)
    await owner.log.persisted()
    stream.remove(2, 10 + gap)
    await owner.log.persisted()
    objects = MemoryObjectClient(store)
    early = Selection(first_seq=2, last_seq=10 + gap)
    [dead], [live] = planned(objects, "s", early), planned(objects, "s")
    stream.purge(stream.last_seq)
    async with asyncio.timeout(30):
        while live.key in store.objects:
            stream.append([(b"s.a", b"", b"x")])
            await owner.log.persisted()
            await owner.round()
            await asyncio.sleep(0)
    assert rows_of(read_tasks(objects, [dead], early, EXACT)) == []
    with pytest.raises(DataLoss):
        list(read_tasks(objects, [live], EVERYTHING, EXACT))
    await owner.kill()


async def test_a_stream_that_is_deleted_after_the_plan() -> None:
    """The rows of a deleted stream are lost, also if another stream has its name by then."""
    store = MemoryStore()
    owner, stream = await one_stream(store)
    stream.append([(b"s.a", b"", b"x")] * 5)
    await owner.log.persisted()
    objects = MemoryObjectClient(store)
    found = planned(objects, "s")
    stream.delete()
    other = await owner.make("other")
    async with asyncio.timeout(30):
        while found[0].key in store.objects:
            other.append([(b"other.a", b"", b"x")])
            await owner.log.persisted()
            await owner.round()
            await asyncio.sleep(0)
    for _ in range(2):
        assert rows_of(read_tasks(objects, found, EVERYTHING, EXACT, rule=SKIP)) == []
        with pytest.raises(DataLoss, match="the stream was deleted after this query was planned"):
            list(read_tasks(objects, found, EVERYTHING, EXACT))
        if "s" not in owner.streams:
            again = await owner.make("s")
            again.append([(b"s.a", b"", b"of another stream")] * 5)
            await owner.log.persisted()
    await owner.kill()


@pytest.mark.parametrize(("how", "config", "lost"), [
    ("purge", {}, True), ("purge", {"max_msgs_per_subject": 1}, False), ("remove", {}, False), ("delete", {}, True)])
async def test_the_losses_of_a_streaming_query(how: str, config: dict[str, Any], lost: bool) -> None:
    """A batch being read has the rule of its plan: only messages below the first sequence are lost, and none in a
    stream that removes messages one by one."""
    store = MemoryStore()
    owner = Owner(store)
    await owner.start()
    stream, other = await owner.make("s", config=config), await owner.make("other")
    for _ in range(3):
        stream.append([(b"s.a", b"", b"x")] * 5)
        await owner.log.persisted()
    objects = MemoryObjectClient(store)
    found = planned(objects, "s")
    if how == "delete":
        stream.delete()
    elif how == "purge":
        stream.purge(10)
    else:
        stream.remove(6, 10)
    async with asyncio.timeout(30):
        while found[1].key in store.objects:
            other.append([(b"other.a", b"", b"x")])
            await owner.log.persisted()
            await owner.round()
            await asyncio.sleep(0)
    batches = read_tasks(objects, found, EVERYTHING, EXACT, rule=LossRule(following=True))
    if lost:
        with pytest.raises(DataLoss):
            list(batches)
    else:
        assert rows_of(batches) == stream.rows()
    await owner.kill()


async def test_an_object_that_is_lost() -> None:
    """A missing object that the newest state still names gives an error that names it, after only correct rows."""
    store = MemoryStore()
    owner, stream = await one_stream(store)
    for _ in range(5):
        stream.append([(b"s.a", b"", b"x")] * 10)
        await owner.log.persisted()
    await owner.round()
    await owner.kill()
    objects = MemoryObjectClient(store)
    found = planned(objects, "s")
    del store.objects[found[3].key]
    got, error = until_error(read_tasks(objects, found, EVERYTHING, EXACT))
    assert isinstance(error, Gone)
    assert got == stream.rows()[:len(got)]
    assert found[3].key in str(error)
    assert "31 to 40" in str(error)
    assert "inspect --verify" in str(error)


@pytest.mark.parametrize("when", [1, 2, 3])
async def test_blocks_that_moved(when: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages are read from their present objects, exactly once each, if their object is deleted before the index is
    read, before the frames are, or between two groups of frames. A second move is followed, too."""
    store = MemoryStore()
    objects = MemoryObjectClient(store)
    monkeypatch.setattr("broker.storage.log.writer.FRAME_BYTES", 200)  # several frames a block
    monkeypatch.setattr(reading, "_TOGETHER_BYTES", 0)
    monkeypatch.setattr(reading, "_GROUP_BYTES", 1)
    key, data, [ref] = run_of([(1, 400)], number=1)
    moved, moved_data, moved_refs = run_of([(1, 150), (151, 400)], number=2)
    again, again_data, again_refs = run_of([(1, 200), (201, 300), (301, 500)], number=3)
    await store.put(key, [data])
    task = ScanTask("$G", "s", 7, 0, key, ref, 11, 390, None)

    def newest(*_: Any) -> StreamSnapshot:
        refs = moved_refs if moved in store.objects else again_refs
        return StreamSnapshot("$G", "s", 7, 0, {}, T0, 21, 500, 480, 0, T0, T0, Position(1, 3), 500,
                            [BlockEntry(one) for one in refs], {})

    def before(asked: str) -> None:
        if asked == key and len([one for one in objects.asked if one[0] == key]) == when and key in store.objects:
            del store.objects[key]
            store.objects[moved] = moved_data
        elif asked == moved and len([one for one in objects.asked if one[0] == moved]) == 2:
            del store.objects[moved]
            store.objects[again] = again_data

    objects.before = before
    monkeypatch.setattr(missing, "newest", newest)
    got = [row[0] for row in rows_of(read_tasks(objects, [task], EVERYTHING, EXACT, prefetch=when - 1))]
    read_before = [seq for seq in got if seq < 21]  # the stream begins at 21 by now
    assert got == read_before + list(range(21, 391))
    assert read_before == list(range(11, 11 + len(read_before)))
    assert bool(read_before) == (when == 3)
    assert again in store.objects
    assert moved not in store.objects


async def test_defaults_are_whole() -> None:
    """The default columns of the view hold every message."""
    store = MemoryStore()
    owner = await varied(store, 5, steps=10)
    objects = MemoryObjectClient(store)
    schema = arrow_schema("messages")
    assert schema.names == ["seq", "subject", "ts", "headers", "data"]
    mixed = owner.streams["mixed"]
    table = pa.Table.from_batches(read_tasks(objects, planned(objects, "mixed", account="ACME/é"), EVERYTHING, schema),
                                  schema)
    assert table.to_pydict()["data"] == [row[3] for row in mixed.rows()]
    await owner.kill()
