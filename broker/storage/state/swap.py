"""What is dead of a block that takes the place of others: the messages that those no longer have.

    before   │ 1 2 3 │ 4 5 │ 6 7 8 │        a run's block, made of the three: 1 2 3 4 5 6 7 8
    now      │ 1 . 3 │     │ 6 7 8 │        2, 4 and 5 were removed since it was read
    after    │ 1 . 3 . . 6 7 8     │        the same messages are live

Dead is what is not live now: so whatever happened between reading the old blocks and this, nothing removed comes back. The
applied state and the live state of a stream share this, each with its own blocks.

A block with gaps where messages were removed earlier has those marked too: what is live after a gap is then known without
reading the block.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from broker.storage.format.block import BlockRef
from broker.storage.state.dead import DeadSet

__all__ = ["Part", "dead_in"]


class Part(Protocol):
    """A block that is replaced, as far as it matters here."""

    @property
    def first_seq(self) -> int: ...

    @property
    def last_seq(self) -> int: ...

    @property
    def dead(self) -> DeadSet | None: ...


def dead_in(ref: BlockRef, parts: Sequence[Part]) -> DeadSet | None:
    """What is dead of ``ref``, which takes the place of ``parts``; None: nothing."""
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
