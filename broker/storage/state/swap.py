"""What is removed of a block that takes the place of others: the messages that those no longer have.

    before   │ 1 2 3 │ 4 5 │ 6 7 8 │        a run's block, made of the three: 1 2 3 4 5 6 7 8
    now      │ 1 . 3 │     │ 6 7 8 │        2, 4 and 5 were removed since it was read
    after    │ 1 . 3 . . 6 7 8     │        the same messages are live: what the old blocks do not have is dead

Whatever happened between reading the old blocks and this, nothing removed comes back: dead is what is not live now. The
applied state and the live state of a stream share this, each with its own blocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from broker.storage.format.block import BlockRef
from broker.storage.state.dead import DeadSet

__all__ = ["Part", "dead_in", "marks_of"]


class Part(Protocol):
    """A block that is replaced, as far as it matters here."""

    @property
    def first_seq(self) -> int: ...

    @property
    def last_seq(self) -> int: ...

    @property
    def dead(self) -> DeadSet | None: ...


def marks_of(dead: DeadSet | None) -> int:
    """How many sequences are marked in it. Each removal adds at least one."""
    return 0 if dead is None else dead.marked


def dead_in(ref: BlockRef, parts: Sequence[Part], inputs: int, marks: Mapping[int, int]) -> DeadSet | None:
    """What is dead of ``ref``, which takes the place of ``parts``; None: nothing.

    Args: inputs is of how many blocks it was made, 0: some of its messages had been removed by then. ``marks``: how many
        sequences of each were marked then, by its first sequence. Sequences without a message are marked too, which
        changes nothing.
    """
    if len(parts) == inputs and all(marks_of(part.dead) == marks.get(part.first_seq, 0) for part in parts):
        return None
    dead = DeadSet(ref.first_seq, ref.last_seq, ref.count)
    at = ref.first_seq

    def gone(first: int, last: int) -> None:
        first, last = max(first, ref.first_seq), min(last, ref.last_seq)
        if first <= last:
            dead.add(first, last)

    for part in parts:
        gone(at, part.first_seq - 1)
        if part.dead is not None:
            for first, last in part.dead.seqs():
                gone(first, last)
        at = part.last_seq + 1
    gone(at, ref.last_seq)
    return dead
