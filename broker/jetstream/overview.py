"""JetStream as the monitoring pages show it, from memory only, never from the store."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from broker.gotime import ZERO_TIME, format_time
from broker.jetstream.consumer.consumer import Consumer
from broker.jetstream.engine import JetStream
from broker.jetstream.stream.stream import Stream

__all__ = ["streams"]


def streams(js: JetStream) -> Iterator[dict[str, Any]]:
    """Each stream as ``{name, created, config, state, consumer_detail}`` in the API's own JSON; no ``num_subjects``."""
    for account in js.accounts.values():
        for name in sorted(account.streams):
            stream = account.streams[name]
            yield _stream(stream, account.consumers(stream).values())


def _stream(stream: Stream, consumers: Collection[Consumer]) -> dict[str, Any]:
    return {
        "name": stream.name, "created": format_time(stream.created_ns), "config": stream.config.to_json(),
        "state": {
            "messages": stream.msgs, "bytes": stream.size_bytes, "first_seq": stream.first_seq,
            "first_ts": format_time(stream.first_time_ns) if stream.msgs else ZERO_TIME,
            "last_seq": stream.last_seq,
            "last_ts": format_time(stream.last_time_ns) if stream.last_time_ns else ZERO_TIME,
            "consumer_count": len(consumers)},
        "consumer_detail": [consumer.info() for consumer in consumers],
    }
