"""Login with a user's token (JWT), which an account signed; an operator signed the account's token. The checks:

    1. The token is a user's and is valid now.
    2. Its account is known, or can be fetched, which may take seconds.
    3. The account's key or one of its signing keys signed the token; a scoped key sets its users' permissions.
    4. The client signed the nonce, unless the token is a bearer token.
    5. The token is not revoked, and is used from a permitted network at a permitted time.

Source: nats-server, server/auth.go (processClientOrLeafAuthentication), server/accounts.go (buildInternalNkeyUser).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Final, Protocol
from weakref import WeakValueDictionary

from broker.access.accounts import CONNECTION_TYPES, Permissions
from broker.base.clock import Clock
from broker.jwt.access import may_come_from, permissions_of, seconds_left
from broker.jwt.authorization import SUBJECT
from broker.jwt.claims import AccountClaims, UserClaims, UserPermissions, user_claims
from broker.jwt.scope import TemplateError, filled_in
from broker.jwt.token import TokenError
from broker.jwt.validation import blocking, user_issues
from broker.server.auth.login import Credentials, Decision, Login, Refusal, SlowCheck, Waiter
from broker.server.auth.nkeys import signature_problem
from broker.server.auth.permissions import AccessRules

__all__ = ["ClaimAccount", "ClaimAccounts", "JwtAuthenticator", "decide_again", "expiry_of", "login_of", "types_of",
           "without_callouts"]

log = logging.getLogger(__name__)

_SECOND: Final = 1_000_000_000
_HALF: Final = 1 << 63
_NO_PERMISSIONS: Final = UserPermissions()
_RULES: Final[WeakValueDictionary[Permissions, AccessRules]] = WeakValueDictionary()
"""Rules by permissions: users with equal permissions share their caches of subjects."""


class ClaimAccount(Protocol):
    """An account and its claims. A new token of the account changes all attributes."""

    @property
    def claims(self) -> AccountClaims: ...

    @property
    def expired(self) -> bool: ...

    @property
    def trusted(self) -> bool:
        """Flag: a trusted operator signed its token."""

    def signer(self, key: str) -> tuple[bool, UserPermissions | None]:
        """Return whether ``key`` signs for the account, and its users' permissions (None: those of their tokens)."""


class ClaimAccounts(Protocol):
    """The accounts of the trusted operators."""

    def find(self, name: str) -> ClaimAccount | None:
        """Return the account if it is known and its claims need not be fetched again."""

    def fetch(self, name: str, then: Callable[[ClaimAccount | None], None]) -> Callable[[], None]:
        """Call ``then`` with the account, or None, perhaps seconds later. Returns: a function that cancels this."""


