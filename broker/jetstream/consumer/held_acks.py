"""When acks are stored and answered: at once, or after the stream has removed the messages that they were for.

    acked ──> the stream removes them at once ──> stored with the removal, and answered once that is persisted
         └──> it has to load something first ───> held: neither stored nor answered until they are removed

Owns: the set of removals waited for, and the replies that wait for them. Does not own: the removals (stream), the state
of the acks (acks).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broker.jetstream.bus import Bus
    from broker.jetstream.consumer.stream_view import StreamView

__all__ = ["HeldAcks"]


class HeldAcks:
    """The acks of one consumer on their way to the store; true while some are held.

    Args: ``changed`` is called when the consumer has something new to store.
    Attributes: ``stored``: whether the consumer's state is stored at all.
    """

    __slots__ = ("_bus", "_changed", "_closed", "_removals", "_replies", "_stream", "stored")

    def __init__(self, stream: StreamView, bus: Bus, changed: Callable[[], None], *, stored: bool) -> None:
        self.stored = stored
        self._stream = stream
        self._bus = bus
        self._changed = changed
        self._removals: set[asyncio.Future[None]] = set()
        self._replies: list[bytes] = []
        self._closed = False

    def __bool__(self) -> bool:
        return bool(self._removals)

    def acked(self, seqs: Sequence[int]) -> None:
        """The consumer no longer waits for ``seqs``; acks are held until their removal is done."""
        removal = self._stream.acked(seqs)
        if removal is not None and removal not in self._removals:
            self._removals.add(removal)
            removal.add_done_callback(self._removed)

    def answer(self, replies: list[bytes]) -> None:
        """Answer double acks after the resulting state is persisted."""
        if self._removals:
            self._replies += replies
            return
        stream = self._stream
        if not self.stored or stream.config.persist_mode == "async":
            self._answer_all(replies)
            return
        self._changed()
        stream.log.barrier(stream)
        stream.log.wait(self._answer_all, replies, of=stream)

    def close(self) -> None:
        """The consumer is gone: discard what is held."""
        self._closed = True

    def _removed(self, removal: asyncio.Future[None]) -> None:
        self._removals.discard(removal)
        if self._removals or self._closed:
            return
        replies, self._replies = self._replies, []
        self._changed()
        if replies:
            self.answer(replies)

    def _answer_all(self, replies: list[bytes]) -> None:
        publish = self._bus.publish
        for reply in replies:
            publish(reply, b"", 0, b"")
