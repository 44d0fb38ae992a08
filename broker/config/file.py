"""From a parsed configuration file to settings, or to a list of everything wrong with it.

Strict: an unknown key is refused, as by nats-server; a key that nats-server knows and jetblock does not support is
refused with the reason, never ignored. The few that would change nothing here are accepted and noted in the log. Keys
are compared without case, as in nats-server. A key that a ``$variable`` refers to may have any name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from broker.config import kinds
from broker.config.access import User
from broker.config.settings import SETTINGS, ConfigError, Setting
from broker.config.syntax import SyntaxFailure, Value, parse
from broker.suggest import did_you_mean

__all__ = ["FileSettings", "address", "read_file"]

_BY_KEY: dict[str, Setting] = {key: setting for setting in SETTINGS for key in setting.keys}

_LATER = "is not supported by this version of jetblock"
_ALONE = "needs other servers, and this version of jetblock runs alone"
_NOT_OURS = "is nothing that jetblock has"

_REFUSED: dict[str, str] = {
    **dict.fromkeys(("tls", "allow_non_tls", "ocsp", "ocsp_cache"),
                    f"{_LATER}: clients connect without TLS; terminate it in a proxy in front of the broker"),
    **dict.fromkeys(("https", "https_port"), f"{_LATER}: the monitoring pages are served over plain http"),
    **dict.fromkeys(("websocket", "ws"), f"{_LATER}: clients connect over TCP"),
    **dict.fromkeys(("cluster", "gateway", "leaf", "leafnodes", "client_advertise", "connect_error_reports",
                     "reconnect_error_reports"), _ALONE),
    "mqtt": f"{_NOT_OURS}: it speaks the NATS protocol only",
    **dict.fromkeys(("accounts", "system_account", "system", "no_system_account", "no_system",
                     "no_sys_acc"), f"{_LATER}: every client is in the one account $G"),
    **dict.fromkeys(("operator", "operators", "roots", "root", "root_operators", "root_operator", "resolver",
                     "account_resolver", "accounts_resolver", "resolver_tls", "resolver_preload",
                     "resolver_pinned_accounts", "trusted", "trusted_keys", "default_sentinel"),
                    f"{_LATER}: clients sign in with a user name and password or a token"),
    **dict.fromkeys(("mappings", "maps"), f"{_LATER}: subjects are used as they are published"),
    **dict.fromkeys(("proxy_protocol", "proxies", "default_js_domain", "server_metadata", "feature_flags",
                     "max_sub_tokens", "max_subscription_tokens", "write_timeout", "trace_headers"), _LATER),
    **dict.fromkeys(("syslog", "remote_syslog"), f"{_NOT_OURS}: it logs to standard error or to log_file"),
    **dict.fromkeys(("logfile_size_limit", "log_size_limit", "logfile_max_num", "log_max_num"),
                    f"{_LATER}: let logrotate move log_file, and send SIGUSR1"),
    **dict.fromkeys(("prof_port", "prof_block_rate"), f"{_NOT_OURS}: it is not written in Go"),
    **dict.fromkeys(("authorization.permissions", "authorization.default_permissions",
                     "authorization.default_permission", "authorization.auth_callout", "authorization.auth_hook",
                     "authorization.proxy_required"),
                    f"{_LATER}: every client may use every subject"),
    **dict.fromkeys(("jetstream.key", "jetstream.ek", "jetstream.encryption_key", "jetstream.prev_key",
                     "jetstream.prev_ek", "jetstream.prev_encryption_key", "jetstream.cipher", "jetstream.tpm"),
                    f"{_LATER}: let the bucket or the disk encrypt"),
    **dict.fromkeys(("jetstream.extension_hint", "jetstream.unique_tag", "jetstream.max_outstanding_catchup",
                     "jetstream.limits.max_ha_assets"), _ALONE),
    **dict.fromkeys(("jetstream.limits.batch", "jetstream.request_queue_limit", "jetstream.info_queue_limit"), _LATER),
}

_NO_EFFECT: dict[str, str] = {
    "disable_sublist_cache": "routes are always cached",
    "no_sublist_cache": "routes are always cached",
    "jetstream.max_buffered_size": "jetblock.tail_bytes_max bounds what waits to be stored",
    "jetstream.max_buffered_msgs": "jetblock.tail_bytes_max bounds what waits to be stored",
    "jetstream.meta_compact": "there is no meta log",
    "jetstream.meta_compact_size": "there is no meta log",
    "jetstream.meta_compact_sync": "there is no meta log",
    "jetstream.max_concurrent_io": "jetblock.puts_in_flight bounds what is written at once",
}

_SECTIONS = frozenset({"authorization", "jetblock", "jetstream", "jetstream.limits", "jetstream.object_store"})
_USER_REFUSED = frozenset({"nkey", "permission", "permissions", "authorization", "allowed_connection_types",
                           "connection_types", "clients", "proxy_required"})


@dataclass(slots=True)
class FileSettings:
    """What a file says, by the paths of its settings; ``stores`` are the places it names for streams."""

    values: dict[str, Any] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)
    """``FILE:LINE:COLUMN`` by path, for errors found later."""
    stores: dict[str, str] = field(default_factory=dict)
    """Store URL by the place it was named at."""
    jetstream: bool | None = None
    notices: list[str] = field(default_factory=list)


def read_file(path: str, environ: Mapping[str, str], read: Callable[[str], str]) -> FileSettings:
    """Read the configuration file at ``path``, and what it includes, through ``read(path)``.

    Raises: ConfigError whose text has one line for each thing that is wrong.
    """
    try:
        text = read(path)
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise ConfigError(f"open {path}: {why}; name a readable file with -c") from None
    except ValueError:
        raise ConfigError(f"{path}: Parse error: the file is not UTF-8 text") from None
    try:
        top = parse(text, file=path, environ=environ, read=read)
    except SyntaxFailure as error:
        raise ConfigError(str(error)) from None
    if not top.value:
        raise ConfigError(f"{path}: config has no values or is empty")
    meaning = _Meaning()
    meaning.section("", top)
    if meaning.errors:
        raise ConfigError("\n".join(meaning.errors))
    return meaning.found


def address(value: Any) -> tuple[str | None, int]:
    """``4222``, ``localhost:4222``, ``[::1]:-1`` or ``:4222`` as host (None: not given) and port."""
    if isinstance(value, int) and not isinstance(value, bool):
        return None, kinds.port(value)
    if not isinstance(value, str):
        raise ValueError("must be a port or host:port")
    host, colon, number = value.strip().rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError("must be a port or host:port, an IPv6 address in [brackets]")
    return (host or None) if colon else None, kinds.port(number)


class _Meaning:
    """Walks the maps of one file and collects settings and errors."""

    def __init__(self) -> None:
        self.found = FileSettings()
        self.errors: list[str] = []
        self.bucket: Value | None = None
        self.path_prefix = ""

    def section(self, name: str, value: Value) -> None:
        if not isinstance(value.value, dict):
            self.wrong(value, f"{name} must be a block: {name} {{ … }}")
            return
        for written, inner in value.value.items():
            key = written.lower()
            self.key(f"{name}.{key}" if name else key, written, inner)

    def key(self, path: str, written: str, value: Value) -> None:
        special = self.SPECIAL.get(path)
        if special is not None:
            special(self, value)
        elif path in _BY_KEY:
            self.setting(_BY_KEY[path], written, value)
        elif path in _SECTIONS:
            self.section(path, value)
        elif path in _REFUSED:
            self.wrong(value, f'"{written}" {_REFUSED[path]}')
        elif path in _NO_EFFECT:
            self.found.notices.append(f"{value.place}: {written} has no effect here: {_NO_EFFECT[path]}")
        elif not value.used:
            self.unknown(written, value, _known_in(path.rpartition(".")[0]))

    def unknown(self, written: str, value: Value, known: Iterable[str]) -> None:
        self.wrong(value, f'unknown field "{written}"{did_you_mean(written, known)}')

    def wrong(self, value: Value, why: str) -> None:
        self.errors.append(f"{value.place}: {why}")

    def setting(self, setting: Setting, written: str, value: Value) -> None:
        try:
            self.put(setting.path, setting.kind(_as_written(setting, value)), value)
        except ValueError as error:
            shown = "" if setting.secret else f", not {_shown(value)}"
            self.wrong(value, f"{written} {error}{shown}")

    def put(self, name: str, setting: Any, value: Value) -> None:
        self.found.values[name] = setting
        self.found.places[name] = value.place

    # ---- keys that mean more than one setting

    def listen(self, value: Value, host: str = "clients.host", port: str = "clients.port",
               key: str = "listen") -> None:
        try:
            name, number = address(value.value)
        except ValueError as error:
            self.wrong(value, f"{key} {error}, not {_shown(value)}")
            return
        if name is not None:
            self.put(host, name, value)
        self.put(port, number, value)

    def http(self, value: Value) -> None:
        self.listen(value, "monitoring.host", "monitoring.port", "http")

    def authorization(self, value: Value) -> None:
        self.section("authorization", value)

    def users(self, value: Value) -> None:
        if not isinstance(value.value, list):
            self.wrong(value, "users must be a list of { user, password }")
            return
        users = []
        for row in value.value:
            user = self.one_user(row)
            if user is not None:
                users.append(user)
        self.put("auth.users", tuple(users), value)

    def one_user(self, row: Value) -> User | None:
        if not isinstance(row.value, dict):
            self.wrong(row, "a user must be { user: …, password: … }")
            return None
        fields: dict[str, str] = {}
        for written, value in row.value.items():
            key = {"username": "user", "pass": "password"}.get(written.lower(), written.lower())
            if key in _USER_REFUSED:
                self.wrong(value, f'"{written}" {_LATER}: every client may use every subject')
                return None
            if key not in ("user", "password"):
                if not value.used:
                    self.unknown(written, value, ("user", "username", "password", "pass"))
                continue
            try:
                fields[key] = value.literal or kinds.text(value.value)
            except ValueError as error:
                self.wrong(value, f"{written} {error}")
        if "user" not in fields:
            self.wrong(row, "a user needs a name: user: …")
            return None
        return User(fields["user"], fields.get("password", ""))

    def jetstream(self, value: Value) -> None:
        inner = value.value
        if isinstance(inner, dict):
            self.found.jetstream = True if self.found.jetstream is None else self.found.jetstream
            self.section("jetstream", value)
            return
        try:
            self.found.jetstream = kinds.boolean(inner)
        except ValueError:
            self.wrong(value, f"jetstream must be a block, enabled or disabled, not {_shown(value)}")

    def enabled(self, value: Value, yes: bool = True) -> None:
        try:
            self.found.jetstream = kinds.boolean(value.value) is yes
        except ValueError as error:
            self.wrong(value, f"enabled {error}, not {_shown(value)}")

    def disabled(self, value: Value) -> None:
        self.enabled(value, yes=False)

    def store_dir(self, value: Value) -> None:
        if not isinstance(value.value, str) or not value.value:
            self.wrong(value, f"store_dir must be a directory, not {_shown(value)}")
            return
        self.found.stores[value.place] = "file://" + value.value

    def store(self, value: Value) -> None:
        if not isinstance(value.value, str) or not value.value:
            self.wrong(value, f"store must be a URL such as file:///dir or s3://bucket/prefix, not {_shown(value)}")
            return
        self.found.stores[value.place] = value.value

    def object_store(self, value: Value) -> None:
        self.section("jetstream.object_store", value)
        if not isinstance(value.value, dict):
            return
        if self.bucket is None:
            self.wrong(value, "object_store needs a bucket: bucket: …")
            return
        prefix = self.path_prefix.strip("/")
        self.found.stores[self.bucket.place] = f"s3://{self.bucket.value}" + (f"/{prefix}" if prefix else "")

    def sync_interval(self, value: Value) -> None:
        if str(value.value).lower() != "always":
            self.wrong(value, "sync_interval can only be always: what is acknowledged is always synced first; a stream "
                              f"that need not wait for it sets persist_mode async, not {_shown(value)}")

    def name_bucket(self, value: Value) -> None:
        if not isinstance(value.value, str) or not value.value or "/" in value.value:
            self.wrong(value, f"bucket must be the name of a bucket, not {_shown(value)}")
        self.bucket = value

    def name_prefix(self, value: Value) -> None:
        if not isinstance(value.value, str):
            self.wrong(value, f"path_prefix must be text, not {_shown(value)}")
            return
        self.path_prefix = value.value

    SPECIAL: ClassVar[dict[str, Callable[[_Meaning, Value], None]]] = {
        "listen": listen, "http": http, "authorization": authorization, "authorization.users": users,
        "jetstream": jetstream, "jetstream.enabled": enabled, "jetstream.enable": enabled,
        "jetstream.disabled": disabled, "jetstream.disable": disabled,
        "store_dir": store_dir, "storedir": store_dir, "jetstream.store_dir": store_dir,
        "jetstream.storedir": store_dir, "jetstream.store": store_dir, "jetblock.store": store,
        "jetstream.sync_interval": sync_interval, "jetstream.sync": sync_interval,
        "jetstream.object_store": object_store, "jetstream.object_store.bucket": name_bucket,
        "jetstream.object_store.path_prefix": name_prefix,
    }


def _known_in(section: str) -> set[str]:
    """The keys of a section that are taken: what a misspelled one may have been meant to be."""
    known = (key.rpartition(".") for key in (*_BY_KEY, *_SECTIONS, *_NO_EFFECT, *_Meaning.SPECIAL))
    return {name for above, _, name in known if above == section}


def _as_written(setting: Setting, value: Value) -> Any:
    """The value as its kind wants it.

    ``10m`` is ten million in the language but ten minutes as a duration, and a password of digits keeps its leading
    zeros: both use the literal.
    """
    if isinstance(value.value, list):
        return [item.literal or item.value for item in value.value]
    if value.literal and (setting.path.endswith("_ns") or setting.kind in (kinds.text, kinds.name)):
        return value.literal
    return value.value


def _shown(value: Value) -> str:
    if isinstance(value.value, dict):
        return "a block"
    return "a list" if isinstance(value.value, list) else repr(value.literal or value.value)
