"""Merges flags, environment and file, in this order of precedence, into one ``Settings``, and checks constraints.

    JetStream is on  with -js, --store, a `jetstream` block that is not disabled, a store named in the environment or in
                     `jetblock { store }`, or settings of NATS Streaming; `-sd` alone only names the directory, in case
                     the file enables it
    the store is     --store or -sd (not both), otherwise JETBLOCK_STORE, otherwise the file's (one of
                     `jetstream { store_dir }`, `jetstream { object_store }`, `jetblock { store }`), otherwise a
                     directory of `streaming { dir }`, otherwise one under the temporary directory
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from broker.access.accounts import ANONYMOUS, DEFAULT_ACCOUNT, SYSTEM_ACCOUNT, User
from broker.base.gotime import format_duration
from broker.base.machine import memory_bytes
from broker.base.nkeys import ACCOUNT, is_public_key
from broker.base.store_url import has_scheme, hidden, proposal
from broker.config.environment import read_environment
from broker.config.file_settings import EMPTY, FileSettings
from broker.config.flags import CommandLine
from broker.config.operator import ResolverSettings
from broker.config.ports import tls_contradictions, values_with_flags, websocket_contradictions
from broker.config.settings import (
    MASK,
    MASKED,
    ConfigError,
    InvalidFile,
    OperatorSettings,
    Settings,
    default_store_url,
    make_settings,
    setting_at,
    settings_table,
)
from broker.protocol.subject import is_valid

__all__ = ["TEMPORARY_NOTICE", "load", "read_text", "settings_of_program"]

TEMPORARY_NOTICE = ("Temporary storage directory used, data could be lost on system reboot; name one with --store_dir, "
                    "or a bucket with --store")
"""A notice that begins like nats-server's line."""

_SECOND = 1_000_000_000
_SCHEMES = ("file", "s3", "memory")
_DUPLICATE = "Duplicate 'store_dir' configuration"
"""nats-server's words for an error."""


def read_text(path: str) -> str:
    """Return a file's text. Raises: OSError; UnicodeDecodeError."""
    return Path(path).read_bytes().decode("utf-8")


def load(line: CommandLine, environ: Mapping[str, str], read: Callable[[str], str] = read_text) -> Settings:
    """Merge the sources.

    Raises: ConfigError with one line per error, each naming its place and what would be valid.
    """
    file = _read_files(line, environ, read)
    file.notices += line.notices
    if line.test and (empty := [notice for notice in file.notices if notice.endswith(EMPTY)]):
        # A server starts with such a file; a check that finds nothing to check fails.
        raise InvalidFile(*empty)
    outer = read_environment(environ)
    values = values_with_flags({**file.values, **outer}, line)
    if file.blocks or values.get("front.workers"):
        values["front.blocks"], values["front.flags"] = file.blocks, tuple(line.front)
        flags = ["tls"] if line.tls is not None or any(path.startswith("tls.") for path in line.values) else []
        values["front.overrides"] = (*flags, *(path for path, value in values.items()
                                               if path not in file.values or value != file.values[path]))
    _add_anonymous_user(values, authorization=file.authorization)
    _take_from_operator(values)
    values["storage.url"] = _store(line, outer, file) or _streaming_store(values.get("streaming.dir", ""))
    values.setdefault("streaming.enabled", any(path.startswith("streaming.") for path in values))
    jetstream = _jetstream(line, outer, file)
    values["jetstream.enabled"] = values["streaming.enabled"] if jetstream is None else jetstream
    if values["jetstream.enabled"]:
        if not values["storage.url"]:
            values["storage.url"] = default_store_url()
            file.notices.append(TEMPORARY_NOTICE)
        if values.get("jetstream.server.max_memory", -1) < 0:
            # -1, no limit, if the system does not report its memory.
            values["jetstream.server.max_memory"] = memory_bytes() // 4 * 3 or -1
    if masked := [setting_at(path).keys[0] for path,
                  value in values.items() if value == MASK and setting_at(path).secret]:
        raise ConfigError("\n".join(f"{key} {MASKED}" for key in masked))
    if values.get("storage.sync_interval_ns") is not None and not values["storage.url"].startswith("file:"):
        file.notices.append(f"sync_interval has no effect on {values['storage.url']}: it is for directories")
    if values.get("accounts.default_domains"):
        file.notices.append("The option `default_js_domain` is a temporary backwards compatibility measure and will be "
                            "removed")
    values["notices"], values["file"], values["digest"] = tuple(file.notices), line.config or "", file.digest
    settings = make_settings(values)
    if settings.tls.enabled and "auth.timeout_ns" not in values:
        # nats-server's default: a second more than the handshake may take.
        values = {**values, "auth.timeout_ns": settings.tls.timeout_ns + _SECOND}
        settings = make_settings(values)
    if settings.leafnodes.tls.enabled and "leafnodes.auth_timeout_ns" not in values:
        settings = make_settings({
            **values, "leafnodes.auth_timeout_ns": settings.leafnodes.tls.timeout_ns + _SECOND})
    errors = []
    for fields, why in _contradictions(settings):
        place = next((file.places[name] for name in fields if name in file.places), None)
        errors.append(f"{place}: {why}" if place else why)
    if errors:
        raise (ConfigError if line.config is None else InvalidFile)("\n".join(errors))
    return settings


