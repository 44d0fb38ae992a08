"""The journal of a log on a directory: when calls are made, what a kill leaves, and what the next owner stores."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import random
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from broker.cluster.identity import Identity
from broker.cluster.ownership import seal_at, take_shard
from broker.storage import journal_reader
from broker.storage.format import codec, section
from broker.storage.format import journal as format_journal
from broker.storage.format.errors import Corrupt
from broker.storage.format.header import FORMAT_VERSION, Position
from broker.storage.format.journal import AREA_BYTES_MAX, JOURNAL, EncodedCommit
from broker.storage.format.store import JOURNAL_VERSION, StoreFormat
from broker.storage.journal_reader import find_journaled
from broker.storage.journal_replay import journal_place, replay_journal
from broker.storage.log import journal, journaling
from broker.storage.log.journal import JournalPlace
from broker.storage.log.journaled_log import JournaledLog
from broker.storage.log.listener import LogListener
from broker.storage.log.log import Log
from broker.storage.log.settings import LogSettings
from broker.storage.objectstore.base import StoreRefused
from broker.storage.objectstore.file import FileStore
from broker.storage.objectstore.unsynced import SyncFailed
from broker.storage.paths import FORMAT
from broker.storage.shard import Shard, ShardSettings
from broker.storage.state.applied import ShardState
from tests.manual_clock import ManualClock
from tests.storage.power import InlineJournal, InlineStore
from tests.storage.rig import PATHS, Stream, in_virtual_time, read_all

FILE = Path(PATHS.logs) / JOURNAL
Main = Callable[["World", ManualClock], Coroutine[Any, Any, None]]


class HeldJournal(InlineJournal):
    """A journal's thread that makes its calls later, while ``held`` is a list."""

    held: list[Callable[[], object]] | None = None

    def run(self, call: Callable[[], Any], then: Callable[[Any], object]) -> None:
        if self.held is None:
            super().run(call, then)
        else:
            self.held.append(lambda: super(HeldJournal, self).run(call, then))

    def release(self) -> None:
        held, self.held = self.held or [], None
        for call in held:
            call()


def refuse(key: str, data: Any, *, synced: bool = True) -> None:
    raise StoreRefused("refused")


class World:
    """A directory with one owner at a time; its stream is ``s``."""

    def __init__(self, folder: Path, sync_interval_ns: int | None) -> None:
        self.folder = folder
        self.sync_interval_ns = sync_interval_ns
        self.store = self.new_store()
        self.store._put(FORMAT, [StoreFormat.make(bytes(16), 1).encode()])
        self.file = folder / FILE
        self.rng = random.Random(1)
        self.made: list[int] = []
        """The sequences whose safe calls were made."""

    @property
    def log(self) -> Log:
        return self.shard.log

    @property
    def journal_thread(self) -> HeldJournal:
        thread = self.place.thread
        assert isinstance(thread, HeldJournal)
        return thread

    def new_store(self) -> InlineStore:
        return InlineStore(self.folder, sync_interval_ns=self.sync_interval_ns)

    async def open(self, clock: ManualClock, **log: Any) -> None:
        self.store = self.new_store()
        replay_journal(self.store, PATHS)
        place = journal_place(self.store, PATHS)
        assert place is not None
        self.place = place._replace(thread=HeldJournal())
        self.me = Identity("a", self.rng.randbytes(16))
        taken = await take_shard(self.store, PATHS, self.me, clock, self.rng)
        self.store.start_unsynced(PATHS.logs, PATHS.log(Position(taken.epoch, 1)))
        self.shard = await Shard.open(self.store, PATHS, taken.epoch, self.me.nonce, clock, self.rng,
                                      ShardSettings(log=LogSettings(**log)), began_ns=taken.began_ns,
                                      journal=self.place)
        known = self.log.state.stream("$G", "s")
        self.stream = Stream(self.log)
        if known is None:
            self.stream.create()
            await self.log.persisted()
        else:
            self.stream.first_seq, self.stream.last_seq, self.stream.msgs = known.first_seq, known.last_seq, known.msgs

    async def publish(self, count: int = 1, body: bytes = b"hello") -> None:
        """Publish one message in each turn of the loop."""
        for _ in range(count):
            self.stream.publish(1, body)
            self.log.wait_safe(self.made.append, self.stream.last_seq)
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    async def stored_once(self) -> None:
        """Wait until the next segment is persisted."""
        stored = asyncio.Event()
        listener = LogListener()
        listener.segment_persisted = lambda segment: stored.set()  # type: ignore[method-assign]
        self.log.listen(listener)
        await stored.wait()

    async def kill(self) -> None:
        await self.shard.abandon()
        self.store.unsynced.abandon()

    async def stop(self, clock: ManualClock) -> None:
        end = await self.shard.close()
        await seal_at(self.store, PATHS, end, end.epoch, self.me, clock, self.rng)
        self.store.stop_unsynced()

    def stored(self) -> dict[int, bytes]:
        """Return the messages that a reader finds."""
        async def read() -> dict[int, bytes]:
            store = FileStore(self.store.directory, read_only=True)
            try:
                return await read_all(store)
            finally:
                await store.close()

        return asyncio.run(read())


