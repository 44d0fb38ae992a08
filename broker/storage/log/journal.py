"""The journal of a log on a directory: a file to which commits are appended before their segments are stored.

    areas     0 |header record record record ....      | 1 |header record record                  |
                 until the area is full, then the other      freed once all of its segments are persisted

A commit is safe once its record is written (``sync`` False: kill -9 loses nothing, a power cut may lose it) or flushed
(``sync`` True). One thread makes the file, makes it larger, and writes and flushes records; one flush serves all
commits that wait for it. Without ``sync``, records are written on the loop, into pages that the file has already.

Nothing ever waits for room: ``append`` returns False if there is none, or if the file does not exist yet, and the
commit is stored as a segment.

Owns the file, its areas and the flushes. Does not own the contents of commits (``journaling``), their bytes
(``format.journal``), nor the replay of the file by the next owner (``storage.journal_replay``).
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, NamedTuple, TypeVar

from broker.storage.format.journal import (
    AREA_BYTES_MAX,
    AREA_HEADER_BYTES,
    RECORD_HEADER_BYTES,
    AreaHeader,
    EncodedCommit,
    encode_record,
)
from broker.storage.objectstore.disk import sync_directory
from broker.storage.objectstore.unsynced import SyncFailed

__all__ = ["Journal", "JournalPlace", "JournalThread"]

_log = logging.getLogger(__name__)

T = TypeVar("T")

_FIRST_BYTES = 1 << 20
"""The size of an area at first. It doubles whenever both areas are in use, up to ``AREA_BYTES_MAX``."""

_PIECE = 1 << 20

_BUFFERS_MAX = 1024
"""The most buffers of one write (IOV_MAX)."""

_POLL_SECONDS = 0.01

_FREE_SHARE = 16
"""The file takes at most the free room of the disk divided by this: on a small disk, messages need the room more."""


class JournalThread:
    """Runs blocking calls one after the other, in a thread that the first call starts."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[tuple[Callable[[], Any], Callable[[Any], object]] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def run(self, call: Callable[[], T], then: Callable[[T], object]) -> None:
        """Make the call, which raises nothing, after all earlier ones, and pass its result to ``then`` on the loop."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, args=(asyncio.get_running_loop(),), name="journal",
                                            daemon=True)
            self._thread.start()
        self._calls.put((call, then))

    async def end(self) -> None:
        """Return once all calls were made."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._calls.put(None)
            await asyncio.to_thread(thread.join)

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        while (queued := self._calls.get()) is not None:
            call, then = queued
            result = call()
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(then, result)


class JournalPlace(NamedTuple):
    """The file in which a log keeps its journal, and the way in which it is written.

    Attributes: path of the file. sync: flush each commit. prepare: called in the thread before the file is made; it
        raises OSError or StoreError if there can be no journal. thread makes the blocking calls; None: one of its own.
    """

    path: str
    sync: bool
    prepare: Callable[[], object] = lambda: None
    thread: JournalThread | None = None


class _Write(NamedTuple):
    data: Sequence[bytes]
    offset: int
    done: Callable[[], object]


class _Area:
    """An area of the file: its number, its size, and the last segment that has a record in it."""

    __slots__ = ("last_segment", "number", "size")

    def __init__(self, number: int) -> None:
        self.number = number
        self.size = _FIRST_BYTES
        self.last_segment = -1


