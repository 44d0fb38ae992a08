"""A consumer's position in its stream: the effects of removals and purges on it and on its count."""

from __future__ import annotations

from broker.jetstream.consumer.cursor import Cursor
from broker.jetstream.filters import Filters
from broker.storage.format.frame import Chunk


class Messages:
    """A stream of ``msgs`` messages, counted by hand: ``counting`` is called during a count."""

    def __init__(self, msgs: int) -> None:
        self.first_seq, self.persisted_seq = 1, msgs
        self.counting: list[object] = []

    def next_chunk(self, seq: int, filters: Filters | None) -> tuple[Chunk, object, int] | None:
        return None

    def may_hold(self, seq: int) -> bool:
        return self.first_seq <= seq <= self.persisted_seq

    async def count_from(self, seq: int, filters: Filters | None) -> tuple[int, int]:
        counted = self.persisted_seq - max(seq, self.first_seq) + 1
        if self.counting:
            self.counting.pop()()  # type: ignore[operator]
        return counted, self.persisted_seq


async def test_what_leaves_during_the_first_count_is_not_counted() -> None:
    """Messages purged while they are being counted in the store: the count starts again."""
    stream = Messages(10)
    cursor = Cursor(stream, Filters(), 1, set())  # type: ignore[arg-type]

    def purge() -> None:
        stream.first_seq = 7
        cursor.removed(1, 6, 6, None)
        cursor.pass_over(7)

    stream.counting.append(purge)
    await cursor.recount()
    assert (cursor.pending, cursor.next_seq) == (4, 7)


async def test_a_list_of_last_messages_survives_a_purge_of_some() -> None:
    """A consumer of the last message of each subject continues with those listed beyond the purged ones."""
    stream = Messages(10)
    cursor = Cursor(stream, Filters(), 3, set())  # type: ignore[arg-type]
    cursor.skip.extend((3, 6, 9))
    cursor.resume = 10
    await cursor.recount()
    assert cursor.pending == 3
    cursor.pass_over(7)
    assert (cursor.pending, list(cursor.skip)) == (1, [9])
    cursor.pass_over(11)
    assert (cursor.pending, cursor.next_seq, list(cursor.skip)) == (0, 11, [])
