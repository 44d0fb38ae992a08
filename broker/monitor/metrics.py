"""The page /metrics: the broker's own figures for Prometheus, collected from existing counters on request.

``FAMILIES`` is the table of all metrics, from which docs/MONITORING.md is made. Names follow Prometheus: base units,
and ``_total`` for counters. prometheus-client writes text or OpenMetrics, as the client accepts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Literal, NamedTuple

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from broker.monitor.views import Buckets, Sample

__all__ = ["FAMILIES", "Family", "metrics_text"]


class Family(NamedTuple):
    """A metric with all its series."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()


_STREAM: Final = ("account", "stream")
_ACCOUNT: Final = ("account",)
_OPERATION: Final = ("operation",)

FAMILIES: Final = (
    Family("jetblock_build_info", "gauge", "Always 1; its labels name the broker.",
           ("version", "nats_version", "server_name", "server_id")),
    Family("jetblock_healthy", "gauge", "1 while /healthz answers 200."),
    Family("jetblock_serving", "gauge", "1 while clients can connect."),
    Family("jetblock_standby", "gauge", "1 while another broker owns the store."),
    Family("jetblock_connections", "gauge", "Client connections."),
    Family("jetblock_max_connections", "gauge", "The bound on client connections; 0: none."),
    Family("jetblock_connections_accepted_total", "counter", "Client connections since the start."),
    Family("jetblock_leaf_nodes", "gauge", "Leaf connections to other servers."),
    Family("jetblock_leaf_received_messages_total", "counter", "Messages received from other servers."),
    Family("jetblock_leaf_sent_messages_total", "counter", "Messages sent to other servers."),
    Family("jetblock_subscriptions", "gauge", "Subscriptions of all accounts."),
    Family("jetblock_received_messages_total", "counter", "Messages received from clients and other servers."),
    Family("jetblock_received_bytes_total", "counter", "Bytes of messages received from clients and other servers."),
    Family("jetblock_sent_messages_total", "counter", "Messages sent to clients and other servers."),
    Family("jetblock_sent_bytes_total", "counter", "Bytes of messages sent to clients and other servers."),
    Family("jetblock_slow_consumers_total", "counter", "Clients cut off because they did not keep up."),
    Family("jetblock_stale_connections_total", "counter", "Clients cut off because they answered no ping."),
    Family("jetblock_stalled_clients_total", "counter", "Times that a publisher was made to wait for a slow receiver."),
    Family("jetblock_route_lookups_total", "counter", "Lookups of subjects for which no route was cached."),
    Family("jetblock_event_loop_lag_seconds", "histogram",
           "Delay of a timer that is due every 10 ms; every client waits that long."),
    Family("jetblock_http_requests_total", "counter", "Requests of monitoring pages.", ("page",)),
    Family("jetblock_account_connections", "gauge", "Client connections of an account.", _ACCOUNT),
    Family("jetblock_account_subscriptions", "gauge", "Subscriptions of an account.", _ACCOUNT),
    Family("jetblock_account_received_messages_total", "counter", "Messages received from an account's clients.",
           _ACCOUNT),
    Family("jetblock_account_received_bytes_total", "counter", "Bytes of messages received from an account's clients.",
           _ACCOUNT),
    Family("jetblock_account_sent_messages_total", "counter", "Messages sent to an account's clients.", _ACCOUNT),
    Family("jetblock_account_sent_bytes_total", "counter", "Bytes of messages sent to an account's clients.", _ACCOUNT),
    Family("jetblock_accounts_not_shown", "gauge", "Accounts past the bound on series, without series of their own."),
    Family("jetblock_jetstream_streams", "gauge", "Streams of all accounts."),
    Family("jetblock_jetstream_streams_offline", "gauge", "Streams that cannot be used; the log has the causes."),
    Family("jetblock_jetstream_consumers", "gauge", "Consumers of all streams."),
    Family("jetblock_jetstream_messages", "gauge", "Messages in all streams."),
    Family("jetblock_jetstream_stored_bytes", "gauge", "Bytes of messages in streams, by kind of storage.",
           ("storage",)),
    Family("jetblock_jetstream_reserved_bytes", "gauge", "Bytes reserved by streams' max_bytes.", ("storage",)),
    Family("jetblock_jetstream_max_bytes", "gauge", "The bound on stored bytes.", ("storage",)),
    Family("jetblock_jetstream_api_requests_total", "counter", "Requests of the JetStream API."),
    Family("jetblock_jetstream_api_errors_total", "counter", "Requests of the JetStream API answered with an error."),
    Family("jetblock_stream_messages", "gauge", "Messages in a stream.", _STREAM),
    Family("jetblock_stream_bytes", "gauge", "Bytes of messages in a stream.", _STREAM),
    Family("jetblock_stream_first_sequence", "gauge", "Sequence of the first message.", _STREAM),
    Family("jetblock_stream_last_sequence", "gauge", "Sequence of the last message.", _STREAM),
    Family("jetblock_stream_consumers", "gauge", "Consumers of a stream.", _STREAM),
    Family("jetblock_stream_pending_messages", "gauge",
           "Messages that a stream's consumers have yet to deliver, summed over the consumers.", _STREAM),
    Family("jetblock_stream_ack_pending_messages", "gauge",
           "Messages delivered and not acknowledged, summed over a stream's consumers.", _STREAM),
    Family("jetblock_streams_not_shown", "gauge", "Streams past the bound on series, without series of their own."),
    Family("jetblock_streaming_clients", "gauge", "Registered clients of NATS Streaming."),
    Family("jetblock_streaming_channels", "gauge", "Channels of NATS Streaming."),
    Family("jetblock_streaming_subscriptions", "gauge",
           "Subscriptions of NATS Streaming clients, also durable ones that nobody uses."),
    Family("jetblock_streaming_received_messages_total", "counter", "Messages published by NATS Streaming clients."),
    Family("jetblock_streaming_received_bytes_total", "counter", "Bytes published by NATS Streaming clients."),
    Family("jetblock_streaming_sent_messages_total", "counter", "Messages sent to NATS Streaming clients."),
    Family("jetblock_streaming_sent_bytes_total", "counter", "Bytes of messages sent to NATS Streaming clients."),
    Family("jetblock_streaming_channel_subscriptions", "gauge", "Subscriptions of a channel.", ("channel",)),
    Family("jetblock_streaming_channel_unacked_messages", "gauge",
           "Messages delivered to a channel's subscriptions and not acknowledged.", ("channel",)),
    Family("jetblock_commit_duration_seconds", "histogram",
           "Time from a commit's first waiting message until it is stored: the longest wait for a PubAck in it."),
    Family("jetblock_commits_total", "counter", "Segments stored by this owner."),
    Family("jetblock_commit_bytes_total", "counter", "Bytes of the segments stored by this owner, compressed."),
    Family("jetblock_tail_bytes", "gauge", "Bytes sequenced and not stored yet."),
    Family("jetblock_max_tail_bytes", "gauge", "The bound on jetblock_tail_bytes, beyond which publishers wait."),
    Family("jetblock_epoch", "gauge", "The epoch of this owner of the store."),
    Family("jetblock_log_position", "gauge", "Number of the last stored segment of the epoch."),
    Family("jetblock_lease_valid", "gauge", "1 while this broker can prove that it owns the store."),
    Family("jetblock_store_up", "gauge", "1 while the store accepts commits."),
    Family("jetblock_checkpoint_rounds_total", "counter", "Checkpoints written by this owner."),
    Family("jetblock_checkpoint_lag_segments", "gauge",
           "Segments since the last checkpoint, which a recovery replays."),
    Family("jetblock_compaction_merges_total", "counter", "Merges of small and half-dead blocks by this owner."),
    Family("jetblock_compaction_read_bytes_total", "counter", "Bytes read for these merges."),
    Family("jetblock_compaction_written_bytes_total", "counter", "Bytes written by these merges."),
    Family("jetblock_scrub_passes_total", "counter",
           "Scrubs by this process: each reads and checks all stored objects."),
    Family("jetblock_scrub_objects_total", "counter", "Objects read by scrubs."),
    Family("jetblock_scrub_bytes_total", "counter", "Bytes read by scrubs."),
    Family("jetblock_damaged_objects", "gauge", "Objects found damaged or missing, and not found intact since."),
    Family("jetblock_recovery_duration_seconds", "gauge", "Duration of the last recovery by this broker."),
    Family("jetblock_recovery_segments", "gauge", "Segments replayed in the last recovery."),
    Family("jetblock_store_operation_duration_seconds", "histogram", "Calls of the store; each try counts alone.",
           _OPERATION),
    Family("jetblock_store_operations_in_flight", "gauge", "Calls of the store that have not ended.", _OPERATION),
    Family("jetblock_store_transferred_bytes_total", "counter", "Bytes put and got.", _OPERATION),
    Family("jetblock_store_errors_total", "counter",
           "Calls that failed, by kind; NotFound and PreconditionFailed are ordinary answers.", ("operation", "kind")),
    Family("jetblock_store_retries_total", "counter", "Reads that were tried again."),
    Family("jetblock_cache_bytes", "gauge", "Bytes in the block cache."),
    Family("jetblock_max_cache_bytes", "gauge", "The bound on jetblock_cache_bytes."),
    Family("jetblock_cache_hits_total", "counter", "Parts of blocks found in the cache."),
    Family("jetblock_cache_misses_total", "counter", "Parts of blocks that had to be loaded."),
    Family("jetblock_cache_main_bytes", "gauge", "Bytes in the cache of parts that were used again."),
    Family("jetblock_cache_promotions_total", "counter",
           "Parts that moved to the main queue, because they were used again."),
    Family("jetblock_cache_evictions_total", "counter",
           "Parts evicted, by queue: main has the parts that were used again, small the others.", ("queue",)),
    Family("jetblock_cache_ghost_hits_total", "counter", "Parts loaded again soon after they were evicted."),
    Family("jetblock_cache_directory_bytes", "gauge", "Bytes in the cache directory, if there is one."),
    Family("jetblock_cache_directory_hits_total", "counter", "Reads that the cache directory answered."),
    Family("jetblock_cache_directory_misses_total", "counter", "Reads that the cache directory could not answer."),
    Family("jetblock_cache_directory_evictions_total", "counter", "Ranges evicted from the cache directory."),
    Family("jetblock_cache_directory_damaged_total", "counter",
           "Damaged ranges in the cache directory, which were read from the store again."),
    Family("jetblock_cache_directory_off", "gauge", "1 if the cache directory has turned itself off."),
)
"""All metrics apart from the process's and Python's own, which prometheus-client provides (``process_*``,
``python_*``)."""


