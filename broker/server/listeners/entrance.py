"""The ports to which clients connect, from the point of view of a connection: authentication, timeouts and INFO.

Source: nats-server, server/auth.go (processClientOrLeafAuthentication), server/websocket.go (wsConfigAuth).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from broker.config.settings import AuthSettings, Settings
from broker.server.auth.authenticator import AuthenticatorChain
from broker.server.auth.proxies import TrustedProxies
from broker.server.listeners.certificates import TlsParameters

__all__ = ["ChainOf", "ClientPort", "WebSocketPort", "users_by_certificate"]

ChainOf = Callable[[AuthSettings, bool], AuthenticatorChain | None]
"""Function that makes the authenticators for settings; the flag: certificates identify the users."""


def users_by_certificate(settings: Settings) -> frozenset[str]:
    """Return the users without a password whom a port identifies by the client's certificate (``verify_and_map``)."""
    websocket = settings.websocket
    mapping = {ClientPort.connection_type} if settings.tls.verify_and_map else set()
    if websocket.port is not None and websocket.tls.verify_and_map:
        mapping.add(WebSocketPort.connection_type)
    if settings.leafnodes.port is not None and settings.leafnodes.tls.verify_and_map:
        mapping.add("LEAFNODE")
    return frozenset(user.user for user in settings.auth.users
                     if not user.password and mapping & (user.connection_types or mapping))


class ClientPort:
    """The client port. ``tls`` is None without TLS."""

    connection_type = "STANDARD"
    client_type = "nats"
    id_label = "cid"
    tls_name = ""

    def __init__(self) -> None:
        self.authenticator: AuthenticatorChain | None = None
        self.proxies: TrustedProxies | None = None
        self.tls: TlsParameters | None = None
        self.allow_non_tls = False
        self.proxy_protocol = False
        self.ping_interval_ns = 0
        self.auth_timeout_ns = 0

    @property
    def needs_opening(self) -> bool:
        """Flag: connections do not begin with INFO in plain text."""
        return self.tls is not None or self.proxy_protocol

    def prepare(self, settings: Settings, chain_of: ChainOf) -> Callable[[], None]:
        """Prepare for new settings. Returns: a function that applies them to later connections. Raises: ValueError."""
        tls = TlsParameters(settings.tls) if settings.tls.enabled else None
        authenticator = chain_of(settings.auth, settings.tls.verify_and_map)

        def apply() -> None:
            self.tls, self.authenticator, self.proxies = tls, authenticator, _trusted(settings)
            self.allow_non_tls = settings.clients.allow_non_tls
            self.proxy_protocol = settings.clients.proxy_protocol
            self.ping_interval_ns = settings.clients.ping_interval_ns
            self.auth_timeout_ns = settings.auth.timeout_ns

        return apply

    def describe(self, info: dict[str, Any]) -> None:
        """Add this port's fields to INFO."""
        if self.tls is not None:
            info["tls_available" if self.allow_non_tls else "tls_required"] = True
            if self.tls.verify:
                info["tls_verify"] = True


class WebSocketPort:
    """The WebSocket port; ``port`` is the actual number once the port is bound."""

    connection_type = "WEBSOCKET"
    client_type = "websocket"
    id_label = "wid"

    def __init__(self) -> None:
        self.authenticator: AuthenticatorChain | None = None
        self.proxies: TrustedProxies | None = None
        self.tls: TlsParameters | None = None
        self.ping_interval_ns = 0
        self.auth_timeout_ns = 0
        self.host = ""
        self.port = 0
        self._own_rules = False

    def prepare(self, settings: Settings, chain_of: ChainOf) -> Callable[[], None]:
        """Prepare for new settings, as ``ClientPort.prepare`` does."""
        websocket = settings.websocket
        tls = TlsParameters(websocket.tls) if websocket.tls.enabled else None
        own_rules = bool(websocket.username or websocket.token or websocket.no_auth_user)
        auth = settings.auth
        if own_rules:
            auth = auth.replace(user=websocket.username, password=websocket.password, token=websocket.token,
                                no_auth_user=websocket.no_auth_user)
        authenticator = chain_of(auth, websocket.tls.verify_and_map)

        def apply() -> None:
            self.tls, self.authenticator, self._own_rules = tls, authenticator, own_rules
            self.proxies = _trusted(settings)
            self.ping_interval_ns = websocket.ping_interval_ns or settings.clients.ping_interval_ns
            self.auth_timeout_ns = websocket.auth_timeout_ns or settings.auth.timeout_ns
            self.host = websocket.host

        return apply

    def describe(self, info: dict[str, Any]) -> None:
        """Set this port's fields in INFO: clients reconnect to this port."""
        info.pop("connect_urls", None)
        info |= {"host": self.host, "port": self.port}
        if self.tls is not None:
            info |= {"tls_required": True, "tls_available": True}
        if self._own_rules:
            info["auth_required"] = True


def _trusted(settings: Settings) -> TrustedProxies | None:
    return TrustedProxies(settings.auth.trusted_proxies) if settings.auth.trusted_proxies else None
