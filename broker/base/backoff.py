"""Delays before the retries of a call that fails repeatedly."""

from __future__ import annotations

import random

__all__ = ["Backoff"]


class Backoff:
    """Delays in seconds: ``first``, then twice the one before, up to ``most``; with jitter if ``rng`` is given.

    The default bounds are those for a call to the object store.
    """

    __slots__ = ("_first", "_most", "_rng", "tries")

    def __init__(self, first: float = 0.05, most: float = 2.0, rng: random.Random | None = None) -> None:
        self._first, self._most, self._rng = first, most, rng
        self.tries = 0
        """Delays returned since the last ``reset``."""

    def next(self) -> float:
        """Return the delay before the next retry. Jitter makes it shorter, by half at most."""
        delay = min(self._most, self._first * 2.0 ** min(self.tries, 16))
        self.tries += 1
        return delay if self._rng is None else delay * (0.5 + self._rng.random() / 2)

    def reset(self) -> None:
        """Begin with ``first`` again, after a success."""
        self.tries = 0
