"""Trusted proxies: which of them a client came through, by a signature of its nonce in CONNECT (``proxy_sig``).

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
    """In front of the one user's or the token's authenticator, where nobody may come but by trusted proxies."""

    wants_nonce = False

    def decide(self, credentials: Credentials) -> Decision | None:
        return None if credentials.connection.proxy_key else REQUIRED


class TrustedProxies:
    """``keys``: their public keys."""

    def __init__(self, keys: Collection[str]) -> None:
        self.keys = keys

    def signer(self, signature: str, nonce: bytes) -> str:
        """The key whose ``signature`` of ``nonce`` it is; "": none of them."""
        try:
            raw = decode_base64url(signature)
        except ValueError:
            return ""
        # Without a nonce, a signature would be good for ever.
        return next((key for key in self.keys if nonce and verify(key, nonce, raw)), "")
