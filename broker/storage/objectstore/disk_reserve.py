"""The reserve of a directory: a file that takes room on the disk, and is shortened to make room on a full disk.

The file is shortened by the size of each put, and never removed at once: other programs that fill the disk would
take all of its room. The file gets its full length again once the disk has room for it, for as much beside it, and for
a burst of messages.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final

__all__ = ["RESERVE", "DiskReserve"]

RESERVE: Final = ".reserve"
"""The file's name below the directory. No key can have this name."""

_DISK_SHARE: Final = 16
"""The reserve is at most the disk's size divided by this."""

_SLACK: Final = 64 * 1024
"""The room that a put needs beside its bytes, for its folder and for the file system's own tables."""

_PIECE: Final = 1 << 20


class DiskReserve:
    """The reserve of a directory; its contract is ``base.Reserve``."""

    def __init__(self, directory: str, size: int, burst: Callable[[], int],
                 in_thread: Callable[..., Coroutine[Any, Any, bool]]) -> None:
        """Make a reserve of ``size`` bytes; 0: ``fill`` removes an existing file.

        Args: ``burst``: see ``ObjectStore.reserve``. ``in_thread(call, *args)`` runs a blocking call in a thread.
        """
        self._directory = directory
        self._path = os.path.join(directory, RESERVE)
        self._burst = burst
        self._in_thread = in_thread
        self._lock = threading.Lock()
        disk = os.statvfs(directory)
        self.size = min(size, disk.f_blocks * disk.f_frsize // _DISK_SHARE)
        self._held = self._length()

    async def fill(self) -> bool:
        return await self._in_thread(self._fill)

    async def release_soon(self, size: int, leave: float) -> bool:
        return await self._in_thread(self.release, size, leave)

    def release(self, size: int, leave: float) -> bool:
        with self._lock:
            kept = max(int(self.size * leave), self._held - size - _SLACK, 0)
            if self._held <= kept:
                return False
            try:
                os.truncate(self._path, kept)
            except OSError:
                return False
            self._held = kept
            return True

    def bytes_free(self) -> int | None:
        try:
            disk = os.statvfs(self._directory)
        except OSError:
            return None
        return disk.f_bavail * disk.f_frsize + self._held

    def is_low(self, bytes_free: int) -> bool:
        return bool(self.size) and bytes_free < 2 * self.size + self._burst()

    def _length(self) -> int:
        try:
            return os.stat(self._path).st_size
        except OSError:
            return 0

    def _fill(self) -> bool:
        with self._lock:
            free = self.bytes_free()
            if self._held != self.size and not (free is not None and self.is_low(free)):
                with suppress(OSError):
                    self._resize_file()
            free = self.bytes_free()
            return self._held >= self.size and not (free is not None and self.is_low(free))

    def _resize_file(self) -> None:
        """Give the file its full length; after an error it has its former length. Raises: OSError."""
        if not self.size:
            os.unlink(self._path)
            self._held = 0
            return
        fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            if self.size < self._held:
                os.ftruncate(fd, self.size)
            else:
                try:
                    _allocate(fd, self._held, self.size)
                except OSError:
                    os.ftruncate(fd, self._held)
                    raise
            self._held = self.size
        finally:
            os.close(fd)


def _allocate(fd: int, start: int, end: int) -> None:
    """Make the file system assign blocks to a part of a file. Raises: OSError."""
    try:
        os.posix_fallocate(fd, start, end - start)
    except (AttributeError, OSError) as error:
        # macOS does not have the call; musl does not emulate it where the file system lacks it.
        if isinstance(error, OSError) and error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
            raise
        for at in range(start, end, _PIECE):
            os.pwrite(fd, bytes(min(_PIECE, end - at)), at)
