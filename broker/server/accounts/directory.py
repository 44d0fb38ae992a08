"""All accounts by name. ``$G``, for users without an account, always exists; a system account exists unless disabled.

Source: nats-server, server/server.go (configureAccounts, globalAccountOnly).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from broker.access.accounts import DEFAULT_ACCOUNT, NO_LIMITS, AccountSettings, NkeyUser, User
from broker.access.sharing import Destination, SubjectMapping
from broker.config.settings import AccountsSettings
from broker.server.accounts.account import Account, Traffic
from broker.server.accounts.tracing import OuterTracing
from broker.server.routing.router import Router
from broker.server.sharing.exchange import Exchange

__all__ = ["Accounts", "domain_mappings", "user_of", "wanted_accounts"]

AnyUser = TypeVar("AnyUser", User, NkeyUser)


class Accounts:
    """The directory.

    ``make_router(name)`` makes the subject space of an account; ``exchange`` connects these; ``mappings``: those of all
    accounts, which a mapping of an account's own replaces.
    """

    def __init__(self, settings: AccountsSettings, make_router: Callable[[str], Router], exchange: Exchange,
                 rng: random.Random, mappings: Sequence[SubjectMapping] = (), *, operator: bool = False) -> None:
        self._make_router = make_router
        self._rng = rng
        self._mappings = tuple(mappings)
        self._default_domains = dict(settings.default_domains)
        self.exchange = exchange
        self._accounts: dict[str, Account] = {}
        self._deleted: set[str] = set()
        self._on_added: Callable[[Account], None] | None = None
        self._system_name = "" if settings.no_system else settings.system
        wanted = wanted_accounts(settings, operator=operator)
        self.default = self._add(wanted.pop(DEFAULT_ACCOUNT))
        self.system = self._add(wanted.pop(settings.system)) if not settings.no_system else None
        """The system account; None if there is none."""

        for one in wanted.values():
            self._add(one)
        self._share(*self)

    def __iter__(self) -> Iterator[Account]:
        return iter(self._accounts.values())

    def __len__(self) -> int:
        return len(self._accounts)

    def put(self, settings: AccountSettings) -> Account:
        """Add or change an account. Its exports and imports change at once; its connections change when notified."""
        account = self._accounts.get(settings.name)
        if account is None:
            account = self._add(settings)
        else:
            account.settings = settings
        self._share(account)
        return account

    def _add(self, settings: AccountSettings) -> Account:
        account = self._accounts[settings.name] = Account(
            settings, self._make_router(settings.name), is_system=settings.name == self._system_name)
        if self._on_added is not None:
            self._on_added(account)
        return account

    def watch(self, added: Callable[[Account], None]) -> None:
        """Call ``added`` with every account, and with each account that is added from now on."""
        self._on_added = added
        for account in list(self):
            added(account)

    def get(self, name: str) -> Account | None:
        return self._accounts.get(name)

    def change(self, wanted: Mapping[str, AccountSettings]) -> None:
        """Change to the accounts of ``wanted_accounts``; accounts that are not wanted stay until ``drop_deleted``."""
        self._deleted = self._accounts.keys() - wanted.keys()
        for name, settings in wanted.items():
            account = self._accounts.get(name)
            if account is None:
                self._add(settings)
            else:
                account.settings = settings
        self._share(*self)

    def _share(self, *accounts: Account) -> None:
        """Connect the routers of these accounts with others, according to their settings."""
        for account in accounts:
            outer = account.settings.outer_trace
            account.router.tracing = OuterTracing(outer, self._rng) if outer is not None else None
        self.exchange.put(*((self._shared(account), account.router) for account in accounts))

    def _shared(self, account: Account) -> AccountSettings:
        """Return the account's settings with the mappings of all accounts.

        An account without JetStream may have a default domain, which receives its requests that name no domain.
        """
        settings = account.settings
        if account.is_system:
            return settings
        more = [*self._mappings]
        if settings.jetstream is None and (default := self._default_domains.get(account.name)):
            more += [SubjectMapping(to.subject, (Destination(mapping.source),))
                     for mapping in domain_mappings(default) for to in mapping.destinations]
        own = {mapping.source for mapping in settings.mappings}
        added = (mapping for mapping in more if mapping.source not in own)
        return settings.replace(mappings=(*settings.mappings, *added))

    def drop_deleted(self) -> None:
        """Delete the accounts that are not wanted, after their connections were closed."""
        for name in self._deleted:
            self.exchange.remove(name)
            del self._accounts[name]
        self._deleted = set()

    def user(self, user: AnyUser) -> AnyUser:
        """Return ``user`` with the permissions that apply. Raises: ValueError if its account does not exist."""
        account = self.get(user.account)
        return user_of(user, account.settings if account is not None else None)

    def traffic(self) -> Traffic:
        """Return the traffic of all accounts together."""
        total = Traffic()
        for account in self:
            total = total.plus(account.traffic())
        return total

    def leaf_traffic(self) -> Traffic:
        """Return the part of the traffic that is from leaf connections and to them."""
        total = Traffic()
        for account in self:
            total = total.plus(account.leaf_traffic())
        return total


def domain_mappings(domain: str, *, api: bool = True) -> list[SubjectMapping]:
    """Return mappings from JetStream's subjects under its domain to the plain subjects.

    Args: ``api``: whether requests are mapped as well. They are not if other brokers serve the domain, too: then each
        broker subscribes to the requests that it answers.

    Source: nats-server, server/jetstream_api.go generateJSMappingTable.
    """
    names = ("STREAM.>", "CONSUMER.>", "DIRECT.>", "META.>", "SERVER.>", "ACCOUNT.>", "INFO") if api else ()
    subjects = [*((name, f"$JS.API.{name}") for name in names), ("$KV.>", "$KV.>"), ("$OBJ.>", "$OBJ.>")]
    return [SubjectMapping(f"$JS.{domain}.API.{name}", (Destination(subject),)) for name, subject in subjects]


def user_of(user: AnyUser, account: AccountSettings | None) -> AnyUser:
    """Return ``user`` with the permissions that apply. Raises: ValueError if ``account`` is None: it does not exist."""
    if account is None:
        name = user.user if isinstance(user, User) else user.nkey
        raise ValueError(f"user {name!r} is in the account {user.account!r}, which does not exist")
    return user if user.permissions is not None else user.replace(permissions=account.default_permissions)


def wanted_accounts(settings: AccountsSettings, *, operator: bool = False) -> dict[str, AccountSettings]:
    """Return every account that must exist, by name. ``operator``: further accounts come with tokens, and have all
    users."""
    wanted = {one.name: one for one in settings.configured}
    # The default account has JetStream if no other account is configured, as on nats-server.
    alone = not operator and not wanted.keys() - {DEFAULT_ACCOUNT, settings.system}
    default = wanted.get(DEFAULT_ACCOUNT, AccountSettings(DEFAULT_ACCOUNT))
    if alone and default.jetstream is None:
        default = default.replace(jetstream=NO_LIMITS)
    wanted[DEFAULT_ACCOUNT] = default
    if not settings.no_system:
        wanted.setdefault(settings.system, AccountSettings(settings.system))
    return wanted
