"""Login with a user and password, or with the server's token.

Source: nats-server, server/auth.go (processClientOrLeafAuthentication).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable

from broker.access.accounts import Permissions, User
from broker.server.auth.login import Credentials, Decision, Login, Refusal
from broker.server.auth.passwords import BcryptCheck, PasswordCheck, PasswordChecks, compare, hash_cost
from broker.server.auth.permissions import AccessRules
from broker.server.auth.proxies import REQUIRED

__all__ = ["TokenAuthenticator", "UserAuthenticator"]

log = logging.getLogger(__name__)


class UserAuthenticator:
    """Checks the configured users by name. A client without credentials is ``no_auth_user``, if that is configured.

    ``certificate_only``: users without a password. Another port identifies them by certificate; here they are refused.
    """

    wants_nonce = False

    def __init__(self, users: Iterable[User], checks: PasswordChecks, no_auth_user: str = "",
                 certificate_only: Collection[str] = ()) -> None:
        self._certificate_only = frozenset(certificate_only) - {no_auth_user}
        self._users = {user.user: user for user in users}
        self._checks = checks
        self._rules: dict[Permissions, AccessRules] = {}
        self._logins = {user.user: self._login(user) for user in self._users.values()}
        presumed = self._logins.get(no_auth_user)
        self._no_auth_login = (presumed.replace(presumed_password=self._users[no_auth_user].password)
                               if presumed is not None else None)
        # The check of an unknown user takes as long as that of the most expensive known one.
        hashes = [user.password for user in self._users.values() if hash_cost(user.password)]
        self._decoy = max(hashes, key=hash_cost, default="")

    def _login(self, user: User) -> Login:
        rules = None
        if user.permissions is not None:
            rules = self._rules.setdefault(user.permissions, AccessRules(user.permissions))
        return Login(user.account, user.user, rules=rules, expires_at_ns=user.expires_at_ns,
                     proxy_required=user.proxy_required, connection_types=user.connection_types)

    def decide(self, credentials: Credentials) -> Decision | None:
        presumed = credentials.presumed
        if presumed is not None and presumed.user in self._users:
            if self._users[presumed.user].password != presumed.presumed_password:
                return Refusal()
            return self._logins[presumed.user].replace(presumed_password=presumed.presumed_password)
        name = credentials.text("user")
        if not name:
            return self._no_auth_login if credentials.anonymous else None
        if name in self._certificate_only:
            log.debug("User %r requires a client certificate", name)
            return Refusal()
        login = self._logins.get(name)
        if login is not None and login.proxy_required and not credentials.connection.proxy_key:
            return REQUIRED
        return self.decide_for(name, credentials)

    def decide_for(self, name: str, credentials: Credentials) -> Decision:
        """Return the decision for the user ``name``: the given password must be the user's."""
        given, address = credentials.text("pass"), credentials.connection.ip
        user = self._users.get(name)
        if user is not None:
            return _decided(compare(user.password, given), self._logins[name], self._checks, address)
        if self._decoy:
            return PasswordCheck(self._checks, BcryptCheck(self._decoy, given, known=False), Login(), address)
        return Refusal()


class TokenAuthenticator:
    """Checks the server's one token, which admits anonymous users to the default account."""

    wants_nonce = False

    def __init__(self, token: str, checks: PasswordChecks) -> None:
        self._token = token
        self._checks = checks

    def decide(self, credentials: Credentials) -> Decision | None:
        given = credentials.text("auth_token")
        if not given:
            return None
        return _decided(compare(self._token, given), Login(), self._checks, credentials.connection.ip)


def _decided(right: bool | BcryptCheck, login: Login, checks: PasswordChecks, address: str) -> Decision:
    if isinstance(right, BcryptCheck):
        return PasswordCheck(checks, right, login, address)
    return login if right else Refusal()
