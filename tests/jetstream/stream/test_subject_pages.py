"""The first query for a stream's subjects after a start reads a few pages instead of every block. Its answer is that of
the messages, whatever happened to them, to the pages, and to their maker."""

from __future__ import annotations

import logging
import random
import threading
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest

from broker.jetstream.filters import Filters
from broker.jetstream.stream.state import subject_search, subject_state
from broker.jetstream.stream.stream import Stream
from broker.storage.checkpoint import directory_pages, subject_pages
from broker.storage.compaction.settings import CompactionSettings
from broker.storage.format.page import PageKind
from broker.storage.format.subject_rows import SubjectRows, SubjectRowsWriter
from broker.storage.objectstore.base import Buffers
from tests.jetstream.stream.paged_world import DAMAGES, PagedWorld, do_damage, gets_of, object_of, settings
from tests.jetstream.stream.world import SHARD, ask, pub, publish
from tests.storage.rig import Counting

SUBJECTS = [b"S.%d" % i for i in range(100)]


async def _fill(world: PagedWorld, stream: Stream, blocks: int, rng: random.Random, each: int = 25) -> None:
    """Publish blocks with more subjects than a summary lists."""
    for _ in range(blocks):
        publish(world, stream, *[pub(subject, b"x" * rng.randrange(9), reply=b"")
                                 for subject in rng.sample(SUBJECTS, each)])
        world.log.urgent()
        await world.settle(stream)


async def _messages(stream: Stream) -> dict[int, bytes]:
    found = [await stream.get(seq) for seq in range(max(stream.first_seq, 1), stream.last_seq + 1)]
    return {one.seq: one.subject for one in found if one is not None}


async def _check(stream: Stream, msgs: dict[int, bytes]) -> None:
    """Check last sequences and counts of all subjects, and that there are no others; for tracked ones, each message."""
    lasts = {subject: seq for seq, subject in sorted(msgs.items())}
    index = await stream.subjects.build()
    assert index.counts(SUBJECTS, stream.first_seq) == [Counter(msgs.values())[subject] for subject in SUBJECTS]
    assert await stream.queries._search.distinct() == len(lasts)
    assert sorted(await stream.queries._search.matching(Filters([b"S.*"]))) == sorted(lasts)
    assert [await stream.queries.last_seq_of(Filters([subject])) for subject in SUBJECTS] == [
        lasts.get(subject, 0) for subject in SUBJECTS]
    if index.tracked:
        for subject in SUBJECTS:
            listed = index.messages(subject, stream.first_seq)
            assert [seq for seq, _ in listed] == [seq for seq, one in sorted(msgs.items()) if one == subject]
        sizes = [size for subject in SUBJECTS for _, size in index.messages(subject, stream.first_seq)]
        assert sum(sizes) == stream.size_bytes


def _pages(world: PagedWorld, stream: Stream) -> tuple[object, ...]:
    return world.log.state.streams[stream.stream_id].subjects


async def _paged(config: dict[str, object] | None = None, blocks: int = 40, seed: int = 1) -> tuple[PagedWorld, Stream]:
    """Create a stream all of whose messages are in a page."""
    world = PagedWorld()
    await world.open()
    stream = world.stream(**(config or {}))
    await world.settle(stream)
    await _fill(world, stream, blocks, random.Random(seed))
    assert await world.shard.checkpointer.cut()
    return world, stream


@pytest.mark.parametrize("question", ["last by subject", "info", "expected last of a subject",
                                      "a limit of each subject"])
async def test_a_first_question_reads_a_page_and_no_block(question: str) -> None:
    """A page is read after a clean stop instead of each of 40 blocks, and of blocks only that of the answer."""
    tracked = question == "a limit of each subject"
    world, stream = await _paged({"max_msgs_per_subject": 3} if tracked else {})
    counting = Counting(world.store)
    stream = await world.reopen(stream, store=counting)
    counting.calls.clear()
    if question == "info":
        info = await stream.info_state()
        assert info["num_subjects"] == len(SUBJECTS)
    elif question == "last by subject":
        found = await stream.get_last(b"S.7")
        assert found is not None
        assert found.subject == b"S.7"
    elif question == "expected last of a subject":
        answer = await ask(world, stream, pub(b"S.7", Nats_Expected_Last_Subject_Sequence="1"))
        assert answer["error"]["err_code"] == 10071
    else:
        assert (await ask(world, stream, pub(b"S.7")))["seq"] == stream.last_seq
        assert stream.msgs == 300
    gets = gets_of(counting)
    assert gets.count("PAGES") == 1
    assert gets.count("SEGMENT") <= (2 if question == "last by subject" else 0)
    await world.stop(stream)