def settings_of_program(values: Mapping[str, Any]) -> Settings:
    """Return the settings of a broker inside a program, from values by path. A text is read as in a configuration file.

    Raises: ConfigError with one line per error.
    """
    rows = {setting.path: setting for setting in settings_table()}
    read, errors = dict(values), []
    for path, value in values.items():
        row = rows.get(path)
        if row is None:
            continue  # a value that is no setting, or no path at all, which make_settings refuses
        try:
            if isinstance(value, str) or (type(value) is int and isinstance(row.default, int)
                                          and not path.endswith("_ns")):
                read[path] = row.kind(value)
            elif isinstance(row.default, bool | int | str) and type(value) is not type(row.default):
                raise ValueError(f"must be of type {type(row.default).__name__}, or text as in a configuration file")
        except ValueError as error:
            errors.append(f"{path} {error}" + ("" if row.secret else f", not {value!r}"))
    settings = make_settings(read)
    if errors := errors or [why for _, why in _contradictions(settings)]:
        raise ConfigError("\n".join(errors))
    return settings


def _read_files(line: CommandLine, environ: Mapping[str, str], read: Callable[[str], str]) -> FileSettings:
    """Return the settings of the file; those of NATS Streaming are from ``-sc`` alone, if that names a file."""
    if line.config is None and line.stan_config is None:
        return FileSettings()
    # Imported only if there is a file: its grammar and blocks are a tenth of what a start imports.
    from broker.config.file import read_file, read_streaming

    workers = line.values.get("front.workers")
    if workers is None and (number := environ.get("JETBLOCK_WORKERS", "")).isdigit():
        workers = int(number)
    file = FileSettings() if line.config is None else read_file(line.config, environ, read, workers)
    if line.stan_config is not None:
        streaming = read_streaming(line.stan_config, environ, read, alone=line.config is None)
        if line.config is None:
            return streaming
        file.values = {path: value for path, value in file.values.items() if not path.startswith("streaming.")}
        file.values |= streaming.values
        file.places |= streaming.places
        file.notices += streaming.notices
    return file


def _add_anonymous_user(values: dict[str, Any], *, authorization: bool) -> None:
    """Put all other clients into the default account if only the system account has users, as nats-server does."""
    users = values.get("auth.users", ())
    nkeys = values.get("auth.nkeys", ())
    system = values.get("accounts.system", SYSTEM_ACCOUNT)
    accounts = {account.name for account in values.get("accounts.configured", ())}
    if (users or nkeys) and accounts == {system} and not authorization and not values.get("auth.no_auth_user"):
        values["auth.users"] = (*users, User(ANONYMOUS))
        values["auth.no_auth_user"] = ANONYMOUS


