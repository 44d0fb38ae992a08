"""Message ids in few bytes: packed ids are read back, joined or not, and anything else is refused."""

from __future__ import annotations

import random
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.storage.format.codec import pack_value, unpack_value
from broker.storage.format.id_rows import joined, pack_body, pack_ids, unpack_body, unpack_chunks

Rows = list[tuple[int, int, bytes]]


@st.composite
def blocks(draw: st.DrawFn) -> list[tuple[int, list[int], int | list[int], list[bytes]]]:
    """Generate successive blocks with the ids of some of their messages."""
    found: list[tuple[int, list[int], int | list[int], list[bytes]]] = []
    seq, time_ns = draw(st.integers(1, 1 << 60)), draw(st.integers(0, 1 << 62))
    for _ in range(draw(st.integers(1, 8))):
        steps = draw(st.lists(st.integers(1, 300), min_size=1, max_size=20))
        ordinals = list(accumulate(steps, initial=draw(st.integers(0, 5))))
        times = list(accumulate(draw(st.lists(st.integers(0, 1 << 40), min_size=len(ordinals), max_size=len(ordinals))),
                                initial=time_ns))[1:]
        ids = draw(st.lists(st.binary(max_size=300), min_size=len(ordinals), max_size=len(ordinals)))
        found.append((seq, ordinals, times[-1] if draw(st.booleans()) else times, ids))
        seq, time_ns = seq + ordinals[-1] + 1, times[-1]
    return found


def _rows(given_blocks: list[tuple[int, list[int], int | list[int], list[bytes]]]) -> Rows:
    return [(seq + at, times if isinstance(times, int) else times[i], msg_id)
            for seq, ordinals, times, ids in given_blocks
            for i, (at, msg_id) in enumerate(zip(ordinals, ids, strict=True))]


@given(blocks())
def test_ids_read_back(given_blocks: list[tuple[int, list[int], int | list[int], list[bytes]]]) -> None:
    """Shows the round trip of single chunks, of joined chunks, and of a page with them."""
    chunks = [pack_ids(*block) for block in given_blocks]
    expected = _rows(given_blocks)
    first, last, count = expected[0][0], expected[-1][0], len(expected)
    for some in (chunks, list(joined(chunks))):
        found = unpack_chunks(some, first, last, count)
        assert [row for rows in found for row in zip(rows.seqs, rows.times, rows.ids, strict=True)] == expected
    packed, found = unpack_body(unpack_value(pack_body(first, last, count, chunks)), first, last, count)
    assert packed == list(joined(chunks))
    assert sum(len(rows.ids) for rows in found) == count


def test_small_chunks_are_joined() -> None:
    """Shows that a thousand small chunks become one, of two thirds of the bytes; large ones are unchanged."""
    small = [pack_ids(i, [0], i << 20, [b"%020d" % i]) for i in range(1, 1001)]
    large = pack_ids(1001, range(500), 1 << 40, [b"%d" % i for i in range(500)])
    found = list(joined([*small, large, pack_ids(2000, [0], 1 << 41, [b"x"])]))
    assert len(found) == 3
    assert found[1] is large
    assert len(found[0]) * 1.5 < sum(map(len, small))


@pytest.mark.parametrize("seed", range(300))
def test_anything_else_is_refused(seed: int) -> None:
    """Shows that a page with one changed byte or two gives as many ascending sequences, or ValueError or TypeError."""
    rng = random.Random(seed)
    chunks = [pack_ids(10 * i + 1, [0, 2, 5], [7 * i + 1, 7 * i + 1, 7 * i + 3], [b"a", b"", b"xyz"])
              for i in range(50)]
    body = bytearray(pack_body(1, 496, 150, chunks))
    for _ in range(rng.randrange(1, 3)):
        body[rng.randrange(len(body))] = rng.randrange(256)
    try:
        _, found = unpack_body(unpack_value(bytes(body)), 1, 496, 150)
    except (ValueError, TypeError):
        return
    seqs = [seq for rows in found for seq in rows.seqs]
    assert len(seqs) == 150
    assert seqs == sorted(set(seqs))
    assert all(1 <= seq <= 496 for seq in seqs)


@pytest.mark.parametrize("body", [
    None, [], [1, 2, 3], [1, 3, 1, [b""]], [1, 3, 1, None], [1, 3, 1, ["x"]], [1, 3, 1, [pack_value([1])]]])
def test_a_value_that_is_no_page_is_refused(body: object) -> None:
    """Shows that values of any shape raise only ValueError or TypeError."""
    with pytest.raises((ValueError, TypeError)):
        unpack_body(body, 1, 3, 1)
