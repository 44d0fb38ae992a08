"""Objects of a directory that were put without being synced, and the mark file that records that there are some.

    start    the folder's file ".unsynced" is written and synced; from then on its objects may be put unsynced
    put      the object is complete and has its name, but only in the system's memory: kill -9 loses nothing
    sync     all objects are synced: every ``interval``; earlier past a bound; before each synced put and each delete
    stop     all objects are synced, and the file is removed

So a power cut loses only the newest objects: nothing durable refers to an object that is not durable, and nothing is
deleted before its replacement is durable. The file (a ``Mark``) survives the power cut and names the first object that
may be missing or torn; ``storage.unsynced_tail`` decides what becomes of those objects.

After a sync that failed, nobody knows what is on the disk: the system may have dropped what it could not write, and a
second sync would succeed. So nothing is put or deleted any more. The mark records the failure, and the next start
rewrites the objects that were not synced. Compare "fsyncgate" and PostgreSQL, which ends, too.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple
from zlib import crc32

from broker.storage.objectstore.base import StoreError
from broker.storage.objectstore.disk import sync_directory, sync_files

__all__ = ["MARK", "Mark", "SyncFailed", "UnsyncedFiles", "mark_failed", "place_of", "read_mark", "remove_mark"]

MARK = ".unsynced"
"""The name of the mark file, which no key can have."""

_FILES_MAX = 16_384
_BYTES_MAX = 256 << 20
"""Past either bound all objects are synced before the interval is over; at twice the bound, puts wait for that sync."""
_MARK_BYTES = 512
"""The mark's size: one sector, so that it is overwritten in one piece."""
_WORD = "jetblock-unsynced-1"


class SyncFailed(StoreError):
    """A sync failed: objects that were put unsynced may not be on the disk, and nothing may rely on them."""


class Mark(NamedTuple):
    """The content of a folder's mark file."""

    first_key: str
    """The first key whose object may be missing or torn after a power cut; "": any object may be."""
    place: str
    """The running system and the folder (``place_of``). As long as both are the same, no object was lost."""
    synced_at_ns: int
    """The wall clock when all objects before ``first_key`` had been synced."""
    failed: bool = False
    """True if a sync failed."""

    def pack(self) -> bytes:
        """Return the mark as one padded line of text."""
        state = "failed" if self.failed else "open"
        line = f"{_WORD} {state} {self.synced_at_ns} {self.place or '-'} {self.first_key}".encode()
        return (line + b" %08x" % crc32(line)).ljust(_MARK_BYTES - 1) + b"\n"

    @classmethod
    def unpack(cls, data: bytes) -> Mark:
        """Read a mark. A torn mark cannot be read, and gives one by which any object may be missing."""
        line, _, crc = data.strip().rpartition(b" ")
        words = line.decode("utf-8", "replace").split(" ")
        if len(words) != 5 or words[0] != _WORD or crc != b"%08x" % crc32(line):
            return cls("", "", 0)
        return cls(words[4], "" if words[3] == "-" else words[3], int(words[2]), words[1] == "failed")


def place_of(folder: str) -> str:
    """Return the identity of the running system and of the folder.

    While both are the same, everything written is still there, even if only in memory. "" if the system has no boot id.
    """
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
        found = os.stat(folder)
    except OSError:
        return ""
    return f"{boot}/{found.st_dev}/{found.st_ino}"


def read_mark(folder: str) -> Mark | None:
    """Return the folder's mark; None if all of its objects were synced. Raises: OSError."""
    try:
        with open(os.path.join(folder, MARK), "rb") as file:
            return Mark.unpack(file.read(_MARK_BYTES))
    except (FileNotFoundError, NotADirectoryError):
        return None


def remove_mark(folder: str) -> None:
    """Remove the folder's mark, since all of its objects are durable. Raises: OSError."""
    with suppress(FileNotFoundError):
        os.unlink(os.path.join(folder, MARK))
        sync_directory(folder)


def mark_failed(folder: str) -> None:
    """Record in the folder's mark, if there is one, that a sync failed. After that, a later success proves nothing.

    Raises: OSError.
    """
    mark = read_mark(folder)
    if mark is None:
        return
    fd = os.open(os.path.join(folder, MARK), os.O_WRONLY | os.O_CLOEXEC)
    try:
        _write(fd, mark._replace(failed=True))
        # While the system runs, it reads the mark from memory; after a restart the objects on the disk are checked
        # anyway.
        with suppress(OSError):
            os.fdatasync(fd)
    finally:
        os.close(fd)


def _write(fd: int, mark: Mark) -> None:
    data = mark.pack()
    if os.pwrite(fd, data, 0) != len(data):
        raise OSError(errno.EIO, os.strerror(errno.EIO))


