"""Scan tasks whose object is missing: the present objects of their messages, and whether any message was removed.

An object is deleted if it has no live messages, or compaction has rewritten them, and the broker's ``reader_grace``
has passed. So a missing object means that the query takes longer than that, or uses a plan that old. The newest state
shows what remains:

    object named in it   Gone: the store is damaged
    moved, all live      the messages are read from the new objects
    some removed         a data loss, as ``LossRule`` defines it: the query fails, or logs it and reads the others
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Final, NamedTuple

from broker.pipeline.errors import DataLoss, Gone
from broker.pipeline.plan.plan import ScanTask
from broker.pipeline.plan.plan import tasks as tasks_of
from broker.pipeline.plan.progress import removes_singly
from broker.pipeline.plan.selection import Selection
from broker.pipeline.plan.snapshot import StreamSnapshot, newest
from broker.pipeline.store.objects import ObjectClient

__all__ = ["STRICT", "LossRule", "MissingObjects"]

_log = logging.getLogger(__name__)

MOVES_MAX: Final = 16


class LossRule(NamedTuple):
    """The definition of data loss for a query, and its effect."""

    fail: bool = True
    """True if a loss ends the query (``failOnDataLoss``)."""
    following: bool = False
    """True for a streaming query. Then, as in ``plan.progress``, only messages below the first sequence are lost, and
    none in streams whose rules remove single messages. A batch query must return every message that was live when it
    was planned."""


STRICT: Final = LossRule()


class MissingObjects:
    """The search for messages of missing objects, for one call of ``scan.read_blocks``."""

    def __init__(self, objects: ObjectClient, selection: Selection, rule: LossRule) -> None:
        self._objects = objects
        self._selection = selection
        self._rule = rule
        self._newer: dict[int, StreamSnapshot | None] = {}

    def find_moved(self, missing: ScanTask, moves: int, count_live: Callable[[ScanTask], int | None]) -> list[ScanTask]:
        """Return scan tasks for the remaining messages of ``missing``, in their present objects.

        Args: moves: how often these messages were searched for before. count_live returns the number of a task's live
            messages, whatever is selected; None if its object is missing.
        Raises: Gone; DataLoss; Damaged; Newer; Unreachable.
        """
        snapshot = self._newest(missing)
        found = self._tasks(snapshot, missing, self._selection)
        if moves >= MOVES_MAX or any(task.key == missing.key for task in found):
            raise Gone(f"{self._where(missing)}: {missing.key} is missing, and it holds live messages, "
                       f"{missing.first_seq} to {missing.last_seq}: restore the object from a backup, or read around "
                       f"it with startSeq and endSeq; `jetblock inspect --verify` shows what else is missing")
        if self._lost(missing, snapshot, count_live):
            self._report(missing, snapshot)
        return found

    def _newest(self, missing: ScanTask) -> StreamSnapshot | None:
        """Return the newest state of the stream, None if it was deleted. A known state that names the missing object is
        read again, since it may predate the deletion."""
        if missing.stream_id in self._newer:
            known = self._newer[missing.stream_id]
            if all(task.key != missing.key for task in self._tasks(known, missing, self._selection)):
                return known
        snapshot = self._newer[missing.stream_id] = newest(self._objects, missing.shard, missing.account,
                                                           missing.stream, missing.stream_id)
        return snapshot

    def _tasks(self, snapshot: StreamSnapshot | None, missing: ScanTask, selection: Selection) -> list[ScanTask]:
        if snapshot is None:
            return []
        return tasks_of(snapshot, replace(selection, first_seq=missing.first_seq, last_seq=missing.last_seq))

    def _lost(self, missing: ScanTask, snapshot: StreamSnapshot | None,
              count_live: Callable[[ScanTask], int | None]) -> bool:
        """Return whether messages that were live when the query was planned, and may be wanted, have been removed."""
        if self._rule.following:
            return snapshot is None or (snapshot.first_seq > missing.first_seq and not removes_singly(snapshot.config))
        dead = 0
        if missing.dead is not None:
            dead = sum(max(0, min(last, missing.last_seq) - max(first, missing.first_seq) + 1)
                       for first, last in missing.dead.seqs())
        due = missing.last_seq - missing.first_seq + 1 - dead
        ref = missing.ref
        if (missing.first_seq, missing.last_seq) == (ref.first_seq, ref.last_seq):
            due = min(due, ref.count - missing.removed)
        left = 0
        for task in self._tasks(snapshot, missing, Selection()):
            live = count_live(task)
            if live is None:
                return False  # it moved again, and so does its search
            left += live
        # It is unknown how many messages a block with gaps in its sequences held in a part of it. A loss is then
        # presumed, unless all messages of that part had been removed before.
        return left < due

    def _report(self, missing: ScanTask, snapshot: StreamSnapshot | None) -> None:
        why = ("the stream was deleted" if snapshot is None else
               f"messages between {missing.first_seq} and {missing.last_seq} were removed")
        what = f"{self._where(missing)}: {why} after this query was planned, and before it read them"
        if self._rule.fail:
            raise DataLoss(f"{what}; load again, and read within the broker's reader_grace, or raise that; to read "
                           f"what remains, set failOnDataLoss=false")
        _log.warning("%s", what)

    def _where(self, task: ScanTask) -> str:
        return f"{self._objects.url}: stream {task.account}/{task.stream}"
