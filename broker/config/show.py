"""Writes the settings as a configuration file that can be read back, with masked secrets, for ``--print-config``.

The file has every value in effect, including defaults; it leaves unset values out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from broker import __version__
from broker.access.accounts import DEFAULT_ACCOUNT, AccountSettings, NkeyUser, Permissions, User
from broker.access.sharing import Export, Import
from broker.base.gotime import format_duration
from broker.base.value import fields
from broker.config.callout import CalloutSettings
from broker.config.leafnodes import LeafRemote, LeafTls
from broker.config.operator import ResolverSettings, shown_url
from broker.config.settings import MASK, ResolverTlsSettings, Setting, Settings, settings_table
from broker.config.streaming import LIMIT_KEYS, ChannelLimits
from broker.config.upstreams import UpstreamSettings

__all__ = ["show"]

_Block = dict[str, Any]
"""A map from keys to values as they are written, to lists of values, or to nested blocks."""

_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"})


def show(settings: Settings) -> str:
    """Return the text of the file."""
    top: _Block = {}
    for setting in settings_table():
        value = settings[setting.path]
        if setting.path.startswith("tls.") and not settings.tls.enabled:
            continue
        if setting.path.startswith("websocket.") and settings.websocket.port is None:
            continue
        if setting.path.startswith("websocket.tls.") and not settings.websocket.tls.enabled:
            continue
        if setting.path.startswith("leafnodes.tls.") and not settings.leafnodes.tls.enabled:
            continue
        if setting.path.startswith("streaming.") and not settings.streaming.enabled:
            continue
        if (setting.path.startswith("operator.resolver_tls.")
                and settings.operator.resolver_tls == ResolverTlsSettings()):
            continue
        if setting.path == "operator.resolver" and settings.operator.resolver is not None:
            top["resolver"] = _resolver(settings.operator.resolver)
        elif setting.path == "auth.callout" and settings.auth.callout is not None:
            _put(top, "authorization.auth_callout", _callout(settings.auth.callout))
        elif setting.path == "operator.preload" and settings.operator.preload:
            top["resolver_preload"] = {account: _text(token) for account, token in settings.operator.preload}
        elif setting.path == "leafnodes.users":
            leaf_users: list[User | NkeyUser] = [*settings.leafnodes.users, *settings.leafnodes.nkeys]
            for user in leaf_users:
                row = {"nkey": _text(user.nkey)} if isinstance(user, NkeyUser) else {
                    "user": _text(user.user), "password": _text(MASK)}
                row["account"] = _text(user.account)
                if isinstance(user, NkeyUser):
                    _put(top, "leafnodes.authorization", row)
                else:
                    top.setdefault("leafnodes", {}).setdefault("authorization", {}).setdefault("users", []).append(row)
        elif setting.path == "leafnodes.remotes":
            if settings.leafnodes.remotes:
                _put(top, "leafnodes.remotes", [_remote(remote) for remote in settings.leafnodes.remotes])
        elif setting.path == "jetstream.upstreams":
            for upstream in settings.jetstream.upstreams:
                _put(top, f"jetblock.upstreams.{upstream.name}", _upstream(upstream))
        elif setting.path == "streaming.channels" and settings.streaming.channels:
            _put(top, setting.keys[0], {_text(pattern): _channel(limits)
                                        for pattern, limits in settings.streaming.channels})
        elif setting.path == "storage.sync_interval_ns" and value is None:
            _put(top, setting.keys[0], _text("always"))
        elif setting.keys and value is not None and value not in ("", ()):
            _put(top, setting.keys[0], _written(setting, value))
    _put(top, "jetstream.enabled", _word(settings.jetstream.enabled))
    users = _users(settings, DEFAULT_ACCOUNT)
    if users:
        _put(top, "authorization.users", users)
    accounts = {account.name: account for account in settings.accounts.configured}
    own = accounts.pop(DEFAULT_ACCOUNT, None)
    if own is not None and own.mappings:
        top["mappings"] = _mappings(own)
    if accounts:
        top["accounts"] = {_text(name): _account(settings, account) for name, account in accounts.items()}
    for scheme in ("http", "https"):
        if (host := settings.monitoring.host) and f"{scheme}_port" in top:
            # A file can name the address of the pages only together with their port.
            port = top.pop(f"{scheme}_port")
            top[scheme] = _text(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
    _name_bucket(top, settings.storage.url)
    head = [f"# The effective configuration of jetblock {__version__}."]
    if MASK in "".join(lines := list(_lines(top))):
        head.append(f"# {MASK} stands for a secret: write the secret itself, or the file is refused.")
    return "\n".join([*head, *lines, ""])


def _callout(callout: CalloutSettings) -> _Block:
    shown = {"issuer": _text(callout.issuer), "account": _text(callout.account),
             "auth_users": _texts(callout.auth_users)}
    if callout.xkey:
        shown["xkey"] = _text(callout.xkey)
    if callout.allowed_accounts:
        shown["allowed_accounts"] = _texts(callout.allowed_accounts)
    return shown


def _resolver(resolver: ResolverSettings) -> str | _Block:
    if resolver.kind == "memory":
        return "MEMORY"
    if resolver.kind == "url":
        return _text(f"URL({shown_url(resolver.url, MASK)})")
    shown: _Block = {"type": resolver.kind, "dir": _text(resolver.directory), "limit": str(resolver.limit),
                     "timeout": _text(format_duration(resolver.timeout_ns))}
    if resolver.kind == "cache":
        return shown | {"ttl": _text(format_duration(resolver.ttl_ns))}
    shown["allow_delete"] = _word(resolver.allow_delete)
    return shown | ({"hard_delete": _word(resolver.hard_delete)} if resolver.allow_delete else {})


def _remote(remote: LeafRemote) -> _Block:
    shown: _Block = {"urls": _texts(url.shown for url in remote.urls), "account": _text(remote.account)}
    if remote.credentials:
        shown["credentials"] = _text(remote.credentials)
    if remote.nkey:
        shown["nkey"] = _text(MASK)
    if remote.tls is not None:
        shown["tls"] = _tls(remote.tls)
    for name in ("deny_imports", "deny_exports"):
        if subjects := getattr(remote, name):
            shown[name] = _texts(subjects)
    for name in ("no_randomize", "ignore_discovered_servers", "hub", "isolate_leafnode_interest", "request_isolation",
                 "disabled"):
        if getattr(remote, name):
            shown[name] = "true"
    shown["first_info_timeout"] = _text(format_duration(remote.first_info_timeout_ns))
    if remote.dial_timeout_ns is not None:
        shown["dial_timeout"] = _text(format_duration(remote.dial_timeout_ns))
    return shown


def _tls(tls: LeafTls) -> _Block:
    return {"timeout": _text(format_duration(tls.timeout_ns)), **{
        name: _word(value) for name in fields(tls) if name != "timeout_ns" and (value := getattr(tls, name))}}


def _upstream(upstream: UpstreamSettings) -> _Block:
    shown: _Block = {"urls": _texts(_without_secret(url) for url in upstream.urls)}
    for name in ("account", "user", "credentials", "inbox_prefix"):
        if value := getattr(upstream, name):
            shown[name] = _text(value)
    shown |= {name: _text(MASK) for name in ("password", "token", "nkey") if getattr(upstream, name)}
    return shown | ({"tls": _tls(upstream.tls)} if upstream.tls is not None else {})


def _without_secret(url: str) -> str:
    """Return the URL with its password masked; a user name without a password is a token, and as secret."""
    shown = shown_url(url, MASK)
    scheme, _, rest = url.partition("://")
    user, at, address = rest.rpartition("@")
    return f"{scheme}://{MASK}@{address}" if at and ":" not in user else shown


def _channel(limits: ChannelLimits) -> _Block:
    return {LIMIT_KEYS[name][0]: _text(format_duration(limit)) if name.endswith("_ns") else str(limit)
            for name in fields(limits) if (limit := getattr(limits, name)) >= 0}


def _name_bucket(top: _Block, url: str) -> None:
    """Name a bucket in the block of its credentials; without one, credentials have no effect."""
    scheme, _, place = url.partition("://")
    store = top["jetstream"].pop("object_store", {})
    if scheme == "s3":
        del top["jetblock"]["store"]
        bucket, _, prefix = place.partition("/")
        named = {"bucket": _text(bucket), **({"path_prefix": _text(prefix)} if prefix else {})}
        top["jetstream"]["object_store"] = {**named, **store}


def _put(block: _Block, key: str, value: Any) -> None:
    *outer, last = key.split(".")
    for name in outer:
        block = block.setdefault(name, {})
    block[last] = value


def _written(setting: Setting, value: Any) -> str:
    if setting.secret:
        return _text(MASK)
    if setting.path.endswith("handshake_first_ns") and not value:
        return "true"
    if setting.path.endswith("_ns"):
        return _text(format_duration(value))
    if setting.path in ("websocket.headers", "server_metadata", "accounts.default_domains"):
        return "{ " + ", ".join(f"{_text(name)}: {_text(text)}" for name, text in value) + " }"
    if setting.path == "auth.trusted_proxies":
        return "{ trusted: [" + ", ".join(f"{{ key: {_text(key)} }}" for key in value) + "] }"
    if value and setting.path.endswith(".certificates"):
        return "[" + ", ".join(f"{{ cert_file: {_text(pair.cert_file)}, key_file: {_text(pair.key_file)} }}"
                               for pair in value) + "]"
    return _texts(value) if isinstance(value, tuple) else _word(value)


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return _text(value) if isinstance(value, str) else str(value)


def _text(value: str) -> str:
    return '"' + value.translate(_ESCAPES) + '"'


def _users(settings: Settings, account: str) -> list[_Block]:
    rows: list[_Block] = []
    everybody: list[User | NkeyUser] = [*settings.auth.users, *settings.auth.nkeys]
    for user in everybody:
        if user.account != account:
            continue
        row: _Block = {"nkey": _text(user.nkey)} if isinstance(user, NkeyUser) else {"user": _text(user.user)}
        if isinstance(user, User) and user.password:
            row["password"] = _text(MASK)
        if user.permissions is not None:
            row["permissions"] = _permissions(user.permissions)
        if user.connection_types:
            row["allowed_connection_types"] = _texts(sorted(user.connection_types))
        if user.proxy_required:
            row["proxy_required"] = _word(True)
        rows.append(row)
    return rows


def _permissions(permissions: Permissions) -> _Block:
    shown: _Block = {}
    for name, part in (("publish", permissions.publish), ("subscribe", permissions.subscribe)):
        subjects = {word: _texts(patterns) for word,
                    patterns in (("allow", part.allow), ("deny", part.deny)) if patterns}
        if subjects:
            shown[name] = subjects
    terms = permissions.allow_responses
    if terms is not None:
        shown["allow_responses"] = {"max": str(terms.max_msgs), "expires": _text(format_duration(terms.expires_ns))}
    return shown


def _account(settings: Settings, account: AccountSettings) -> _Block:
    shown: _Block = {}
    if users := _users(settings, account.name):
        shown["users"] = users
    if account.jetstream is not None:
        shown["jetstream"] = {_JETSTREAM_KEYS.get(name, name): _word(getattr(account.jetstream, name))
                              for name in fields(account.jetstream) if name != "tiers"}  # only tokens have them
    limits = {name: str(limit) for name in ("max_connections", "max_leafnodes", "max_subscriptions", "max_payload")
              if (limit := getattr(account, name)) >= 0}
    if limits:
        shown["limits"] = limits
    if account.exports:
        shown["exports"] = [_export(export) for export in account.exports]
    if account.imports:
        shown["imports"] = [_import(one) for one in account.imports]
    if account.mappings:
        shown["mappings"] = _mappings(account)
    if (trace := account.outer_trace) is not None:
        shown["msg_trace"] = {"dest": _text(trace.dest), "sampling": str(trace.sampling)}
    return shown


_JETSTREAM_KEYS = {"max_storage": "max_file", "storage_max_stream_bytes": "store_max_stream_bytes"}


def _export(export: Export) -> _Block:
    shown: _Block = {export.kind: _text(export.subject)}
    if export.accounts is not None:
        shown["accounts"] = _texts(export.accounts)
    if export.kind == "service":
        shown["response_type"] = export.response_type
    if export.response_threshold_ns:
        shown["response_threshold"] = _text(format_duration(export.response_threshold_ns))
    if export.latency is not None:
        sampling = f"{export.latency.sampling}%" if export.latency.sampling else "headers"
        shown["latency"] = {"subject": _text(export.latency.subject), "sampling": _text(sampling)}
    if export.account_token_position:
        shown["account_token_position"] = str(export.account_token_position)
    return shown | ({"allow_trace": "true"} if export.allow_trace else {})


def _import(one: Import) -> _Block:
    shown: _Block = {one.kind: {"account": _text(one.account), "subject": _text(one.subject)}}
    shown |= {name: _text(word) for name, word in (("to", one.to), ("prefix", one.prefix)) if word}
    return shown | {name: "true" for name in ("share", "allow_trace") if getattr(one, name)}


def _mappings(account: AccountSettings) -> _Block:
    return {_text(mapping.source): [
        {"destination": _text(one.subject), "weight": str(one.weight)}
        | ({"cluster": _text(one.cluster)} if one.cluster else {}) for one in mapping.destinations]
        for mapping in account.mappings}


def _texts(words: Iterable[str]) -> str:
    return "[" + ", ".join(map(_text, words)) + "]"


def _lines(block: _Block, indent: str = "") -> Iterator[str]:
    inner = indent + "  "
    for key, value in block.items():
        if isinstance(value, dict):
            yield f"{indent}{key} {{"
            yield from _lines(value, inner)
            yield indent + "}"
        elif isinstance(value, list):
            yield f"{indent}{key} ["
            for row in value:
                yield inner + _inline(row)
            yield indent + "]"
        else:
            yield f"{indent}{key}: {value}"


def _inline(value: Any) -> str:
    if not isinstance(value, dict):
        return str(value)
    return "{ " + ", ".join(f"{name}: {_inline(inner)}" for name, inner in value.items()) + " }" if value else "{}"
