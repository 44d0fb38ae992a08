"""The cache on a local disk: ranges are read again without the store, within a bound, and no failure of the cache
fails a read."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from broker.storage.objectstore.base import NotFound
from broker.storage.objectstore.memory import MemoryStore
from broker.storage.read import disk_cache
from broker.storage.read.disk_cache import DiskCache

BYTES_MAX = 16 << 20
MIB = 1 << 20


class Counting(MemoryStore):
    """A store that counts GETs."""

    def __init__(self) -> None:
        super().__init__()
        self.gets = 0

    async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        self.gets += 1
        return await super().get(key, start, end)


@pytest.fixture
def store() -> Counting:
    """Make a store of forty objects of 1 MiB."""
    store, rng = Counting(), random.Random(1)
    for i in range(40):
        store.objects[f"o{i}"] = rng.randbytes(MIB)
    return store


@pytest.fixture
async def cache(store: Counting, tmp_path: Path) -> AsyncIterator[DiskCache]:
    made = DiskCache(store, str(tmp_path / "made" / "cache"), BYTES_MAX)
    yield made
    await made.close()


async def written(cache: DiskCache) -> None:
    """Return once no write to the disk is in progress."""
    while writes := [task for task in asyncio.all_tasks() if task.get_name() == "cache directory"]:
        await asyncio.gather(*writes)


def files(folder: Path) -> list[int]:
    """Return the cache's files by descriptor, since they have no names."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}").startswith(str(folder)):
                found.append(int(name))
        except OSError:
            pass
    return found


async def test_a_range_is_read_again_from_the_disk(cache: DiskCache, store: Counting) -> None:
    """A range, and any part of it, is read from the disk; a range that reaches beyond it, or has no end, is not."""
    data = store.objects["o1"]
    assert await cache.get("o1", 1000, 200_000) == data[1000:200_000]
    await written(cache)
    assert await cache.get("o1", 1000, 200_000) == data[1000:200_000]
    assert await cache.get("o1", 5000, 5001) == data[5000:5001]
    assert (store.gets, cache.hits, cache.misses) == (1, 2, 1)
    assert await cache.get("o1", 1000, 200_001) == data[1000:200_001]
    assert await cache.get("o1", 999, 2000) == data[999:2000]
    assert await cache.get("o2", 1000, 2000) == store.objects["o2"][1000:2000]
    assert await cache.get("o1") == data
    assert await cache.get("o1", 7, 7) == b""
    assert (store.gets, cache.hits) == (6, 2)
    with pytest.raises(NotFound):
        await cache.get("none", 0, 10)


async def test_past_the_end_is_not_kept(cache: DiskCache, store: Counting) -> None:
    """An answer that is shorter than the requested range is not cached."""
    assert await cache.get("o1", MIB - 10, MIB + 10) == store.objects["o1"][-10:]
    await written(cache)
    assert await cache.get("o1", MIB - 10, MIB + 10) == store.objects["o1"][-10:]
    assert (store.gets, cache.size) == (2, 0)


async def test_the_bound_holds_and_a_range_read_again_stays(cache: DiskCache, store: Counting, tmp_path: Path) -> None:
    """Two and a half times the bound are read once. Meanwhile one range is read repeatedly, and is got from the
    store only once."""
    part = MIB // 4
    for i in range(1, 40):
        for key, at in ((f"o{i}", 0), (f"o{i}", part), (f"o{i}", 2 * part), (f"o{i}", 3 * part), ("o0", 0)):
            assert await cache.get(key, at, at + part) == store.objects[key][at:at + part]
            await written(cache)
        assert cache.size <= BYTES_MAX
    assert store.gets == 1 + 39 * 4
    assert cache.evictions >= 4 * (39 - 16)
    await cache.get("o39", 0, part)
    assert store.gets == 1 + 39 * 4
    await cache.get("o5", 0, part)
    assert store.gets == 2 + 39 * 4
    assert sum(os.fstat(fd).st_size for fd in files(tmp_path)) <= BYTES_MAX