def _take_from_operator(values: dict[str, Any]) -> None:
    """Take the system account and the account server from a single operator's token, unless the file names them."""
    tokens = values.get("operator.tokens", ())
    if len(tokens) != 1:
        return
    from broker.jwt.claims import operator_claims  # as below

    claims = operator_claims(tokens[0])
    if claims.system_account:
        values.setdefault("accounts.system", claims.system_account)
    if values.get("operator.resolver") is None and claims.account_server_url.startswith(("http://", "https://")):
        values["operator.resolver"] = ResolverSettings("url", url=f"{claims.account_server_url}/accounts")


def _store(line: CommandLine, outer: dict[str, Any], file: FileSettings) -> str:
    if line.store_dir is not None and "storage.url" in line.values:
        raise ConfigError("--store and --store_dir name two places for streams; give one of them")
    if len(file.stores) > 1 and all(url.startswith("file://") for url in file.stores.values()):
        # In the order of the file, the first one is valid to nats-server.
        raise InvalidFile("\n".join(f"{place}: {_DUPLICATE}: the file names {len(file.stores)}; keep one"
                                    for place in list(file.stores)[1:]))
    if len(file.stores) > 1:
        raise ConfigError("\n".join(f"{place}: streams can be kept in one place only, and the file names "
                                    f"{len(file.stores)}; keep one" for place in file.stores))
    if line.store_dir is not None and file.stores:
        [(place, url)] = file.stores.items()
        raise InvalidFile(f"{place}: {_DUPLICATE}: --store_dir names {line.store_dir}, and the file {hidden(url)}; "
                          "keep one")
    if "storage.url" in line.values:
        return _store_url(line.values["storage.url"], "--store")
    if line.store_dir is not None:
        if has_scheme(line.store_dir):
            raise ConfigError(f"--store_dir takes a directory, not the URL {line.store_dir!r}; try --store "
                              f"{proposal(line.store_dir)}")
        if not line.store_dir:
            raise ConfigError("--store_dir names no directory; try --store_dir /var/lib/jetblock")
        return _store_url("file://" + line.store_dir, "--store_dir")
    if "storage.url" in outer:
        return _store_url(outer["storage.url"], "environment: JETBLOCK_STORE")
    for place, url in file.stores.items():
        return _store_url(url, f"{place}: store")
    return ""


def _streaming_store(directory: str) -> str:
    """Return the URL of the directory that nats-streaming-server's settings name; "" for none."""
    if not directory:
        return ""
    if Path(directory, "server.dat").exists():
        raise ConfigError(f"{directory} has the channels of a nats-streaming-server, which jetblock does not read: "
                          "name another directory, and copy them with jetblock migrate --from-streaming")
    return _store_url("file://" + directory, "--dir")


def _store_url(url: str, where: str) -> str:
    """Return the URL with an absolute directory: the working directory may change, and the store must not."""
    if not url:
        raise ConfigError(f"{where} is empty; try file:///var/lib/jetblock or s3://bucket/prefix")
    scheme, mark, rest = url.partition("://")
    if not mark or scheme not in _SCHEMES:
        raise ConfigError(f"{where} must be a URL with file://, s3:// or memory://, not {hidden(url)!r}; try "
                          f"{proposal(url)}")
    if scheme == "file":
        if not rest:
            raise ConfigError(f"{where} names no directory; try file:///var/lib/jetblock")
        if rest.startswith("~"):
            raise ConfigError(f"{where}: ~ is not replaced by the home directory here; write "
                              f"{os.path.expanduser(rest)}")
        return "file://" + os.path.abspath(rest)
    if scheme == "s3" and not rest.strip("/"):
        raise ConfigError(f"{where} names no bucket; try s3://bucket/prefix")
    return url


