"""The writer apart from its bytes (see tests/storage/format): sizes, sharing, threads."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from broker.storage.format.block import Outcome
from broker.storage.format.frame import FRAME_MESSAGES_MAX
from broker.storage.format.header import Position
from broker.storage.format.index import Head
from broker.storage.format.message_size import message_size
from broker.storage.format.records.kinds import RecordKind
from broker.storage.format.section import SECTIONS, UNCOMPRESSED, SectionCodec
from broker.storage.format.small import COMPRESSED_MIN
from broker.storage.log.writer import OpenBlock, SealedBlock, encode_segment, is_small, seal_block
from tests.plain_records import add_record
from tests.storage.format.whole import AT, NONCE, Row, block_rows, chunk_rows, head_of

T0 = 1_700_000_000_000_000_000


def _block(seed: int = 1, messages: int = 3000) -> OpenBlock[str]:
    rng = random.Random(seed)
    block: OpenBlock[str] = OpenBlock(7, "owner")
    for first in range(1, messages, 300):
        subjects = [b"s.%d" % rng.randrange(9) for _ in range(300)]
        block.append_run(first, subjects, None, [rng.randbytes(64).hex().encode() for _ in range(300)], T0 + first)
    return block


def test_raw_bytes_decide_when_a_segment_is_full() -> None:
    """Shows that everything to be stored counts: bodies, records, removed ranges; and when a block is empty."""
    block: OpenBlock[None] = OpenBlock(7, None)
    assert (block.empty, block.raw_bytes, block.count) == (True, 0, 0)
    block.append_run(5, [], None, [], T0)
    assert block.empty
    block.append_run(5, [b"a", b"b"], [0, 0], [b"x" * 100, b"y" * 50], T0)
    assert (block.raw_bytes, block.count, block.first_seq, block.last_seq, block.empty) == (150, 2, 5, 6, False)
    add_record(block, RecordKind.CEILING, {"seq": 65_536})
    assert 150 < block.raw_bytes < 200
    size = block.raw_bytes
    block.remove(1, 4, 4, 400)
    assert block.raw_bytes > size
    only_record: OpenBlock[None] = OpenBlock(7, None)
    add_record(only_record, RecordKind.CONSUMER_DELETE, {"name": "c"})
    assert not only_record.empty


def test_long_names_count_like_bodies() -> None:
    """Shows that subjects of usual length do not count, nor a single long one among many; the given size of other names
    counts too. The segment's tally is the same."""
    block: OpenBlock[None] = OpenBlock(7, None)
    block.append_run(1, [b"s" * 250] * 10, None, [b"x"] * 10, T0)
    assert block.raw_bytes == 10
    block.append_run(11, [b"s" * 1000, *[b"s"] * 9], None, [b"x"] * 10, T0)
    assert block.raw_bytes == 20
    block.append_run(21, [b"s", b"t" * 100_000], None, [b"x"] * 2, T0)
    assert 20 + 99_000 < block.raw_bytes < 20 + 100_003
    before = block.raw_bytes
    block.append_run(23, [b"s"], None, [b"x"], T0, 50_000)
    assert before + 49_000 < block.raw_bytes <= before + 50_001
    assert block.tally.bytes == block.raw_bytes


def test_sequences_never_go_back() -> None:
    """Shows the writer's own check: a sequence is written once, in order; nothing has a negative time."""
    block: OpenBlock[None] = OpenBlock(7, None)
    block.append_run(5, [b"a", b"a"], None, [b"", b""], T0)
    for first_seq in (5, 6):
        with pytest.raises(ValueError, match=r"sequences|follow"):
            block.append_run(first_seq, [b"a"], None, [b""], T0)
    with pytest.raises(ValueError, match=r"sequences|follow"):
        block.append_run(7, [b"a"], None, [b""], -1)
    with pytest.raises(ValueError, match=r"sequences|follow"):
        block.remove(3, 2, 0, 0)


