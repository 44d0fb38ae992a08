"""Compares old and new settings while the broker runs, refuses what needs a restart, and words a log line for the rest.

    read ──> compare ──> refuse if a changed setting needs a restart ──> every part prepares ──> every part applies
                                                                          └── one fails: nothing has changed

The declaration of a setting (``broker.config.settings``) says which part applies a new value.

Source: nats-server, server/reload.go (diffOptions, and the option types for the lines).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from typing import Any

from broker.base.gotime import format_duration
from broker.config.settings import MASK, ConfigError, Setting, Settings, settings_table

__all__ = ["Prepare", "ReloadError", "changed", "lines", "refuse_fixed"]

Prepare = Callable[[Settings], Callable[[], None]]
"""Prepares a part for new settings, and returns a function that applies them. Raises: ReloadError; nothing has
changed."""


class ReloadError(ConfigError):
    """A reload that was refused. The text has one line per error."""


def changed(old: Settings, new: Settings) -> list[Setting]:
    """Return the settings that differ."""
    return [setting for setting in settings_table() if old[setting.path] != new[setting.path]]


def refuse_fixed(settings: list[Setting], parts: Container[str | None], old: Settings, new: Settings) -> None:
    """Refuse a reload that changes a setting which none of ``parts`` applies.

    Raises: ReloadError that names each such setting.
    """
    wrong = [f"config reload not supported for {_key(setting)}: old={_shown(setting, old)}, new={_shown(setting, new)}"
             for setting in settings if setting.reload not in parts]
    if wrong:
        raise ReloadError("\n".join(wrong))


def lines(settings: list[Setting], new: Settings) -> Iterator[str]:
    """Return the log line for each changed setting."""
    for setting in settings:
        yield f"Reloaded: {setting.log_name or f'{_key(setting)} = {_shown(setting, new)}'}"


def _key(setting: Setting) -> str:
    """Return the setting's key in a file, or its path if a file cannot have it."""
    return setting.keys[0] if setting.keys else setting.path


def _shown(setting: Setting, settings: Settings) -> str:
    value: Any = settings[setting.path]
    if setting.secret:
        return MASK
    if not setting.variable:
        return "…"  # users, tokens and the like, which only a file can have
    if isinstance(value, bool):
        return "true" if value else "false"
    return format_duration(value) if setting.path.endswith("_ns") and value is not None else str(value)
