"""The limits of one connection: the lowest of the server's, its account's and its user's."""

from __future__ import annotations

from typing import NamedTuple

from broker.access.accounts import NO_LIMIT
from broker.config.settings import ClientSettings
from broker.server.accounts.account import Account
from broker.server.auth.login import Login

__all__ = ["Limits"]


class Limits(NamedTuple):
    """Limits: ``max_payload`` in bytes, below 0: not even an empty message; ``max_subscriptions``, -1: any number."""

    max_payload: int
    max_subscriptions: int

    @classmethod
    def of(cls, server: ClientSettings, account: Account, user: Login) -> Limits:
        """Return the lowest limits. -1 is no limit, and so is the server's 0 for subscriptions.

        A token can have other negative limits, which allow nothing.

        Source: nats-server, server/client.go (applyAccountLimits, minLimit).
        """
        own = account.settings
        payload = (server.max_payload, own.max_payload, user.max_payload)
        subscriptions = (server.max_subscriptions or NO_LIMIT, own.max_subscriptions, user.max_subscriptions)
        return cls(min(bound for bound in payload if bound != NO_LIMIT),
                   min((max(bound, 0) for bound in subscriptions if bound != NO_LIMIT), default=NO_LIMIT))
