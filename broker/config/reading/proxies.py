"""A file's trusted proxies: ``proxies { trusted: [ { key: … } ] }``.

Source: nats-server, server/opts.go (parseProxies, parseProxiesTrusted).
"""

from __future__ import annotations

from broker.base.nkeys import raw_key
from broker.config import kinds
from broker.config.reading.findings import Findings, aliases, go_type
from broker.config.syntax import Value

__all__ = ["read_proxies"]

_PROXIES = aliases("trusted")
_TRUSTED = aliases("key public_key")


def read_proxies(value: Value, found: Findings) -> tuple[str, ...]:
    """Read the public keys of trusted proxies."""
    if not isinstance(value.value, dict):
        found.wrong(value, f"expected proxies to be a map/struct, got {go_type(value)}")
        return ()
    keys: list[str] = []
    for _, _, rows in found.fields(value, _PROXIES):
        if not isinstance(rows.value, list):
            found.wrong(rows, f"expected proxies' trusted field to be an array, got {go_type(rows)}")
            continue
        for row in rows.value:
            if not isinstance(row.value, dict):
                found.wrong(row, f"expected proxies' trusted entry to be a map/struct, got {go_type(row)}")
                continue
            key = ""
            for _, written, inner in found.fields(row, _TRUSTED):
                key = found.convert(kinds.text, written, inner) or ""
            if _is_key(key):
                keys.append(key)
            else:
                found.wrong(row, f'invalid proxy key "{key}"')
    return tuple(keys)


def _is_key(text: str) -> bool:
    try:
        raw_key(text)
    except ValueError:
        return False
    return True
