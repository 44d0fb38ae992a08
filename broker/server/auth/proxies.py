"""Trusted proxies. A signature of the client's nonce in CONNECT (``proxy_sig``) names the proxy in between.

Source: nats-server, server/auth.go (proxyCheck, processProxiesTrustedKeys).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from broker.base.nkeys import decode_base64url, verify
from broker.server.auth.login import Credentials, Decision, Refusal

__all__ = ["NOT_TRUSTED", "REQUIRED", "ProxyRequired", "TrustedProxies"]

NOT_TRUSTED: Final = Refusal("proxy is not trusted", "Proxy Not Trusted")
REQUIRED: Final = Refusal("proxy connection required", "Proxy Required")


class ProxyRequired:
    """Precedes the authenticator of the one user or the token, where all clients must come through trusted proxies."""

    wants_nonce = False

    def decide(self, credentials: Credentials) -> Decision | None:
        return None if credentials.connection.proxy_key else REQUIRED


class TrustedProxies:
    """Verifies signatures of proxies. ``keys``: their public keys."""

    def __init__(self, keys: Collection[str]) -> None:
        self.keys = keys

    def signer(self, signature: str, nonce: bytes) -> str:
        """Return the key that made ``signature`` of ``nonce``; "" if no trusted key did."""
        try:
            raw = decode_base64url(signature)
        except ValueError:
            return ""
        # A signature of an empty nonce would be valid for ever.
        return next((key for key in self.keys if nonce and verify(key, nonce, raw)), "")
