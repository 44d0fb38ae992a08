"""Consumers in archives: from a live consumer, and back to the record that creates it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.jetstream.account.incoming import NewConsumer
from broker.jetstream.archive.values import ArchivedConsumer
from broker.jetstream.config.consumer import ConsumerConfig
from broker.storage.format.records.consumer_create import ConsumerCreate
from broker.storage.format.records.consumer_state import ConsumerDelta, PendingColumns

if TYPE_CHECKING:
    from broker.jetstream.consumer.consumer import Consumer

__all__ = ["BadState", "archived", "new_consumer"]


class BadState(Exception):
    """Raised for a state that no consumer can have."""


def archived(consumer: Consumer, last_seq: int) -> ArchivedConsumer:
    """Return ``consumer`` as it is now, without messages above ``last_seq``, the last one of the archive."""
    acks = consumer.acks
    return ArchivedConsumer(
        consumer.name, consumer.config.to_json() | {"name": consumer.name},
        (acks.delivered_cseq, min(acks.delivered_sseq, last_seq)), (acks.floor_cseq, min(acks.floor_sseq, last_seq)),
        {seq: (run.cseq_of(seq), run.at_ns) for seq, run in acks.pending.items() if seq <= last_seq},
        {seq: count for seq, count in acks.redelivered.items() if seq <= last_seq})


def new_consumer(given: ArchivedConsumer, config: ConsumerConfig, created_ns: int, last_seq: int) -> NewConsumer:
    """Return the consumer of an archive whose stream ends with ``last_seq``. Raises: BadState."""
    delivered_cseq, delivered_sseq = given.delivered
    floor_cseq, floor_sseq = given.ack_floor
    delivered_sseq, floor_sseq = min(delivered_sseq, last_seq), min(floor_sseq, last_seq)
    if floor_cseq > delivered_cseq or floor_sseq > delivered_sseq:
        raise BadState("its ack floor is above what it has delivered")
    pending: list[tuple[int, int, int]] = []
    if config.ack_policy != "none":
        for seq, (cseq, at_ns) in given.pending.items():
            if seq > last_seq:
                continue
            if not floor_sseq < seq <= delivered_sseq or not 0 < cseq <= delivered_cseq:
                raise BadState(f"message {seq} cannot be pending")
            pending.append((at_ns, seq, cseq))
    pending.sort()  # in the order of delivery
    seqs = [seq for _, seq, _ in pending]
    known = frozenset(seqs)
    start = ConsumerDelta(
        given.name, [delivered_cseq, delivered_sseq, 0],
        [floor_cseq, floor_sseq], None, None,
        PendingColumns(seqs, [cseq for _, _, cseq in pending], [at_ns for at_ns, _, _ in pending]) if pending else None,
        {seq: count for seq, count in given.redelivered.items() if seq in known and count} or None)
    return NewConsumer(config, ConsumerCreate(given.name, config.to_json(), created_ns, start))