def metrics_text(samples: Iterable[Sample], accept: str) -> tuple[bytes, str]:
    """Return the page and its content type, in the format that the header ``Accept`` requests. May run in any thread.

    Args: ``samples`` are the values of ``FAMILIES``.
    """
    # Do not use the global registry: several brokers may run in one process.
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Figures(samples))
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


class _Figures(Collector):
    def __init__(self, samples: Iterable[Sample]) -> None:
        self._samples = samples

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        found: dict[str, list[Sample]] = {family.name: [] for family in FAMILIES}
        for sample in self._samples:
            found[sample.name].append(sample)
        for family in FAMILIES:
            if samples := found[family.name]:
                yield _metric(family, samples)


def _metric(family: Family, samples: Sequence[Sample]) -> Metric:
    if family.kind == "histogram":
        histogram = HistogramMetricFamily(family.name, family.help, labels=family.labels)
        for sample in samples:
            if isinstance(sample.value, Buckets):
                histogram.add_metric(_written(sample.labels), list(_cumulative(sample.value)), sample.value.sum_s)
        return histogram
    kind = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
    metric = kind(family.name, family.help, labels=family.labels)
    for sample in samples:
        if not isinstance(sample.value, Buckets):
            metric.add_metric(_written(sample.labels), sample.value)
    return metric


def _written(labels: tuple[str, ...]) -> list[str]:
    """Replace what UTF-8 cannot encode: a name given by a client may contain half a surrogate pair."""
    return [label.encode("utf-8", "replace").decode() for label in labels]


def _cumulative(buckets: Buckets) -> Iterator[tuple[str, float]]:
    count = 0
    for bound, more in zip((*map(str, map(float, buckets.bounds)), "+Inf"), buckets.counts, strict=True):
        count += more
        yield bound, count
