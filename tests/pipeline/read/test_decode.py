"""Blocks as columns: equal to the result of the broker's decoder on the same bytes, message by message, intact or
damaged."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pyarrow as pa
import pytest

from broker.pipeline.plan.plan import ScanTask
from broker.pipeline.plan.schema import PAIRS, requested
from broker.pipeline.plan.selection import Selection
from broker.pipeline.read.bodies import Bodies, Slice
from broker.pipeline.read.columns import NUMPY
from broker.pipeline.read.decode import Block, parse_headers, readable
from broker.pipeline.read.messages import Messages
from broker.pipeline.read.sections import Rows
from broker.pipeline.read.subjects import SubjectTest
from broker.storage.format.block import BlockPlace, BlockRef
from broker.storage.format.codec import decompress
from broker.storage.format.errors import Corrupt, FormatError
from broker.storage.format.frame import Frame
from broker.storage.format.frames import check_frame, decode_frame
from broker.storage.format.header import ObjectKind, Position
from broker.storage.format.index import Head, decode_index
from broker.storage.format.keyring import KEYS
from broker.storage.format.section import SECTIONS, UNCOMPRESSED, SectionCodec
from broker.storage.format.segment import SegmentHead, decode_head
from broker.storage.log import writer
from broker.storage.log.open_block import OpenBlock
from broker.storage.log.writer import encode_segment, seal_block
from broker.storage.state.dead import DeadSet
from tests.pipeline.stores import HEADERS, T0

GOLDEN = sorted((Path(__file__).parents[2] / "golden" / "blocks").glob("*.bin"))
INDEX = struct.Struct("<4sHBBQIQQQIIIIIIIII")
MESSAGES = Messages(requested("messages",
                              [("seq", "bigint"), ("subject", "binary"), ("headers", "binary"), ("data", "binary"),
                               ("ts", "timestamp"), ("ts_ns", "bigint")]), Selection())


def encoded(runs: Sequence[tuple[int, Sequence[tuple[bytes, bytes, bytes]], int]], codec: SectionCodec = SECTIONS,
            *, grouped: bool = False) -> tuple[BlockRef, bytes]:
    """Encode an object with one block of ``runs``: first sequence, (subject, headers, data), time."""
    block: OpenBlock[None] = OpenBlock(7, None)
    for first, rows, at in runs:
        hlens = [len(headers) for _, headers, _ in rows]
        block.append_run(first, [row[0] for row in rows], hlens if any(hlens) else None,
                         [headers + data for _, headers, data in rows], at)
    sealed = seal_block(block, Position(1, 2), grouped=grouped)
    data = b"".join(encode_segment(Position(1, 2), bytes(16), [sealed], codec))
    assert sealed.ref is not None
    return sealed.ref, data


def random_runs(rng: random.Random) -> list[tuple[int, list[tuple[bytes, bytes, bytes]], int]]:
    runs = []
    seq, at = rng.choice([1, 5, 1 << 40]), T0
    subjects = [b"s.%d" % i for i in range(rng.choice([1, 3, 40, 300]))] + [b"\xff.x"] * rng.randrange(2)
    headers = rng.choice([(b"",), (b"", HEADERS), (HEADERS,)])
    size = rng.choice([0, 1, 50, 3000])
    for _ in range(rng.choice([1, 1, 4])):
        rows = [(rng.choice(subjects), rng.choice(headers),
                 rng.randbytes(size if rng.random() < 0.5 else rng.randrange(size + 1)))
                for _ in range(rng.choice([1, 7, 200]))]
        runs.append((seq, rows, at))
        seq += len(rows) + rng.choice([0, 0, 3, 1 << 20])
        at += rng.choice([0, 1, 10**9, 10**12])
    return runs


def index_of(ref: BlockRef, data: bytes) -> bytes:
    return data[ref.index_offset:ref.index_offset + ref.index_bytes]


def frames_of(ref: BlockRef, table: Sequence[Frame], data: bytes, numbers: Sequence[int]) -> list[memoryview]:
    base = ref.frames_offset
    return [memoryview(data)[base + frame.offset:base + frame.offset + frame.stored_bytes]
            for frame in (table[number] for number in numbers)]


def slice_of(block: Block, rows: Rows, numbers: Sequence[int], stored: Sequence[memoryview]) -> Slice:
    task = ScanTask("$G", "s", block.ref.stream_id, 0, block.name, block.ref, block.ref.first_seq, block.ref.last_seq,
                    None)
    return Slice(task, block, rows, numbers, stored)


def plain(column: Any) -> Any:
    return None if column is None else column.to_pylist() if isinstance(column, pa.Array) else list(map(int, column))


def assert_same_heads(head: Head, columns: Head) -> None:
    for name in ("count", "first_seq", "last_seq", "time_ns", "hlen", "body_len", "frames", "frames_offset", "starts"):
        assert getattr(head, name) == getattr(columns, name), name
    for name in ("seqs", "times", "subject_ids", "hlens", "body_lens", "subject_counts", "subject_firsts",
                 "subject_lasts"):
        assert plain(getattr(head, name)) == plain(getattr(columns, name)), name
    assert list(head.subjects) == plain(columns.subjects)


# ---- the same as the broker's decoder


@pytest.fixture(autouse=True)
def _reads_a_plain_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has looked for keys, so a section that claims to be encrypted is damaged."""
    monkeypatch.setattr(KEYS, "loaders", [lambda: None])


