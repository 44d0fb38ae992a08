"""Message ids after a restart: which blocks are read for them, and which of two messages with one id counts."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from broker.jetstream.stream.publish.dedupe import Dedupe
from broker.jetstream.stream.publish.msg_ids import MsgIds
from broker.storage.state.ids import IdPart, StreamIds
from tests.jetstream.stream.paged_world import PagedWorld
from tests.jetstream.stream.world import ask, pub
from tests.manual_clock import ManualClock

SECOND = 10**9
HOUR = 3600 * SECOND


class Counted(int):
    """A sequence that counts how often it is compared."""

    compared = 0

    def __le__(self, other: int) -> bool:
        Counted.compared += 1
        return int(self) <= other

    def __gt__(self, other: int) -> bool:
        Counted.compared += 1
        return int(self) > other


def _msg_ids(ids: StreamIds, clock: ManualClock) -> MsgIds:
    nothing: Any = None
    stored: Any = SimpleNamespace(ids=ids)
    return MsgIds(Dedupe(HOUR, known=False), nothing, nothing, clock, lambda: stored, 1 << 40)


def _block(first_seq: int, last_seq: int, time_ns: int) -> Any:
    return SimpleNamespace(first_seq=first_seq, last_seq=last_seq, first_time_ns=time_ns, last_time_ns=time_ns)


def test_only_blocks_of_parts_without_ids_are_read() -> None:
    """Blocks of parts that are not in pages are read, all of them and no others."""
    rng, clock = random.Random(3), ManualClock()
    now = clock.now_ns()
    for _ in range(100):
        ids, seq, ranges = StreamIds(), 1, []
        for _ in range(rng.randrange(1, 9)):
            last = seq + rng.randrange(9)
            packed = rng.random() < 0.5
            ids.load(IdPart(seq, last, now, 1, 1, (b"chunk",)) if packed else IdPart(seq, last, now, 0, 0))
            if not packed:
                ranges.append((seq, last))
            seq = last + 1 + rng.randrange(3)
        blocks = []
        at = 1
        while at < seq + 5:
            last = at + rng.randrange(6)
            blocks.append(_block(at, last, now))
            at = last + 1
        msg_ids = _msg_ids(ids, clock)
        msg_ids.blocks_loaded(blocks)
        assert msg_ids._with_ids == [block for block in blocks
                                     if any(first <= block.last_seq and block.first_seq <= last for first,
                                            last in ranges)]


def test_hundreds_of_parts_cost_a_block_a_few_comparisons() -> None:
    """Staged messages that alternate with others cause hundreds of parts, and a turn examines thousands of blocks."""
    clock, ids = ManualClock(), StreamIds()
    now = clock.now_ns()
    for at in range(256):
        ids.load(IdPart(Counted(10 * at + 1), Counted(10 * at + 5), now, 0, 0))
        ids.load(IdPart(10 * at + 6, 10 * at + 10, now, 1, 1, (b"chunk",)))
    blocks = [_block(2 * at + 1, 2 * at + 2, now) for at in range(2048)]
    Counted.compared = 0
    _msg_ids(ids, clock).blocks_loaded(blocks)
    assert 0 < Counted.compared < 12 * len(blocks)


@pytest.mark.parametrize("paged", [True, False], ids=["paged", "in-blocks"])
async def test_an_id_that_was_used_again_counts_from_then(paged: bool) -> None:
    """The window was shorter in between: after a restart the id stays as long as its newer message requires."""
    world = PagedWorld()
    await world.open()
    stream = world.stream(duplicate_window=HOUR)
    first = {"stream": "S", "seq": 1}
    assert await ask(world, stream, pub(b"S.a", Nats_Msg_Id="a")) == first
    await world.settle(stream)
    world.update(stream, duplicate_window=SECOND)
    await world.settle(stream)
    world.clock.advance(5 * SECOND)
    newer = {"stream": "S", "seq": 2}
    assert await ask(world, stream, pub(b"S.a", Nats_Msg_Id="a")) == newer
    world.update(stream, duplicate_window=HOUR)
    await world.settle(stream)
    stream = await world.reopen(stream)
    if not paged:
        ids = world.log.state.streams[stream.stream_id].ids
        for part in list(ids.parts()):
            assert ids.replace([part], part.lost())
    for _ in range(2):
        assert await ask(world, stream, pub(b"S.a", Nats_Msg_Id="a")) == {**newer, "duplicate": True}
        world.clock.advance(HOUR - 2 * SECOND)  # the older message has left the window
    world.clock.advance(4 * SECOND)
    assert await ask(world, stream, pub(b"S.a", Nats_Msg_Id="a")) == {"stream": "S", "seq": 3}
    await world.stop(stream)