def _jetstream(line: CommandLine, outer: dict[str, Any], file: FileSettings) -> bool | None:
    """Return whether the sources enable or disable JetStream; None: they do neither."""
    for values in (line.values, outer):
        if "jetstream.enabled" in values:
            return bool(values["jetstream.enabled"])
        if "storage.url" in values:
            return True
    if file.jetstream is not None:
        return file.jetstream
    return True if file.stores and line.store_dir is None else None


def _contradictions(settings: Settings) -> Iterator[tuple[tuple[str, ...], str]]:
    """Return the paths and the reason for each set of contradicting settings."""
    clients, auth, storage = settings.clients, settings.auth, settings.storage
    if settings.operator != OperatorSettings():
        # Imported only for operators: tokens are another tenth of what a start imports.
        from broker.config.reading.operator import operator_contradictions

        yield from operator_contradictions(settings)
    yield from _callout_contradictions(settings)
    yield from tls_contradictions(settings.tls, "tls")
    yield from websocket_contradictions(settings)
    pages = settings.monitoring
    if pages.port is not None and pages.https_port is not None:
        yield (("monitoring.https_port", "monitoring.port"),
               f"can't specify both HTTP ({pages.port}) and HTTPs ({pages.https_port}) ports; keep one of them")
    if pages.https_port is not None and not settings.tls.enabled:
        yield ("monitoring.https_port",), "TLS cert and key required for HTTPS: add a tls block, or use http_port"
    if bool(pages.user) != bool(pages.password):
        yield (("monitoring.user", "monitoring.password"),
               "the login of the monitoring pages needs a user and a password; set both, or neither")
    if clients.max_payload > clients.max_pending:
        yield (("clients.max_payload", "clients.max_pending"), f"max_payload ({clients.max_payload}) cannot be higher "
               f"than max_pending ({clients.max_pending}); raise max_pending")
    if clients.lame_duck_grace_period_ns >= clients.lame_duck_duration_ns:
        yield (("clients.lame_duck_grace_period_ns", "clients.lame_duck_duration_ns"),
               "lame_duck_grace_period must be lower than lame_duck_duration")
    if auth.token and (auth.user or auth.users or auth.nkeys):
        yield ("auth.token",), "Cannot have a user/pass and token; keep one of them"
    if auth.user and (auth.users or auth.nkeys):
        yield ("auth.user",), "Can not have a single user/pass and a users array; move the one into the list"
    if auth.password and not auth.user:
        yield ("auth.password",), "authorization has a password and no user; name the user, too"
    if auth.no_auth_user and not auth.names:
        yield ("auth.no_auth_user",), f'no_auth_user: "{auth.no_auth_user}" present, but users/nkeys are not defined'
    elif auth.no_auth_user and auth.no_auth_user not in auth.names:
        yield ("auth.no_auth_user",), (f'no_auth_user: "{auth.no_auth_user}" not present as user or nkey in '
                                       "authorization block or account configuration")
    if settings.streaming.enabled and not settings.jetstream.enabled:
        yield ("streaming.enabled",), ("NATS Streaming keeps its channels in JetStream, which is disabled: enable it, "
                                       "or remove the settings of NATS Streaming")
    streaming = settings.streaming
    if streaming.partitioning and not streaming.channels:
        yield ("streaming.partitioning",), ("stan: no configured channel: name this server's channels in store_limits "
                                            "{ channels { … } }")
    literals = sum("*" not in name and ">" not in name for name, _ in streaming.channels)
    if 0 < streaming.max_channels < literals:
        yield ("streaming.channels",), (f"too many channels defined ({literals}). The max channels limit is set to "
                                        f"{streaming.max_channels}")
    yield from _accounts_contradictions(settings)
    yield from _domain_contradictions(settings)
    yield from _connection_contradictions(settings)
    yield from _owner_contradictions(settings)
    if storage.tail_bytes_max < 2 * storage.segment_bytes:
        yield (("storage.tail_bytes_max", "storage.segment_bytes"),
               "tail_bytes_max must be at least twice segment_bytes")
    if storage.put_timeout_ns >= storage.lease_ns:
        yield (("storage.put_timeout_ns", "storage.lease_ns"),
               "put_timeout must be lower than lease, or one slow request loses the store")
    elif storage.url.startswith("s3://") and (
            (storage.commit_interval_ns or 0) + storage.put_timeout_ns >= storage.lease_ns):
        # An idle owner's heartbeat waits for the interval, too.
        yield (("storage.commit_interval_ns", "storage.put_timeout_ns", "storage.lease_ns"),
               f"commit_interval ({format_duration(storage.commit_interval_ns or 0)}) and put_timeout "
               f"({format_duration(storage.put_timeout_ns)}) together must be lower than lease "
               f"({format_duration(storage.lease_ns)}), or one slow request loses the store")


