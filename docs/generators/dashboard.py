"""Write docs/grafana-dashboard.json: ``python docs/generators/dashboard.py``. A test compares the two.

The rows answer an operator's questions in their usual order: is the broker healthy, is it fast, is the store slow,
which stream is it, which account.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parent.parent / "grafana-dashboard.json"

_BROKER = 'instance=~"$instance"'
_ACCOUNT = 'account=~"$account"'
_RATE = "[$__rate_interval]"


def _rate(metric: str, *labels: str) -> str:
    return f"rate({metric}{{{','.join((_BROKER, *labels))}}}{_RATE})"


def _quantile(share: float, metric: str, by: str = "") -> str:
    grouped = f"le, instance{', ' + by if by else ''}"
    return f"histogram_quantile({share}, sum by ({grouped}) ({_rate(f'{metric}_bucket')}))"


def _now(metric: str, *labels: str) -> str:
    return f"{metric}{{{','.join((_BROKER, *labels))}}}"


# Title, unit, and each line's expression and legend.
_ROWS: list[tuple[str, list[tuple[str, str, list[tuple[str, str]]]]]] = [
    ("Health", [
        ("Healthy", "bool", [(_now("jetblock_healthy"), "{{instance}}")]),
        ("Standby", "bool", [(_now("jetblock_standby"), "{{instance}}")]),
        ("Store takes commits", "bool", [(_now("jetblock_store_up"), "{{instance}}")]),
        ("Lease valid", "bool", [(_now("jetblock_lease_valid"), "{{instance}}")]),
        ("Streams offline", "none", [(_now("jetblock_jetstream_streams_offline"), "{{instance}}")]),
        ("Epoch (rises when the owner changes)", "none", [(_now("jetblock_epoch"), "{{instance}}")]),
    ]),
    ("Clients", [
        ("Messages", "ops", [(_rate("jetblock_received_messages_total"), "received {{instance}}"),
                             (_rate("jetblock_sent_messages_total"), "sent {{instance}}")]),
        ("Bytes", "Bps", [(_rate("jetblock_received_bytes_total"), "received {{instance}}"),
                          (_rate("jetblock_sent_bytes_total"), "sent {{instance}}")]),
        ("Connections", "none", [(_now("jetblock_connections"), "{{instance}}"),
                                 (_rate("jetblock_connections_accepted_total"), "new per second {{instance}}")]),
        ("Subscriptions", "none", [(_now("jetblock_subscriptions"), "{{instance}}")]),
        ("Clients cut off or slowed down", "ops", [
            (_rate("jetblock_slow_consumers_total"), "slow {{instance}}"),
            (_rate("jetblock_stale_connections_total"), "stale {{instance}}"),
            (_rate("jetblock_stalled_clients_total"), "stalled publishers {{instance}}")]),
        ("Event loop lag", "s", [(_quantile(0.5, "jetblock_event_loop_lag_seconds"), "p50 {{instance}}"),
                                 (_quantile(0.99, "jetblock_event_loop_lag_seconds"), "p99 {{instance}}")]),
    ]),
    ("Commits", [
        ("Wait for a commit", "s", [(_quantile(0.5, "jetblock_commit_duration_seconds"), "p50 {{instance}}"),
                                    (_quantile(0.99, "jetblock_commit_duration_seconds"), "p99 {{instance}}")]),
        ("Commits (the S3 bill)", "ops", [(_rate("jetblock_commits_total"), "{{instance}}")]),
        ("Bytes committed", "Bps", [(_rate("jetblock_commit_bytes_total"), "{{instance}}")]),
        ("Tail: sequenced and not stored", "bytes", [(_now("jetblock_tail_bytes"), "{{instance}}"),
                                                     (_now("jetblock_max_tail_bytes"), "bound {{instance}}")]),
        ("Segments since the last checkpoint", "none", [(_now("jetblock_checkpoint_lag_segments"), "{{instance}}")]),
        ("Last take-over", "s", [(_now("jetblock_recovery_duration_seconds"), "{{instance}}")]),
    ]),
    ("Store and cache", [
        ("Calls of the store", "ops", [(_rate("jetblock_store_operation_duration_seconds_count"),
                                        "{{operation}} {{instance}}")]),
        ("Duration of a call, p99", "s", [(_quantile(0.99, "jetblock_store_operation_duration_seconds", "operation"),
                                           "{{operation}} {{instance}}")]),
        ("Errors", "ops", [(_rate("jetblock_store_errors_total", 'kind!~"NotFound|PreconditionFailed"'),
                            "{{operation}} {{kind}} {{instance}}"),
                           (_rate("jetblock_store_retries_total"), "reads tried again {{instance}}")]),
        ("Bytes", "Bps", [(_rate("jetblock_store_transferred_bytes_total"), "{{operation}} {{instance}}")]),
        ("Cache hit rate", "percentunit", [
            (f"{_rate('jetblock_cache_hits_total')} / ({_rate('jetblock_cache_hits_total')} + "
             f"{_rate('jetblock_cache_misses_total')})", "{{instance}}")]),
        ("Cache", "bytes", [(_now("jetblock_cache_bytes"), "{{instance}}"),
                            (_now("jetblock_cache_main_bytes"), "used again {{instance}}"),
                            (_now("jetblock_max_cache_bytes"), "bound {{instance}}")]),
        ("Parts that leave the cache, and come back soon", "ops", [
            (_rate("jetblock_cache_evictions_total"), "evicted, {{queue}} {{instance}}"),
            (_rate("jetblock_cache_ghost_hits_total"), "back soon {{instance}}")]),
        ("Cache directory", "bytes", [(_now("jetblock_cache_directory_bytes"), "{{instance}}")]),
        ("Cache directory, hit rate", "percentunit", [
            (f"{_rate('jetblock_cache_directory_hits_total')} / ({_rate('jetblock_cache_directory_hits_total')} + "
             f"{_rate('jetblock_cache_directory_misses_total')})", "{{instance}}")]),
        ("Cache directory: damaged ranges, turned off", "none", [
            (_now("jetblock_cache_directory_damaged_total"), "damaged {{instance}}"),
            (_now("jetblock_cache_directory_off"), "off {{instance}}")]),
    ]),
    ("In the background", [
        ("Merges of compaction", "ops", [(_rate("jetblock_compaction_merges_total"), "{{instance}}")]),
        ("Bytes of compaction", "Bps", [(_rate("jetblock_compaction_read_bytes_total"), "read {{instance}}"),
                                        (_rate("jetblock_compaction_written_bytes_total"), "written {{instance}}")]),
        ("Bytes scrubbed", "Bps", [(_rate("jetblock_scrub_bytes_total"), "{{instance}}")]),
        ("Damaged objects", "none", [(_now("jetblock_damaged_objects"), "{{instance}}")]),
    ]),
    ("Streams", [
        ("Stored, of the bound", "percentunit", [
            (f"{_now('jetblock_jetstream_stored_bytes')} / {_now('jetblock_jetstream_max_bytes')}",
             "{{storage}} {{instance}}")]),
        ("Messages stored per second, ten busiest streams", "ops", [
            (f"topk(10, {_rate('jetblock_stream_last_sequence', _ACCOUNT)})", "{{account}} {{stream}}")]),
        ("Bytes, ten largest streams", "bytes", [
            (f"topk(10, {_now('jetblock_stream_bytes', _ACCOUNT)})", "{{account}} {{stream}}")]),
        ("Messages not delivered yet, ten longest backlogs", "none", [
            (f"topk(10, {_now('jetblock_stream_pending_messages', _ACCOUNT)})", "{{account}} {{stream}}")]),
        ("Messages not acknowledged yet, ten most", "none", [
            (f"topk(10, {_now('jetblock_stream_ack_pending_messages', _ACCOUNT)})", "{{account}} {{stream}}")]),
        ("Requests of the JetStream API", "ops", [
            (_rate("jetblock_jetstream_api_requests_total"), "all {{instance}}"),
            (_rate("jetblock_jetstream_api_errors_total"), "errors {{instance}}")]),
    ]),
    ("Accounts", [
        ("Messages from clients, ten busiest accounts", "ops", [
            (f"topk(10, sum by (account) ({_rate('jetblock_account_received_messages_total', _ACCOUNT)}))",
             "{{account}}")]),
        ("Messages to clients, ten busiest accounts", "ops", [
            (f"topk(10, sum by (account) ({_rate('jetblock_account_sent_messages_total', _ACCOUNT)}))",
             "{{account}}")]),
        ("Bytes, ten busiest accounts", "Bps", [
            (f"topk(10, sum by (account) ({_rate('jetblock_account_received_bytes_total', _ACCOUNT)}))",
             "received {{account}}"),
            (f"topk(10, sum by (account) ({_rate('jetblock_account_sent_bytes_total', _ACCOUNT)}))",
             "sent {{account}}")]),
        ("Connections, ten largest accounts", "none", [
            (f"topk(10, sum by (account) ({_now('jetblock_account_connections', _ACCOUNT)}))", "{{account}}")]),
        ("Subscriptions, ten largest accounts", "none", [
            (f"topk(10, sum by (account) ({_now('jetblock_account_subscriptions', _ACCOUNT)}))", "{{account}}")]),
        ("Bytes in streams, ten largest accounts", "bytes", [
            (f"topk(10, sum by (account) ({_now('jetblock_stream_bytes', _ACCOUNT)}))", "{{account}}")]),
        ("Messages not delivered yet, ten longest backlogs", "none", [
            (f"topk(10, sum by (account) ({_now('jetblock_stream_pending_messages', _ACCOUNT)}))", "{{account}}")]),
        ("Accounts and streams without series of their own", "none", [
            (_now("jetblock_accounts_not_shown"), "accounts {{instance}}"),
            (_now("jetblock_streams_not_shown"), "streams {{instance}}")]),
    ]),
    ("Process", [
        ("Processor", "percentunit", [(_rate("process_cpu_seconds_total"), "{{instance}}")]),
        ("Memory", "bytes", [(_now("process_resident_memory_bytes"), "{{instance}}")]),
        ("Open files and sockets", "none", [(_now("process_open_fds"), "{{instance}}"),
                                            (_now("process_max_fds"), "bound {{instance}}")]),
    ]),
]


def page() -> str:
    """Return the dashboard as JSON."""
    panels: list[dict[str, Any]] = []
    y = 0
    for row, shown in _ROWS:
        panels.append({"id": len(panels) + 1, "type": "row", "title": row, "collapsed": False, "panels": [],
                       "gridPos": {"x": 0, "y": y, "w": 24, "h": 1}})
        y += 1
        for n, (title, unit, lines) in enumerate(shown):
            panels.append({
                "id": len(panels) + 1, "type": "timeseries", "title": title, "datasource": _SOURCE,
                "gridPos": {"x": n % 3 * 8, "y": y + n // 3 * 8, "w": 8, "h": 8},
                "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
                "options": {"legend": {"displayMode": "list", "placement": "bottom"},
                            "tooltip": {"mode": "multi", "sort": "desc"}},
                "targets": [{"refId": chr(ord("A") + at), "expr": expression, "legendFormat": legend,
                             "datasource": _SOURCE} for at, (expression, legend) in enumerate(lines)]})
        y += -(-len(shown) // 3) * 8
    instance = {"name": "instance", "label": "Broker", "type": "query", "datasource": _SOURCE,
                "query": {"query": "label_values(jetblock_build_info, instance)", "refId": "instance"},
                "multi": True, "includeAll": True, "refresh": 2, "sort": 1,
                "current": {"text": "All", "value": "$__all"}}
    account = {"name": "account", "label": "Account", "type": "query", "datasource": _SOURCE,
               "query": {"query": "label_values(jetblock_account_connections, account)", "refId": "account"},
               "multi": True, "includeAll": True, "refresh": 2, "sort": 1, "allValue": ".*",
               "current": {"text": "All", "value": "$__all"}}
    source = {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}
    return json.dumps({
        "title": "jetblock", "uid": "jetblock", "tags": ["jetblock", "nats"], "schemaVersion": 39, "version": 1,
        "editable": True, "refresh": "30s", "time": {"from": "now-3h", "to": "now"}, "timezone": "browser",
        "templating": {"list": [source, instance, account]}, "panels": panels}, indent=1) + "\n"


_SOURCE = {"type": "prometheus", "uid": "${datasource}"}

if __name__ == "__main__":
    PAGE.write_text(page())
