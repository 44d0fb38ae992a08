"""The configurations of the nats-server in front and of the brokers behind it, made from the settings.

    the file's blocks ─┬─ without JetStream, the store, pages, logs ──> nats-server, with a remote for each account
    flags, environment ┘                                                      │ leaf connections on loopback
    settings ──────────── without ports and users ──────────────────────> worker, which listens for them

nats-server solicits the leaf connections, as their hub (``hub: true``), so it needs no port for them. A port of the
operator's file would ask the workers for certificates, or for users' tokens.

An account's default domain is empty (``default_js_domain``). So requests to ``$JS.API``, and messages to ``$KV`` and
``$OBJ``, cross the leaf connection as they are.

Source: nats-server, server/opts.go (processConfigFileLine), server/leafnode.go (addLeafNodeConnection).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Final, NamedTuple

from broker.access.accounts import User
from broker.base.gotime import format_duration
from broker.config.settings import (
    AuthSettings,
    LeafSettings,
    MonitoringSettings,
    OperatorSettings,
    ProcessSettings,
    Settings,
    TlsSettings,
    WebSocketSettings,
    make_settings,
    setting_at,
)
from broker.front.accounts import served_accounts, widened_payload

__all__ = ["Link", "front_lines", "is_clustered", "worker_settings"]

_LOOPBACK: Final = "127.0.0.1"
_OURS: Final = frozenset({
    "jetblock", "jetstream", "streaming", "store_dir", "storedir", "http", "https", "http_port", "https_port",
    "monitor_port", "http_base_path", "pid_file", "pidfile", "ports_file_dir", "log_file", "logfile",
    "log_size_limit", "logfile_size_limit", "log_max_num", "logfile_max_num", "logtime", "log_time", "logtime_utc",
    "debug", "trace", "trace_verbose", "default_js_domain", "syslog", "remote_syslog", "server_name"})
"""The top-level keys of a file that concern the broker or its supervisor."""

_SECTIONS: Final = ("auth.", "clients.", "leafnodes.", "operator.", "server_", "tls", "websocket.")
"""The beginnings of the paths of settings that a nats-server can have from flags or the environment."""

_ESCAPES: Final = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"})


class Link(NamedTuple):
    """The address of one worker, and the secret that its leaf connections and pages ask for."""

    name: str
    leaf_port: int
    pages_port: int
    secret: str


def is_clustered(settings: Settings) -> bool:
    """Return whether other servers may provide JetStream: then a front without a worker is of use."""
    blocks = {key.lower() for key in settings.front.blocks or ()}
    return bool({"cluster", "gateway"} & blocks) or any("cluster" in flag for flag in settings.front.flags)


def front_lines(settings: Settings, links: Collection[Link], accounts: Collection[str], *, pages_port: int,
                pages_path: str, port: int, ports_folder: str = "") -> list[tuple[str, str]]:
    """Return the lines of the nats-server's configuration file, each with its place in the operator's files or "".

    Args: ``accounts``: those with leaf connections; ``port``: that of clients; ``pages_port``, ``pages_path``: the
        place of its monitoring pages, whose path is a secret; ``ports_folder``: the folder of its ports file.
    """
    top = {key: value for key, value in (settings.front.blocks or {}).items() if key.lower() not in _OURS}
    if "tls" in settings.front.overrides:
        _drop(top, "tls")
    if (described := _member(top, "accounts")) and isinstance(top[described], Mapping):
        top[described] = {name: _linked(account) for name, account in top[described].items()}
    for path in settings.front.overrides:
        if path.startswith(_SECTIONS) and path != "tls":
            _override(top, path, settings[path])
    _drop(top, "listen", "port", "net", "host")
    system = settings.accounts.system
    with_jetstream = [name for name in accounts if name != system]
    if with_jetstream:
        _drop(top, "max_payload")
        top["max_payload"] = _payload_max(settings)
        top["default_js_domain"] = dict.fromkeys(with_jetstream, "")
    top |= {
        "server_name": settings.server_name, "host": settings.clients.host, "port": port,
        "http": f"{_LOOPBACK}:{pages_port}", "http_base_path": pages_path,
        "debug": settings.logging.debug, "trace": settings.logging.trace, "logtime": False}
    if ports_folder:
        top["ports_file_dir"] = ports_folder
    remotes = [{"url": f"nats-leaf://{number}:{link.secret}@{_LOOPBACK}:{link.leaf_port}", "account": name,
                "hub": True, "compression": "off"}
               for link in links for number, name in enumerate(accounts)]
    if remotes:
        key = _member(top, "leafnodes") or _member(top, "leaf") or "leafnodes"
        block = dict(top.get(key) or {"reconnect": "250ms"})
        own = _member(block, "remotes") or "remotes"
        block[own] = [*block.get(own, ()), *remotes]
        top[key] = block
    return list(_lines(top))


def own_shards(settings: Settings, number: int) -> dict[str, Any]:
    """Return the settings about the shards of worker ``number``, from 0: the shards are dealt out in turn."""
    workers = settings.front.workers
    if workers <= 1:
        return {}
    shards = settings.storage.shards or workers
    return {"shards": shards, "own": tuple(range(number, shards, workers))}


def worker_settings(settings: Settings, link: Link, accounts: Collection[str], number: int = 0) -> Settings:
    """Return the settings of worker ``number``: those of the broker without ports, users and what accounts share."""
    users = tuple(User(str(user), link.secret, account=name) for user, name in enumerate(accounts))
    return make_settings({
        "server_name": link.name,
        "clients.host": _LOOPBACK, "clients.listen": False, "clients.port": 0, "clients.proxy_protocol": False,
        "clients.max_payload": _payload_max(settings),
        "auth": AuthSettings(), "tls": TlsSettings(), "websocket": WebSocketSettings(),
        "accounts.configured": served_accounts(settings), "operator": OperatorSettings(),
        "accounts.default_domains": tuple((name, "") for name in accounts if name != settings.accounts.system),
        "leafnodes": LeafSettings(host=_LOOPBACK, port=link.leaf_port, users=users),
        "monitoring": MonitoringSettings(port=link.pages_port, host=_LOOPBACK, user="supervisor",
                                         password=link.secret, protect_health=True),
        "logging": settings.logging.replace(file="", format="text", times=False),
        "storage": settings.storage.replace(**own_shards(settings, number)),
        "process": ProcessSettings(), "front": type(settings.front)(), "notices": (), "file": "",
    }, settings)


def _linked(account: Any) -> Any:
    """Return an account of the file without JetStream, with limits that let the worker's connection in."""
    if not isinstance(account, Mapping):
        return account
    found = {key: value for key, value in account.items() if key.lower() not in ("jetstream", "js")}
    if found != account and isinstance(limits := found.get(key := _member(found, "limits")), Mapping):
        found[key] = {name: _WIDENED.get(name.lower(), _same)(value) for name, value in limits.items()}
    return found


