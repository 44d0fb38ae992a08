"""The configured ways to log in, in the order in which they are tried.

Source: nats-server, server/auth.go (configureAuthorization, isClientAuthorized, checkAuthforWarnings).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from broker.access.accounts import ANONYMOUS, User
from broker.config.settings import AuthSettings
from broker.server.auth.login import Authenticator, Credentials, Decision, Refusal
from broker.server.auth.nkeys import NkeyAuthenticator
from broker.server.auth.passwords import PasswordChecks, has_hash_prefix, is_broken_hash
from broker.server.auth.proxies import ProxyRequired
from broker.server.auth.users import TokenAuthenticator, UserAuthenticator

__all__ = ["AuthenticatorChain", "authenticator", "warnings"]


class AuthenticatorChain:
    """The first authenticator that knows the kind of credentials decides; if none does, the login is refused."""

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
                  custom: Sequence[Authenticator] = (), *, by_certificate: bool = False,
                  certificate_only: Collection[str] = ()) -> AuthenticatorChain | None:
    """Return the configured authenticators, those of ``custom`` first; None if anyone may connect.

    Args:
        ``checks`` runs comparisons that are too slow for the loop;
        ``by_certificate``: certificates identify the users;
        ``certificate_only``: users who can log in only by certificate, on a port that asks for one.
    """
    chain = list(custom)
    if settings.proxy_required and (settings.user or settings.token) and not (settings.users or settings.nkeys):
        chain.append(ProxyRequired())
    if settings.nkeys:
        chain.append(NkeyAuthenticator(settings.nkeys, settings.no_auth_user))
    users = _users(settings)
    if users:
        by_name = UserAuthenticator(users, checks, settings.no_auth_user, () if by_certificate else certificate_only)
        if by_certificate and settings.users:
            # The import takes 30 ms and is rarely needed.
            from broker.server.auth.tls_map import CertificateAuthenticator

            chain.append(CertificateAuthenticator(users, by_name))
        else:
            chain.append(by_name)
    if settings.token:
        chain.append(TokenAuthenticator(settings.token, checks))
    return AuthenticatorChain(chain) if chain else None


def warnings(settings: AuthSettings, *, by_certificate: bool = False) -> list[str]:
    """Return warnings for the operator about the configured passwords; none shows a password."""
    users = _users(settings)
    found = []
    named = [user for user in users if user.user != ANONYMOUS and (user.password or not by_certificate)]
    if any(not has_hash_prefix(user.password) for user in named):
        found.append("Plaintext passwords detected, use bcrypt")
    broken = [f"the password of user {user.user!r}" for user in users if is_broken_hash(user.password)]
    if is_broken_hash(settings.token):
        broken.append("the token")
    return found + [f"Nobody can log in with {what}: it begins like a bcrypt hash and is none" for what in broken]


def _users(settings: AuthSettings) -> list[User]:
    return [*settings.users, User(settings.user, settings.password)] if settings.user else list(settings.users)
