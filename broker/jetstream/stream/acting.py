"""The effects of headers of staged messages, if their request asks for that: Nats-TTL and Nats-Rollup.

    message              1     2     3 roll-up of b     4     5 TTL
    subject              a     b     b                  b     c
    in the stream        1           3                  4     5 until its time + TTL
    removed                    2, and all messages of b that the stream had

A message that a later one of the same request rolls up never joins: its sequence stays empty. If that applies to a
whole block, the block takes no sequences. A TTL counts from the time of the message.

Owns: the checks of these headers, the messages that are left out, and the expiries. Does not own: finding and removing
messages of the stream (retention.rollup), expiring messages (retention.ttl).

Source: nats-server, server/stream.go, processJetStreamMsgWithBatch, by which each message is checked when published.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from broker.jetstream.stream.publish.rollup import check_rollup, is_allowed
from broker.jetstream.stream.publish.ttl import checked_ttl
from broker.jetstream.wire.error_table import ApiErrors
from broker.jetstream.wire.errors import ApiError
from broker.storage.state.dead import DeadSet
from broker.storage.state.expiries import expires_at

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.jetstream.config.stream import StreamConfig
    from broker.jetstream.stream.staged_ids import Dropped, StagedIds
    from broker.jetstream.stream.state.ahead import AheadOfClock
    from broker.jetstream.stream.state.joining import Joining
    from broker.storage.format.index import Head
    from broker.storage.staging.acting import ActingMessage
    from broker.storage.staging.check import Staged, StagedBlock

__all__ = ["ActingMessages", "LeftOut"]

ROLLUPS_MAX: Final = 10_000
"""The most subjects that one request rolls up: their messages are removed in one turn of the loop."""

_AT_ONCE: Final = 2048
"""Messages handled in one turn of the loop: some milliseconds."""


class LeftOut:
    """The messages of one block that do not join: duplicates, and those that a later message of the request rolls up.

    Attributes: ``dead``: their sequences, which count from 1; ``size_bytes``: their size.
    """

    __slots__ = ("_count", "dead", "size_bytes")

    def __init__(self, block: StagedBlock, dropped: Dropped | None) -> None:
        self.dead = DeadSet(1, block.ref.count, block.ref.count) if dropped is None else dropped.dead.moved(1)
        self.size_bytes = 0 if dropped is None else dropped.size_bytes
        self._count = 0 if dropped is None else len(dropped)

    def __len__(self) -> int:
        return self._count

    def add(self, head: Head, ordinal: int) -> None:
        """Add a message of the block with this index, unless it is added already."""
        if self.dead.add(ordinal + 1, ordinal + 1):
            self._count += 1
            self.size_bytes += head.size_of(ordinal)


class ActingMessages:
    """The acting messages of one request, in one configuration of the stream.

    Attributes: ``left_out``: number of a block → its messages that do not join, if a roll-up of the request removes
        some of them; ``roll_ups``: the subjects of all roll-ups, together; an empty sequence is the whole stream.
    """

    def __init__(self, staged: Staged, ahead: AheadOfClock) -> None:
        self.left_out: dict[int, LeftOut] = {}
        self.roll_ups: list[Sequence[bytes]] = []
        self._staged, self._ahead = staged, ahead
        self._ttls: list[tuple[ActingMessage, int]] = []

    async def resolve(self, config: StreamConfig, ids: StagedIds) -> None:
        """Check the headers by ``config``, and find the messages of the request that do not join.

        Args: ``ids`` has the duplicates, which do not act. Raises: ApiError; StoreError; FormatError.
        """
        allowed, nowhere = is_allowed(config), (-1, -1)
        of_subject: dict[bytes, tuple[int, int]] = {}
        of_all = nowhere
        for at, message in enumerate(self._staged.acting or (), 1):
            if at % _AT_ONCE == 0:
                await asyncio.sleep(0)
            if (dropped := ids.dropped.get(message.block)) is not None and message.ordinal + 1 in dropped.dead:
                continue
            if message.ttl and (ttl := checked_ttl(message.ttl, config)):
                self._ttls.append((message, ttl))
            if message.rollup:
                value = message.rollup.lower()
                check_rollup(value, allowed=allowed)
                if value == b"all":
                    of_all = message.place
                else:
                    of_subject[message.subject] = message.place
        of_subject = {subject: place for subject, place in of_subject.items() if place > of_all}
        if len(of_subject) > ROLLUPS_MAX:
            raise ApiError(ApiErrors.STREAM_GENERAL, err=f"it rolls up {len(of_subject)} subjects, and one request may "
                                                         f"roll up {ROLLUPS_MAX}: make several requests of it")
        if of_all != nowhere:
            self.roll_ups.append(())
        elif of_subject:
            self.roll_ups.append(list(of_subject))
        last = max((of_all, *of_subject.values()))
        for number, block in enumerate(self._staged.blocks):
            if (number, 0) < last:
                await self._leave_out(number, block, ids.dropped.get(number), of_subject, of_all)

    async def _leave_out(self, number: int, block: StagedBlock, dropped: Dropped | None,
                         of_subject: dict[bytes, tuple[int, int]], of_all: tuple[int, int]) -> None:
        left_out, head = LeftOut(block, dropped), await block.read_head()
        places = {at: of_subject[subject] for at, subject in enumerate(head.subjects) if subject in of_subject}
        if not places and (number, 0) >= of_all:
            return
        for start in range(0, head.count, _AT_ONCE):
            for ordinal in range(start, min(start + _AT_ONCE, head.count)):
                place = number, ordinal
                subject = 0 if head.subject_ids is None else head.subject_ids[ordinal]
                if place < of_all or place < places.get(subject, place):
                    left_out.add(head, ordinal)
            await asyncio.sleep(0)
        self.left_out[number] = left_out

    async def set_expiries(self, joining: Joining, ids: StagedIds, now_ns: int) -> None:
        """Set the expiries of ``joining``, the messages that join."""
        blocks = dict(zip(joining.numbers, joining.blocks, strict=True))
        for at, (message, ttl) in enumerate(self._ttls, 1):
            if at % _AT_ONCE == 0:
                await asyncio.sleep(0)
            left_out = self.left_out.get(message.block)
            block = blocks.get(message.block)
            if block is None or (left_out is not None and message.ordinal + 1 in left_out.dead):
                continue
            time_ns = min(max(message.time_ns, block.first_time_ns), block.last_time_ns)
            joining.expiring.append(block.first_seq + message.ordinal)
            joining.expiry_times.append(expires_at(self._ahead.decision_ns(time_ns), ttl))
