"""The window of message ids: which ids it knows, for how long, and that its work is done in small steps."""

from __future__ import annotations

import random
from typing import Any

import pytest

from broker.jetstream.stream.publish import msg_ids as msg_ids_module
from broker.jetstream.stream.publish.dedupe import Dedupe
from broker.storage.log.settings import LogSettings
from tests.jetstream.stream.world import World, ask, pub, publish, turns

WINDOW_NS = 1000
ENTRY_BYTES = 140 + 5


def ids(first: int, last: int, time_of: Any = lambda seq: seq) -> list[tuple[int, bytes, int]]:
    return [(seq, b"%05d" % seq, time_of(seq)) for seq in range(first, last + 1)]


def test_against_a_plain_list() -> None:
    """Random histories of adding, expiring in steps and lookups: an id is known in its window, and not after it."""
    for seed in range(200):
        rng = random.Random(seed)
        window = Dedupe(WINDOW_NS)
        model: dict[bytes, tuple[int, int]] = {}
        now = seq = 0
        for _ in range(rng.randint(1, 60)):
            now += rng.choice((0, 0, 1, 300, 999, 1000, 2500))
            window.expire(now, rng.choice((0, 1, 3, 256)))
            msg_id = b"%d" % rng.randint(0, 20)
            at, when = model.get(msg_id, (0, -WINDOW_NS))
            expected = at if when > now - WINDOW_NS else 0
            assert window.seen(msg_id) == expected, seed
            if expected:
                continue
            seq += 1
            model[msg_id] = seq, now
            if rng.random() < 0.5 and window.all_new((msg_id, b"")):
                window.add_run((msg_id, b""), seq, now)
                seq += 1
            else:
                window.add({msg_id: seq}, msg_id, now)
        window.expire(now + WINDOW_NS, 10_000)
        assert (len(window), window.bytes, window.next_expiry_ns) == (0, 0, None), seed


def test_expiry_removes_a_limited_number_at_once() -> None:
    """A million ids may leave the window at one time: they expire at once, and are removed in small steps."""
    window = Dedupe(WINDOW_NS)
    for seq, msg_id, _ in ids(1, 5000):
        window.add({msg_id: seq}, msg_id, 1)
    window.add({b"young": 5001}, b"young", 500)
    window.expire(1 + WINDOW_NS, 100)
    assert len(window) == 4901
    assert window.behind
    assert window.seen(b"00001") == window.seen(b"05000") == 0
    assert window.seen(b"young") == 5001
    window.add({b"00007": 5002}, b"00007", 1 + WINDOW_NS)
    assert window.seen(b"00007") == 5002
    while window.behind:
        window.expire(1 + WINDOW_NS, 100)
    assert window.seen(b"00007") == 5002
    assert len(window) == 2
    assert window.bytes == 2 * ENTRY_BYTES


def test_a_restart_takes_no_more_than_the_bound() -> None:
    """The newest ids are restored, up to the bound. New ids are refused until the missing ones have left the window.

    Otherwise their duplicates would not be recognised.
    """
    window = Dedupe(WINDOW_NS, known=False, bytes_max=300 * ENTRY_BYTES)
    now = 1000
    assert window.restore(ids(801, 1000), now)
    assert not window.restore(ids(601, 800), now)
    window.restored()
    assert window.known
    assert window.bytes <= 300 * ENTRY_BYTES
    assert [window.seen(b"%05d" % seq) for seq in (701, 1000, 700)] == [701, 1000, 0]
    window.expire(now)
    assert window.full
    window.expire(699 + WINDOW_NS, 10_000)
    assert window.full, "id 700 is in the window, and is not known"
    window.expire(701 + WINDOW_NS, 10_000)
    assert not window.full, "all ids in the window are known, and there is room"
    assert (window.seen(b"00701"), window.seen(b"00702")) == (0, 702)


def test_a_restart_leaves_out_ids_that_have_left_the_window() -> None:
    window = Dedupe(WINDOW_NS, known=False)
    assert window.restore(ids(1501, 2000), 2000)
    assert not window.restore(ids(901, 1500), 2000)
    window.restored()
    window.expire(2000)
    assert not window.full
    assert len(window) == 1000
    assert window.next_expiry_ns == 1001 + WINDOW_NS


