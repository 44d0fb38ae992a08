"""Who may log in, by the fields of CONNECT: user and password, or a token.

A configured password or token may be a bcrypt hash. Comparing with one takes 50 ms at cost 10, and doubles with each
step, which is too long for the event loop: the answer is then a ``BcryptCheck``, which ``PasswordChecks`` runs in a
thread. Everything else is decided at once, in a time that does not depend on how much of a secret was right.

Source: nats-server, server/auth.go (processClientOrLeafAuthentication, isBcrypt, comparePasswords, checkAuthforWarnings).
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from broker.config.settings import AuthSettings

__all__ = ["Authenticate", "BcryptCheck", "Credentials", "Decide", "authenticator", "warnings"]

_BCRYPT: Final = re.compile(r"\$2[abxy]\$[0-9]{2}\$")
_HASH: Final = re.compile(r"\$2[abxy]\$(?:0[4-9]|[12][0-9]|3[01])\$[./A-Za-z0-9]{53}")
_HASH_CHARS: Final = 60
_PASSWORD_BYTES_MAX: Final = 72
"""bcrypt uses no more of a password. Go ignores the rest when it compares; the Python library refuses it."""


class BcryptCheck(NamedTuple):
    """A comparison that is too slow for the loop."""

    hash: str
    given: str
    known: bool = True
    """False: there is no such user; the comparison is made so that its duration does not reveal that."""

    def run(self) -> bool:
        """Whether the password is right; slow, but releases the GIL."""
        import bcrypt

        given = self.given.encode()[:_PASSWORD_BYTES_MAX]
        try:
            return bcrypt.checkpw(given, self.hash[:_HASH_CHARS].encode()) and self.known
        except ValueError:  # it begins like a hash and is none: nothing matches it
            return False


Decide = Callable[[Mapping[str, Any]], bool | BcryptCheck]
"""From the fields of CONNECT to a verdict, or to the check that gives it."""


Authenticate = Callable[[Mapping[str, Any]], bool]
"""Given the fields of CONNECT, whether this client may come in."""


class Credentials:
    """The configured users or token; called with the fields of CONNECT."""

    def __init__(self, settings: AuthSettings) -> None:
        self._users = _users(settings)
        self._token = settings.token
        self._fallback = settings.no_auth_user if settings.no_auth_user in self._users else ""
        # An unknown user takes as long as the most expensive known one.
        hashes = [password for password in self._users.values() if _HASH.match(password)]
        self._decoy = max(hashes, key=lambda password: password[4:6], default="")

    def __call__(self, connect: Mapping[str, Any]) -> bool | BcryptCheck:
        user = connect.get("user") or ""
        token = connect.get("auth_token") or ""
        if user:
            given = connect.get("pass") or ""
            wanted = self._users.get(user)
            if wanted is not None:
                return _compare(wanted, given)
            return BcryptCheck(self._decoy, given, known=False) if self._decoy else False
        if token:
            return bool(self._token) and _compare(self._token, token)
        return bool(self._fallback)


def authenticator(settings: AuthSettings) -> Decide | None:
    """The check that ``settings`` ask for, or None when no credentials are needed."""
    return Credentials(settings) if settings.users or settings.user or settings.token else None


def warnings(settings: AuthSettings) -> list[str]:
    """What an operator should know about the configured passwords, none of which is shown."""
    users = _users(settings)
    found = []
    if any(not _BCRYPT.match(password) for password in users.values()):
        found.append("Plaintext passwords detected, use bcrypt")
    broken = [f"the password of user {name!r}" for name, password in users.items() if _broken(password)]
    if _broken(settings.token):
        broken.append("the token")
    return found + [f"Nobody can log in with {what}: it begins like a bcrypt hash and is none" for what in broken]


def _users(settings: AuthSettings) -> dict[str, str]:
    users = {user.user: user.password for user in settings.users}
    if settings.user:
        users[settings.user] = settings.password
    return users


def _broken(secret: str) -> bool:
    return bool(_BCRYPT.match(secret)) and not _HASH.match(secret)


def _compare(wanted: str, given: str) -> bool | BcryptCheck:
    if _BCRYPT.match(wanted):
        return BcryptCheck(wanted, given)
    return hmac.compare_digest(wanted.encode("utf-8", "surrogatepass"), given.encode())
