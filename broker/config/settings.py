"""The ``Settings`` value: everything an operator can set, with units, defaults and the names in every source.

A setting's name here carries its unit (``commit_interval_ns``); in the file and the environment the value carries it
(``commit_interval: 20ms``, ``JETBLOCK_COMMIT_INTERVAL=20ms``). ``SETTINGS`` is the table that the readers of the three
sources share, so a new setting is one line here and nothing elsewhere.

``Settings`` is a plain dataclass: importing pydantic takes as long as the rest of the start-up, so it is loaded only
when there is an environment to read (see ``environment``).
"""

from __future__ import annotations

import dataclasses
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from broker.config import kinds
from broker.config.kinds import Kind

__all__ = ["SETTINGS", "ConfigError", "Setting", "Settings", "User", "default_store_url"]

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
MS, SECOND, MINUTE = 1_000_000, 1_000_000_000, 60_000_000_000


class ConfigError(Exception):
    """What is wrong with what the operator wrote; ``str()`` names the place, the setting and what would be right."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table."""

    field: str
    """Its name in ``Settings``."""
    kind: Kind
    about: str
    """One sentence, with the unit."""
    keys: tuple[str, ...]
    """Dotted keys in a configuration file, the usual one first; none: no file sets it."""
    variable: str
    """Its environment variable, with the prefix ``JETBLOCK_``."""
    secret: bool = False


@dataclass(frozen=True, slots=True)
class User:
    """One of several users that may connect."""

    user: str
    password: str = dataclasses.field(repr=False)


def _setting(default: Any, kind: Kind, about: str, *keys: str, variable: str = "", secret: bool = False) -> Any:
    return dataclasses.field(default=default, repr=not secret,
                             metadata={"kind": kind, "about": about, "keys": keys, "variable": variable,
                                       "secret": secret})


