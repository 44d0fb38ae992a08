"""The views ``kv`` and ``objects``: the entries of key-value buckets, and the objects of object stores.

    kv        a message of $KV.BUCKET.KEY is an entry; its operation is in its headers (ADR-8 of NATS)
    objects   a message of $O.BUCKET.M.NAME describes an object, as JSON (ADR-20 of NATS)

Rows are made from batches of the view ``messages``. The latest entry of each key is found by the driver, in the indexes
of blocks; a bucket with history 1 has no other entries.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from broker.pipeline.plan.plan import ScanTask, tasks
from broker.pipeline.plan.schema import named
from broker.pipeline.plan.selection import Selection
from broker.pipeline.plan.snapshot import StreamSnapshot
from broker.pipeline.read.columns import Numbers
from broker.pipeline.read.missing import STRICT, LossRule
from broker.pipeline.read.scan import read_tasks
from broker.pipeline.read.views import read_subjects
from broker.pipeline.store.objects import ObjectClient
from broker.protocol import headers as header_block

__all__ = ["Latest", "latest_entries", "read_entries", "read_objects"]

Latest = Mapping[int, Numbers]
"""The sequences of each key's latest entry, ascending, by the stream's incarnation."""

_SUBJECTS: Final = named("subjects", ("subject", "last_seq"))
_ENTRIES: Final = named("messages", ("seq", "subject", "ts", "headers", "data"))
_OBJECTS: Final = named("messages", ("seq", "subject", "ts", "data"))
_MARKERS: Final = {b"MaxAge": "PURGE", b"Purge": "PURGE", b"Remove": "DEL"}
"""The operation that a marker of the server stands for, by its Nats-Marker-Reason."""


def latest_entries(objects: ObjectClient, snapshots: Sequence[StreamSnapshot], selection: Selection, *,
                   prefetch: int = 3, rule: LossRule = STRICT) -> Latest:
    """Find each key's latest entry in the buckets that keep several; the others are left out. Reads indexes.

    Raises: as ``read_tasks``.
    """
    found: dict[int, Numbers] = {}
    for snapshot in snapshots:
        if snapshot.config.get("max_msgs_per_subject") != 1:
            batches = read_subjects(objects, tasks(snapshot, selection, summaries=True), selection, _SUBJECTS,
                                    prefetch=prefetch, rule=rule)
            table = pa.Table.from_batches(batches, _SUBJECTS).group_by("subject").aggregate([("last_seq", "max")])
            found[snapshot.stream_id] = np.sort(table["last_seq_max"].to_numpy())
    return found


def read_entries(objects: ObjectClient, found: Sequence[ScanTask], selection: Selection, schema: pa.Schema, *,
                 prefetch: int = 3, rule: LossRule = STRICT, latest: Latest | None = None) -> Iterator[pa.RecordBatch]:
    """Yield the entries of ``found``, in order of stream and revision; with ``latest``, only these of its streams.

    Raises: as ``read_tasks``.
    """
    for task, batch in _messages(objects, found, selection, _ENTRIES, prefetch, rule):
        if latest is not None and (wanted := latest.get(task.stream_id)) is not None:
            batch = batch.filter(pa.array(np.isin(batch["seq"].to_numpy(), wanted)))
        columns = {"key": pc.replace_substring_regex(batch["subject"], r"^[^.]*\.[^.]*\.", ""), "value": batch["data"],
                   "revision": batch["seq"], "created": batch["ts"]}
        if "operation" in map(str.lower, schema.names):
            columns["operation"] = pa.array(map(_operation, batch["headers"].to_pylist()), pa.string())
        yield _batch(columns, task, batch.num_rows, schema)


def read_objects(objects: ObjectClient, found: Sequence[ScanTask], selection: Selection, schema: pa.Schema, *,
                 prefetch: int = 3, rule: LossRule = STRICT) -> Iterator[pa.RecordBatch]:
    """Yield the objects that the messages of ``found`` describe. Raises: as ``read_tasks``."""
    names = [field.name.lower() for field in schema]
    for task, batch in _messages(objects, found, selection, _OBJECTS, prefetch, rule):
        rows = [_described(subject, data)
                for subject, data in zip(batch["subject"].to_pylist(), batch["data"].to_pylist(), strict=True)]
        columns = {name: pa.array([row[name] for row in rows], schema.field(at).type)
                   for at, name in enumerate(names) if rows and name in rows[0]}
        yield _batch({**columns, "revision": batch["seq"], "modified": batch["ts"]}, task, batch.num_rows, schema)


def _messages(objects: ObjectClient, found: Sequence[ScanTask], selection: Selection, schema: pa.Schema, prefetch: int,
              rule: LossRule) -> Iterator[tuple[ScanTask, pa.RecordBatch]]:
    """Yield batches of messages, each with a task of its stream."""
    for _, group in groupby(found, key=lambda task: task.stream_id):
        some = list(group)
        for batch in read_tasks(objects, some, selection, schema, prefetch=prefetch, rule=rule):
            yield some[0], batch


def _batch(columns: Mapping[str, pa.Array], task: ScanTask, rows: int, schema: pa.Schema) -> pa.RecordBatch:
    texts = {"stream": task.stream, "account": task.account}
    return pa.RecordBatch.from_arrays(
        [columns[name] if (name := field.name.lower()) in columns
         else pa.array([texts.get(name)] * rows, field.type) for field in schema], schema=schema)


def _operation(headers: bytes | None) -> str:
    if headers is None:
        return "PUT"
    own = header_block.get(headers, b"KV-Operation")
    if own is not None:
        return own.decode("utf-8", "replace")
    return _MARKERS.get(header_block.get(headers, b"Nats-Marker-Reason") or b"", "PUT")


def _described(subject: str, data: bytes) -> dict[str, Any]:
    """Return the description of an object as values of the columns. Text that is no such JSON gives NULLs."""
    try:
        found = json.loads(data)
    except ValueError:
        found = None
    info: dict[str, Any] = found if isinstance(found, dict) else {}
    row: dict[str, Any] = {name: value if type(value := info.get(name)) is kind else None for name, kind in (
        ("name", str), ("description", str), ("size", int), ("chunks", int), ("digest", str), ("nuid", str))}
    row["name"] = row["name"] or _decoded(subject.rpartition(".")[2])
    return {**row, "deleted": info.get("deleted") is True, "info": data.decode("utf-8", "replace")}


def _decoded(token: str) -> str | None:
    try:
        return base64.urlsafe_b64decode(token).decode()
    except (binascii.Error, ValueError):
        return None
