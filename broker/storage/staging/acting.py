"""The staged messages that make their stream act, if the request asks for that: those with a TTL, and roll-ups.

Does not own: the effects of these headers (jetstream.stream.acting), the other headers of a message (headers).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from broker.protocol import headers as header_block
from broker.storage.staging.headers import ROLLUP, TTL

if TYPE_CHECKING:
    from broker.storage.format.frame import Chunk

__all__ = ["ACTING_MAX", "ActingMessage", "acting_messages"]

ACTING_MAX: Final = 1 << 18
"""The most such messages of one request: the stream records the expiry of each in one turn of the loop."""


class ActingMessage(NamedTuple):
    """Message ``ordinal`` of block ``block`` of a request. ``ttl`` and ``rollup`` are the values of the headers; None:
    it has no such header. ``time_ns`` is its writer's time, 0 for none."""

    block: int
    ordinal: int
    subject: bytes
    time_ns: int
    ttl: bytes | None
    rollup: bytes | None

    @property
    def place(self) -> tuple[int, int]:
        """The place of the message among those of the request."""
        return self.block, self.ordinal


def acting_messages(block: int, chunk: Chunk) -> Iterator[ActingMessage]:
    """Iterate over the messages of a frame that make the stream act; the headers are well-formed."""
    for at, hlen in enumerate(chunk.hlens or ()):
        if not hlen:
            continue
        headers = chunk.bodies[at][:hlen]
        ttl, rollup = header_block.get(headers, TTL), header_block.get(headers, ROLLUP)
        if ttl or rollup:
            yield ActingMessage(block, chunk.start + at, chunk.subjects[at], chunk.times[at], ttl, rollup)
