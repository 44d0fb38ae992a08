"""Roll-ups: a message that replaces all earlier ones of its subject, or of the stream.

Owns: finding the messages that a roll-up removes, and removing them when it is stored: both are in one block.
Does not own: which publishes are roll-ups (sequencer), how messages are removed (retention).

    plan ──> NotLoaded ──> search, block by block ──> plan, from the results of the search ──> append ──> carry_out

The index has the number of messages to find, so the search goes from the newest block back until it has found all. Its
results are kept until the plan is carried out, with the sequence up to which they are complete. If a roll-up was
refused because the search took too long, its retry needs to search only newer messages.

A plan searches blocks in memory at once, as long as all plans of this turn of the loop search at most
``_BLOCKS_A_TURN`` blocks. Further blocks are searched in later turns. The roll-ups of an atomic batch are planned
together, by one search.

Source: nats-server, server/stream.go, processJetStreamMsgWithBatch; a roll-up of a subject is a purge by it.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from broker.jetstream.filters import Filters
from broker.jetstream.stream.state.heads import blocks_back
from broker.jetstream.stream.state.matching import candidates, matching_rows
from broker.jetstream.stream.state.rows import NotLoaded

if TYPE_CHECKING:
    from broker.jetstream.stream.retention.retention import Retention
    from broker.jetstream.stream.shared.stream_parts import StreamParts
    from broker.jetstream.stream.state.live import LiveBlock
    from broker.jetstream.stream.state.rows import Rows
    from broker.jetstream.stream.state.subject_index import SubjectIndex

__all__ = ["Rollups"]


_BLOCKS_A_TURN = 512
"""Blocks in memory that plans may read in one turn of the loop: about 5 ms."""

_SEARCHES_MAX = 1000
"""Maximum number of kept searches: as many as a batch may have roll-ups."""


class _Found(NamedTuple):
    """Messages of one block, in rising order and as columns, because a roll-up may find millions."""

    block: LiveBlock
    seqs: array[int]
    subjects: list[bytes]
    sizes: array[int]


class Rollup(NamedTuple):
    """The removals of a roll-up once it is stored: all messages that match ``filters``.

    nats-server purges by the subject of the roll-up, so one that was published to ``a.*`` rolls up all of ``a.*``.
    """

    filters: Filters
    found: list[_Found]
    """Empty if the filters match everything."""


class _Search(NamedTuple):
    """All messages that match a filter, up to ``upto_seq``."""

    upto_seq: int
    found: list[_Found]


class Rollups:
    """The roll-ups of one stream."""

    def __init__(self, parts: StreamParts, retention: Retention) -> None:
        self._live, self._heads, self._subjects = parts.live, parts.heads, parts.subjects
        self._retention = retention
        self._searched: dict[bytes, _Search] = {}
        """Results by the roll-up's subject, until one is carried out: the roll-ups of a batch are carried out
        together."""
        self._blocks_read = 0
        """Number of blocks that plans have read in this turn of the loop."""

    def plan_all(self, subjects: Sequence[bytes], plans: dict[bytes, Callable[[], None]]) -> None:
        """Add the result of ``plan`` for each of ``subjects``, those of a batch's roll-ups, to ``plans``.

        Raises: NotLoaded.
        """
        for at, subject in enumerate(subjects):
            if subject in plans:
                continue
            try:
                plans[subject] = self.plan(subject)
            except NotLoaded as not_loaded:
                left = tuple(one for one in subjects[at:] if one not in plans)
                if not_loaded.work is None or len(left) == 1 or not Filters(left).literal:
                    raise
                raise NotLoaded("the messages that the roll-ups of a batch remove", work=partial(self._search, left),
                                mark=len(left)) from None

    def forget(self) -> None:
        """Drop the results of searches, because blocks of the stream were replaced."""
        self._searched = {}

    def plan(self, subject: bytes | None, staged: tuple[int, int] | None = None) -> Callable[[], None]:
        """Find the messages that a roll-up of ``subject`` (None: of the stream) would remove if it were stored next.

        Args: ``staged``: sequence and size of a message of that subject which is stored just before the roll-up.
        Returns: a function that removes them, to be called once the roll-up is the stream's last message.
        Raises: NotLoaded.
        """
        return partial(self._carry_out, self._plan(subject), staged)

    async def find(self, subjects: Sequence[bytes]) -> Callable[[], None]:
        """Find the messages that roll-ups of these subjects (empty: of the stream) remove if they join next.

        Nothing may be published meanwhile. Returns: as ``plan``. Raises: StoreError, FormatError if messages cannot be
            read.
        """
        filters = Filters(tuple(subjects))
        found: list[_Found] = []
        if not filters.all:
            index = await self._subjects.build()
            wanted = self._wanted(index, filters)
            left = sum(index.count(name, self._live.first_seq) for name in wanted)
            async with aclosing(self._heads.walk(self._blocks(index, filters, wanted, 0), slow_start=True)) as walk:
                async for block, rows in walk:
                    if left <= 0:
                        break
                    if (some := self._in(block, rows, filters, 0)) is not None:
                        left -= len(some.seqs)
                        found.append(some)
        return partial(self._carry_out, Rollup(filters, found), None)

    def _plan(self, subject: bytes | None) -> Rollup:
        live = self._live
        filters = Filters(() if subject is None else (subject,))
        if filters.all:
            live.ensure_blocks()  # the removal itself cannot wait for them
            return Rollup(filters, [])
        index = self._subjects.ready()
        wanted = self._wanted(index, filters)
        if not wanted:
            return Rollup(filters, [])
        if index.tracked:
            return Rollup(filters, self._tracked(index, wanted))
        start, found, left = self._known(index, filters, wanted)
        for block in self._blocks(index, filters, wanted, start):
            if left <= 0:
                break
            rows = live.resident(block) if self._may_read_block() else None
            if rows is None:
                raise NotLoaded(f"what a roll-up of {subject!r} takes out",
                                work=partial(self._search, filters.subjects))
            if (some := self._in(block, rows, filters, start)) is not None:
                found.append(some)
                left -= len(some.seqs)
        return Rollup(filters, found)

    def _carry_out(self, plan: Rollup, staged: tuple[int, int] | None) -> None:
        """Remove the messages of the plan, now that the roll-up is the stream's last message."""
        live = self._live
        if staged is not None and (open_block := live.find(staged[0])) is not None:
            seq, size = staged
            plan.found.append(_Found(open_block, array("Q", [seq]), list(plan.filters.subjects), array("Q", [size])))
        self._searched.clear()
        retention = self._retention
        # The roll-up may be in a batch that is about to join.
        first_left = live.last_seq if live.joining is None else live.joining.first_seq
        if plan.filters.all:
            retention.remove_front(first_left, record=True, purged=True)
        shared = plan.filters.subjects[0] if plan.filters.literal and len(plan.filters.subjects) == 1 else None
        for some in plan.found:
            block, seqs, subjects, sizes = self._live_part(some)
            for seq, subject in zip(seqs, subjects, strict=True):
                self._subjects.removed(subject, seq)
            if seqs:
                retention.remove(block, seqs, sum(sizes), shared, purged=True)
        retention.notify_purged(plan.filters, first_left)

    # --- finding ------------------------------------------------------------------------------------------------------

    def _wanted(self, index: SubjectIndex, filters: Filters) -> list[bytes]:
        first_seq = self._live.first_seq
        names: Iterable[bytes] = filters.literals if filters.literal else filter(filters.decide, list(index))
        return [name for name in names if index.count(name, first_seq)]

    def _tracked(self, index: SubjectIndex, wanted: Iterable[bytes]) -> list[_Found]:
        """Return the matches from the index of a tracked stream, which has every message."""
        live = self._live
        messages = sorted((seq, name, size) for name in wanted for seq, size in index.messages(name, live.first_seq))
        found: list[_Found] = []
        for seq, name, size in messages:
            if not found or seq > found[-1].block.last_seq:
                block = live.find(seq)
                if block is None:
                    continue  # it was removed
                found.append(_Found(block, array("Q"), [], array("Q")))
            some = found[-1]
            some.seqs.append(seq)
            some.subjects.append(name)
            some.sizes.append(size)
        return found

    def _known(self, index: SubjectIndex, filters: Filters, wanted: list[bytes]) -> tuple[int, list[_Found], int]:
        """Return (first sequence that was not searched, matches found below it, number of matches left to find)."""
        start, found = 0, list[_Found]()
        [subject] = filters.subjects
        if (searched := self._searched.get(subject)) is not None:
            start = searched.upto_seq + 1
            found = [some for some in map(self._live_part, searched.found) if some.seqs]
        first_seq = self._live.first_seq
        total = sum(index.count(name, first_seq) for name in wanted)
        return start, found, total - sum(len(some.seqs) for some in found)

    def _blocks(self, index: SubjectIndex, filters: Filters, wanted: list[bytes], start: int) -> Iterator[LiveBlock]:
        """Yield the blocks that may have matches at or after ``start``, the newest first."""
        live = self._live
        lasts = [index.last(name, live.first_seq) for name in wanted]
        if (len(wanted) == 1 and (last := lasts[0]) and index.count(wanted[0], live.first_seq) == 1
                and (block := live.find(last)) is not None):
            # Most keys have one message, whose place is known: no other block is searched.
            return iter((block,) if block.last_seq >= start else ())
        # If a subject's last message was removed, the place of the one before it is not known.
        end = live.last_seq if None in lasts else max(last or 0 for last in lasts)
        return candidates(blocks_back(live, end, start), filters)

    def _may_read_block(self) -> bool:
        """Count one more block, and return whether a plan may read it in this turn of the loop."""
        if not self._blocks_read:
            asyncio.get_running_loop().call_soon(self._next_turn)
        self._blocks_read += 1
        return self._blocks_read <= _BLOCKS_A_TURN

    def _next_turn(self) -> None:
        self._blocks_read = 0

    async def _search(self, names: tuple[bytes, ...]) -> None:
        """Find all messages that match each of ``names``; several names have no wildcards.

        ``plan`` adds the messages that are published meanwhile.
        """
        filters = Filters(names)
        index = await self._subjects.build()
        wanted = self._wanted(index, filters)
        upto_seq = self._live.last_seq
        start, found, left = 0, {name: list[_Found]() for name in names}, 0
        if len(names) == 1:
            start, found[names[0]], left = self._known(index, filters, wanted)
        else:
            left = sum(index.count(name, self._live.first_seq) for name in wanted)
        async with aclosing(self._heads.walk(self._blocks(index, filters, wanted, start), slow_start=True)) as walk:
            async for block, rows in walk:
                if left <= 0:
                    break
                if (some := self._in(block, rows, filters, start, upto_seq)) is not None:
                    left -= len(some.seqs)
                    for name, part in ((names[0], some),) if len(names) == 1 else _by_subject(some):
                        found[name].append(part)
        if len(self._searched) + len(names) > _SEARCHES_MAX:  # results of roll-ups that were refused
            self._searched.clear()
        self._searched.update((name, _Search(upto_seq, parts)) for name, parts in found.items())

    def _in(self, block: LiveBlock, rows: Rows, filters: Filters, start: int, end: int = 1 << 64) -> _Found | None:
        is_live = self._live.is_live
        pairs = [(seq, subject) for seq, subject in matching_rows(rows, block, filters)
                 if start <= seq <= end and is_live(block, seq)]
        if not pairs:
            return None
        sizes = array("Q", [rows.size_of(rows.ordinal_of(seq)) for seq, _ in pairs])
        return _Found(block, array("Q", [seq for seq, _ in pairs]), [subject for _, subject in pairs], sizes)

    def _live_part(self, some: _Found) -> _Found:
        """Return the messages of ``some`` that are still live."""
        live, block = self._live, some.block
        if not live.holds(block):
            return _Found(block, array("Q"), [], array("Q"))
        alive = [i for i, seq in enumerate(some.seqs) if live.is_live(block, seq)]
        if len(alive) == len(some.seqs):
            return some
        return _Found(block, array("Q", [some.seqs[i] for i in alive]), [some.subjects[i] for i in alive],
                      array("Q", [some.sizes[i] for i in alive]))


def _by_subject(some: _Found) -> Iterator[tuple[bytes, _Found]]:
    """Return the matches by subject."""
    parts: dict[bytes, _Found] = {}
    for seq, subject, size in zip(some.seqs, some.subjects, some.sizes, strict=True):
        part = parts.get(subject)
        if part is None:
            part = parts[subject] = _Found(some.block, array("Q"), [], array("Q"))
        part.seqs.append(seq)
        part.subjects.append(subject)
        part.sizes.append(size)
    return iter(parts.items())
