"""Rows with only a subject and data, taken out of Arrow batches as columns."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.pipeline.write.plain import PlainRows
from broker.storage.staging.writer import RowRefused, RunWriter, ToPut

NOW = 1_800_000_000_000_000_000
SUBJECTS = st.sampled_from((b"a", b"a.b", b"b", "größe.x".encode()))


def new_writer(block_messages: int = 32_768, block_bytes: int = 1 << 20) -> RunWriter:
    return RunWriter("$G", "ORDERS", 7, now_ns=NOW, run_bytes=200, block_bytes=block_bytes,
                     block_messages=block_messages, randbytes=random.Random(5).randbytes)


def binary(values: list[bytes]) -> pa.BinaryArray:
    return pa.array(values, pa.binary())


@given(st.lists(st.tuples(SUBJECTS, st.binary(max_size=60)), min_size=1, max_size=60),
       st.lists(st.integers(0, 60), max_size=3), st.integers(1, 9), st.integers(1, 200))
@settings(max_examples=100, deadline=None)
def test_the_same_runs_as_one_by_one(added: list[tuple[bytes, bytes]], cuts: list[int], block_messages: int,
                                     block_bytes: int) -> None:
    """Columns make the same runs as single rows do, however the rows are divided into batches."""
    one_by_one = new_writer(block_messages, block_bytes)
    expected: list[ToPut] = []
    for subject, payload in added:
        one_by_one.add(subject, payload)
    expected += one_by_one.finish()
    writer = new_writer(block_messages, block_bytes)
    plain = PlainRows(writer)
    subjects, data = (binary(list(column)) for column in zip(*added, strict=True))
    ends = [*sorted(min(cut, len(added)) for cut in cuts), len(added)]
    for start, end in zip([0, *ends], ends, strict=False):
        if start < end:
            plain.add(subjects[start:end], data[start:end])
    plain.flush()
    assert writer.finish() == expected


def test_large_blocks() -> None:
    """Blocks of several frames, and more subjects than a byte counts, are the same as well."""
    rng = random.Random(3)
    added = [(b"s.%d" % rng.randrange(700), rng.randbytes(rng.randrange(900))) for _ in range(9000)]
    one_by_one, writer = new_writer(5000, 3 << 20), new_writer(5000, 3 << 20)
    for subject, payload in added:
        one_by_one.add(subject, payload)
    plain = PlainRows(writer)
    for start in range(0, len(added), 1000):
        plain.add(*(binary(list(column)) for column in zip(*added[start:start + 1000], strict=True)))
    plain.flush()
    assert writer.finish() == one_by_one.finish()


def test_a_refused_row_adds_none_of_its_batch() -> None:
    """An illegal subject or a payload that is too large refuses the batch; rows before it stay."""
    writer = new_writer()
    plain = PlainRows(writer)
    plain.add(binary([b"a"]), binary([b"first"]))
    with pytest.raises(RowRefused, match="no message can have the subject b'a b'"):
        plain.add(binary([b"a", b"a b"]), binary([b"", b""]))
    with pytest.raises(RowRefused, match="a payload of 33554433 bytes is too large"):
        plain.add(binary([b"a", b"a"]), binary([b"", bytes((32 << 20) + 1)]))
    plain.flush()
    writer.finish()
    assert [entry.messages for entry in writer.entries] == [1]
