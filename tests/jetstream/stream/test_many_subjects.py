"""Queries about many subjects: each way to answer them agrees with the stored messages."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import pytest

from broker.jetstream.filters import Filters
from broker.jetstream.stream.shared.chunks import Loading
from broker.jetstream.stream.state import subject_search, subject_state
from broker.jetstream.stream.stream import Stream
from broker.storage.log.settings import LogSettings
from tests.jetstream.stream.world import World, pub, publish

QUESTIONS = [[b"S.1.>"], [b"S.*.k3"], [b"S.>"], [b"S.2.k1"], [b"S.1.*", b"S.1.k2", b"S.3.k1"], [b"S.none.>"],
             [b"*.2.k4"], []]


async def _world(rng: random.Random, *, tracked: bool) -> tuple[World, Stream, dict[int, bytes]]:
    """Return a stream of small blocks with messages removed anywhere, and its messages."""
    world = World(settings=LogSettings(segment_count=16))
    stream = world.stream(max_msgs_per_subject=4) if tracked else world.stream()
    await world.settle()
    for _ in range(20):
        publish(world, stream, *[pub(b"S.%d.k%d" % (rng.randrange(4), rng.randrange(6)), reply=b"") for _ in range(16)])
        await world.settle(stream)
    for seq in rng.sample(range(1, 320), 60):
        await stream.delete_msg(seq, False)
    await stream.purge(None, seq=rng.randrange(30))
    await world.settle(stream)
    found = [await stream.get(seq) for seq in range(1, 321)]
    return world, stream, {one.seq: one.subject for one in found if one is not None}


async def _check(stream: Stream, msgs: dict[int, bytes]) -> None:
    for question in QUESTIONS:
        filters = Filters(question)
        counts: dict[bytes, int] = {}
        for subject in msgs.values():
            if filters.match(subject):
                counts[subject] = counts.get(subject, 0) + 1
        assert sorted(await stream.queries._search.matching(filters)) == sorted(counts), question
        assert await stream.queries.count(filters) == sum(counts.values())
        for up_to in (stream.last_seq, 200):
            lasts = {subject: seq for seq, subject in sorted(msgs.items()) if filters.match(subject) and seq <= up_to}
            assert await stream.last_seqs_by_subject(filters, up_to) == sorted(lasts.values()), (question, up_to)
        names = sorted(counts)
        for offset, limit in ((0, 100), (1, 3), (len(names) - 1, 5), (len(names) + 1, 5)):
            page, total = await stream.queries._search.page(filters, max(offset, 0), limit)
            assert (page, total) == (names[max(offset, 0):max(offset, 0) + limit], len(names))
        shown = await stream.info_state(subjects_filter=question[0] if question else b">", subjects_offset=1)
        if len(question) < 2:
            assert list(shown["subjects"].items()) == [(name.decode(), counts[name]) for name in names[1:]]
            assert shown["subjects"].total == len(names)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("tracked", [False, True], ids=["plain", "tracked"])
async def test_answers_with_an_order_and_without(seed: int, tracked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Matching subjects, their counts, lasts and pages are right: from a scan, and from an order.

    The order is made early, and is kept up to date while messages are added and removed.
    """
    rng = random.Random(seed)
    world, stream, msgs = await _world(rng, tracked=tracked)
    await _check(stream, msgs)
    monkeypatch.setattr(subject_search, "_UNORDERED_MAX", 0)
    monkeypatch.setattr(subject_search, "_ORDER_WORTH", 0)
    monkeypatch.setattr(subject_search, "_NAMES_AT_ONCE", 5)
    monkeypatch.setattr(subject_state, "_ROWS_AT_ONCE", 5)
    monkeypatch.setattr(subject_state, "_FEW", 16)
    await _check(stream, msgs)
    index = stream.subjects.index
    assert index is not None
    assert index.order is not None
    for seq in rng.sample(sorted(msgs), len(msgs) // 2):
        await stream.delete_msg(seq, False)
        del msgs[seq]
    publish(world, stream, *[pub(subject, reply=b"") for subject in (b"S.0.k0", b"S.1.new", b"S.9.k9")])
    await world.settle(stream)
    found = [await stream.get(seq) for seq in range(1, stream.last_seq + 1)]
    msgs = {one.seq: one.subject for one in found if one is not None}
    await _check(stream, msgs)
    await world.close()


async def test_a_query_with_many_filters_is_answered_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each filter leads to a few subjects in the order: one turn of the loop compares no more than for a single
    filter."""
    monkeypatch.setattr(subject_search, "_ORDER_WORTH", 0)
    monkeypatch.setattr(subject_search, "_NAMES_AT_ONCE", 10)
    world = World()
    stream = world.stream()
    await world.settle()
    publish(world, stream, *[pub(b"S.%03d.%d" % (i // 4, i % 4), reply=b"") for i in range(400)])
    await world.settle(stream)
    filters = Filters([b"S.%03d.*" % i for i in range(0, 100, 2)])
    # This comparison is in vain, so that the next query makes an order.
    await stream.queries._search.matching(Filters([b"S.000.*"]))
    sizes: list[int] = []
    select = Filters.select

    def counted(self: Filters, names: Sequence[bytes]) -> list[bytes]:
        sizes.append(len(names))
        asyncio.get_running_loop().call_soon(sizes.append, 0)
        return select(self, names)

    monkeypatch.setattr(Filters, "select", counted)
    found = sorted(await stream.queries._search.matching(filters))
    assert found == [b"S.%03d.%d" % (i, k) for i in range(0, 100, 2) for k in range(4)]
    assert sum(sizes) == 200, "no other subjects are compared"
    turns = "".join("x" * size or "|" for size in sizes).split("|")
    assert max(map(len, turns)) <= 20
    await world.close()


async def test_an_interrupted_order_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The request that waits for the order is cancelled; the next one finds every subject."""
    monkeypatch.setattr(subject_search, "_UNORDERED_MAX", 0)
    world = World()
    stream = world.stream()
    await world.settle()
    publish(world, stream, *[pub(b"S.%d" % i, reply=b"") for i in range(9000)])
    await world.settle(stream)
    await stream.subjects.build()
    asking = asyncio.ensure_future(stream.queries._search.page(Filters([b"S.*"]), 0, 10))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert stream.subjects.index is not None
    assert stream.subjects.index.order is not None
    assert not asking.done()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    publish(world, stream, pub(b"S.00", reply=b""))
    page, total = await stream.queries._search.page(Filters([b"S.*"]), 0, 3)
    assert (page, total) == ([b"S.0", b"S.00", b"S.1"], 9001)
    await world.close()


@pytest.mark.parametrize("seed", range(2))
async def test_a_reader_of_one_subject_uses_the_index(seed: int) -> None:
    """The index gives the same next message of a tracked subject as a search of all blocks, from every sequence."""
    world, stream, msgs = await _world(random.Random(seed), tracked=True)

    async def first(seq: int, filters: Filters) -> int:
        while isinstance(found := stream.next_chunk(seq, filters), Loading):
            await found.ready
            seq = found.seq  # blocks below it are not loaded again
        return 0 if found is None else found[0].seq(found[2])

    assert stream.subjects.next(Filters([b"S.1.k1"]), 1) is not None
    for subject in (b"S.1.k1", b"S.3.k5", b"S.none"):
        by_index, by_blocks = Filters([subject, b"S.x"]), Filters([subject, b"S.x.*"])
        for seq in range(0, 325, 23):
            expected = min((one for one in msgs if one >= seq and msgs[one] == subject), default=0)
            assert await first(seq, by_index) == await first(seq, by_blocks) == expected
    await world.close()