async def test_a_damaged_file_is_a_miss(cache: DiskCache, store: Counting, tmp_path: Path,
                                        caplog: pytest.LogCaptureFixture) -> None:
    """A byte is flipped, and a file is truncated: the store is asked again, and its answer is cached."""
    data = store.objects["o1"]
    await cache.get("o1", 0, MIB)
    await written(cache)
    [fd] = files(tmp_path)
    os.pwrite(fd, bytes([data[777] ^ 1]), 777)
    assert await cache.get("o1", 0, 10) == data[:10]
    assert (store.gets, cache.damaged) == (2, 1)
    assert "is damaged: o1 from byte 0 on" in caplog.text
    await written(cache)
    assert await cache.get("o1", 0, 10) == data[:10]
    assert store.gets == 2
    for fd in files(tmp_path):
        os.ftruncate(fd, 5)
    assert await cache.get("o1", 3, 10) == data[3:10]
    assert (store.gets, cache.damaged, cache.off) == (3, 2, "")


async def test_an_emptied_folder_takes_nothing_away(cache: DiskCache, store: Counting, tmp_path: Path) -> None:
    """The files have no names, so removing the folder does not affect them. The next file cannot be made there, and
    the cache turns itself off."""
    folder = tmp_path / "made" / "cache"
    await cache.get("o1", 0, MIB)
    await written(cache)
    assert list(folder.iterdir()) == []
    folder.rmdir()
    assert await cache.get("o1", 0, MIB) == store.objects["o1"]
    assert store.gets == 1
    assert await cache.get("o2", 0, MIB) == store.objects["o2"]
    assert "No such file" in cache.off
    assert await cache.get("o1", 0, MIB) == store.objects["o1"]
    await written(cache)
    assert files(tmp_path) == []


async def test_a_full_disk_turns_it_off_once(store: Counting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                             caplog: pytest.LogCaptureFixture) -> None:
    """Reads continue with the store; one line is logged, and no file stays on the disk."""
    cache = DiskCache(store, str(tmp_path), BYTES_MAX)
    await cache.get("o0", 0, MIB)
    await written(cache)
    monkeypatch.setattr(disk_cache, "_nameless", lambda folder: os.open("/dev/full", os.O_RDWR))
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            await asyncio.gather(*[cache.get(f"o{i}", 0, MIB) for i in range(1, 5)])
            await written(cache)
    assert "No space left" in cache.off
    assert len(caplog.records) == 1
    assert "is not used any more: [Errno 28]" in caplog.text
    assert await cache.get("o0", 0, MIB) == store.objects["o0"]
    assert (store.gets, cache.size, files(tmp_path)) == (10, 0, [])
    await cache.close()


