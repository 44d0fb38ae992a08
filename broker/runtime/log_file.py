"""A log file that is renamed when it is full: ``jetblock.log.2026.01.31.23.59.59.123456789`` beside ``jetblock.log``.

Source: nats-server, logger/log.go (fileLogger).
"""

from __future__ import annotations

import glob
import logging
import re
import time
from pathlib import Path

__all__ = ["LogFile"]

_STAMP = re.compile(r"\.\d{4}(\.\d\d){5}\.\d{9}")


class LogFile(logging.FileHandler):
    """A log file that is rotated past ``size_limit`` bytes (0: never); ``max_num`` files are kept with it (0: all).

    Raises: OSError when the file cannot be opened.
    """

    def __init__(self, path: str, size_limit: int, max_num: int) -> None:
        super().__init__(path, encoding="utf-8")
        self._size_limit = size_limit
        self._max_num = max_num

    def emit(self, record: logging.LogRecord) -> None:
        super().emit(record)
        if self._size_limit and self.stream is not None and self.stream.tell() > self._size_limit:
            self._rotate(record)

    def _rotate(self, record: logging.LogRecord) -> None:
        path = Path(self.baseFilename)
        now_ns = time.time_ns()
        stamp = time.strftime("%Y.%m.%d.%H.%M.%S", time.localtime(now_ns // 10**9))
        rotated = path.with_name(f"{path.name}.{stamp}.{now_ns % 10**9:09d}")
        self.close()
        try:
            path.rename(rotated)
        except OSError as error:
            # The file was moved, or permission is missing: let it grow, so that no line is lost.
            self._log(record, logging.ERROR, f"Unable to rotate the log file ({error}), will attempt it with the next "
                                             "line")
            return
        # The next line opens the file again.
        self._log(record, logging.INFO, f'Rotated log, backup saved as "{rotated}"')
        if self._max_num:
            self._purge(record, path)

    def _purge(self, record: logging.LogRecord, path: Path) -> None:
        """Delete the oldest rotated files."""
        try:
            kept = sorted(other for other in path.parent.glob(f"{glob.escape(path.name)}.*")
                          if _STAMP.fullmatch(other.name.removeprefix(path.name)))
            for old in kept[:max(len(kept) - self._max_num + 1, 0)]:
                old.unlink()
                self._log(record, logging.INFO, f'Purged log file "{old.name}"')
        except OSError as error:
            self._log(record, logging.ERROR, f"Unable to remove backup log files ({error}), will attempt next rotation")

    def _log(self, cause: logging.LogRecord, level: int, text: str) -> None:
        """Log a line about the rotation without triggering another one."""
        super().emit(logging.LogRecord(cause.name, level, __file__, 0, text, (), None))
