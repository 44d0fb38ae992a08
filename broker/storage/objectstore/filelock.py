"""A lock on a file or directory (flock), released when its process ends, however it ends."""

from __future__ import annotations

import fcntl
import os

__all__ = ["FileLock"]


class FileLock:
    """An exclusive flock that this process holds."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    @classmethod
    def try_acquire(cls, path: str) -> FileLock | None:
        """Lock the directory or file ``path``, without waiting; a missing file is created.

        Returns: None while another process holds the lock.

        Raises: OSError if the file system has no flock, or the path cannot be opened.
        """
        is_directory = os.path.isdir(path)
        fd = os.open(path, (os.O_RDONLY if is_directory else os.O_RDWR | os.O_CREAT) | os.O_CLOEXEC, 0o640)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # If the path was removed between our open and our lock, we locked a file that no other process will find.
            there, held = os.stat(path), os.fstat(fd)
            if (there.st_dev, there.st_ino) == (held.st_dev, held.st_ino):
                return cls(fd)
        except (BlockingIOError, FileNotFoundError):
            pass
        except OSError:
            os.close(fd)
            raise
        os.close(fd)
        return None

    @staticmethod
    def is_held(path: str) -> bool:
        """Return True if some process holds the lock of a file; False, too, if the file cannot be opened or locked."""
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        finally:
            os.close(fd)
        return False

    def release(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
