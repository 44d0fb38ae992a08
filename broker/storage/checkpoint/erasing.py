"""The parts that a checkpoint must leave out because of an erasure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from broker.storage.format.header import Position
from broker.storage.state.seq_ranges import SeqRanges

__all__ = ["Erasing"]


class Erasing(NamedTuple):
    """``seqs`` are the erased sequences by stream. ``worn`` are objects with pages of subjects or ids that also have
    older pages: nobody knows what these quote, so the objects must go."""

    seqs: Mapping[int, SeqRanges]
    worn: frozenset[Position]
