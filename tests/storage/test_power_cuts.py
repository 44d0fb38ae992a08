"""Power cuts on a directory that syncs later: a whole prefix of the acknowledged messages is left, with all synced
ones.

The real engine (log, checkpoints, compaction, sweeper, recovery) runs in virtual time on a real directory, for which
the possible contents of the disk after a power cut are known (``power``). Histories are generated. Each ends in a cut,
some in a second one while the next owner recovers. Then a reader without a broker, ``fsck`` and the next owner read the
same directory.
"""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.base.clock import SystemClock
from broker.cluster.identity import Identity
from broker.cluster.ownership import seal_at, take_shard
from broker.maintenance.fsck import fsck
from broker.storage import journal_reader, unsynced_tail
from broker.storage.checkpoint.settings import CheckpointSettings
from broker.storage.compaction.settings import CompactionSettings
from broker.storage.format.errors import CutOff, FormatError
from broker.storage.format.header import Position
from broker.storage.format.message_size import message_size
from broker.storage.format.segment import decode_head
from broker.storage.format.store import StoreFormat
from broker.storage.journal_replay import journal_place, replay_journal
from broker.storage.log import journal as journal_file
from broker.storage.log.journal import JournalPlace
from broker.storage.log.open_block import OpenBlock
from broker.storage.log.settings import LogSettings
from broker.storage.objectstore import unsynced
from broker.storage.objectstore.base import StoreError
from broker.storage.objectstore.file import FileStore
from broker.storage.objectstore.unsynced import UnsyncedFiles
from broker.storage.paths import FORMAT, ShardPaths
from broker.storage.put import Fenced
from broker.storage.shard import Shard, ShardSettings
from broker.storage.unsynced_tail import Tail, hide_torn, repair_tail
from tests.manual_clock import ManualClock
from tests.storage.power import InlineJournal, InlineStore, PowerDisk
from tests.storage.rig import PATHS, Stream, in_virtual_time, read_all

HOUR_NS = 3_600_000_000_000
ACTIONS = ["publish"] * 6 + ["burst", "remove", "checkpoint", "checkpoint", "wait", "sync", "kill", "stop"]


class Counted(Stream):
    """A stream with correct numbers, since fsck compares them with the messages."""

    def sealing(self, block: OpenBlock[Any]) -> None:
        super().sealing(block)
        block.outcome = block.outcome._replace(bytes=self.msgs * message_size(b"foo", 0, bytes(5)))


