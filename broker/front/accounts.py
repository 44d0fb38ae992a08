"""The accounts that workers serve: those of the configuration, and those whose tokens the operator has at hand.

A worker is not in operator mode: nats-server checks users and tokens. All that the worker needs of an account is its
name and its limits of JetStream.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from broker.access.accounts import NO_LIMIT, AccountSettings
from broker.base.nkeys import ACCOUNT, is_public_key
from broker.config.settings import Settings
from broker.server.accounts.directory import wanted_accounts

__all__ = ["limit_notices", "linked_names", "served_accounts", "widened_payload"]

log = logging.getLogger(__name__)

_ANSWER_BYTES: Final = 1 << 16
"""Bytes for all of an answer but the message in it."""

_PAYLOAD_MAX: Final = 64 << 20


def served_accounts(settings: Settings) -> tuple[AccountSettings, ...]:
    """Return the accounts without their users, and without what they share, which nats-server does."""
    accounts = (_from_tokens(settings) if settings.operator.enabled
                else wanted_accounts(settings.accounts).values())
    return tuple(AccountSettings(account.name, jetstream=account.jetstream, name_tag=account.name_tag,
                                 max_payload=account.max_payload if settings.operator.enabled
                                 else widened_payload(account.max_payload))
                 for account in accounts)


def widened_payload(most: int) -> int:
    """Return the limit of messages between nats-server and the worker, if it is ``most`` for clients.

    Answers of JetStream have a message in Base64, or with more headers, and nats-server checks them, too.
    """
    return most if most < 0 else min(most + most // 3 + _ANSWER_BYTES, max(most, _PAYLOAD_MAX))


def limit_notices(settings: Settings) -> list[str]:
    """Return what limits of accounts with JetStream do to their connections to the worker."""
    if not settings.jetstream.enabled:
        return []
    notices = []
    server_most = settings.clients.max_subscriptions
    if server_most:
        notices.append(f"max_subscriptions is {server_most} for the worker, too, which has one for each subject of a "
                       "stream and for each consumer: streams beyond it get no messages")
    accounts = (_from_tokens(settings) if settings.operator.enabled
                else wanted_accounts(settings.accounts).values())
    for account in accounts:
        if account.jetstream is None or account.name == settings.accounts.system:
            continue
        if account.max_subscriptions != NO_LIMIT:
            notices.append(f"Account {account.name}: its limit of {account.max_subscriptions} subscriptions is for the "
                           "worker, too, which has one for each subject of a stream and for each consumer: streams "
                           "beyond it get no messages")
        if not settings.operator.enabled:
            continue
        if 0 in (account.max_leafnodes, account.max_connections):
            notices.append(f"Account {account.name}: JetStream needs a leaf connection to the worker, and the "
                           "account's token permits none: raise its limits of connections and leaf nodes")
        if account.max_payload != NO_LIMIT:
            notices.append(f"Account {account.name}: its limit of {account.max_payload} bytes for a message is for "
                           "JetStream's answers, too: larger ones are lost")
    return notices


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
