"""Puts that are synced later: the time of the sync, the reasons to sync sooner, and the effects of a failed sync."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from broker.storage.objectstore import disk, unsynced
from broker.storage.objectstore.base import StoreRefused
from broker.storage.objectstore.file import FileStore
from broker.storage.objectstore.unsynced import MARK, Mark, SyncFailed, place_of, read_mark

HOUR_NS = 3_600_000_000_000


class Syncs:
    """A replacement of the sync, which records the paths and syncs nothing."""

    def __init__(self) -> None:
        self.paths: list[list[str]] = []
        self.happened = threading.Event()
        self.error: OSError | None = None
        self.may = threading.Event()
        self.may.set()

    def __call__(self, fd: int, paths: list[str]) -> None:
        assert self.may.wait(10)
        if self.error is not None:
            raise self.error
        self.paths.append(sorted(os.path.basename(path) for path in paths))
        self.happened.set()


@pytest.fixture
def syncs(monkeypatch: pytest.MonkeyPatch) -> Syncs:
    noted = Syncs()
    monkeypatch.setattr(unsynced, "sync_files", noted)
    return noted


Make = Callable[..., FileStore]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[FileStore] = []

    def make(interval_ns: int | None = HOUR_NS) -> FileStore:
        store = FileStore(tmp_path, sync_interval_ns=interval_ns)
        store.start_unsynced("log", "log/1")
        made.append(store)
        return store

    yield make
    for store in made:
        store.unsynced.abandon()


def put(store: FileStore, key: str, data: bytes = b"x") -> None:
    assert store.put_unsynced is not None
    store.put_unsynced(key, [data], key)


def test_nothing_is_synced_before_it_is_time(make: Make, syncs: Syncs, tmp_path: Path) -> None:
    """The mark exists before the first put, and names the first key that may be lost."""
    store = make()
    mark = read_mark(str(tmp_path / "log"))
    assert mark is not None
    assert (mark.first_key, mark.failed, mark.place) == ("log/1", False, place_of(str(tmp_path / "log")))
    put(store, "log/1")
    put(store, "log/2")
    assert store.get_sync("log/2") == b"x"
    assert syncs.paths == []
    store.unsynced.sync()
    assert syncs.paths == [["1", "2"]]
    mark = read_mark(str(tmp_path / "log"))
    assert mark is not None
    assert mark.first_key == "log/2", "all objects before it had been put when the sync began"


def test_the_interval(make: Make, syncs: Syncs) -> None:
    """A separate thread syncs, some time after the first put."""
    store = make(20_000_000)
    put(store, "log/1")
    assert syncs.happened.wait(10)
    assert syncs.paths == [["1"]]


async def test_other_puts_and_deletes_come_after_all_that_is_not_synced(make: Make, syncs: Syncs) -> None:
    """Otherwise a durable object could refer to one that a power cut destroys, or an object could be deleted before
    its replacement is durable."""
    store = make()
    for n, after in enumerate((lambda: store.put("other/1", [b"y"]), lambda: store.delete("log/1"),
                               lambda: store.replace("other/1", [b"z"]))):
        put(store, f"log/{n + 1}")
        await after()
        assert syncs.paths[n:] == [[str(n + 1)]]
    put(store, "log/7")
    assert store.put_sync is not None
    store.put_sync("other/2", [b"y"])
    assert len(syncs.paths) == 4
    await store.put("other/3", [b"y"])
    assert len(syncs.paths) == 4, "there was nothing to sync"


async def test_many_deletes_wait_for_one_sync(make: Make, syncs: Syncs) -> None:
    """The deletes hold no thread meanwhile: reads that need a thread continue."""
    store = make()
    for n in range(40):
        await store.put(f"old/{n}", [b"x"])
    put(store, "log/1")
    syncs.may.clear()
    deletes = [asyncio.create_task(store.delete(f"old/{n}")) for n in range(40)]
    await asyncio.sleep(0)
    assert await asyncio.wait_for(store._in_thread(store.get_sync, "log/1"), 30) == b"x"
    syncs.may.set()
    await asyncio.gather(*deletes)
    assert syncs.paths == [["1"]]


def test_past_the_bound_a_sync_is_sooner_and_past_twice_that_puts_wait(
        make: Make, syncs: Syncs, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes that a power cut may destroy are bounded, too."""
    monkeypatch.setattr(unsynced, "_BYTES_MAX", 10)
    store = make()
    syncs.may.clear()
    put(store, "log/1", bytes(20))
    waiting = threading.Thread(target=put, args=(store, "log/2", bytes(20)))
    waiting.start()
    waiting.join(0.1)
    assert waiting.is_alive()
    syncs.may.set()
    waiting.join(30)
    assert not waiting.is_alive()
    assert syncs.paths[0] == ["1"]


