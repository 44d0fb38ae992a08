"""Segments: everything written is read back, and nothing else is ever read."""

from __future__ import annotations

import random
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.storage.format.block import (
    FIRST_TIME_NS,
    LAST_TIME_NS,
    SUMMARY_SUBJECTS_MAX,
    BlockPlace,
    BlockRef,
    Outcome,
    Removed,
)
from broker.storage.format.errors import Corrupt, FormatError
from broker.storage.format.frames import decode_frame
from broker.storage.format.header import HEADER_BYTES, ObjectHeader, ObjectKind, Position
from broker.storage.format.index import INDEX_FIXED_BYTES, decode_index, decode_known_index
from broker.storage.format.message_size import message_size
from broker.storage.format.records.kinds import RecordKind
from broker.storage.format.section import SECTIONS, UNCOMPRESSED, SectionCodec
from broker.storage.format.segment import HEAD_BYTES_MIN, SegmentHead, decode_head
from broker.storage.log.writer import OpenBlock, encode_segment, seal_block
from tests.plain_records import add_record
from tests.storage.format.whole import AT, NONCE, Row, block_rows, chunk_rows, decode_plain, encode, head_of, open_block

T0 = 1_700_000_000_000_000_000

bodies = st.binary(max_size=300) | st.integers(0, 300).map(lambda n: b"ab" * n)
subjects = st.sampled_from([b"a", b"orders.eu", b"\xc3\xa9.\xff", b"x" * 250]) | st.binary(min_size=1, max_size=4)


@st.composite
def messages(draw: st.DrawFn) -> list[list[Row]]:
    """Runs of messages: gaps between some, times that repeat, advance or (after a clock step) go back."""
    seq = draw(st.sampled_from([1, 2, 1 << 20, (1 << 63) - 1, (1 << 64) - 10_000]))
    runs = []
    for _ in range(draw(st.integers(0, 6))):
        seq += draw(st.sampled_from([0, 0, 0, 1, 3, 300, 70_000])) if seq < 1 << 63 else 0
        time_ns = draw(st.sampled_from([0, T0, T0 + 1, T0 + 70_000]) | st.integers(0, (1 << 63) - 1))
        run = []
        for body in draw(st.lists(bodies, min_size=1, max_size=8)):
            run.append(Row(seq, time_ns, draw(subjects), draw(st.integers(0, len(body))), body))
            seq += 1
        runs.append(run)
    return runs


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats(allow_nan=False)
    | st.text(max_size=9) | st.binary(max_size=40), lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(st.text(max_size=5) | st.integers(0, 1 << 40), inner, max_size=4), max_leaves=12)
u64 = st.integers(0, (1 << 64) - 1)
ranges = st.tuples(st.integers(1, (1 << 64) - 1), st.integers(0, 1 << 33), st.integers(0, 9), u64).map(
    lambda t: Removed(t[0], min(t[0] + t[1], (1 << 64) - 1), t[2], t[3]))


@settings(max_examples=150, deadline=None)
@given(runs=messages(), removed=st.lists(ranges, max_size=6), codec=st.sampled_from([SECTIONS, UNCOMPRESSED]),
       records=st.lists(st.tuples(st.sampled_from(RecordKind), values), max_size=4),
       outcome=st.builds(Outcome, u64, u64, u64, u64, st.integers(0, (1 << 63) - 1)))
