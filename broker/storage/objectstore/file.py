"""Objects as files of one directory: ``file://DIR``.

A key is a path below the directory. Files that are not objects have names that no key can have: lock files are called
``lock``; ``.tmp`` contains files being written, if the file system has no nameless files; ``.reserve`` keeps room
(``disk_reserve``).

    put:  nameless file in the target directory, write, fdatasync     (where O_TMPFILE works; 0.31 ms for 1 kB)
          or .tmp/<run>/<n>, write, fdatasync                         (elsewhere;             0.45 ms)
          link to its key                                             put-if-absent: link refuses an existing name
          fsync of the target directory                               now the name survives a power cut
    get:  pread, from the page cache on the loop (preadv2 with RWF_NOWAIT: 2 µs for 1 kB, where a thread costs 97 µs),
          from the disk in a thread

An object is visible from the link on and durable from the directory's fsync on. A put that finds the name taken syncs
the directory too before it raises PreconditionFailed, since the caller will rely on that object. A new directory is
synced into its parent before anything is linked into it.

With ``sync_interval_ns`` there is ``put_unsynced`` too, which returns after the link (``unsynced``). Then every other
put, and every delete, first waits until all objects put by ``put_unsynced`` are synced.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from broker.base.shielded import shielded
from broker.storage.objectstore.base import (
    Buffers,
    Listing,
    NotFound,
    ObjectInfo,
    ObjectStore,
    PreconditionFailed,
    Reserve,
    StoreError,
    StoreFull,
    StoreLock,
    StoreRefused,
    Transient,
    can_begin_key,
    check_key,
    size_of,
)
from broker.storage.objectstore.disk import (
    TempDirectory,
    make_directories,
    make_folder,
    read_cached,
    sweep_temp,
    sync_directory,
    sync_files,
    write_all,
)
from broker.storage.objectstore.disk_reserve import DiskReserve
from broker.storage.objectstore.filelock import FileLock
from broker.storage.objectstore.unsynced import UnsyncedFiles
from broker.storage.objectstore.wrapper import Wrapper

__all__ = ["TORN", "FileStore", "directory_of"]

_T = TypeVar("_T")

_TURN_BYTES_MAX = 512 * 1024
"""The most bytes that are read on the loop in one turn of it; further reads of that turn use threads."""
_THREADS_MAX = 16
"""More threads than the puts in flight (4) and a checkpoint's puts need: reads that wait for a disk use the others."""
_PUT_TRIES_MAX = 20
"""The second try works, unless other processes empty and remove the folder meanwhile."""

_FULL = {
    errno.ENOSPC: "the disk is full; free some room, and the broker continues",
    errno.EDQUOT: "the disk quota is used up; raise it, and the broker continues",
}
_REMEDIES = {
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
"""Errors for which an immediate retry cannot help. All others (EIO, EMFILE, ENOMEM, ESTALE, …) are Transient."""


TORN = ".torn"
"""The subfolder for objects that a power cut damaged. No key can have this name."""

_NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR)
"""Errors of a read or a delete that mean "no such object".

ENOTDIR: the name continues an object's name. EISDIR: the name is a folder's.
"""


