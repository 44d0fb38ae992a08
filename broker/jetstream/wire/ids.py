"""Generated names of events, consumers and flow control requests, in the alphabet of NUIDs."""

from __future__ import annotations

import random
import secrets
from functools import lru_cache
from hashlib import sha256

__all__ = ["secret_id", "short_hash", "unique_id"]

_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def unique_id(rng: random.Random, length: int = 22) -> str:
    """Return random base-62 characters, like a NUID."""
    return "".join(rng.choices(_DIGITS, k=length))


def secret_id(length: int = 22) -> str:
    """Return base-62 characters that nobody can predict:
    a subject with them is known only to programs that received it."""
    return "".join(secrets.choice(_DIGITS) for _ in range(length))


@lru_cache(maxsize=256)
def short_hash(name: str) -> str:
    """Return a hash that names an account in ack subjects, or an API prefix in headers.

    Source: nats-server, server/events.go getHash.
    """
    return "".join(_DIGITS[byte % len(_DIGITS)] for byte in sha256(name.encode()).digest()[:8])
