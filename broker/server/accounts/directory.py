"""All accounts by name. ``$G``, for users who name none, and ``$SYS`` exist always.

Source: nats-server, server/server.go (configureAccounts, globalAccountOnly).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from broker.config.access import DEFAULT_ACCOUNT, SYSTEM_ACCOUNT, AccountSettings, User
from broker.server.accounts.account import Account, Traffic
from broker.server.routing.router import Router

__all__ = ["Accounts"]


class Accounts:
    """The directory. ``make_router(name)`` makes the subject space of an account."""

    def __init__(self, settings: Iterable[AccountSettings], make_router: Callable[[str], Router]) -> None:
        self._make_router = make_router
        self._accounts: dict[str, Account] = {}
        configured = {one.name: one for one in settings}
        # Streams are the default account's until an account is configured that may have them, as on nats-server.
        alone = not any(name not in (DEFAULT_ACCOUNT, SYSTEM_ACCOUNT) for name in configured)
        self.default = self.add(configured.pop(DEFAULT_ACCOUNT, AccountSettings(DEFAULT_ACCOUNT, jetstream=alone)))
        self.system = self.add(configured.pop(SYSTEM_ACCOUNT, AccountSettings(SYSTEM_ACCOUNT)))
        for one in configured.values():
            self.add(one)

    def __iter__(self) -> Iterator[Account]:
        return iter(self._accounts.values())

    def __len__(self) -> int:
        return len(self._accounts)

    def add(self, settings: AccountSettings) -> Account:
        """A new account."""
        account = self._accounts[settings.name] = Account(settings, self._make_router(settings.name))
        return account

    def get(self, name: str) -> Account | None:
        return self._accounts.get(name)

    def user(self, user: User) -> User:
        """``user`` with the permissions that apply. Raises: ValueError when its account does not exist."""
        account = self.get(user.account)
        if account is None:
            raise ValueError(f"user {user.user!r} is in the account {user.account!r}, which does not exist")
        return user if user.permissions is not None else replace(user, permissions=account.default_permissions)

    def traffic(self) -> Traffic:
        """Of all accounts together."""
        total = Traffic()
        for account in self:
            total = total.plus(account.traffic())
        return total
