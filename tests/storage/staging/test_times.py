"""The count of raised times agrees with a count message by message."""

from __future__ import annotations

import asyncio
from functools import partial

from hypothesis import given, settings
from hypothesis import strategies as st

from broker.storage.format.block import BlockPlace, BlockRef
from broker.storage.format.header import ObjectKind
from broker.storage.format.index import Head, decode_index
from broker.storage.format.segment import SegmentHead, decode_head
from broker.storage.staging.times import StagedTimes, times_below
from broker.storage.staging.writer import RunWriter

NOW = 1_800_000_000_000_000_000


def staged_block(times: list[int]) -> tuple[BlockRef, Head]:
    """Return the reference and the index of a staged block of messages with these times."""
    writer = RunWriter("$G", "S", 7, now_ns=NOW)
    for time_ns in times:
        writer.add(b"s", time_ns=time_ns or None)
    [run] = writer.finish()
    assert run.entry is not None
    data = b"".join(run.data)
    head = decode_head(data, run.entry.position, kind=ObjectKind.RUN, object_id=run.entry.run_id, complete=True)
    assert isinstance(head, SegmentHead)
    ref = head.ref(0, head.core(0), BlockPlace.STAGED)
    assert ref is not None
    return ref, decode_index(data[ref.index_offset:ref.index_offset + ref.index_bytes], ref)


@given(st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=8).map(sorted) | st.just([0, 0]), min_size=1,
                max_size=6), st.integers(0, 45))
@settings(max_examples=150, deadline=None)
def test_the_count_is_that_of_messages_below_an_earlier_one(blocks: list[list[int]], low_ns: int) -> None:
    """Shows the count for any blocks and any last time of the stream. Messages without times, which get the present
    time, are not counted, and all times after them are below it. At most one block is read again."""
    counted = StagedTimes()
    read: list[int] = []

    async def count_below(ref: BlockRef, head: Head, time_ns: int) -> int:
        read.append(time_ns)
        return times_below(ref, head, time_ns)

    floor, expected = low_ns, 0
    for number, times in enumerate(blocks):
        ref, head = staged_block(times)
        counted.add(ref, head, partial(count_below, ref, head))
        assert counted.floor_ns(number, low_ns) == floor
        expected += sum(0 < time_ns < floor for time_ns in times)
        floor = max(floor, times[-1] or 1 << 63)
    assert asyncio.run(counted.raised(low_ns)) == expected
    assert len(read) <= 1