async def test_only_blocks_after_the_last_round_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill after six more blocks leads to a get of a page and six indexes; after the next round, of a page alone."""
    world, stream = await _paged()
    await _fill(world, stream, 6, random.Random(2))
    msgs = await _messages(stream)
    counting = Counting(world.store)
    stream = await world.reopen(stream, store=counting, kill=True)
    counting.calls.clear()
    await stream.subjects.build()
    assert sorted(gets_of(counting)) == ["PAGES"] + ["SEGMENT"] * 6
    await _check(stream, msgs)
    counting = Counting(world.store)
    stream = await world.reopen(stream, store=counting)
    counting.calls.clear()
    await stream.subjects.build()
    assert 1 <= len(gets_of(counting)) <= 2
    assert set(gets_of(counting)) == {"PAGES"}
    await _check(stream, msgs)
    await world.stop(stream)


@pytest.mark.parametrize("seed", range(6))
async def test_answers_are_those_of_the_messages(seed: int, monkeypatch: pytest.MonkeyPatch,
                                                 caplog: pytest.LogCaptureFixture) -> None:
    """Random publishes, deletes, purges, limits, rounds, merges, stops, kills with small pages: every answer is
    right."""
    rng = random.Random(seed)
    monkeypatch.setattr(subject_state, "_ROWS_AT_ONCE", at_once := rng.choice([7, 4096]))
    monkeypatch.setattr(subject_search, "_NAMES_AT_ONCE", at_once)
    merging = CompactionSettings(few=2, segments=1 << 30, quiet_ns=1 << 60, cpu=1.0, bytes_per_second=1 << 40)
    how = settings(blocks_min=rng.choice([1, 3]), rows_max=rng.choice([30, 100, 1000]), compaction=merging)
    config = rng.choice([{}, {"max_msgs_per_subject": 2}, {"max_msgs": 300},
                         {"max_msgs_per_subject": 1, "max_bytes": 9000}])
    world = PagedWorld()
    await world.open(how=how)
    stream = world.stream(**config)
    await world.settle(stream)
    paged = 0
    for _ in range(25):
        choice = rng.random()
        if choice < 0.5:
            await _fill(world, stream, rng.randrange(1, 5), rng, rng.choice([1, 20, 30]))
        elif choice < 0.6 and stream.msgs:
            few = 5 if stream.last_seq - stream.first_seq > 5 else 1
            for seq in rng.sample(range(stream.first_seq, stream.last_seq + 1), few):
                await stream.delete_msg(seq, False)
        elif choice < 0.65:
            await stream.purge(rng.choice(SUBJECTS))
        elif choice < 0.7:
            await stream.purge(None, keep=rng.randrange(200))
        elif choice < 0.8:
            await world.settle(stream)
            if rng.random() < 0.6:
                # A block may then reach from one page into the next, and lack the messages that were dead.
                assert world.shard.compactor is not None
                await world.shard.compactor.work(quiet=True)
            stream = await world.reopen(stream, kill=rng.random() < 0.5, how=how)
        elif choice < 0.9:
            await _check(stream, await _messages(stream))
        else:
            await world.settle(stream)
            await world.shard.checkpointer.cut()
        await world.settle(stream)
        paged += len(_pages(world, stream))
    assert paged
    msgs = await _messages(stream)
    await _check(stream, msgs)
    stream = await world.reopen(stream, how=how)
    await _check(stream, msgs)
    assert "cannot be used" not in caplog.text
    await world.stop(stream)


@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_page_that_cannot_be_read_is_made_anew(damage: str, caplog: pytest.LogCaptureFixture) -> None:
    """The blocks are read instead, with a warning that names the object; the next round makes another page."""
    world, stream = await _paged()
    msgs = await _messages(stream)
    key, _ = object_of(world, PageKind.SUBJECTS)
    stream = await world.reopen(stream)
    do_damage(world, key, stream.stream_id, damage)
    with caplog.at_level(logging.WARNING):
        await _check(stream, msgs)
    assert "its blocks are read instead" in caplog.text
    assert key.rpartition("/")[2].rpartition("-")[2].lstrip("0") in caplog.text or damage == "gone"
    assert not _pages(world, stream)
    await _fill(world, stream, 1, random.Random(3))
    msgs = await _messages(stream)
    assert await world.shard.checkpointer.cut()
    assert _pages(world, stream)
    caplog.clear()
    stream = await world.reopen(stream)
    await _check(stream, msgs)
    assert not caplog.records
    await world.stop(stream)


async def test_pages_that_no_root_needs_are_released() -> None:
    """The unreleased objects with subjects are those that the stream or one of three roots names, after many rounds.

    After a purge of all, and more rounds, those are released too.
    """
    world, stream = await _paged(blocks=5)

    def named() -> set[str]:
        return {SHARD.pages(page.place.position) for page in _pages(world, stream)}  # type: ignore[attr-defined]

    async def rounds(count: int) -> set[str]:
        """Run rounds; return every object that the stream named."""
        seen: set[str] = set()
        for i in range(count):
            await _fill(world, stream, 4, random.Random(i))
            assert await world.shard.checkpointer.cut()
            seen |= named()
        await world.shard.sweeper.after_round(world.shard.checkpointer)
        world.log.urgent()
        await world.settle(stream)
        return seen

    def left(keys: set[str]) -> set[str]:
        """Return the keys that are neither deleted nor released for deletion in the background."""
        released = {SHARD.pages(position) for one in world.log.state.released.values() for position in one.pages}
        return keys & world.store.objects.keys() - released

    seen = await rounds(20)
    kept = named()
    assert len(seen) > 10
    assert len(kept) <= 5
    assert kept <= world.store.objects.keys()
    await rounds(3)
    assert not left(seen - named() - kept)
    kept = named()
    await stream.purge(None)
    await rounds(4)
    assert not kept & named()
    assert not left(kept)
    await world.stop(stream)


async def test_a_stream_that_does_not_change_keeps_its_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds caused by another stream name its object as long as it is needed."""
    monkeypatch.setattr(directory_pages, "DIRECTORY_STREAMS", 1)
    world, stream = await _paged(blocks=5)
    other = world.stream("OTHER")
    for _ in range(5):
        publish(world, other, pub(b"OTHER.x"))
        await world.settle(other)
        assert await world.shard.checkpointer.cut()
    [page] = _pages(world, stream)
    assert all(page.place.position in root.objects  # type: ignore[attr-defined]
               for root in world.shard.checkpointer.roots)
    other.close()
    await world.stop(stream)


