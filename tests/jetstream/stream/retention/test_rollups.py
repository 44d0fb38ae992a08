"""Roll-ups of keys with several messages in many blocks: which messages they remove, and that the loop has turns
meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from broker.jetstream.stream.retention import rollup
from broker.storage.log.settings import LogSettings
from tests.jetstream.stream.world import World, everything, pub, publish

KEYS = 40
VALUES = 5


class BlockReads:
    """Counts the blocks that were read, in all and at most in one turn of the loop."""

    def __init__(self, monkeypatch: Any) -> None:
        self.most = self.all = self._now = 0
        matching_rows = rollup.matching_rows  # type: ignore[attr-defined]

        def counted(*args: Any) -> Any:
            if not self._now:
                asyncio.get_running_loop().call_soon(self._next)
            self._now += 1
            self.all += 1
            self.most = max(self.most, self._now)
            return matching_rows(*args)

        monkeypatch.setattr(rollup, "matching_rows", counted)

    def _next(self) -> None:
        self._now = 0


@pytest.mark.parametrize("atomic", [False, True], ids=["singly", "in a batch"])
async def test_many_roll_ups_at_once_leave_the_loop_its_turns(atomic: bool, monkeypatch: Any) -> None:
    """Forty keys with values in many blocks, all in memory, are rolled up at once: by publishes of one read, or a
    batch.

    All their values are removed but the roll-ups; other keys stay. No turn reads many more blocks than its limit, and a
    batch reads each block once for all its keys.
    """
    monkeypatch.setattr(rollup, "_BLOCKS_A_TURN", 30)
    monkeypatch.setattr("broker.jetstream.stream.state.heads._ROWS_AT_ONCE", 30)
    world = World(settings=LogSettings(segment_count=2))
    stream = world.stream(allow_rollup_hdrs=True, allow_atomic=True)
    for value in range(VALUES):
        for key in range(KEYS):
            publish(world, stream, pub(b"S.%02d" % key, b"%d" % value), pub(b"S.other", b""))
            await world.settle(stream)
    reads = BlockReads(monkeypatch)
    if atomic:
        rows = [{"Nats_Batch_Id": "b", "Nats_Batch_Sequence": str(i + 1)} for i in range(KEYS)]
        rows[-1]["Nats_Batch_Commit"] = "1"
    else:
        rows = [{} for _ in range(KEYS)]
    publish(world, stream, *[pub(b"S.%02d" % key, b"last", Nats_Rollup="sub", **row) for key, row in enumerate(rows)])
    while stream.last_seq < 2 * KEYS * VALUES + KEYS:
        await world.settle(stream)
    left = await everything(stream)
    assert [subject for _, subject, _ in left if subject != b"S.other"] == [b"S.%02d" % key for key in range(KEYS)]
    assert len(left) == KEYS * VALUES + KEYS
    assert 0 < reads.most <= 60
    if atomic:
        assert reads.all <= KEYS * VALUES + 60
    await world.close()


async def test_a_batch_of_roll_ups_waits_for_one_search(monkeypatch: Any) -> None:
    """A single search finds the removals of all keys; a key without messages is no error."""
    monkeypatch.setattr(rollup, "_BLOCKS_A_TURN", 1)
    world = World(settings=LogSettings(segment_count=2))
    stream = world.stream(allow_rollup_hdrs=True, allow_atomic=True)
    for _ in range(3):
        for key in range(4):
            publish(world, stream, pub(b"S.%d" % key))
            await world.settle(stream)
    rows = [pub(b"S.%d" % key, b"last", Nats_Rollup="sub", Nats_Batch_Id="b", Nats_Batch_Sequence=str(key + 1),
                **({"Nats_Batch_Commit": "1"} if key == 4 else {})) for key in range(5)]
    publish(world, stream, *rows)
    while stream.last_seq < 17:
        await world.settle(stream)
    found = [(seq, subject) for seq, subject, _ in await everything(stream)]
    assert found == [(13 + key, b"S.%d" % key) for key in range(5)]
    await world.close()