class JwtAuthenticator:
    """Checks users' tokens.

    Args:
        ``default_sentinel``: the token of clients without one;
        ``pinned``: the only accounts whose users may log in; empty: all.
    """

    wants_nonce = True

    def __init__(self, accounts: ClaimAccounts, clock: Clock, default_sentinel: str = "",
                 pinned: Collection[str] = ()) -> None:
        self._accounts = accounts
        self._clock = clock
        self._default_sentinel = default_sentinel
        self._pinned = frozenset(pinned)

    def decide(self, credentials: Credentials) -> Decision | None:
        try:
            claims = self._claims(credentials)
        except TokenError as error:
            return Refusal(f"User JWT not valid: {error}")
        if claims is None:
            return Refusal("Authentication requires a user JWT")
        issues = user_issues(claims, self._clock.now_ns() // _SECOND)
        if blocking(issues):
            return Refusal(f"User JWT no longer valid: {'; '.join(issue.why for issue in issues)}")
        if self._pinned and claims.account not in self._pinned:
            return Refusal(f"Account {claims.account} not listed as operator pinned account")
        account = self._accounts.find(claims.account)
        if account is None:
            return _Lookup(self, self._accounts, claims, credentials)
        return self.decide_in(account, claims, credentials)

    def _claims(self, credentials: Credentials) -> UserClaims | None:
        """Return the claims of the client's token, or of the sentinel; None if there is neither. Raises: TokenError."""
        credentials.token = credentials.text("jwt")
        try:
            return user_claims(credentials.token)
        except TokenError:
            credentials.token = self._default_sentinel
            return user_claims(self._default_sentinel) if self._default_sentinel else None

    def decide_in(self, account: ClaimAccount | None, claims: UserClaims, credentials: Credentials) -> Login | Refusal:
        """Return the decision for a user of ``account``; None: the account was not found."""
        connection = credentials.connection
        if account is None:
            return Refusal("Account JWT lookup error")
        if not account.trusted:
            return Refusal("Account JWT not signed by trusted operator")
        found = login_of(account, claims)
        if isinstance(found, Refusal):
            return found
        limits = found.claims.limits if found.claims is not None else _NO_PERMISSIONS
        if account.expired:
            return Refusal("Account JWT has expired")
        if limits.bearer and account.claims.limits.disallow_bearer:
            return Refusal("Account does not allow bearer tokens")
        if found.connection_types and connection.connection_type not in found.connection_types:
            return Refusal("Connection type not allowed")
        if not limits.bearer and (problem := signature_problem(credentials, claims.subject)):
            return Refusal(problem)
        if account.claims.revoked(claims.subject, claims.issued_at):
            return Refusal("User authentication revoked")
        if not may_come_from(limits, connection.ip):
            return Refusal(f"Bad src Ip {connection.ip}")
        left = seconds_left(limits, self._clock.now_ns())
        if left == 0:
            return Refusal("Outside connect times")
        return found.replace(expires_at_ns=expiry_of(claims, left, self._clock.now_ns()))


def decide_again(login: Login, account: ClaimAccount) -> Login | Refusal:
    """Return the decision for a logged-in client after its account's claims have changed."""
    claims = login.token
    if claims is None:
        return login
    revoked = account.claims.revoked(claims.subject, claims.issued_at)
    if login.claims is not None and login.claims.limits.bearer and account.claims.limits.disallow_bearer:
        return Refusal("Bearer User JWT not allowed")
    if revoked:
        return Refusal("User Authentication Revoked", "Credentials Revoked", "User Authentication Revoked")
    signs, scope = account.signer(claims.issuer)
    if not signs or scope != login.scope:
        # The client gets no error, as from nats-server.
        return Refusal("Signing key changed", text=None)
    found = login_of(account, claims)
    if isinstance(found, Refusal):
        return found
    if account.claims.authorization.enabled:
        found = without_callouts(found)
    if login.kind != "jwt":
        # An authorization service admitted this user: its token sets only its permissions.
        return login.replace(rules=found.rules)
    return found.replace(expires_at_ns=login.expires_at_ns)


def without_callouts(login: Login) -> Login:
    """Return ``login`` without permission to publish requests to the authorization service in its account."""
    permissions = login.rules.permissions if login.rules is not None else Permissions()
    publish = permissions.publish.replace(deny=(*permissions.publish.deny, SUBJECT))
    return login.replace(rules=AccessRules(permissions.replace(publish=publish)))


def login_of(account: ClaimAccount, token: UserClaims) -> Login | Refusal:
    """Return the login of the user of ``token``, if its issuer may sign for ``account``."""
    signs, scope = account.signer(token.issuer)
    if not signs:
        return Refusal("User JWT issuer is not known")
    claims = token
    if scope is not None:
        if token.limits != _NO_PERMISSIONS:
            return Refusal("User JWT is not valid: scoped users require no permissions or limits set")
        try:
            claims = replace(token, limits=filled_in(scope, token, account.claims))
        except TemplateError as error:
            return Refusal(f"User JWT generated invalid permissions: {error}")
    types = types_of(claims)
    if types is None:
        return Refusal("invalid connection types")
    try:
        permissions = permissions_of(claims.limits.permissions) or permissions_of(account.claims.default_permissions)
    except ValueError as error:
        return Refusal(f"User JWT generated invalid permissions: {error}")
    rules = None
    if permissions is not None:
        rules = _RULES.get(permissions)
        if rules is None:
            rules = _RULES[permissions] = AccessRules(permissions)
    return Login(account.claims.subject, token.subject, "jwt", rules, connection_types=types,
                 proxy_required=token.limits.proxy_required,
                 tags=token.tags, name_tag=token.name, max_subscriptions=claims.limits.subs,
                 max_payload=claims.limits.payload, token=token, claims=claims, scope=scope)


def types_of(claims: UserClaims) -> frozenset[str] | None:
    """Return the connection types that the user may use; empty: all. None: the token names only unknown types."""
    named = frozenset(name.upper() for name in claims.limits.connection_types)
    known = named & CONNECTION_TYPES
    return known if known or not named else None


def expiry_of(claims: UserClaims, left: float | None, now_ns: int) -> int | None:
    """Return the time at which the connection of a token's user must end; None: never.

    ``left``: seconds until the end of the permitted time of day; None: no such limit.
    """
    ends = [_end(claims.expires, now_ns)] if claims.expires else []
    if left is not None:
        ends.append(now_ns + int(left * _SECOND))
    return min(ends, default=None)


def _end(expires: int, now_ns: int) -> int:
    """Return the second ``expires`` in nanoseconds, with nats-server's overflow.

    nats-server keeps the remaining nanoseconds in an int64. More than 292 years wrap around modulo 2^64; a negative
    result then means a time in the past.
    """
    now = now_ns // _SECOND * _SECOND
    return now + ((expires * _SECOND - now + _HALF) % (2 * _HALF) - _HALF if expires * _SECOND > now else 0)


@dataclass(slots=True)
class _Lookup(SlowCheck):
    """A login that waits for its account's claims, within the client's authentication timeout."""

    authenticator: JwtAuthenticator
    accounts: ClaimAccounts
    claims: UserClaims
    credentials: Credentials
    cancel_lookup: Callable[[], None] | None = None

    def begin(self, waiter: Waiter) -> None:
        def found(account: ClaimAccount | None) -> None:
            waiter.check_done(self.authenticator.decide_in(account, self.claims, self.credentials))

        self.cancel_lookup = self.accounts.fetch(self.claims.account, found)

    def cancel(self, waiter: Waiter) -> None:
        if self.cancel_lookup is not None:
            self.cancel_lookup()