async def test_a_block_may_reach_from_one_page_into_another(caplog: pytest.LogCaptureFixture) -> None:
    """Merge forty blocks into one, over pages of sixty messages and some without a page: each message counts once."""
    merging = CompactionSettings(few=2, segments=1 << 30, quiet_ns=1 << 60, cpu=1.0, bytes_per_second=1 << 40)
    how = settings(blocks_min=2, rows_max=60, compaction=merging)
    world = PagedWorld()
    await world.open(how=how)
    stream = world.stream()
    await world.settle(stream)
    await _fill(world, stream, 10, random.Random(1))
    assert await world.shard.checkpointer.cut()
    assert len(_pages(world, stream)) > 2
    await _fill(world, stream, 1, random.Random(2))
    for seq in (3, 60, 61, 62, 130, 255):
        await stream.delete_msg(seq, False)
    msgs = await _messages(stream)
    await world.settle(stream)
    assert world.shard.compactor is not None
    await world.shard.compactor.work(quiet=True)
    stream = await world.reopen(stream, how=how, kill=True)
    [_] = world.log.state.streams[stream.stream_id].blocks
    await _check(stream, msgs)
    await _fill(world, stream, 4, random.Random(3))
    msgs = await _messages(stream)
    stream = await world.reopen(stream, how=how)
    assert _pages(world, stream)[-1].last_seq == stream.last_seq  # type: ignore[attr-defined]
    await _check(stream, msgs)
    assert "cannot be used" not in caplog.text
    await world.stop(stream)