class FileStore(ObjectStore):
    """A directory as an object store; see the module's docstring."""

    def __init__(self, directory: str | os.PathLike[str], *, read_only: bool = False, nameless: bool = True,
                 sync_interval_ns: int | None = None) -> None:
        """Open the directory, and create it if it is missing, unless ``read_only``.

        Args: nameless=False never uses O_TMPFILE. sync_interval_ns None: every put is synced.
        Raises: StoreRefused, with nats-server's error text for an unusable storage directory.
        """
        self.directory = Path(directory).absolute()
        self.url = f"file://{self.directory}"
        self.put_sync = self._put_synced
        self.try_lock = self._try_lock
        if not read_only:
            self.reserve = self._make_reserve
        self.unsynced = UnsyncedFiles(self.url, sync_interval_ns)
        if sync_interval_ns is not None and not read_only:
            self.put_unsynced = self._put_unsynced
        self._syncing: asyncio.Task[None] | None = None
        self._hidden: list[tuple[str, str]] = []
        self._shown: dict[str, bytes] = {}
        self._read_only = read_only
        self._nameless = nameless and hasattr(os, "O_TMPFILE")
        self._root = os.fspath(self.directory)
        self._temp = TempDirectory(os.path.join(self._root, ".tmp"))
        self._executor = ThreadPoolExecutor(_THREADS_MAX, thread_name_prefix="file-store")
        self._closed = False
        self._inline_bytes = 0
        """The bytes that were read on the loop in this turn of it."""
        self._open_directory()

    async def put(self, key: str, data: Buffers) -> None:
        await self._sync_all()
        await self._in_thread(self._put, key, data)

    async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        if start < 0:
            raise ValueError("a read begins at byte 0 or later")
        if end is not None and end <= start:
            return b""
        if self._shown and (shown := self._shown.get(key)) is not None:
            return shown[start:end]
        path = self._path(key)
        if self._inline_bytes >= _TURN_BYTES_MAX:
            return await self._in_thread(self.get_sync, key, start, end)
        try:
            data = read_cached(path, start, end)
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
        await self._sync_all()
        await self._in_thread(self._replace, key, data)

    async def list(self, prefix: str, after: str = "", limit: int | None = None) -> Listing:
        return await self._in_thread(self.list_sync, prefix, after, limit)

    async def delete(self, key: str) -> None:
        await self._sync_all()
        await self._in_thread(self._delete, key)

    async def _sync_all(self) -> None:
        """Wait until all objects that were put unsynced so far are synced. Concurrent callers share one sync."""
        unsynced = self.unsynced
        until = unsynced.put_count
        while unsynced.synced_count < until:
            if self._syncing is None or self._syncing.done():
                self._syncing = asyncio.get_running_loop().create_task(self._in_thread(unsynced.sync), name="sync")
            await shielded(self._syncing)

    async def close(self) -> None:
        """End the threads after the calls in progress."""
        if not self._closed:
            self._closed = True
            await asyncio.to_thread(self._executor.shutdown)
            await asyncio.to_thread(self.unsynced.abandon)
            self._temp.remove()

    def _make_reserve(self, size: int, burst: Callable[[], int]) -> Reserve:
        return DiskReserve(self._root, size, burst, self._in_thread)

    def lock_path(self, folder: str) -> Path:
        """Return the path of the file that ``try_lock(folder)`` locks."""
        return self.directory / folder / "lock"

    def path_of(self, prefix: str) -> str:
        """Return the path of a folder of keys; "" gives the store's own directory."""
        return f"{self._root}/{prefix}".rstrip("/")

    def start_unsynced(self, folder: str, first_key: str) -> None:
        """Allow ``put_unsynced`` for objects of ``folder`` from now on; objects before ``first_key`` are durable.

        Does nothing without ``sync_interval_ns``. Raises: StoreError.
        """
        try:
            self.unsynced.start(self.path_of(folder), first_key)
        except OSError as e:
            raise self._error(e, folder) from e

    def stop_unsynced(self) -> None:
        """Sync all objects, and sync every later put at once. Raises: StoreError."""
        try:
            self.unsynced.stop()
        except OSError as e:
            raise self._error(e, "") from e

    def is_locked(self, folder: str) -> bool:
        """Return True if some process holds the lock of ``folder``."""
        return FileLock.is_held(os.fspath(self.lock_path(folder)))

    def hide(self, first: str, last: str) -> None:
        """Treat objects with keys from ``first`` to ``last``, both included, as missing: a power cut damaged them."""
        self._hidden.append((first, last))

    def show(self, key: str, data: bytes) -> None:
        """Treat an object as present, with these bytes: the next owner will put it. It is not hidden any more."""
        self._shown[key] = data

    def _hides(self, key: str) -> bool:
        return any(first <= key <= last for first, last in self._hidden)

    def move_to_torn(self, key: str) -> None:
        """Move the object to a subfolder ``.torn``, where people can examine it; durable once the folder is synced.

        Raises: StoreError.
        """
        path = self._path(key)
        folder, name = os.path.split(path)
        try:
            make_directories(os.path.join(folder, TORN))
            os.rename(path, os.path.join(folder, TORN, name))
        except OSError as e:
            raise self._error(e, key) from e

    def sync_folder(self, folder: str, keys: Sequence[str]) -> bool:
        """Sync a folder and objects in it, also those of other processes; False: one may not be on the disk."""
        try:
            fd = os.open(self.path_of(folder), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                sync_files(fd, [self._path(key) for key in keys])
                os.fsync(fd)
            finally:
                os.close(fd)
        except OSError:
            return False
        return True

    # The methods below block: they run in worker threads, or, by put_sync, in the caller's thread.

    def _put_synced(self, key: str, data: Buffers) -> None:
        self.unsynced.sync()
        self._put(key, data)

    def _put_unsynced(self, key: str, data: Buffers, first_key: str) -> None:
        path = self._path(key)
        if not self.unsynced.begin(path, first_key):
            self._put_synced(key, data)
            return
        try:
            self._put(key, data, synced=False)
        finally:
            self.unsynced.end(path, size_of(data))

    def _put(self, key: str, data: Buffers, *, synced: bool = True) -> None:
        path = self._path(key)
        if self._read_only:
            raise StoreRefused(f"{self.url}: opened for reading only, so {key} was not written")
        folder = os.path.dirname(path)
        refused: PermissionError | None = None
        try:
            for _ in range(_PUT_TRIES_MAX):
                try:
                    if not (self._nameless and self._put_nameless(folder, path, data, synced)):
                        self._put_named(path, data, synced)
                    break
                except FileNotFoundError:
                    # The folder does not exist yet, or was removed with its last object between two of our calls.
                    refused = None
                    if not os.path.isdir(self._root):
                        raise
                    make_folder(folder)
                except FileExistsError:
                    try:
                        if synced:
                            sync_directory(folder)
                    except FileNotFoundError:
                        continue  # the object with this key was the last one in its folder, and has been deleted
                    raise
                except PermissionError as e:
                    # ext4 creates no nameless file in a folder that an rmdir in progress has unlinked: EPERM, until
                    # that call ends and the name is gone. (Other calls wait for a lock, and return ENOENT.)
                    if e.errno != errno.EPERM or folder == self._root:
                        raise
                    refused = e
                    make_folder(folder)
            else:
                if refused is not None:
                    raise refused
                raise Transient(f"{self.url}: {key}: other processes remove its folder {folder} all the time")
            # A folder is removed with its last object: if it is gone, our object existed and has been deleted.
            if synced:
                with suppress(FileNotFoundError):
                    sync_directory(folder)
        except OSError as e:
            raise self._error(e, key) from e

    def _put_nameless(self, folder: str, path: str, data: Buffers, synced: bool) -> bool:
        """Put through a nameless file; False if the file system has no nameless files."""
        try:
            fd = os.open(folder, os.O_WRONLY | os.O_TMPFILE | os.O_CLOEXEC, 0o640)
        except OSError as e:
            # Kernels and file systems without O_TMPFILE answer EISDIR.
            if e.errno in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
                self._nameless = False
                return False
            raise
        try:
            write_all(fd, data)
            if synced:
                os.fdatasync(fd)
            try:
                # linkat(AT_SYMLINK_FOLLOW) on /proc needs no privilege; a directory fd makes Python use linkat.
                os.link(f"/proc/self/fd/{fd}", path, src_dir_fd=fd, follow_symlinks=True)
            except FileNotFoundError:
                if not os.path.isdir("/proc/self/fd"):  # otherwise the folder is gone
                    self._nameless = False
                    return False
                raise
        finally:
            os.close(fd)
        return True

    def replace_sync(self, key: str, data: Buffers) -> None:
        """Do the same as ``replace``, blocking, for worker threads; same errors."""
        self.unsynced.sync()
        self._replace(key, data)

    def _replace(self, key: str, data: Buffers) -> None:
        path = self._path(key)
        if self._read_only:
            raise StoreRefused(f"{self.url}: opened for reading only, so {key} was not written")
        try:
            make_folder(os.path.dirname(path))
            temp = self._temp.new_path()
            fd = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)
            try:
                write_all(fd, data)
                os.fdatasync(fd)
            finally:
                os.close(fd)
            os.replace(temp, path)
            sync_directory(os.path.dirname(path))
        except OSError as e:
            raise self._error(e, key) from e

    def _put_named(self, path: str, data: Buffers, synced: bool) -> None:
        temp = self._temp.new_path()
        fd = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)
        try:
            try:
                write_all(fd, data)
                if synced:
                    os.fdatasync(fd)
            finally:
                os.close(fd)
            os.link(temp, path)
        finally:
            os.unlink(temp)

    def get_sync(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        """Do the same as ``get``, blocking, for worker threads; same errors."""
        if self._shown and (shown := self._shown.get(key)) is not None:
            return shown[start:end]
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
        """Do the same as ``list``, blocking, for worker threads; same errors."""
        found: Listing = []
        folder = prefix.rpartition("/")[0]
        if not can_begin_key(prefix):
            return found
        try:
            for key, path in _walk(os.path.join(self._root, folder), f"{folder}/" if folder else "", prefix, after):
                if limit is not None and len(found) >= limit:
                    break
                if key in self._shown or (self._hidden and self._hides(key)):
                    continue
                try:
                    found.append(ObjectInfo(key, os.stat(path).st_size))
                except FileNotFoundError:
                    continue  # it was deleted meanwhile
        except OSError as e:
            raise self._error(e, prefix) from e
        if not found and not os.path.isdir(self._root):
            raise self._error(FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)), prefix)
        if self._shown:
            found += [ObjectInfo(key, len(data)) for key, data in self._shown.items()
                      if key.startswith(prefix) and key > after]
            found = sorted(found)[:limit]
        return found

    def _delete(self, key: str) -> None:
        self.unsynced.sync()
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
        # The folder is not synced: an object that reappears after a power cut is released and deleted again.
        # An rmdir that fails (mostly because of other objects) does not matter: the object itself is deleted.
        with suppress(OSError):
            while (path := os.path.dirname(path)) != self._root:
                os.rmdir(path)

    def _try_lock(self, folder: str) -> StoreLock | None:
        path = os.fspath(self.lock_path(folder))
        try:
            make_directories(os.path.dirname(path))
            return FileLock.try_acquire(path)
        except OSError as e:
            remedy = (_FULL | _REMEDIES).get(e.errno or 0, "a directory store needs a file system with flock")
            raise StoreRefused(f"{self.url}: cannot lock {path}: {os.strerror(e.errno or 0)}: {remedy}") from e

    def _path(self, key: str) -> str:
        if self._closed:
            raise Transient(f"{self.url}: the store is closed")
        if self._hidden and self._hides(key):
            raise NotFound(f"{self.url}: {key} was not synced, and a power cut damaged it")
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
        if (remedy := _FULL.get(e.errno or 0)) is not None:
            return StoreFull(f"{where}: {os.strerror(e.errno or 0)}: {remedy}")
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
            make_directories(root)
        except OSError as e:
            raise StoreRefused(f'could not create storage directory "{root}": {os.strerror(e.errno or 0)}; '
                               f"create it for the server's user, or name another") from e
        sweep_temp(self._temp.parent)


def directory_of(store: ObjectStore) -> FileStore | None:
    """Return the directory store that ``store`` is or wraps; None if it is no directory store."""
    while isinstance(store, Wrapper):
        store = store.inner
    return store if isinstance(store, FileStore) else None


def _walk(folder: str, base: str, prefix: str, after: str) -> Iterator[tuple[str, str]]:
    """Yield keys and paths of the objects below ``folder`` in key order; ``base`` is the folder's part of the key.

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