def test_headers_may_begin_and_end_anywhere_in_a_block() -> None:
    """Shows that runs with and without header lengths mix, and the sizes of their messages."""
    rows = [Row(1, T0, b"a", 0, b"1"), Row(2, T0, b"a", 12, b"NATS/1.0\r\n\r\n2"), Row(3, T0, b"a", 0, b"3")]
    for hlens in ([None, [12], None], [None, [12], [0]], [[0], [12], None]):
        block: OpenBlock[None] = OpenBlock(7, None)
        for row, one in zip(rows, hlens, strict=True):
            block.append_run(row.seq, [row.subject], one, [row.body], T0)
        sealed = seal_block(block, AT)
        assert [row for chunk in sealed.chunks for row in chunk_rows(chunk)] == rows
        assert sealed.core.bytes == sum(message_size(row.subject, row.hlen, row.body) for row in rows)
    assert message_size(b"orders.eu", 0, b"hello") == 44
    assert message_size(b"orders.eu", 12, b"NATS/1.0\r\n\r\nhello") == 60
    zero: OpenBlock[None] = OpenBlock(7, None)
    zero.append_run(1, [b"a"], [0], [b"x"], T0)
    (chunk,) = seal_block(zero, AT).chunks
    assert chunk.hlens is None


def test_chunks_share_the_published_bodies() -> None:
    """Shows that sealing copies no body for the cache, and keeps one object for each distinct subject."""
    block = _block()
    bodies = list(block.bodies)
    sealed = seal_block(block, AT)
    kept = [body for chunk in sealed.chunks for body in chunk.bodies]
    assert all(one is other for one, other in zip(kept, bodies, strict=True))
    assert len({id(subject) for chunk in sealed.chunks for subject in chunk.subjects}) == 9
    assert sealed.owner == "owner"
    assert sum(chunk.size for chunk in sealed.chunks) > sum(map(len, bodies))


def test_a_block_that_is_never_stored_joins_nothing() -> None:
    """Shows the memory log's path: the same chunks, no frames."""
    stored, not_stored = (seal_block(_block(), AT, stored=stored) for stored in (True, False))
    assert [chunk_rows(chunk) for chunk in stored.chunks] == [chunk_rows(chunk) for chunk in not_stored.chunks]
    assert stored.core == not_stored.core
    assert (bool(stored.frames), not_stored.frames) == (True, [])


def test_threads_encode_concurrently() -> None:
    """Shows that encoding shares nothing between threads: concurrent calls return the same bytes."""
    def encode(seed: int) -> bytes:
        return b"".join(encode_segment(Position(1, seed), NONCE, [seal_block(_block(seed), Position(1, seed))]))

    alone = [encode(seed) for seed in range(8)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(encode, range(8))) == alone


def test_a_segment_of_many_small_blocks_is_a_few_buffers() -> None:
    """Shows that small parts are joined, so that a put needs few writes, and that large ones are not copied."""
    blocks: list[SealedBlock[None]] = []
    for stream_id in range(500):
        block: OpenBlock[None] = OpenBlock(stream_id, None)
        block.append_run(1, [b"s"], None, [b"x" * 100], T0)
        blocks.append(seal_block(block, AT))
    big: OpenBlock[None] = OpenBlock(1000, None)
    body = random.Random(1).randbytes(300_000)
    big.append_run(1, [b"s"], None, [body], T0)
    blocks.append(seal_block(big, AT))
    buffers = encode_segment(AT, NONCE, blocks)
    assert len(buffers) <= 10
    assert any(buffer is body for buffer in buffers)
    data = b"".join(buffers)
    head = head_of(data)
    assert [len(block_rows(data, head, i)[1]) for i in range(len(head))] == [1] * 501


