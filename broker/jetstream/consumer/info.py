"""ConsumerInfo, as CONSUMER.INFO and CONSUMER.CREATE return it."""

from __future__ import annotations

from typing import Any

from broker.base.gotime import ZERO_TIME, format_time
from broker.jetstream.config.consumer import ConsumerConfig
from broker.jetstream.consumer.acks.state import AckState
from broker.jetstream.consumer.cursor.cursor import Cursor
from broker.jetstream.consumer.delivery.pull import Waiting
from broker.jetstream.wire.numbers import INT64_MAX

__all__ = ["consumer_info"]


def consumer_info(stream: str, name: str, created_ns: int, config: ConsumerConfig, acks: AckState, cursor: Cursor,
                  waiting: Waiting | None, *, push_bound: bool, now_ns: int) -> dict[str, Any]:
    """Return ConsumerInfo as JSON members, without ``type``. Source: nats-server consumer.go infoWithSnap."""
    delivered: dict[str, Any] = {"consumer_seq": acks.delivered_cseq, "stream_seq": acks.delivered_sseq}
    if acks.last_active_ns:
        delivered["last_active"] = format_time(acks.last_active_ns)
    floor: dict[str, Any] = {"consumer_seq": acks.floor_cseq, "stream_seq": acks.floor_sseq}
    if acks.last_ack_ns:
        floor["last_active"] = format_time(acks.last_ack_ns)
    info: dict[str, Any] = {
        "stream_name": stream,
        "name": name,
        "created": format_time(created_ns),
        "config": config.to_json(),
        "delivered": delivered,
        "ack_floor": floor,
        "num_ack_pending": len(acks.pending),
        # There are no redeliveries with max_deliver 1, so none are shown although the state has them.
        "num_redelivered": 0 if config.max_deliver == 1 else len(acks.redelivered),
        "num_waiting": 0 if waiting is None else len(waiting),
        "num_pending": max(0, cursor.pending) + cursor.tail(),
    }
    if push_bound:
        info["push_bound"] = True
    if config.pause_until is not None and now_ns < config.pause_until:
        info["paused"] = True
        info["pause_remaining"] = min(config.pause_until - now_ns, INT64_MAX)
    info["ts"] = format_time(now_ns)
    if config.priority_groups:
        # nats-server shows only one group, even if there are several.
        group = {"group": config.priority_groups[0], "pinned_ts": ZERO_TIME}
        if waiting is not None and waiting.order.pin:
            group.update(pinned_client_id=waiting.order.pin, pinned_ts=format_time(waiting.order.pinned_at_ns))
        info["priority_groups"] = [group]
    return info
