"""Reading a stream's messages one after the other, a frame of them at a time, as direct gets of many do.

Does not own: finding blocks and loading them (queries).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import TYPE_CHECKING, Final

from broker.jetstream.stream.queries import Loading
from broker.jetstream.stream.state.stored import StoredMsg

if TYPE_CHECKING:
    from broker.jetstream.filters import Filters
    from broker.jetstream.stream.queries import Queries
    from broker.jetstream.stream.state.live import Live

__all__ = ["messages_from"]

_AT_ONCE: Final = 128
"""Messages read in one turn of the loop: about 2 ms with what is done with them."""


async def messages_from(queries: Queries, live: Live, filters: Filters, seq: int, check: Callable[[], None],
                        ) -> AsyncGenerator[StoredMsg]:
    """The live messages at or after ``seq`` that match, in order; others get their turn of the loop in between.

    ``check`` is called before each look at the stream, and may raise. Do not wait for anything between two messages.
    """
    wanted = None if filters.all else filters
    held = None
    while True:
        check()
        found = queries.next_chunk(seq, wanted)
        if found is None:
            break
        if isinstance(found, Loading):
            held = found  # keeps what it loads in memory until it is read
            seq = max(seq, found.seq)
            await held.wait()
            continue
        held = None
        chunk, block, place = found
        end, hlens = min(place + _AT_ONCE, len(chunk)), chunk.hlens
        for at in range(place, end):
            one, subject = chunk.seq(at), chunk.subjects[at]
            if (wanted is None or wanted.match(subject)) and live.is_live(block, one):
                yield StoredMsg(one, subject, 0 if hlens is None else hlens[at], chunk.bodies[at], chunk.times[at])
        seq = chunk.seq(end - 1) + 1
        await asyncio.sleep(0)
    # The acknowledged tail
    while (one := await queries.next_seq(filters, seq)) != 0:
        check()
        if (msg := await queries.get(one)) is not None:
            yield msg
        seq = one + 1
