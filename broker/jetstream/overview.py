"""JetStream as the monitoring pages show it: from memory only, never from the store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from broker.base.gotime import ZERO_TIME, format_time
from broker.jetstream.account.account import Account
from broker.jetstream.consumer.consumer import Consumer
from broker.jetstream.stream.stream import Stream

__all__ = ["consumer_count", "consumer_exists", "streams"]


def streams(account: Account, stored_bytes: Mapping[int, int], consumers: bool) -> Iterator[dict[str, Any]]:
    """Yield each stream as ``{name, created, cluster, config, state}``, in the API's own JSON.

    If ``consumers``, a stream also has the iterators ``consumer_detail`` and ``direct_consumer_detail``. The member
    ``jetblock`` is there if the bytes that the stream takes in the store are known. The member ``num_subjects`` is
    there if it can be counted quickly and without reading the store.
    """
    for name in sorted(account.streams):
        stream = account.streams.get(name)
        if stream is None:
            continue  # deleted since the caller began to walk
        shown = _stream(account, stream, account.consumers.of(stream), consumers)
        if stream.stream_id in stored_bytes:
            shown["jetblock"] = {"stored_bytes": stored_bytes[stream.stream_id]}
        yield shown


def consumer_count(account: Account) -> int:
    """Return the number of an account's consumers, without those of mirrors and sources."""
    return sum(len(_public(account.consumers.of(stream))) for stream in account.streams.values())


def _public(consumers: dict[str, Consumer]) -> list[Consumer]:
    return [consumer for consumer in consumers.values() if not consumer.config.direct]


def _infos(account: Account, stream: Stream, consumers: list[Consumer]) -> Iterator[dict[str, Any]]:
    for consumer in consumers:
        if account.consumers.of(stream).get(consumer.name) is consumer:  # not deleted meanwhile
            yield consumer.info()


def consumer_exists(account: Account, stream: str, consumer: str) -> bool:
    """Return whether the account has this consumer on this stream."""
    found = account.streams.get(stream)
    return found is not None and consumer in account.consumers.of(found)


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
             "config": stream.config.to_json(), "state": state | {"consumer_count": len(_public(consumers))},
             **account.upstreams.info(stream)}
    if with_consumers:
        shown["consumer_detail"] = _infos(account, stream, _public(consumers))
        direct = [one for one in consumers.values() if one.config.direct]
        shown["direct_consumer_detail"] = _infos(account, stream, direct)
    return shown
