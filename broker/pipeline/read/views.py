"""The views other than messages: subjects by block, blocks, streams, consumers.

``subjects`` is read in tasks like messages, but from indexes alone; if a block's summary is known and the whole block
is wanted, nothing is read. The other views are the catalogue itself, which the driver has.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa

from broker.pipeline.plan.plan import ScanTask
from broker.pipeline.plan.selection import Selection
from broker.pipeline.plan.snapshot import StreamSnapshot, key_of
from broker.pipeline.read.bodies import Slice
from broker.pipeline.read.decode import readable
from broker.pipeline.read.missing import STRICT, LossRule
from broker.pipeline.read.scan import read_blocks
from broker.pipeline.store.objects import ObjectClient
from broker.storage.state.consumer import ConsumerState
from broker.storage.state.table import BlockEntry

__all__ = ["catalogue_rows", "live_messages", "read_subjects"]

_CHUNK_ROWS: Final = 10_000


def read_subjects(objects: ObjectClient, tasks: Sequence[ScanTask], selection: Selection, schema: pa.Schema, *,
                  prefetch: int = 3, rule: LossRule = STRICT) -> Iterator[pa.RecordBatch]:
    """The subjects of ``tasks``, sorted by bytes within each block: the number of live, selected messages of each, and
    the sequences of the first and last.

    Args: as for ``read_tasks``; a task whose ``ref`` has its subjects may save a get. Raises: as ``read_tasks``.
    """
    return read_blocks(objects, tasks, selection, _Subjects(schema, selection), prefetch=prefetch, rule=rule)


class _Subjects:
    """The rows of the view ``subjects``."""

    bodies = by_row = False

    def __init__(self, schema: pa.Schema, selection: Selection) -> None:
        self.schema = schema
        self._selection = selection

    def from_ref(self, task: ScanTask) -> Callable[[], pa.RecordBatch] | None:
        summary = task.ref.subjects
        if summary is None or task.dead is not None or self._selection.needs_time():
            return None
        rows = self._selection.rows_of(summary)
        if not all(task.first_seq <= first and last <= task.last_seq for _, _, first, last in rows):
            return None
        names = pa.array([row[0] for row in rows], pa.binary())
        return partial(self._batch, task, names, *([row[i] for row in rows] for i in (1, 2, 3)))

    def make(self, slices: Sequence[Slice]) -> pa.RecordBatch:
        [(task, block, rows, _, _)] = slices
        head = block.index
        if len(rows) == block.count:  # the index has counted them
            firsts, lasts = (np.asarray(column).astype(np.int64)
                             for column in (head.subject_firsts, head.subject_lasts))
            return self._batch(task, block.names, np.asarray(head.subject_counts).astype(np.int64), block.seq(firsts),
                               block.seq(lasts))
        ids, counts, firsts, lasts = block.occurrences(rows)
        return self._batch(task, block.names.take(pa.array(ids)), counts, block.seq(firsts), block.seq(lasts))

    def _batch(self, task: ScanTask, names: pa.BinaryArray, counts: Any, firsts: Any, lasts: Any) -> pa.RecordBatch:
        texts = {"stream": task.stream, "account": task.account, "block": task.key}
        numbers = {"count": counts, "first_seq": firsts, "last_seq": lasts}
        arrays = []
        for field in self.schema:
            name = field.name.lower()
            if name == "subject":
                arrays.append(names if field.type == pa.binary() else readable(names))
            elif name in numbers:
                arrays.append(pa.array(numbers[name], field.type))
            else:
                arrays.append(pa.repeat(pa.scalar(_text(texts[name])), len(names)))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def catalogue_rows(view: str, snapshots: Iterable[StreamSnapshot], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of the views ``blocks``, ``streams`` and ``consumers``, with the columns of ``schema``; reads nothing.

    Rows are in the order of ``snapshots``; a stream's blocks in order of sequence, its consumers by name.
    """
    names = [field.name.lower() for field in schema]
    rows = (_blocks(snapshots, summaries="subjects" in names) if view == "blocks"
            else _streams(snapshots) if view == "streams" else _consumers(snapshots))
    some: list[dict[str, Any]] = []
    for row in rows:
        some.append(row)
        if len(some) == _CHUNK_ROWS:
            yield _batch_of(some, names, schema)
            some = []
    if some:
        yield _batch_of(some, names, schema)


