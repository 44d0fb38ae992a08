"""Open blocks with gaps: the run of each message."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

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
