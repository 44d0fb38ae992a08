"""Publishes for a stream's scheduled messages when they are due.

Owns: the next due time of each schedule, reading a schedule and publishing for it, its record in the store.
Does not own: the timer (state.due_passes), the recognition of schedules and the messages that they publish
(publish.schedules), patterns (publish.cron).

    commit of a schedule ──> set ──> schedules ── timer ──> pass ──> publish, like any message
    commit of the published message ──> set: due again, or the schedule is purged with it, in one block

A schedule fires once for all the times it missed. A newer schedule of its subject replaces it by a roll-up. It becomes
void when its subject gets any other message that no schedule has published. A failed publish is retried every 2
seconds.

Nothing fires while the clock is not trusted.

Source: nats-server, server/scheduler.go.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from broker.base.gotime import format_time
from broker.jetstream.bus import OwnSource
from broker.jetstream.stream.publish import schedules
from broker.jetstream.stream.state.ahead import AHEAD_NS
from broker.jetstream.stream.state.due_passes import DuePasses
from broker.jetstream.wire.errors import ApiError
from broker.protocol import headers as header_block
from broker.storage.format.records.schedule import Schedule
from broker.storage.state.expiries import NEVER, Expiries

if TYPE_CHECKING:
    from broker.jetstream.bus import Source
    from broker.jetstream.stream.shared.stream_parts import StreamParts
    from broker.jetstream.stream.state.stored import StoredMsg

__all__ = ["Scheduler"]

_APART_NS = 250_000_000
"""Minimum delay before anything fires, as on nats-server: schedules due close together fire together."""

_RETRY_NS = 2_000_000_000
_AT_ONCE = 64
"""Schedules fired in one turn of the loop."""


class Scheduler:
    """The schedules of one stream, which publishes for them as ``source``."""

    def __init__(self, parts: StreamParts) -> None:
        self.schedules = Expiries()
        self.source: Source = OwnSource()
        self._live, self._subjects, self._queries = parts.live, parts.subjects, parts.queries
        self._log, self._tasks, self._clock = parts.log, parts.tasks, parts.clock
        self._publish = parts.stream.publish_own
        self.passes = DuePasses(parts.log, parts.tasks, parts.clock, "schedules", self._fire, untrusted_ns=_RETRY_NS)
        self.changed: dict[int, int] = {}
        """Changes that are not recorded yet: sequence → due time; 0: the schedule never fires again."""
        self._fired: dict[bytes, tuple[int, int, int, int]] = {}
        """Subject of a schedule that fired → its sequence, its next due time, the time it fired, and the stream's last
        sequence when it began to fire."""
        self._compared = False
        """True once due times were compared with the clock, after the stream's times were found to be ahead of it."""

    def restore(self, known: Expiries) -> None:
        """Restore the persisted schedules."""
        if known:
            self.schedules = known.copy()
            if self._live.ahead.active:
                self.passes.set(self._clock.now_ns())
            else:
                self.arm()

    def close(self) -> None:
        """Stop the timer."""
        self.passes.cancel()

    # --- for publishing -----------------------------------------------------------------------------------------------

    def may_end(self, subject: bytes) -> bool:
        """Return whether the last message of ``subject`` is a schedule, or there is none. Raises: NotLoaded."""
        seq = self._subjects.last(subject)
        return not seq or bool(self.schedules.rows(seq, seq)[0])

    def next_of(self, subject: bytes) -> tuple[int, int] | None:
        """Return sequence and next time of the schedule that has just fired; None if it has published or was
        removed."""
        fired = self._fired.get(subject)
        return None if fired is None else fired[:2]

    def ended_since(self, subject: bytes) -> bool:
        """Return whether the subject of the schedule that just fired has a newer message, which may end the schedule.

        Raises: NotLoaded.
        """
        return self._subjects.last(subject) > self._fired[subject][3]

    def set(self, rows: Sequence[tuple[int, int]]) -> None:
        """Set the due times of schedules that were just appended, or are due again: (sequence, due time)."""
        for seq, due_ns in rows:
            self.changed[seq] = due_ns
            self.schedules.put(seq, due_ns)
            self._fired = {subject: fired for subject, fired in self._fired.items() if fired[0] != seq}
        if not self.passes.in_time_for(self.schedules.next_ns):
            self.passes.cancel()
            self.arm()

    def put(self, seq: int, due_ns: int) -> None:
        """Set the due time of one schedule in a stream that is not in use yet: its timer waits for ``arm``."""
        self.changed[seq] = due_ns
        self.schedules.put(seq, due_ns)

    def removed(self, first: int, last: int) -> None:
        """Drop the schedules among the messages first..last, which were removed."""
        self.schedules.remove(first, last)
        if self._fired:
            self._fired = {subject: fired for subject, fired in self._fired.items() if not first <= fired[0] <= last}

    def record(self) -> Schedule | None:
        """Return the record of the changes since the last ``pop_record``, or None."""
        if not self.changed:
            return None
        changed = sorted((seq, due_ns) for seq, due_ns in self.changed.items()
                         if not due_ns or self.schedules.rows(seq, seq)[0])
        return Schedule([seq for seq, _ in changed], [due_ns for _, due_ns in changed]) if changed else None

    def pop_record(self) -> Schedule | None:
        """Return the record of the changes since the last block, or None."""
        record = self.record()
        self.changed = {}
        return record

    # --- firing -------------------------------------------------------------------------------------------------------

    def arm(self) -> None:
        """Start the timer for the next due schedule."""
        if not self.passes.waiting and (due_ns := self.schedules.next_ns) != NEVER:
            self.passes.set(due_ns, _APART_NS)

    async def _fire(self) -> tuple[int, int]:
        """Run one pass; return when the next one is due, and the minimum delay until then."""
        wait_ns = _APART_NS
        try:
            await self._live.load_blocks()
            if self._live.ahead.active and not self._compared:
                await self._bring_forward()
                self._compared = True
            while due := self._due():
                for seq in due[:_AT_ONCE]:
                    await self._fire_one(seq)
                await asyncio.sleep(0)
        except Exception as error:
            self._tasks.warn("scheduled messages are late: %s", error)
            wait_ns = _RETRY_NS
        due_ns = self.schedules.next_ns
        if self._fired and due_ns <= self._clock.now_ns():
            due_ns = min(at_ns for _, _, at_ns, _ in self._fired.values()) + _RETRY_NS
        return due_ns, wait_ns

    async def _bring_forward(self) -> None:
        """Correct the due times of repeating schedules that were set by a clock that was years ahead."""
        now_ns = self._clock.now_ns()
        for seq, due_ns in zip(*self.schedules.rows(1, self._live.last_seq), strict=True):
            if due_ns <= now_ns + AHEAD_NS or (schedule := await self._queries.get(seq)) is None:
                continue
            headers = schedule.headers
            try:
                again = schedules.firing(header_block.get(headers, schedules.PATTERN) or b"",
                                         schedules.zone_of(headers), now_ns, now_ns)
            except ApiError:
                continue
            if again is not None and again.repeats and again.at_ns < due_ns and self.schedules.rows(seq, seq)[0]:
                self.set(((seq, again.at_ns),))
            await asyncio.sleep(0)

    def _due(self) -> list[int]:
        now_ns = self._clock.now_ns()
        self._fired = {subject: fired for subject, fired in self._fired.items() if now_ns - fired[2] < _RETRY_NS}
        waiting = {seq for seq, _, _, _ in self._fired.values()}
        return [seq for seq in self.schedules.due(now_ns, _AT_ONCE + len(waiting)) if seq not in waiting]

    async def _fire_one(self, seq: int) -> None:
        last_seq = self._live.last_seq
        schedule = await self._queries.get(seq)
        _, times = self.schedules.rows(seq, seq)
        if schedule is None or not times:
            self.schedules.remove(seq, seq)
            return
        headers, now_ns = schedule.headers, self._clock.now_ns()
        zone_name = schedules.zone_of(headers)
        try:
            again = schedules.firing(header_block.get(headers, schedules.PATTERN) or b"", zone_name, times[0], now_ns)
        except ApiError:
            again = None
        target = header_block.get(headers, schedules.TARGET)
        if again is None or not target or await self._is_void(schedule):
            self._end(seq)
            return
        content = schedule
        if source := header_block.get(headers, schedules.SOURCE):
            content = await self._queries.get_last(source) or schedule
        following = _time_text(again.at_ns, zone_name) if again.repeats else schedules.PURGE
        block = schedules.produced(headers, schedule.subject, content.headers, following)
        if self.schedules.rows(seq, seq)[0]:
            self._fired[schedule.subject] = seq, again.at_ns, now_ns, last_seq
            self._publish([(target, b"", len(block), block + content.payload)], self.source)

    async def _is_void(self, schedule: StoredMsg) -> bool:
        seq = schedule.seq
        while (later := await self._queries.get_next(schedule.subject, seq + 1)) is not None:
            if not header_block.get(later.headers, schedules.SCHEDULER):
                return True
            seq = later.seq
        return False

    def _end(self, seq: int) -> None:
        """Remove a schedule, which never fires again, though its message stays."""
        self.schedules.remove(seq, seq)
        self.changed[seq] = 0
        self._log.urgent()


def _time_text(at_ns: int, zone_name: bytes | None) -> bytes:
    """Return a time in RFC 3339, in the schedule's zone."""
    if zone_name is None:
        return format_time(at_ns).encode()
    local = datetime.fromtimestamp(at_ns // 1_000_000_000, ZoneInfo(zone_name.decode()))
    offset = local.utcoffset()
    shown = local.isoformat()
    return (shown[:19] + "Z" if not offset or local.tzinfo is UTC else shown).encode()
