"""The message ids of a block are the same, packed by the thread that encodes it or when it is applied."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from broker.jetstream.stream.state.rows import OpenRows
from broker.storage.format.header import Position
from broker.storage.format.records.kinds import RecordKind
from broker.storage.format.records.message_ids import MessageIds
from broker.storage.log.open_block import OpenBlock
from broker.storage.log.settings import LogSettings
from broker.storage.log.writer import seal_block
from broker.storage.state import ids as state_ids
from broker.storage.state.ids import BlockIds, IdPart, decode_ids
from tests.jetstream.stream.world import World, pub, publish
from tests.plain_records import add_record


class Threaded(World):
    """A world in which every segment is encoded in a thread, as a broker encodes large ones."""

    def __init__(self, executor: ThreadPoolExecutor) -> None:
        self.executor = executor
        super().__init__(settings=LogSettings(inline_bytes_max=0))

    def _begin(self, state: Any) -> None:
        super()._begin(state)
        self.log._putter._executor = self.executor


def _ids(part: IdPart) -> list[tuple[int, int, bytes]]:
    return [row for rows in decode_ids(part)[1] for row in zip(rows.seqs, rows.times, rows.ids, strict=True)]


async def test_the_loop_packs_no_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shows that the loop does not pack them: thousands in a segment would stall it for milliseconds."""
    threads: set[int] = set()
    pack = state_ids.pack_ids  # type: ignore[attr-defined]
    monkeypatch.setattr(state_ids, "pack_ids", lambda *args: (threads.add(threading.get_ident()), pack(*args))[1])
    with ThreadPoolExecutor(1) as executor:
        world = Threaded(executor)
        stream = world.stream()
        for at in range(10):
            publish(world, stream, pub(b"S.a", Nats_Msg_Id=f"id {at}"))
            await world.settle(stream)
        assert threads
        assert threading.get_ident() not in threads
        [part] = world.log.state.streams[stream.stream_id].ids.parts()
        assert [(seq, msg_id) for seq, _, msg_id in _ids(part)] == [(at + 1, b"id %d" % at) for at in range(10)]
        await world.close()


def _block(rng: random.Random) -> tuple[OpenBlock[Any], dict[int, bytes], dict[int, int]]:
    """Return a block with or without gaps in sequences and times, the ids of some messages, and all times."""
    block: OpenBlock[Any] = OpenBlock(7, None)
    seq, now = rng.randrange(1, 1 << 40), rng.randrange(1 << 60)
    gaps, step = rng.random() < 0.5, rng.choice([0, 1000, 200_000_000])
    ids, times = {}, {}
    for _ in range(rng.randrange(1, 9)):
        count = rng.randrange(1, 6)
        block.append_run(seq, [b"S.a"] * count, None, [b""] * count, now)
        for at in range(seq, seq + count):
            times[at] = now
            if rng.random() < 0.6:
                ids[at] = rng.randbytes(rng.randrange(1, 20))
        seq += count + (rng.randrange(3) if gaps else 0)
        now += step
    return block, ids, times


def test_ids_are_packed_with_the_sequences_and_times_of_their_messages() -> None:
    """Shows it for blocks with any gaps; times within 0.1 s are rounded up to the last one's."""
    rng = random.Random(5)
    for _ in range(300):
        block, ids, times = _block(rng)
        rows = OpenRows(block)
        ordinals = rows.ordinals_of(list(ids))
        assert ordinals == [rows.ordinal_of(seq) for seq in ids]
        block.add(MessageIds(ordinals, list(ids.values())))
        sealed = seal_block(block, Position(1, 1))
        sealed.pack_ids()
        core = sealed.core
        assert sealed.ids is not None
        assert sealed.ids == BlockIds.of(core, core.records[0], sealed.head)
        assert sealed.ids.number == len(ids)
        if ids:
            found = state_ids.StreamIds()
            found.record(core, sealed.ids)
            [part] = found.parts()
            rounded = core.last_time_ns - core.first_time_ns <= 100_000_000
            assert _ids(part) == [(seq, core.last_time_ns if rounded else times[seq], msg_id)
                                  for seq, msg_id in ids.items()]


@pytest.mark.parametrize("body", [[[0, b"a"], [0, b"b"]], [[5, b"a"]], [[0, 7]], 3],
                         ids=["twice", "beyond", "no-id", "no-list"])
def test_damaged_ids_are_left_in_the_block(body: object) -> None:
    """Shows that the messages of the block are not affected."""
    block: OpenBlock[Any] = OpenBlock(7, None)
    block.append_run(1, [b"S.a"] * 2, None, [b""] * 2, 9)
    add_record(block, RecordKind.MESSAGE_IDS, body, must_understand=False)
    sealed = seal_block(block, Position(1, 1))
    sealed.pack_ids()
    assert sealed.ids is None
    found = state_ids.StreamIds()
    found.record(sealed.core, BlockIds.of(sealed.core, sealed.core.records[0], sealed.head))
    [part] = found.parts()
    assert part.in_blocks
    assert (part.first_seq, part.last_seq) == (1, 2)
