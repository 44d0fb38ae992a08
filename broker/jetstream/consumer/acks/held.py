"""Acks that may be neither stored nor answered yet, since the stream has to load something to remove their messages.

Owns: the removals waited for, and the replies that wait with them. Does not own: the removals (stream), storing acks and
answering them (the consumer).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

__all__ = ["HeldAcks"]


class HeldAcks:
    """The held acks of one consumer; true while there are any.

    Args: ``release`` is called with the replies once nothing is waited for.
    """

    __slots__ = ("_release", "_removals", "_replies")

    def __init__(self, release: Callable[[list[bytes]], None]) -> None:
        self._release = release
        self._removals: set[asyncio.Future[None]] = set()
        self._replies: list[bytes] = []

    def __bool__(self) -> bool:
        return bool(self._removals)

    def until(self, removal: asyncio.Future[None]) -> None:
        """Hold all acks until ``removal`` is done."""
        if removal not in self._removals:
            self._removals.add(removal)
            removal.add_done_callback(self._done)

    def answer(self, replies: list[bytes]) -> None:
        """Answer these as well, then."""
        self._replies += replies

    def _done(self, removal: asyncio.Future[None]) -> None:
        self._removals.discard(removal)
        if not self._removals:
            replies, self._replies = self._replies, []
            self._release(replies)