def _owner_contradictions(settings: Settings) -> Iterator[tuple[tuple[str, ...], str]]:
    """Check the settings of brokers that share the shards of a store: those with ``own``, and several workers."""
    storage, workers = settings.storage, settings.front.workers
    if storage.is_shared:
        here, shown = "storage.own", "own"
        if workers:
            yield (here, "front.workers"), "--workers deals the shards out: leave own out"
        if not storage.shards:
            yield (here,), ("own needs the number of the store's shards: set jetblock { shards }, the same for all "
                            "brokers")
        elif isinstance(storage.own, tuple) and any(number >= storage.shards for number in storage.own):
            yield (here, "storage.shards"), (f"own names shard {storage.own[-1]}, and the store has the shards 0 to "
                                             f"{storage.shards - 1}")
    elif workers > 1:
        here, shown = "front.workers", f"--workers {workers}"
        if 0 < storage.shards < workers:
            yield (here, "storage.shards"), (f"{workers} workers need a shard each, and shards is {storage.shards}: "
                                             "raise it, or leave it out")
    else:
        return
    if settings.accounts.no_system:
        yield (here,), f"{shown} needs the system account, in which the brokers of a store ask each other"
    if storage.sync_interval_ns is not None:
        yield (here, "storage.sync_interval_ns"), (f"{shown}: messages are synced before PubAcks if several brokers "
                                                   "own a store: leave sync_interval out")
    if storage.url.startswith("memory:"):
        yield (here, "storage.url"), f"{shown}: other processes cannot reach a store in memory"
    if settings.streaming.enabled:
        yield (here, "streaming.enabled"), f"{shown}: NATS Streaming needs all shards of its store in one broker"


def _callout_contradictions(settings: Settings) -> Iterator[tuple[tuple[str, ...], str]]:
    callout = settings.auth.callout
    if callout is None:
        return
    names = {account.name for account in settings.accounts.configured}
    for name in callout.allowed_accounts:
        if name not in names:
            yield ("auth.callout",), f'auth_callout allowed account "{name}" not found in configured accounts'
    if settings.operator.tokens:
        yield ("auth.callout",), "operators do not allow authorization callouts to be configured directly"


def _domain_contradictions(settings: Settings) -> Iterator[tuple[tuple[str, ...], str]]:
    """Check default domains, with nats-server's errors (jetstream.go, validateJetStreamOptions)."""
    configured = {account.name: account for account in settings.accounts.configured}
    here = ("accounts.default_domains",)
    for name, domain in settings.accounts.default_domains:
        if name == settings.accounts.system:
            yield here, f'system account "{name}" can not be in default_js_domain'
        elif settings.operator.tokens:
            if not is_public_key(name, ACCOUNT):
                yield here, (f'default_js_domain contains account name "{name}", which is not a valid public account '
                             "nkey")
        elif name in configured:
            if domain and configured[name].jetstream is not None:
                yield here, f'default_js_domain contains account name "{name}" with enabled JetStream'
        elif name != DEFAULT_ACCOUNT:
            yield here, f'in non operator mode, `default_js_domain` references non existing account "{name}"'
        if domain and not is_valid(f"$JS.{domain}.API.>".encode()):
            yield here, f'default_js_domain contains account "{name}" with invalid domain name "{domain}"'