async def test_pages_of_a_key_value_stream_have_mostly_live_messages() -> None:
    """A hundred subjects are written over and over: the pages have at most a few times as many messages as are live."""
    world = PagedWorld()
    how = settings(blocks_min=4, rows_max=200)
    await world.open(how=how)
    stream = world.stream(max_msgs_per_subject=1)
    await world.settle(stream)
    for i in range(30):
        await _fill(world, stream, 4, random.Random(i))
        await world.shard.checkpointer.cut()
    pages = _pages(world, stream)
    assert stream.msgs == 100
    assert sum(page.count for page in pages) <= 600  # type: ignore[attr-defined]
    msgs = await _messages(stream)
    stream = await world.reopen(stream, how=how)
    await _check(stream, msgs)
    await world.stop(stream)


async def test_a_round_reads_no_more_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store of an earlier version with many blocks gets its pages over several rounds; a stream of few blocks gets
    none."""
    monkeypatch.setattr("broker.storage.checkpoint.subject_pages._GETS_MIN", 10)
    world = PagedWorld()
    await world.open(how=settings(enabled=False))
    stream = world.stream()
    await world.settle(stream)
    await _fill(world, stream, 40, random.Random(1))
    counting = Counting(world.store)
    stream = await world.reopen(stream, how=settings(blocks_min=8), store=counting)
    covered = []
    for i in range(5):
        publish(world, stream, pub(b"S.1", reply=b""))
        await world.settle(stream)
        counting.calls.clear()
        assert await world.shard.checkpointer.cut()
        assert gets_of(counting).count("SEGMENT") <= 10, i
        covered.append(_pages(world, stream)[-1].last_seq)  # type: ignore[attr-defined]
    assert covered == sorted(covered)
    assert covered[0] < covered[2]
    assert stream.last_seq - covered[-1] < 8 * 25 + 5
    await _check(stream, await _messages(stream))
    await world.stop(stream)


async def test_pages_are_made_beside_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """All long work on the messages of a page is done in a thread, if there are threads.

    A page of 262 144 messages held the loop for half a second.
    """
    threads: dict[str, set[int]] = {"rows": set(), "pack": set()}
    rows, pack = SubjectRowsWriter.rows, SubjectRows.pack
    monkeypatch.setattr(SubjectRowsWriter, "rows",
                        lambda self: (threads["rows"].add(threading.get_ident()), rows(self))[1])
    monkeypatch.setattr(SubjectRows, "pack", lambda self: (threads["pack"].add(threading.get_ident()), pack(self))[1])
    world = PagedWorld()
    await world.open()
    world.shard.checkpointer._subject_pager._threads = True
    stream = world.stream()
    await world.settle(stream)
    await _fill(world, stream, 10, random.Random(1))
    assert await world.shard.checkpointer.cut()
    assert _pages(world, stream)
    assert threads["rows"]
    assert threads["pack"]
    assert threading.get_ident() not in threads["rows"] | threads["pack"]
    await world.stop(stream)


@pytest.mark.parametrize("seed", range(4))
async def test_dead_messages_are_found_in_turns(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page has the live messages, and each turn examines only a few blocks and a few ranges."""
    monkeypatch.setattr(subject_pages, "_BLOCKS_AT_ONCE", 2)
    monkeypatch.setattr(subject_pages, "_SPANS_AT_ONCE", 3)
    rng = random.Random(seed)
    how = settings(blocks_min=1, rows_max=rng.choice([100, 1000]))
    world = PagedWorld()
    await world.open(how=how)
    stream = world.stream()
    await world.settle(stream)
    for i in range(4):
        await _fill(world, stream, 6, rng)
        if i:
            for seq in rng.sample(range(stream.first_seq, stream.last_seq + 1), 60):
                await stream.delete_msg(seq, False)
        await world.settle(stream)
        assert await world.shard.checkpointer.cut()
    msgs = await _messages(stream)
    stored = world.log.state.streams[stream.stream_id]
    for page in stored.subjects:
        assert page.count >= await subject_pages._live(stored, page)
    dead = await subject_pages._dead(stored, 1, stream.last_seq)
    assert {seq for first, last in dead for seq in range(first,
                                                         last + 1)} == set(range(1, stream.last_seq + 1)) - set(msgs)
    assert sorted(dead) == dead
    stream = await world.reopen(stream, how=how)
    await _check(stream, msgs)
    await world.stop(stream)