class Journal:
    """The journal of one epoch's log.

    Attributes: ``ready`` is True while commits may be appended; ``sync``: each commit is flushed; ``flushing`` is True
        during a flush.
    """

    def __init__(self, place: JournalPlace, epoch: int, nonce: bytes, persisted: int,
                 failed: Callable[[BaseException], object], flushed: Callable[[], object]) -> None:
        """Args: ``persisted``: the last number of the log. ``failed`` is called if a flush fails: then nothing more may
        be acknowledged. ``flushed`` is called after each other flush."""
        self.ready = False
        self._place = place
        self.epoch = epoch
        self._nonce = nonce
        self._failed = failed
        self._flushed = flushed
        self._persisted = persisted
        self.sync = place.sync
        self._thread = place.thread or JournalThread()
        self._fd = -1
        self._started = False
        self._closed = False
        self._growing = False
        self._areas = (_Area(0), _Area(1))
        self._area = self._areas[0]
        self._serial = -1
        self._seed = 0
        self._at = 0
        self._count = 0
        self._begin: bytes = b""
        """The header of the current area, until its first record is written: both are written at once."""
        self._waiting: list[_Write] = []
        self.flushing = False

    def start(self) -> None:
        """Begin to make the file, unless that was tried before; ``ready`` is set later."""
        if not self._started:
            self._started = True
            self._thread.run(self._make_file, self._made)

    def append(self, segment: int, commit: EncodedCommit, done: Callable[[], object]) -> bool:
        """Append an encoded commit of ``segment``.

        With ``sync``, ``done`` is called later, once it is safe. Otherwise it is safe when this returns.

        Returns: False if there is no room for it; then ``done`` is not called.
        """
        size = RECORD_HEADER_BYTES + commit.size
        if not self.ready or not self._make_room(size):
            return False
        record = encode_record(commit, self._count, self._seed)
        if self._begin:
            record.insert(0, self._begin)
            size += len(self._begin)
        offset = self._area.number * AREA_BYTES_MAX + self._at
        if self.sync:
            self._waiting.append(_Write(record, offset, done))
            if not self.flushing:
                self._flush()
        else:
            try:
                _write(self._fd, record, offset)
            except OSError as error:
                # What was written of the record is not valid, and nothing may follow it.
                self._give_up(error)
                return False
        self._begin = b""
        self._at += size
        self._count += 1
        self._area.last_segment = segment
        return True

    def persisted(self, number: int) -> None:
        """Free the areas whose segments are all persisted: ``number`` is the last one, with all before it."""
        self._persisted = number

    async def wipe(self, persisted: Callable[[], Awaitable[object]]) -> None:
        """Overwrite all records with zeros: erased messages may be in the journal long after they are in segments.

        Commits are stored as segments meanwhile. Args: ``persisted`` returns once all that was sequenced is persisted.
        """
        if self._fd < 0 or self._closed:
            return
        ready, self.ready = self.ready, False
        await persisted()
        while self.flushing and not self._closed:  # noqa: ASYNC110 (this happens once for each erasure)
            await asyncio.sleep(_POLL_SECONDS)
        if self._closed:
            return
        wiped: asyncio.Future[OSError | None] = asyncio.get_running_loop().create_future()
        self._thread.run(self._overwrite, lambda error: None if wiped.done() else wiped.set_result(error))
        error = await wiped
        self._at = self._area.size  # the next commit begins the other area
        self._begin = b""
        if error is not None:
            self._give_up(error)
        else:
            self.ready = ready and not self._closed

    async def close(self, *, remove: bool) -> None:
        """End the thread and close the file; ``remove`` it if all of its segments are persisted."""
        self.ready = False
        self._closed = True
        await self._thread.end()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            if remove:
                with suppress(OSError):
                    os.unlink(self._place.path)

    # Areas.

    def _make_room(self, size: int) -> bool:
        """Return whether the current area, or the next one, has room for ``size`` bytes."""
        area = self._area
        if self._serial >= 0 and self._at + size <= area.size:
            return True
        other = self._areas[(self._serial + 1) % 2]
        if other.last_segment > self._persisted or AREA_HEADER_BYTES + size > other.size:
            self._grow()
            return False
        self._serial += 1
        self._area = other
        header = AreaHeader(self.epoch, self._nonce, self._serial)
        self._begin, self._seed, self._at, self._count = header.encode(), header.seed, 0, 0
        return True

    def _grow(self) -> None:
        """Begin to make both areas larger."""
        size = min(2 * self._area.size, AREA_BYTES_MAX)
        if not self._growing and size > self._area.size:
            self._growing = True
            self._thread.run(lambda: self._grow_file(size), self._grown)

    def _grown(self, size: int) -> None:
        self._growing = size == self._area.size  # True: it cannot grow, so do not try again
        for area in self._areas:
            area.size = size

    def _made(self, made: bool) -> None:
        self.ready = made and not self._closed

    def _give_up(self, error: OSError) -> None:
        self.ready = False
        _log.warning("the journal %s cannot be written: %s; each commit is stored as a segment from now on",
                     self._place.path, error.strerror or error)

    # Flushes, on the loop.

    def _flush(self) -> None:
        self.flushing = True
        writes, self._waiting = self._waiting, []
        self._thread.run(lambda: self._write_and_sync(writes), lambda error: self._flush_ended(writes, error))

    def _flush_ended(self, writes: list[_Write], error: OSError | None) -> None:
        if self._closed:
            return
        if error is not None:
            self.ready = False
            self._failed(SyncFailed(
                f"{self._place.path}: {error.strerror or error}: the journal may not be on the disk; nothing more is "
                f"acknowledged. Check the disk. The next start stores what the journal has"))
            return
        self.flushing = False
        if self._waiting:
            self._flush()
        for write in writes:
            write.done()
        self._flushed()

    # In the thread.

    def _write_and_sync(self, writes: list[_Write]) -> OSError | None:
        try:
            for write in writes:
                _write(self._fd, write.data, write.offset)
            os.fdatasync(self._fd)
        except OSError as error:
            return error
        return None

    def _overwrite(self) -> OSError | None:
        try:
            for area in self._areas:
                start = area.number * AREA_BYTES_MAX
                for at in range(start, start + area.size, _PIECE):
                    _write(self._fd, [bytes(min(_PIECE, start + area.size - at))], at)
            os.fdatasync(self._fd)
        except OSError as error:
            return error
        return None

    def _make_file(self) -> bool:
        path = self._place.path
        try:
            self._place.prepare()
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o640)
            self._expect_room(2 * _FIRST_BYTES)
            for area in self._areas:
                self._allocate(area.number * AREA_BYTES_MAX, _FIRST_BYTES)
            if self.sync:
                os.fsync(self._fd)
                sync_directory(os.path.dirname(path))
        except Exception as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else error
            _log.info("there is no journal %s: %s; each commit is stored as a segment", path, why)
            if self._fd >= 0:
                with suppress(OSError):
                    os.unlink(path)
            return False
        return True

    def _grow_file(self, size: int) -> int:
        """Make both areas ``size`` bytes large. Returns: their size, which stays the same if the disk is full."""
        before = self._area.size
        try:
            self._expect_room(2 * (size - before))
            for area in self._areas:
                self._allocate(area.number * AREA_BYTES_MAX + before, size - before)
            if self.sync:
                os.fsync(self._fd)
        except OSError as error:
            _log.info("the journal %s stays as large as it is: %s", self._place.path, error.strerror or error)
            return before
        return size

    def _expect_room(self, size: int) -> None:
        """Raise OSError unless the disk has much more room than ``size`` bytes."""
        disk = os.fstatvfs(self._fd)
        if _FREE_SHARE * size > disk.f_bavail * disk.f_frsize:
            raise OSError(errno.ENOSPC, "the disk has little room")

    def _allocate(self, start: int, size: int) -> None:
        """Assign blocks of the disk to a part of the file.

        With ``sync``, zeros are written: a flush of a block that was only reserved would also have to write the file's
        list of blocks.
        """
        if not self.sync:
            try:
                os.posix_fallocate(self._fd, start, size)
                return
            except (AttributeError, OSError) as error:
                if isinstance(error, OSError) and error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                    raise
        for at in range(start, start + size, _PIECE):
            _write(self._fd, [bytes(min(_PIECE, start + size - at))], at)


def _write(fd: int, data: Sequence[bytes], offset: int) -> None:
    """Write all of ``data``. Raises: OSError."""
    if len(data) > _BUFFERS_MAX:
        data = [b"".join(data)]
    written = os.pwrite(fd, data[0], offset) if len(data) == 1 else os.pwritev(fd, data, offset)
    if written != sum(map(len, data)):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