@dataclass(frozen=True, slots=True)
class Settings:
    """What the broker runs with. Made by ``broker.config.load``; tests make their own with keyword arguments."""

    # ---- clients -------------------------------------------------------------------------------------------------
    server_name: str | None = _setting(
        None, kinds.text, "The server's name, shown to clients and naming it as a store's owner; unset: made up.",
        "server_name")
    host: str = _setting("0.0.0.0", kinds.text, "Address to listen on for clients.", "host", "net")
    port: int = _setting(4222, kinds.port, "TCP port for clients; -1: any free one.", "port")
    server_tags: tuple[str, ...] = _setting((), kinds.names, "Words that describe this server.", "server_tags")
    max_connections: int = _setting(
        65_536, kinds.integer(-1), "Client connections at once; -1: no bound.", "max_connections", "max_conn")
    max_subscriptions: int = _setting(
        0, kinds.integer(-1), "Subscriptions of one connection; 0: no bound.", "max_subscriptions", "max_subs")
    max_payload: int = _setting(
        MIB, kinds.size(1, 64 * MIB), "Bytes of one message, headers included.", "max_payload")
    max_pending: int = _setting(
        64 * MIB, kinds.size(KIB), "Bytes unsent to one client before it is cut off as a slow consumer.", "max_pending")
    max_control_line: int = _setting(
        4096, kinds.size(64, MIB), "Bytes of one protocol line.", "max_control_line")
    no_fast_producer_stall: bool = _setting(
        False, kinds.boolean, "Do not slow a publisher down for a receiver that is far behind: a receiver past "
        "max_pending is cut off all the sooner.", "no_fast_producer_stall")
    ping_interval_ns: int = _setting(
        2 * MINUTE, kinds.duration_ns(MS), "Time between pings to a silent client.", "ping_interval")
    ping_max: int = _setting(2, kinds.integer(1), "Unanswered pings before a client counts as stale.", "ping_max")
    write_deadline_ns: int = _setting(
        10 * SECOND, kinds.duration_ns(MS), "Longest time that a write to a client may make no progress.", "write_deadline")
    lame_duck_duration_ns: int = _setting(
        2 * MINUTE, kinds.duration_ns(MS), "Time over which a lame duck closes its clients.", "lame_duck_duration")
    lame_duck_grace_period_ns: int = _setting(
        10 * SECOND, kinds.duration_ns(), "Time a lame duck waits before it closes the first client.",
        "lame_duck_grace_period")
    max_closed_clients: int = _setting(
        1000, kinds.integer(0), "Closed connections that `/connz?state=closed` lists; 0: none.", "max_closed_clients")
    no_header_support: bool = _setting(False, kinds.boolean, "Offer no message headers.", "no_header_support")

    # ---- who may connect -----------------------------------------------------------------------------------------
    user: str | None = _setting(
        None, kinds.text, "User name asked of every client.", "authorization.user", "authorization.username")
    password: str | None = _setting(
        None, kinds.text, "That user's password, or its bcrypt hash.", "authorization.password", "authorization.pass", secret=True)
    token: str | None = _setting(
        None, kinds.text, "Token asked of every client, or its bcrypt hash.", "authorization.token", secret=True)
    users: tuple[User, ...] = _setting((), kinds.names, "Several users; from a file only.", variable="-")
    auth_timeout_ns: int = _setting(
        2 * SECOND, kinds.duration_ns(MS), "Time a client has to log in.", "authorization.timeout")

    # ---- watching it ---------------------------------------------------------------------------------------------
    http_port: int | None = _setting(
        None, kinds.port, "TCP port of the monitoring pages; unset: none; -1: any free one.",
        "http_port", "monitor_port")
    http_host: str | None = _setting(
        None, kinds.text, "Address of the monitoring pages; unset: as for clients.", variable="HTTP_HOST")
    http_base_path: str = _setting("/", kinds.text, "Path under which the monitoring pages are served.", "http_base_path")
    debug: bool = _setting(False, kinds.boolean, "Log debugging lines.", "debug")
    trace: bool = _setting(False, kinds.boolean, "Log each protocol line.", "trace", "trace_verbose")
    max_traced_msg_len: int = _setting(
        0, kinds.integer(0), "Bytes of a payload shown in a trace line; 0: all.", "max_traced_msg_len")
    log_file: str | None = _setting(
        None, kinds.text, "File for the log; unset: standard error.", "log_file", "logfile")
    logtime: bool = _setting(True, kinds.boolean, "Begin each log line with the time.", "logtime")
    logtime_utc: bool = _setting(False, kinds.boolean, "Log times in UTC, not local time.", "logtime_utc")
    pid_file: str | None = _setting(None, kinds.text, "File that gets the process id.", "pid_file", "pidfile")
    ports_file_dir: str | None = _setting(
        None, kinds.text, "Directory that gets a file naming the ports in use.", "ports_file_dir")

    # ---- JetStream -----------------------------------------------------------------------------------------------
    jetstream: bool = _setting(False, kinds.boolean, "Offer JetStream.", variable="JETSTREAM")
    store: str | None = _setting(
        None, kinds.text, "Where streams are kept: file:///dir, s3://bucket/prefix or memory://; unset: a temporary "
        "directory.", "jetblock.store")
    max_memory_store: int = _setting(
        -1, kinds.size(-1), "Bytes of all messages in `storage: memory` streams, past which publishes to them are refused "
        "(10023); -1: three quarters of the memory of the machine, or of the container.",
        "jetstream.max_memory_store", "jetstream.max_mem_store", "jetstream.max_mem")
    max_file_store: int = _setting(
        -1, kinds.size(-1), "Bytes of all messages in stored streams, past which publishes to them are refused (10023); "
        "-1: no bound.",
        "jetstream.max_file_store", "jetstream.max_file")
    jetstream_domain: str | None = _setting(None, kinds.text, "JetStream domain.", "jetstream.domain")
    jetstream_strict: bool = _setting(
        True, kinds.boolean, "Refuse API requests with unknown fields.", "jetstream.strict")
    jetstream_max_ack_pending: int = _setting(
        -1, kinds.integer(-1), "Highest max_ack_pending a consumer may ask for; -1: no bound.",
        "jetstream.limits.max_ack_pending")
    jetstream_max_request_batch: int = _setting(
        -1, kinds.integer(-1), "Largest batch of one pull request; -1: no bound.",
        "jetstream.limits.max_request_batch")
    jetstream_duplicate_window_ns: int = _setting(
        0, kinds.duration_ns(), "Longest duplicate_window a stream may ask for; 0: no bound.",
        "jetstream.limits.duplicate_window")

    # ---- the store -----------------------------------------------------------------------------------------------
    s3_endpoint: str | None = _setting(
        None, kinds.text, "URL of the S3 service; unset: AWS_ENDPOINT_URL, else AWS.",
        "jetstream.object_store.endpoint")
    s3_region: str | None = _setting(
        None, kinds.text, "Region; unset: from the usual AWS settings.", "jetstream.object_store.region")
    s3_access_key_id: str | None = _setting(
        None, kinds.text, "Access key; unset: the usual AWS credential chain.",
        "jetstream.object_store.access_key_id", secret=True)
    s3_secret_access_key: str | None = _setting(
        None, kinds.text, "Its secret.", "jetstream.object_store.secret_access_key", secret=True)

    # ---- the engine ----------------------------------------------------------------------------------------------
    commit_interval_ns: int | None = _setting(
        None, kinds.duration_ns(0, 10 * SECOND), "Least time between the beginnings of two puts of a log, full "
        "segments excepted; unset: 0 for a directory, 20ms for S3, where each put is paid for.",
        "jetblock.commit_interval")
    segment_bytes: int = _setting(
        4 * MIB, kinds.size(64 * KIB, 64 * MIB), "Raw bytes at which a segment is full and is put at once.",
        "jetblock.segment_bytes")
    puts_in_flight: int = _setting(
        4, kinds.integer(1, 16), "Segments of one log on their way to the store at once, 1 to 16.",
        "jetblock.puts_in_flight")
    tail_bytes_max: int = _setting(
        256 * MIB, kinds.size(MIB), "Bytes sequenced but not yet stored, in all; past it publishers wait, then are "
        "refused.", "jetblock.tail_bytes_max")
    cache_bytes: int = _setting(
        64 * MIB, kinds.size(0), "Bytes of blocks kept in memory for readers.", "jetblock.cache_bytes")
    lease_ns: int = _setting(
        15 * SECOND, kinds.duration_ns(100 * MS), "On S3: time without a sign of life after which a standby takes "
        "over, and an owner that could not write stops answering.", "jetblock.lease")
    put_timeout_ns: int = _setting(
        5 * SECOND, kinds.duration_ns(50 * MS), "Longest time for one request to the store before it is tried again.",
        "jetblock.put_timeout")
    compression: str = _setting(
        "zstd", kinds.choice("zstd", "none"), "How blocks are compressed: zstd or none.", "jetblock.compression")

    notices: tuple[str, ...] = dataclasses.field(default=(), repr=False)
    """Lines for the log about what a file sets that has no effect here. Not a setting."""


def default_store_url() -> str:
    """Where streams are kept when JetStream is on and no store is named: beside nats-server's own default."""
    return f"file://{Path(tempfile.gettempdir(), 'nats', 'jetblock')}"


def _table() -> tuple[Setting, ...]:
    rows = []
    for field in dataclasses.fields(Settings):
        about = field.metadata
        if not about:
            continue
        name = about["variable"] or (about["keys"][0].split(".")[-1] if about["keys"] else field.name)
        if about["keys"] and about["keys"][0].split(".")[0] in ("authorization", "jetstream"):
            # `JETBLOCK_TIMEOUT` or `JETBLOCK_DOMAIN` would not say whose: the field's own name, less its unit, does.
            name = about["variable"] or field.name.removesuffix("_ns")
        variable = "" if name == "-" else "JETBLOCK_" + name.upper()
        rows.append(Setting(field.name, about["kind"], about["about"], about["keys"], variable, about["secret"]))
    return tuple(rows)


SETTINGS: tuple[Setting, ...] = _table()
"""Every setting, in the order of ``Settings``."""
