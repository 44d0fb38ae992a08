"""Keys of nats-server that jetblock refuses, and why; and those that would change nothing here.

A key stands for all within its block. Dots separate the keys of nested blocks. Keys of users and accounts are dealt
with where those are read.
"""

from __future__ import annotations

__all__ = ["ALONE", "LATER", "NOT_OURS", "NO_EFFECT", "REFUSED"]

LATER = "is not supported by this version of jetblock"
ALONE = "needs other servers, and this version of jetblock runs alone"
NOT_OURS = "is nothing that jetblock has"

REFUSED: dict[str, str] = {
    **dict.fromkeys(("tls", "allow_non_tls", "ocsp", "ocsp_cache"),
                    f"{LATER}: clients connect without TLS; terminate it in a proxy in front of the broker"),
    **dict.fromkeys(("https", "https_port"), f"{LATER}: the monitoring pages are served over plain http"),
    **dict.fromkeys(("websocket", "ws"), f"{LATER}: clients connect over TCP"),
    **dict.fromkeys(("cluster", "gateway", "leaf", "leafnodes", "client_advertise", "connect_error_reports",
                     "reconnect_error_reports"), ALONE),
    "mqtt": f"{NOT_OURS}: it speaks the NATS protocol only",
    **dict.fromkeys(("operator", "operators", "roots", "root", "root_operators", "root_operator", "resolver",
                     "account_resolver", "accounts_resolver", "resolver_tls", "resolver_preload",
                     "resolver_pinned_accounts", "trusted", "trusted_keys", "default_sentinel"),
                    f"{LATER}: clients sign in with a user name and password or a token"),
    **dict.fromkeys(("proxy_protocol", "proxies", "default_js_domain", "server_metadata", "feature_flags",
                     "max_sub_tokens", "max_subscription_tokens", "write_timeout", "trace_headers"), LATER),
    **dict.fromkeys(("syslog", "remote_syslog"), f"{NOT_OURS}: it logs to standard error or to log_file"),
    **dict.fromkeys(("prof_port", "prof_block_rate"), f"{NOT_OURS}: it is not written in Go"),
    **dict.fromkeys(("authorization.auth_callout", "authorization.auth_hook", "authorization.proxy_required"), LATER),
    **dict.fromkeys(("jetstream.key", "jetstream.ek", "jetstream.encryption_key", "jetstream.prev_key",
                     "jetstream.prev_ek", "jetstream.prev_encryption_key", "jetstream.cipher", "jetstream.tpm"),
                    f"{LATER}: let the bucket or the disk encrypt"),
    **dict.fromkeys(("jetstream.extension_hint", "jetstream.unique_tag", "jetstream.max_outstanding_catchup",
                     "jetstream.limits.max_ha_assets"), ALONE),
    **dict.fromkeys(("jetstream.request_queue_limit", "jetstream.info_queue_limit"), LATER),
}

NO_EFFECT: dict[str, str] = {
    "disable_sublist_cache": "routes are always cached",
    "no_sublist_cache": "routes are always cached",
    "jetstream.max_buffered_size": "jetblock.tail_bytes_max bounds what waits to be stored",
    "jetstream.max_buffered_msgs": "jetblock.tail_bytes_max bounds what waits to be stored",
    "jetstream.meta_compact": "there is no meta log",
    "jetstream.meta_compact_size": "there is no meta log",
    "jetstream.meta_compact_sync": "there is no meta log",
    "jetstream.max_concurrent_io": "jetblock.puts_in_flight bounds what is written at once",
}
