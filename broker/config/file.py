"""Turns a parsed configuration file into settings, or into a list of all its errors.

    an unknown key                                            refused, as by nats-server
    a key of nats-server that jetblock does not support       refused, with the reason
    a key of nats-server that would have no effect here       accepted, with a line in the log
    a key that a ``$variable`` refers to                      accepted under any name

Keys are case-insensitive, as in nats-server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

from broker.base.store_url import has_scheme, proposal
from broker.base.suggest import did_you_mean
from broker.config import kinds
from broker.config.digest import digest
from broker.config.file_settings import EMPTY, FileSettings, PlacedKey
from broker.config.reading.callout import read_callout
from broker.config.reading.findings import Findings, go_type, shown
from broker.config.reading.identities import Identities
from broker.config.reading.leafnodes import check_compression, read_authorization, read_remotes
from broker.config.reading.operator import read_operators, read_pinned, read_preload, read_resolver, read_trusted
from broker.config.reading.proxies import read_proxies
from broker.config.reading.refused import HANDED_OVER, NO_EFFECT, REFUSED
from broker.config.reading.streaming import read_channels
from broker.config.reading.upstreams import read_upstreams
from broker.config.settings import MASK, MASKED, CertificateFiles, InvalidFile, Setting, settings_table
from broker.config.streaming import STORE_LIMIT_KEYS
from broker.config.syntax import SyntaxFailure, Value, parse

__all__ = ["address", "read_file", "read_streaming"]

_BY_KEY: dict[str, Setting] = {key: setting for setting in settings_table() for key in setting.keys}

_SECTIONS = frozenset({"tls", "resolver_tls", "websocket", "websocket.authorization", "authorization", "jetblock",
                       "jetblock.monitor", "jetstream", "leafnodes",
                       "jetstream.limits", "jetstream.limits.batch", "jetstream.object_store"})


def read_file(path: str, environ: Mapping[str, str], read: Callable[[str], str],
              workers: int | None = None) -> FileSettings:
    """Read the configuration file at ``path``, and the files it includes, through ``read(path)``.

    Args: ``workers``: their number, if it is not the file's to say. With any, a nats-server reads ``HANDED_OVER``.
    Raises: InvalidFile with one line per error.
    """
    top = _parsed(path, environ, read)
    meaning = _Meaning(read, front=bool(_workers(top) if workers is None else workers))
    if not top.value:
        meaning.report.notices.append(f"{path}: {EMPTY}")
    meaning.refuse_masks("", top)
    meaning.section("", top)
    values = meaning.found.values
    values |= meaning.identities.settings(user=values.get("auth.user", ""), token=values.get("auth.token", ""))
    if meaning.front:
        meaning.found.blocks = _for_front(top)
    return _result(meaning, top)


def read_streaming(path: str, environ: Mapping[str, str], read: Callable[[str], str], *, alone: bool) -> FileSettings:
    """Read nats-streaming-server's own file: its block ``streaming``, or all of it if it has no such block.

    Args: ``alone``: there is no other file, so the settings beside the block are the server's.
    Raises: InvalidFile with one line per error.
    """
    top = _parsed(path, environ, read)
    block = next((value for key, value in top.value.items() if key.lower() == "streaming"), None)
    if block is not None and alone:
        return read_file(path, environ, read)
    meaning = _Meaning(read)
    meaning.streaming(block or top)
    return _result(meaning, top)


def _result(meaning: _Meaning, top: Value) -> FileSettings:
    if meaning.report.errors:
        raise InvalidFile("\n".join(meaning.report.errors))
    meaning.found.notices = meaning.report.notices
    meaning.found.digest = digest(top)
    return meaning.found


def _parsed(path: str, environ: Mapping[str, str], read: Callable[[str], str]) -> Value:
    try:
        text = read(path)
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise InvalidFile(f"open {path}: {why}; name a readable file with -c") from None
    except ValueError:
        raise InvalidFile(f"{path}: Parse error: the file is not UTF-8 text") from None
    try:
        return parse(text, file=path, environ=environ, read=read)
    except SyntaxFailure as error:
        raise InvalidFile(str(error)) from None


def address(value: Any) -> tuple[str | None, int]:
    """Parse ``4222``, ``localhost:4222``, ``[::1]:-1`` or ``:4222``; return host (None: not given) and port."""
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

    def __init__(self, read: Callable[[str], str], *, front: bool = False) -> None:
        self.read = read
        self.front = front
        self.found = FileSettings()
        self.report = Findings()
        self.bucket: Value | None = None
        self.path_prefix = ""
        self.identities = Identities(self.report)

    def section(self, name: str, value: Value) -> None:
        if not isinstance(value.value, dict):
            self.wrong(value, f"{name} must be a block: {name} {{ … }}")
            return
        for written, inner in value.value.items():
            key = written.lower()
            self.key(f"{name}.{key}" if name else key, written, inner)

    def refuse_masks(self, written: str, value: Value) -> None:
        """Report every text in which a mask stands for a secret."""
        if isinstance(value.value, dict):
            for name, inner in value.value.items():
                self.refuse_masks(name, inner)
        elif isinstance(value.value, list):
            for inner in value.value:
                self.refuse_masks(written, inner)
        elif isinstance(value.value, str) and MASK in value.value:
            self.wrong(value, f"{written} {MASKED}")

    def key(self, path: str, written: str, value: Value) -> None:
        special = self.SPECIAL.get(path)
        if self.front and path in HANDED_OVER:
            return
        if special is not None:
            special(self, value)
        elif path in _BY_KEY:
            self.setting(_BY_KEY[path], written, value)
        elif path in _SECTIONS:
            self.section(path, value)
        elif path in REFUSED:
            self.wrong(value, f'"{written}" {REFUSED[path]}')
        elif path in NO_EFFECT:
            self.report.notice(value, f"{written} has no effect here: {NO_EFFECT[path]}")
        elif not value.used:
            self.unknown(written, value, _known_in(path.rpartition(".")[0]))

    def unknown(self, written: str, value: Value, known: Iterable[str]) -> None:
        self.wrong(value, f'unknown field "{written}"{did_you_mean(written, known)}')

    def wrong(self, value: Value, why: str) -> None:
        self.report.wrong(value, why)

    def setting(self, setting: Setting, written: str, value: Value) -> None:
        try:
            self.put(setting.path, setting.kind(_as_written(setting, value)), value)
        except ValueError as error:
            hidden = "" if setting.secret else f", not {shown(value)}"
            self.wrong(value, f"{written} {error}{hidden}")

    def put(self, name: str, setting: Any, value: Value) -> None:
        self.found.values[name] = setting
        self.found.places[name] = value.place

    # ---- keys that set more than one setting

    def listen(self, value: Value, host: str = "clients.host", port: str = "clients.port",
               key: str = "listen") -> None:
        try:
            name, number = address(value.value)
        except ValueError as error:
            self.wrong(value, f"{key} {error}, not {shown(value)}")
            return
        if name is not None:
            self.put(host, name, value)
        self.put(port, number, value)

    def http(self, value: Value) -> None:
        self.listen(value, "monitoring.host", "monitoring.port", "http")

    def https(self, value: Value) -> None:
        self.listen(value, "monitoring.host", "monitoring.https_port", "https")

    def authorization(self, value: Value) -> None:
        self.found.authorization = True
        self.section("authorization", value)

    def users(self, value: Value) -> None:
        self.found.places["auth.users"] = value.place
        self.identities.users(value)

    def permissions(self, value: Value) -> None:
        self.identities.permissions(value)

    def callout(self, value: Value) -> None:
        self.put("auth.callout", read_callout(value, self.report), value)

    def proxies(self, value: Value) -> None:
        self.put("auth.trusted_proxies", read_proxies(value, self.report), value)

    def operators(self, value: Value) -> None:
        self.put("operator.tokens", read_operators(value, self.report, self.read), value)

    def trusted_keys(self, value: Value) -> None:
        self.put("operator.trusted_keys", read_trusted(value, self.report), value)

    def resolver(self, value: Value) -> None:
        self.put("operator.resolver", read_resolver(value, self.report), value)

    def preload(self, value: Value) -> None:
        self.put("operator.preload", read_preload(value, self.report), value)

    def pinned_accounts(self, value: Value) -> None:
        self.put("operator.pinned_accounts", read_pinned(value, self.report), value)

    def leafnodes(self, value: Value) -> None:
        self.section("leafnodes", value)

    def remotes(self, value: Value) -> None:
        self.put("leafnodes.remotes", read_remotes(value, self.report), value)

    def leaf_listen(self, value: Value) -> None:
        self.listen(value, "leafnodes.host", "leafnodes.port")

    def leaf_authorization(self, value: Value) -> None:
        users, nkeys, timeout_ns = read_authorization(value, self.report)
        self.put("leafnodes.users", users, value)
        self.put("leafnodes.nkeys", nkeys, value)
        if timeout_ns:
            self.put("leafnodes.auth_timeout_ns", timeout_ns, value)

    def leaf_tls(self, value: Value) -> None:
        self.tls(value, "leafnodes.tls")

    def leaf_certificates(self, value: Value) -> None:
        self.certificates(value, "leafnodes.tls.certificates")

    def leaf_compression(self, value: Value) -> None:
        check_compression("compression", value, self.report)

    def upstreams(self, value: Value) -> None:
        self.put("jetstream.upstreams", read_upstreams(value, self.report), value)

    def accounts(self, value: Value) -> None:
        self.found.places["accounts.configured"] = value.place
        self.identities.accounts(value)

    def mappings(self, value: Value) -> None:
        self.identities.mappings(value)

    def jetstream(self, value: Value) -> None:
        inner = value.value
        if isinstance(inner, dict):
            self.found.jetstream = True if self.found.jetstream is None else self.found.jetstream
            self.section("jetstream", value)
            return
        try:
            self.found.jetstream = kinds.boolean(inner)
        except ValueError:
            self.wrong(value, f"jetstream must be a block, enabled or disabled, not {shown(value)}")

    def streaming(self, value: Value) -> None:
        self.put("streaming.enabled", True, value)
        self.section("streaming", value)

    def store_limits(self, value: Value) -> None:
        if not isinstance(value.value, dict):
            self.wrong(value, "store_limits must be a block: store_limits { … }")
            return
        for written, inner in value.value.items():
            key = written.lower()
            self.key(f"streaming.store_limits.{STORE_LIMIT_KEYS.get(key, key)}", written, inner)

    def channels(self, value: Value) -> None:
        self.put("streaming.channels", read_channels(value, self.report), value)

    def feature_flags(self, value: Value) -> None:
        """Read feature flags. Like nats-server, accept any flag, and log the unknown ones."""
        if not isinstance(value.value, dict):
            self.wrong(value, "feature_flags must be a block: feature_flags { … }")
            return
        for written, inner in value.value.items():
            path = f"feature_flags.{written.lower()}"
            if not isinstance(inner.value, bool):
                self.wrong(inner, f'error parsing feature flag "{written}": expected bool, got {go_type(inner)}')
            elif path in _BY_KEY or path in NO_EFFECT:
                self.key(path, written, inner)
            else:
                self.report.notice(inner, f"{written} has no effect here: there is no such feature flag")

    def enabled(self, value: Value, yes: bool = True) -> None:
        try:
            self.found.jetstream = kinds.boolean(value.value) is yes
        except ValueError as error:
            self.wrong(value, f"enabled {error}, not {shown(value)}")

    def disabled(self, value: Value) -> None:
        self.enabled(value, yes=False)

    def store_dir(self, value: Value) -> None:
        if not isinstance(value.value, str) or not value.value:
            self.wrong(value, f"store_dir must be a directory, not {shown(value)}")
            return
        if has_scheme(value.value):
            self.wrong(value, f"store_dir must be a directory, not the URL {shown(value)}; try jetblock {{ store: "
                              f'"{proposal(value.value)}" }}')
            return
        self.found.stores[value.place] = "file://" + value.value

    def store(self, value: Value) -> None:
        if not isinstance(value.value, str) or not value.value:
            self.wrong(value, f"store must be a URL such as file:///dir or s3://bucket/prefix, not {shown(value)}")
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

    def tls(self, value: Value, key: str = "tls") -> None:
        self.section(key, value)
        if isinstance(value.value, dict) and not value.value:
            self.wrong(value, f"{key} needs a certificate: cert_file: …, key_file: …")

    def certificates(self, value: Value, path: str = "tls.certificates") -> None:
        """Read a list of certificate and key files."""
        pairs = []
        for row in value.value if isinstance(value.value, list) else [value]:
            files = {key.lower(): file.value for key, file in row.value.items()} if isinstance(row.value, dict) else {}
            if set(files) != {"cert_file", "key_file"} or not all(isinstance(file, str) for file in files.values()):
                self.wrong(row, "certs must be a list of { cert_file: …, key_file: … }")
                return
            pairs.append(CertificateFiles(**files))
        self.put(path, tuple(pairs), value)

    def websocket(self, value: Value) -> None:
        self.section("websocket", value)

    def websocket_listen(self, value: Value) -> None:
        self.listen(value, "websocket.host", "websocket.port")

    def websocket_tls(self, value: Value) -> None:
        self.tls(value, "websocket.tls")

    def websocket_certificates(self, value: Value) -> None:
        self.certificates(value, "websocket.tls.certificates")

    def websocket_authorization(self, value: Value) -> None:
        self.section("websocket.authorization", value)

    def name_bucket(self, value: Value) -> None:
        if not isinstance(value.value, str) or not value.value or "/" in value.value:
            self.wrong(value, f"bucket must be the name of a bucket, not {shown(value)}")
        self.bucket = value

    def name_prefix(self, value: Value) -> None:
        if not isinstance(value.value, str):
            self.wrong(value, f"path_prefix must be text, not {shown(value)}")
            return
        self.path_prefix = value.value

    SPECIAL: ClassVar[dict[str, Callable[[_Meaning, Value], None]]] = {
        "tls": tls, "tls.certs": certificates, "tls.certificates": certificates,
        "ws": websocket, "websocket": websocket, "websocket.listen": websocket_listen, "websocket.tls": websocket_tls,
        "websocket.tls.certs": websocket_certificates, "websocket.tls.certificates": websocket_certificates,
        "websocket.authentication": websocket_authorization,
        "listen": listen, "http": http, "https": https, "authorization": authorization, "authorization.users": users,
        **dict.fromkeys(("authorization.default_permissions", "authorization.default_permission",
                         "authorization.permissions"), permissions),
        **dict.fromkeys(("operator", "operators", "roots", "root", "root_operators", "root_operator"), operators),
        **dict.fromkeys(("resolver", "account_resolver", "accounts_resolver"), resolver),
        **dict.fromkeys(("trusted", "trusted_keys"), trusted_keys),
        "resolver_preload": preload, "resolver_pinned_accounts": pinned_accounts,
        "authorization.auth_callout": callout, "authorization.auth_hook": callout,
        "leaf": leafnodes, "leafnodes.remotes": remotes, "leafnodes.compression": leaf_compression,
        "leafnodes.tls": leaf_tls, "leafnodes.tls.certs": leaf_certificates,
        "leafnodes.tls.certificates": leaf_certificates, "leafnodes.listen": leaf_listen,
        "leafnodes.authorization": leaf_authorization,
        "proxies": proxies, "accounts": accounts, "mappings": mappings, "maps": mappings,
        "feature_flags": feature_flags, "jetstream": jetstream, "jetstream.enabled": enabled,
        "jetstream.enable": enabled,
        "jetstream.disabled": disabled, "jetstream.disable": disabled,
        "store_dir": store_dir, "storedir": store_dir, "jetstream.store_dir": store_dir,
        "jetstream.storedir": store_dir, "jetstream.store": store_dir, "jetblock.store": store,
        "jetblock.upstreams": upstreams,
        "streaming": streaming,
        **dict.fromkeys(("streaming.store_limits", "streaming.limits", "streaming.storelimits"), store_limits),
        "streaming.store_limits.channels": channels,
        "jetstream.object_store": object_store, "jetstream.object_store.bucket": name_bucket,
        "jetstream.object_store.path_prefix": name_prefix,
    }


_OLD_NAMES = {"root", "roots", "root_operator", "root_operators"}
"""Names that are never suggested: nobody who writes ``prot`` means an operator."""


def _known_in(section: str) -> set[str]:
    """Return the accepted keys of a section, as suggestions for a misspelled one."""
    known = (key.rpartition(".") for key in (*_BY_KEY, *_SECTIONS, *NO_EFFECT, *_Meaning.SPECIAL))
    return {name for above, _, name in known if above == section} - _OLD_NAMES


def _workers(top: Value) -> int:
    """Return the number of workers in a file; 0 if it names none, or no number."""
    block = next((value.value for key, value in top.value.items() if key.lower() == "jetblock"), None)
    found = [value.value for key, value in block.items() if key.lower() == "workers"] if isinstance(block, dict) else []
    return found[0] if found and isinstance(found[0], int) else 0


_KNOWN = (*_BY_KEY, *_SECTIONS, *NO_EFFECT, *REFUSED, *_Meaning.SPECIAL)
_TOP_KEYS = frozenset(key.partition(".")[0] for key in _KNOWN)
_INNER_KEYS = frozenset(key.rpartition(".")[2] for key in _KNOWN)


def _for_front(value: Value, known: frozenset[str] = _TOP_KEYS) -> Any:
    """Return the content of a file as a nats-server may read it: without keys that only define variables."""
    inner = value.value
    if isinstance(inner, dict):
        return {PlacedKey(key, item.place): _for_front(item, _INNER_KEYS) for key, item in inner.items()
                if not item.used or key.lower() in known}
    return [_for_front(item, _INNER_KEYS) for item in inner] if isinstance(inner, list) else inner


def _as_written(setting: Setting, value: Value) -> Any:
    """Return the value in the form that its kind takes.

    ``10m`` is ten million in the language but ten minutes as a duration, and a password of digits keeps its leading
    zeros: both use the literal.
    """
    if isinstance(value.value, dict):
        return {key: item.literal or item.value for key, item in value.value.items()}
    if isinstance(value.value, list):
        return [item.literal or item.value for item in value.value]
    if value.literal and (setting.path.endswith("_ns") or setting.kind in (kinds.text, kinds.name)):
        return value.literal
    return value.value