def _same(value: Any) -> Any:
    return value


def _one_more(value: int) -> int:
    return value if value < 0 else value + 1


_WIDENED: Final[Mapping[str, Callable[[Any], Any]]] = {
    **dict.fromkeys(("max_connections", "max_conn", "max_leafnodes", "max_leafs"), _one_more),
    **dict.fromkeys(("max_payload", "max_pay"), widened_payload)}
"""The limits of an account that count the worker's connection, and its messages."""


def _payload_max(settings: Settings) -> int:
    """Return nats-server's limit of messages: its connections to the worker have it, too."""
    return min(widened_payload(settings.clients.max_payload), settings.clients.max_pending)


def _member(block: Mapping[str, Any], name: str) -> str:
    """Return a key as the file has it, whose case does not matter; "" if there is none."""
    return next((key for key in block if key.lower() == name), "")


def _drop(block: dict[str, Any], *names: str) -> None:
    for key in [key for key in block if key.lower() in names]:
        del block[key]


def _override(top: dict[str, Any], path: str, value: Any) -> None:
    """Set one setting, in place of the file's."""
    setting = setting_at(path)
    if not setting.keys or value is None or value == "":
        return
    for key in setting.keys:
        block = top
        *outer, last = key.split(".")
        for name in outer:
            block = block.get(_member(block, name)) or {}
        _drop(block, last)
    *outer, last = setting.keys[0].split(".")
    block = top
    for name in outer:
        own = _member(block, name) or name
        block[own] = dict(block.get(own) or {})
        block = block[own]
    if path.endswith("handshake_first_ns") and not value:
        value = True
    elif path.endswith("_ns"):
        value = format_duration(value)
    block[last] = list(value) if isinstance(value, tuple) else value


def _lines(block: Mapping[str, Any], indent: str = "") -> Iterator[tuple[str, str]]:
    for key, value in block.items():
        place = getattr(key, "place", "")  # a key of the file (config.file_settings.PlacedKey) has one
        if isinstance(value, Mapping):
            yield f"{indent}{_text(key)} {{", place
            yield from _lines(value, indent + "  ")
            yield indent + "}", place
        else:
            yield f"{indent}{_text(key)}: {_inline(value)}", place


def _inline(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_text(key)}: {_inline(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_inline, value)) + "]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _text(value)
    return str(value) if isinstance(value, int | float) else f"{value:%Y-%m-%dT%H:%M:%SZ}"


def _text(value: str) -> str:
    return '"' + value.translate(_ESCAPES) + '"'