async def test_full_pages_are_kept_when_time_runs_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page of blocks with very many messages is put once it is full, and the next round continues after it.

    If they were read all at once, they would never get a page, and all their subjects would be in memory.
    """
    held: list[int] = []
    add_indexes = subject_pages._Making.add_indexes

    def slow(self: subject_pages._Making, *args: object) -> None:
        held.append(len(self._writer))
        if len(held) > 5:
            raise TimeoutError
        add_indexes(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(subject_pages._Making, "add_indexes", slow)
    monkeypatch.setattr(subject_pages, "_AT_ONCE", 1)
    how = settings(blocks_min=4, rows_max=60)
    world = PagedWorld()
    await world.open(how=how)
    stream = world.stream()
    await world.settle(stream)
    await _fill(world, stream, 12, random.Random(1))
    assert await world.shard.checkpointer.cut()
    assert [page.last_seq for page in _pages(world, stream)] == [50, 100]  # type: ignore[attr-defined]
    held.clear()
    await _fill(world, stream, 1, random.Random(2))
    assert await world.shard.checkpointer.cut()
    assert _pages(world, stream)[-1].last_seq == 200  # type: ignore[attr-defined]
    await _check(stream, await _messages(stream))
    await world.stop(stream)


class _Busy(Counting):
    """A store that, while ``publish`` is set, causes a new block of the stream with each page that is put."""

    publish: Callable[[], Awaitable[None]] | None = None

    async def put(self, key: str, data: Buffers) -> None:
        await super().put(key, data)
        if "/pages/" in key and (come := self.publish) is not None:
            await come()


async def test_a_round_does_not_follow_the_end_of_a_busy_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """A round makes pages of the blocks that exist when it begins.

    If it continued to the blocks that arrive while it puts a page, each of them would cost another page, until the
    round had read as many blocks as it may.
    """
    monkeypatch.setattr(subject_pages, "_SECONDS", 60)
    how = settings(blocks_min=4, rows_max=100)
    world = PagedWorld()
    store = _Busy(world.store)
    await world.open(store, how)
    stream = world.stream()
    await world.settle(stream)
    await _fill(world, stream, 8, random.Random(1))
    came = 0

    async def one_more() -> None:
        nonlocal came
        came += 1
        assert came < 20, "the round follows the stream"
        await _fill(world, stream, 1, random.Random(came))

    for _ in range(2):
        last_seq, came = stream.last_seq, 0
        pages, put = len(_pages(world, stream)), len(store.calls)
        store.publish = one_more
        assert await world.shard.checkpointer.cut()
        store.publish = None
        assert _pages(world, stream)[-1].last_seq == last_seq  # type: ignore[attr-defined]
        made = len(_pages(world, stream)) - pages
        puts = [key for operation, key in store.calls[put:] if operation == "put" and "/pages/" in key]
        assert len(puts) <= made + 1, (puts, made)  # one with the directory
        await _fill(world, stream, 4, random.Random(came))
    await _check(stream, await _messages(stream))
    await world.stop(stream)


class _Late(Counting):
    """A store that raises TimeoutError for the first put of pages, although the pages are stored."""

    late = ""

    async def put(self, key: str, data: Buffers) -> None:
        await super().put(key, data)
        if "/pages/" in key and not self.late:
            self.late = key
            raise TimeoutError


async def test_a_page_that_was_put_too_late_is_released() -> None:
    """No root ever names the page: it is deleted before the next start."""
    world, stream = await _paged(blocks=0)
    store = _Late(world.store)
    stream = await world.reopen(stream, store=store, kill=True)
    await _fill(world, stream, 8, random.Random(1))
    store.late = ""
    assert await world.shard.checkpointer.cut()
    assert store.late in world.store.objects
    assert not _pages(world, stream)
    for i in range(4):
        await _fill(world, stream, 1, random.Random(i))
        assert await world.shard.checkpointer.cut()
        await world.shard.sweeper.after_round(world.shard.checkpointer)
    world.log.urgent()
    await world.settle(stream)
    assert _pages(world, stream)
    released = {SHARD.pages(position) for one in world.log.state.released.values() for position in one.pages}
    assert store.late in released or store.late not in world.store.objects
    assert not {SHARD.pages(page.place.position)  # type: ignore[attr-defined]
                for page in _pages(world, stream)} & released
    await world.stop(stream)
