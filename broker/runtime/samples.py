"""The values of /metrics, from the running parts' own counters when they are asked for. Names:
``monitor.metrics.FAMILIES``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from broker import NATS_SERVER_VERSION, __version__
from broker.base.histogram import Histogram
from broker.jetstream.account.account import Account as JetStreamAccount
from broker.jetstream.engine import JetStream
from broker.monitor.views import ACCOUNTS_MAX, STREAMS_MAX, Buckets, Health, JetStreamView, Sample, Views
from broker.runtime.loop_lag import LoopLag
from broker.runtime.shard_owner import ShardOwner
from broker.runtime.store_host import StoreHost
from broker.server.server import Server
from broker.storage.objectstore.instrumented import SECONDS_BOUNDS
from broker.storage.shard import Shard

if TYPE_CHECKING:
    from broker.streaming.gateway import Gateway

__all__ = ["jetstream_samples", "server_samples", "storage_samples", "streaming_samples"]

_CONSUMERS_COUNTED_MAX = 10_000
"""The most consumers whose backlog is read for one scrape; streams with later consumers have no series of it."""


def server_samples(server: Server, lag: LoopLag, views: Views, health: Health) -> Iterator[Sample]:
    """Return the samples of the server and its accounts."""
    yield Sample("jetblock_build_info", 1, (__version__, NATS_SERVER_VERSION, server.server_name, server.server_id))
    yield Sample("jetblock_healthy", health.status == "ok")
    yield Sample("jetblock_serving", health.serving)
    yield Sample("jetblock_connections", len(server.clients))
    yield Sample("jetblock_leaf_nodes", len(server.leafs.connections) if server.leafs is not None else 0)
    leafs = server.accounts.leaf_traffic()
    yield Sample("jetblock_leaf_received_messages_total", leafs.in_msgs)
    yield Sample("jetblock_leaf_sent_messages_total", leafs.out_msgs)
    yield Sample("jetblock_max_connections", server.settings.clients.max_connections)
    yield Sample("jetblock_connections_accepted_total", server.total_connections)
    yield Sample("jetblock_subscriptions", server.subscription_count)
    traffic = server.accounts.traffic()
    yield Sample("jetblock_received_messages_total", traffic.in_msgs)
    yield Sample("jetblock_received_bytes_total", traffic.in_bytes)
    yield Sample("jetblock_sent_messages_total", traffic.out_msgs)
    yield Sample("jetblock_sent_bytes_total", traffic.out_bytes)
    yield Sample("jetblock_slow_consumers_total", server.slow_consumers)
    yield Sample("jetblock_stale_connections_total", server.stale_connections)
    yield Sample("jetblock_stalled_clients_total", server.stalled_clients)
    yield Sample("jetblock_route_lookups_total", sum(account.router.routes.lookups for account in server.accounts))
    yield Sample("jetblock_event_loop_lag_seconds", _buckets(lag.histogram))
    for page, count in views.requests.items():
        yield Sample("jetblock_http_requests_total", count, (page,))
    accounts = sorted(server.accounts, key=lambda account: account.name)
    for account in accounts[:ACCOUNTS_MAX]:
        labels = (account.name,)
        traffic = account.traffic()
        yield Sample("jetblock_account_connections", account.connections, labels)
        yield Sample("jetblock_account_subscriptions", account.subscriptions, labels)
        yield Sample("jetblock_account_received_messages_total", traffic.in_msgs, labels)
        yield Sample("jetblock_account_received_bytes_total", traffic.in_bytes, labels)
        yield Sample("jetblock_account_sent_messages_total", traffic.out_msgs, labels)
        yield Sample("jetblock_account_sent_bytes_total", traffic.out_bytes, labels)
    yield Sample("jetblock_accounts_not_shown", max(len(accounts) - ACCOUNTS_MAX, 0))


def jetstream_samples(js: JetStream, view: JetStreamView) -> Iterator[Sample]:
    """Return the samples of JetStream and its streams."""
    shown = view.accounts
    yield Sample("jetblock_jetstream_streams", sum(account.streams for account in shown))
    yield Sample("jetblock_jetstream_streams_offline", len(view.failed))
    yield Sample("jetblock_jetstream_consumers", sum(account.consumers for account in shown))
    yield Sample("jetblock_jetstream_messages", sum(account.messages for account in shown))
    for storage, stored, reserved, bound in (
            ("memory", sum(account.memory for account in shown), sum(account.reserved_memory for account in shown),
             view.config["max_memory"]),
            ("file", sum(account.storage for account in shown), sum(account.reserved_storage for account in shown),
             view.config["max_storage"])):
        yield Sample("jetblock_jetstream_stored_bytes", stored, (storage,))
        yield Sample("jetblock_jetstream_reserved_bytes", reserved, (storage,))
        yield Sample("jetblock_jetstream_max_bytes", bound, (storage,))
    yield Sample("jetblock_jetstream_api_requests_total", sum(account.api_total for account in shown))
    yield Sample("jetblock_jetstream_api_errors_total", sum(account.api_errors for account in shown))
    yield from _streams(sorted(js.accounts.values(), key=lambda account: account.name))


def _streams(accounts: list[JetStreamAccount]) -> Iterator[Sample]:
    streams = ((account, name) for account in accounts for name in sorted(account.streams))
    left = _CONSUMERS_COUNTED_MAX
    for account, name in islice(streams, STREAMS_MAX):
        stream, labels = account.streams[name], (account.name, name)
        consumers = account.consumers.of(stream)
        yield Sample("jetblock_stream_messages", stream.msgs, labels)
        yield Sample("jetblock_stream_bytes", stream.size_bytes, labels)
        yield Sample("jetblock_stream_first_sequence", stream.first_seq, labels)
        yield Sample("jetblock_stream_last_sequence", stream.last_seq, labels)
        yield Sample("jetblock_stream_consumers", len(consumers), labels)
        left -= len(consumers)
        if left >= 0:
            backlogs = [consumer.backlog() for consumer in consumers.values()]
            yield Sample("jetblock_stream_pending_messages", sum(pending for pending, _ in backlogs), labels)
            yield Sample("jetblock_stream_ack_pending_messages", sum(unacked for _, unacked in backlogs), labels)
    yield Sample("jetblock_streams_not_shown", sum(1 for _ in streams))


def streaming_samples(gateway: Gateway) -> Iterator[Sample]:
    """Return the samples of NATS Streaming. The messages of a channel are those of its stream."""
    traffic, subscriptions = gateway.traffic, gateway.subscriptions if gateway.serving else None
    names = gateway.channels.names() if gateway.serving else []
    yield Sample("jetblock_streaming_clients", len(gateway.clients))
    yield Sample("jetblock_streaming_channels", len(names))
    yield Sample("jetblock_streaming_subscriptions", 0 if subscriptions is None else subscriptions.total)
    yield Sample("jetblock_streaming_received_messages_total", traffic.in_msgs)
    yield Sample("jetblock_streaming_received_bytes_total", traffic.in_bytes)
    yield Sample("jetblock_streaming_sent_messages_total", traffic.out_msgs)
    yield Sample("jetblock_streaming_sent_bytes_total", traffic.out_bytes)
    if subscriptions is not None:
        for name in sorted(names)[:STREAMS_MAX]:
            yield Sample("jetblock_streaming_channel_subscriptions", subscriptions.count(name), (name,))
            yield Sample("jetblock_streaming_channel_unacked_messages", subscriptions.unacked(name), (name,))


def storage_samples(host: StoreHost, owners: Sequence[ShardOwner]) -> Iterator[Sample]:
    """Return the samples of the store, the cache and, on an owner, the logs of all shards together."""
    yield Sample("jetblock_standby", any(owner.standby for owner in owners))
    for name, stats in host.store.operations.items():
        labels = (name,)
        yield Sample("jetblock_store_operation_duration_seconds",
                     Buckets(SECONDS_BOUNDS, tuple(stats.buckets), stats.ns / 1e9), labels)
        yield Sample("jetblock_store_operations_in_flight", stats.in_flight, labels)
        if name in ("put", "get"):
            yield Sample("jetblock_store_transferred_bytes_total", stats.bytes, labels)
        for kind, count in list(stats.errors.items()):
            yield Sample("jetblock_store_errors_total", count, (name, kind))
    yield Sample("jetblock_store_retries_total", host.retries)
    cache = host.cache
    yield Sample("jetblock_cache_bytes", cache.bytes)
    yield Sample("jetblock_max_cache_bytes", cache.bytes_max)
    yield Sample("jetblock_cache_hits_total", cache.hits)
    yield Sample("jetblock_cache_misses_total", cache.misses)
    yield Sample("jetblock_cache_main_bytes", cache.main_bytes)
    yield Sample("jetblock_cache_promotions_total", cache.promotions)
    yield Sample("jetblock_cache_evictions_total", cache.small_evictions, ("small",))
    yield Sample("jetblock_cache_evictions_total", cache.main_evictions, ("main",))
    yield Sample("jetblock_cache_ghost_hits_total", cache.ghost_hits)
    disk = host.disk_cache
    yield Sample("jetblock_cache_directory_bytes", disk.size if disk is not None else 0)
    yield Sample("jetblock_cache_directory_hits_total", disk.hits if disk is not None else 0)
    yield Sample("jetblock_cache_directory_misses_total", disk.misses if disk is not None else 0)
    yield Sample("jetblock_cache_directory_evictions_total", disk.evictions if disk is not None else 0)
    yield Sample("jetblock_cache_directory_damaged_total", disk.damaged if disk is not None else 0)
    yield Sample("jetblock_cache_directory_off", disk is not None and bool(disk.off))
    scrubbers = [owner.scrubber for owner in owners if owner.scrubber is not None]
    yield Sample("jetblock_scrub_passes_total", sum(scrubber.passes for scrubber in scrubbers))
    yield Sample("jetblock_scrub_objects_total", sum(scrubber.objects for scrubber in scrubbers))
    yield Sample("jetblock_scrub_bytes_total", sum(scrubber.bytes for scrubber in scrubbers))
    yield Sample("jetblock_damaged_objects", sum(scrubber.damaged for scrubber in scrubbers))
    yield Sample("jetblock_commit_duration_seconds", _buckets(*(owner.commit_latency for owner in owners)))
    if shards := [owner.shard for owner in owners if owner.shard is not None]:
        yield Sample("jetblock_recovery_duration_seconds", max(owner.recovery_ns for owner in owners) / 1e9)
        yield from _logs(shards)


def _logs(shards: Sequence[Shard]) -> Iterator[Sample]:
    logs, first = [shard.log for shard in shards], shards[0].log
    yield Sample("jetblock_recovery_segments", sum(shard.recovered.segments for shard in shards))
    yield Sample("jetblock_commits_total", sum(log.commit_count for log in logs))
    yield Sample("jetblock_commit_bytes_total", sum(log.commit_bytes for log in logs))
    yield Sample("jetblock_tail_bytes", sum(log.tail_bytes for log in logs))
    yield Sample("jetblock_max_tail_bytes", sum(log.tail_bytes_max for log in logs))
    yield Sample("jetblock_epoch", first.epoch)
    yield Sample("jetblock_log_position", first.position.number)
    yield Sample("jetblock_lease_valid", not any(log.lease_expired for log in logs))
    yield Sample("jetblock_store_up", not any(log.store_error is not None or log.full for log in logs))
    yield Sample("jetblock_checkpoint_rounds_total", sum(shard.checkpointer.rounds for shard in shards))
    yield Sample("jetblock_checkpoint_lag_segments", max(shard.checkpointer.segments_since for shard in shards))
    if compactors := [shard.compactor for shard in shards if shard.compactor is not None]:
        yield Sample("jetblock_compaction_merges_total", sum(one.merges for one in compactors))
        yield Sample("jetblock_compaction_read_bytes_total", sum(one.read_bytes for one in compactors))
        yield Sample("jetblock_compaction_written_bytes_total", sum(one.written_bytes for one in compactors))


def _buckets(*histograms: Histogram) -> Buckets:
    counts = [sum(of_one) for of_one in zip(*(one.counts for one in histograms), strict=True)]
    return Buckets(histograms[0].bounds, tuple(counts), sum(one.sum_s for one in histograms))
