"""Objects as files of one directory: ``file://DIR``.

A key is a path below the directory. Files that are not objects have names that no key can have: lock files are called
``lock``, and ``.tmp`` contains files being written, if the file system has no nameless files.

    put:  nameless file in the target directory, write, fdatasync     (where O_TMPFILE works; 0.31 ms for 1 kB)
          or .tmp/<run>/<n>, write, fdatasync                         (elsewhere;             0.45 ms)
          link to its key                                             put-if-absent: link refuses an existing name
          fsync of the target directory                               now the name survives a power cut
    get:  pread, from the page cache on the loop (preadv2 with RWF_NOWAIT: 2 µs for 1 kB, where a thread costs 97 µs),
          from the disk in a thread

An object is visible from the link on and durable from the directory's fsync on. A put that finds the name taken also syncs
the directory before it says so, since its caller will rely on that object. A new directory is synced into its parent
before anything is linked into it.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import secrets
import stat
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from broker.storage.objectstore.base import (
    Buffers,
    Listing,
    NotFound,
    ObjectInfo,
    ObjectStore,
    PreconditionFailed,
    StoreError,
    StoreLock,
    StoreRefused,
    Transient,
    can_begin_key,
    check_key,
)
from broker.storage.objectstore.filelock import FileLock

__all__ = ["FileStore"]

_T = TypeVar("_T")

_INLINE_BYTES_MAX = 256 * 1024  # copying this much from the page cache holds the loop for some 30 µs
_TURN_BYTES_MAX = 512 * 1024  # and no more in one turn of the loop, where memory is new for each
_THREADS_MAX = 16  # puts in flight (4) and a checkpoint's must leave threads for reads that wait for a disk
_BUFFERS_MAX = 1024  # IOV_MAX
_PUT_TRIES_MAX = 20  # the second works, unless other processes empty and remove the folder meanwhile

_REMEDIES = {
    errno.ENOSPC: "the disk is full; free some room, and the broker continues",
    errno.EDQUOT: "the disk quota is used up; raise it, and the broker continues",
    errno.EACCES: "give the server's user read and write access to the directory and all below it",
    errno.EPERM: "give the server's user read and write access to the directory and all below it",
    errno.EROFS: "the file system is mounted read-only; mount it read-write",
    errno.ENOTDIR: "a part of this path is a file; the directory contains files that are not the store's",
    errno.EISDIR: "a directory has this name; the directory contains files that are not the store's",
    errno.ENAMETOOLONG: "the file system does not allow names this long; use another one",
    errno.EXDEV: "a directory of the store is on another file system; keep all of the store on one",
    errno.EOPNOTSUPP: "the file system lacks hard links; use another one",
    errno.ENOSYS: "the file system lacks a call that is needed; use another one",
    errno.EMLINK: "the file system lacks hard links; use another one",
    errno.ELOOP: "the path has too many symbolic links",
}
"""Errors that trying again at once cannot help. All others (EIO, EMFILE, ENOMEM, ESTALE, …) are Transient."""


_NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR)
"""Errors of a read or a delete that mean no such object; the last two if the name is a folder's, or below an object's."""


class FileStore(ObjectStore):
    """A directory as an object store; see the module's docstring."""

    def __init__(self, directory: str | os.PathLike[str], *, read_only: bool = False, nameless: bool = True) -> None:
        """Open the directory, created if missing unless ``read_only``; ``nameless=False`` never uses O_TMPFILE.

        Raises: StoreRefused, in nats-server's words for an unusable storage directory.
        """
        self.directory = Path(directory).absolute()
        self.url = f"file://{self.directory}"
        self.put_sync = self._put
        self.try_lock = self._try_lock
        self._read_only = read_only
        self._nameless = nameless and hasattr(os, "O_TMPFILE")
        self._root = os.fspath(self.directory)
        self._temp = _TempDirectory(os.path.join(self._root, ".tmp"))
        self._executor = ThreadPoolExecutor(_THREADS_MAX, thread_name_prefix="file-store")
        self._closed = False
        self._inline_bytes = 0
        """Read on the loop in this turn of it."""
        self._open_directory()
        self._started_at_ns, self._started_boot_ns = time.time_ns(), _boottime_ns()

    async def put(self, key: str, data: Buffers) -> None:
        await self._in_thread(self._put, key, data)

    async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        if start < 0:
            raise ValueError("a read begins at byte 0 or later")
        if end is not None and end <= start:
            return b""
        path = self._path(key)
        if self._inline_bytes >= _TURN_BYTES_MAX:
            return await self._in_thread(self.get_sync, key, start, end)
        try:
            data = _read_cached(path, start, end)
        except OSError as e:
            raise self._error(e, key, _NOT_THERE) from e
        if data is None:
            return await self._in_thread(self.get_sync, key, start, end)
        if not self._inline_bytes:
            asyncio.get_running_loop().call_soon(self._next_turn)
        self._inline_bytes += len(data)
        return data

    def _next_turn(self) -> None:
        self._inline_bytes = 0

    async def replace(self, key: str, data: Buffers) -> None:
        await self._in_thread(self._replace, key, data)

    async def list(self, prefix: str, after: str = "", limit: int | None = None) -> Listing:
        return await self._in_thread(self.list_sync, prefix, after, limit)

    async def delete(self, key: str) -> None:
        await self._in_thread(self._delete, key)

    async def close(self) -> None:
        """End the threads after the calls in progress."""
        if not self._closed:
            self._closed = True
            await asyncio.to_thread(self._executor.shutdown)
            self._temp.remove()

    async def now_ns(self) -> int | None:
        """The wall clock at opening plus CLOCK_BOOTTIME since then, which reveals a later leap of the wall clock."""
        return self._started_at_ns + _boottime_ns() - self._started_boot_ns

    def lock_path(self, folder: str) -> Path:
        """The file that ``try_lock(folder)`` locks."""
        return self.directory / folder / "lock"

    # The following runs in worker threads, or by put_sync in the caller's thread.

    def _put(self, key: str, data: Buffers) -> None:
        path = self._path(key)
        if self._read_only:
            raise StoreRefused(f"{self.url}: opened for reading only, so {key} was not written")
        folder = os.path.dirname(path)
        refused: PermissionError | None = None
        try:
            for _ in range(_PUT_TRIES_MAX):
                try:
                    if not (self._nameless and self._put_nameless(folder, path, data)):
                        self._put_named(path, data)
                    break
                except FileNotFoundError:
                    # The folder does not exist yet, or was removed with its last object between two of our calls.
                    refused = None
                    if not os.path.isdir(self._root):
                        raise
                    _make_folder(folder)
                except FileExistsError:
                    try:
                        _sync_directory(folder)
                    except FileNotFoundError:
                        continue  # the object with this key was the last in its folder, and was deleted since
                    raise
                except PermissionError as e:
                    # ext4 creates no nameless file in a folder that an rmdir in progress has unlinked: EPERM, until that
                    # call ends and the name is gone. (Other calls wait for a lock, and return ENOENT.)
                    if e.errno != errno.EPERM or folder == self._root:
                        raise
                    refused = e
                    _make_folder(folder)
            else:
                if refused is not None:
                    raise refused
                raise Transient(f"{self.url}: {key}: its folder {folder} does not stay")
            # A folder is removed with its last object: if it is gone, our object existed and was deleted since.
            with suppress(FileNotFoundError):
                _sync_directory(folder)
        except OSError as e:
            raise self._error(e, key) from e

    def _put_nameless(self, folder: str, path: str, data: Buffers) -> bool:
        """Put by a nameless file; False if the file system has none."""
        try:
            fd = os.open(folder, os.O_WRONLY | os.O_TMPFILE | os.O_CLOEXEC, 0o640)
        except OSError as e:
            # EISDIR is how kernels and file systems without O_TMPFILE answer.
            if e.errno in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
                self._nameless = False
                return False
            raise
        try:
            _write_all(fd, data)
            os.fdatasync(fd)
            try:
                # linkat(AT_SYMLINK_FOLLOW) by /proc, which needs no privilege; a directory fd makes Python use linkat.
                os.link(f"/proc/self/fd/{fd}", path, src_dir_fd=fd, follow_symlinks=True)
            except FileNotFoundError:
                if not os.path.isdir("/proc/self/fd"):  # otherwise the folder is gone
                    self._nameless = False
                    return False
                raise
        finally:
            os.close(fd)
        return True

    def _replace(self, key: str, data: Buffers) -> None:
        path = self._path(key)
        if self._read_only:
            raise StoreRefused(f"{self.url}: opened for reading only, so {key} was not written")
        try:
            _make_folder(os.path.dirname(path))
            temp = self._temp.new_path()
            fd = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)
            try:
                _write_all(fd, data)
                os.fdatasync(fd)
            finally:
                os.close(fd)
            os.replace(temp, path)
            _sync_directory(os.path.dirname(path))
        except OSError as e:
            raise self._error(e, key) from e

    def _put_named(self, path: str, data: Buffers) -> None:
        temp = self._temp.new_path()
        fd = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)
        try:
            try:
                _write_all(fd, data)
                os.fdatasync(fd)
            finally:
                os.close(fd)
            os.link(temp, path)
        finally:
            os.unlink(temp)

    def get_sync(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        """``get`` for a thread that may wait; same errors."""
        path = self._path(key)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                size = os.fstat(fd).st_size
                parts = []
                at, stop = start, size if end is None else min(end, size)
                while at < stop and (part := os.pread(fd, stop - at, at)):
                    parts.append(part)
                    at += len(part)
                return b"".join(parts)
            finally:
                os.close(fd)
        except OSError as e:
            raise self._error(e, key, _NOT_THERE) from e

    def list_sync(self, prefix: str, after: str = "", limit: int | None = None) -> Listing:
        """``list`` for a thread that may wait; same errors."""
        found: Listing = []
        folder = prefix.rpartition("/")[0]
        if not can_begin_key(prefix):
            return found
        try:
            for key, path in _walk(os.path.join(self._root, folder), f"{folder}/" if folder else "", prefix, after):
                if limit is not None and len(found) >= limit:
                    break
                try:
                    found.append(ObjectInfo(key, os.stat(path).st_size))
                except FileNotFoundError:
                    continue  # deleted since
        except OSError as e:
            raise self._error(e, prefix) from e
        if not found and not os.path.isdir(self._root):
            raise self._error(FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)), prefix)
        return found

    def _delete(self, key: str) -> None:
        path = self._path(key)
        if self._read_only:
            raise StoreRefused(f"{self.url}: opened for reading only, so {key} was not deleted")
        try:
            os.unlink(path)
        except OSError as e:
            if e.errno in _NOT_THERE:
                return
            raise self._error(e, key) from e
        # A folder is removed with its last object, or every stream that ever existed would slow down listing for ever.
        # Not synced: an object that reappears after a power cut is released and deleted again.
        # Whatever keeps a folder (other objects, mostly), the object is gone.
        with suppress(OSError):
            while (path := os.path.dirname(path)) != self._root:
                os.rmdir(path)

    def _try_lock(self, folder: str) -> StoreLock | None:
        path = os.fspath(self.lock_path(folder))
        try:
            _make_directories(os.path.dirname(path))
            return FileLock.take(path)
        except OSError as e:
            remedy = _REMEDIES.get(e.errno or 0, "a directory store needs a file system with flock")
            raise StoreRefused(f"{self.url}: cannot lock {path}: {os.strerror(e.errno or 0)}: {remedy}") from e

    def _path(self, key: str) -> str:
        if self._closed:
            raise Transient(f"{self.url}: the store is closed")
        return f"{self._root}/{check_key(key)}"

    async def _in_thread(self, call: Callable[..., _T], *args: object) -> _T:
        if self._closed:
            raise Transient(f"{self.url}: the store is closed")
        return await asyncio.get_running_loop().run_in_executor(self._executor, call, *args)

    def _error(self, e: OSError, key: str, not_there: tuple[int, ...] = (errno.ENOENT,)) -> StoreError:
        where = f"{self.url}: {key}"
        if isinstance(e, FileExistsError):
            return PreconditionFailed(f"{where} exists")
        if e.errno in not_there:
            if not os.path.isdir(self._root):
                return StoreRefused(f"{where}: the directory is gone; mount or restore {self._root}")
            return NotFound(f"{where} does not exist")
        if (remedy := _REMEDIES.get(e.errno or 0)) is not None:
            return StoreRefused(f"{where}: {os.strerror(e.errno or 0)}: {remedy}")
        return Transient(f"{where}: {e.strerror or e}")

    def _open_directory(self) -> None:
        root = self._root
        if os.path.exists(root) and not os.path.isdir(root):
            raise StoreRefused(f'storage directory is not a directory: "{root}" is a file; name a directory')
        if self._read_only:
            if not os.path.isdir(root):
                raise StoreRefused(f'no storage directory "{root}": check the path')
            return
        try:
            _make_directories(root)
        except OSError as e:
            raise StoreRefused(f'could not create storage directory "{root}": {os.strerror(e.errno or 0)}; '
                               f"create it for the server's user, or name another") from e
        _sweep_temp(self._temp.parent)