async def test_after_a_sync_that_failed_nothing_more_is_put_or_deleted(
        make: Make, syncs: Syncs, tmp_path: Path) -> None:
    """The system may have dropped what it could not write, so another sync of the same files proves nothing. Reads
    continue to work."""
    store = make()
    failures: list[SyncFailed] = []
    store.unsynced.on_failure = failures.append
    put(store, "log/1")
    syncs.error = OSError(errno.EIO, "Input/output error")
    with pytest.raises(SyncFailed, match="Input/output error"):
        store.unsynced.sync()
    syncs.error = None
    assert len(failures) == 1
    for call in (lambda: store.put("other/1", [b"x"]), lambda: store.delete("log/1"),
                 lambda: store.replace("log/1", [b"x"])):
        with pytest.raises(SyncFailed):
            await call()
    with pytest.raises(SyncFailed):
        put(store, "log/2")
    with pytest.raises(SyncFailed):
        store.stop_unsynced()
    assert await store.get("log/1") == b"x"
    mark = read_mark(str(tmp_path / "log"))
    assert mark is not None
    assert mark.failed
    assert syncs.paths == []


def test_a_clean_end_leaves_no_mark(make: Make, syncs: Syncs, tmp_path: Path) -> None:
    """All objects are synced, and later puts are synced at once."""
    store = make()
    put(store, "log/1")
    store.stop_unsynced()
    assert syncs.paths == [["1"]]
    assert not (tmp_path / "log" / MARK).exists()
    put(store, "log/2")
    assert store.unsynced.put_count == 1


def test_every_put_is_synced_without_an_interval(make: Make, tmp_path: Path) -> None:
    """Every put is durable at once without an interval."""
    store = make(None)
    assert store.put_unsynced is None
    assert not (tmp_path / "log").exists()


def test_a_put_elsewhere_is_synced(make: Make, syncs: Syncs) -> None:
    """Only the folder with the mark may have objects that are not synced."""
    store = make()
    put(store, "log/1")
    put(store, "elsewhere/1")
    assert syncs.paths == [["1"]]
    assert store.unsynced.put_count == 1


def test_marks() -> None:
    """A mark is read as it was written; from a torn one, any object may be missing."""
    mark = Mark("v1/shards/0/log/00000001-00000000000a", "boot/1/2", 7, True)
    data = mark.pack()
    assert len(data) == 512
    assert Mark.unpack(data) == mark
    assert Mark.unpack(Mark("k", "", 0).pack()) == Mark("k", "", 0)
    for torn in (b"", data[:40], bytes(512), b"\xff" * 512, data.replace(b"failed", b"open  "),
                 data[:100] + bytes(412)):
        assert Mark.unpack(torn) == Mark("", "", 0)


def test_an_end_while_a_sync_is_at_its_end(make: Make, syncs: Syncs, tmp_path: Path) -> None:
    """The files of the mark and the folder are closed after the sync: otherwise it could write to another file with
    the same number."""
    store = make(1_000_000)
    put(store, "log/1")
    assert syncs.happened.wait(10)
    store.stop_unsynced()
    assert not (tmp_path / "log" / MARK).exists()
    assert store.unsynced.synced_count == 1


def test_a_start_that_fails_keeps_nothing_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start is repeated while the disk is full, so it must leave no file open."""
    def full(fd: int, data: bytes, offset: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    store = FileStore(tmp_path, sync_interval_ns=HOUR_NS)
    opened = len(os.listdir("/dev/fd"))
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        for _ in range(3):
            with pytest.raises(StoreRefused, match="the disk is full"):
                store.start_unsynced("log", "log/1")
    assert len(os.listdir("/dev/fd")) == opened
    store.start_unsynced("log", "log/1")
    put(store, "log/1")
    store.stop_unsynced()


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EPERM])
def test_a_sandbox_without_syncfs(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each file is synced alone if there is no ``syncfs``, and then the folder."""
    def refused(fd: int) -> None:
        raise OSError(number, os.strerror(number))

    paths = [str(tmp_path / str(n)) for n in range(8)]
    for path in paths:
        Path(path).touch()
    synced: list[int] = []
    monkeypatch.setattr(disk, "_syncfs", lambda: refused)
    monkeypatch.setattr(os, "fdatasync", lambda fd: synced.append(os.fstat(fd).st_ino))
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.fstat(fd).st_ino))
    disk.sync_files(-1, paths)
    assert synced == [os.stat(path).st_ino for path in [*paths, tmp_path]]


def test_a_sync_that_a_signal_interrupts_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupted sync is no failed sync, which would end the broker."""
    left = [errno.EINTR, errno.EINTR]

    class Call:
        def __call__(self, fd: int) -> int:
            if not left:
                return 0
            ctypes.set_errno(left.pop())
            return -1

    class Library:
        syncfs = Call()

    monkeypatch.setattr(ctypes, "CDLL", lambda *args, **options: Library)
    sync = disk._syncfs()
    if sync is None:
        pytest.skip("the system's syncfs does not tell of errors")
    sync(0)
    assert not left
