"""Credentials for a NATS server, and the connection options that nats-py makes of them.

Credentials are values in memory: what a user uploads never becomes a file.
"""

from __future__ import annotations

import base64
import re
import ssl
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from broker.base.client_tls import client_context
from broker.base.nkeys import KeyPair, split_credentials

__all__ = ["BadLogin", "Login"]

_SCHEMES = ("nats", "tls", "ws", "wss")


class BadLogin(Exception):
    """Credentials or an address that cannot be used; the text says which part, and what is expected."""


@dataclass(frozen=True, slots=True)
class Login:
    """An address and credentials.

    Attributes:
        ``creds``: the text of a credentials file (JWT and seed).
        ``nkey``: a user's seed, which begins with ``SU``.
        ``ca``, ``cert``, ``key``: certificates and a private key, as PEM.
        ``domain``: the JetStream domain; "" for the server's own.
        ``inbox_prefix``: what subjects of answers begin with, if the user may not subscribe to ``_INBOX.>``.
        ``tls_first``: True for servers that want the TLS handshake before they send anything.
    """

    url: str
    user: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    nkey: str = field(default="", repr=False)
    creds: str = field(default="", repr=False)
    ca: str = field(default="", repr=False)
    cert: str = field(default="", repr=False)
    key: str = field(default="", repr=False)
    domain: str = ""
    inbox_prefix: str = ""
    tls_first: bool = False

    @property
    def shown(self) -> str:
        """The address without a user and password that may be in it."""
        scheme, _, rest = self.url.partition("://")
        return f"{scheme}://{rest.partition('/')[0].rpartition('@')[2]}"

    @property
    def public_nkey(self) -> str | None:
        """The public key of ``nkey``. Raises: BadLogin."""
        return _pair(self.nkey.strip(), "The NKey seed").public if self.nkey and not self.creds else None

    def options(self) -> dict[str, Any]:
        """Return the keyword arguments for ``Client.connect``. Raises: BadLogin."""
        try:
            parts = urlsplit(self.url)
            usable = parts.scheme in _SCHEMES and bool(parts.hostname) and parts.port != 0
        except ValueError:
            usable = False
        if not usable:
            raise BadLogin("The address must look like nats://host:4222 (or tls://, ws://, wss://).")
        given: dict[str, Any] = {"servers": [self.url]}
        given |= {name: value for name in ("user", "password", "token") if (value := getattr(self, name))}
        if self.creds:
            try:
                token, seed = split_credentials(self.creds)
            except ValueError as error:
                raise BadLogin(f"The credentials file cannot be used: {error}.") from None
            given["user_jwt_cb"] = lambda: bytearray(token.encode())
            given["signature_cb"] = _signer(_pair(seed, "The seed in the credentials file"))
        elif self.nkey:
            given["signature_cb"] = _signer(_pair(self.nkey.strip(), "The NKey seed"))
        if self.ca or self.cert or self.tls_first or parts.scheme in ("tls", "wss"):
            given["tls"] = self._tls()
            given["tls_handshake_first"] = self.tls_first
        if self.inbox_prefix:
            if not re.fullmatch(r"[^\s.*>]+(\.[^\s.*>]+)*", self.inbox_prefix):
                raise BadLogin("The inbox prefix must be a subject without wildcards, such as _INBOX_me.")
            given["inbox_prefix"] = self.inbox_prefix
        return given

    def _tls(self) -> ssl.SSLContext:
        import tempfile
        from pathlib import Path

        try:
            context = client_context(ca_data=self.ca)
            if self.cert:
                # The ssl module loads a certificate chain from files only; the folder is readable by this user alone.
                with tempfile.TemporaryDirectory() as folder:
                    chain = Path(folder, "chain.pem")
                    chain.touch(0o600)
                    chain.write_text(f"{self.cert}\n{self.key}")
                    context.load_cert_chain(chain)
        except (ssl.SSLError, ValueError) as error:
            raise BadLogin(f"The certificates cannot be used: {error}.") from None
        return context


def _pair(seed: str, what: str) -> KeyPair:
    try:
        return KeyPair.of_seed(seed)
    except ValueError:
        raise BadLogin(f"{what} is not a valid one.") from None


def _signer(pair: KeyPair) -> Any:
    return lambda nonce: base64.b64encode(pair.sign(nonce.encode()))