@pytest.mark.parametrize("ids_in_blocks", [False, True])
async def test_ids_of_a_large_window_are_restored_in_slices(ids_in_blocks: bool,
                                                            monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn of the loop after a restart loads a slice of the ids, and later turns load the rest."""
    monkeypatch.setattr(msg_ids_module, "_IDS_A_TURN", 50)
    monkeypatch.setattr(msg_ids_module, "_IDS_AT_ONCE", 400)
    world = World(settings=LogSettings(segment_count=300))
    stream = world.stream()
    for at in range(0, 1500, 300):
        publish(world, stream, *(pub(b"S.a", Nats_Msg_Id=f"id-{seq}") for seq in range(at + 1, at + 301)))
        await world.settle(stream)
    stream = await world.restart(stream, ids_in_blocks=ids_in_blocks)
    restored: list[int] = []
    restore = Dedupe.restore

    def counted(self: Dedupe, some: Any, now_ns: int) -> bool:
        restored.append(len(some))
        return restore(self, some, now_ns)

    monkeypatch.setattr(Dedupe, "restore", counted)
    assert await ask(world, stream, pub(b"S.a", Nats_Msg_Id="id-77")) == {"stream": "S", "seq": 77, "duplicate": True}
    assert sum(restored) == 1500
    assert max(restored) <= 50
    assert len(stream.dedupe) == 1500
    for seq in (1, 300, 301, 1500):
        assert stream.dedupe.seen(b"id-%d" % seq) == seq
    assert await ask(world, stream, pub(b"S.a", Nats_Msg_Id="new")) == {"stream": "S", "seq": 1501}
    await world.close()


@pytest.mark.parametrize("ids_in_blocks", [False, True])
async def test_ids_without_room_after_a_restart(ids_in_blocks: bool) -> None:
    """Publishes with ids are refused under a smaller bound than before the restart, and those without are not.

    Nothing is stored twice, and memory stays within the bound.
    """
    world = World()
    stream = world.stream(duplicate_window=1_000_000_000)
    for i in range(20):
        await ask(world, stream, pub(b"S.a", Nats_Msg_Id=f"id-{i:02}"))
        world.clock.advance(10_000_000)
    stream = await world.restart(stream, ids_in_blocks=ids_in_blocks)
    stream.dedupe.bytes_max = 10 * ENTRY_BYTES
    assert (await ask(world, stream, pub(b"S.a", Nats_Msg_Id="id-03")))["error"]["err_code"] == 10167
    assert (await ask(world, stream, pub(b"S.a", Nats_Msg_Id="id-19")))["duplicate"]
    assert stream.dedupe.bytes <= 10 * ENTRY_BYTES
    assert (await ask(world, stream, pub(b"S.a"))) == {"stream": "S", "seq": 21}
    world.clock.advance(1_000_000_000)
    await turns()
    assert (await ask(world, stream, pub(b"S.a", Nats_Msg_Id="id-03"))) == {"stream": "S", "seq": 22}
    await world.close()


def test_a_clock_that_is_set_back_keeps_no_id_for_longer() -> None:
    """Ids that arrived under the wrong clock leave the window with the next one."""
    dedupe = Dedupe(10)
    dedupe.add({b"a": 1}, b"a", 5)
    dedupe.add({b"b": 2}, b"b", 1000)
    dedupe.add({b"c": 3}, b"c", 7)
    dedupe.expire(16)
    assert (dedupe.seen(b"a"), dedupe.seen(b"b"), dedupe.seen(b"c")) == (0, 2, 3)
    dedupe.expire(17)
    assert (dedupe.seen(b"b"), dedupe.seen(b"c"), len(dedupe)) == (0, 0, 0)


def test_a_window_longer_than_unix_time() -> None:
    dedupe = Dedupe((1 << 63) - 1)
    dedupe.expire(1_700_000_000_000_000_000)
    assert not dedupe.full
    dedupe.add({b"a": 1}, b"a", 1_700_000_000_000_000_000)
    dedupe.expire(1_800_000_000_000_000_000)
    assert dedupe.seen(b"a") == 1
