"""The last sequence of a subject, or of what matches a filter, as publishes expect it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

from broker.jetstream.filters import Filters
from broker.jetstream.stream.state.rows import NotLoaded
from broker.protocol.subject import is_literal

if TYPE_CHECKING:
    from broker.jetstream.stream.state.live import Live
    from broker.jetstream.stream.state.subject_state import SubjectState

__all__ = ["LastSeqs"]


class LastSeqs:
    """The last sequences of one stream."""

    def __init__(self, live: Live, subjects: SubjectState, last_seq_of: Callable[[Filters], Awaitable[int]]) -> None:
        self._live = live
        self._subjects = subjects
        self._last_seq_of = last_seq_of
        self._looked_up: tuple[bytes, int, int] | None = None
        """What was looked up for the publish at the head of the queue: a filter, its last sequence, the stream's."""

    def of(self, subject: bytes) -> int:
        """Last sequence of ``subject``, which may have wildcards; 0: none. Raises: NotLoaded."""
        if is_literal(subject):
            return self._subjects.last(subject)
        live, known = self._live, self._looked_up
        if known is not None and known[0] == subject and known[2] == live.last_seq:
            # Nothing was appended since, but the last match may have been removed.
            last = known[1]
            if not last or live.find(last) is not None:
                return last
        raise NotLoaded(f"the last message of {subject!r}", work=partial(self._look_up, subject))

    async def _look_up(self, subject: bytes) -> None:
        last = await self._last_seq_of(Filters((subject,)))
        self._looked_up = subject, last, self._live.last_seq
