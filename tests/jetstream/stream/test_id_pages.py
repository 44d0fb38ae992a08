"""The first publish with an id after a start reads a few pages instead of every block of the duplicate window. Its
answer is the same as before the restart, whatever happened to the messages, the pages, and their maker."""

from __future__ import annotations

import logging
import random
import threading
from typing import Any

import pytest

from broker.inspect.source import Source
from broker.inspect.survey import read_survey
from broker.inspect.verify import verify
from broker.jetstream.stream.stream import Stream
from broker.maintenance.owner import correct_shard
from broker.storage.checkpoint import checkpointer, directory_pages, id_pages
from broker.storage.compaction.settings import CompactionSettings
from broker.storage.format.errors import VersionUnknown
from broker.storage.format.page import PageKind
from broker.storage.read.snapshot import read_snapshot
from broker.storage.state import ids as state_ids
from broker.storage.state import pages as state_pages
from tests.jetstream.stream.paged_world import DAMAGES, PagedWorld, do_damage, gets_of, object_of, settings
from tests.jetstream.stream.world import SHARD, ask, pub, publish
from tests.storage.rig import Counting

SECOND = 1_000_000_000
MINUTE = 60 * SECOND


@pytest.fixture(autouse=True)
def paged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make pages of even a few ids."""
    monkeypatch.setattr(state_pages, "INLINE_IDS_BYTES_MAX", 0)


async def _fill(world: PagedWorld, stream: Stream, blocks: int, each: int = 3) -> None:
    """Publish blocks of messages with the ids "1", "2", …: each id is the sequence of its message."""
    for _ in range(blocks):
        last = stream.last_seq
        publish(world, stream, *[pub(b"S.a", Nats_Msg_Id=str(last + 1 + i)) for i in range(each)])
        await world.settle(stream)


async def _duplicate(world: PagedWorld, stream: Stream, seq: int) -> None:
    assert await ask(world, stream, pub(b"S.a", Nats_Msg_Id=str(seq))) == {"stream": "S", "seq": seq, "duplicate": True}


async def _check(world: PagedWorld, stream: Stream) -> None:
    """Check that every id is a duplicate, and a new one is not."""
    for seq in range(1, stream.last_seq + 1):
        await _duplicate(world, stream, seq)
    new = stream.last_seq + 1
    assert await ask(world, stream, pub(b"S.a", Nats_Msg_Id=str(new))) == {"stream": "S", "seq": new}


def _parts(world: PagedWorld, stream: Stream) -> list[state_ids.IdPart]:
    return world.log.state.streams[stream.stream_id].ids.parts()


async def _paged(blocks: int = 20, **config: Any) -> tuple[PagedWorld, Stream]:
    """Create a stream whose ids are in a page."""
    world = PagedWorld()
    await world.open()
    stream = world.stream(**config)
    await world.settle(stream)
    await _fill(world, stream, blocks)
    assert await world.shard.checkpointer.cut()
    return world, stream


async def _counted(world: PagedWorld, stream: Stream, *, kill: bool = False) -> tuple[Stream, list[str]]:
    """Restart the stream; return it with the kinds of objects that its first publish with an id read."""
    counting = Counting(world.store)
    stream = await world.reopen(stream, store=counting, kill=kill)
    counting.calls.clear()
    await _duplicate(world, stream, 2)
    return stream, gets_of(counting)


async def test_a_first_publish_with_an_id_reads_a_page_and_no_block() -> None:
    """Show, after a clean stop, that one page is read instead of each of twenty blocks."""
    world, stream = await _paged()
    stream, gets = await _counted(world, stream)
    assert gets == ["PAGES"]
    await _check(world, stream)
    await world.stop(stream)


async def test_ids_after_the_last_round_are_replayed() -> None:
    """Kill the broker after six more blocks: only the page is read, because the start has read the other blocks'
    cores."""
    world, stream = await _paged()
    await _fill(world, stream, 6)
    stream, gets = await _counted(world, stream, kill=True)
    assert gets == ["PAGES"]
    await _check(world, stream)
    await world.stop(stream)


async def test_few_ids_are_in_the_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many streams with a few ids each need neither pages nor gets."""
    monkeypatch.undo()
    world, stream = await _paged(5)
    stream, gets = await _counted(world, stream)
    assert gets == []
    assert [part.place for part in _parts(world, stream)] == [None]
    await _check(world, stream)
    await world.stop(stream)


