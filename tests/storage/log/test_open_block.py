"""Open blocks with gaps: the run of each message."""

from __future__ import annotations

import gc
import sys

from hypothesis import given
from hypothesis import strategies as st

from broker.storage.format.frame import FRAME_BYTES
from broker.storage.log.open_block import OpenBlock


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), min_size=1, max_size=12), st.data())
def test_the_run_of_a_message(steps: list[tuple[int, int]], data: st.DataObject) -> None:
    """Shows runs after gaps of any size, requested in any order while the block grows."""
    block: OpenBlock[None] = OpenBlock(1, None)
    seqs: list[int] = []
    times: list[int] = []
    next_seq = 1
    for time_ns, (gap, count) in enumerate(steps):
        first_seq = next_seq + gap
        block.append_run(first_seq, [b"s"] * count, None, [b""] * count, time_ns)
        seqs += range(first_seq, first_seq + count)
        times += [time_ns] * count
        next_seq = first_seq + count
        ordinal = data.draw(st.integers(0, len(seqs) - 1))
        start, first, at_ns = block.run_of(ordinal)
        assert (first + ordinal - start, at_ns) == (seqs[ordinal], times[ordinal])


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4), st.sampled_from([0, 5, 40_000])), min_size=1,
                max_size=12), st.data())
def test_chunks_of_a_block_that_grows(steps: list[tuple[int, int, int]], data: st.DataObject) -> None:
    """Shows that a chunk from any message on has the rows of the block, with gaps, headers and large bodies, and at
    most as many bytes as a frame."""
    block: OpenBlock[None] = OpenBlock(1, None)
    rows: list[tuple[int, bytes, int, bytes, int]] = []
    next_seq = 1
    for time_ns, (gap, count, size) in enumerate(steps):
        first_seq = next_seq + gap
        new = [(first_seq + i, b"s%d" % i, size and i, bytes(size + i), time_ns) for i in range(count)]
        block.append_run(first_seq, [row[1] for row in new], [row[2] for row in new] if size else None,
                         [row[3] for row in new], time_ns)
        rows += new
        next_seq = first_seq + count
        start = data.draw(st.integers(0, len(rows) - 1))
        end = data.draw(st.integers(start + 1, len(rows)))
        chunk = block.chunk(start, end)
        got = [(chunk.seq(i), chunk.subjects[i], 0 if chunk.hlens is None else chunk.hlens[i], chunk.bodies[i],
                chunk.times[i]) for i in range(len(chunk))]
        assert got == rows[start:start + len(got)]
        assert (chunk.start, chunk.first_seq, chunk.last_seq) == (start, got[0][0], got[-1][0])
        assert len(got) == 1 or sum(map(len, chunk.bodies)) <= FRAME_BYTES
        if len(got) < end - start:
            assert sum(len(row[3]) for row in rows[start:start + len(got) + 1]) > FRAME_BYTES


@given(st.lists(st.tuples(st.integers(0, 2), st.lists(st.integers(0, 2), min_size=1, max_size=5)), max_size=6),
       st.booleans())
def test_messages_with_times_of_their_own(steps: list[tuple[int, list[int]]], with_headers: bool) -> None:
    """Shows that messages that are added together, each with its time, make the block that they make one by one."""
    together, alone = OpenBlock[None](1, None), OpenBlock[None](1, None)
    seq, time_ns = 1, 0
    for gap, waits in steps:
        seq += gap
        times = []
        for wait in waits:
            time_ns += wait
            times.append(time_ns)
        subjects, bodies = [b"s%d" % wait for wait in waits], [bytes(wait) for wait in waits]
        hlens = list(waits) if with_headers else None
        together.append_timed(seq, subjects, hlens, bodies, times)
        for at, wait in enumerate(waits):
            alone.append_run(seq + at, subjects[at:at + 1], [wait] if with_headers else None, bodies[at:at + 1],
                             times[at])
        seq += len(waits)
    assert (together.first_seq, together.last_seq, together.count) == (alone.first_seq, alone.last_seq, alone.count)
    if together.count:
        rows = [list(zip(block.chunk(0, block.count).times, block.subjects, block.bodies, strict=True))
                for block in (together, alone)]
        assert rows[0] == rows[1]
        assert together.hlens == alone.hlens
        assert [together.run_of(at)[2] for at in range(together.count)] == [
            alone.run_of(at)[2] for at in range(alone.count)]


def test_a_block_is_freed_without_a_collection() -> None:
    """Shows that a block is in no reference cycle: the collector would free its messages much later."""
    body = bytes(1000)
    before = sys.getrefcount(body)
    gc.disable()
    try:
        block: OpenBlock[None] = OpenBlock(1, None)
        block.append_one(1, b"s", body, 1)
        assert sys.getrefcount(body) == before + 1
        del block
        assert sys.getrefcount(body) == before
    finally:
        gc.enable()