def test_a_block_reads_back_as_it_was_written(runs: list[list[Row]], removed: list[Removed], codec: SectionCodec,
                                              records: list[tuple[RecordKind, object]], outcome: Outcome) -> None:
    """Shows identity: arbitrary messages, gaps, headers, removed ranges and records go through bytes unchanged."""
    block = open_block(0xFEED, runs)
    block.outcome = outcome
    for one in removed:
        block.remove(*one)
    for kind, body in records:
        add_record(block, kind, body)
    rows = [row for run in runs for row in run]
    sealed = seal_block(block, AT)
    assert [row for chunk in sealed.chunks for row in chunk_rows(chunk)] == rows
    data = b"".join(encode_segment(AT, NONCE, [sealed], codec))
    head = head_of(data)
    core, read = block_rows(data, head, 0)
    assert read == rows
    assert core == sealed.core
    assert head.ref(0, core) == sealed.ref
    assert (list(core.removed), core.outcome) == (removed, outcome)
    assert [(r.kind, r.body, r.after_seq) for r in core.records] == [
        (kind, body, rows[-1].seq if rows else 0) for kind, body in records]
    if rows:
        assert core.bytes == sum(message_size(row.subject, row.hlen, row.body) for row in rows)
        assert (core.first_seq, core.last_seq) == (rows[0].seq, rows[-1].seq)
        assert (core.first_time_ns, core.last_time_ns) == (rows[0].time_ns, rows[-1].time_ns)
        ref = head.ref(0, core)
        assert ref is not None
        assert BlockRef.unpack(ref.pack()) == ref


@settings(max_examples=60, deadline=None)
@given(runs=messages().filter(bool))
def test_the_methods_of_an_index_agree_with_the_list_of_messages(runs: list[list[Row]]) -> None:
    """Shows every method of a decoded index against the plain list of messages; the sealed index equals it."""
    rows = [row for run in runs for row in run]
    sealed = seal_block(open_block(1, runs), AT)
    data = b"".join(encode_segment(AT, NONCE, [sealed]))
    ref = sealed.ref
    assert ref is not None
    index = data[ref.index_offset:ref.index_offset + ref.index_bytes]
    assert sealed.head is not None
    for head in (decode_index(index, ref), decode_known_index(index, ref), sealed.head):
        for number, frame in enumerate(head.frames if head is not sealed.head else ()):
            at = ref.frames_offset + frame.offset
            chunk = decode_frame(head, number, data[at:at + frame.stored_bytes])
            assert chunk_rows(chunk) == rows[frame.start:frame.start + frame.messages]
        assert list(head.subjects) == sorted({row.subject for row in rows})
        assert (head.first_seq, head.last_seq, head.count) == (rows[0].seq, rows[-1].seq, len(rows))
        for number, subject in enumerate(head.subjects):
            places = [i for i, row in enumerate(rows) if row.subject == subject]
            assert head.postings(number) == places
            assert head.subject_id(subject) == number
            assert (head.subject_counts[number], head.subject_firsts[number], head.subject_lasts[number]) == (
                len(places), places[0], places[-1])
        assert head.subject_id(b"\x00nobody") is None
        for ordinal, row in enumerate(rows):
            assert (head.seq_of(ordinal), head.time_of(ordinal), head.subject_of(ordinal)) == row[:3]
            assert head.ordinal_of(row.seq) == ordinal
            frame = head.frames[head.frame_of(ordinal)]
            assert frame.start <= ordinal < frame.start + frame.messages
        assert head.ordinal_of(0) == 0
        assert head.ordinal_of(rows[-1].seq + 1) == len(rows)
        times = [row.time_ns for row in rows]
        if times == sorted(times):
            for time_ns in {0, times[0] + 1, times[-1], times[-1] + 1}:
                assert head.ordinal_at(time_ns) == sum(one < time_ns for one in times)
        if core_subjects := sealed.core.subjects:
            assert core_subjects == tuple(
                (subject, len(seqs), seqs[0], seqs[-1]) for subject in head.subjects
                for seqs in [[row.seq for row in rows if row.subject == subject]])
        else:
            assert len(head.subjects) > SUMMARY_SUBJECTS_MAX or sum(map(len, head.subjects)) > 1024
        assert head.size > 0


