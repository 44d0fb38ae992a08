"""Offsets as text, starting positions, and the division of one limit among several streams: all without a store."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from broker.pipeline.errors import BadOption, Newer, PipelineError
from broker.pipeline.plan.offsets import Offsets, Place, Start, share

ORDERS = {"$G/ORDERS": {"id": "00000000000000ff", "next": 17}}


# ---- offsets


def test_an_offset_has_incarnation_and_next_sequence() -> None:
    offsets = Offsets.of({"$G/ORDERS": Place(255, 17)})
    assert offsets.to_json() == {"v": 1, "streams": ORDERS}
    assert Offsets.parse(json.loads(json.dumps(offsets.to_json()))) == offsets


def test_equal_offsets_are_equal_text() -> None:
    """Spark compares text: a different order would look like new data forever."""
    one = {"b/X": Place(1, 1), "a/Y": Place(2, 2), "a/X": Place(3, 3)}
    other = dict(reversed(one.items()))
    assert json.dumps(Offsets.of(one, began=one).to_json()) == json.dumps(Offsets.of(other, began=other).to_json())
    assert list(Offsets.of(one).to_json()["streams"]) == ["a/X", "a/Y", "b/X"]


def test_text_comes_back_as_it_was() -> None:
    for offsets in (Offsets.of({}), Offsets.of({"a/b/S": Place(1 << 63, 1)}, initial=True),
                    Offsets.of({"a/S": Place(1, 9)}, began={"a/S": Place(1, 4), "a/T": Place(2, 1)})):
        text = json.dumps(offsets.to_json())
        assert json.dumps(Offsets.parse(json.loads(text)).to_json()) == text


def test_the_first_batch_begins_where_the_query_began() -> None:
    """"Latest" is beyond the beginning of the recorded batch if Spark asks again after a restart."""
    end = Offsets.of({"a/S": Place(1, 90)}, began={"a/S": Place(1, 50)})
    assert Offsets.of({"a/S": Place(1, 120)}, initial=True).start_of(end) == {"a/S": Place(1, 50)}
    assert Offsets.of({"a/S": Place(1, 90)}).start_of(Offsets.of({"a/S": Place(1, 99)})) == {"a/S": Place(1, 90)}


def test_a_newer_offset_is_reported_as_newer() -> None:
    with pytest.raises(Newer, match="version 2, and this jetblock knows 1"):
        Offsets.parse({"v": 2, "streams": {}, "what": 1})


@pytest.mark.parametrize(("value", "reason"), [
    (None, "null; does the checkpoint belong to another source"),
    ([], r"\[\]; does the checkpoint belong to another source"),
    ({"index": 4}, '"v" is null'),
    ({"v": True, "streams": {}}, '"v" is true'),
    ({"v": "1", "streams": {}}, '"v" is "1"'),
    ({"v": 1}, '"streams" of an offset must be'),
    ({"v": 1, "streams": [1]}, r'"streams" of an offset must be .* not \[1\]'),
    ({"v": 1, "streams": {}, "x": 1, "y": 2}, "unknown parts 'x', 'y'"),
    ({"v": 1, "streams": {}, "initial": 1}, '"initial" of an offset is 1'),
    ({"v": 1, "streams": {}, "began": None}, '"began" of an offset must be'),
    ({"v": 1, "streams": {"ORDERS": {"id": "0" * 16, "next": 1}}}, "names 'ORDERS', which is not \"ACCOUNT/NAME\""),
    ({"v": 1, "streams": {"a/S": 4}}, 'a/S in an offset must be {"id": …, "next": …}, not 4'),
    ({"v": 1, "streams": {"a/S": {"next": 4}}}, 'a/S in an offset must be'),
    ({"v": 1, "streams": {"a/S": {"id": "0" * 16, "next": 4, "x": 1}}}, 'a/S in an offset must be'),
    ({"v": 1, "streams": {"a/S": {"id": "A" * 16, "next": 4}}}, '"id" of a/S'),
    ({"v": 1, "streams": {"a/S": {"id": 4, "next": 4}}}, '"id" of a/S'),
    ({"v": 1, "streams": {"a/S": {"id": "0" * 16, "next": 0}}}, '"next" of a/S'),
    ({"v": 1, "streams": {"a/S": {"id": "0" * 16, "next": 1.0}}}, '"next" of a/S'),
    ({"v": 1, "streams": {"a/S": {"id": "0" * 16, "next": True}}}, '"next" of a/S'),
    ({"v": 1, "streams": {"a/S": {"id": "0" * 16, "next": 1 << 63}}}, '"next" of a/S'),
])
def test_wrong_offsets_are_refused(value: Any, reason: str) -> None:
    with pytest.raises(PipelineError, match=reason):
        Offsets.parse(value)


# ---- starting positions


@pytest.mark.parametrize(("text", "start"), [
    ("earliest", Start(earliest=True)), (" Earliest ", Start(earliest=True)), ("LATEST", Start()),
    ("seq:5", Start(seq=5)), ("17", Start(seq=17)),
    ("time:1700000000000000001", Start(time_ns=1_700_000_000_000_000_001)),
    ("2023-11-14T22:13:20Z", Start(time_ns=1_700_000_000_000_000_000)),
    ("time:2023-11-14T22:13:20.5Z", Start(time_ns=1_700_000_000_500_000_000)),
    (json.dumps({"v": 1, "streams": ORDERS}), Start(offsets=Offsets.of({"$G/ORDERS": Place(255, 17)}))),
])
def test_starting_positions(text: str, start: Start) -> None:
    assert Start.parse(text) == start
    assert start.latest == (text == "LATEST")


@pytest.mark.parametrize(("text", "reason"), [
    ("newest", "'newest' is no time"), ("", "is no time"), ("0", "'0' is no sequence"),
    ("seq:-1", "'-1' is no sequence"),
    ("seq:1e3", "'1e3' is no sequence"), (str(1 << 63), "is no sequence"), ("2023-13-01T00:00:00Z", "is no time"),
    ("{", "Expecting property name"), ('{"v": 9}', "of version 9"),
])
def test_a_wrong_start_is_a_wrong_option(text: str, reason: str) -> None:
    with pytest.raises(BadOption, match="option startingOffsets=") as caught:
        Start.parse(text)
    assert reason in str(caught.value)
    assert "earliest, latest, seq:N" in str(caught.value)


# ---- one limit, several streams


class Waiting:
    """Messages of given sizes, in one stream."""

    def __init__(self, sizes: list[int]) -> None:
        self.sizes = sizes
        self.taken = 0

    @property
    def done(self) -> bool:
        return self.taken == len(self.sizes)

    def advance(self, rows: int, size: int) -> tuple[int, int]:
        first, used = self.taken, 0
        while not self.done and self.taken - first < rows and used + self.sizes[self.taken] <= size:
            used += self.sizes[self.taken]
            self.taken += 1
        return self.taken - first, used


MANY = 1 << 62


def _advanced(sizes: list[list[int]], rows: int, size: int, turn: int = 0) -> list[int]:
    waiting = [Waiting(some) for some in sizes]
    share(waiting, rows, size, turn)
    return [one.taken for one in waiting]


def test_a_quiet_stream_is_read_to_its_end_beside_a_busy_one() -> None:
    assert _advanced([[1] * 1000, [1] * 3, [1] * 1000], 100, MANY) == [49, 3, 48]
    assert _advanced([[1] * 5, [1] * 3], 100, MANY) == [5, 3]
    assert _advanced([], 100, MANY) == []


def test_streams_take_turns_at_an_indivisible_limit() -> None:
    """Each stream has its turn if the limit is below their number: the turn rises by the number of messages read."""
    streams = [Waiting([1] * 100) for _ in range(5)]
    turn = 5
    for _ in range(10):
        before = sum(one.taken for one in streams)
        share(streams, 2, MANY, turn)
        assert sum(one.taken for one in streams) == before + 2
        turn += 2
    assert [one.taken for one in streams] == [4] * 5


def test_at_least_one_message_however_large() -> None:
    assert _advanced([[1000, 1]], MANY, 10) == [1]
    assert _advanced([[1000], [1000]], MANY, 10, turn=1) == [0, 1]
    assert _advanced([[1000], [4, 4, 4]], MANY, 10) == [0, 2]


def test_a_limit_is_kept_and_used() -> None:
    """The limit is never exceeded, and the remainder would not have admitted another message of any stream."""
    rng = random.Random(4)
    for _ in range(2000):
        sizes = [[rng.choice([1, 1, 5, 40, 300]) for _ in range(rng.randrange(30))] for _ in range(rng.randrange(1, 6))]
        rows, size = rng.randrange(1, 60), rng.randrange(1, 700)
        taken = _advanced(sizes, rows, size, rng.randrange(100))
        assert _advanced(sizes, rows, size, 7) == _advanced(sizes, rows, size, 7)
        used = sum(sum(some[:n]) for some, n in zip(sizes, taken, strict=True))
        nexts = [some[n] for some, n in zip(sizes, taken, strict=True) if n < len(some)]
        if not nexts:
            continue
        assert sum(taken) <= rows
        if sum(taken) == 1 and used > size:
            continue  # the one that is larger than the limit
        assert used <= size
        assert sum(taken) == rows or min(nexts) > size - used
