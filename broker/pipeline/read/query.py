"""A batch query without Spark: partitions for its options, rows for each partition, and a forecast of the cost.

A plan is made from one snapshot. Each partition has all data that its task needs. A task reads a newer state only for
an object that is gone by then (``missing``).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa

from broker.pipeline.errors import BadOption
from broker.pipeline.plan.options import Options
from broker.pipeline.plan.plan import ScanTask, estimate, pack, tasks
from broker.pipeline.plan.selection import Selection
from broker.pipeline.plan.snapshot import StreamSnapshot, read_store
from broker.pipeline.read.buckets import Latest, latest_entries, read_entries, read_objects
from broker.pipeline.read.missing import LossRule
from broker.pipeline.read.scan import read_tasks
from broker.pipeline.read.views import catalogue_rows, read_subjects
from broker.pipeline.store.objects import open_object_client
from broker.storage.format.block import BlockPlace
from broker.storage.state.table import BlockEntry

__all__ = ["Part", "forecast", "packed", "partitions", "position", "read"]

_ROW_READERS: Final[Mapping[str, Callable[..., Iterator[pa.RecordBatch]]]] = {
    "messages": read_tasks, "subjects": read_subjects, "kv": read_entries, "objects": read_objects}
"""The functions that read rows from blocks, by view."""


@dataclass(frozen=True, slots=True)
class Part:
    """The work of one task: scan tasks; or, for catalogue views, rows that the driver has made already."""

    tasks: tuple[ScanTask, ...] = ()
    rows: pa.RecordBatch | None = None
    latest: Latest | None = None
    """The only wanted entries of some streams, for the view ``kv``."""


def partitions(options: Options, selection: Selection, schema: pa.Schema) -> list[Part]:
    """The parts of a query; none if nothing can match. The messages of a stream are in order of sequence, several
    streams are interleaved as in the log.

    Raises: PipelineError.
    """
    snapshots = _snapshots(options)
    if options.view in _ROW_READERS:
        parts = packed([task for snapshot in snapshots
                        for task in tasks(snapshot, selection, summaries=options.view == "subjects")], options, schema)
        if options.view == "kv" and options.history == "latest":
            latest = latest_entries(open_object_client(options.store), snapshots, selection, prefetch=options.prefetch,
                                    rule=LossRule(options.failondataloss))
            parts = [replace(part, latest=_of_part(latest, part.tasks)) for part in parts]
        return parts
    if options.view == "blocks":
        snapshots = [replace(snapshot, blocks=list(_chosen(snapshot, selection))) for snapshot in snapshots]
    return [Part(rows=batch) for batch in catalogue_rows(options.view, snapshots, schema)]


def _of_part(latest: Latest, found: Sequence[ScanTask]) -> Latest:
    """Return the entries within the sequences of these tasks."""
    wanted = {}
    for stream_id in {task.stream_id for task in found} & latest.keys():
        own = [task for task in found if task.stream_id == stream_id]
        seqs = latest[stream_id]
        first, last = min(task.first_seq for task in own), max(task.last_seq for task in own)
        wanted[stream_id] = seqs[np.searchsorted(seqs, first):np.searchsorted(seqs, last, "right")]
    return wanted


def _chosen(snapshot: StreamSnapshot, selection: Selection) -> Iterator[BlockEntry]:
    """The blocks that may hold a message selected by sequence and time; subjects do not narrow this view."""
    first_seq = max(snapshot.first_seq, selection.first_seq)
    last_seq = snapshot.end_seq if selection.last_seq is None else min(snapshot.end_seq, selection.last_seq)
    if selection.nothing or first_seq > last_seq:
        return
    for entry in snapshot.blocks:
        ref = entry.ref
        if (ref.first_seq <= last_seq and ref.last_seq >= first_seq
                and selection.matches_times(ref.first_time_ns, ref.last_time_ns)):
            yield entry


def packed(found: Sequence[ScanTask], options: Options, schema: pa.Schema) -> list[Part]:
    """Pack scan tasks into parts."""
    return _packed(found, options, options.view in ("kv", "objects") or _payload(schema))


def _packed(found: Sequence[ScanTask], options: Options, payload: bool) -> list[Part]:
    if len({task.stream_id for task in found}) > 1 and all(task.ref.place is BlockPlace.LOG for task in found):
        # A segment has a block of each stream that was published to: side by side, they share gets.
        found = sorted(found, key=lambda task: (task.shard, task.ref.position, task.key, task.ref.index_offset))
    # The driver runs this. On one machine its cores are those of the session; a cluster has more.
    packs = pack(found, options.targetpartitionbytes, payload=payload, cores=os.cpu_count() or 1)
    return [Part(tuple(some)) for some in packs]


def read(options: Options, selection: Selection, schema: pa.Schema, part: Part, *, following: bool = False
         ) -> Iterator[pa.RecordBatch]:
    """Return the rows of one part, in order. following: whether the query is a streaming one. Raises: PipelineError."""
    if part.rows is not None:
        return iter((part.rows,))
    rows_of = _ROW_READERS[options.view] if part.latest is None else partial(read_entries, latest=part.latest)
    return rows_of(open_object_client(options.store), part.tasks, selection, schema, prefetch=options.prefetch,
                   rule=LossRule(options.failondataloss, following))


def forecast(given: Mapping[str, str]) -> dict[str, Any]:
    """Estimate the cost of a query with these options, as JSON values; sizes in bytes.

        index_bytes      read for any column
        frames_bytes     read for ``headers`` and ``data``; an upper bound, because frames without a wanted message are
                         skipped if subjects or times are selected
        messages         an upper bound
        unsure_blocks    blocks with too many subjects for the catalogue to list, which no filter excludes; they are
                         counted in full

    Raises: PipelineError.
    """
    options = Options.parse(given)
    selection = options.selection()
    snapshots = _snapshots(options)
    total = estimate(snapshots, selection)
    parts = _packed([task for snapshot in snapshots for task in tasks(snapshot, selection)], options, True)
    return {
        "streams": [{"account": snapshot.account, "stream": snapshot.name, "shard": snapshot.shard,
                     "position": str(snapshot.position), "first_seq": snapshot.first_seq, "last_seq": snapshot.end_seq}
                    for snapshot in snapshots],
        "blocks": total.blocks, "blocks_of": total.blocks_of, "messages": total.messages,
        "index_bytes": total.index_bytes, "frames_bytes": total.frames_bytes, "unsure_blocks": total.unsure,
        "partitions": len(parts)}


def position(given: Mapping[str, str]) -> str:
    """Return the current log position in the form of ``asOf``. Raises: PipelineError."""
    snapshots = _snapshots(Options.parse(given))
    found = {(snapshot.shard, str(snapshot.position)) for snapshot in snapshots}
    if len(found) > 1:
        raise BadOption("stream: the streams are in several shards, whose logs have separate positions: read them one "
                        "by one, or set asOf to a time")
    return found.pop()[1]


def _snapshots(options: Options) -> Sequence[StreamSnapshot]:
    return read_store(open_object_client(options.store), account=options.account, stream=options.stream,
                      as_of=options.asof, fail_on_loss=options.failondataloss)


def _payload(schema: pa.Schema) -> bool:
    return not {"headers", "data"}.isdisjoint(map(str.lower, schema.names))
