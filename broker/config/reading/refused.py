"""The keys that jetblock refuses, and the keys without effect here, with the reasons.

A key covers everything in its block. Dots separate the keys of nested blocks. Keys of users and accounts are handled
where those are read.
"""

from __future__ import annotations

from broker.config.settings import REMOVED

__all__ = ["ALONE", "HANDED_OVER", "LATER", "NOT_OURS", "NO_EFFECT", "REFUSED"]

LATER = "is not supported by this version of jetblock"
ALONE = "needs other servers, and this version of jetblock runs alone"
NOT_OURS = "is nothing that jetblock has"

REFUSED: dict[str, str] = {
    "leafnodes.authorization.proxy_required": f"{LATER} for the listener of leaf nodes",
    **dict.fromkeys(("ocsp", "ocsp_cache", "tls.ocsp_peer", "websocket.tls.ocsp_peer",
                     "leafnodes.tls.ocsp_peer"),
                    f"{LATER}: certificates are not checked by OCSP"),
    **{f"{section}.{key}": f"{NOT_OURS}: it takes certificates from files"
       for section in ("tls", "websocket.tls", "leafnodes.tls")
       for key in ("cert_store", "cert_match_by", "cert_match", "ca_certs_match", "cert_match_skip_invalid")},
    **dict.fromkeys((f"{section}.verify_cert_and_check_known_urls" for section in (
        "tls", "websocket.tls", "leafnodes.tls")), "is for connections between servers: use verify"),
    "websocket.advertise": ALONE,
    **dict.fromkeys(("cluster", "gateway", "client_advertise", "connect_error_reports",
                     "reconnect_error_reports"), f"{ALONE}, except with --workers"),
    "mqtt": f"{NOT_OURS}: it speaks the NATS protocol only, except with --workers",
    **dict.fromkeys((f"resolver_tls.{key}" for key in ("certs", "certificates", "cipher_suites", "curve_preferences",
                                                       "allow_insecure_cipher_suites", "ocsp_peer")), LATER),
    **dict.fromkeys((f"resolver_tls.{key}" for key in ("cert_store", "cert_match_by", "cert_match", "ca_certs_match",
                                                       "cert_match_skip_invalid")),
                    f"{NOT_OURS}: it takes certificates from files"),
    **dict.fromkeys(("syslog", "remote_syslog"), f"{NOT_OURS}: it logs to standard error or to log_file"),
    **dict.fromkeys(("prof_port", "prof_block_rate"), f"{NOT_OURS}: it is not written in Go"),
    "jetstream.tpm": f"{LATER}: use jetstream {{ key }}",
    **{key: f"was removed: {why}; delete the line" for key, why in REMOVED.items()},
    **dict.fromkeys((f"streaming.{key}" for key in ("ns", "nats_server", "nats_server_url")),
                    f"{LATER}: NATS Streaming clients connect to this broker"),
    **dict.fromkeys(("streaming.encrypt", "streaming.encryption_cipher", "streaming.encryption_key"),
                    f"{LATER}: let the bucket or the disk encrypt"),
    **dict.fromkeys(("jetstream.extension_hint", "jetstream.unique_tag", "jetstream.max_outstanding_catchup"), ALONE),
}

_OURS = ("jetblock", "jetstream", "streaming", "syslog", "remote_syslog", *REMOVED)

HANDED_OVER = frozenset({"cluster", "gateway", "mqtt", "websocket", "ws", "leafnodes", "leaf", *(
    key for key in REFUSED if not key.startswith(_OURS))})
"""The keys that a nats-server in front of the broker reads, if there is one: nothing of them concerns the broker."""

NO_EFFECT: dict[str, str] = {
    **dict.fromkeys((f"resolver_tls.{key}" for key in ("verify", "verify_and_map", "verify_cert_and_check_known_urls",
                                                       "pinned_certs", "timeout", "first", "handshake_first",
                                                       "immediate",
                                                       "connection_rate_limit")),
                    "it is for connections that the server accepts"),
    **dict.fromkeys(("tls.insecure", "websocket.tls.insecure", "leafnodes.tls.insecure"),
                    "it is for connections to other servers"),
    "disable_sublist_cache": "routes are always cached",
    "no_sublist_cache": "routes are always cached",
    "jetstream.max_buffered_size": "jetblock.tail_bytes_max bounds what waits to be stored",
    "jetstream.max_buffered_msgs": "jetblock.tail_bytes_max bounds what waits to be stored",
    **dict.fromkeys(("feature_flags.js_raft_delete_range", "feature_flags.js_snapshot_sources"), "there is no Raft"),
    "feature_flags.js_api_reply_v2": "it is for replies between servers",
    "jetstream.limits.max_ha_assets": "no stream or consumer has replicas",
    "jetstream.meta_compact": "there is no meta log",
    "jetstream.meta_compact_size": "there is no meta log",
    "jetstream.meta_compact_sync": "there is no meta log",
    **dict.fromkeys((f"streaming.{key}" for key in ("st", "store_type", "store", "storetype")),
                    "channels are kept in JetStream's store"),
    **dict.fromkeys(("streaming.file", "streaming.file_options", "streaming.sql", "streaming.sql_options"),
                    "channels are kept in JetStream's store"),
    **dict.fromkeys(("streaming.sd", "streaming.stan_debug", "streaming.sv", "streaming.stan_trace"),
                    "debug and trace are for all of the broker"),
    **dict.fromkeys(("streaming.ft_group", "streaming.ft_group_name", "streaming.cluster"),
                    "brokers on one store take over from each other without it"),
    **dict.fromkeys(("streaming.secure", "streaming.tls", "streaming.username", "streaming.user",
                     "streaming.password", "streaming.pass", "streaming.token", "streaming.credentials",
                     "streaming.nkey_seed_file"), "there is no connection to a NATS server of its own"),
    "streaming.syslog_name": "it is for Windows",
    "jetstream.max_concurrent_io": "jetblock.puts_in_flight bounds what is written at once",
}
