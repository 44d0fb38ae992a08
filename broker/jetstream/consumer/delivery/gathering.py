"""Single messages of a stream for one consumer, in any order, as columns: redelivered messages.

Neighbours share the search for their chunk, which costs more than the rest of the work.
"""

from __future__ import annotations

from bisect import bisect_right

from broker.jetstream.consumer.cursor.cursor import Block, Cursor, Loading
from broker.jetstream.consumer.cursor.message_columns import MessageColumns
from broker.storage.format.frame import Chunk

__all__ = ["Gathering"]


class Gathering:
    """Single messages, in the order in which they were added. Valid until anything else may change the stream."""

    def __init__(self, cursor: Cursor) -> None:
        self._cursor = cursor
        self._first = cursor.stream.first_seq
        self._starts: list[int] = []
        self._chunks: list[tuple[Chunk, Block]] = []
        self._rows: list[tuple[Chunk, int]] = []
        self._seqs: list[int] = []

    def __len__(self) -> int:
        return len(self._seqs)

    def add(self, seq: int) -> Loading | bool:
        """Add the message ``seq``. Returns: False if it has left the stream;
        a Loading if its chunk must be read first."""
        at = bisect_right(self._starts, seq) - 1
        if at >= 0:
            chunk, block = self._chunks[at]
            if seq <= chunk.last_seq and chunk.seqs is None and block.dead is None and seq >= self._first:
                self._rows.append((chunk, seq - chunk.first_seq))
                self._seqs.append(seq)
                return True
        found = self._cursor.locate(seq)
        if not isinstance(found, tuple):
            return False if found is None else found
        chunk, block, i = found
        if at < 0 or self._chunks[at][0] is not chunk:
            self._starts.insert(at + 1, chunk.first_seq)
            self._chunks.insert(at + 1, (chunk, block))
        self._rows.append((chunk, i))
        self._seqs.append(seq)
        return True

    def columns(self) -> MessageColumns:
        """Return all added messages, at least one."""
        rows = self._rows
        hlens = None
        if any(chunk.hlens is not None for chunk, _ in self._chunks):
            hlens = [0 if chunk.hlens is None else chunk.hlens[i] for chunk, i in rows]
        return MessageColumns(self._seqs, [chunk.subjects[i] for chunk, i in rows], hlens,
                              [chunk.bodies[i] for chunk, i in rows], [chunk.times[i] for chunk, i in rows],
                              self._seqs[-1] + 1)