@pytest.mark.parametrize("removal", ["deleted", "purged", "rolled up", "limited"])
@pytest.mark.parametrize("kill", [False, True])
@pytest.mark.parametrize("rounds", [False, True])
async def test_ids_of_removed_messages_stay(removal: str, kill: bool, rounds: bool) -> None:
    """An id stays for the window even if its message is removed: also over a restart, and if its block was removed."""
    world, stream = await _paged(5, allow_rollup_hdrs=True, **{"max_msgs": 15} if removal == "limited" else {})
    await _fill(world, stream, 2)
    last = stream.last_seq
    if removal == "deleted":
        for seq in range(1, last + 1):
            await stream.delete_msg(seq, False)
    elif removal == "purged":
        await stream.purge(None)
    elif removal == "rolled up":
        await ask(world, stream, pub(b"S.a", Nats_Rollup="all"))
    else:
        publish(world, stream, *[pub(b"S.a") for _ in range(15)])
    await world.settle(stream)
    if rounds:
        assert await world.shard.checkpointer.cut()
    stream = await world.reopen(stream, kill=kill)
    for seq in range(1, last + 1):
        await _duplicate(world, stream, seq)
    await world.stop(stream)


@pytest.mark.parametrize("seed", range(5))
async def test_answers_are_those_of_a_window(seed: int, monkeypatch: pytest.MonkeyPatch,
                                             caplog: pytest.LogCaptureFixture) -> None:
    """Random publishes, deletes, purges, pauses, rounds, merges, stops and kills with small pages: every answer is
    right."""
    rng = random.Random(seed)
    monkeypatch.setattr(state_ids, "PART_IDS", rng.choice([5, 20, 1 << 16]))
    monkeypatch.setattr(state_pages, "INLINE_IDS_BYTES_MAX", rng.choice([0, 0, 150]))
    monkeypatch.setattr(directory_pages, "_IDS_BYTES_MAX", rng.choice([50, 1 << 20]))
    merging = CompactionSettings(few=2, segments=1 << 30, quiet_ns=1 << 60, cpu=1.0, bytes_per_second=1 << 40)
    how = settings(compaction=merging)
    world = PagedWorld()
    await world.open(how=how)
    window_ns = 20 * SECOND + SECOND // 2
    stream = world.stream(duplicate_window=window_ns)
    await world.settle(stream)
    known: dict[int, tuple[int, int]] = {}
    paged = duplicates = 0
    for _ in range(80):
        choice = rng.random()
        if choice < 0.55:
            msgs = []
            for msg_id in rng.sample(range(40), rng.randrange(1, 9)):
                seq, time_ns = known.get(msg_id, (0, -1 << 62))
                duplicate = time_ns > world.clock.now_ns() - window_ns
                if not duplicate:
                    seq = stream.last_seq + 1 + sum(not again for _, _, again in msgs)
                    known[msg_id] = (seq, world.clock.now_ns())
                msgs.append((pub(b"S.a", Nats_Msg_Id=str(msg_id)), seq, duplicate))
            publish(world, stream, *[msg for msg, _, _ in msgs])
            await world.settle(stream)
            for msg, seq, duplicate in msgs:
                assert world.bus.answer(msg[1]) == {"stream": "S",
                                                    "seq": seq} | ({"duplicate": True} if duplicate else {})
                duplicates += duplicate
        elif choice < 0.6:
            publish(world, stream, pub(b"S.b"))
        elif choice < 0.65 and stream.msgs:
            await stream.delete_msg(rng.randrange(stream.first_seq, stream.last_seq + 1), False)
        elif choice < 0.67:
            await stream.purge(None, keep=rng.randrange(10))
        elif choice < 0.77:
            world.clock.advance(rng.choice([1, 1, 1, 2, 5, 30]) * SECOND)
        elif choice < 0.9:
            await world.settle(stream)
            await world.shard.checkpointer.cut()
        else:
            await world.settle(stream)
            if rng.random() < 0.5:
                assert world.shard.compactor is not None
                await world.shard.compactor.work(quiet=True)
            stream = await world.reopen(stream, kill=rng.random() < 0.5, how=how)
        await world.settle(stream)
        paged += sum(part.place is not None for part in _parts(world, stream))
    assert paged
    assert duplicates
    assert "cannot be used" not in caplog.text
    await world.stop(stream)


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("finder", ["publish", "round"])
async def test_a_page_that_cannot_be_read(damage: str, finder: str, caplog: pytest.LogCaptureFixture) -> None:
    """The blocks are read instead, with a warning; later ids are in a page of their own."""
    world, stream = await _paged()
    key, _ = object_of(world, PageKind.DEDUPE)
    stream = await world.reopen(stream)
    if finder == "round":
        await _duplicate(world, stream, 2)
    do_damage(world, key, stream.stream_id, damage)
    with caplog.at_level(logging.WARNING):
        if finder == "round":
            await _fill(world, stream, 20)
            assert await world.shard.checkpointer.cut()
            stream = await world.reopen(stream)
        else:
            await _duplicate(world, stream, 2)
    assert "cannot be used" in caplog.text
    assert _parts(world, stream)[0].in_blocks
    for seq in range(1, 61):
        await _duplicate(world, stream, seq)
    await _fill(world, stream, 2)
    caplog.clear()
    stream = await world.reopen(stream)
    await _duplicate(world, stream, 2)
    await _duplicate(world, stream, stream.last_seq)
    assert not caplog.records
    await world.stop(stream)


