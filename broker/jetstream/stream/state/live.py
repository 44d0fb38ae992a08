"""The live state of one stream: what has been sequenced and not removed, persisted or not.

Owns: the stream's numbers (first and last sequence, messages, bytes), its block table, and which messages are dead.
Does not own: why a message is removed (appender, retention), where the front is cut (front), where blocks come from
(log) or are read (chunks, queries).

    blocks   …│ persisted │ persisted │ in flight │ in flight │ open │
               ^first_seq              ^safe_seq + 1    last_seq^

Invariants: blocks are in order and do not overlap; a message is live when its block has it, ``first_seq <= seq`` and
its block's ``dead`` does not hold it; ``msgs`` and ``bytes`` are the sums of the blocks' ``live_msgs`` and
``live_bytes``; ``safe_seq <= last_seq``. A stream without messages has ``first_seq == last_seq + 1``, or 0 before
its first one.

The blocks are loaded when they are first needed. Publishes alone need only the numbers, which are known from the
applied state and from the blocks in flight. Many blocks are loaded a slice at a
time: callers await ``load_blocks``, and a decision that cannot wait raises ``NotLoaded``.

There may be a million blocks. Work on all of them is done in C, or in slices: a purge of all messages replaces the
table, and frees the old one a slice at a time.

Everything else in this module is synchronous. A method that needs the rows of a block that is not in memory raises
``NotLoaded`` before it changes anything.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from broker.base.clock import SystemClock
from broker.jetstream.stream.state.ahead import AheadOfClock
from broker.jetstream.stream.state.block import LiveBlock
from broker.jetstream.stream.state.joining import Joining
from broker.jetstream.stream.state.live_seqs import GAPLESS, alive, dead_set, next_live, over_gaps, ranges
from broker.jetstream.stream.state.loading import BlockLoading, add_in_flight, free_in_turns
from broker.jetstream.stream.state.removal import Front, Removal
from broker.jetstream.stream.state.rows import NotLoaded, OpenRows, Rows
from broker.jetstream.usage import ServerUsage, Usage
from broker.storage.format.block import Outcome
from broker.storage.state.dead import DeadSet

if TYPE_CHECKING:
    from broker.base.clock import Clock
    from broker.storage.log.open_block import OpenBlock
    from broker.storage.log.writer import SealedBlock
    from broker.storage.state.stream import StreamState

__all__ = ["Live", "LiveBlock", "Removal"]

_LOADED_AT_ONCE = 1024
"""Blocks copied from the applied state between two turns of the loop: 2 to 4 ms."""

_live_msgs: Callable[[LiveBlock], int] = attrgetter("live_msgs")


def _not_loaded(block: LiveBlock) -> Rows:
    raise NotLoaded("a head", (block,))


class Live:
    """The numbers and the block table of one stream.

    Args:
        stored_rows: returns the head of a persisted block if it is in memory, else None.
        stored: returns the stream's applied state, from which ``load_blocks`` makes the persisted blocks; None for a
            stream that has no persisted blocks and never will.
        on_blocks_loaded: called with the blocks from the applied state, a slice at a time.
        usage: counts the bytes of all streams of the same storage.
        clock, extra: passed on to ``ahead``; ``extra`` has the values that the stream's state keeps with the
            configuration.
    Attributes:
        open: the block that takes new messages; None before the first one.
        joining: messages that are part of the stream's next outcome, and not part of the live state yet.
        first_time_ns: time of the first live message, maintained until the blocks are loaded.
    """

    def __init__(self, stored_rows: Callable[[LiveBlock], Rows | None],
                 stored: Callable[[], StreamState | None] | None = None,
                 on_blocks_loaded: Callable[[Sequence[LiveBlock]], object] | None = None, usage: Usage | None = None,
                 clock: Clock | None = None, extra: Mapping[str, Any] | None = None) -> None:
        self.usage = usage or ServerUsage()
        self.first_seq = 0
        self.last_seq = 0
        self.msgs = 0
        self.size_bytes = 0
        self.last_time_ns = 0
        self.first_time_ns = 0
        self.ahead = AheadOfClock(self, clock or SystemClock(), extra or {})
        self.safe_seq = 0
        self.open: OpenBlock[Any] | None = None
        self.joining: Joining | None = None
        self._tail: LiveBlock | None = None
        self._in_flight: deque[LiveBlock | OpenBlock[Any] | None] = deque()
        """An entry for each block that is closed and not persisted: its live block; the closed block itself if the
        stream's blocks are not loaded; None if it has no messages."""
        self._stored = stored
        self._on_blocks_loaded = on_blocks_loaded
        self._loading: BlockLoading | None = None
        self._unloaded = False
        self._blocks: list[LiveBlock] = []
        self._begins: list[int] = []
        self._stored_rows = stored_rows

    @property
    def blocks_loaded(self) -> bool:
        """True once the blocks are loaded."""
        return self._stored is None

    @property
    def blocks(self) -> list[LiveBlock]:
        """All blocks, in order. Raises: NotLoaded if ``load_blocks`` must come first."""
        if self._stored is not None:
            self._load_blocks_now()
        return self._blocks

    @property
    def _starts(self) -> list[int]:
        """First sequence of each block. Raises: NotLoaded."""
        if self._stored is not None:
            self._load_blocks_now()
        return self._begins

    async def load_blocks(self) -> None:
        """Load the blocks, in as many turns of the loop as that takes.

        No message is removed in the meantime, because a removal requires the blocks.
        """
        while self._stored is not None:
            if self._load_some_blocks(_LOADED_AT_ONCE):
                return
            await asyncio.sleep(0)

    def ensure_blocks(self) -> None:
        """Load the blocks. Raises: NotLoaded if ``load_blocks`` must come first."""
        if self._stored is not None:
            self._load_blocks_now()

    def _load_blocks_now(self) -> None:
        if not self._load_some_blocks(0):
            raise NotLoaded("the stream's blocks", work=self.load_blocks)

    def _load_some_blocks(self, count: int) -> bool:
        """Load up to ``count`` blocks from the applied state, or all if few are left; return whether all are loaded.

        With ``count`` 0, nothing is loaded if many are left.
        """
        assert self._stored is not None
        loading = self._loading
        if (loading is None or loading.first_seq != loading.state.first_seq
                or loading.swaps != loading.state.blocks.swaps):
            # The applied state has dropped or replaced blocks: begin again. No dropped block had live messages.
            state = self._stored()
            if state is None:
                return self._add_in_flight([], [])
            loading = self._loading = BlockLoading(state, self._on_blocks_loaded)
        if loading.left > _LOADED_AT_ONCE and (count or not self._unloaded):
            loading.load(count)
            return False
        loading.load(loading.left)
        blocks, self._loading = loading.blocks, None
        if blocks:
            # Messages removed at the front are known from the stream's totals alone.
            blocks[0].live_msgs += loading.state.msgs - loading.msgs
            blocks[0].live_bytes += loading.state.bytes - loading.bytes
        return self._add_in_flight(blocks, loading.begins)

    def _add_in_flight(self, blocks: list[LiveBlock], begins: list[int]) -> bool:
        """Keep ``blocks``, those of the applied state as it is now, together with the blocks in flight; return True."""
        self._stored = None
        add_in_flight(blocks, self._in_flight)
        if self.open is not None:
            self._tail = LiveBlock.of_open(self.open)
            blocks.append(self._tail)
        self._blocks = blocks
        begins += [block.first_seq for block in blocks[len(begins):]]
        self._begins = begins
        return True

    def counts(self, block: OpenBlock[Any]) -> bool:
        """Return whether the numbers include every message of ``block``, the block that takes new messages."""
        tail = self._tail if self.open is block else None
        return block.last_seq <= self.last_seq and (tail is None or tail.count == block.count)

    # --- growing ------------------------------------------------------------------------------------------------------

    def appended(self, block: OpenBlock[Any], count: int, size: int, first_seq: int, time_ns: int,
                 first_time_ns: int = -1) -> None:
        """Count ``count`` messages of ``size`` user bytes that were appended to ``block``, from ``first_seq`` on.

        Args: ``time_ns``: the time of the last one; ``first_time_ns``: that of the first one, if it is another.
        """
        if self.open is not block:
            self._begin(block)
        if first_time_ns < 0:
            first_time_ns = time_ns
        last_seq = first_seq + count - 1
        tail = self._tail
        if tail is not None:
            if not tail.count:
                tail.first_time_ns = first_time_ns
            tail.last_seq = last_seq
            tail.count += count
            tail.live_msgs += count
            tail.bytes += size
            tail.live_bytes += size
            tail.last_time_ns = time_ns
            if tail.dead is not None:
                dead_set(tail)  # It grows with the block.
        if not self.msgs:
            self.first_seq = first_seq
            self.first_time_ns = first_time_ns
        self.last_seq = last_seq
        self.last_time_ns = time_ns
        self.msgs += count
        self.size_bytes += size
        self.usage.size_bytes += size

    def _begin(self, block: OpenBlock[Any]) -> None:
        self.open = block
        if self._stored is None:
            tail = self._tail = LiveBlock(block.first_seq, block.first_seq - 1, 0, 0, 0, 0)
            tail.open = block
            self._blocks.append(tail)
            self._begins.append(block.first_seq)

    def outcome(self, first_time_ns: int) -> Outcome:
        """Return the stream's present numbers for the outcome of its block; ``first_time_ns`` is the time of its
        first live message."""
        joining = self.joining
        if joining is None:
            return Outcome(self.first_seq, self.last_seq, self.msgs, self.size_bytes, first_time_ns)
        first_seq = self.first_seq
        if not self.msgs and joining.msgs:
            first_seq, first_time_ns = joining.first_live
        return Outcome(first_seq, joining.last_seq, self.msgs + joining.msgs, self.size_bytes + joining.size_bytes,
                       first_time_ns)

    def expect(self, joining: Joining) -> None:
        """Announce messages whose joining record is about to be persisted.

        Their bytes count in ``usage`` from now on, so that no other stream takes the same room.
        """
        self.joining = joining
        self.usage.size_bytes += joining.size_bytes

    def join(self) -> None:
        """Append the announced messages, which are persisted now, to the stream. The blocks must be loaded."""
        joining, self.joining = self.joining, None
        if joining is None or not joining.msgs:
            return
        if self._stored is not None:
            raise RuntimeError("messages joined a stream whose blocks are not loaded")
        if not self.msgs:
            self.first_seq, self.first_time_ns = joining.first_live
        self._blocks += joining.blocks
        self._begins += [block.first_seq for block in joining.blocks]
        self.last_seq = joining.last_seq
        self.last_time_ns = joining.blocks[-1].last_time_ns
        self.msgs += joining.msgs
        self.size_bytes += joining.size_bytes

    def cut(self, block: OpenBlock[Any]) -> None:
        """Close ``block`` for new messages; unless it is empty, it goes to the store next."""
        if not block.empty:
            self._in_flight.append((self._tail or block) if self.open is block else None)
        if self.open is block:
            self.open = self._tail = None

    def pop_in_flight(self) -> LiveBlock | OpenBlock[Any] | None:
        """Remove and return the oldest block in flight; None if it had no messages. Call this once for each block."""
        return self._in_flight.popleft()

    def persisted(self, block: LiveBlock, sealed: SealedBlock[Any], keep: bool) -> None:
        """Mark ``block`` as persisted. ``keep``: it belongs to a memory stream, so its messages stay in memory here."""
        block.tail = None
        if keep:
            block.unread, block.open = block.open, None
        else:
            block.open = None
            block.ref = sealed.ref
            block.subjects = sealed.subjects
            block.starts = _ONE_FRAME if sealed.small or len(sealed.chunks) == 1 else [c.start for c in sealed.chunks]
        if not block.live_msgs:
            self._forget(block)
        elif block.dead is not None:
            fitted = DeadSet(block.first_seq, block.last_seq, block.count)
            for first, last in block.dead.seqs():
                fitted.add(first, last)
            block.dead = fitted

    # --- reading ------------------------------------------------------------------------------------------------------

    def rows(self, block: LiveBlock) -> Rows:
        """Return the rows of a block. Raises: NotLoaded if they are not in memory."""
        if block.open is not None:
            return OpenRows(block.open)
        if block.unread is not None:
            block.seal()
        return block.head or self._stored_rows(block) or _not_loaded(block)

    def resident(self, block: LiveBlock) -> Rows | None:
        """Return the rows of a block if they are in memory, else None."""
        if block.open is not None:
            return OpenRows(block.open)
        if block.unread is not None:
            block.seal()
        return block.head or self._stored_rows(block)

    def within(self, first: int, last: int) -> list[LiveBlock]:
        """Return the blocks that begin within first..last, and one before them that reaches into that range."""
        return self.blocks[self.index_at(first):bisect_right(self._starts, last)]

    def index_at(self, seq: int) -> int:
        """Return the index of the first block that ends at or after ``seq``; ``len(blocks)`` if there is none."""
        i = bisect_right(self._starts, seq) - 1
        if i < 0:
            return 0
        return i if self.blocks[i].last_seq >= seq else i + 1

    def find(self, seq: int) -> LiveBlock | None:
        """Return the block whose range includes ``seq``; None if there is none or the sequence is known to be dead."""
        if seq < self.first_seq:
            return None
        i = bisect_right(self._starts, seq) - 1
        if i < 0:
            return None
        block = self.blocks[i]
        if block.last_seq < seq or (block.dead is not None and seq in block.dead):
            return None
        return block

    def holds(self, block: LiveBlock) -> bool:
        """Return whether ``block`` is still part of the stream."""
        i = bisect_right(self._starts, block.first_seq) - 1
        return i >= 0 and self.blocks[i] is block

    def next_live(self, block: LiveBlock, seq: int) -> int:
        """Return the first live sequence of ``block`` at or after ``seq``; one beyond its last if there is none."""
        return next_live(block, seq, self.resident)

    def last_live(self) -> int:
        """Return the last live sequence, or 0.

        In a block with gaps whose head is not in memory, the result may be a later sequence that has no message.
        """
        for block in reversed(self.blocks):
            if not block.live_msgs:
                continue
            dead = block.dead
            if dead is None:
                return block.last_seq
            for seq in range(block.last_seq, block.first_seq - 1, -1):
                if seq not in dead:
                    return seq
        return 0

    def is_live(self, block: LiveBlock, seq: int) -> bool:
        """Return whether ``seq``, a message of ``block``, is still live."""
        return seq >= self.first_seq and (block.dead is None or seq not in block.dead)

    def live_seqs(self, block: LiveBlock, rows: Rows, start: int, end: int) -> Sequence[int]:
        """Return the live sequences of ``block`` within start..end (inclusive)."""
        start, end = max(start, block.first_seq, self.first_seq), min(end, block.last_seq)
        if start > end:
            return ()
        dead = block.dead
        if block.gapless:
            return range(start, end + 1) if dead is None else alive(dead, range(start, end + 1))
        seqs = map(rows.seq_of, range(rows.ordinal_of(start), rows.ordinal_of(end + 1)))
        return [seq for seq in seqs if dead is None or seq not in dead]

    def live_from(self, seq: int) -> int:
        """Return the number of live messages at or above ``seq``. Raises: NotLoaded for a block with gaps."""
        if seq <= self.first_seq:
            return self.msgs
        blocks, i = self.blocks, self.index_at(seq)
        if i == len(blocks):
            return 0
        block = blocks[i]
        if block.first_seq >= seq:
            here = block.live_msgs
        elif block.gapless and block.dead is None:
            here = block.last_seq - seq + 1
        else:
            here = len(self.live_seqs(block, GAPLESS if block.gapless else self.rows(block), seq, block.last_seq))
        if 2 * i < len(blocks):
            return here + self.msgs - sum(map(_live_msgs, blocks[:i + 1]))
        return here + sum(map(_live_msgs, blocks[i + 1:]))

    @property
    def first_time(self) -> tuple[int, bool]:
        """(time of the first live message, exact?); inexact is the first time of its block, whose head is not in
        memory."""
        if not self.msgs:
            return 0, True
        block = self.blocks[self.index_at(self.first_seq)]
        if self.first_seq <= block.first_seq:
            return block.first_time_ns, True
        if block.unread is not None:
            unread = OpenRows(block.unread)
            return unread.time_of(unread.ordinal_of(self.first_seq)), True
        rows = self.resident(block)
        if rows is None:
            return block.first_time_ns, block.first_time_ns == block.last_time_ns
        return rows.time_of(rows.ordinal_of(self.first_seq)), True

    # --- removing -----------------------------------------------------------------------------------------------------

    def remove_front(self, gone: Sequence[Removal], end_seq: int) -> None:
        """Remove ``gone``, the result of ``listed_front(end_seq)``."""
        for block, _, _, msgs, size in gone:
            block.live_msgs -= msgs
            block.live_bytes -= size
            self.msgs -= msgs
            self.size_bytes -= size
            self.usage.size_bytes -= size
        blocks, whole = self.blocks, 0
        while whole < len(blocks) and blocks[whole].last_seq < end_seq and blocks[whole].persisted:
            whole += 1
        if whole:
            del blocks[:whole]
            del self._begins[:whole]
        self._seek_first(end_seq)

    def remove_whole_front(self, front: Front) -> None:
        """Remove ``front``, a result of ``whole_front``: remove the blocks at once, and free them a slice at a time."""
        blocks, end_seq = self.blocks, front.end_seq
        whole = self.index_at(end_seq)
        stay = whole
        while stay and not blocks[stay - 1].persisted:
            stay -= 1
            blocks[stay].live_msgs = blocks[stay].live_bytes = 0
        if 2 * stay > len(blocks):
            self._blocks, self._begins = blocks[stay:], self._begins[stay:]
            gone = blocks
        else:
            gone = blocks[:stay]
            del blocks[:stay], self._begins[:stay]
        free_in_turns(gone)
        self.msgs -= front.msgs
        self.size_bytes -= front.size
        self.usage.size_bytes -= front.size
        if front.part is not None:
            front.part.block.live_msgs -= front.part.msgs
            front.part.block.live_bytes -= front.part.size
        self._seek_first(end_seq)

    @property
    def blocks_held(self) -> int:
        """Number of blocks that are in memory as objects."""
        return len(self._blocks)

    def unload_blocks(self, stored: Callable[[], StreamState | None]) -> int:
        """Unload the blocks; the next access loads them again at once.

        Returns: the number of unloaded blocks; 0 if the blocks are not loaded, or not all of them are stored.
        """
        state = stored()
        if (self._stored is not None or self.open is not None or self._in_flight or state is None
                or (self.first_seq, self.msgs, self.size_bytes) != (state.first_seq, state.msgs, state.bytes)):
            return 0
        count = len(self._blocks)
        self._stored, self._blocks, self._begins, self.first_time_ns = stored, [], [], state.first_time_ns
        self._unloaded = True
        return count

    def free_blocks(self) -> None:
        """Free all blocks of a stream that was deleted."""
        if self._stored is None:
            self.remove_whole_front(Front(self.last_seq + 1, self.msgs, self.size_bytes, None))

    def leave(self) -> None:
        """Count the stream no longer: another broker has it. Its last block may yet be sealed, and shows all of it."""
        self.usage.size_bytes -= self.size_bytes

    def remove_seqs(self, block: LiveBlock, seqs: Sequence[int], size: int) -> list[Removal]:
        """Remove live messages of one block, ``size`` user bytes in all; return them as ranges.

        The size of a single range is exact. If there are several, the first one has the whole size, so the sum is
        right.
        """
        dead = dead_set(block)
        removed = [(first, last, last - first + 1) for first, last in ranges(seqs)]
        if not block.gapless and (rows := self.resident(block)) is not None:
            removed = over_gaps(removed, block, rows)
        for first, last, _ in removed:
            dead.add(first, last)
        count = len(seqs)
        block.live_msgs -= count
        block.live_bytes -= size
        self.msgs -= count
        self.size_bytes -= size
        self.usage.size_bytes -= size
        if seqs[0] == self.first_seq or not self.msgs:
            self._seek_first(self.first_seq)
        if not block.live_msgs and block.persisted:
            self._forget(block)
        return [Removal(block, first, last, msgs, 0 if i else size) for i, (first, last, msgs) in enumerate(removed)]

    def replace_blocks(self, old: Sequence[LiveBlock], new: LiveBlock | None) -> None:
        """Replace ``old``, which are neighbours, by ``new``, which has exactly their live messages; None: they have
        none."""
        i = bisect_right(self._starts, old[0].first_seq) - 1
        live_msgs = 0 if new is None else new.live_msgs
        if i < 0 or self.blocks[i:i + len(old)] != list(old) or live_msgs != sum(block.live_msgs for block in old):
            raise ValueError("a block can replace its neighbours only if it has all their live messages")
        self.blocks[i:i + len(old)] = [] if new is None else [new]
        self._begins[i:i + len(old)] = [] if new is None else [new.first_seq]

    def merge(self, block: LiveBlock, following: LiveBlock) -> None:
        """Append ``following``, the next block, to ``block``; both are unread, and neither has dead messages."""
        i = bisect_right(self._starts, block.first_seq)
        grown, added = block.unread, following.unread
        if grown is None or added is None or self.blocks[i] is not following:
            raise ValueError("only neighbours that nothing has read can be merged")
        at, hlens = 0, added.hlens
        for first_seq, count, time_ns in added.runs:
            end = at + count
            grown.append_run(first_seq, added.subjects[at:end], None if hlens is None else hlens[at:end],
                             added.bodies[at:end], time_ns)
            at = end
        block.last_seq = following.last_seq
        block.last_time_ns = following.last_time_ns
        block.count += following.count
        block.bytes += following.bytes
        block.live_msgs += following.live_msgs
        block.live_bytes += following.live_bytes
        del self.blocks[i]
        del self._begins[i]

    def stop_counting(self) -> None:
        """Subtract this deleted stream from ``usage``, and no longer count its changes there."""
        self.count_in(ServerUsage())

    def count_in(self, usage: Usage) -> None:
        """Count the stream's bytes in another ``usage`` from now on."""
        size = self.size_bytes + (0 if self.joining is None else self.joining.size_bytes)
        self.usage.size_bytes -= size
        usage.size_bytes += size
        self.usage = usage

    def skip_to(self, last_seq: int) -> None:
        """Skip the sequences up to ``last_seq`` without storing anything."""
        self.last_seq = last_seq
        if not self.msgs:
            self.first_seq = last_seq + 1

    def _forget(self, block: LiveBlock) -> None:
        i = bisect_right(self._starts, block.first_seq) - 1
        if i >= 0 and self.blocks[i] is block:
            del self.blocks[i]
            del self._begins[i]

    def _seek_first(self, seq: int) -> None:
        """Set ``first_seq`` to the first live message at or after ``seq``."""
        blocks = self.blocks
        for i in range(self.index_at(seq), len(blocks)):
            block = blocks[i]
            if not block.live_msgs:
                continue
            first = next_live(block, max(seq, block.first_seq), self.resident)
            if first <= block.last_seq:
                self.first_seq = first
                return
        self.first_seq = self.last_seq + 1


_ONE_FRAME: Sequence[int] = (0,)