def test_many_subjects_have_no_summary_but_are_all_in_the_index() -> None:
    """Shows the wide case: 300 subjects over 5000 messages in runs of one, found only by the index."""
    rng = random.Random(5)
    rows = [Row(10 + i, T0 + i, b"s.%d" % rng.randrange(300), 0, b"%d" % i) for i in range(5000)]
    data = encode(open_block(9, [[row] for row in rows]))
    core, read = block_rows(data, head_of(data), 0)
    assert read == rows
    assert core.subjects is None


def test_frames_are_cut_at_messages_by_size_and_by_count() -> None:
    """Shows that a frame stays below 128 KiB and 4096 messages, and that a larger message has its own."""
    big = random.Random(1).randbytes(200_000)
    bodies = [b"x" * 1000] * 200 + [big] + [b""] * 5000 + [b"y" * 131_072, b"z"]
    rows = [Row(1 + i, T0, b"s", 0, body) for i, body in enumerate(bodies)]
    sealed = seal_block(open_block(9, [rows]), AT)
    assert [(len(chunk), chunk.start) for chunk in sealed.chunks] == [
        (131, 0), (69, 131), (1, 200), (4096, 201), (905, 4297), (1, 5202)]
    data = b"".join(encode_segment(AT, NONCE, [sealed]))
    assert block_rows(data, head_of(data), 0)[1] == rows


@pytest.mark.parametrize("codec", [SECTIONS, UNCOMPRESSED])
def test_a_message_of_64_mib_with_headers_reads_back(codec: SectionCodec) -> None:
    """Shows the largest message that any max_payload allows, with headers."""
    body = b"NATS/1.0\r\nA: b\r\n\r\n" + random.Random(2).randbytes(1 << 20) * 64
    data = encode(open_block(9, [[Row(1, T0, b"s", 18, body)]]), codec=codec)
    _, rows = block_rows(data, head_of(data), 0)
    assert rows == [Row(1, T0, b"s", 18, body)]


def test_a_segment_without_blocks_is_a_heartbeat() -> None:
    """Shows the empty segment."""
    data = encode()
    assert len(data) == HEAD_BYTES_MIN
    assert len(head_of(data)) == 0


def test_records_apply_after_earlier_messages() -> None:
    """Shows after_seq: 0 before the first message, then the last sequence appended so far."""
    block = open_block(5, [])
    add_record(block, RecordKind.STREAM_CREATE, {"name": "a"})
    block.append_run(7, [b"s", b"s"], None, [b"1", b"2"], T0)
    body = {"seqs": [8]}
    add_record(block, RecordKind.CONSUMER_STATE, body)
    body["seqs"].append(9)  # the record has the body as it was added, without later changes
    data = encode(block)
    core = head_of(data).core(0)
    assert [(r.after_seq, r.body) for r in core.records] == [(0, {"name": "a"}), (8, {"seqs": [8]})]
    assert not block.empty
    assert OpenBlock(1, None).empty


def test_a_short_prefix_returns_the_number_of_bytes_needed() -> None:
    """Shows recovery's first read: any prefix gives either the head or a larger number of bytes that suffices."""
    data = encode(*(open_block(i, [[Row(i, T0, b"s.%d" % i, 0, b"x" * i)]]) for i in range(1, 12)))
    whole = head_of(data)
    for length in range(HEADER_BYTES, whole.size + 1):
        got = decode_head(data[:length], AT)
        while isinstance(got, int):
            assert got > length
            length = got
            got = decode_head(data[:length], AT)
        assert got.rows == whole.rows
        assert [got.core(i) for i in range(len(got))] == [whole.core(i) for i in range(len(whole))]
    for length in range(len(data)):
        with pytest.raises(Corrupt):
            decode_head(data[:length], AT, complete=True)