class World:
    """A store with many owners, and the knowledge of its clients."""

    def __init__(self, folder: Path, disk: PowerDisk, seed: int) -> None:
        self.folder = folder
        self.disk = disk
        self.rng = random.Random(seed)
        self.trees = 0
        self.root = disk.root = self.new_tree()
        InlineStore(self.root)._put(FORMAT, [StoreFormat.make(bytes(16), 1).encode()])
        disk.use(self.root)
        self.bodies: dict[int, bytes] = {}
        """The body of every message that may be in the store."""
        self.acked = 0
        self.safe = 0
        """The last message that was acknowledged when the last complete sync began."""
        self.cut_at: int | None = None
        self.left: tuple[Path, int, int] | None = None
        """The result of the cut: the directory, and ``acked`` and ``safe`` at that moment."""
        disk.on_sync = self.maybe_cut
        self.shard: Shard | None = None
        self.sync_interval_ns: int | None = HOUR_NS
        self.journal = False
        self.journaled = 0
        """The number of commits that were acknowledged before their segments were stored."""

    def new_tree(self) -> Path:
        self.trees += 1
        return self.folder / f"tree-{self.trees}"

    def arm(self, syncs: int) -> None:
        """Cut the power after ``syncs`` more syncs, before the next one."""
        self.cut_at, self.left = self.disk.syncs + syncs + 1, None

    def maybe_cut(self) -> None:
        if self.cut_at is not None and self.disk.syncs >= self.cut_at and self.left is None:
            self.left = self.disk.crashed(self.new_tree()), self.acked, self.safe

    def cut_now(self) -> None:
        if self.left is None:
            self.left = self.disk.crashed(self.new_tree()), self.acked, self.safe

    async def open(self, clock: ManualClock) -> None:
        """Open the shard, as ``runtime.shard_owner`` does."""
        store = self.store = InlineStore(self.root, sync_interval_ns=self.sync_interval_ns)
        repair_tail(store, PATHS)
        replay_journal(store, PATHS)
        self.me = Identity("a", self.rng.randbytes(16))
        taken = await take_shard(store, PATHS, self.me, clock, self.rng)
        store.start_unsynced(PATHS.logs, PATHS.log(Position(taken.epoch, 1)))
        self.shard = await Shard.open(store, PATHS, taken.epoch, self.me.nonce, clock, self.rng, ShardSettings(
            log=LogSettings(puts_in_flight=4), sweep_grace_ns=0,
            checkpoint=CheckpointSettings(segments=8, interval_ns=None),
            compaction=CompactionSettings(segments=4, quiet_ns=1_000_000_000)), began_ns=taken.began_ns,
            journal=self.journal_place(store))
        log = self.shard.log
        known = log.state.stream("$G", "s")
        self.stream = Counted(log)
        if known is None:
            self.stream.create()
            await log.persisted()
        else:
            self.stream.last_seq, self.stream.msgs, self.stream.first_seq = known.last_seq, known.msgs, known.first_seq

    def journal_place(self, store: FileStore) -> JournalPlace | None:
        place = journal_place(store, PATHS)
        assert place is not None
        return place._replace(thread=InlineJournal()) if self.journal else None

    async def close(self, clock: ManualClock, *, clean: bool) -> None:
        assert self.shard is not None
        if clean:
            end = await self.shard.close()
            await seal_at(self.store, PATHS, end, end.epoch, self.me, clock, self.rng)
            self.store.stop_unsynced()
        else:
            await self.shard.abandon()
            self.store.unsynced.abandon()
        self.shard = None

    async def act(self, action: str, clock: ManualClock) -> None:
        assert self.shard is not None
        log = self.shard.log
        if action in ("publish", "burst"):
            for _ in range(1 if action == "publish" else 12):
                body = self.rng.randbytes(5)
                self.stream.publish(1, body)
                self.bodies[self.stream.last_seq] = body
                log.wait_safe(self._acked, self.stream.last_seq)
                if self.journal and self.rng.random() < 0.7:
                    await asyncio.sleep(0)
            if self.rng.random() < (0.3 if self.journal else 0.8):
                await log.persisted()
        elif action == "remove" and self.stream.msgs > 3:
            self.stream.remove(self.stream.first_seq, self.stream.first_seq + self.rng.randrange(self.stream.msgs - 1))
            await log.persisted()
        elif action == "checkpoint":
            await self.shard.checkpointer.cut()
        elif action == "wait":
            await asyncio.sleep(self.rng.choice((0.01, 5, 90)))
        elif action == "sync":
            self.store.unsynced.sync()
        elif action in ("kill", "stop"):
            await self.close(clock, clean=action == "stop")
            await self.open(clock)

    def _acked(self, seq: int) -> None:
        self.acked = max(self.acked, seq)
        self.journaled += self.shard is not None and seq > self.stored_seq()
        if self.store.put_unsynced is None:
            self.safe = self.acked

    def stored_seq(self) -> int:
        """Return the last sequence in the applied state."""
        stream = None if self.shard is None else self.shard.log.state.stream("$G", "s")
        return 0 if stream is None else stream.last_seq

    def noting(self, sync_files: Callable[..., None]) -> Callable[..., None]:
        """Return ``sync_files`` wrapped so that messages acknowledged before it count as safe after it."""
        def noted(*args: Any) -> None:
            acked = min(self.acked, self.stored_seq()) if self.journal else self.acked
            sync_files(*args)
            self.safe = max(self.safe, acked)

        return noted

    def play(self, actions: list[str]) -> None:
        """Play one owner's life, perhaps with restarts, until the power fails."""
        async def main(clock: ManualClock) -> None:
            try:
                await self.open(clock)
                for action in actions:
                    if self.left is not None:
                        break
                    await self.act(action, clock)
                self.cut_now()
            finally:
                if self.shard is not None:
                    await self.close(clock, clean=False)
                else:
                    self.store.unsynced.abandon()

        in_virtual_time(main)

    def reboot(self) -> None:
        """Start the machine again with the result of the cut."""
        assert self.left is not None
        self.root, self.acked, self.safe = self.left
        self.cut_at = self.left = None
        self.disk.boot += 1
        self.disk.use(self.root)

    def check(self) -> None:
        """Check the directory after a cut, for a reader, for fsck and for the next owner.

        What only the journal has is seen by the owner, and by readers after it.
        """
        before = self.read_as_reader()
        self.expect_whole(before)
        self.expect_sound()

        async def main(clock: ManualClock) -> None:
            await self.open(clock)
            assert self.stream.last_seq == max(before, default=0) or self.journal, "an owner and a reader disagree"
            await self.close(clock, clean=False)

        in_virtual_time(main)
        seen = self.read_as_reader()
        self.expect_whole(seen)
        last = max(seen, default=0)
        assert self.stream.last_seq == last >= self.safe, f"synced to {self.safe}, left {last}"
        assert all(seen[seq] == body for seq, body in before.items() if seq >= self.stream.first_seq)
        self.expect_sound()
        self.bodies = dict(seen)
        self.acked = self.safe = self.stream.last_seq

    def expect_whole(self, seen: dict[int, bytes]) -> None:
        assert sorted(seen) == list(range(min(seen), max(seen) + 1) if seen else ()), "a hole in what is left"
        assert all(self.bodies[seq] == body for seq, body in seen.items())

    def read_as_reader(self) -> dict[int, bytes]:
        store = FileStore(self.root, read_only=True)
        hide_torn(store, 0)
        return asyncio.run(_closing(store, read_all(store)))

    def expect_sound(self) -> None:
        store = FileStore(self.root, read_only=True)
        done = asyncio.run(_closing(store, fsck(store, SystemClock(), random.Random(1))))
        assert not done.problems, done.problems