@pytest.mark.parametrize("damage", ["flipped", "gone"])
async def test_fsck_and_a_damaged_page(damage: str) -> None:
    """It reports that no message is lost; a repair removes the page from the checkpoint and keeps the others."""
    world, stream = await _paged()
    [first] = _parts(world, stream)
    await _fill(world, stream, 8)
    assert await world.shard.checkpointer.cut()
    assert _parts(world, stream)[0] is first
    await world.stop(stream)
    assert first.place is not None
    key = SHARD.pages(first.place.position)
    data = world.store.objects[key]
    if damage == "gone":
        await world.store.delete(key)
    else:
        world.store.objects[key] = data[:-9] + bytes([data[-9] ^ 1]) + data[-8:]
    source = Source(world.store, give_up_ns=0)
    problems = (await verify(source, await read_survey(source))).problems
    assert {(problem.object, "no longer recognised" in problem.means) for problem in problems} == {(key, True)}
    assert await correct_shard(world.store, SHARD, [], world.clock, world.rng)
    await world.open()
    stream = world.found(stream.stream_id)
    assert [(part.in_blocks, part.place is not None) for part in _parts(world, stream)] == [(True, False),
                                                                                            (False, True)]
    await _check(world, stream)
    await world.stop(stream)


async def test_pages_outside_the_window_are_released() -> None:
    """Rounds over several windows name few pages, and release the others."""
    world, stream = await _paged(1, duplicate_window=MINUTE)
    seen: set[str] = set()
    for _ in range(40):
        world.clock.advance(5 * SECOND)
        await _fill(world, stream, 2)
        assert await world.shard.checkpointer.cut()
        named = {SHARD.pages(place.position) for place in world.log.state.streams[stream.stream_id].ids.places}
        assert named <= world.store.objects.keys()
        seen |= named
        await world.shard.sweeper.after_round(world.shard.checkpointer)
    world.log.urgent()
    await world.settle(stream)
    assert len(seen) > 20
    assert 1 <= len(named) <= 7
    released = {SHARD.pages(position) for one in world.log.state.released.values() for position in one.pages}
    assert len((seen & world.store.objects.keys()) - released - named) <= 3 + len(named), "the kept roots name these"
    world.clock.advance(2 * MINUTE)
    publish(world, stream, pub(b"S.a"))
    await world.settle(stream)
    assert await world.shard.checkpointer.cut()
    assert not _parts(world, stream)
    await world.stop(stream)


