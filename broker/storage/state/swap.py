"""The dead messages of a block that replaces others: the messages that those no longer have.

    before   │ 1 2 3 │ 4 5 │ 6 7 8 │        a run's block, made of the three: 1 2 3 4 5 6 7 8
    now      │ 1 . 3 │     │ 6 7 8 │        2, 4 and 5 were removed after it was read
    after    │ 1 . 3 . . 6 7 8     │        the same messages are live

All messages that are not live now are dead. So no removed message comes back, whatever happened since the old blocks
were read. The applied state and the live state of a stream use the same function, each with its own blocks.

In a block with gaps, earlier removed messages in the gaps are marked too. So the live messages after a gap are known
without reading the block.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from broker.storage.format.block import BlockRef
from broker.storage.state.dead import DeadSet

__all__ = ["Part", "dead_in", "is_newer"]


class Part(Protocol):
    """The attributes of a replaced block that are needed here."""

    @property
    def first_seq(self) -> int: ...

    @property
    def last_seq(self) -> int: ...

    @property
    def dead(self) -> DeadSet | None: ...


def dead_in(ref: BlockRef, parts: Sequence[Part]) -> DeadSet | None:
    """Return the dead sequences of ``ref``, which replaces ``parts``; None: there are none."""
    dead: DeadSet | None = None
    for first, last in _gone(ref, parts):
        first, last = max(first, ref.first_seq), min(last, ref.last_seq)
        if first <= last:
            if dead is None:
                dead = DeadSet(ref.first_seq, ref.last_seq, ref.count)
            dead.add(first, last)
    return dead


def _gone(ref: BlockRef, parts: Sequence[Part]) -> Iterator[tuple[int, int]]:
    at = ref.first_seq
    for part in parts:
        yield at, part.first_seq - 1
        if part.dead is not None:
            yield from part.dead.seqs()
        at = part.last_seq + 1
    yield at, ref.last_seq


def is_newer(part: BlockRef, ref: BlockRef) -> bool:
    """Return whether a block that ``ref`` would replace was made after it.

    Runs below the stream's prefix may be from other shards in which the stream was, and have positions of their logs.
    """
    return not part.place.of_stream and part.position > ref.position
