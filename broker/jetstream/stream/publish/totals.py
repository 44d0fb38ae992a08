"""The latest totals of a stream's counters, so that a busy counter is not read from its last message each time.

Owns: parsing a counter's stored message, and caching the totals of some subjects. Does not own: a subject's last
message (subject_state), reading it (queries).

Source: nats-server, server/stream.go, CounterValue, CounterSources.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from broker.base.gojson.decoding import assigned, unmarshal
from broker.jetstream.stream.state.rows import NotLoaded
from broker.protocol import headers as header_block

if TYPE_CHECKING:
    from broker.jetstream.stream.shared.stream_parts import StreamParts

__all__ = ["DIGITS_MAX", "SOURCES", "TOTAL_DIGITS_MAX", "Sources", "Total", "Totals", "integer"]

SOURCES: Final = b"Nats-Counter-Sources"

DIGITS_MAX: Final = 4000
"""Maximum digits of an increment: far beyond any count."""

TOTAL_DIGITS_MAX: Final = 4200
"""Maximum digits of a total: within Python's default limit for conversion."""

_TOTALS_MAX: Final = 8192
"""Maximum number of totals cached for one stream."""

_SOURCES_MAX: Final = 1 << 18
"""Maximum number of sources' subjects in the cached totals, about 50 MiB."""

_TOTALS_MIN: Final = 1024
"""Number of totals that are kept whatever their size: an atomic batch needs as many at once."""

Sources = dict[str, dict[str, str]]
"""Stream → subject → the last total copied from there."""


class Total(NamedTuple):
    """The content of a subject's last message."""

    value: int
    sources: Sources
    broken: bool = False
    """True if the message is not a counter's; then nothing can be added to it."""
    as_stored: bool = True
    """True if the stored message has the same content; if not, later publishes read the message."""

    @property
    def sources_count(self) -> int:
        """Number of sources' subjects of which it has a total."""
        return sum(len(totals or ()) for totals in self.sources.values()) if self.sources else 0

    @classmethod
    def of(cls, headers: bytes, payload: bytes) -> Total:
        """Parse a stored message; ``broken`` is set if it is not a counter's."""
        try:
            value = ""
            body = unmarshal(payload)
            for _, given in assigned({} if body is None else body, ("val",)):
                value = value if given is None else given
                if type(value) is not str:
                    raise TypeError
            text = header_block.get(headers, SOURCES)
            sources = unmarshal(text) if text else {}
            if not all(type(total) is str for totals in (sources or {}).values() for total in (totals or {}).values()):
                raise TypeError
            if len(value) > TOTAL_DIGITS_MAX + 1:
                raise ValueError("too long to be read")
        except (ValueError, TypeError, AttributeError, RecursionError):
            return cls(0, {}, True)
        return cls(integer(value, TOTAL_DIGITS_MAX) or 0, sources or {})


_NOTHING: Final = Total(0, {})


class Totals:
    """The latest totals of one stream, cached by subject."""

    __slots__ = ("_latest", "_queries", "_sources", "_subjects")

    def __init__(self, parts: StreamParts) -> None:
        self._subjects, self._queries = parts.subjects, parts.queries
        self._latest: dict[bytes, tuple[int, Total]] = {}
        """Subject → (sequence of its last message, total); the most recently used subject is last."""
        self._sources = 0
        """Number of sources' subjects in the cached totals."""

    def get(self, subject: bytes) -> Total:
        """Return the total of ``subject``, from its last message. Raises: NotLoaded."""
        seq = self._subjects.last(subject)
        if not seq:
            return _NOTHING
        known = self._latest.get(subject)
        if known is None or known[0] != seq:
            raise NotLoaded(f"the total of {subject!r}", work=partial(self._load, subject, seq), mark=seq)
        return known[1]

    def remember(self, subject: bytes, seq: int, total: Total) -> None:
        """Cache the total of ``subject``, whose last message is ``seq``."""
        latest = self._latest
        if subject in latest:
            self._forget(subject)
        latest[subject] = seq, total
        self._sources += total.sources_count
        while len(latest) > _TOTALS_MAX or (self._sources > _SOURCES_MAX and len(latest) > _TOTALS_MIN):
            self._forget(next(iter(latest)))

    def _forget(self, subject: bytes) -> None:
        self._sources -= self._latest.pop(subject)[1].sources_count

    async def _load(self, subject: bytes, seq: int) -> None:
        msg = await self._queries.get(seq)
        if msg is not None:  # otherwise the message was just removed, and another one is the last
            self.remember(subject, seq, Total.of(msg.headers, msg.payload))


def integer(text: str, digits_max: int = DIGITS_MAX) -> int | None:
    """Parse a decimal integer as Go does; None for any other text."""
    digits = text[1:] if text[:1] in ("+", "-") else text
    return int(text) if digits.isascii() and digits.isdigit() and len(digits) <= digits_max else None