async def test_an_id_is_written_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two hundred rounds within one window write an id about once for each doubling, and the last round writes little.

    That is because a page is joined with pages of up to twice its size.
    """
    written: list[int] = []
    pack = state_pages.pack_body  # type: ignore[attr-defined]
    monkeypatch.setattr(state_pages, "pack_body",
                        lambda first, last, count, chunks: (written.append(count), pack(first, last, count, chunks))[1])
    world, stream = await _paged(1)
    for _ in range(200):
        await _fill(world, stream, 1, each=10)
        assert await world.shard.checkpointer.cut()
    assert len(_parts(world, stream)) <= 9
    assert sum(written) <= 2010 * 9
    stream = await world.reopen(stream)
    await _check(world, stream)
    await world.stop(stream)


async def test_a_stream_that_does_not_change_keeps_its_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds caused by another stream name its object as long as it is needed."""
    monkeypatch.setattr(directory_pages, "DIRECTORY_STREAMS", 1)
    world, stream = await _paged(5)
    other = world.stream("OTHER")
    for _ in range(5):
        publish(world, other, pub(b"OTHER.x"))
        await world.settle(other)
        assert await world.shard.checkpointer.cut()
    [place] = world.log.state.streams[stream.stream_id].ids.places
    assert all(place.position in root.objects for root in world.shard.checkpointer.roots)
    other.close()
    stream = await world.reopen(stream)
    await _check(world, stream)
    await world.stop(stream)


async def test_streams_share_an_object() -> None:
    """A round puts the ids of all streams into one object."""
    world = PagedWorld()
    await world.open()
    streams = [world.stream(name) for name in ("A", "B", "C")]
    for stream in streams:
        publish(world, stream, pub(b"%s.a" % stream.name.encode(), Nats_Msg_Id="x"))
        await world.settle(stream)
    assert await world.shard.checkpointer.cut()
    places = [world.log.state.streams[stream.stream_id].ids.places for stream in streams]
    assert len({place.position for [place] in places}) == 1
    for stream in streams[1:]:
        stream.close()
    await world.stop(streams[0])


@pytest.mark.parametrize("kill", [False, True])
async def test_a_changed_window(kill: bool) -> None:
    """Ids that left a shorter window stay forgotten in a longer one, also over a restart, once a round has seen it.

    Without a window no ids are kept.
    """
    world, stream = await _paged(2, duplicate_window=10 * MINUTE)
    world.clock.advance(5 * MINUTE)
    await _fill(world, stream, 1)
    for window_ns in (MINUTE, 10 * MINUTE):
        await world.update(stream, duplicate_window=window_ns)
        await ask(world, stream, pub(b"S.b"))
        assert await world.shard.checkpointer.cut()
    stream = await world.reopen(stream, kill=kill)
    await _duplicate(world, stream, 7)
    last = stream.last_seq
    assert await ask(world, stream, pub(b"S.a", Nats_Msg_Id="2")) == {"stream": "S", "seq": last + 1}
    await world.update(stream, duplicate_window=0)
    await ask(world, stream, pub(b"S.a", Nats_Msg_Id="3"))
    assert await world.shard.checkpointer.cut()
    assert not _parts(world, stream)
    await world.stop(stream)


async def test_the_last_id_is_known_without_blocks() -> None:
    """Expected-Last-Msg-Id works after a restart, also long after the window."""
    world, stream = await _paged(2)
    world.clock.advance(60 * MINUTE)
    counting = Counting(world.store)
    stream = await world.reopen(stream, store=counting)
    counting.calls.clear()
    assert (await ask(world, stream, pub(b"S.a", Nats_Expected_Last_Msg_Id="5")))["error"]["err_code"] == 10070
    assert "SEGMENT" not in gets_of(counting)
    assert (await ask(world, stream, pub(b"S.a", Nats_Expected_Last_Msg_Id="6")))["seq"] == 7
    await world.stop(stream)


async def test_a_block_that_took_long_is_exact() -> None:
    """Each id of a long block has its own message's time: after a clean stop, and after a replay."""
    for kill in (False, True):
        world = PagedWorld()
        await world.open()
        stream = world.stream(duplicate_window=10 * SECOND)
        await world.settle(stream)
        publish(world, stream, pub(b"S.a", Nats_Msg_Id="1"))
        world.clock.advance(6 * SECOND)
        publish(world, stream, pub(b"S.a"), pub(b"S.a", Nats_Msg_Id="3"))
        await world.settle(stream)
        assert len(list(world.log.state.streams[stream.stream_id].blocks)) == 1
        stream = await world.reopen(stream, kill=kill)
        world.clock.advance(3 * SECOND)
        await _duplicate(world, stream, 1)
        stream = await world.reopen(stream)
        world.clock.advance(2 * SECOND)
        await _duplicate(world, stream, 3)
        assert await ask(world, stream, pub(b"S.a", Nats_Msg_Id="1")) == {"stream": "S", "seq": 4}
        await world.stop(stream)


