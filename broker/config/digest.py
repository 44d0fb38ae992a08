"""The digest of a configuration, as nats-server computes it: comments, spacing and the order of keys do not change it.

Source: nats-server, conf/parse.go (configDigest): SHA-256 of the configuration as JSON with sorted keys.
"""

from __future__ import annotations

import hashlib
import json
from datetime import datetime
from typing import Any

from broker.config.syntax import Value

__all__ = ["digest"]

_AS_GO = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"})
"""The characters that Go escapes in JSON; they can only occur within strings."""


def digest(top: Value) -> str:
    """Return the digest, with the name of its algorithm."""
    text = json.dumps(_plain(top), ensure_ascii=False, separators=(",", ":"), sort_keys=True).translate(_AS_GO)
    return "sha256:" + hashlib.sha256(f"{text}\n".encode()).hexdigest()


def _plain(value: Value) -> Any:
    """Return the value without its places."""
    inner = value.value
    if isinstance(inner, dict):
        return {key: _plain(item) for key, item in inner.items()}
    if isinstance(inner, list):
        return [_plain(item) for item in inner]
    if isinstance(inner, datetime):
        return inner.strftime("%Y-%m-%dT%H:%M:%SZ")
    return int(inner) if isinstance(inner, float) and inner.is_integer() else inner