async def _closing(store: FileStore, work: Any) -> Any:
    try:
        return await work
    finally:
        await store.close()


def run(folder: Path, seed: int, monkeypatch: pytest.MonkeyPatch, plan: list[str] | None = None, *,
        journal: bool = False) -> World:
    """Play two lives of a store, each ended by a power cut, and check the store after each.

    Args: ``plan`` are the actions of the first life; None: generated ones.
    """
    rng = random.Random(seed)
    disk = PowerDisk(seed)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with monkeypatch.context() as patch:
        disk.patched(patch)
        for module in (journal_file, journal_reader):
            patch.setattr(module, "AREA_BYTES_MAX", 4096)
        patch.setattr(journal_file, "_FIRST_BYTES", 2048)
        world = World(folder, disk, seed)
        patch.setattr(unsynced, "sync_files", world.noting(unsynced.sync_files))  # type: ignore[attr-defined]
        for life in range(2):
            if plan is not None and life == 0:
                world.play(plan)
            else:
                world.sync_interval_ns = None if rng.random() < (0.5 if journal else 0.15) else HOUR_NS
                world.journal = journal
                if rng.random() < 0.7:
                    world.arm(rng.randrange(60))
                world.play(rng.choices(ACTIONS, k=rng.randrange(3, 40)))
            world.reboot()
            for _ in range(rng.choice((0, 0, 1, 2))):
                seen = world.read_as_reader()
                world.arm(rng.randrange(12))
                world.play([])
                world.reboot()
                found = world.read_as_reader()
                assert found == seen or (journal and max(found, default=0) >= max(seen, default=0)), (
                    "what a recovery found was lost in the next one")
            world.check()
    return world


EXAMPLES = 12
QUIET = ["publish", "checkpoint"] * 5 + ["wait", "publish", "checkpoint"] * 3
"""A history with so few objects between two syncs that each is synced alone, and the mark's last write is not. The
first segments are swept."""
SWEPT = [*QUIET, "remove", "wait", "publish", "checkpoint", "wait", "wait", "wait"]
"""A history that ends with deletes of objects."""


def histories(count: int, folder: Path, *, journal: bool = False) -> None:
    @settings(max_examples=count, database=None)
    @given(seed=st.integers(0, 1 << 32))
    def one(seed: int) -> None:
        with pytest.MonkeyPatch.context() as patch:
            run(folder, seed, patch, journal=journal)

    one()


