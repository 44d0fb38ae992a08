"""The records of a stream's block: the stream that a record makes, and the changes that the other records make to it.

Owns the meaning of each kind of record for one ``StreamState`` by itself. Does not own records that concern the shard
too, because they add or remove blocks, or a stream as a whole: ``ShardState`` applies appends, deletions and moves.

A change raises Corrupt, or another of ``DAMAGED``, for a record that cannot be applied.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from broker.storage.format.errors import Corrupt
from broker.storage.format.record import Record
from broker.storage.format.records.arrival import Arrival
from broker.storage.format.records.ceiling import Ceiling
from broker.storage.format.records.consumer_create import ConsumerCreate
from broker.storage.format.records.consumer_delete import ConsumerDelete
from broker.storage.format.records.consumer_state import ConsumerDelta
from broker.storage.format.records.consumer_update import ConsumerUpdate
from broker.storage.format.records.expiry import Expiry
from broker.storage.format.records.schedule import Schedule
from broker.storage.format.records.stream_create import StreamCreate
from broker.storage.format.records.stream_update import StreamUpdate
from broker.storage.state.consumer import ConsumerState
from broker.storage.state.erasures import REMAINS
from broker.storage.state.extra import update_extra
from broker.storage.state.stream import DEPARTED, MOVES, SOURCES, START, StreamState
from broker.storage.state.stream_entry import check_entry, unpack_entry

__all__ = ["CHANGES", "OWNER_CHANGES", "arrived_by", "created_by"]


def created_by(record: Record, stream_id: int) -> StreamState:
    """Return the stream that a create record makes. Raises: Corrupt."""
    made = StreamCreate.decode(record.body)
    stream = StreamState(stream_id, made.account, made.name, made.config, made.created_ns)
    stream.ceiling = made.ceiling
    update_extra(stream.extra, made.extra)
    return stream


def arrived_by(record: Record, stream_id: int, *, whole: bool) -> StreamState:
    """Return the stream that arrives from another shard.

    Args: ``whole``: with the parts that only an owner needs.
    Raises: one of ``DAMAGED``.
    """
    arrival = Arrival.decode(record.body)
    check_entry(arrival.entry)
    stream, _ = unpack_entry(arrival.entry, filters=True, whole=whole)
    stream.extra = {**stream.extra, MOVES: stream.moves + 1}
    stream.extra.pop(DEPARTED, None)
    stream.extra.pop(REMAINS, None)
    stream.extra[SOURCES] = sorted({*stream.extra.get(SOURCES, ()), arrival.source})
    stream.position, stream.dirty = START, True
    if stream.stream_id != stream_id:
        raise ValueError(f"it is the entry of stream {stream.stream_id:016x}")
    return stream


def _update_stream(stream: StreamState, body: object) -> None:
    update = StreamUpdate.decode(body)
    stream.config = dict(update.config)
    update_extra(stream.extra, update.extra)


def _set_ceiling(stream: StreamState, body: object) -> None:
    stream.ceiling = Ceiling.decode(body).seq


def _create_consumer(stream: StreamState, body: object) -> None:
    made = ConsumerState.created(ConsumerCreate.decode(body))
    stream.consumers[made.name] = made


def _update_consumer(stream: StreamState, body: object) -> None:
    changed = ConsumerUpdate.decode(body)
    consumer = stream.consumers.get(changed.name)
    if consumer is None:
        raise Corrupt("record", f"record {ConsumerUpdate.KIND}", 0, f"there is no consumer {changed.name}")
    consumer.config = dict(changed.config)
    update_extra(consumer.extra, changed.extra)
    consumer.place = None


def _apply_delta(stream: StreamState, body: object) -> None:
    delta = ConsumerDelta.decode(body)
    consumer = stream.consumers.get(delta.name)
    if consumer is not None:
        consumer.apply_delta(delta)
        consumer.place = None


def _delete_consumer(stream: StreamState, body: object) -> None:
    stream.consumers.pop(ConsumerDelete.decode(body).name, None)


def _add_expiries(stream: StreamState, body: object) -> None:
    expiry = Expiry.decode(body)
    stream.expiries.add(expiry.seqs, expiry.expires_at_ns)


def _schedule(stream: StreamState, body: object) -> None:
    schedule = Schedule.decode(body)
    for seq, due_ns in zip(schedule.seqs, schedule.due_at_ns, strict=True):
        if due_ns:
            stream.schedules.put(seq, due_ns)
        else:
            stream.schedules.remove(seq, seq)


CHANGES: Mapping[int, Callable[[StreamState, object], None]] = {
    StreamUpdate.KIND: _update_stream,
    Ceiling.KIND: _set_ceiling,
    ConsumerCreate.KIND: _create_consumer,
    ConsumerUpdate.KIND: _update_consumer,
    ConsumerDelta.KIND: _apply_delta,
    ConsumerDelete.KIND: _delete_consumer,
}
"""Maps a kind of record to the function that applies the body of such a record to a stream."""

OWNER_CHANGES = {**CHANGES, Expiry.KIND: _add_expiries, Schedule.KIND: _schedule}
"""``CHANGES``, with the records of due times, which only an owner needs."""