def test_every_block_of_an_object_is_where_its_reference_points() -> None:
    """Shows the layout of many blocks, some without messages, in a run as well as in a segment."""
    blocks = [open_block(i, [[Row(i + j, T0, b"s", 0, bytes([i]) * 100 * i) for j in range(i)]] if i % 3 else [])
              for i in range(1, 30)]
    for block in blocks:
        add_record(block, RecordKind.CEILING, {"seq": block.stream_id})
    sealed = [seal_block(block, AT, object_id=77) for block in blocks]
    data = b"".join(encode_segment(AT, NONCE, sealed, kind=ObjectKind.RUN, object_id=77, place=BlockPlace.RUN))
    head = head_of(data, kind=ObjectKind.RUN, object_id=77)
    for i, one in enumerate(sealed):
        core, rows = block_rows(data, head, i)
        assert core == one.core
        assert head.ref(i, core, BlockPlace.RUN) == one.ref
        assert [row.body for row in rows] == [bytes([i + 1]) * 100 * (i + 1)] * len(rows)
        assert len(rows) == core.count


def _small() -> bytes:
    """Return a segment with something in every section."""
    first = open_block(0xABCD, [[Row(1, T0, b"a", 0, b"one"), Row(2, T0, b"b", 12, b"NATS/1.0\r\n\r\n" + b"z" * 200)],
                                [Row(5, T0 + 9, b"a", 0, b"three" * 40)]], first_seq=1, last_seq=5, msgs=2)
    first.remove(1, 1, 1, 40)
    add_record(first, RecordKind.CONSUMER_STATE, {"n": "c", "x": "y" * 200})
    second = open_block(0, [])
    add_record(second, RecordKind.RELEASE, {"roots": []})
    return encode(first, second)


def test_any_flipped_bit_is_noticed() -> None:
    """Shows that a checksum covers every byte: each flipped bit of a small segment ends in Corrupt, with its place."""
    data = _small()
    decode_plain(data, ObjectKind.SEGMENT, AT)
    for at in range(len(data)):
        for bit in range(8):
            bad = bytearray(data)
            bad[at] ^= 1 << bit
            with pytest.raises(Corrupt, match=r"segment 00000003-00000000002a") as caught:
                decode_plain(bytes(bad), ObjectKind.SEGMENT, AT)
            assert caught.value.section
            assert 0 <= caught.value.offset <= len(data)


def test_cut_and_extended_objects_are_noticed() -> None:
    """Shows that an object of another length than written is refused as a whole."""
    data = _small()
    for bad in [data[:length] for length in range(len(data))] + [data + b"\x00", data + data]:
        with pytest.raises(Corrupt):
            decode_plain(bad, ObjectKind.SEGMENT, AT)


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_damaged_bytes_never_give_other_rows(data: st.DataObject) -> None:
    """Shows that reading a partly overwritten segment raises a FormatError or returns the original."""
    good = _small()
    start = data.draw(st.integers(0, len(good) - 1))
    patch = data.draw(st.binary(min_size=1, max_size=80) | st.integers(1, 200).map(bytes))
    bad = good[:start] + patch + good[start + len(patch):]
    try:
        read = decode_plain(bad, ObjectKind.SEGMENT, AT)
    except FormatError:
        return
    assert read == decode_plain(good, ObjectKind.SEGMENT, AT)


@settings(max_examples=200, deadline=None)
@given(noise=st.binary(max_size=400), keep=st.integers(0, 300))
def test_noise_is_refused(noise: bytes, keep: int) -> None:
    """Shows that bytes that are no segment, or only begin like one, raise only a FormatError."""
    with pytest.raises(FormatError):
        decode_plain(_small()[:keep] + noise, ObjectKind.SEGMENT, AT)