@pytest.mark.shows("store.sync_interval")
def test_what_a_power_cut_leaves(tmp_path: Path) -> None:
    """Shows that a whole prefix of the acknowledged messages is left, with all synced ones, after any actions and a cut
    at any time, also during the recovery from the last cut. A reader, fsck and the next owner agree, and none finds a
    fault."""
    histories(EXAMPLES, tmp_path / "store")


def test_what_a_power_cut_leaves_of_a_journal(tmp_path: Path) -> None:
    """Shows the same for a log with a journal, of which every sector that was not synced may be lost: with ``always``,
    all acknowledged messages are left."""
    histories(EXAMPLES, tmp_path / "store", journal=True)


@pytest.mark.soak
@pytest.mark.parametrize("journal", [False, True], ids=["segments", "journal"])
def test_what_many_power_cuts_leave(tmp_path: Path, journal: bool) -> None:
    """Shows the same for more histories."""
    histories(100 * EXAMPLES, tmp_path / "store", journal=journal)


def test_segments_that_were_swept_are_not_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shows that the mark may be older than the newest root: segments that the root includes may be missing."""
    for seed in range(4):
        run(tmp_path / "store", seed, monkeypatch, QUIET)


# Mistakes that the histories must notice.

def puts_without_a_sync_before(patch: pytest.MonkeyPatch) -> None:
    async def put(self: FileStore, key: str, data: Any) -> None:
        self._put(key, data)

    patch.setattr(FileStore, "put", put)


def deletes_without_a_sync_before(patch: pytest.MonkeyPatch) -> None:
    async def delete(self: FileStore, key: str) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(UnsyncedFiles, "sync", lambda self: None)
            self._delete(key)

    patch.setattr(FileStore, "delete", delete)


def no_mark(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(unsynced_tail, "read_mark", lambda folder: None)


def a_mark_that_is_ahead(patch: pytest.MonkeyPatch) -> None:
    begin = UnsyncedFiles.begin
    patch.setattr(UnsyncedFiles, "begin",
                  lambda self, path, first: begin(self, path, f"{first[:-12]}{int(first[-12:], 16) + 64:012x}"))


def only_the_first_torn_one_set_aside(patch: pytest.MonkeyPatch) -> None:
    find = unsynced_tail.find_tail

    def first_alone(store: FileStore, paths: ShardPaths) -> Tail | None:
        tail = find(store, paths)
        return tail and tail._replace(beyond=tail.beyond[:1])

    patch.setattr(unsynced_tail, "find_tail", first_alone)


def roots_are_ignored(patch: pytest.MonkeyPatch) -> None:
    positions = unsynced_tail._positions
    patch.setattr(unsynced_tail, "_positions",
                  lambda store, prefix, after="": [] if "checkpoint" in prefix else positions(store, prefix, after))


def repaired_without_a_sync(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FileStore, "sync_folder", lambda self, folder, keys: True)


def only_heads_are_checked(patch: pytest.MonkeyPatch) -> None:
    def head_alone(data: bytes, position: Position) -> int:
        decode_head(data, position, complete=True)
        return 0

    patch.setattr(unsynced_tail, "check_segment", head_alone)


MISTAKES: list[tuple[Callable[[pytest.MonkeyPatch], None], int, list[str] | None]] = [
    (puts_without_a_sync_before, 0, None), (deletes_without_a_sync_before, 2, SWEPT), (no_mark, 0, None),
    (a_mark_that_is_ahead, 5, None), (only_the_first_torn_one_set_aside, 0, None), (roots_are_ignored, 0, QUIET),
    (repaired_without_a_sync, 0, None), (only_heads_are_checked, 5, None)]
"""Each mistake with the first seed that notices it, and the plan."""


@pytest.mark.parametrize(("mistake", "seed", "plan"), MISTAKES, ids=lambda value: getattr(value, "__name__", ""))
def test_mistakes_are_noticed(mistake: Callable[[pytest.MonkeyPatch], None], seed: int, plan: list[str] | None,
                              tmp_path: Path,
                              monkeypatch: pytest.MonkeyPatch) -> None:
    """Shows that each rule is needed: without it some history ends in a faulty store."""
    for tried in range(seed, seed + 60):
        try:
            with monkeypatch.context() as patch:
                mistake(patch)
                run(tmp_path / "store", tried, patch, plan)
        except (AssertionError, FormatError, CutOff, Fenced, StoreError):
            return
    pytest.fail("not noticed")
