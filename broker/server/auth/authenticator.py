"""The ways to log in that are configured, in the order in which they are asked.

Source: nats-server, server/auth.go (configureAuthorization, isClientAuthorized, checkAuthforWarnings).
"""

from __future__ import annotations

from collections.abc import Sequence

from broker.config.access import ANONYMOUS, User
from broker.config.settings import AuthSettings
from broker.server.auth.login import Authenticator, Credentials, Decision, Refusal
from broker.server.auth.passwords import PasswordChecks, is_broken_hash, looks_hashed
from broker.server.auth.users import TokenAuthenticator, UserAuthenticator

__all__ = ["AuthenticatorChain", "authenticator", "warnings"]


class AuthenticatorChain:
    """The first authenticator that knows the kind of credentials decides; where none does, nobody is let in."""

    def __init__(self, authenticators: Sequence[Authenticator]) -> None:
        self._authenticators = authenticators
        self.wants_nonce = any(one.wants_nonce for one in authenticators)

    def decide(self, credentials: Credentials) -> Decision:
        for one in self._authenticators:
            decision = one.decide(credentials)
            if decision is not None:
                return decision
        return Refusal()


def authenticator(settings: AuthSettings, checks: PasswordChecks,
                  custom: Sequence[Authenticator] = ()) -> AuthenticatorChain | None:
    """The configured authenticators, ``custom`` ones first; None: everybody may connect.

    ``checks`` runs what is too slow for the loop.
    """
    chain = list(custom)
    users = _users(settings)
    if users:
        chain.append(UserAuthenticator(users, checks, settings.no_auth_user))
    if settings.token:
        chain.append(TokenAuthenticator(settings.token, checks))
    return AuthenticatorChain(chain) if chain else None


def warnings(settings: AuthSettings) -> list[str]:
    """What an operator should know about the configured passwords, none of which is shown."""
    users = _users(settings)
    found = []
    if any(not looks_hashed(user.password) for user in users if user.user != ANONYMOUS):
        found.append("Plaintext passwords detected, use bcrypt")
    broken = [f"the password of user {user.user!r}" for user in users if is_broken_hash(user.password)]
    if is_broken_hash(settings.token):
        broken.append("the token")
    return found + [f"Nobody can log in with {what}: it begins like a bcrypt hash and is none" for what in broken]


def _users(settings: AuthSettings) -> list[User]:
    return [*settings.users, User(settings.user, settings.password)] if settings.user else list(settings.users)
