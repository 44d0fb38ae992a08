"""From the three sources to one ``Settings``: flags beat environment beats file, and what must hold between settings.

    JetStream is on  by -js, --store, a `jetstream` block that is not disabled, or a store named in the environment
                     or in `jetblock { store }`; `-sd` alone only names the directory, in case the file turns it on
    the store is     --store or -sd (not both), else JETBLOCK_STORE, else the file's (one of `jetstream { store_dir }`,
                     `jetstream { object_store }`, `jetblock { store }`), else a directory under the temporary one
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from broker.config.environment import read_environment
from broker.config.file import FileSettings, read_file
from broker.config.flags import CommandLine
from broker.config.settings import ConfigError, Settings, default_store_url
from broker.gotime import format_duration

__all__ = ["TEMPORARY_NOTICE", "load", "read_text"]

TEMPORARY_NOTICE = ("Temporary storage directory used, data could be lost on system reboot; name one with --store_dir, "
                    "or a bucket with --store")
"""Begins as nats-server's line does."""

_SCHEMES = ("file", "s3", "memory")


def read_text(path: str) -> str:
    """A file's text; OSError or UnicodeDecodeError."""
    return Path(path).read_bytes().decode("utf-8")


def load(line: CommandLine, environ: Mapping[str, str], read: Callable[[str], str] = read_text) -> Settings:
    """Bring the sources together.

    Raises: ConfigError, one line for each thing that is wrong, each naming its place and what would be right.
    """
    file = read_file(line.config, environ, read) if line.config is not None else FileSettings()
    outer = read_environment(environ)
    values: dict[str, Any] = {**file.values, **outer, **line.values}
    values["store"] = _store(line, outer, file)
    values["jetstream"] = _jetstream(line, outer, file)
    if values["jetstream"] and values["store"] is None:
        values["store"] = default_store_url()
        file.notices.append(TEMPORARY_NOTICE)
    values["notices"] = tuple(file.notices)
    settings = Settings(**values)
    errors = []
    for fields, why in _contradictions(settings):
        place = next((file.places[name] for name in fields if name in file.places), None)
        errors.append(f"{place}: {why}" if place else why)
    if errors:
        raise ConfigError("\n".join(errors))
    return settings


def _store(line: CommandLine, outer: dict[str, Any], file: FileSettings) -> str | None:
    if line.store_dir is not None and "store" in line.values:
        raise ConfigError("--store and --store_dir name two places for streams; give one of them")
    if len(file.stores) > 1:
        raise ConfigError("\n".join(f"{place}: streams can be kept in one place only, and the file names "
                                    f"{len(file.stores)}; keep one" for place in file.stores))
    if "store" in line.values:
        return _store_url(line.values["store"], "--store")
    if line.store_dir is not None:
        return _store_url("file://" + line.store_dir, "--store_dir")
    if "store" in outer:
        return _store_url(outer["store"], "environment: JETBLOCK_STORE")
    for place, url in file.stores.items():
        return _store_url(url, f"{place}: store")
    return None


def _store_url(url: str, where: str) -> str:
    """The URL with a directory made absolute: what it is relative to may change, the store may not."""
    scheme, mark, rest = url.partition("://")
    if not mark or scheme not in _SCHEMES:
        hint = f"file://{url}" if not mark else "file:///dir or s3://bucket/prefix"
        raise ConfigError(f"{where} must be a URL with file://, s3:// or memory://, not {url!r}; try {hint}")
    if scheme == "file":
        if not rest:
            raise ConfigError(f"{where} names no directory; try file:///var/lib/jetblock")
        return "file://" + os.path.abspath(rest)
    if scheme == "s3" and not rest.strip("/"):
        raise ConfigError(f"{where} names no bucket; try s3://bucket/prefix")
    return url


def _jetstream(line: CommandLine, outer: dict[str, Any], file: FileSettings) -> bool:
    for values in (line.values, outer):
        if "jetstream" in values:
            return bool(values["jetstream"])
        if "store" in values:
            return True
    if file.jetstream is not None:
        return file.jetstream
    return bool(file.stores) and line.store_dir is None


def _contradictions(settings: Settings) -> list[tuple[tuple[str, ...], str]]:
    """Fields and reason for each set of settings that cannot hold together."""
    wrong: list[tuple[tuple[str, ...], str]] = []
    if settings.max_payload > settings.max_pending:
        wrong.append((("max_payload", "max_pending"), f"max_payload ({settings.max_payload}) cannot be higher than "
                      f"max_pending ({settings.max_pending}); raise max_pending"))
    if settings.lame_duck_grace_period_ns >= settings.lame_duck_duration_ns:
        wrong.append((("lame_duck_grace_period_ns", "lame_duck_duration_ns"),
                      "lame_duck_grace_period must be lower than lame_duck_duration"))
    if settings.token is not None and (settings.user is not None or settings.users):
        wrong.append((("token",), "authorization cannot have both a token and user names; keep one of them"))
    if settings.user is not None and settings.users:
        wrong.append((("user",), "authorization cannot have both a single user and users; move the one into the list"))
    if settings.user is None and settings.password is not None:
        wrong.append((("password",), "authorization has a password and no user; name the user, too"))
    if settings.tail_bytes_max < 2 * settings.segment_bytes:
        wrong.append((("tail_bytes_max", "segment_bytes"), "tail_bytes_max must be at least twice segment_bytes"))
    if settings.put_timeout_ns >= settings.lease_ns:
        wrong.append((("put_timeout_ns", "lease_ns"),
                      "put_timeout must be lower than lease, or one slow request loses the store"))
    elif (settings.store or "").startswith("s3://") and (
            (settings.commit_interval_ns or 0) + settings.put_timeout_ns >= settings.lease_ns):
        # An idle owner's heartbeat waits for the interval, too.
        wrong.append((("commit_interval_ns", "put_timeout_ns", "lease_ns"),
                      f"commit_interval ({format_duration(settings.commit_interval_ns or 0)}) and put_timeout "
                      f"({format_duration(settings.put_timeout_ns)}) together must be lower than lease "
                      f"({format_duration(settings.lease_ns)}), or one slow request loses the store"))
    return wrong