@pytest.mark.parametrize("grouped", [False, True], ids=["in order", "grouped"])
@pytest.mark.parametrize("seed", range(30))
def test_index_and_frames_as_the_broker_decodes_them(seed: int, grouped: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every column, and headers and payloads of all frames and of some, equal those of ``decode_frame``, and what was
    written. Grouped blocks have frames and parts of any sizes."""
    rng = random.Random(seed)
    monkeypatch.setattr(writer, "_GROUPED_MIN", 0)
    monkeypatch.setattr(writer, "GROUPED_BYTES", rng.choice([1, 1000, 1 << 20]))
    monkeypatch.setattr(writer, "PART_BYTES", rng.choice([1, 200, 32 << 10]))
    runs = random_runs(rng)
    ref, data = encoded(runs, rng.choice([SECTIONS, UNCOMPRESSED]), grouped=grouped)
    head = decode_index(index_of(ref, data), ref)
    assert head.grouped == (grouped and len(head.subjects) > 1)
    block = Block.decode(index_of(ref, data), ref, "key")
    assert block.head is not None
    assert_same_heads(head, block.head)
    stored_frames = frames_of(ref, head.frames, data, range(len(head.frames)))
    chunks = [decode_frame(head, number, bytes(stored)) for number, stored in enumerate(stored_frames)]
    for number, stored in enumerate(stored_frames):
        check_frame(head, number, stored)
    messages = [(chunk.seq(i), chunk.subjects[i], (body[:hlen] or None), body[hlen:], chunk.times[i])
                for chunk in chunks for i, body in enumerate(chunk.bodies)
                for hlen in [chunk.hlens[i] if chunk.hlens is not None else 0]]
    assert messages == [(seq + i, subject, headers or None, payload, at) for seq, rows, at in runs
                        for i, (subject, headers, payload) in enumerate(rows)]
    some = sorted(rng.sample(range(ref.count), rng.randrange(1, ref.count + 1)))
    for rows in (range(ref.count), range(some[0], some[-1] + 1), np.asarray(some)):
        wanted = [messages[i] for i in rows]
        numbers = block.sections.holding(rows)
        batch = MESSAGES.make([slice_of(block, rows, numbers, frames_of(ref, block.sections.table, data, numbers))])
        batch.validate(full=True)
        assert list(zip(*(batch[name].to_pylist() for name in ("seq", "subject", "headers", "data", "ts_ns")),
                        strict=True)
                    ) == wanted
        assert batch["ts"].cast(pa.int64()).to_pylist() == [row[4] // 1000 for row in wanted]


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_golden_objects(path: Path) -> None:
    """Both decoders read the same from each golden object, or both refuse it."""
    data = path.read_bytes()
    try:
        position = Position(*struct.unpack_from("<IQ", data, 12))
        kind = ObjectKind(data[8])
        head = decode_head(data, position, kind=kind, object_id=struct.unpack_from("<Q", data, 48)[0], complete=True)
    except (FormatError, ValueError, struct.error):
        return  # not an object of blocks, or one that planning refuses
    assert isinstance(head, SegmentHead)
    for i, row in enumerate(head.rows):
        try:
            ref = row.ref(BlockPlace.LOG, head.core(i))
        except FormatError:
            continue
        if row.messages:
            assert_alike(ref, data[row.index_offset:row.index_offset + row.index_bytes],
                         data[row.frames_offset:row.frames_offset + row.frames_bytes])


def assert_alike(ref: BlockRef, index: bytes, frames: bytes) -> str:
    """Decode both ways; return the error, "" if there was none."""
    def outcome(decode: Callable[[], Any]) -> tuple[Any, str]:
        try:
            return decode(), ""
        except FormatError as error:
            return None, f"{type(error).__name__} {error}"

    head, wrong = outcome(lambda: decode_index(index, ref, "key"))
    block, also = outcome(lambda: Block.decode(index, ref, "key"))
    assert wrong == also
    if wrong:
        return wrong
    assert_same_heads(head, block.head)
    for number, frame in enumerate(head.frames):
        stored = frames[frame.offset:frame.offset + frame.stored_bytes]
        chunk, wrong = outcome(lambda number=number, stored=stored: decode_frame(head, number, stored, "key"))
        rows = range(frame.start, frame.start + frame.messages)
        numbers = range(frame.first_part, frame.first_part + len(frame.parts)) if frame.parts else [number]
        parts = [memoryview(frames)[one.offset:one.offset + one.stored_bytes]
                 for one in (block.sections.table[number] for number in numbers)]
        bodies, also = outcome(lambda numbers=numbers, parts=parts, rows=rows: Bodies(
            [slice_of(block, rows, numbers, parts)]))
        # The decoders may report different errors first if one frame has two, and one of them names the part.
        assert bool(wrong) == bool(also)
        assert frame.parts or wrong.split(": ")[:2] == also.split(": ")[:2]
        if wrong:
            return wrong
        assert [(headers or b"") + data for headers, data in zip(
            bodies.headers().to_pylist(), bodies.payloads().to_pylist(), strict=True)] == list(chunk.bodies)
    return ""


@pytest.mark.parametrize("seed", range(8))
def test_bytes_that_no_writer_wrote(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both decoders read the same, or both refuse."""
    rng = random.Random(seed)
    refused = 0
    monkeypatch.setattr(writer, "_GROUPED_MIN", 0)
    monkeypatch.setattr(writer, "PART_BYTES", 200)
    for _ in range(12):
        ref, data = encoded(random_runs(rng), UNCOMPRESSED, grouped=rng.random() < 0.5)
        frames = data[ref.frames_offset:ref.frames_offset + ref.frames_bytes]
        sound = index_of(ref, data)
        fields = list(INDEX.unpack_from(sound))
        body = decompress(sound[INDEX.size:], fields[13]) if fields[16] else sound[INDEX.size:]
        for _ in range(25):
            changed = bytearray(body)
            # Most changes hit lengths, bases, widths and cells, and not the names at the end.
            places = rng.choice([len(changed), min(len(changed), 20 * fields[10] + 81)])
            for _ in range(rng.choice([1, 1, 2, 8])):
                changed[rng.randrange(places)] = rng.choice([0, 1, 2, 4, 8, 0x7F, 0xFF, rng.randrange(256)])
            fields[16] = 0  # not compressed
            fields[13] = fields[14] = len(changed)
            fields[15] = crc32(changed)
            fixed = INDEX.pack(*fields)[:-4]
            refused += bool(assert_alike(ref, fixed + crc32(fixed).to_bytes(4, "little") + bytes(changed), frames))
    assert refused > 100


def test_lengths_against_frames() -> None:
    """Lengths that are valid in an index alone, but contradict its frames, are refused."""
    rows = [(b"s.a", HEADERS, b"x" * 10), (b"s.a", HEADERS, b"y" * 12)]
    ref, data = encoded([(1, rows, T0)], UNCOMPRESSED)
    [stored] = frames_of(ref, decode_index(index_of(ref, data), ref).frames, data, [0])
    for column, value, reason in (("body_lens", [len(HEADERS) + 11, len(HEADERS) + 12], "do not add up"),
                                ("body_lens", [(1 << 64) - 1, 2 * len(HEADERS) + 23], "do not add up"),
                                ("hlens", [len(HEADERS) + 11, 1], "longer than its body")):
        block = Block.decode(index_of(ref, data), ref, "key")
        assert block.head is not None
        setattr(block.head, column, np.asarray(value, np.uint64))
        with pytest.raises(Corrupt, match=reason) as raised:
            Bodies([slice_of(block, range(2), [0], [stored])])
        assert (raised.value.section, raised.value.offset) == ("frame 0", ref.frames_offset)


def test_payloads_that_are_not_copied() -> None:
    """Payloads share the fetched buffer if frames are not compressed and no message has headers."""
    ref, data = encoded([(1, [(b"s.a", b"", b"%06d" % i * 20) for i in range(3000)], T0)], UNCOMPRESSED)
    block = Block.decode(index_of(ref, data), ref, "key")
    assert block.head is not None
    numbers = block.sections.holding(range(5, 2990))
    assert len(numbers) > 2
    stored = frames_of(ref, block.sections.table, data, numbers)
    payloads = Bodies([slice_of(block, range(5, 2990), numbers, stored)]).payloads()
    assert payloads.to_pylist() == [b"%06d" % i * 20 for i in range(5, 2990)]
    assert payloads.buffers()[2].address == pa.py_buffer(data).address + ref.frames_offset


@pytest.mark.parametrize("seed", range(10))
def test_blocks_together_as_each_alone(seed: int) -> None:
    """Rows of several blocks in one batch equal those of each block made alone: blocks with gaps or without, some
    with headers, one subject or many, compressed or not."""
    rng = random.Random(seed)
    slices = []
    for _ in range(rng.choice([2, 5])):
        ref, data = encoded(random_runs(rng), rng.choice([SECTIONS, UNCOMPRESSED]))
        block = Block.decode(index_of(ref, data), ref, "key")
        some = sorted(rng.sample(range(ref.count), rng.randrange(1, ref.count + 1)))
        rows = rng.choice([range(ref.count), range(some[0], some[-1] + 1), np.asarray(some)])
        numbers = block.sections.holding(rows)
        slices.append(slice_of(block, rows, numbers, frames_of(ref, block.sections.table, data, numbers)))
    together = MESSAGES.make(slices)
    together.validate(full=True)
    assert together.to_pylist() == [row for one in slices for row in MESSAGES.make([one]).to_pylist()]


def test_the_damaged_one_of_many_frames_is_named() -> None:
    """The error names frame and offset, whichever of several blocks made together has the damage."""
    rows = [(b"s.a", HEADERS, b"%06d" % i * 200) for i in range(300)]
    sound = [encoded([(1, rows, T0)], UNCOMPRESSED) for _ in range(3)]
    for wrong in range(3):
        for column, reason in (("body_lens", "do not add up"), ("hlens", "longer than its body"), ("", "checksum")):
            slices = []
            for i, (ref, data) in enumerate(sound):
                block = Block.decode(index_of(ref, data), ref, f"key {i}")
                numbers = block.sections.holding(range(ref.count))
                assert len(numbers) == 3
                stored = frames_of(ref, block.sections.table, data, numbers)
                if i == wrong and column:
                    values = np.full(ref.count, len(HEADERS) + 1200 if column == "body_lens" else len(HEADERS),
                                     np.uint64)
                    values[block.index.frames[1].start] += 5000
                    setattr(block.head, column, values)
                elif i == wrong:
                    stored[1] = memoryview(bytes(len(stored[1])))
                slices.append(slice_of(block, range(ref.count), numbers, stored))
            with pytest.raises(Corrupt, match=reason) as raised:
                Bodies(slices)
            assert (raised.value.name, raised.value.section) == (f"key {wrong}", "frame 1")
            assert raised.value.offset == sound[wrong][0].frames_offset + slices[wrong].table[1].offset


# ---- which rows


@pytest.mark.parametrize("seed", range(12))
def test_rows(seed: int) -> None:
    """The wanted ordinals equal those of a plain filter by sequences, the dead (as bits and as ranges), times and
    subjects."""
    rng = random.Random(seed)
    runs = random_runs(rng)
    ref, data = encoded(runs)
    head = decode_index(index_of(ref, data), ref)
    block = Block.decode(index_of(ref, data), ref, "key")
    for _ in range(20):
        first = rng.choice([0, ref.first_seq, rng.randrange(ref.first_seq, ref.last_seq + 1)])
        last = rng.choice([ref.last_seq, (1 << 64) - 1, rng.randrange(first, max(first, ref.last_seq) + 1)])
        dead = None
        if rng.random() < 0.6:
            dead = DeadSet(ref.first_seq, ref.last_seq, rng.choice([ref.count, 0]))
            for _ in range(rng.randrange(6)):
                start = rng.randrange(ref.first_seq, ref.last_seq + 1)
                dead.add(start, min(ref.last_seq, start + rng.choice([0, 3, 40])))
        low, high = (rng.choice([None, rng.choice(runs)[2] + rng.choice([-1, 0, 1])]) for _ in range(2))
        selection = Selection(first_ns=low, last_ns=high,
                              subjects=rng.choice([None, (b"s.1",), (b"s.*",), (b"s.1*", b"\xff.>"), (b"t",)]))
        test = SubjectTest(selection) if selection.needs_subject() else None
        rows = block.rows(first, last, dead, selection, test)
        assert list(rows) == [
            i for i in range(ref.count) if first <= head.seq_of(i) <= last
            and (dead is None or head.seq_of(i) not in dead) and (low is None or head.time_of(i) >= low)
            and (high is None or head.time_of(i) <= high) and selection.matches_subject(head.subject_of(i))]
        if len(rows):
            assert (len(rows) == rows[-1] - rows[0] + 1) == isinstance(rows, range)
            assert block.sections.holding(rows) == sorted({head.frame_of(int(i)) for i in rows})
            assert_occurrences(block, head, rows)


def assert_occurrences(block: Block, head: Head, rows: Rows) -> None:
    ids, counts, firsts, lasts = (column.tolist() for column in block.occurrences(rows))
    of_subject: dict[bytes, list[int]] = {}
    for i in map(int, rows):
        of_subject.setdefault(head.subject_of(i), []).append(i)
    assert [head.subjects[i] for i in ids] == sorted(of_subject)
    assert list(zip(counts, firsts, lasts, strict=True)) == [
        (len(of_subject[name]), of_subject[name][0], of_subject[name][-1]) for name in sorted(of_subject)]


def test_a_block_known_by_its_reference_alone() -> None:
    """The sequences of a block without gaps, and the live ones, are known without reading a byte."""
    ref, _ = encoded([(11, [(b"s.a", b"", b"x")] * 100, T0)])
    block = Block(ref, None, "key")
    dead = DeadSet(11, 110, 100)
    dead.add(20, 29)
    rows = block.rows(15, 105, dead, Selection(), None)
    assert block.seq(rows).tolist() == [*range(15, 20), *range(30, 106)]
    assert block.seq(block.rows(15, 18, None, Selection(), None)).tolist() == [15, 16, 17, 18]


@pytest.mark.parametrize("seed", range(6))
def test_subjects_are_found_by_name(seed: int) -> None:
    """The test selects the same subjects of a block as testing each does, for few and many; of many, most are not
    tested."""
    rng = random.Random(seed)
    for count in (1, 60, 3000):
        names = sorted({rng.choice([b"a.%d.x", b"orders.%d", b"orders.eu.%d", b"o.%d",
                                    b"\xff%d"]) % rng.randrange(count * 2)
                        for _ in range(count)} | {b"orders.\xff\xff\xff\xff\xff\xff\xff\xff\xff\xffz"})
        array = pa.array(names, pa.binary())
        for selection in (
                Selection(subjects=(b"orders.eu.*",)), Selection(subjects=(b"orders.>", b"a.7.x")),
                Selection(subjects=(b">",)),
                Selection(subjects=(b"*.5",)), Selection(prefixes=(b"orders.", b"ord")), Selection(suffixes=(b"1",)),
                Selection(equal=frozenset((b"o.3", b"orders.eu.9"))), Selection(prefixes=(b"\xff",)),
                Selection(subjects=(b"orders.>",), equal=frozenset((b"a.1.x", b"orders.1")))):
            assert SubjectTest(selection).ids(array).tolist() == list(map(selection.matches_subject, names)), selection
    tested = []

    class Counting(Selection):
        def matches_subject(self, subject: bytes) -> bool:
            tested.append(subject)
            return super().matches_subject(subject)

    test = SubjectTest(Counting(subjects=(b"orders.eu.*",)))
    test.ids(array)
    assert 0 < len(tested) < len(names) // 2
    before = len(tested)
    test.ids(array)
    assert len(tested) == before


# ---- text


def test_text_of_any_bytes() -> None:
    """Names that are not UTF-8 stand among names that are, and nulls."""
    names = pa.array([b"a", b"\xff.b", "ü".encode(), b"", None], pa.binary())
    assert readable(names).to_pylist() == ["a", "�.b", "ü", "", None]
    assert readable(names).type == pa.string()


def test_parsed_headers() -> None:
    """Headers give pairs in order: repeated names, malformed lines and bytes, no headers, and headers without a
    pair."""
    blocks = [HEADERS, None, b"NATS/1.0\r\n\r\n", b"NATS/1.0 503\r\n\r\n",
              b"NATS/1.0\r\nno colon\r\n:no name\r\nA:b\r\n\r\n", b"NATS/1.0\r\n\xff: \xfe\r\n\r\n", b"\xff\xff", None]
    parsed = parse_headers(pa.array(blocks, pa.binary()), PAIRS)
    parsed.validate(full=True)
    assert parsed.type == PAIRS
    assert [pairs if pairs is None else [(pair["name"], pair["value"]) for pair in pairs]
            for pairs in parsed.to_pylist()] == [
        [("Nats-Msg-Id", "1"), ("X-Kind", "a: b"), ("X-Kind", "twice")], None, [], [], [("A", "b")],
        [("�", "�")], [], None]
    assert parse_headers(pa.nulls(3, pa.binary()), PAIRS).to_pylist() == [None] * 3
    assert parse_headers(pa.array([], pa.binary()), PAIRS).to_pylist() == []


def test_sums_beyond_64_bits() -> None:
    """A sum does not wrap round to the expected one."""
    high = np.asarray([1 << 63, 1 << 63, 5], np.uint64)
    assert NUMPY.total(high) == (1 << 64) + 5
    assert NUMPY.total(np.asarray([1, 2, 3], np.uint8)) == 6
