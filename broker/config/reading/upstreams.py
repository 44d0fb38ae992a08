"""A file's upstreams: ``jetblock { upstreams { prod { urls: […], credentials: …, account: … } } }``."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import urlsplit

from broker.base.nkeys import KeyPair
from broker.config import kinds
from broker.config.reading.findings import Findings, aliases, shown
from broker.config.reading.leafnodes import read_tls
from broker.config.syntax import Value
from broker.config.upstreams import UpstreamSettings
from broker.protocol.subject import is_literal, is_valid

__all__ = ["read_upstreams"]

_KEYS = aliases("urls url", "account local", "user username", "password pass", "token", "credentials creds",
                "nkey seed", "tls", "inbox_prefix")
_SECRETS: Final = ("password", "token")
_LOGINS: Final = ("user", "token", "credentials", "nkey")
_SCHEMES: Final = ("nats", "tls", "ws", "wss")


def read_upstreams(value: Value, found: Findings) -> tuple[UpstreamSettings, ...]:
    """Read the block of upstreams by name; leave out those with errors."""
    if not isinstance(value.value, dict):
        found.wrong(value, f"upstreams must be a block of names and their settings, not {shown(value)}")
        return ()
    upstreams = []
    for name, block in value.value.items():
        if not is_literal(name.encode()) or not is_valid(name.encode()) or "." in name:
            found.wrong(block, f'invalid name of an upstream "{name}": it is one token of $JS.<name>.API')
        elif not isinstance(block.value, dict):
            found.wrong(block, f"upstream {name} must be a block: {name} {{ urls: […] }}, not {shown(block)}")
        elif (upstream := _read_upstream(name, block, found)) is not None:
            upstreams.append(upstream)
    return tuple(upstreams)


def _read_upstream(name: str, block: Value, found: Findings) -> UpstreamSettings | None:
    before = len(found.errors)
    parts: dict[str, Any] = {}
    for key, written, value in found.fields(block, _KEYS):
        if key == "urls":
            parts[key] = _read_urls(value, found)
        elif key == "tls":
            parts[key] = read_tls(value, found)
        elif key == "nkey":
            parts[key] = _read_seed(value, found)
        else:
            parts[key] = found.convert(kinds.text, written, value, secret=key in _SECRETS) or ""
    given = [key for key in _LOGINS if parts.get(key)]
    prefix = parts.get("inbox_prefix", "_INBOX").encode()
    if len(given) > 1:
        found.wrong(block, f"upstream {name} has {' and '.join(given)}; keep one of them")
    if parts.get("password") and not parts.get("user"):
        found.wrong(block, f"upstream {name} has a password without a user")
    if not is_literal(prefix) or not is_valid(prefix):
        found.wrong(block, f"inbox_prefix of upstream {name} must be a subject without wildcards")
    if not parts.get("urls") and len(found.errors) == before:
        found.wrong(block, f"upstream {name} needs urls: […]")
    return UpstreamSettings(name=name, **parts) if len(found.errors) == before else None


def _read_urls(value: Value, found: Findings) -> tuple[str, ...]:
    urls: dict[str, None] = {}
    for row in value.value if isinstance(value.value, list) else [value]:
        text = row.value.strip() if isinstance(row.value, str) else ""
        parts = urlsplit(text)
        if parts.scheme not in _SCHEMES or not parts.hostname:
            # The text may have a password.
            found.wrong(row, "the URL of an upstream must be nats://HOST:PORT, tls://HOST:PORT, ws://… or wss://…")
        else:
            urls[text] = None
    if len({urlsplit(url).scheme in ("ws", "wss") for url in urls}) > 1:
        found.wrong(value, "the URLs of an upstream must all be for WebSocket, or none of them")
    return tuple(urls)


def _read_seed(value: Value, found: Findings) -> str:
    seed = value.value if isinstance(value.value, str) else ""
    try:
        if not KeyPair.of_seed(seed).public.startswith("U"):
            raise ValueError
    except ValueError:
        found.wrong(value, "the nkey of an upstream must be a user's seed, which begins with SU")
    return seed
