"""Expires messages one by one: by their own TTL, and by max_age if each message must be checked.

Owns: the expiries of the live stream, the work of a pass over them, delete markers.
Does not own: the start of a pass (state.due_passes), the TTL of a message (publish.ttl), the persisted expiries
(storage.state.expiries), max_age of messages that expire in order (retention), how messages are removed (retention).

    commit ──> added ──> expiries ── timer ──> pass ─┬─ no markers ──────────> Retention.remove, a slice at a time
                            ^                        └─ last of its subject ─> a marker is published, which rolls it up
    removals ──> removed ───┘                           (subject_delete_marker_ttl)

max_age is applied here (``ages_one_by_one``) in streams with delete markers, and in streams in which a message has the
TTL ``never``: that message stays while messages around it are removed.

A marker replaces a message only if that is the last of its subject, and is neither a marker nor the purge of a key.
This is checked again when the marker's turn comes. A marker is published like any message. If it is refused, the
message stays, and is retried after 2 seconds; the pass continues behind it. After ``_MARKED_MAX`` such messages the
pass ends, and the next pass continues there. So later messages expire late, but do not wait for the refused ones.

Nothing expires while the clock is not trusted.

Source: nats-server, server/filestore.go, expireMsgs, handleRemovalOrSdm; server/sdm.go.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from broker.jetstream.bus import OwnSource
from broker.jetstream.stream.state.due_passes import DuePasses
from broker.jetstream.stream.state.heads import blocks_from
from broker.jetstream.stream.state.rows import Rows
from broker.protocol import headers as header_block
from broker.storage.format.records.expiry import Expiry
from broker.storage.state.expiries import NEVER, Expiries, expires_at

if TYPE_CHECKING:
    from broker.jetstream.bus import Source
    from broker.jetstream.config.stream import StreamConfig
    from broker.jetstream.stream.retention.retention import Retention
    from broker.jetstream.stream.shared.stream_parts import StreamParts
    from broker.jetstream.stream.state.live import LiveBlock
    from broker.storage.log.open_block import OpenBlock

__all__ = ["MessageTtls"]

_APART_NS = 100_000_000
"""Minimum time between two passes: a busy stream always has expired messages."""

_RETRY_NS = 1_000_000_000

_MARKED_APART_NS = 2_000_000_000
"""Delay before another marker is published for a message that its first marker has not removed."""

_MARKED_MAX = 1000
"""Maximum number of such messages in one pass."""

_ROWS_AT_ONCE = 250
"""Messages removed in one turn of the loop: about 2 ms."""

_ROWS_IN_FLIGHT = 1000
"""Maximum number of removals that are not persisted yet: they are applied at once when they are."""

_MARKERS_AT_ONCE = 64
"""Markers published in one turn of the loop: each of them is a roll-up."""


class MessageTtls:
    """The expiring messages of one stream. Call ``configure`` after each change of its configuration."""

    def __init__(self, parts: StreamParts, retention: Retention) -> None:
        self.expiries = Expiries()
        self.source: Source = OwnSource()
        self._live, self._heads, self._subjects, self._queries = parts.live, parts.heads, parts.subjects, parts.queries
        self._log, self._tasks, self._clock = parts.log, parts.tasks, parts.clock
        self._retention = retention
        self._publish = parts.stream.publish_own
        self.passes = DuePasses(parts.log, parts.tasks, parts.clock, "expiry", self._carry_out, untrusted_ns=_RETRY_NS)
        self._aged_seq = 0
        """Sequence below which max_age has nothing to remove: only messages that never expire are left there."""
        self._age_due_ns = NEVER
        """Time of the next removal by max_age from ``_aged_seq`` on, from the last pass; NEVER: it found no message."""
        self._in_flight = 0
        self._marked: dict[int, int] = {}
        """Maps a message that its marker has not removed to the time of the marker."""
        self._replaced: dict[bytes, int] = {}
        """Maps a subject to the message whose marker is being published."""
        self._due_from = self._age_from = 0
        """Sequence at which the next pass continues, for TTLs and for max_age; 0: at the beginning."""

    def configure(self, config: StreamConfig, marker: bytes) -> None:
        """Set the limits of ``config``, and the headers of its delete markers (b"": none)."""
        self._max_age_ns = max(config.max_age, 0)
        self._marker = marker
        self._aged_seq, self._age_due_ns = 0, NEVER
        self._due_from = self._age_from = 0
        self.passes.cancel()
        self.arm()

    def restore(self, expiries: Expiries) -> None:
        """Copy the persisted expiries of a restored stream."""
        if expiries:
            self.expiries = expiries.copy()
            self.arm()

    def close(self) -> None:
        """Stop the timer."""
        self.passes.cancel()

    # --- changes ------------------------------------------------------------------------------------------------------

    def added(self, rows: Sequence[tuple[int, int]], time_ns: int) -> None:
        """Add messages (sequence, TTL in seconds), which were appended at ``time_ns``."""
        self.add([seq for seq, _ in rows], [expires_at(time_ns, ttl) for _, ttl in rows])

    def add(self, seqs: Sequence[int], times: Sequence[int]) -> None:
        """Add messages that were appended and expire at ``times``."""
        self.expiries.add(seqs, times)
        if not self.passes.in_time_for(min(times)):
            self.passes.cancel()
            self.arm()

    def removed(self, first: int, last: int) -> None:
        """Drop the expiries of the messages first..last, which were removed."""
        self.expiries.remove(first, last)

    def record(self, block: OpenBlock[object], first_seq: int = 0) -> Expiry | None:
        """Return the record of the expiries in ``block``, from ``first_seq`` on; None if it has none."""
        first_seq = max(first_seq, block.first_seq)
        if not block.count or self.expiries.last_seq < first_seq:
            return None
        seqs, times = self.expiries.rows(first_seq, block.last_seq)
        return Expiry(seqs, times) if seqs else None

    def replaced_by_marker(self, subject: bytes) -> int:
        """Return the message that a marker of this stream is about to replace; 0: none."""
        return self._replaced.get(subject, 0)

    @property
    def ages_one_by_one(self) -> bool:
        """True if max_age must check each message."""
        return bool(self._max_age_ns and (self._marker or self.expiries.nevers))

    # --- the timer ----------------------------------------------------------------------------------------------------

    def arm(self) -> None:
        """Set the timer for the next expiry."""
        if self.passes.waiting:
            return
        due_ns = self.expiries.next_ns
        if self.ages_one_by_one and self._live.msgs:
            due_ns = min(due_ns, self._age_due_ns if self._age_due_ns != NEVER else self._first_age_due_ns())
        if due_ns != NEVER:
            self.passes.set(due_ns)

    def _first_age_due_ns(self) -> int:
        """Return when max_age may have something to remove, without checking messages."""
        live = self._live
        if not live.blocks_loaded:
            return live.ahead.stored_at(live.first_seq, live.first_time_ns) + self._max_age_ns
        block = next(blocks_from(live, max(self._aged_seq, live.first_seq), live.last_seq), None)
        return NEVER if block is None else self._age_due(block.first_seq, block.first_time_ns)

    def _age_due(self, seq: int, time_ns: int) -> int:
        """Return when message ``seq``, dated ``time_ns``, reaches max_age."""
        return self._live.ahead.stored_at(seq, time_ns) + self._max_age_ns

    async def _carry_out(self) -> tuple[int, int]:
        """Run one pass; return when the next one is due, and the minimum delay until then."""
        wait_ns = _APART_NS
        try:
            await self._live.load_blocks()
            if self._marker:
                await self._subjects.build()
            more = True
            while more:
                now_ns = self._clock.now_ns()
                if self._marked:
                    self._marked = {seq: at_ns for seq, at_ns in self._marked.items()
                                    if now_ns - at_ns < _MARKED_APART_NS and self._live.find(seq) is not None}
                    self._replaced = {subject: seq for subject, seq in self._replaced.items() if seq in self._marked}
                more = await self._expire_due(now_ns)
                if self.ages_one_by_one:
                    more |= await self._age(now_ns)
                self._log.urgent()
                await asyncio.sleep(0)
        except Exception as error:
            self._tasks.warn("expired messages stay for now: %s", error)
            wait_ns = _RETRY_NS
        if not self.ages_one_by_one:
            self._retention.arm()
        return self._next_due_ns(), wait_ns

    def _next_due_ns(self) -> int:
        due_ns = self.expiries.next_ns
        if self.ages_one_by_one and self._live.msgs:
            due_ns = min(due_ns, self._age_due_ns)
        if self._marked and due_ns <= (now_ns := self._clock.now_ns()):
            # A message with a refused marker is due all the time: wait until its retry.
            due_ns = min(*self._marked.values(), now_ns) + _MARKED_APART_NS
        return due_ns

    # --- one slice ----------------------------------------------------------------------------------------------------

    async def _expire_due(self, now_ns: int) -> bool:
        """Remove some of the messages that have expired by ``now_ns``; return whether there are more."""
        live = self._live
        if len(self._marked) >= _MARKED_MAX:
            return False
        found = self.expiries.due(now_ns, _ROWS_AT_ONCE, self._due_from)
        if not found:
            self._due_from = 0
            return False
        due = [seq for seq in found if seq not in self._marked]
        if not due:
            self._due_from = found[-1] + 1
        at = 0
        while at < len(due):
            block = live.find(due[at])
            if block is None:
                self.expiries.remove(due[at], due[at])
                at += 1
                continue
            if (not self._marker and block.first_seq <= live.first_seq <= due[at] <= block.last_seq
                    and self.expiries.count_due(now_ns, due[at], block.last_seq) == block.live_msgs):
                # The whole block has expired: remove it without its rows. Most streams give all messages the same TTL.
                self._retention.remove_front(block.last_seq + 1, record=True)
                return True
            end = at + 1
            while end < len(due) and due[end] <= block.last_seq:
                end += 1
            reached = await self._remove(block, due[at:end])
            if len(self._marked) >= _MARKED_MAX:
                self._due_from = reached + 1
                return False
            at = end
        return True

    async def _age(self, now_ns: int) -> bool:
        """Remove messages older than max_age that may expire, from the first block that has some.

        Returns: whether there may be more.
        """
        live, limit_ns, marked = self._live, now_ns - self._max_age_ns, self._marked
        stored_by = live.ahead.stored_by(limit_ns)
        self._age_due_ns = now_ns
        if len(marked) >= _MARKED_MAX:
            return False
        due_ns = NEVER
        for block in blocks_from(live, max(self._aged_seq, self._age_from, live.first_seq), live.last_seq):
            first = max(block.first_seq, self._age_from, live.first_seq)
            never = self.expiries.never(first, block.last_seq)
            if block.first_time_ns > limit_ns and block.first_seq > stored_by:
                due_ns = self._age_due(block.first_seq, block.first_time_ns)
                break
            if never and len(never) == block.live_msgs:
                if block.open is None and not self._age_from:
                    self._aged_seq = block.last_seq + 1
                continue
            rows = await self._heads.load(block)
            if rows is None or not live.holds(block):
                return True
            end = rows.ordinal_at(limit_ns + 1)
            last_old = max(rows.seq_of(end - 1) if end else 0, min(stored_by, block.last_seq))
            old = live.live_seqs(block, rows, first, last_old) if last_old >= first else ()
            seqs = [seq for seq in old if seq not in never and seq not in marked][:_ROWS_AT_ONCE]
            if seqs:
                reached = await self._remove(block, seqs)
                if len(marked) >= _MARKED_MAX:
                    self._age_from = reached + 1
                return True
            left = [seq for seq in live.live_seqs(block, rows, first, block.last_seq) if seq not in never]
            if any(seq in marked for seq in left):
                self._age_from = block.last_seq + 1
            young = next((seq for seq in left if seq not in marked), None)
            if young is not None:
                due_ns = self._age_due(young, rows.time_of(rows.ordinal_of(young)))
                break
        if not self._age_from:  # otherwise some due messages were skipped
            self._age_due_ns = due_ns
        self._age_from = 0
        return False

    async def _remove(self, block: LiveBlock, seqs: Sequence[int]) -> int:
        """Remove live messages of one block, rising; or publish markers for them. Returns: the last one tried."""
        live = self._live
        rows = await self._heads.load(block)
        if rows is None:
            return seqs[-1]
        if self._marker:
            return await self._mark_or_remove(block, rows, seqs)
        for at in range(0, len(seqs), _ROWS_AT_ONCE):
            self._remove_now(block, rows, [seq for seq in seqs[at:at + _ROWS_AT_ONCE] if live.find(seq) is block])
            self._in_flight += _ROWS_AT_ONCE
            if self._in_flight >= _ROWS_IN_FLIGHT:
                self._in_flight = 0
                self._log.urgent()
                await self._log.persisted()
            else:
                await asyncio.sleep(0)
        return seqs[-1]

    def _remove_now(self, block: LiveBlock, rows: Rows, seqs: Sequence[int]) -> None:
        if not seqs:
            return
        size = 0
        for seq in seqs:
            at = rows.ordinal_of(seq)
            size += rows.size_of(at)
            self._subjects.removed(rows.subject_of(at), seq)
        shared = rows.subject_of(rows.ordinal_of(seqs[0])) if len(seqs) == 1 else None
        self._retention.remove(block, seqs, size, shared)

    async def _mark_or_remove(self, block: LiveBlock, rows: Rows, seqs: Sequence[int]) -> int:
        """Do the same as ``_remove`` with markers; stop at ``_MARKED_MAX``."""
        live = self._live
        done = 0
        for seq in seqs:
            subject = rows.subject_of(rows.ordinal_of(seq))
            marks = (await self._count(subject)) == 1 and not await self._is_marker(seq)
            if live.find(seq) is not block:
                continue
            if marks:
                self._replaced[subject] = seq
                self._publish([(subject, b"", len(self._marker), self._marker)], self.source)
                if live.find(seq) is None:
                    self._replaced.pop(subject, None)
                else:  # the marker is refused, or waits
                    self._marked[seq] = self._clock.now_ns()
                    if len(self._marked) >= _MARKED_MAX:
                        return seq
            else:
                self._remove_now(block, rows, (seq,))
            done += 1
            if done % _MARKERS_AT_ONCE == 0:
                await asyncio.sleep(0)
        return seqs[-1]

    async def _count(self, subject: bytes) -> int:
        index = await self._subjects.build()
        return index.count(subject, self._live.first_seq)

    async def _is_marker(self, seq: int) -> bool:
        msg = await self._queries.get(seq)
        return msg is not None and bool(
            header_block.get(msg.headers, b"Nats-Marker-Reason")
            or header_block.get(msg.headers, b"KV-Operation") == b"PURGE")
