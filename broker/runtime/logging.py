"""Log lines in nats-server's format, through the standard ``logging``: ``[PID] DATE TIME [INF] TEXT``.

Tools and tests wait for lines such as ``Server is ready`` and parse ports from them, so the format is a contract.
Any module logs with ``logging.getLogger(__name__)``; ``TRACE`` is below DEBUG, for protocol lines.
Source: nats-server logger/log.go.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Callable

from broker.base.gotime import format_time
from broker.config.settings import LoggingSettings
from broker.runtime.log_file import LogFile

__all__ = ["TRACE", "LogLines"]

TRACE = 5

_LABELS = {TRACE: "TRC", logging.DEBUG: "DBG", logging.INFO: "INF", logging.WARNING: "WRN", logging.ERROR: "ERR",
           logging.CRITICAL: "FTL"}
# Libraries that would log every request at these levels.
_QUIET = ("asyncio", "botocore", "aiobotocore", "aiohttp", "urllib3")


class _Formatter(logging.Formatter):
    def __init__(self, *, times: bool, utc: bool) -> None:
        super().__init__()
        self._times = times
        self._clock = time.gmtime if utc else time.localtime
        self._pid = os.getpid()
        self._second = -1
        self._stamp = ""

    def format(self, record: logging.LogRecord) -> str:
        label = _LABELS.get(record.levelno) or "INF"
        text = record.getMessage()
        if record.exc_info:
            text = f"{text}\n{self.formatException(record.exc_info)}"
        if not self._times:
            return f"[{self._pid}] [{label}] {text}"
        second, fraction = divmod(record.created, 1)
        if second != self._second:  # lines come in bursts, and strftime is most of their cost
            self._second = int(second)
            self._stamp = time.strftime("%Y/%m/%d %H:%M:%S", self._clock(second))
        return f"[{self._pid}] {self._stamp}.{int(fraction * 1_000_000):06d} [{label}] {text}"


class _JsonFormatter(logging.Formatter):
    """Formats a record as a JSON object on one line, for log collectors."""

    def __init__(self) -> None:
        super().__init__()
        self._pid = os.getpid()

    def format(self, record: logging.LogRecord) -> str:
        text = record.getMessage()
        if record.exc_info:
            text = f"{text}\n{self.formatException(record.exc_info)}"
        return json.dumps({
            "time": format_time(int(record.created * 1e9)), "level": _LABELS.get(record.levelno) or "INF",
            "pid": self._pid, "logger": record.name, "message": text}, ensure_ascii=False)


class LogLines:
    """The process's log: standard error, or a file that can be reopened after it was moved.

    Raises: OSError when the file cannot be opened.
    """

    def __init__(self, settings: LoggingSettings) -> None:
        for level, label in _LABELS.items():
            logging.addLevelName(level, label)
        self._handler: logging.Handler
        self.prepare(settings)()
        for name in _QUIET:
            logging.getLogger(name).setLevel(logging.WARNING)
        logging.raiseExceptions = False  # a log that cannot be written must not stop the broker
        logging.captureWarnings(True)

    def prepare(self, settings: LoggingSettings) -> Callable[[], None]:
        """Open the log that ``settings`` describe; return a function that switches to it. Raises: OSError."""
        handler: logging.Handler = (
            LogFile(settings.file, settings.size_limit, settings.max_num) if settings.file
            else logging.StreamHandler(sys.stderr))
        handler.setFormatter(_JsonFormatter() if settings.format == "json" else
                             _Formatter(times=settings.times, utc=settings.utc))
        if settings.trace and not settings.debug:
            handler.addFilter(lambda record: record.levelno != logging.DEBUG)

        def begin() -> None:
            root = logging.getLogger()
            before, root.handlers[:] = root.handlers[:], [handler]
            root.setLevel(TRACE if settings.trace else logging.DEBUG if settings.debug else logging.INFO)
            self._handler = handler
            for old in before:
                if isinstance(old, logging.FileHandler):
                    old.close()

        return begin

    def reopen(self) -> bool:
        """Close the file and reopen it by name; False if the log is not a file."""
        if not isinstance(self._handler, logging.FileHandler):
            return False
        # A closed FileHandler reopens its file with the next line.
        self._handler.close()
        return True