def test_an_object_under_another_key_is_noticed() -> None:
    """Shows that moved objects are refused, and moved blocks inside intact ones."""
    data = _small()
    for position in (Position(3, 0x2B), Position(4, 0x2A)):
        with pytest.raises(Corrupt, match="holds the bytes of segment 00000003-00000000002a"):
            decode_head(data, position)
    with pytest.raises(Corrupt):
        decode_head(data, AT, kind=ObjectKind.RUN)
    other = Position(3, 0x2B)
    block = open_block(0xABCD, [[Row(1, T0, b"a", 0, b"one")]])
    moved, mine = (encode(block, position=position) for position in (other, AT))
    head, mine_head = head_of(moved, other), head_of(mine)
    row = head.rows[0]
    spliced = mine[:row.core_offset] + moved[row.core_offset:]  # another object's parts after our own directory
    assert len(spliced) == len(mine)
    with pytest.raises(Corrupt, match="belongs to another object"):
        head_of(spliced).core(0)
    ref = mine_head.ref(0, mine_head.core(0))
    assert ref is not None
    with pytest.raises(Corrupt, match="belongs to another block"):
        decode_index(moved[ref.index_offset:ref.index_offset + ref.index_bytes], ref)


def test_blocks_of_one_stream_are_not_mistaken_for_each_other() -> None:
    """Shows that swapped parts of two blocks in one object, and swapped frames of one block, are refused."""
    blocks = [seal_block(open_block(1, [[Row(seq, T0, b"a", 0, b"b")]]), AT) for seq in (1, 2)]
    data = b"".join(encode_segment(AT, NONCE, blocks))
    refs = [block.ref for block in blocks]
    assert refs[0] is not None
    assert refs[1] is not None
    with pytest.raises(Corrupt):
        decode_index(data[refs[1].index_offset:refs[1].index_offset + refs[1].index_bytes], refs[0])
    rng = random.Random(3)
    rows = [Row(1 + i, T0, b"a", 0, rng.randbytes(1000)) for i in range(262)]
    sealed = seal_block(open_block(1, [rows]), AT)
    data = b"".join(encode_segment(AT, NONCE, [sealed]))
    ref = sealed.ref
    assert ref is not None
    index = decode_index(data[ref.index_offset:ref.index_offset + ref.index_bytes], ref)
    first, second = index.frames
    assert first.stored_bytes == second.stored_bytes
    stored = data[ref.frames_offset + second.offset:][:second.stored_bytes]
    with pytest.raises(Corrupt, match="frame 0"):
        decode_frame(index, 0, stored)
    assert len(decode_frame(index, 1, stored)) == second.messages


def test_the_header_is_enough_to_know_the_writer() -> None:
    """Shows how an unanswered put is resolved: 64 bytes have kind, position and nonce."""
    header = ObjectHeader.unpack(_small()[:HEADER_BYTES])
    assert (header.kind, header.position, header.nonce) == (ObjectKind.SEGMENT, AT, NONCE)


def test_equal_blocks_give_equal_bytes() -> None:
    """Shows that encoding uses nothing random: a retried put has the same bytes."""
    assert _small() == _small()
    head = head_of(_small())
    assert isinstance(head, SegmentHead)


def test_times_of_a_staged_block_are_those_of_its_stream_also_when_it_is_read_again() -> None:
    """Shows that an index which was decoded before is checked again for its times."""
    rows = [Row(1 + i, 1_000 + 10 * i, b"S.%d" % i, 0, b"x") for i in range(5)]
    sealed = seal_block(open_block(1, [[row] for row in rows]), AT)
    data = b"".join(encode_segment(AT, NONCE, [sealed]))
    ref = sealed.ref
    assert ref is not None
    index = data[ref.index_offset:ref.index_offset + ref.index_bytes]
    fixed = bytearray(index[:INDEX_FIXED_BYTES - 4])
    fixed[6] |= 2  # staged
    index = bytes(fixed) + crc32(fixed).to_bytes(4, "little") + index[INDEX_FIXED_BYTES:]
    packed = list(ref.pack())
    packed[0], packed[FIRST_TIME_NS], packed[LAST_TIME_NS] = int(BlockPlace.STAGED), 1_015, 1_030
    staged = BlockRef.unpack(tuple(packed))
    for head in (decode_index(index, staged), decode_known_index(index, staged)):
        assert [head.time_of(i) for i in range(5)] == [1_015, 1_015, 1_020, 1_030, 1_030]
