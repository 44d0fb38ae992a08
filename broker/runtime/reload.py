"""Settings that change while the broker runs: which ones may, and the log line for each.

    read ──> compare ──> refuse, by key, if one may not change ──> every part prepares ──> every part applies, and a line
                                                                    └── one cannot: nothing has changed

Source: nats-server, server/reload.go (diffOptions, and the option types for the lines).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from broker.base.gotime import format_duration
from broker.config.settings import MASK, Setting, Settings, settings_table

__all__ = ["Prepare", "ReloadError", "changed", "lines", "refuse_fixed"]

Prepare = Callable[[Settings], Callable[[], None]]
"""Prepares a part for new settings, and returns what applies them. Raises: ReloadError; then nothing has changed."""

_LINES: dict[str, str] = {
    "auth.user": "authorization username", "auth.password": "authorization password", "auth.token": "authorization token",
    "auth.users": "authorization users", "auth.nkeys": "authorization nkey users", "accounts.configured": "accounts",
    "operator.preload": "accounts",
    "operator.resolver": "account resolver", "operator.default_sentinel": "default sentinel", "server_tags": "tags",
    "server_metadata": "metadata", "auth.trusted_proxies": "proxies trusted keys"}
"""Names in the log of settings whose values are not shown."""

_RELOADABLE = frozenset({
    *_LINES, "operator.pinned_accounts",
    "clients.allow_non_tls", "clients.proxy_protocol", "auth.timeout_ns", "auth.no_auth_user", "auth.proxy_required",
    "clients.max_connections", "clients.max_subscriptions", "clients.max_sub_tokens", "clients.max_payload",
    "clients.max_control_line", "clients.ping_interval_ns", "clients.ping_max", "clients.write_deadline_ns",
    "clients.no_fast_producer_stall", "clients.lame_duck_duration_ns", "clients.lame_duck_grace_period_ns",
    "logging.debug", "logging.trace", "logging.max_traced_msg_len", "logging.trace_headers", "logging.file", "logging.size_limit",
    "logging.max_num", "logging.format", "logging.times", "logging.utc", "process.pid_file"})
_RELOADABLE_SECTIONS = ("tls.", "websocket.")
_FIXED = frozenset({"websocket.port", "websocket.host"})


class ReloadError(Exception):
    """Why the settings stay as they are; one line per error."""


def changed(old: Settings, new: Settings) -> list[Setting]:
    """The settings that differ."""
    return [setting for setting in settings_table() if old[setting.path] != new[setting.path]]


def refuse_fixed(settings: list[Setting], old: Settings, new: Settings) -> None:
    """Raises: ReloadError that names each of ``settings`` that cannot change while the broker runs."""
    wrong = [f"config reload not supported for {_key(setting)}: old={_shown(setting, old)}, new={_shown(setting, new)}"
             for setting in settings if not _reloadable(setting.path)]
    if wrong:
        raise ReloadError("\n".join(wrong))


def _reloadable(path: str) -> bool:
    return path in _RELOADABLE or (path.startswith(_RELOADABLE_SECTIONS) and path not in _FIXED)


def lines(settings: list[Setting], new: Settings) -> Iterator[str]:
    """The log line for each changed setting."""
    for setting in settings:
        yield f"Reloaded: {_LINES.get(setting.path) or f'{_key(setting)} = {_shown(setting, new)}'}"


def _key(setting: Setting) -> str:
    """The name in the file; the path of a setting that the file cannot have."""
    return setting.keys[0] if setting.keys else setting.path


def _shown(setting: Setting, settings: Settings) -> str:
    value: Any = settings[setting.path]
    if setting.secret:
        return MASK
    if setting.path in _LINES or setting.path.startswith("operator."):
        return "…"
    if isinstance(value, bool):
        return "true" if value else "false"
    return format_duration(value) if setting.path.endswith("_ns") and value is not None else str(value)
