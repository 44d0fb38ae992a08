"""The last sequence of a subject, or of the messages that match a filter, for publishes that expect it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from broker.jetstream.filters import Filters
from broker.jetstream.stream.state.rows import NotLoaded
from broker.protocol.subject import is_literal

if TYPE_CHECKING:
    from broker.jetstream.stream.shared.stream_parts import StreamParts

__all__ = ["LastSeqs"]


class LastSeqs:
    """The last sequences of one stream."""

    def __init__(self, parts: StreamParts) -> None:
        self._live, self._subjects, self._queries = parts.live, parts.subjects, parts.queries
        self._found: dict[bytes, int] = {}
        """Results for the publish at the head of the queue: filter → last sequence. A batch may need many."""
        self._found_at = 0
        """The stream's last sequence when these results were found."""

    def find(self, subject: bytes) -> int:
        """Return the last sequence of ``subject``, which may have wildcards; 0: none. Raises: NotLoaded."""
        if is_literal(subject):
            return self._subjects.last(subject)
        live = self._live
        if self._found_at == live.last_seq and (last := self._found.get(subject)) is not None and (
                not last or live.find(last) is not None):
            # No message was appended since then; the last match may have been removed.
            return last
        raise NotLoaded(f"the last message of {subject!r}", work=partial(self._load, subject))

    async def _load(self, subject: bytes) -> None:
        last = await self._queries.last_seq_of(Filters((subject,)))
        if self._found_at != self._live.last_seq:
            self._found, self._found_at = {}, self._live.last_seq
        self._found[subject] = last