class UnsyncedFiles:
    """The files that one process has put and not synced yet. Thread-safe.

    Between ``start`` and ``stop`` no other process may write to the folder. ``interval_ns`` None: nothing is put
    unsynced.
    """

    def __init__(self, url: str, interval_ns: int | None) -> None:
        self.interval_ns = interval_ns
        self.on_failure: Callable[[SyncFailed], object] = lambda _: None
        """Called once, in the thread in which the sync failed."""
        self.failure: SyncFailed | None = None
        self.syncs = 0
        self._url = url
        self._folder: str | None = None
        self._fd = -1
        self._mark_fd = -1
        self._first_key = ""
        self._place = ""
        self._marked = ("", 0)
        self._one_sync = threading.Lock()
        self._changed = threading.Condition()
        """Guards the attributes below."""
        self._in_progress = 0
        self._pending: list[str] = []
        """Paths of files that were put since the last sync began."""
        self._bytes = 0
        """The bytes of the pending files, and of files that are being synced."""
        self.put_count = 0
        """The number of puts that have ended."""
        self.synced_count = 0
        """The number of puts that are durable: the first ones of ``put_count``."""
        self._due = 0.0
        self._thread: threading.Thread | None = None

    # Called by the owner of the folder, in a worker thread.

    def start(self, folder: str, first_key: str) -> None:
        """Allow unsynced puts in ``folder``; all objects before ``first_key`` are durable.

        Does nothing without an interval. Raises: OSError.
        """
        if self.interval_ns is None or self._folder is not None:
            return
        os.makedirs(folder, 0o750, exist_ok=True)
        self._place, self._first_key = place_of(folder), first_key
        try:
            self._fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            self._mark_fd = os.open(os.path.join(folder, MARK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
            self._write_mark((first_key, time.time_ns()))
            os.fsync(self._mark_fd)
            os.fsync(self._fd)
        except OSError:
            self._close()
            raise
        self._folder = folder
        self._thread = threading.Thread(target=self._run, name="sync", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Allow no more unsynced puts: wait for puts in progress, sync, remove the mark.

        Raises: SyncFailed; OSError.
        """
        folder, thread = self._folder, self._thread
        if folder is None:
            return
        with self._changed:
            self._folder = self._thread = None
            self._changed.notify_all()
            while self._in_progress:
                self._changed.wait()
        if thread is not None:
            thread.join()
        try:
            self.sync()
            remove_mark(folder)
        finally:
            self._close()  # this waits for a sync that another thread may be ending

    def abandon(self) -> None:
        """End without a sync, as kill -9 does: the mark stays. Does nothing after ``stop``. No put may be running."""
        with self._changed:
            thread, self._folder, self._thread = self._thread, None, None
            self._changed.notify_all()
        if thread is not None:
            thread.join()
            self._close()

    def _close(self) -> None:
        with self._one_sync:
            for fd in (self._mark_fd, self._fd):
                if fd >= 0:
                    os.close(fd)
            self._fd = self._mark_fd = -1

    # Called by the store, in its threads.

    def begin(self, path: str, first_key: str) -> bool:
        """Register a put that begins; call ``end`` after it. Waits while too much is not synced.

        Args: first_key: all objects of the folder before this key had been put when this put began.
        Returns: False if the put must be synced, since ``start`` was not called for its folder; then ``end`` is not
            called.
        Raises: SyncFailed.
        """
        with self._changed:
            while self.failure is None and (self._bytes >= 2 * _BYTES_MAX or len(self._pending) >= 2 * _FILES_MAX):
                self._changed.wait()
            self.check()
            if self._folder is None or os.path.dirname(path) != self._folder:
                return False
            self._first_key = max(self._first_key, first_key)
            self._in_progress += 1
            return True

    def end(self, path: str, size: int) -> None:
        """Register the end of a put, with or without success."""
        with self._changed:
            self._in_progress -= 1
            self.put_count += 1
            self._bytes += size
            self._pending.append(path)
            count = len(self._pending)
            if count == 1:
                self._due = time.monotonic() + (self.interval_ns or 0) / 1e9
            if count == 1 or count >= _FILES_MAX or self._bytes >= _BYTES_MAX or self._folder is None:
                self._changed.notify_all()

    def check(self) -> None:
        """Raise SyncFailed if a sync has failed."""
        if self.failure is not None:
            raise self.failure

    def sync(self) -> None:
        """Return once all files that had been put before this call are durable. Raises: SyncFailed."""
        self.check()
        until = self.put_count
        if self.synced_count >= until:
            return
        with self._one_sync:
            self.check()
            if self.synced_count >= until:
                return
            with self._changed:
                paths, self._pending = self._pending, []
                until, held, mark = self.put_count, self._bytes, (self._first_key, time.time_ns())
            try:
                sync_files(self._fd, paths)
            except OSError as error:
                self._fail(error)
            with self._changed:
                self.synced_count = until
                self._bytes -= held
                self._changed.notify_all()
            self.syncs += 1
            # The mark itself is not synced: with an older mark, a start only checks more objects than it must.
            with suppress(OSError):
                self._write_mark(mark)

    def _fail(self, error: OSError) -> None:
        failure = SyncFailed(
            f"{self._url}: {error.strerror or error}: what was put since the last sync may not be on the disk; nothing "
            f"more is acknowledged. Check the disk. The next start checks what was not synced and writes it again")
        with self._changed:
            self.failure = failure
            self._changed.notify_all()
        with suppress(OSError):
            self._write_mark(self._marked, failed=True)
            os.fdatasync(self._mark_fd)
        self.on_failure(failure)
        raise failure from error

    def _write_mark(self, mark: tuple[str, int], *, failed: bool = False) -> None:
        _write(self._mark_fd, Mark(mark[0], self._place, mark[1], failed))
        self._marked = mark

    def _run(self) -> None:
        me = threading.current_thread()
        while True:
            with self._changed:
                while self._thread is me and not self._is_due():
                    self._changed.wait(min(max(0.0, self._due - time.monotonic()), threading.TIMEOUT_MAX)
                                       if self._pending else None)
                if self._thread is not me:
                    return
            try:
                self.sync()
            except SyncFailed:
                return

    def _is_due(self) -> bool:
        return bool(self._pending) and (len(self._pending) >= _FILES_MAX or self._bytes >= _BYTES_MAX
                                        or time.monotonic() >= self._due)
