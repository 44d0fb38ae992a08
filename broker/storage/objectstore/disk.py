"""Files and folders: the calls of a directory store to its file system.

Owns: reading from the page cache, writing, syncing, making folders that survive a power cut, and the folder for
half-written files. This module knows no keys.

A file is durable once it has been synced (fdatasync), and the folder that names it, too (fsync). Many files are synced
by one ``syncfs``: for 500 files it took 15 ms, where an fdatasync of each took 2.5 s. But ``syncfs`` also writes what
other programs have not synced on the same file system, so a few files are synced one by one.
"""

from __future__ import annotations

import errno
import itertools
import os
import re
import secrets
import stat
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from functools import cache

from broker.storage.objectstore.base import Buffers
from broker.storage.objectstore.filelock import FileLock

__all__ = ["TempDirectory", "make_directories", "make_folder", "read_cached", "sweep_temp", "sync_directory",
           "sync_files", "write_all"]

_INLINE_BYTES_MAX = 256 * 1024  # copying this much from the page cache holds the loop for some 30 µs
_BUFFERS_MAX = 1024  # IOV_MAX
_WRITE_BYTES = 256 * 1024
"""The bytes of one call, if no buffer is larger. With calls of megabytes, ext4 allocates pages of that size. On a
virtual machine whose host takes free pages back, these took three times as long.
"""
_ONE_BY_ONE_MAX = 4
"""Up to this many files are cheaper to sync one by one than by a ``syncfs``."""
_SYNCFS_REPORTS_ERRORS = (5, 8)
"""The first version of Linux whose ``syncfs`` returns write errors."""


def read_cached(path: str, start: int, end: int | None) -> bytes | None:
    """Return the bytes ``start`` to ``end`` of a file if they are few and all in the page cache, else None."""
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


def write_all(fd: int, data: Buffers) -> None:
    for batch in _batches(data):
        left = sum(map(len, batch)) - os.writev(fd, batch)
        if left:  # a full disk, a signal, or more than 2 GiB
            rest = memoryview(b"".join(batch))[-left:]
            while rest:
                rest = rest[os.write(fd, rest):]


def _batches(data: Buffers) -> Iterator[Buffers]:
    """Yield ``data`` in parts of about ``_WRITE_BYTES``, for one call each."""
    batch: list[bytes] = []
    size = 0
    for buffer in data:
        if batch and (size + len(buffer) > _WRITE_BYTES or len(batch) == _BUFFERS_MAX):
            yield batch
            batch, size = [], 0
        batch.append(buffer)
        size += len(buffer)
    yield batch


def make_directories(path: str) -> None:
    """Create a directory and its missing parents, and sync each new directory into its parent."""
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
        sync_directory(os.path.dirname(path))


def make_folder(path: str) -> None:
    """Create a folder that is missing or is being removed: mkdir, unlike stat, waits for an rmdir in progress."""
    try:
        os.mkdir(path, 0o750)
        sync_directory(os.path.dirname(path))
    except FileExistsError:
        pass
    except FileNotFoundError:
        with suppress(FileNotFoundError):
            make_directories(path)


def sync_directory(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_files(file_system: int, paths: Collection[str]) -> None:
    """Make files, and their names, durable; missing files are left out.

    Args: file_system is the descriptor of an open folder on the file system of all the files. Write errors since it was
        opened are reported, also for files that have left the page cache. A ``syncfs`` also reports errors of other
        programs' files.
    Raises: OSError if one of the files may not be on the disk. Its content may then be lost from memory, too.
    """
    sync_file_system = _syncfs() if len(paths) > _ONE_BY_ONE_MAX else None
    if sync_file_system is not None:
        try:
            sync_file_system(file_system)
            return
        except OSError as error:
            if error.errno not in (errno.ENOSYS, errno.EPERM):  # these two come from a sandbox that lacks the call
                raise
    for path in paths:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        try:
            os.fdatasync(fd)
        finally:
            os.close(fd)
    for folder in {os.path.dirname(path) for path in paths}:
        with suppress(FileNotFoundError):
            sync_directory(folder)


@cache
def _syncfs() -> Callable[[int], None] | None:
    """Return the system's ``syncfs``; None if the system has none, or one that does not report write errors."""
    system = os.uname()
    version = re.match(r"(\d+)\.(\d+)", system.release)
    if system.sysname != "Linux" or version is None or (int(version[1]), int(version[2])) < _SYNCFS_REPORTS_ERRORS:
        return None
    import ctypes  # slow to load, and a start syncs few files

    try:
        call = ctypes.CDLL(None, use_errno=True).syncfs
    except (OSError, AttributeError):
        return None
    call.argtypes, call.restype = (ctypes.c_int,), ctypes.c_int

    def sync(fd: int) -> None:
        while call(fd):  # releases the GIL meanwhile
            number = ctypes.get_errno()
            if number != errno.EINTR:
                raise OSError(number, os.strerror(number))

    return sync


class TempDirectory:
    """This process's own directory for files being written; the process holds its lock (flock) until it ends.

    So the next process that opens the store recognizes the files of dead processes by their free lock.
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
                # Before it is locked, another process may remove it as a dead process's directory: then make another.
                if (lock := FileLock.try_acquire(path)) is not None:
                    self._path, self._lock = path, lock
        return os.path.join(self._path, f"{next(self._numbers):x}")

    def remove(self) -> None:
        if self._path is not None and self._lock is not None:
            _remove_flat(self._path)
            self._lock.release()
            self._path = None


def sweep_temp(parent: str) -> None:
    """Remove the half-written files of dead processes."""
    try:
        names = os.listdir(parent)
    except OSError:
        return
    for name in names:
        path = os.path.join(parent, name)
        try:
            lock = FileLock.try_acquire(path)
        except OSError:
            continue  # access is denied; the file only costs space
        if lock is not None:
            _remove_flat(path)
            lock.release()


def _remove_flat(folder: str) -> None:
    """Remove a folder that contains only files; files that cannot be removed are left for the next sweep."""
    with suppress(OSError):
        for name in os.listdir(folder):
            os.unlink(os.path.join(folder, name))
        os.rmdir(folder)
