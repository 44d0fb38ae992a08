"""A disk cache: byte ranges of a bucket's objects on a local disk, below the smaller cache in memory.

Owns: its files, their bound in bytes, and the choice of the ranges to evict. Does not own: the choice of the ranges to
read (reader), retries (the wrapped store).

    get ──> is a range that covers it cached? ──┬── yes: read it in a thread, compare its checksum ──> the bytes
                                                └── no: get it from the store; write it to the newest file in a thread

Ranges are appended to files whose size is a sixteenth of the bound. If there is no room, the oldest file is dropped;
those of its ranges that were read again are written to the newest file, up to half of a file.

The files have no names and end with the process. So no stale file is ever found, brokers may share a folder, and
emptying the folder removes nothing. The cached ranges are valid during one ownership of the store: call ``clear`` at
its end.

Nothing waits for a write, and a failure of the disk does not fail a read: a range whose checksum differs is got from
the store again, and after an error the cache turns itself off.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Lock
from typing import Any, TypeVar
from zlib import crc32

from broker.storage.objectstore.base import ObjectStore
from broker.storage.objectstore.wrapper import Wrapper

__all__ = ["DiskCache"]

_log = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")

_FILES = 16
_FILE_RANGES_MAX = 8192
"""The most ranges of a file, which take 3 MiB of memory."""
_UNWRITTEN_MAX = 16 << 20
"""The most bytes that wait for the disk; while the disk is slower than the store, further ranges are not cached."""
_READERS = 4


class _Range:
    """Bytes ``start`` to ``end`` of an object, at ``offset`` of ``file``.

    ``crc`` is None until they are written. ``used`` is True once they were read again.
    """

    __slots__ = ("crc", "end", "file", "key", "offset", "start", "used")

    def __init__(self, key: str, start: int, end: int, file: _File, offset: int) -> None:
        self.key = key
        self.start = start
        self.end = end
        self.file = file
        self.offset = offset
        self.crc: int | None = None
        self.used = False


class _File:
    """A file without a name, with a count of its users; the last user closes it. The cache itself is one user.

    A thread may continue to read or write after its task was cancelled, and a closed descriptor may soon belong to
    another file. So each thread counts as a user until it ends. Closing frees the file's room, which takes long for a
    large file: see ``_release_file``.
    """

    __slots__ = ("_lock", "_users", "fd", "ranges", "size")

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.size = 0
        self.ranges: list[_Range] = []
        self._users = 1
        self._lock = Lock()

    async def run(self, executor: ThreadPoolExecutor, fn: Callable[[int, T, int], R], what: T, offset: int) -> R:
        """Call ``fn(fd, what, offset)`` in a thread, and return its result."""
        with self._lock:
            self._users += 1
        future = executor.submit(fn, self.fd, what, offset)
        future.add_done_callback(lambda _: self.release())
        return await asyncio.wrap_future(future)

    def release(self) -> None:
        """Remove one user, and close the file after the last one."""
        with self._lock:
            self._users -= 1
            unused = not self._users
        if unused:
            os.close(self.fd)


class DiskCache(Wrapper):
    """A store whose ranged gets are cached in a folder.

    Attributes: ``size`` of the files in bytes; counts since the start: ``hits`` and ``misses`` of gets, ``evictions``
        of ranges, ``damaged`` ranges; ``off``: the reason why the cache has turned itself off, "" while it is on.
    """

    def __init__(self, inner: ObjectStore, folder: str, bytes_max: int) -> None:
        """Wrap ``inner``, and create ``folder`` if it is missing. Raises: OSError if no file can be created there."""
        super().__init__(inner)
        self.bytes_max = bytes_max
        self.hits = self.misses = self.evictions = self.damaged = 0
        self.off = ""
        self._folder = folder
        self._file_bytes = max(bytes_max // _FILES, 1)
        self._files: deque[_File] = deque()
        self._ranges: dict[str, dict[_Range, None]] = {}
        """Ranges by key, from the beginning of their writes; a range forgotten during its write stays forgotten."""
        self._unwritten = 0
        self._writes: set[asyncio.Task[None]] = set()
        os.makedirs(folder, mode=0o700, exist_ok=True)
        os.close(_nameless(folder))
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="cache-write")
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="cache-read")

    @property
    def size(self) -> int:
        return sum(file.size for file in self._files)

    def figures(self) -> dict[str, Any]:
        """Return the counts for monitoring."""
        return {"bytes": self.size, "bytes_max": self.bytes_max, "hits": self.hits, "misses": self.misses,
                "evictions": self.evictions, "damaged": self.damaged, "off": self.off}

    async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        if self.off or end is None or end <= start:
            return await self.inner.get(key, start, end)
        found = self._find(key, start, end)
        if found is not None:
            data = await self._read(found)
            if data is not None:
                self.hits += 1
                return data[start - found.start:end - found.start]
        self.misses += 1
        data = await self.inner.get(key, start, end)
        if len(data) == end - start:
            self._add(key, start, data)
        return data

    async def close(self) -> None:
        """Close the files, but not the wrapped store."""
        self.off = self.off or "closed"
        self.clear()
        while self._writes:
            await asyncio.gather(*self._writes, return_exceptions=True)
        self._writer.shutdown(wait=False)
        self._readers.shutdown(wait=False)

    def clear(self) -> None:
        """Forget everything, also the ranges that are being written."""
        self._ranges.clear()
        while self._files:
            self._start(self._release_file(self._files.popleft()))

    def forget(self, key: str) -> None:
        """Forget an object of which damaged bytes were read; the damage may be in the store or in the cache."""
        self._ranges.pop(key, None)

    # --- reading ------------------------------------------------------------------------------------------------------

    def _find(self, key: str, start: int, end: int) -> _Range | None:
        for kept in self._ranges.get(key, ()):
            if kept.start <= start and end <= kept.end and kept.crc is not None:
                return kept
        return None

    async def _read(self, kept: _Range) -> bytes | None:
        """Read a whole range; None if its bytes are not those that were written."""
        size = kept.end - kept.start
        try:
            data, crc = await kept.file.run(self._readers, _read_at, size, kept.offset)
        except OSError as error:
            self._turn_off(error)
            return None
        if len(data) != size or crc != kept.crc:
            self.damaged += 1
            _log.warning("the cache directory %s is damaged: %s from byte %d on is got from the store again",
                         self._folder, kept.key, kept.start)
            self._forget(kept)
            return None
        kept.used = True
        return data

    def _has(self, kept: _Range) -> bool:
        return kept in self._ranges.get(kept.key, ())

    def _forget(self, kept: _Range) -> None:
        ranges = self._ranges.get(kept.key, {})
        if kept in ranges:
            del ranges[kept]
            if not ranges:
                del self._ranges[kept.key]

    # --- writing ------------------------------------------------------------------------------------------------------

    def _add(self, key: str, start: int, data: bytes) -> None:
        """Begin to write a range, unless too many bytes wait for the disk already."""
        if self.off or self._unwritten + len(data) > _UNWRITTEN_MAX or len(data) > self._file_bytes:
            return
        file = self._files[-1] if self._files else None
        if file is None or file.size + len(data) > self._file_bytes or len(file.ranges) >= _FILE_RANGES_MAX:
            try:
                file = self._next_file()
            except OSError as error:
                self._turn_off(error)
                return
        kept = _Range(key, start, start + len(data), file, file.size)
        file.size += len(data)
        file.ranges.append(kept)
        self._ranges.setdefault(key, {})[kept] = None
        self._unwritten += len(data)
        self._start(self._write(kept, data))

    def _next_file(self) -> _File:
        file = _File(_nameless(self._folder))
        self._files.append(file)
        while len(self._files) > 1 and (len(self._files) > _FILES or self.size + self._file_bytes > self.bytes_max):
            self._start(self._retire(self._files.popleft()))
        return file

    def _start(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work, name="cache directory")
        self._writes.add(task)
        task.add_done_callback(self._writes.discard)

    async def _write(self, kept: _Range, data: bytes) -> None:
        try:
            crc = await kept.file.run(self._writer, _write_at, data, kept.offset)
        except OSError as error:
            self._turn_off(error)
            return
        finally:
            self._unwritten -= len(data)
        if not self._has(kept):
            return
        kept.crc = crc
        for other in [other for other in self._ranges[kept.key] if kept.start <= other.start and other.end <= kept.end]:
            if other is not kept and other.crc is not None:
                self._forget(other)

    async def _retire(self, file: _File) -> None:
        """Drop the oldest file; its ranges that were read again move to the newest file."""
        again: list[_Range] = []
        left = self._file_bytes // 2
        for kept in file.ranges:
            if kept.used and kept.end - kept.start <= left and self._has(kept):
                left -= kept.end - kept.start
                again.append(kept)
            elif self._has(kept):
                self._forget(kept)
                self.evictions += 1
        try:
            for kept in again:
                size, data, crc = kept.end - kept.start, b"", 0
                with suppress(OSError):
                    data, crc = await file.run(self._readers, _read_at, size, kept.offset)
                if not self._has(kept):
                    continue  # it was forgotten meanwhile, or replaced by a larger range
                self._forget(kept)
                if len(data) == size and crc == kept.crc:
                    self._add(kept.key, kept.start, data)
                else:
                    self.evictions += 1
        finally:
            for kept in again:
                self._forget(kept)
            await self._release_file(file)

    async def _release_file(self, file: _File) -> None:
        await asyncio.wrap_future(self._writer.submit(file.release))

    def _turn_off(self, error: OSError) -> None:
        if not self.off:
            self.off = str(error)
            _log.error("the cache directory %s is not used any more: %s; its files are gone, and reads go to the "
                       "store. It is tried again when the broker starts", self._folder, error)
            self.clear()


def _nameless(folder: str) -> int:
    """Create a file without a name, which ends when it is closed; return its descriptor."""
    import tempfile  # slow to load, and few brokers have a cache on disk

    with tempfile.TemporaryFile(dir=folder, prefix="jetblock-cache-", buffering=0) as file:
        return os.dup(file.fileno())


def _read_at(fd: int, size: int, offset: int) -> tuple[bytes, int]:
    data = os.pread(fd, size, offset)
    return data, crc32(data)


def _write_at(fd: int, data: bytes, offset: int) -> int:
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, offset)
        offset += written
        view = view[written:]
    return crc32(data)
