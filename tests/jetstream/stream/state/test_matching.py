"""The messages of a stored block that match filters."""

from __future__ import annotations

import random
from typing import Any, cast

import pytest

from broker.jetstream.filters import Filters
from broker.jetstream.stream.state import matching
from broker.jetstream.stream.state.block import LiveBlock
from broker.jetstream.stream.state.matching import matching_rows
from broker.protocol.subject import matches
from broker.storage.format.frames import frame_body
from broker.storage.format.index import Head, decode_index
from broker.storage.format.subject_filter import may_hold
from broker.storage.log.settings import LogSettings
from broker.storage.read import reader, unpacking
from tests.jetstream.stream.world import World, ask, everything, pub, publish, read_all
from tests.storage.format.whole import Row, encode, head_of, open_block


def block(subjects: list[bytes], gaps: bool) -> Head:
    """Return the head of a block with these messages, from sequence 10 on; with ``gaps``, every second sequence."""
    runs = [[Row(10 + at * (1 + gaps), 1000, subject, 0, b"x")] for at, subject in enumerate(subjects)]
    data = encode(open_block(1, runs))
    head = head_of(data)
    ref = head.ref(0, head.core(0))
    assert ref is not None
    return decode_index(data[ref.index_offset:ref.index_offset + ref.index_bytes], ref, "block")


@pytest.mark.parametrize("seed", range(40))
def test_rows_are_those_that_match(seed: int) -> None:
    rng = random.Random(seed)
    known = [b"S.%d" % i for i in range(rng.choice((1, 3, 30)))]
    subjects = [rng.choice(known) for _ in range(rng.randrange(1, 60))]
    gaps = rng.random() < 0.5
    rows = block(subjects, gaps)
    patterns = rng.sample([*known, b"absent", b"S.*", b">", b"S.1"], rng.choice((1, 1, 2)))
    expected = [(10 + at * (1 + gaps), subject) for at, subject in enumerate(subjects)
                if any(matches(pattern, subject) for pattern in patterns)]
    assert matching_rows(rows, cast(LiveBlock, None), Filters(patterns)) == expected


def test_one_subject_is_found_without_comparing_the_others() -> None:
    """A thousand delete markers are a thousand roll-ups, each of a subject of its own."""
    rows = block([b"S.%d" % (i % 500) for i in range(1000)], gaps=False)
    compared: list[bytes] = []
    filters = Filters([b"S.7"])
    filters.match = lambda subject: bool(compared.append(subject)) or subject == b"S.7"
    assert matching_rows(rows, cast(LiveBlock, None), filters) == [(17, b"S.7"), (517, b"S.7")]
    assert len(compared) < 10


async def test_a_roll_up_of_a_key_checks_no_other_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch may have a thousand roll-ups, and a stream any number of blocks with subject filters."""
    world = World(settings=LogSettings(segment_count=40))
    stream = world.stream(allow_rollup_hdrs=True)
    for start in range(0, 400, 40):
        publish(world, stream, *[pub(b"S.%d" % i) for i in range(start, start + 40)])
        await world.settle(stream)
    stream = await world.restart(stream)
    await ask(world, stream, pub(b"S.399", Nats_Rollup="sub"))  # reads the subjects
    checked: list[object] = []

    def counted(*args: Any) -> bool:
        checked.append(args)
        return may_hold(*args)

    monkeypatch.setattr(matching, "may_hold", counted)
    for i in range(20):
        await ask(world, stream, pub(b"S.%d" % i, b"new", Nats_Rollup="sub"))
    assert not checked
    await ask(world, stream, pub(b"S.30"))
    await ask(world, stream, pub(b"S.30", Nats_Rollup="sub"))
    assert checked
    assert [subject for _, subject, _ in await everything(stream)] == [
        *(b"S.%d" % i for i in range(20, 399) if i != 30), b"S.399", *(b"S.%d" % i for i in range(20)), b"S.30"]
    await world.close()


async def test_a_rare_match_costs_only_its_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames between two matches are neither loaded ahead nor decoded; those of a common subject are."""
    world = World(cache_bytes=0)
    stream = world.stream()
    rng = random.Random(4)
    publish(world, stream, *[pub(b"S.rare" if i == 30 else b"S.%d" % (i % 2), rng.randbytes(20_000))
                             for i in range(60)])
    await world.settle(stream)
    decoded: list[int] = []

    def counted(head: Head, number: int, *args: Any) -> Any:
        decoded.append(number)
        return frame_body(head, number, *args)

    monkeypatch.setattr(reader, "frame_body", counted)
    monkeypatch.setattr(unpacking, "frame_body", counted)
    assert [row[0] for row in await read_all(stream, Filters([b"S.rare"]))] == [31]
    assert len(decoded) == 1
    decoded.clear()
    assert len(await read_all(stream, Filters([b"S.1"]))) == 30
    assert len(set(decoded)) == 10
    await world.close()


async def test_counts_by_subject_build_the_index_once_they_are_many() -> None:
    """The first counts read blocks; once all of them together would take longer than the index, the index is built."""
    world = World()
    stream = world.stream()
    publish(world, stream, *[pub(b"S.%d" % (i % 100)) for i in range(6000)])
    await world.settle(stream)
    built = []
    for _ in range(10):
        assert (await stream.count_from(0, Filters([b"S.7"])))[0] == 60
        index = stream.subjects.index
        built.append(index is not None and index.merged_seq == 6000)
    assert not built[0]
    assert built[-1]
    await world.close()