class _TempDirectory:
    """This run's own directory for files being written, locked by flock for as long as the process lives.

    So the next process to open the store recognizes the leftovers of dead ones, whatever their process ids and hosts.
    """

    def __init__(self, parent: str) -> None:
        self.parent = parent
        self._path: str | None = None
        self._lock: FileLock | None = None
        self._numbers = itertools.count()
        self._making = threading.Lock()

    def new_path(self) -> str:
        with self._making:
            while self._path is None:
                path = os.path.join(self.parent, secrets.token_hex(8))
                os.makedirs(path)
                # In between, another process may have taken it for a dead one's and removed it: then make another.
                if (lock := FileLock.take(path)) is not None:
                    self._path, self._lock = path, lock
        return os.path.join(self._path, f"{next(self._numbers):x}")

    def remove(self) -> None:
        if self._path is not None and self._lock is not None:
            _remove_flat(self._path)
            self._lock.release()
            self._path = None


def _sweep_temp(parent: str) -> None:
    """Remove the half-written files of dead processes."""
    try:
        names = os.listdir(parent)
    except OSError:
        return
    for name in names:
        path = os.path.join(parent, name)
        try:
            lock = FileLock.take(path)
        except OSError:
            continue  # we may not touch it; it only costs space
        if lock is not None:
            _remove_flat(path)
            lock.release()


