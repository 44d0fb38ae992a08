"""The log of a shard on a directory: most commits go to the journal, and a segment is made of many of them.

    _commit_due ──┬──> journal: the growth of the open segment ── flushed ──> safe: readers see it, safe waiters
                  └──> segment: when the journal has no room, 50 to 100 ms after the first commit, or for a waiter
                       that needs the applied state

Owns when the open segment is committed to the journal, and the calls that wait for such a commit to be safe. Does not
own what the journal has of each block (``journaling``), nor the file (``journal``).

Source: docs/adr/0019-journal.md.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

from broker.storage.log.journal import Journal, JournalPlace
from broker.storage.log.journaling import Grown, Journaling
from broker.storage.log.log import Log
from broker.storage.log.open_segment import OpenSegment
from broker.storage.log.owner import BlockOwner
from broker.storage.log.putter import Segment
from broker.storage.log.waiters import Waiter

__all__ = ["JournaledLog"]

_GATHER_NS = 2_000_000
"""The longest time between a flush and the next commit while publishers send more. A commit and its flush cost 0.2 ms
of processor time, as much as a hundred messages."""


class _SafeCommit(NamedTuple):
    """A commit in the journal that is not safe yet: the calls that wait for it, and what it has of each stream."""

    waiters: list[Waiter]
    grown: list[Grown]


class JournaledLog(Log):
    """The log of one shard, with a journal."""

    _safe_is_persisted: ClassVar[bool] = False

    def __init__(self, journal: JournalPlace, *args: Any, **kwargs: Any) -> None:
        """Args: journal is where the log keeps its journal. For the others, see ``Log``; there must be no lease."""
        super().__init__(*args, **kwargs)
        if self.settings.lease_ns is not None:
            self.stop()
            raise ValueError("a log with a journal has no lease")  # ``_follow_schedule`` relies on it
        file = Journal(journal, self.epoch, self.nonce, self.position.number, self.fail, self._flushed)
        self._journaling = Journaling(file, self._leave_out, self.settings.codec)
        self._gathering = False
        """True between a flush and the next commit, while ``_gather`` is to run in a later turn of the loop."""

        self._unflushed: deque[_SafeCommit] = deque()
        """The commits in the journal that are not safe yet, in order."""

    async def wipe_journal(self) -> None:
        await self._journaling.journal.wipe(self.persisted)

    async def close(self) -> bool:
        drained = await super().close()
        await self._journaling.journal.close(remove=drained)
        return drained

    def fail(self, error: BaseException, notify: bool = True) -> None:
        if self.failure is None:
            super().fail(error, notify)
            self._unflushed.clear()

    # Calls that wait.

    def _commits_beside_puts(self) -> bool:
        return self._journaling.ready

    def _has_unsafe(self) -> bool:
        opened = self._open
        return opened.has_content and (not self._journaling.commits or bool(opened.tally.grown) or opened.content)

    def _make_urgent(self) -> None:
        if not self._open.urgent:
            self.urgent()

    def _wait_for_earlier(self, fn: Callable[..., object], args: tuple[Any, ...], of: BlockOwner | None) -> None:
        if of is not None and of.stream_id in self._failed:
            return
        waiter: Waiter = (fn, args, of, False)
        if self._journaling.gaps and (newest := self._segments.newest) is not None:
            newest.waiters.append(waiter)  # while there are gaps, the newest segment is one
        elif self._unflushed:
            self._unflushed[-1].waiters.append(waiter)
        elif self.failure is not None:
            return
        elif self._waiters.due:
            self._waiters.due.append(waiter)
        else:
            fn(*args)
            return
        self._waiters.hold(args)

    # Commits.

    def _follow_schedule(self) -> None:
        if self._open.urgent:
            if self._gathers():
                return
            self._commit_to_journal()
            if self.failure is not None or not (self._open.asked or self._segments.closed):
                return  # without a lease, the schedule's decision would be to wait
        super()._follow_schedule()

    def _gathers(self) -> bool:
        """Return whether the next commit waits for the end of a flush, because nothing needs more than the commit."""
        opened, journaling = self._open, self._journaling
        return ((self._gathering or journaling.journal.flushing) and journaling.ready and journaling.may_gather(opened)
                and not (opened.content or opened.overdue or self._waiters.persisted or self._segments.closed
                         or opened.full(self.settings)))

    def _flushed(self) -> None:
        """Prepare the next commit after a flush."""
        if self._open.urgent and not self._gathering:
            self._gathering = True
            self._gather(0, self._open.tally.count, self._clock.monotonic_ns() + _GATHER_NS)

    def _gather(self, quiet: int, count: int, until_ns: int) -> None:
        """Commit once no message was added in two turns of the loop: then publishers wait for their PubAcks.

        Args: ``quiet``: the number of such turns; ``count``: the number of messages in the last turn; ``until_ns``:
            when to commit in any case.
        """
        before, count = count, self._open.tally.count
        if quiet == 2 or not self._open.urgent or self._clock.monotonic_ns() >= until_ns:
            self._gathering = False
            self._commit_due()
        else:
            self._loop.call_soon(self._gather, 0 if count != before else quiet + 1, count, until_ns)

    def _commit_to_journal(self) -> None:
        """Journal the growth of the open segment, if nothing needs a segment at once.

        The segment stays open for ``settings.journal_ns`` more (``synced_journal_ns`` if each commit is flushed), so
        that it has many commits. If the commit cannot be journaled, it remains urgent.
        """
        opened, journaling = self._open, self._journaling
        if opened.content or (self._waiters.persisted and not self._waiters.any_safe) or opened.full(self.settings):
            return
        if not journaling.ready:
            journaling.journal.start()
            return
        urgent_ns = opened.urgent_ns
        grown = journaling.commit(opened, self._segments.next.number, self._failed, lambda: self._safe(urgent_ns))
        if grown is None:
            return
        self._unflushed.append(_SafeCommit(self._waiters.pop_safe(), grown))
        if not self._waiters.persisted:
            opened.urgent, opened.urgent_ns = False, 0
            self._timers.set_close(self.settings.synced_journal_ns if journaling.journal.sync
                                   else self.settings.journal_ns)
        if not journaling.journal.sync:
            self._safe(urgent_ns)

    def _safe(self, urgent_ns: int) -> None:
        """Let readers see the oldest commit in ``_unflushed``, which is safe, and make its calls."""
        if self.failure is not None:
            return
        commit = self._unflushed.popleft()
        for owner, last_seq in commit.grown:
            try:
                owner.safe(last_seq)
            except Exception as error:
                self._set_offline(owner, self._segments.next.number, error)
        if self.failure is not None:
            return
        self._waiters.make_due(commit.waiters)
        if not self._answering:
            self._answer()
        if urgent_ns:
            for listener in self._listeners:
                listener.commit_safe(urgent_ns)

    def _segment_closed(self, opened: OpenSegment, segment: Segment) -> None:
        """Journal the rest of a segment that was closed; its safe calls are made then.

        Until the rest is safe, the put of the next segment does not begin beside this one's. So if this segment has
        commits in the journal and is lost, no later segment is in the store.
        """
        journaling = self._journaling
        segment.journaled = segment.partly_safe = bool(journaling.commits)
        number, urgent_ns = segment.position.number, segment.urgent_ns

        def safe() -> None:
            segment.partly_safe = False
            self._safe(0 if segment.waiters else urgent_ns)
            if self._segments.closed:
                self.schedule_commit()

        grown = journaling.close(opened, number, segment.blocks, safe)
        if grown is not None:
            segment.journaled = segment.complete = segment.partly_safe = True
            self._unflushed.append(_SafeCommit([waiter for waiter in segment.waiters if not waiter[3]], grown))
            segment.waiters = [waiter for waiter in segment.waiters if waiter[3]]
            if not journaling.journal.sync:
                # This may be in the middle of a decision of a stream, which its readers must not interrupt.
                self._loop.call_soon(safe)

    def _may_be_journaled(self, stream_id: int, number: int) -> bool:
        return self._journaling.has(stream_id) or any(
            segment.journaled and segment.position.number >= number for segment in self._segments)

    def _persist(self, segment: Segment) -> None:
        self._journaling.persisted(segment.position.number, segment.complete)
        super()._persist(segment)
