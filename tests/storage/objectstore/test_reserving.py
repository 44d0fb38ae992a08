"""A full store: essential objects are stored in its reserve, others are refused, and observers are notified."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from broker.base.clock import SystemClock
from broker.storage.objectstore import disk_reserve, reserving
from broker.storage.objectstore.base import Buffers, StoreFull, Transient, size_of
from broker.storage.objectstore.disk_reserve import RESERVE, DiskReserve
from broker.storage.objectstore.file import FileStore
from broker.storage.objectstore.memory import MemoryStore
from broker.storage.objectstore.reserving import ReservingStore
from broker.storage.objectstore.s3_reserve import S3Reserve
from broker.storage.shard import reserve_left_by
from tests.manual_clock import ManualClock
from tests.storage.rig import in_virtual_time

LOG, ROOT, RUN = ("v1/shards/0/log/00000001-000000000001", "v1/shards/0/checkpoint/00000001-000000000001",
                  "v1/shards/0/runs/00000001-000000000001-0000000000000001")


class SmallStore(MemoryStore):
    """A store of ``room`` bytes, including its reserve, which is only a number here."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self.room = room
        self.held = self.size = 0
        self.fails = False
        self.reserve = self._make_reserve

    def _make_reserve(self, size: int, burst: Callable[[], int]) -> SmallStore:
        self.size = size
        return self

    @property
    def left(self) -> int:
        return self.room - self.held - sum(map(len, self.objects.values()))

    async def put(self, key: str, data: Buffers) -> None:
        if size_of(data) > self.left:
            raise StoreFull(f"{key}: the disk is full")
        await super().put(key, data)

    async def fill(self) -> bool:
        if self.fails:
            raise Transient("no answer")
        if self.left >= self.size - self.held:
            self.held = self.size
        return self.held == self.size and not self.is_low(self.left + self.held)

    async def release_soon(self, size: int, leave: float) -> bool:
        kept = max(int(self.size * leave), self.held - size)
        released, self.held = self.held - kept, min(kept, self.held)
        return released > 0

    def release(self, size: int, leave: float) -> bool:
        raise AssertionError("there are no threads here")

    def bytes_free(self) -> int | None:
        return self.left + self.held

    def is_low(self, bytes_free: int) -> bool:
        return bytes_free < 2 * self.size


