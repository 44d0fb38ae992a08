"""JetStream as the monitoring pages show it, from memory only, never from the store."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from broker.gotime import ZERO_TIME, format_time
from broker.jetstream.account.account import Account
from broker.jetstream.consumer.consumer import Consumer
from broker.jetstream.stream.stream import Stream

__all__ = ["consumer_exists", "streams"]


def streams(account: Account, consumers: bool) -> Iterator[dict[str, Any]]:
    """Each stream as ``{name, created, cluster, config, state}`` in the API's own JSON, with ``consumer_detail`` if
    ``consumers``.

    ``num_subjects`` is there if it can be known without reading the store, or counting for long.
    """
    for name in sorted(account.streams):
        stream = account.streams[name]
        yield _stream(account, stream, account.consumers(stream), consumers)


def consumer_exists(account: Account, stream: str, consumer: str) -> bool:
    """Whether the account has this consumer on this stream."""
    found = account.streams.get(stream)
    return found is not None and consumer in account.consumers(found)


def _stream(account: Account, stream: Stream, consumers: dict[str, Consumer], with_consumers: bool) -> dict[str, Any]:
    state: dict[str, Any] = {
        "messages": stream.msgs, "bytes": stream.size_bytes, "first_seq": stream.first_seq,
        "first_ts": format_time(stream.first_time_ns) if stream.msgs else ZERO_TIME,
        "last_seq": stream.last_seq, "last_ts": format_time(stream.last_time_ns) if stream.last_time_ns else ZERO_TIME}
    if subjects := stream.subjects.known_count():
        state["num_subjects"] = subjects
    deleted = stream.last_seq - stream.first_seq + 1 - stream.msgs if stream.msgs else 0
    if deleted:
        state["num_deleted"] = deleted
    shown = {"name": stream.name, "created": format_time(stream.created_ns), "cluster": {"leader": account.server_name},
             "config": stream.config.to_json(), "state": state | {"consumer_count": len(consumers)},
             **account.upstreams.info(stream)}
    if with_consumers:
        shown["consumer_detail"] = [consumer.info() for consumer in consumers.values()]
    return shown
