"""The answers to acks, sent once the acks are stored and the stream has removed the messages that they were for.

    acked ──> the stream removes them at once ──> answered once acks and removal are persisted, in one block
         └──> it has to load a block first ─────> answered once they are removed, and that is persisted

The acks themselves are stored with the next block in either case: any reply that waits for a commit may depend on them,
and acks that kept coming would hold each other back. In the second case the stream stores with them the sequence from
which to search for such messages after a crash.

Owns: the replies that wait for removals. Does not own: the removals (stream), the state of the acks (acks).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broker.jetstream.consumer.stream_view import StreamView

__all__ = ["DoubleAcks"]


class DoubleAcks:
    """The acks of one consumer that wait for an answer.

    Args: ``changed`` is called when the consumer may have something new to store.
    Attributes: ``stored``: whether the consumer's state is stored at all.
    """

    __slots__ = ("_answers", "_changed", "_closed", "_removal", "_stream", "stored")

    def __init__(self, stream: StreamView, changed: Callable[[], None], *, stored: bool) -> None:
        self.stored = stored
        self._stream = stream
        self._changed = changed
        self._removal: asyncio.Future[None] | None = None
        """The newest removal that could not be made at once; earlier removals are made before it."""
        self._answers: dict[asyncio.Future[None], list[Callable[[], object]]] = {}
        self._closed = False

    def acked(self, seqs: Sequence[int]) -> None:
        """Notify the stream that the consumer no longer waits for ``seqs``."""
        removal = self._stream.acked(seqs)
        if removal is not None:
            self._removal = removal

    def acked_from(self, seq: int) -> None:
        """Notify the stream that the consumer no longer waits for messages from ``seq`` on: very many,
        not named one by one."""
        removal = self._stream.acked_from(seq)
        if removal is not None:
            self._removal = removal

    def answer(self, answer: Callable[[], object]) -> None:
        """Call ``answer`` once the state that results from the acks so far is persisted."""
        removal = self._removal
        if removal is None or removal.done():
            self._removal = None
            self._answer([answer])
        elif (waiting := self._answers.get(removal)) is not None:
            waiting.append(answer)
        else:
            self._answers[removal] = [answer]
            removal.add_done_callback(self._removed)

    def close(self) -> None:
        """Answer nothing more: the consumer is gone."""
        self._closed = True

    def _removed(self, removal: asyncio.Future[None]) -> None:
        answers = self._answers.pop(removal)
        if not self._closed:
            self._answer(answers)

    def _answer(self, answers: list[Callable[[], object]]) -> None:
        stream = self._stream
        if not self.stored or stream.config.persist_mode == "async":
            _call_all(answers)
            return
        self._changed()
        stream.log.barrier(stream)
        stream.log.wait(_call_all, answers, of=stream)


def _call_all(answers: list[Callable[[], object]]) -> None:
    for answer in answers:
        answer()
