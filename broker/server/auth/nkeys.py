"""Login with an nkey: the client signs the nonce of INFO, and its public key names a configured user.

A signature is checked on the loop: it takes about 0.1 ms, less than handing it to a thread and back.

Source: nats-server, server/auth.go (processClientOrLeafAuthentication).
"""

from __future__ import annotations

from collections.abc import Iterable

from broker.access.accounts import NkeyUser
from broker.base.nkeys import decode_signature, verify
from broker.server.auth.login import Credentials, Decision, Login, Refusal
from broker.server.auth.permissions import AccessRules
from broker.server.auth.proxies import REQUIRED

__all__ = ["NkeyAuthenticator", "signature_problem"]


class NkeyAuthenticator:
    """Checks the configured keys. A client without credentials is ``no_auth_user``, if that user has a key."""

    wants_nonce = True

    def __init__(self, users: Iterable[NkeyUser], no_auth_user: str = "") -> None:
        self._logins = {user.nkey: Login(user.account, user.nkey, "nkey",
                                         AccessRules(user.permissions) if user.permissions is not None else None,
                                         connection_types=user.connection_types, proxy_required=user.proxy_required)
                        for user in users}
        self._no_auth_user = no_auth_user
        login = self._logins.get(no_auth_user)
        self._no_auth_login = login.replace(presumed_password="") if login is not None else None

    def decide(self, credentials: Credentials) -> Decision | None:
        presumed = credentials.presumed
        if presumed is not None:
            if presumed.kind != "nkey":
                return None
            return self._no_auth_login if presumed.user == self._no_auth_user else Refusal()
        nkey = credentials.text("nkey")
        if not nkey:
            return self._no_auth_login if credentials.anonymous else None
        login = self._logins.get(nkey)
        if login is None:
            return Refusal()
        if login.proxy_required and not credentials.connection.proxy_key:
            return REQUIRED
        # As on nats-server, the user for clients without credentials needs no signature.
        problem = signature_problem(credentials, nkey) if nkey != self._no_auth_user else ""
        return Refusal(problem) if problem else login


def signature_problem(credentials: Credentials, public: str) -> str:
    """Return why the client's signature of its nonce is not by ``public``; "" if it is."""
    given, nonce = credentials.text("sig"), credentials.connection.nonce
    if not given:
        return "Signature missing"
    try:
        signature = decode_signature(given)
    except ValueError:
        return "Signature not valid base64"
    # A connection from before a reload may have no nonce; a signature of an empty nonce would be valid for ever.
    return "" if nonce and verify(public, nonce, signature) else "Signature not verified"