async def test_a_store_of_an_earlier_release(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its checkpoint lists no ids: they are read from the blocks while they are in the window.

    Ids of later messages are listed.
    """
    world, stream = await _paged(8)
    await ask(world, stream, pub(b"S.b"))
    world.log.state.streams[stream.stream_id].ids.clear()
    extra = checkpointer.shard_extra  # type: ignore[attr-defined]

    def earlier(shard: Any) -> Any:
        made = yield from extra(shard)
        del made[state_pages.IDS_UNLISTED]
        return made

    monkeypatch.setattr(checkpointer, "shard_extra", earlier)
    stream = await world.reopen(stream)
    monkeypatch.undo()
    monkeypatch.setattr(state_pages, "INLINE_IDS_BYTES_MAX", 0)
    for _ in range(2):  # the second of a checkpoint of this release
        stream, gets = await _counted(world, stream)
        assert sorted(set(gets)) == ["SEGMENT"]
        assert 8 <= len(gets) <= 11
        await ask(world, stream, pub(b"S.b"))
    await _fill(world, stream, 5)
    stream, gets = await _counted(world, stream)
    assert gets.count("PAGES") == 1
    assert 8 <= len(gets) <= 12
    world.clock.advance(10 * MINUTE)
    await _fill(world, stream, 1)
    world.clock.advance(10 * SECOND)
    counting = Counting(world.store)
    stream = await world.reopen(stream, store=counting)
    counting.calls.clear()
    await _duplicate(world, stream, stream.last_seq)
    assert gets_of(counting) == ["PAGES"]
    await world.stop(stream)


async def test_inline_ids_that_are_none(caplog: pytest.LogCaptureFixture) -> None:
    """Rounds continue, and publishes read the blocks, whatever a directory page has in place of inline ids."""
    for chunk in (b"", b"\x95", b"\xc1" * 9, b"\x95\x03" + bytes(40)):
        world, stream = await _paged(3)
        ids = world.log.state.streams[stream.stream_id].ids
        [part] = ids.parts()
        assert ids.replace([part], state_ids.IdPart(1, part.last_seq, part.last_time_ns, 9, len(chunk), (chunk,)))
        await ask(world, stream, pub(b"S.b"))
        assert await world.shard.checkpointer.cut()
        stream = await world.reopen(stream)
        await _duplicate(world, stream, 2)
        assert "cannot be used" in caplog.text
        caplog.clear()
        await world.stop(stream)


async def test_parts_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids of the oldest parts are read from blocks if very many parts cannot be joined, as between staged ones."""
    monkeypatch.setattr(state_ids, "_PARTS_MAX", 4)
    monkeypatch.setattr(state_ids, "PART_IDS", 3)
    world, stream = await _paged(20)
    parts = _parts(world, stream)
    assert [part.in_blocks for part in parts] == [True, False, False, False]
    stream = await world.reopen(stream)
    await _check(world, stream)
    await world.stop(stream)


async def test_an_earlier_release_refuses_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory page with ids has a flag that earlier releases do not know; a store without ids has no such flag."""
    monkeypatch.setattr("broker.storage.format.page._FLAGS", 63)
    world = PagedWorld()
    await world.open()
    stream = world.stream()
    await world.settle(stream)
    publish(world, stream, pub(b"S.a"))
    await world.settle(stream)
    assert await world.shard.checkpointer.cut()
    await read_snapshot(world.store, 0)
    await _fill(world, stream, 1)
    assert await world.shard.checkpointer.cut()
    with pytest.raises(VersionUnknown, match=r"flags .*: not this reader's"):
        await read_snapshot(world.store, 0)
    await world.stop(stream, kill=True)


async def test_pages_are_joined_beside_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page is decoded in a thread if there are threads."""
    threads: set[int] = set()
    decode = id_pages.decode_ids  # type: ignore[attr-defined]
    monkeypatch.setattr(id_pages, "decode_ids", lambda *args: (threads.add(threading.get_ident()), decode(*args))[1])
    world, stream = await _paged(2)
    world.shard.checkpointer._id_pager._threads = True
    await _fill(world, stream, 2)
    assert await world.shard.checkpointer.cut()
    assert len(_parts(world, stream)) == 1
    assert threads
    assert threading.get_ident() not in threads
    await world.stop(stream)