def _connection_contradictions(settings: Settings) -> Iterator[tuple[tuple[str, ...], str]]:
    names = {DEFAULT_ACCOUNT, *(account.name for account in settings.accounts.configured)}
    if not settings.accounts.no_system:
        names.add(settings.accounts.system)
    for upstream in settings.jetstream.upstreams:
        if not settings.operator.enabled and upstream.account not in names:
            yield ("jetstream.upstreams",), (f'cannot find local account "{upstream.account}" of upstream '
                                             f"{upstream.name}")
        if upstream.name == settings.jetstream.domain:
            yield ("jetstream.upstreams",), f"upstream {upstream.name} has the name of this server's JetStream domain"
    leafnodes = settings.leafnodes
    yield from tls_contradictions(leafnodes.tls, "leafnodes.tls")
    for account in [user.account for user in leafnodes.users] + [user.account for user in leafnodes.nkeys]:
        if account not in names:
            yield ("leafnodes.users",), f'cannot find local account "{account}" specified in leafnode authorization'
    if settings.operator.enabled and (leafnodes.users or leafnodes.nkeys):
        yield ("leafnodes.users",), "operator mode does not allow specifying users in leafnode config"
    if leafnodes.min_version and not _is_version(leafnodes.min_version):
        yield ("leafnodes.min_version",), (
            f'invalid leafnode\'s minimum version "{leafnodes.min_version}": it should be at least 2.8.0')
    seen = set()
    for remote in settings.leafnodes.remotes:
        if settings.operator.enabled:
            if not is_public_key(remote.account, ACCOUNT):
                yield ("leafnodes.remotes",), (
                    "operator mode requires account nkeys in remotes. Please add an `account` key to each remote in "
                    "your `leafnodes` section, to assign it to an account. Each account value should be a 56 "
                    f"character public key, starting with the letter 'A', not {remote.account!r}")
        elif remote.account not in names:
            yield ("leafnodes.remotes",), (f'cannot find local account "{remote.account}" specified in leafnode remote')
        key = remote.account, remote.urls, remote.credentials or remote.nkey
        if key in seen:
            yield ("leafnodes.remotes",), f"duplicate remote {remote.shown}"
        seen.add(key)


def _is_version(text: str) -> bool:
    """Return whether ``text`` is a version of nats-server, 2.8.0 or later."""
    words = text.removeprefix("v").partition("-")[0].split(".")
    return len(words) == 3 and all(word.isdigit() for word in words) and tuple(map(int, words)) >= (2, 8, 0)


def _accounts_contradictions(settings: Settings) -> Iterator[tuple[tuple[str, ...], str]]:
    accounts = settings.accounts
    names = {account.name for account in accounts.configured}
    if not settings.operator.enabled and accounts.system not in {*names, DEFAULT_ACCOUNT, SYSTEM_ACCOUNT}:
        yield ("accounts.system",), (f"error resolving system account: account missing: there is no account "
                                     f"{accounts.system!r} in accounts")
    if accounts.no_system and accounts.system != SYSTEM_ACCOUNT:
        yield ("accounts.no_system", "accounts.system"), "there cannot be no system account and one that is named"
    if accounts.no_system:
        for account in accounts.configured:
            for export in account.exports:
                if export.latency is not None:
                    yield ("accounts.configured",
                           ), (f'Error adding service latency sampling for "{export.subject}": system '
                                                     "account not setup")
