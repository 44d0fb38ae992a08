"""The settings as a configuration file that can be read back, secrets masked: what ``--print-config`` prints.

Everything in effect is written, defaults too; what is unset is left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from broker import __version__
from broker.config.settings import MASK, SETTINGS, Setting, Settings
from broker.gotime import format_duration

__all__ = ["show"]

_Block = dict[str, Any]
"""Keys to values as they are written, or to blocks within."""

_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"})


def show(settings: Settings) -> str:
    """The text of the file."""
    top: _Block = {}
    for setting in SETTINGS:
        value = settings[setting.path]
        if setting.keys and value is not None and value not in ("", ()):
            _put(top, setting.keys[0], _written(setting, value))
    _put(top, "jetstream.enabled", _word(settings.jetstream.enabled))
    if settings.auth.users:
        _put(top, "authorization.users", [
            {"user": _text(user.user), "password": _text(MASK)} for user in settings.auth.users])
    if settings.monitoring.host and settings.monitoring.port is not None:
        # The file names the address of the pages together with their port only.
        host = settings.monitoring.host
        top["http"] = _text(f"[{host}]:{top.pop('http_port')}" if ":" in host else f"{host}:{top.pop('http_port')}")
    _name_bucket(top, settings.storage.url)
    head = [f"# The effective configuration of jetblock {__version__}."]
    if MASK in "".join(lines := list(_lines(top))):
        head.append(f"# {MASK} stands for a secret: replace it before this file is used.")
    return "\n".join([*head, *lines, ""])


def _name_bucket(top: _Block, url: str) -> None:
    """A bucket is named where its credentials are; without one, credentials have no effect."""
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
    if setting.path.endswith("_ns"):
        return _text(format_duration(value))
    return "[" + ", ".join(map(_text, value)) + "]" if isinstance(value, tuple) else _word(value)


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return _text(value) if isinstance(value, str) else str(value)


def _text(value: str) -> str:
    return '"' + value.translate(_ESCAPES) + '"'


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
                yield inner + "{ " + ", ".join(f"{name}: {word}" for name, word in row.items()) + " }"
            yield indent + "]"
        else:
            yield f"{indent}{key}: {value}"
