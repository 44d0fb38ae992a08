"""NKeys for tests, equal in every run; none of them is secret."""

from __future__ import annotations

import hashlib
import json

from broker.base.nkeys import KeyPair, encode_base64url

__all__ = ["key", "secret", "signed"]


def secret(kind: str, name: str = "") -> bytes:
    return hashlib.sha256(f"test key {kind} {name}".encode()).digest()


def key(kind: str, name: str = "") -> KeyPair:
    """Return the key of that kind and name."""
    return KeyPair(kind, secret(kind, name))


def signed(info: bytes, pair: KeyPair, **fields: object) -> bytes:
    """Return the CONNECT that answers an INFO line with its nonce signed by ``pair``."""
    nonce = json.loads(info.removeprefix(b"INFO "))["nonce"].encode()
    return b"CONNECT " + json.dumps({"verbose": False, "sig": encode_base64url(pair.sign(nonce)),
                                     **fields}).encode() + b"\r\n"