async def until(check: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not check():  # noqa: ASYNC110 - a file that grows notifies nobody
            await asyncio.sleep(0.002)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the time for which a failed put keeps the store full: the next check comes after it."""
    monkeypatch.setattr(reserving, "_QUIET_NS", 0)


@pytest.mark.usefixtures("quick")
async def test_a_full_store_and_its_end() -> None:
    """The store is full before its last byte is used. The log uses all of the reserve, checkpoints half of it, runs
    none. Once there is room, the reserve is made again, and only then is the store no longer full. Observers are
    notified once of each change."""
    small = SmallStore(1000)
    changes: list[bool] = []
    store = ReservingStore(small, 100, reserve_left_by, SystemClock(), retry_seconds=0.005)
    store.observe(lambda: changes.append(store.full is not None))
    store.start()
    await until(lambda: small.held == 100)
    await store.put("v1/shards/0/log/00000001-00000000000a", [bytes(700)])
    assert (store.full, store.bytes_free) == (None, 250)
    await store.put("v1/shards/0/log/00000001-00000000000b", [bytes(101)])
    await until(lambda: changes == [True])
    assert "almost full" in str(store.full)
    # 99 bytes are left beside the reserve of 100.
    with pytest.raises(StoreFull):
        await store.put(RUN, [bytes(100)])
    assert small.held == 100
    await store.put(ROOT, [bytes(120)])
    assert 50 <= small.held < 100
    with pytest.raises(StoreFull):
        await store.put("v1/shards/0/pages/00000001-000000000001", [bytes(79)])
    assert small.held == 50
    await store.put(LOG, [bytes(70)])
    with pytest.raises(StoreFull):
        await store.put("v1/shards/0/log/00000001-000000000002", [bytes(70)])
    assert small.held == 0
    await store.delete(ROOT)
    await store.put("v1/shards/0/log/00000001-000000000002", [bytes(70)])
    assert changes == [True]
    await store.delete("v1/shards/0/log/00000001-00000000000a")
    await until(lambda: changes == [True, False])
    assert small.held == 100
    await store.put(RUN, [bytes(100)])
    await store.close()


class LateStore(SmallStore):
    """A store that decides by its bytes at the last scan, as MinIO does."""

    scanned = 0

    def scan(self) -> None:
        self.scanned = self.left

    async def put(self, key: str, data: Buffers) -> None:
        if size_of(data) > self.scanned:
            raise StoreFull(f"{key}: the bucket's quota is used up")
        await MemoryStore.put(self, key, data)

    async def fill(self) -> bool:
        if self.size > self.scanned:
            raise StoreFull("the bucket's quota is used up")
        self.held = self.size
        return True

    def bytes_free(self) -> int | None:
        return None

    def is_low(self, bytes_free: int) -> bool:
        return False


def test_a_store_that_counts_late() -> None:
    """The store accepts the reserve before it has counted it. Publishes stay refused until it has accepted the
    reserve for as long as its counting lagged before."""
    async def main(clock: ManualClock) -> None:
        small = LateStore(1000)
        small.scan()
        store = ReservingStore(small, 100, reserve_left_by, clock, retry_seconds=1.0)
        store.start()
        await asyncio.sleep(1)
        small.objects["of others"] = bytes(880)
        small.scan()
        with pytest.raises(StoreFull):
            await store.put(LOG, [bytes(30)])
        assert small.held == 0
        await asyncio.sleep(10)
        small.scan()
        await store.put(LOG, [bytes(10)])
        # The store has room for the reserve or for messages, and accepts both until the next scan.
        for _ in range(3):
            await asyncio.sleep(9)
            assert small.held == 100
            assert store.full is not None
            small.scan()
            await asyncio.sleep(2)
            assert store.full is not None
            small.held = 0
            small.scan()
        del small.objects["of others"]
        small.scan()
        await asyncio.sleep(9)
        assert store.full is not None
        await asyncio.sleep(3)
        assert store.full is None
        assert small.held == 100
        await store.close()
    in_virtual_time(main)


@pytest.mark.usefixtures("quick")
async def test_a_store_that_is_full_from_the_start() -> None:
    """The reserve cannot be made: the store is full. A store that does not answer does not count as full."""
    small = SmallStore(250)
    small.objects["a"] = bytes(180)
    small.fails = True
    store = ReservingStore(small, 100, reserve_left_by, SystemClock(), retry_seconds=0.005)
    changes: list[bool] = []
    store.observe(lambda: changes.append(store.full is not None))
    store.start()
    for _ in range(20):
        await asyncio.sleep(0)
    assert store.full is None
    small.fails = False
    await until(lambda: changes == [True])
    small.objects.clear()
    await until(lambda: changes == [True, False])
    await store.close()


async def test_a_put_that_fits_nowhere_keeps_the_store_full() -> None:
    """Neither the reserve nor publishers get the room that such a put waits for."""
    small = SmallStore(1000)
    store = ReservingStore(small, 100, reserve_left_by, SystemClock(), retry_seconds=0.001)
    store.start()
    await until(lambda: small.held == 100)
    with pytest.raises(StoreFull):
        await store.put(LOG, [bytes(2000)])
    await asyncio.sleep(0.05)
    assert store.full is not None
    await store.close()


@pytest.mark.parametrize(("key", "left"), [
    ("v1/format", 0.0), ("v1/shards/0/epochs/00000001", 0.0), (LOG, 0.0), (ROOT, 0.5),
    ("v1/shards/0/pages/00000001-000000000001", 0.5), (RUN, 1.0), ("v1/shards/0/inbox/0000000000000001", 1.0),
    ("x", 1.0)])
def test_keys_that_may_use_the_reserve(key: str, left: float) -> None:
    """A start, a purge, a delete and a checkpoint may use the reserve; runs can wait."""
    assert reserve_left_by(key) == left


# The reserve of a directory


async def here(call: Callable[..., bool], *args: object) -> bool:
    return call(*args)


async def test_the_file_of_a_directory(tmp_path: Path) -> None:
    """The file takes blocks of the disk, not only a length. It is shortened by the need of each put, and lengthened
    again."""
    reserve = DiskReserve(str(tmp_path), 1 << 20, lambda: 0, here)
    file = tmp_path / RESERVE
    assert await reserve.fill()
    assert os.stat(file).st_size == 1 << 20
    assert os.stat(file).st_blocks * 512 >= 1 << 20
    assert reserve.release(100_000, 0.5)
    assert (1 << 20) - 300_000 < os.stat(file).st_size <= (1 << 20) - 100_000
    assert reserve.release(1 << 20, 0.5)
    assert os.stat(file).st_size == 1 << 19
    assert not reserve.release(1, 0.5)
    # The next process continues with the remaining file.
    reserve = DiskReserve(str(tmp_path), 1 << 20, lambda: 0, here)
    assert reserve.release(1 << 20, 0.0)
    assert not reserve.release(1, 0.0)
    assert os.stat(file).st_size == 0
    assert await reserve.fill()
    assert os.stat(file).st_size == 1 << 20
    # Other settings: a smaller reserve, and none.
    assert await DiskReserve(str(tmp_path), 1 << 19, lambda: 0, here).fill()
    assert os.stat(file).st_size == 1 << 19
    assert await DiskReserve(str(tmp_path), 0, lambda: 0, here).fill()
    assert not file.exists()


class Disk:
    """A fake ``statvfs`` of a disk of 16 MiB with ``free`` bytes free."""

    f_frsize = 1
    f_blocks = 16 << 20

    def __init__(self, free: int) -> None:
        self.f_bavail = free


async def test_the_file_on_a_small_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reserve is at most a sixteenth of the disk. It is not made if less than its size would be left beside it,
    and a file that could not be lengthened keeps its length."""
    free = 3 << 20
    monkeypatch.setattr(os, "statvfs", lambda _: Disk(free))
    file = tmp_path / RESERVE
    assert await DiskReserve(str(tmp_path), 64 << 20, lambda: 0, here).fill()
    assert os.stat(file).st_size == 1 << 20
    os.truncate(file, 1000)
    free = (2 << 20) - 1001
    assert not await DiskReserve(str(tmp_path), 64 << 20, lambda: 0, here).fill()
    assert os.stat(file).st_size == 1000
    free = 3 << 20

    def fail(fd: int, *_: int) -> None:
        os.ftruncate(fd, 5000)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", fail)
    assert not await DiskReserve(str(tmp_path), 64 << 20, lambda: 0, here).fill()
    assert os.stat(file).st_size == 1000


async def test_a_file_system_without_fallocate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is filled by writing if there is no ``fallocate``."""
    def lacks(*_: int) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(os, "posix_fallocate", lacks)
    monkeypatch.setattr(disk_reserve, "_PIECE", 1000)
    assert await DiskReserve(str(tmp_path), 10_500, lambda: 0, here).fill()
    assert os.stat(tmp_path / RESERVE).st_size == 10_500
    assert os.stat(tmp_path / RESERVE).st_blocks * 512 >= 10_500


async def test_puts_in_threads_use_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A put in a thread of the log that fails for lack of room is retried with a part of the reserve; the file is no
    object."""
    inner = FileStore(tmp_path)
    store = ReservingStore(inner, 1 << 20, reserve_left_by, SystemClock())
    full_changed = asyncio.Event()
    store.observe(full_changed.set)
    store.start()
    file = tmp_path / RESERVE
    await until(lambda: file.exists() and os.stat(file).st_size == 1 << 20)
    writev = os.writev

    def full(fd: int, data: Buffers) -> int:
        if os.stat(file).st_size == 1 << 20:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return writev(fd, data)

    monkeypatch.setattr(os, "writev", full)
    put = store.put_sync
    assert put is not None
    with ThreadPoolExecutor(1) as threads:
        await asyncio.get_running_loop().run_in_executor(threads, put, LOG, [bytes(1000)])
    assert os.stat(file).st_size < 1 << 20
    async with asyncio.timeout(60):
        await full_changed.wait()
    assert "the disk is full" in str(store.full)
    assert [found.key for found in await store.list("")] == [LOG]
    await store.close()


# The reserve of a bucket


class Bucket:
    """The store's own objects of a bucket."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.quota = True
        self.full = False
        self.asked = 0

    async def has_quota(self) -> bool:
        return self.quota

    async def list_own(self, prefix: str) -> dict[str, int]:
        self.asked += 1
        return {name: len(data) for name, data in self.objects.items()}

    async def put_own(self, name: str, data: bytes) -> None:
        self.asked += 1
        if self.full:
            raise StoreFull(name)
        self.objects[name] = data

    async def delete_own(self, name: str) -> None:
        self.asked += 1
        self.objects.pop(name, None)


async def test_the_objects_of_a_bucket() -> None:
    """The reserve has four objects, which are deleted one by one and made again. Objects of an earlier process are
    found. On AWS there is no request."""
    bucket = Bucket()
    reserve = S3Reserve(bucket, 4000)
    assert await reserve.fill()
    assert {name: len(data) for name, data in bucket.objects.items()} == {f".reserve/{n}": 1000 for n in range(4)}
    for left in (3, 2):
        assert await reserve.release_soon(10, 0.5)
        assert len(bucket.objects) == left
    assert not await reserve.release_soon(10, 0.5)
    again = S3Reserve(bucket, 4000)
    assert await again.release_soon(1500, 0.0)
    assert not bucket.objects
    assert not await again.release_soon(10, 0.0)
    bucket.full = True
    with pytest.raises(StoreFull):
        await again.fill()
    bucket.full = False
    assert await again.fill()
    assert len(bucket.objects) == 4
    # A complete reserve does not prove that there is room beside it.
    bucket.full = True
    with pytest.raises(StoreFull):
        await again.fill()
    bucket.full = False
    assert await S3Reserve(bucket, 0).fill()
    assert not bucket.objects
    bucket.quota, bucket.asked = False, 0
    assert await S3Reserve(bucket, 4000).fill()
    assert (bucket.objects, bucket.asked) == ({}, 0)
