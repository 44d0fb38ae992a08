"""The progress of a long command on standard error: a bar on a terminal, a line from time to time elsewhere."""

from __future__ import annotations

import math
import shutil
import sys
import time
from collections.abc import Callable
from typing import IO

from broker.base.output import count, printable, size

__all__ = ["Progress"]

_LINE_SECONDS = 5.0
_BAR_SECONDS = 0.1
_BAR_CELLS = 24


class Progress:
    """Shows the last call's progress, at most ten times a second on a terminal and every five seconds elsewhere.

    Args: amount formats what is counted, by default bytes.
    """

    def __init__(self, out: IO[str] | None = None, now: Callable[[], float] = time.monotonic, *,
                 amount: Callable[[int], str] = size) -> None:
        self._out = out if out is not None else sys.stderr
        self._amount = amount
        self._now = now
        self._terminal = self._out.isatty()
        self._every = _BAR_SECONDS if self._terminal else _LINE_SECONDS
        self._began = now()
        self._next = self._began + self._every
        self._drawn = False

    def begin(self) -> None:
        """Begin a new piece of work: rates count from here."""
        self._began = self._now()

    def show(self, what: str, done: int, of: int) -> bool:
        """Show that ``done`` of ``of`` is done; ``of`` 0: the total is not known. ``what`` begins the line.

        A total that was estimated too low grows with what is done. Returns: False if it is too early for another line.
        """
        now = self._now()
        if now < self._next:
            return False
        self._next = now + self._every
        of = max(of, done) if of else 0
        share = done / of if of else 0.0
        rate = done / max(now - self._began, 1e-3)
        total = f" of {self._amount(of)}" if of else ""
        left = f", {_span((of - done) / rate)} left" if of > done > 0 else ""
        text = f"{printable(what)}, {self._amount(done)}{total}, {self._amount(int(rate))}/s{left}"
        if not self._terminal:
            print(text, file=self._out, flush=True)
            return True
        filled = round(share * _BAR_CELLS)
        bar = f"[{'#' * filled}{'.' * (_BAR_CELLS - filled)}] {share:4.0%} " if of else ""
        width = shutil.get_terminal_size().columns - 1
        self._out.write(f"\r\x1b[K{(bar + text)[:width]}")
        self._out.flush()
        self._drawn = True
        return True

    def objects(self, objects: int, of_objects: int, done: int, of: int) -> None:
        """Show that ``objects`` of ``of_objects`` are done, and how many of their bytes; 0: the total is not known."""
        whole = f" of {count(max(of_objects, objects))}" if of_objects else ""
        self.show(f"{count(objects)}{whole} objects", done, of)

    def line(self, text: str) -> None:
        """Print a line that stays."""
        self.clear()
        print(printable(text), file=self._out, flush=True)

    def clear(self) -> None:
        """Remove the bar, so that something else can be printed."""
        if self._drawn:
            self._out.write("\r\x1b[K")
            self._out.flush()
            self._drawn = False


def _span(seconds: float) -> str:
    """Format a duration as one or two numbers."""
    if seconds < 100:
        return f"{math.ceil(seconds)} s"
    minutes = math.ceil(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"