@pytest.fixture(params=[None, 3_600_000_000_000], ids=["always", "later"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    return World(tmp_path / "store", request.param)


def play(world: World, main: Main) -> None:
    in_virtual_time(lambda clock: main(world, clock))


async def ready(world: World, clock: ManualClock, **log: Any) -> None:
    """Open the shard and publish message 1, which makes the journal and is stored as a segment."""
    await world.open(clock, **log)
    await world.publish()
    await world.log.persisted()


def test_a_call_is_made_before_its_segment_is_stored(world: World) -> None:
    """Shows that safe calls follow the journal at once, and that many commits become one segment: 50 ms later, or 100
    ms if each is flushed."""
    async def main(world: World, clock: ManualClock) -> None:
        await ready(world, clock)
        position = world.log.position
        began_ns = clock.monotonic_ns()
        await world.publish(5)
        assert world.made == [1, 2, 3, 4, 5, 6]
        assert world.log.position == position
        await world.stored_once()
        open_ms = 100 if world.sync_interval_ns is None else 50
        assert open_ms - 10 < (clock.monotonic_ns() - began_ns) / 1e6 < open_ms + 10
        assert [block.core.count for block in world.stream.persisted_blocks[-1:]] == [5]
        assert world.log.position == Position(1, position.number + 1)
        await world.kill()

    play(world, main)


def test_a_call_that_needs_the_applied_state_closes_the_segment(world: World) -> None:
    """Shows that ``persisted`` does not wait 50 ms, also if all is in the journal already."""
    async def main(world: World, clock: ManualClock) -> None:
        await ready(world, clock)
        await world.publish(3)
        began_ns = clock.monotonic_ns()
        await world.log.persisted()
        assert clock.monotonic_ns() - began_ns < 10_000_000
        assert world.stream.persisted_blocks[-1].core.last_seq == 4
        await world.kill()

    play(world, main)


def test_commits_are_gathered_during_a_flush(world: World) -> None:
    """Shows that what is published while a flush is in flight is one commit; without flushes, each turn has its own."""
    async def main(world: World, clock: ManualClock) -> None:
        await ready(world, clock)
        commits, safe = [], world.stream.safe

        def record(last_seq: int) -> None:
            commits.append(last_seq)
            safe(last_seq)

        world.stream.safe = record  # type: ignore[method-assign]
        world.journal_thread.held = [] if world.sync_interval_ns is None else None
        await world.publish(6)
        if world.journal_thread.held is not None:
            assert (commits, len(world.journal_thread.held)) == ([], 1)
            world.journal_thread.release()
        await world.log.safe()
        assert commits == ([2, 7] if world.sync_interval_ns is None else [2, 3, 4, 5, 6, 7])
        assert world.made[-6:] == list(range(2, 8))
        await world.kill()

    play(world, main)


def test_a_caller_waits_for_the_journal_only(world: World) -> None:
    """Shows that ``safe`` returns once the journal has what was sequenced, and raises what stopped the log."""
    async def main(world: World, clock: ManualClock) -> None:
        await ready(world, clock)
        world.stream.publish(1)
        position = world.log.position
        await world.log.safe()
        assert (world.stream.safe_seq, world.log.position) == (2, position)
        await world.log.safe()  # nothing was added

        async def publish() -> None:
            world.stream.publish(1)
            await world.log.safe()

        waiting = asyncio.ensure_future(publish())
        await asyncio.sleep(0)
        world.log.fail(ValueError("stopped"))
        with pytest.raises(ValueError, match="stopped"):
            await waiting
        with pytest.raises(ValueError, match="stopped"):
            await world.log.safe()
        await world.kill()

    play(world, main)


def test_readers_see_what_is_safe(world: World) -> None:
    """Shows that a stream is notified of each commit once it is safe, before the calls that wait for it."""
    async def main(world: World, clock: ManualClock) -> None:
        await ready(world, clock)
        blocks = len(world.stream.persisted_blocks)
        seen = []
        world.stream.publish(1)
        world.log.wait_safe(lambda: seen.append(world.stream.safe_seq))
        world.journal_thread.held = [] if world.sync_interval_ns is None else None
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        if world.journal_thread.held is not None:
            assert (seen, world.stream.safe_seq) == ([], 0)  # message 1 was stored without the journal
            world.journal_thread.release()
            await asyncio.sleep(0)
        assert seen == [2]
        await world.publish(4)
        assert (world.stream.safe_seq, len(world.stream.persisted_blocks)) == (6, blocks)
        await world.kill()

    play(world, main)


def test_the_next_owner_stores_what_a_kill_left(world: World) -> None:
    """Shows that the replay makes the segment that was open, with its records, and removes the journal."""
    async def main(world: World, clock: ManualClock) -> None:
        await ready(world, clock)
        world.stream.expires_at_ns[3] = 77
        await world.publish(2)
        world.stream.remove(1, 1)
        world.stream.expires_at_ns[4] = 99
        await world.publish(2, b"later")
        assert world.made == [1, 2, 3, 4, 5]
        await world.kill()
        assert world.file.exists()
        await world.open(clock)
        assert not world.file.exists()
        state = world.log.state.stream("$G", "s")
        assert state is not None
        assert (state.first_seq, state.last_seq, state.msgs) == (2, 5, 4)
        assert [list(column) for column in state.expiries.rows(1, 9)] == [[3, 4], [77, 99]]
        await world.kill()

    play(world, main)
    assert world.stored() == {2: b"hello", 3: b"hello", 4: b"later", 5: b"later"}


def test_closed_segments_keep_their_boundaries(world: World) -> None:
    """Shows that segments whose puts were lost are stored as they were closed, and one that is there stays as it is."""
    async def main(world: World, clock: ManualClock) -> None:
        await ready(world, clock, segment_count=3)
        put, kept = world.store._put, dict[str, Any]()

        def lost(key: str, data: Any, *, synced: bool = True) -> None:
            if key not in (PATHS.log(Position(1, 4)),):
                kept[key] = data
                raise StoreRefused("lost")
            put(key, data, synced=synced)

        world.store._put = lost  # type: ignore[method-assign]
        for _ in range(3):
            await world.publish(3)
            await asyncio.sleep(0.06)
        assert world.made == list(range(1, 11))
        await world.kill()
        del world.store._put  # type: ignore[method-assign]
        found = find_journaled(world.store, PATHS)
        assert found is not None
        assert [(one.number, one.closed) for one in found.segments] == [(3, True), (4, True), (5, True)]
        assert sum(run[1] for segment in found.segments for commit in segment.commits() for block in commit.blocks
                   for run in block.runs) == 9
        await world.open(clock)
        state = world.log.state.stream("$G", "s")
        assert state is not None
        assert [entry.ref.count for entry in state.blocks] == [1, 3, 3, 3]
        await world.kill()

    play(world, main)
    assert list(world.stored()) == list(range(1, 11))


def test_a_replay_that_is_killed_is_repeated(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shows that the journal is removed last."""
    async def main(world: World, clock: ManualClock) -> None:
        await ready(world, clock)
        await world.publish(3)
        await world.kill()
        with monkeypatch.context() as patch:
            patch.setattr(os, "unlink", lambda path: (_ for _ in ()).throw(OSError(errno.EIO, "killed")))
            with pytest.raises(StoreRefused, match="must be removed"):
                replay_journal(world.store, PATHS)
        await world.open(clock)
        assert world.stream.last_seq == 4
        await world.kill()

    play(world, main)
    assert list(world.stored()) == [1, 2, 3, 4]


def test_a_clean_stop_leaves_no_journal(world: World) -> None:
    """Shows that an idle log makes none, and that a stop stores all and removes it."""
    async def main(world: World, clock: ManualClock) -> None:
        await world.open(clock)
        await world.log.persisted()
        assert not world.file.exists()
        await world.publish(3)
        assert world.file.exists()
        await world.stop(clock)
        assert not world.file.exists()

    play(world, main)
    assert list(world.stored()) == [1, 2, 3]


def test_nothing_waits_for_room(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shows that areas are used in turn and freed by stored segments; if both are in use, commits become segments."""
    for module in (journal, journal_reader):
        monkeypatch.setattr(module, "AREA_BYTES_MAX", 4096)
    monkeypatch.setattr(journal, "_FIRST_BYTES", 1024)

    async def main(world: World, clock: ManualClock) -> None:
        await ready(world, clock)
        for _ in range(6):
            await world.publish(60)
            await asyncio.sleep(0.002)
        await world.log.persisted()
        assert world.made == list(range(1, 362))
        assert 6 < world.log.position.number < 200
        await world.publish(3)
        await world.kill()
        await world.open(clock)
        assert world.stream.last_seq == 364
        await world.kill()

    play(world, main)
    assert list(world.stored()) == list(range(1, 365))


def test_a_call_after_a_segment_that_is_not_in_the_journal(tmp_path: Path) -> None:
    """Shows that a flush of earlier commits does not make it safe: it waits for that segment's put."""
    world = World(tmp_path / "store", None)

    async def main(world: World, clock: ManualClock) -> None:
        await ready(world, clock)
        put, thread = world.store._put, world.journal_thread
        thread.held = []
        world.store._put = refuse  # type: ignore[method-assign]
        await world.publish(1)
        await world.publish(1, b"x" * 600_000)
        await asyncio.sleep(0.01)
        world.log.wait_safe(world.made.append, 4)  # such as the PubAck of a duplicate of the large message
        thread.release()
        await asyncio.sleep(0.01)
        assert world.made == [1, 2]
        world.store._put = put  # type: ignore[method-assign]
        await world.log.persisted()
        assert world.made == [1, 2, 3, 4]
        await world.kill()

    play(world, main)


def test_a_large_commit_is_a_segment(world: World) -> None:
    """Shows that it is not written twice, and that the calls after it are made in order."""
    async def main(world: World, clock: ManualClock) -> None:
        await ready(world, clock)
        await world.publish(1, b"x" * 600_000)
        assert b"x" * 1000 not in world.file.read_bytes()
        await world.publish(2)
        await world.log.persisted()
        assert world.made == [1, 2, 3, 4]
        await world.publish(2)
        assert world.made == [1, 2, 3, 4, 5, 6]
        await world.kill()

    play(world, main)


@pytest.mark.parametrize("count", [1, 3])
def test_a_large_message_has_one_checksum(world: World, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Shows that the segment uses the checksum that the journal has computed, and that both can be read."""
    bodies = [random.Random(at).randbytes(100_000) for at in range(count)]
    summed: list[int] = []
    real = codec.checksum

    def counted(data: bytes, crc: int = 0) -> int:
        if len(data) == 100_000:
            summed.append(real(data))
        return real(data, crc)

    for module in (journaling, section, format_journal):
        monkeypatch.setattr(module, "checksum", counted)

    async def main(world: World, clock: ManualClock) -> None:
        await ready(world, clock)
        for body in bodies:
            world.stream.publish(1, body)
        world.log.wait_safe(world.made.append, world.stream.last_seq)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert all(body in world.file.read_bytes() for body in bodies)
        await world.log.persisted()
        assert len(summed) == count
        await world.publish(1, bodies[0])
        await world.kill()
        await world.open(clock)
        await world.kill()

    play(world, main)
    assert list(world.stored().values())[-count - 1:] == [*bodies, bodies[0]]


def test_a_disk_without_room_for_a_journal(world: World, monkeypatch: pytest.MonkeyPatch,
                                           caplog: pytest.LogCaptureFixture) -> None:
    """Shows that each commit is a segment then, and that the log says so."""
    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(journal.Journal, "_allocate", full)
    caplog.set_level(logging.INFO)

    async def main(world: World, clock: ManualClock) -> None:
        await ready(world, clock)
        await world.publish(3)
        await world.log.persisted()
        assert world.made == [1, 2, 3, 4]
        await world.stop(clock)

    play(world, main)
    assert "each commit is stored as a segment" in caplog.text
    assert list(world.stored()) == [1, 2, 3, 4]


@pytest.mark.parametrize(("call", "body"), [("pwrite", b"hello"), ("pwritev", bytes(100_000))])
def test_a_write_that_fails_ends_the_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str,
                                             body: bytes) -> None:
    """Shows that without flushes, commits become segments from a failed write on, and nothing is lost."""
    world = World(tmp_path / "store", 3_600_000_000_000)

    async def main(world: World, clock: ManualClock) -> None:
        await ready(world, clock)
        await world.publish(2)
        with monkeypatch.context() as patch:
            patch.setattr(os, call, lambda fd, data, offset: 10)
            await world.publish(2, body)
        await world.log.persisted()
        assert world.made == [1, 2, 3, 4, 5]
        await world.publish(2)
        await world.kill()
        await world.open(clock)
        assert world.stream.last_seq >= 5
        await world.kill()

    play(world, main)


def test_a_flush_that_fails_is_final(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shows that nothing more is acknowledged after it, as after any failed sync; the next owner stores the commit."""
    world = World(tmp_path / "store", None)

    async def main(world: World, clock: ManualClock) -> None:
        await ready(world, clock)
        await world.publish(2)
        with monkeypatch.context() as patch:
            patch.setattr(os, "fdatasync", lambda fd: (_ for _ in ()).throw(OSError(errno.EIO, os.strerror(errno.EIO))))
            await world.publish(1)
        assert isinstance(world.log.failure, SyncFailed)
        assert world.made == [1, 2, 3]
        await world.publish(1)
        assert world.made == [1, 2, 3]
        await world.kill()
        await world.open(clock)
        assert world.stream.last_seq == 4
        await world.kill()

    play(world, main)


def test_a_stream_that_fails_keeps_its_safe_messages(world: World) -> None:
    """Shows that the log fails with it: the next owner stores the messages that were acknowledged."""
    async def main(world: World, clock: ManualClock) -> None:
        await ready(world, clock)
        await world.publish(2)
        broken = ValueError("no outcome")
        world.stream.sealing = lambda block: (_ for _ in ()).throw(broken)  # type: ignore[method-assign]
        await world.publish(1)
        assert world.log.failure is broken
        assert world.made == [1, 2, 3]
        await world.kill()
        await world.open(clock)
        assert world.stream.last_seq == 3
        await world.kill()

    play(world, main)


def test_a_journal_of_an_epoch_that_has_ended_is_ignored(world: World) -> None:
    """Shows that a later opening ends it: an owner that replays has removed it before."""
    async def main(world: World, clock: ManualClock) -> None:
        await ready(world, clock)
        await world.publish(2)
        await world.kill()
        old = world.file.read_bytes()
        await world.open(clock)
        await world.publish(1)
        await world.kill()
        world.file.write_bytes(old)
        assert find_journaled(world.store, PATHS) is None
        await world.open(clock)
        assert not world.file.exists()
        await world.kill()

    play(world, main)


def test_a_segment_after_one_that_ends_early_is_damage(world: World) -> None:
    """Shows that a log is not continued beyond a journal that ends before it."""
    async def main(world: World, clock: ManualClock) -> None:
        await ready(world, clock)
        await world.publish(2)
        await world.kill()
        (world.store.directory / PATHS.log(Position(1, 4))).write_bytes(
            (world.store.directory / PATHS.log(Position(1, 2))).read_bytes())
        with pytest.raises(Corrupt, match="ends early"):
            find_journaled(world.store, PATHS)

    play(world, main)


def test_older_releases_refuse_the_store(world: World) -> None:
    """Shows that the store's format is raised before the first commit: older releases refuse any above theirs."""
    async def main(world: World, clock: ManualClock) -> None:
        await world.open(clock)
        assert StoreFormat.decode(world.store.get_sync(FORMAT)).version == FORMAT_VERSION
        await world.publish(2)
        assert StoreFormat.decode(world.store.get_sync(FORMAT)).version == JOURNAL_VERSION > FORMAT_VERSION
        await world.kill()

    play(world, main)


def test_the_file_takes_little_of_the_disk(world: World) -> None:
    """Shows that its second area leaves a hole."""
    async def main(world: World, clock: ManualClock) -> None:
        await world.open(clock)
        await world.publish(2)
        found = world.file.stat()
        assert found.st_size > AREA_BYTES_MAX
        assert found.st_blocks * 512 < 3 << 20
        await world.kill()

    play(world, main)


async def test_a_thread_flushes(tmp_path: Path) -> None:
    """Shows that the real thread makes the file, and that one flush serves all commits that wait for it."""
    path = str(tmp_path / JOURNAL)
    failures: list[BaseException] = []
    file = journal.Journal(journal.JournalPlace(path, True), 1, bytes(16), 0, failures.append, lambda: None)
    made, report = asyncio.Event(), file._made

    def reported(result: bool) -> None:
        report(result)
        made.set()

    file._made = reported  # type: ignore[method-assign]
    file.start()
    await made.wait()
    done, last = [], asyncio.Event()
    for number in range(100):
        assert file.append(1, EncodedCommit([b"commit"], {}), lambda number=number: done.append(number))  # type: ignore[misc]
    assert file.append(1, EncodedCommit([b"last"], {}), last.set)
    assert not done
    await last.wait()
    assert done == list(range(100))
    await file.close(remove=True)
    assert not failures
    assert await asyncio.to_thread(os.listdir, tmp_path) == []


async def test_a_log_with_a_journal_has_no_lease(tmp_path: Path) -> None:
    """A commit in the journal renews no lease, so a log never has both."""
    state = ShardState()
    state.position = Position(1, 0)
    with pytest.raises(ValueError, match="has no lease"):
        JournaledLog(JournalPlace(str(tmp_path / "journal"), sync=False), InlineStore(tmp_path), PATHS.log, 1,
                     bytes(16), state, ManualClock(), random.Random(0), LogSettings(lease_ns=1))
