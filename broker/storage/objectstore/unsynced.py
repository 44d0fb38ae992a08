"""Objects of a directory that were put without being synced, and the file that says that there are some.

    start    from now on the objects of one folder may be put unsynced; the folder's ".unsynced" is written, and synced
    put      the object is complete and has its name, in the system's memory: kill -9 takes nothing
    sync     all of them, every ``interval``; earlier past a bound; and before each synced put and each delete
    stop     all synced, and the file removed

So what a power cut takes is always the newest: nothing durable refers to an object that is not, and nothing is deleted before
what replaced it is durable. The file (a ``Mark``) outlives the power cut and says where to look for what is missing or torn;
who may set that aside is not decided here (``storage.unsynced_tail``).

After a sync that failed, nobody knows what is on the disk: the system may have dropped what it could not write, and a second
sync would succeed. So nothing is put or deleted any more. The mark says so, and the next start writes again what was not
synced. Compare "fsyncgate" and PostgreSQL, which ends too.
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
"""The file's name, which no key can have."""

_FILES_MAX = 16_384
_BYTES_MAX = 256 << 20
"""Past either all is synced before the interval is over; at twice as much, puts wait for that."""
_MARK_BYTES = 512
"""One sector: it is written over in one piece."""
_WORD = "jetblock-unsynced-1"


class SyncFailed(StoreError):
    """What was put unsynced may not be on the disk, and nothing may build on it."""


class Mark(NamedTuple):
    """first_key: objects of the folder from this key on may be missing or torn after a power cut; "": any may.
    place: the running system and the folder (``place_of``): there nothing was lost. synced_at_ns: when all before
    ``first_key`` had been synced, by the wall clock. failed: a sync failed."""

    first_key: str
    place: str
    synced_at_ns: int
    failed: bool = False

    def pack(self) -> bytes:
        """One line of text, padded."""
        line = f"{_WORD} {'failed' if self.failed else 'open'} {self.synced_at_ns} {self.place or '-'} {self.first_key}".encode()
        return (line + b" %08x" % crc32(line)).ljust(_MARK_BYTES - 1) + b"\n"

    @classmethod
    def unpack(cls, data: bytes) -> Mark:
        """A mark that cannot be read, since it was torn itself, says that any object may be."""
        line, _, crc = data.strip().rpartition(b" ")
        words = line.decode("utf-8", "replace").split(" ")
        if len(words) != 5 or words[0] != _WORD or crc != b"%08x" % crc32(line):
            return cls("", "", 0)
        return cls(words[4], "" if words[3] == "-" else words[3], int(words[2]), words[1] == "failed")


def place_of(folder: str) -> str:
    """The running system and the folder: as long as both are the same, what was written is still there, if only in memory.
    "" where the system has no name for this boot."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
        there = os.stat(folder)
    except OSError:
        return ""
    return f"{boot}/{there.st_dev}/{there.st_ino}"


def read_mark(folder: str) -> Mark | None:
    """The folder's mark; None: all of its objects were synced. Raises: OSError."""
    try:
        with open(os.path.join(folder, MARK), "rb") as file:
            return Mark.unpack(file.read(_MARK_BYTES))
    except (FileNotFoundError, NotADirectoryError):
        return None


def remove_mark(folder: str) -> None:
    """All objects of the folder are durable. Raises: OSError."""
    with suppress(FileNotFoundError):
        os.unlink(os.path.join(folder, MARK))
        sync_directory(folder)


def mark_failed(folder: str) -> None:
    """Note in the folder's mark, if there is one, that a sync failed: another that succeeds then proves nothing.

    Raises: OSError.
    """
    mark = read_mark(folder)
    if mark is None:
        return
    fd = os.open(os.path.join(folder, MARK), os.O_WRONLY | os.O_CLOEXEC)
    try:
        _write(fd, mark._replace(failed=True))
        # As long as the system runs it reads what it could not write; later, what is on the disk is checked anyway.
        with suppress(OSError):
            os.fdatasync(fd)
    finally:
        os.close(fd)


def _write(fd: int, mark: Mark) -> None:
    data = mark.pack()
    if os.pwrite(fd, data, 0) != len(data):
        raise OSError(errno.EIO, os.strerror(errno.EIO))


class UnsyncedFiles:
    """What one process has put and not synced yet. Thread-safe; between ``start`` and ``stop`` the folder must be ours alone.

    ``interval_ns`` None: nothing is put unsynced.
    """

    def __init__(self, url: str, interval_ns: int | None) -> None:
        self.interval_ns = interval_ns
        self.on_failure: Callable[[SyncFailed], object] = lambda _: None
        """Called once, in whichever thread the sync failed."""
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
        """Guards what follows."""
        self._in_progress = 0
        self._pending: list[str] = []
        self._bytes = 0
        """Of these, and of those that are being synced."""
        self.put_count = 0
        """Puts that ended, and below how many of them are durable."""
        self.synced_count = 0
        self._due = 0.0
        self._thread: threading.Thread | None = None

    # Called by the owner of the folder, in a thread that may wait.

    def start(self, folder: str, first_key: str) -> None:
        """Let objects of ``folder`` be put unsynced; all before ``first_key`` are durable.

        Without an interval this does nothing. Raises: OSError.
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
        """End that: wait for puts in progress, sync, remove the mark. Raises: SyncFailed; OSError."""
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
            self._close()  # after a sync that another thread may still be at the end of

    def abandon(self) -> None:
        """End without a sync, as kill -9 does: the mark stays. Nothing if ``stop`` was called. No put may be in progress."""
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
        """A put begins; False: it must be synced, since ``start`` was not called for its folder. Call ``end`` after it.

        Args: first_key: all objects of the folder before this key had been put when this put began.
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
        """A put that began has ended, whether or not it made the file."""
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
        """Raises: SyncFailed once a sync has failed."""
        if self.failure is not None:
            raise self.failure

    def sync(self) -> None:
        """Return once all that had been put when this was called is durable. Raises: SyncFailed."""
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
            # Not synced itself: an older mark makes a start look at more than it must.
            with suppress(OSError):
                self._write_mark(mark)

    def _fail(self, error: OSError) -> None:
        failure = SyncFailed(
            f"{self._url}: {error.strerror or error}: what was put since the last sync may not be on the disk; nothing more is "
            f"acknowledged. Look after the disk. The next start checks what was not synced and writes it again")
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