@pytest.mark.parametrize("codec", [SECTIONS, UNCOMPRESSED])
def test_a_sealed_block_knows_its_place_once_encoded(codec: SectionCodec) -> None:
    """Shows that the writer's head and reference can be read from: their frames equal a decoded index's."""
    sealed = seal_block(_block(), AT)
    assert sealed.ref is None
    data = b"".join(encode_segment(AT, NONCE, [sealed], codec))
    ref, head = sealed.ref, sealed.head
    assert ref is not None
    assert head is not None
    assert sealed.frames == []
    assert (ref.frames_offset, ref.count, sealed.stream_id) == (head.frames_offset, 3000, 7)
    assert sum(frame.stored_bytes for frame in head.frames) == ref.frames_bytes
    assert ref.frames_offset + ref.frames_bytes == len(data)
    assert sealed.core.codec is codec.compression


def _values(head: Head) -> list[object]:
    return [list(value) if isinstance(value, tuple) else value
            for value in (getattr(head, name) for name in Head.__slots__)]


@pytest.mark.parametrize("codec", [SECTIONS, UNCOMPRESSED])
def test_small_blocks_are_the_same_bytes(codec: SectionCodec, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shows that blocks encoded from their lists have the same bytes, and expand to the same values."""
    monkeypatch.setattr("broker.storage.format.codec._SMALL", COMPRESSED_MIN)
    rng = random.Random(5)
    small: list[SealedBlock[int]] = []
    general: list[SealedBlock[int]] = []
    for number in range(1, 200):
        block: OpenBlock[int] = OpenBlock(number, number)
        seq, time_ns = rng.choice((1, 1000, 1 << 40)), T0
        for _ in range(rng.randint(1, 12)):
            bodies = [rng.randbytes(rng.choice((0, 64, 64, 300))).hex().encode()] * rng.choice((1, 1, 3))
            if len(bodies) == 1:
                block.append_one(seq, b"s.%d" % number, bodies[0], time_ns)
            else:
                block.append_run(seq, [b"s.%d" % number] * len(bodies), None, bodies, time_ns)
            seq += len(bodies)
            time_ns += rng.choice((0, 0, 200, 70_000, 20_000_000, 5_000_000_000))
        block.outcome = Outcome(1, seq - 1, seq - 1, 100 * seq, T0)
        assert is_small(block)
        small.append(SealedBlock.of_small(block, AT))
        general.append(seal_block(block, AT))
    assert b"".join(encode_segment(AT, NONCE, small, codec)) == b"".join(encode_segment(AT, NONCE, general, codec))
    for one, other in zip(small, general, strict=True):
        assert one.ref == other.ref
        assert one.core == other.core
        assert one.head is not None
        assert other.head is not None
        assert _values(one.head) == _values(other.head)
        assert list(map(chunk_rows, one.chunks)) == list(map(chunk_rows, other.chunks))


def test_blocks_that_are_not_small() -> None:
    """Shows that a block with anything that a small one has no field for is encoded by the general encoders."""
    def block(subjects: list[bytes], **more: list[int] | None) -> OpenBlock[None]:
        made: OpenBlock[None] = OpenBlock(7, None)
        made.append_run(1, subjects, more.get("hlens"), [b"x" * 40] * len(subjects), T0)
        return made

    assert is_small(block([b"a", b"a"]))
    others = [OpenBlock(7, None), block([b"a", b"b"]), block([b"a"], hlens=[12]), block([b"a" * 65]),
              block([b"a"] * 500)]
    record, removal, gap = block([b"a"]), block([b"a"]), block([b"a"])
    add_record(record, RecordKind.CEILING, {"seq": 65_536})
    removal.remove(1, 1, 1, 71)
    gap.append_one(3, b"a", b"x", T0)
    many: OpenBlock[None] = OpenBlock(7, None)
    many.append_run(1, [b"a"] * (FRAME_MESSAGES_MAX + 1), None, [b""] * (FRAME_MESSAGES_MAX + 1), T0)
    assert not any(map(is_small, [*others, record, removal, gap, many]))
