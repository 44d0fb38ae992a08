"""Puts rows beside a stream as staged runs: the part of a write that runs in tasks, and the same on the driver.

    task     batches ──> below ``hand_over_bytes``: the rows themselves ──────────┐
                     └─> otherwise: runs, put as they fill, and their entries ────┤
    driver   results in the order of partitions ──> rows of adjacent small tasks ─┴─> runs ──> entries of one request

A row that no stream can store ends its task with a reason instead of an exception, since Spark would repeat the task.
So does a store that refuses to be written. The driver then raises one error, and nothing is requested.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import repeat
from typing import Final

import pyarrow as pa

from broker.pipeline.errors import PipelineError
from broker.pipeline.store.objects import ObjectClient
from broker.pipeline.write.columns import Columns, Rows
from broker.pipeline.write.plain import PlainRows
from broker.storage.format.errors import KeyMissing
from broker.storage.format.request import StagedRun
from broker.storage.format.section import SectionCodec
from broker.storage.keys.reading import writer_codec
from broker.storage.objectstore.base import StoreError
from broker.storage.staging.headers import ACTED_UPON
from broker.storage.staging.writer import Acting, RowRefused, RunWriter

__all__ = ["Result", "Target", "codec_for", "stage_batches", "stage_results"]

_HAND_OVER_BYTES: Final = 1 << 20
"""A task with fewer bytes hands its rows to the driver: a run of its own would cost an object."""

_AHEAD_NS: Final = 60_000_000_000
"""The time by which the clock of the machine that made a row may be ahead. A later time is no time of a message: the
stream would lower it to the time of adoption."""

_SHOWN: Final = 60
_ACTING: Final = re.compile(rb"(?<=\r\n)(?:" + b"|".join(sorted(ACTED_UPON)) + rb"):[^\r\n]*\r\n")


@dataclass(frozen=True)
class Target:
    """The stream that is written, and how rows are treated."""

    account: str
    stream: str
    stream_id: int
    shard: int
    times: str = "refuse"
    acting: str = "refuse"
    """The treatment of headers that ask the server for something: "refuse", "strip" or "apply"."""

    @property
    def acting_request(self) -> Acting:
        """The treatment of such headers that remain in the rows."""
        return Acting.APPLY if self.acting == "apply" else Acting.REFUSE


@dataclass(slots=True)
class Result:
    """The outcome of one task: the entries of its runs, or its rows, or the reason for which the write fails."""

    partition: int
    entries: list[StagedRun] = field(default_factory=list)
    rows: list[pa.RecordBatch] = field(default_factory=list)
    refused: str | None = None
    writer: str = ""
    """The ID of the streaming query."""


class _Refused(Exception):
    """A row cannot be stored."""


def stage_batches(objects: ObjectClient, target: Target, columns: Columns, partition: int,
                  batches: Iterable[pa.RecordBatch], *, hand_over_bytes: int = _HAND_OVER_BYTES) -> Result:
    """Stage the rows of one task, or return them if they are few. Reads ``batches`` to the end unless a row is
    refused."""
    result = Result(partition)
    few: list[pa.RecordBatch] = []
    writer: _Stager | None = None
    size = 0
    try:
        for batch in batches:
            if writer is None:
                size += batch.nbytes
                few.append(batch)
                if size < hand_over_bytes:
                    continue
                writer = _Stager(objects, target, columns)
                waiting, few = few, []
            else:
                waiting = [batch]
            for some in waiting:
                writer.add(partition, some)
        if writer is not None:
            result.entries = writer.finish()
        else:
            result.rows = few
    except (_Refused, PipelineError) as error:
        result.refused = str(error)
    return result


def stage_results(objects: ObjectClient, target: Target, columns: Columns, results: Iterable[Result]
                  ) -> list[StagedRun]:
    """Return the entries of a write, in the order of partitions; stage rows that tasks returned.

    Raises: PipelineError if a task or a row was refused.
    """
    ordered = sorted(results, key=lambda one: one.partition)
    for one in ordered:
        if one.refused is not None:
            raise PipelineError(one.refused)
    entries: list[StagedRun] = []
    stager: _Stager | None = None
    try:
        for one in ordered:
            if one.entries:
                if stager is not None:
                    entries += stager.finish()
                    stager = None
                entries += one.entries
            for rows in one.rows:
                stager = stager or _Stager(objects, target, columns)
                stager.add(one.partition, rows)
        if stager is not None:
            entries += stager.finish()
    except _Refused as error:
        raise PipelineError(str(error)) from None
    return entries


def codec_for(objects: ObjectClient, target: Target) -> SectionCodec:
    """Return the codec that seals what is put for ``target``. Raises: PipelineError."""
    try:
        return writer_codec(objects.url, target.shard, target.stream_id, objects.list, objects.get)
    except (KeyMissing, StoreError) as error:
        raise PipelineError(str(error)) from None


class _Stager:
    """A RunWriter whose runs are put as they fill."""

    def __init__(self, objects: ObjectClient, target: Target, columns: Columns) -> None:
        self._objects = objects
        self._target = target
        self._columns = columns
        self._writer = RunWriter(target.account, target.stream, target.stream_id, now_ns=time.time_ns(),
                                 acting=target.acting_request, codec=codec_for(objects, target))
        self._plain = PlainRows(self._writer)
        self._counts: dict[int, int] = {}
        """The number of rows added so far, by partition."""

    def add(self, partition: int, batch: pa.RecordBatch) -> None:
        """Add rows, and put the runs that are full. Raises: _Refused for the first row that cannot be stored; NoStore;
        Unreachable."""
        before = self._counts.get(partition, 0)
        if batch.num_rows and not self._add_plain(batch):
            self._plain.flush()
            self._add_each(partition, before, self._columns.rows(batch, times=self._times))
        self._counts[partition] = before + batch.num_rows
        for run in self._writer.take():
            self._objects.put(run.key, run.data)

    @property
    def _times(self) -> bool:
        return self._target.times != "ignore"

    def _add_plain(self, batch: pa.RecordBatch) -> bool:
        """Add rows that have only subjects and data, all at once; return False if they have more, or one is refused."""
        plain = self._columns.plain(batch, times=self._times)
        if plain is None:
            return False
        try:
            self._plain.add(*plain)
        except RowRefused:
            return False
        return True

    def _add_each(self, partition: int, before: int, rows: Rows) -> None:
        """Add rows one by one. Raises: _Refused for the first row that cannot be stored."""
        refuse_raised = self._target.times == "refuse"
        strip = self._target.acting == "strip"
        writer = self._writer
        latest_ns = time.time_ns() + _AHEAD_NS
        at = 0
        try:
            for at, (subject, data, headers, msg_id, time_ns) in enumerate(_each(rows)):  # noqa: B007
                if subject is None:
                    raise RowRefused("its subject is NULL")
                if headers and strip:
                    headers = _stripped(headers)
                writer.add(subject, data or b"", headers or b"", time_ns=time_ns, msg_id=msg_id or None)
                if refuse_raised and time_ns is not None and time_ns > latest_ns:
                    raise RowRefused(f"its time is in the future, {time_ns} ns since 1970, and would be lowered to "
                                     f"that of adoption: correct it, or set option times to raise or ignore")
                if refuse_raised and writer.raised:
                    raise RowRefused("its time is below that of an earlier row: sort the rows by time, or set option "
                                     "times to raise or ignore")
        except RowRefused as error:
            raise _Refused(f"row {before + at} of partition {partition} ({_shown(rows, at)}) cannot be stored: "
                           f"{error}") from None

    def finish(self) -> list[StagedRun]:
        """Put the last runs; return the entries of all. Raises: NoStore; Unreachable."""
        self._plain.flush()
        for run in self._writer.finish():
            self._objects.put(run.key, run.data)
        return self._writer.entries


def _each(rows: Rows) -> Iterator[tuple[bytes | None, bytes | None, bytes | None, bytes | None, int | None]]:
    return zip(rows.subjects, rows.data, *(repeat(None) if column is None else column for column in rows[2:]),
               strict=False)


def _stripped(headers: bytes) -> bytes:
    left = _ACTING.sub(b"", headers)
    return b"" if left == b"NATS/1.0\r\n\r\n" else left


def _shown(rows: Rows, at: int) -> str:
    subject, data = rows.subjects[at], rows.data[at]
    parts = [f"{name} {_short(value)}" for name, value in (("subject", subject), ("data", data)) if value is not None]
    return ", ".join(parts) or "NULL"


def _short(value: bytes) -> str:
    text = value[:_SHOWN].decode("utf-8", "replace")
    return repr(text) + ("…" if len(value) > _SHOWN else "")
