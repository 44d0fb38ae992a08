"""The accounts that workers serve: those of the configuration, and those whose tokens the operator has at hand.

A worker is not in operator mode: nats-server checks users and tokens. All that the worker needs of an account is its
name and its limits of JetStream.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

from broker.access.accounts import AccountSettings
from broker.base.nkeys import ACCOUNT, is_public_key
from broker.config.settings import Settings
from broker.server.accounts.directory import wanted_accounts

__all__ = ["linked_names", "served_accounts"]

log = logging.getLogger(__name__)


def served_accounts(settings: Settings) -> tuple[AccountSettings, ...]:
    """Return the accounts without their users, and without what they share, which nats-server does."""
    accounts = (_from_tokens(settings) if settings.operator.enabled
                else wanted_accounts(settings.accounts).values())
    return tuple(AccountSettings(account.name, jetstream=account.jetstream, name_tag=account.name_tag)
                 for account in accounts)


def linked_names(settings: Settings) -> tuple[str, ...]:
    """Return the names of the accounts in which JetStream is enabled, and the system account at the end."""
    accounts = settings.accounts
    has_system = not accounts.no_system and (not settings.operator.enabled or is_public_key(accounts.system, ACCOUNT))
    names = [account.name for account in served_accounts(settings)
             if account.jetstream is not None and account.name != accounts.system]
    return (*(names if settings.jetstream.enabled else []), *([accounts.system] if has_system else []))


def _from_tokens(settings: Settings) -> Iterator[AccountSettings]:
    # Imported only for operators.
    from broker.jwt.access import account_settings
    from broker.jwt.claims import account_claims

    for name, token in sorted(_tokens(settings).items()):
        try:
            yield account_settings(account_claims(token))
        except ValueError as error:
            log.warning("Account %s has a token that cannot be used: %s", name, error)


def _tokens(settings: Settings) -> dict[str, str]:
    """Return the tokens that are preloaded or in the resolver's directory, by account."""
    found = dict(settings.operator.preload)
    resolver = settings.operator.resolver
    if resolver is not None and resolver.directory:
        for path in Path(resolver.directory).rglob("*.jwt"):
            try:
                found[path.stem] = path.read_text("ascii").strip()
            except (OSError, UnicodeError) as error:
                log.warning("The token in %s cannot be read: %s", path, error)
    return found
