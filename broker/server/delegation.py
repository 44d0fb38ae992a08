"""Logins that the server's own settings do not decide: tokens of operators' accounts, and authorization services.

Owns: the accounts that come with tokens, for the server's other parts; the choice of the authenticators. Does not own:
how a login is decided (auth), the claims (operator). It imports its dependencies only if they are configured.

Source: nats-server, server/auth.go (configureAuthorization), server/accounts.go (updateAccountClaimsWithRefresh).
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from broker import NATS_SERVER_VERSION
from broker.access.accounts import SYSTEM_ACCOUNT, AccountSettings
from broker.base.clock import Clock
from broker.config.settings import AuthSettings, Settings
from broker.server.accounts.account import Account
from broker.server.accounts.directory import Accounts
from broker.server.auth.authenticator import AuthenticatorChain
from broker.server.auth.login import Authenticator
from broker.server.connection.client import Client
from broker.server.system.system import System

if TYPE_CHECKING:
    from broker.server.auth.callout import Callouts
    from broker.server.operator.accounts import OperatorAccounts
    from broker.server.operator.claims_requests import ClaimsRequests

__all__ = ["Delegation"]

log = logging.getLogger(__name__)


class Host(Protocol):
    """The server."""

    clock: Clock
    loop: asyncio.AbstractEventLoop
    accounts: Accounts
    system: System | None
    clients: dict[int, Client]
    server_id: str
    server_name: str

    @property
    def settings(self) -> Settings: ...


class Delegation:
    """Connects the server with operators and authorization services.

    ``server_id``: the key that signs for the server; None if nothing is signed.
    """

    def __init__(self, host: Host, settings: Settings) -> None:
        self._host = host
        self.operator: OperatorAccounts | None = None
        """The operators' accounts; None if there is no operator, or before ``load``."""

        self.on_account: Callable[[Account], Awaitable[object] | None] | None = None
        """Callback for an account that a token adds or changes. Returns: an awaitable for which its users wait."""

        self._claims_requests: ClaimsRequests | None = None
        self._callouts = self._make_callouts(settings)

    @property
    def server_id(self) -> str | None:
        return self._callouts.keys.public if self._callouts is not None else None

    @property
    def clock(self) -> Clock:
        return self._host.clock

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self._host.loop

    @property
    def accounts(self) -> Accounts:
        return self._host.accounts

    def load(self, settings: Settings) -> None:
        """Load the operators' settings. Raises: ValueError."""
        if not settings.operator.enabled:
            return
        from broker.server.operator.accounts import OperatorAccounts
        from broker.server.operator.claims_requests import ClaimsRequests

        self.operator = OperatorAccounts(settings.operator, self)
        system, account = self._host.system, self.accounts.system
        if system is not None and account is not None:
            self._claims_requests = ClaimsRequests(self.operator, system.requests, account.router, self.clock,
                                                   account.name)

    async def resolve_system(self) -> None:
        """Fetch the system account's token, unless it is known. Raises: ValueError."""
        system = self.accounts.system
        if self.operator is None or (system is not None and self.operator.known(system.name) is not None):
            return
        from broker.server.operator.accounts import AccountError
        from broker.server.operator.resolver import ResolverError

        try:
            await self.operator.resolver.check()
        except ResolverError as error:
            raise ValueError(str(error)) from None
        if system is None or system.name == SYSTEM_ACCOUNT:
            return
        try:
            await self.operator.get(system.name)
        except AccountError as error:
            raise ValueError(f"error resolving system account: {error}") from None

    def prepare(self, settings: Settings) -> Callable[[], None]:
        """Prepare for new settings. Returns: a function that applies them. Raises: ValueError."""
        refresh = self.operator.prepare(settings.operator) if self.operator is not None else None

        def apply() -> None:
            if refresh is not None:
                refresh()
            if self._callouts is not None:
                self._callouts.timeout_ns = settings.auth.timeout_ns

        return apply

    def close(self) -> None:
        """Cancel running lookups and requests."""
        if self.operator is not None:
            self.operator.close()
        if self._claims_requests is not None:
            self._claims_requests.close()

    # Authenticators

    def by_tokens(self, settings: Settings, custom: Sequence[Authenticator]) -> AuthenticatorChain | None:
        """Return the authenticators of operator mode; None if there is no operator."""
        if self.operator is None:
            return None
        from broker.server.auth.callout import OperatorCalloutAuthenticator
        from broker.server.auth.tokens import JwtAuthenticator

        assert self._callouts is not None, "an operator's accounts may ask services"
        pinned = settings.operator.pinned_accounts
        if pinned and self.accounts.system is not None:
            pinned = (*pinned, self.accounts.system.name)
        tokens = JwtAuthenticator(self.operator, self.clock, settings.operator.default_sentinel, pinned)
        return AuthenticatorChain([*custom, OperatorCalloutAuthenticator(tokens, self.operator, self._callouts)])

    def with_service(self, chain: AuthenticatorChain | None, auth: AuthSettings) -> AuthenticatorChain | None:
        """Return ``chain``, behind the authorization service if one is configured."""
        if chain is None or auth.callout is None:
            return chain
        from broker.server.auth.callout import CalloutAuthenticator

        assert self._callouts is not None, "whether there is a service cannot change while the broker runs"
        return AuthenticatorChain([CalloutAuthenticator(chain, auth.callout, self._callouts)])

    def _make_callouts(self, settings: Settings) -> Callouts | None:
        """Return the sender of callouts; None if no service can be asked."""
        if settings.auth.callout is None and not settings.operator.enabled:
            return None
        # The import takes 50 ms and is rarely needed.
        from broker.base.nkeys import SERVER, KeyPair
        from broker.server.auth.callout import Callouts

        return Callouts(self, KeyPair(SERVER, secrets.token_bytes(32)), settings.auth.timeout_ns)

    def callout_identity(self) -> dict[str, Any]:
        """Return the server as requests to services show it."""
        host = self._host
        return {"name": host.server_name, "host": host.settings.clients.host or "0.0.0.0", "id": host.server_id,
                "version": NATS_SERVER_VERSION, "tags": list(host.settings.server_tags)}

    # Accounts that come with tokens

    def put_account(self, settings: AccountSettings) -> Awaitable[object] | None:
        """Add the account, or change it. Returns: an awaitable that completes when it can be used; None: at once."""
        account = self.accounts.put(settings)
        return self.on_account(account) if self.on_account is not None else None

    def recheck_clients(self, name: str) -> None:
        """Apply an account's changed claims to its clients: close those that the claims no longer admit."""
        from broker.server.auth.tokens import decide_again

        known = self.operator.known(name) if self.operator is not None else None
        if known is None:
            return
        clients = self._clients_of(name)
        most = known.claims.limits.conn
        for client in clients[most:] if most >= 0 else ():
            client.exceed_account()
        for client in clients:
            if not client.closed:
                client.apply_decision(decide_again(client.login, known))

    def check_clients(self, name: str) -> None:
        """Check the logins of all clients of an account again, with the credentials that they sent."""
        for client in self._clients_of(name):
            client.users_changed(())

    def expire_clients(self, name: str) -> None:
        """Disconnect all clients of an account, which has expired."""
        for client in self._clients_of(name):
            log.debug("%s - Account Authentication Expired", client.label)
            client.fail("Account Authentication Expired", "Authentication Expired")

    def _clients_of(self, name: str) -> list[Client]:
        """Return the clients that logged in to an account, the oldest first."""
        return [client for client in self._host.clients.values() if client.account.name == name and client.connected]