def _batch_of(rows: list[dict[str, Any]], names: list[str], schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array([row[name] for row in rows], field.type) for name, field in zip(names, schema, strict=True)],
        schema=schema)


def live_messages(entry: BlockEntry, first_seq: int) -> int:
    """Return the number of live messages in a block; an upper bound for blocks with gaps. ``first_seq`` is the
    stream's."""
    ref = entry.ref
    first = max(first_seq, ref.first_seq)
    if first == ref.first_seq and not ref.gapless:
        return max(0, ref.count - entry.dead_count)
    live = min(ref.count, ref.last_seq - first + 1)
    if ref.gapless and entry.dead is not None:
        live -= sum(last - max(start, first) + 1 for start, last in entry.dead.seqs() if last >= first)
    return max(0, live)


def _blocks(snapshots: Iterable[StreamSnapshot], *, summaries: bool) -> Iterator[dict[str, Any]]:
    for snapshot in snapshots:
        account, stream = _text(snapshot.account), _text(snapshot.name)
        for entry in snapshot.blocks:
            ref = entry.ref
            live = live_messages(entry, snapshot.first_seq)
            summary = ref.subjects if summaries else None  # unpacked at each access
            subjects = None if summary is None else [
                {"subject": subject.decode("utf-8", "replace"), "count": count, "first_seq": first, "last_seq": last}
                for subject, count, first, last in summary]
            yield {
                "account": account, "stream": stream,
                "block": key_of(snapshot.shard, snapshot.account, snapshot.name, ref),
                "first_seq": ref.first_seq, "last_seq": ref.last_seq, "messages": ref.count, "live": live,
                "dead": ref.count - live, "bytes": ref.bytes, "first_time": _time(ref.first_time_ns),
                "last_time": _time(ref.last_time_ns), "epoch": ref.position.epoch, "number": ref.position.number,
                "core_offset": ref.core_offset, "core_bytes": ref.core_bytes, "index_offset": ref.index_offset,
                "index_bytes": ref.index_bytes, "frames_offset": ref.frames_offset, "frames_bytes": ref.frames_bytes,
                "subjects": subjects}


def _streams(snapshots: Iterable[StreamSnapshot]) -> Iterator[dict[str, Any]]:
    for snapshot in snapshots:
        blocks = stored = 0
        for entry in snapshot.blocks:
            blocks += 1
            stored += entry.ref.core_bytes + entry.ref.index_bytes + entry.ref.frames_bytes
        yield {
            "account": _text(snapshot.account), "name": _text(snapshot.name), "stream_id": f"{snapshot.stream_id:016x}",
            "shard": snapshot.shard, "config": json.dumps(snapshot.config, sort_keys=True),
            "created": _time(snapshot.created_ns), "first_seq": snapshot.first_seq, "last_seq": snapshot.last_seq,
            "messages": snapshot.msgs, "bytes": snapshot.bytes, "first_time": _time(snapshot.first_time_ns),
            "last_time": _time(snapshot.last_time_ns), "blocks": blocks, "stored_bytes": stored,
            "consumers": len(snapshot.consumers), "position": str(snapshot.position),
            "offline": None if snapshot.offline is None else _text(snapshot.offline)}


def _consumers(snapshots: Iterable[StreamSnapshot]) -> Iterator[dict[str, Any]]:
    for snapshot in snapshots:
        for name in sorted(snapshot.consumers):
            consumer: ConsumerState = snapshot.consumers[name]
            yield {
                "account": _text(snapshot.account), "stream": _text(snapshot.name), "name": _text(name),
                "config": json.dumps(consumer.config, sort_keys=True), "created": _time(consumer.created_ns),
                "delivered_consumer_seq": consumer.delivered_cseq, "delivered_stream_seq": consumer.delivered_sseq,
                "ack_floor_consumer_seq": consumer.floor_cseq, "ack_floor_stream_seq": consumer.floor_sseq,
                "num_ack_pending": len(consumer.pending), "num_redelivered": len(consumer.redelivered),
                "last_delivered": _time(consumer.last_active_ns), "last_ack": _time(consumer.last_ack_ns)}


def _time(ns: int) -> int | None:
    """Convert ns to µs, the unit of Spark's timestamps; None for 0."""
    return ns // 1000 if ns else None


def _text(text: str) -> str:
    """Replace lone surrogates, which JSON allows and UTF-8 does not."""
    return text.encode("utf-8", "replace").decode()