def _remove_flat(folder: str) -> None:
    """Remove a folder that contains only files; what cannot be removed is left for the next sweep."""
    with suppress(OSError):
        for name in os.listdir(folder):
            os.unlink(os.path.join(folder, name))
        os.rmdir(folder)


def _walk(folder: str, base: str, prefix: str, after: str) -> Iterator[tuple[str, str]]:
    """Keys and paths of the objects below ``folder`` in key order; ``base`` is the folder's part of the key.

    A folder sorts by its name with the slash, as its keys do: ``a-b`` < ``a/c`` < ``a0``. Names at or before ``after``
    are neither sorted nor read.
    """
    rows: list[tuple[str, os.DirEntry[str], bool]] = []
    try:
        entries = os.scandir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return
    with entries:
        for entry in entries:
            name = entry.name
            key = base + name
            if key <= after and not after.startswith(key):
                continue
            if name[0] == "." or name == "lock":
                continue
            if entry.is_dir():
                key += "/"
                if (key.startswith(prefix) or prefix.startswith(key)) and (key > after or after.startswith(key)):
                    rows.append((key, entry, True))
            elif key > after and key.startswith(prefix):
                rows.append((key, entry, False))
    rows.sort(key=lambda row: row[0])
    for key, entry, is_folder in rows:
        if is_folder:
            yield from _walk(entry.path, key, prefix, after)
        else:
            yield key, entry.path