async def test_no_read_waits_for_a_write(cache: DiskCache, store: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the disk is blocked, reads are answered from the store, and at most a bounded number of bytes waits to
    be written."""
    stuck, write = threading.Event(), disk_cache._write_at

    def slow(fd: int, data: bytes, offset: int) -> int:
        stuck.wait()
        return write(fd, data, offset)

    monkeypatch.setattr(disk_cache, "_write_at", slow)
    monkeypatch.setattr(disk_cache, "_UNWRITTEN_MAX", 3 * MIB)
    for i in range(10):
        assert await cache.get(f"o{i}", 0, MIB) == store.objects[f"o{i}"]
    assert cache.size == 3 * MIB
    stuck.set()
    await written(cache)
    for i in range(10):
        assert await cache.get(f"o{i}", 0, MIB) == store.objects[f"o{i}"]
    assert store.gets == 17
    await written(cache)


async def test_clearing_during_writes_and_reads(cache: DiskCache, store: Counting, tmp_path: Path) -> None:
    """A forgotten range is not found, whatever was in progress, and its files are closed."""
    for _ in range(5):
        reads = [asyncio.ensure_future(cache.get(f"o{i % 4}", 0, MIB)) for i in range(8)]
        await asyncio.sleep(0)
        cache.clear()
        for i, read in enumerate(reads):
            assert await read == store.objects[f"o{i % 4}"]
        cache.clear()
    await written(cache)
    assert (cache.size, files(tmp_path), cache.off) == (0, [], "")
    before = store.gets
    await cache.get("o0", 0, MIB)
    assert store.gets == before + 1


async def test_a_distrusted_object_is_got_again(cache: DiskCache, store: Counting) -> None:
    """An object is got again after a repair of the store."""
    await cache.get("o0", 0, MIB)
    await written(cache)
    store.objects["o0"] = store.objects["o1"]
    cache.forget("o0")
    assert await cache.get("o0", 0, 100) == store.objects["o1"][:100]


async def test_an_object_forgotten_during_its_write_is_not_cached(cache: DiskCache, store: Counting) -> None:
    """A reader may find that an object is damaged before its range is on the disk: that range is not cached."""
    await cache.get("o0", 0, MIB)
    cache.forget("o0")
    store.objects["o0"] = store.objects["o1"]
    await written(cache)
    assert await cache.get("o0", 0, 100) == store.objects["o1"][:100]
    await written(cache)
    assert await cache.get("o0", 0, 100) == store.objects["o1"][:100]
    assert store.gets == 2


async def test_an_object_forgotten_while_its_range_moves_is_not_cached(cache: DiskCache, store: Counting,
                                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    """A range that was read again is moved to the newest file; if its object is forgotten meanwhile, it is not
    cached."""
    reading, go_on, read = threading.Event(), threading.Event(), disk_cache._read_at
    await cache.get("o0", 0, MIB // 4)
    await written(cache)
    await cache.get("o0", 0, MIB // 4)

    def stopped(fd: int, size: int, offset: int) -> tuple[bytes, int]:
        reading.set()
        go_on.wait()
        return read(fd, size, offset)

    monkeypatch.setattr(disk_cache, "_read_at", stopped)
    for i in range(1, 30):
        if not reading.is_set():
            await cache.get(f"o{i}", 0, MIB // 4 * 3)
            await asyncio.sleep(0.01)
    assert await asyncio.to_thread(reading.wait, 30)
    cache.forget("o0")
    store.objects["o0"] = store.objects["o1"]
    go_on.set()
    await written(cache)
    assert await cache.get("o0", 0, 100) == store.objects["o1"][:100]


@pytest.mark.parametrize("what", ["read", "write"])
async def test_a_file_stays_open_for_a_thread_whose_task_was_cancelled(what: str, cache: DiskCache, store: Counting,
                                                                       tmp_path: Path,
                                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise its descriptor could belong to another file, to which the thread would write."""
    begun, go_on, done = threading.Event(), threading.Event(), threading.Event()
    real = getattr(disk_cache, f"_{what}_at")
    found: list[bool] = []

    def stopped(fd: int, some: object, offset: int) -> object:
        begun.set()
        go_on.wait()
        found.append(fd in files(tmp_path))
        done.set()
        return real(fd, some, offset)

    if what == "write":
        monkeypatch.setattr(disk_cache, "_write_at", stopped)
        await cache.get("o0", 0, MIB)
        [task] = [task for task in asyncio.all_tasks() if task.get_name() == "cache directory"]
    else:
        await cache.get("o0", 0, MIB)
        await written(cache)
        monkeypatch.setattr(disk_cache, "_read_at", stopped)
        task = asyncio.ensure_future(cache.get("o0", 0, MIB))  # type: ignore[assignment]
    assert await asyncio.to_thread(begun.wait, 30)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    cache.clear()
    if what == "read":
        await written(cache)  # the cache itself no longer uses the file
    go_on.set()
    assert await asyncio.to_thread(done.wait, 30)
    assert found == [True]
    await written(cache)
    await asyncio.to_thread(cache._readers.shutdown)
    assert files(tmp_path) == []


async def test_files_are_closed_in_a_thread(cache: DiskCache, store: Counting, tmp_path: Path,
                                            monkeypatch: pytest.MonkeyPatch) -> None:
    """Freeing the room of a file of a gigabyte takes 80 ms."""
    closed: list[int] = []
    close = os.close

    def noted(fd: int) -> None:
        if fd in known:
            closed.append(threading.get_ident())
        close(fd)

    known: set[int] = set()
    for i in range(20):
        await cache.get(f"o{i}", 0, MIB)
        await written(cache)
        if i == 0:
            known.update(files(tmp_path))
            monkeypatch.setattr(os, "close", noted)
    known.update(files(tmp_path))
    cache.clear()
    await written(cache)
    assert files(tmp_path) == []
    assert len(closed) >= 16
    assert threading.get_ident() not in closed
