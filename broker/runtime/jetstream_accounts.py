"""Passes the server's accounts and their limits on to JetStream: at the start, after a reload, and when accounts come.

Does not own the accounts (``server.accounts``) nor their streams (``jetstream``).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Iterable
from typing import TYPE_CHECKING

from broker.base.errors import StartError
from broker.jetstream.wire.errors import ApiError

if TYPE_CHECKING:
    from broker.jetstream.engine import JetStream
    from broker.server.accounts.account import Account
    from broker.server.server import Server

__all__ = ["JetStreamAccounts"]

log = logging.getLogger(__name__)


class JetStreamAccounts:
    """Keeps JetStream's accounts equal to the server's."""

    def __init__(self, jetstream: JetStream, server: Server) -> None:
        self._jetstream = jetstream
        self._server = server

    async def start(self) -> None:
        """Add the server's accounts to JetStream, now and whenever one comes. Raises: StartError."""
        js, server = self._jetstream, self._server
        for account in server.accounts:
            if self._answers_in(account):
                try:
                    await js.add_account(account.name, account.router, account.settings.jetstream)
                except ApiError as error:
                    raise StartError(f"Can't start JetStream: Error enabling jetstream on configured accounts: Error "
                                     f"enabling jetstream on account {account.name!r}: {error}") from None
        if (system := server.accounts.system) is not None:
            js.serve_system(system.name, system.router)
        server.delegation.on_account = self._account_changed

    def reloaded(self) -> None:
        """Follow a reload: add, change and remove JetStream's accounts like the server's."""
        js = self._jetstream
        accounts = {account.name: account for account in self._server.accounts if self._answers_in(account)}
        for name in js.apis.keys() - accounts.keys():
            js.remove_account(name)
        for name, account in accounts.items():
            try:
                self._add_or_change(account)
            except ApiError as error:
                log.error("Error enabling jetstream on account %r: %s", name, error)
        js.external.wake_all()

    async def resolve(self, owners: Iterable[str]) -> None:
        """Ask the resolver for the accounts in ``owners``, which have stored streams, unless a user has logged in to
        them."""
        operator = self._server.delegation.operator
        if operator is None:
            return
        from broker.server.operator.accounts import AccountError

        for name in sorted(set(owners) - self._jetstream.apis.keys()):
            try:
                await operator.get(name)
            except AccountError as error:
                log.warning("Account %s, which has streams, is not known: %s", name, error)

    def _account_changed(self, account: Account) -> Awaitable[None] | None:
        """Follow an account that was added or changed while the broker runs; its users wait for its streams."""
        if account.is_system:
            return None
        self._jetstream.external.wake_all()
        try:
            return self._add_or_change(account)
        except ApiError as error:
            log.error("Error configuring jetstream for account [%s]: %s", account.name, error)
        return None

    def _add_or_change(self, account: Account) -> Awaitable[None]:
        js = self._jetstream
        if account.name in js.apis:
            return js.change_limits(account.name, account.settings.jetstream)
        return js.add_account(account.name, account.router, account.settings.jetstream)

    def _answers_in(self, account: Account) -> bool:
        """Return whether JetStream answers requests in the account; one without JetStream may import another
        account's."""
        imports = self._server.accounts.exchange.imports_service(account.name, b"$JS.API.INFO")
        return not account.is_system and (account.settings.jetstream is not None or not imports)