def _read_cached(path: str, start: int, end: int | None) -> bytes | None:
    """The range if it is small and completely in the page cache, else None."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(fd).st_size
        length = (size if end is None else min(end, size)) - start
        if length <= 0:
            return b""
        if length > _INLINE_BYTES_MAX or _NOWAIT is None:
            return None
        buffer = bytearray(length)
        try:
            if os.preadv(fd, [buffer], start, _NOWAIT) < length:
                return None
        except OSError:
            return None  # EAGAIN: not cached; EOPNOTSUPP: this file system cannot say. A thread reads it then.
        return bytes(buffer)
    finally:
        os.close(fd)


_NOWAIT: int | None = getattr(os, "RWF_NOWAIT", None)


def _write_all(fd: int, data: Buffers) -> None:
    for at in range(0, len(data), _BUFFERS_MAX):
        batch = data[at:at + _BUFFERS_MAX]
        left = sum(map(len, batch)) - os.writev(fd, batch)
        if left:  # a full disk, a signal, or more than 2 GiB
            rest = memoryview(b"".join(batch))[-left:]
            while rest:
                rest = rest[os.write(fd, rest):]


def _make_directories(path: str) -> None:
    """As ``mkdir -p``, each new directory synced into its parent."""
    missing = []
    while not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    for path in reversed(missing):
        try:
            os.mkdir(path, 0o750)
        except FileExistsError:
            # One stat call: the folder may be removed at any time, which raises FileNotFoundError and is retried.
            if not stat.S_ISDIR(os.stat(path).st_mode):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path) from None
        _sync_directory(os.path.dirname(path))


def _make_folder(path: str) -> None:
    """Recreate a folder that is gone, or is being removed: mkdir, unlike stat, waits for an rmdir in progress."""
    try:
        os.mkdir(path, 0o750)
        _sync_directory(os.path.dirname(path))
    except FileExistsError:
        pass
    except FileNotFoundError:
        with suppress(FileNotFoundError):
            _make_directories(path)


def _sync_directory(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _boottime_ns() -> int:
    """Time since boot, including suspended time if the system has such a clock."""
    return time.clock_gettime_ns(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
