"""The reach of a limit in messages or bytes, compared with counting them one by one, over varied stores."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from broker.pipeline.plan.backlog import StreamBacklog
from broker.pipeline.plan.follow import FollowedStream, Follower
from broker.pipeline.plan.selection import Selection
from broker.storage.objectstore.memory import MemoryStore
from broker.storage.state.table import BlockEntry
from tests.pipeline.stores import MemoryObjectClient, Owner, Stream, varied

MANY = 1 << 62


async def _seen(seed: int, **more: int) -> tuple[Owner, Follower, dict[str, FollowedStream]]:
    store = MemoryStore()
    owner = await varied(store, seed, large=False, **more)
    await owner.kill()
    follower = Follower(MemoryObjectClient(store), "*", "*")
    return owner, follower, follower.refresh()


def _backlog(follower: Follower, seen: FollowedStream, first: int, end: int,
             selection: Selection | None = None) -> StreamBacklog:
    return StreamBacklog(seen.entries(first), first, end, selection or Selection(),
                         lambda entry: follower.seqs(seen, entry))


def _named(owner: Owner, seen: FollowedStream) -> Stream:
    return owner.streams[seen.state.name]


@pytest.mark.parametrize("seed", range(4))
async def test_each_step_has_as_many_messages_as_the_limit(seed: int) -> None:
    """Each step of a limit, from any sequence to any other, has as many live messages as the limit, and the
    last one the remaining ones. Only dead messages of blocks with gaps, which are not counted exactly, may count as
    live."""
    owner, follower, found = await _seen(seed)
    rng = random.Random(seed)
    for seen in found.values():
        live = _named(owner, seen).live
        for _ in range(6):
            first = rng.randrange(1, seen.state.last_seq + 2)
            end = rng.randrange(first, seen.state.last_seq + 2)
            limit = rng.choice([1, 7, 100, 1000])
            backlog = _backlog(follower, seen, first, end)
            at = first
            left = [seq for seq in live if first <= seq < end]
            while not backlog.done and len(left) > 40 * limit:
                limit *= 2
            while not backlog.done:
                used, _ = backlog.advance(limit, MANY)
                got = [seq for seq in left if at <= seq < backlog.next_seq]
                if seen.state.name == "few":
                    assert len(got) <= used <= limit
                else:
                    assert len(got) == used == min(limit, len(left))
                assert at < backlog.next_seq <= end
                left, at = left[len(got):], backlog.next_seq
            assert not left
            assert backlog.next_seq == end


async def test_bytes_are_about_those_of_the_messages() -> None:
    """Bytes are those of the stream's state, exact for whole blocks."""
    owner, follower, found = await _seen(11)
    for seen in found.values():
        backlog = _backlog(follower, seen, 1, seen.state.last_seq + 1)
        rows, size = backlog.advance(MANY, MANY)
        assert rows >= seen.state.msgs == len(_named(owner, seen).live)
        assert rows == seen.state.msgs or seen.state.name == "few"
        assert abs(size - seen.state.bytes) <= seen.state.bytes // 4 + 1000
        if size > 4000:
            backlog = _backlog(follower, seen, 1, seen.state.last_seq + 1)
            _, half = backlog.advance(MANY, size // 2)
            assert size // 4 <= half <= size // 2
            assert not backlog.done


@pytest.mark.parametrize("seed", range(3))
async def test_blocks_without_a_wanted_subject_cost_nothing(seed: int) -> None:
    """A limit admits at most that many wanted messages; other blocks cost nothing if their summary or filter excludes
    them."""
    owner, follower, found = await _seen(seed)
    for pattern in (b"many.alarm.*", b"few.3.x", b"one.>", b"nothing"):
        selection = Selection(subjects=(pattern,))
        for seen in found.values():
            backlog = _backlog(follower, seen, 1, seen.state.last_seq + 1, selection)
            at = 1
            live = _named(owner, seen).live
            while not backlog.done:
                used, _ = backlog.advance(200, MANY)
                wanted = [seq for seq in live
                          if at <= seq < backlog.next_seq and selection.matches_subject(live[seq][1])]
                assert len(wanted) <= used <= 200
                assert backlog.next_seq > at
                at = backlog.next_seq
    few = found["$G/few"]
    backlog = _backlog(follower, few, 1, few.state.last_seq + 1, Selection(subjects=(b"nothing",)))
    assert backlog.advance(1, 1) == (0, 0)
    assert backlog.done


async def test_only_blocks_with_gaps_are_read() -> None:
    """A limit that ends inside a block costs no read, unless its sequences have gaps."""
    _, follower, found = await _seen(5)
    for seen in found.values():
        def seqs(entry: BlockEntry, seen: FollowedStream = seen) -> Sequence[int]:
            assert entry.ref.last_seq - entry.ref.first_seq + 1 != entry.ref.count
            return follower.seqs(seen, entry)

        backlog = StreamBacklog(seen.entries(1), 1, seen.state.last_seq + 1, Selection(), seqs)
        while not backlog.done:
            backlog.advance(13, MANY)


async def test_blocks_are_found_from_any_sequence_on() -> None:
    _, _, found = await _seen(6)
    for seen in found.values():
        blocks = list(seen.state.blocks)
        for seq in [1, 2, *[entry.ref.last_seq + d for entry in blocks for d in (-1, 0, 1)], MANY]:
            expected = [entry for entry in blocks if entry.ref.last_seq >= seq]
            assert [entry.ref for entry in seen.state.blocks.since(seq)] == [entry.ref for entry in expected]
