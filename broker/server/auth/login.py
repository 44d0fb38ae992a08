"""Types for logging in: credentials, authenticators and their decisions.

    Credentials ──> Authenticator.decide ──┬──> Login      the account, the user, and what the user may do
                                           ├──> Refusal
                                           ├──> SlowCheck  delivers a Login or Refusal later
                                           └──> None       another authenticator handles credentials of this kind

Each way to log in (passwords, tokens, keys, certificates, …) is an ``Authenticator`` in its own module; the server
tries the configured ones in order.

Source: nats-server, server/auth.go (isClientAuthorized, processClientOrLeafAuthentication).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

from broker.access.accounts import DEFAULT_ACCOUNT
from broker.base.value import Value
from broker.jwt.fields import one_line
from broker.server.auth.permissions import AccessRules

if TYPE_CHECKING:
    from broker.jwt.claims import UserClaims, UserPermissions

__all__ = ["VIOLATION", "Authenticator", "ConnectionFacts", "Credentials", "Decision", "Login", "Refusal", "SlowCheck",
           "Waiter"]


class ConnectionFacts(Protocol):
    """Facts about a client's connection, apart from CONNECT. They are read only when an authenticator asks."""

    ip: str
    connection_type: str
    """The type of the connection: STANDARD, WEBSOCKET or IN_PROCESS."""

    proxy_key: str
    """The public key of the trusted proxy in between; "" if there is none."""

    cid: int
    client_type: str
    """The protocol: nats or websocket."""

    def tls_facts(self) -> dict[str, Any] | None:
        """Return the version and cipher of TLS, named as in authorization requests; None without TLS."""

    @property
    def nonce(self) -> bytes:
        """The nonce that INFO asked the client to sign; b"" if INFO had none."""

    @property
    def certificate(self) -> bytes | None:
        """The client's verified certificate (DER); None without one."""


class Credentials:
    """CONNECT's fields, and the connection that sent them."""

    __slots__ = ("connection", "fields", "presumed", "token")

    def __init__(self, fields: Mapping[str, Any], connection: ConnectionFacts, presumed: Login | None = None) -> None:
        self.fields = fields
        self.connection = connection
        self.presumed = presumed
        """The login that a client without credentials had before a reload; None for other clients."""
        self.token = ""
        """The token that is checked: the client's own, or the default sentinel."""

    def text(self, field: str) -> str:
        """Return a field of CONNECT; "" if it was not sent."""
        value: str = self.fields.get(field) or ""
        return value

    @property
    def anonymous(self) -> bool:
        """Flag: the client sent no user, no password and no token."""
        return not any(map(self.text, ("user", "pass", "auth_token")))


VIOLATION: Final = "Authorization Violation"
"""The error that a refused client gets."""


class Login(Value, hidden=["presumed_password"]):
    """The decision that the client is admitted."""

    account: str = DEFAULT_ACCOUNT
    user: str = ""
    """The user as logs and monitoring show it; "" for an anonymous one."""

    kind: Literal["user", "nkey", "jwt"] = "user"
    """The kind of ``user``: a name, or the public key of a configured user or of a token's user."""

    rules: AccessRules | None = None
    """The subjects that the user may publish and subscribe to; None: all."""

    expires_at_ns: int | None = None
    """Time at which the connection must end; None: never."""

    connection_types: frozenset[str] = frozenset()
    """The types of connection that this user may use; empty: all."""

    proxy_required: bool = False
    """Flag: this user may connect through trusted proxies only."""

    max_subscriptions: int = -1
    max_payload: int = -1
    """The user's own limits: a count and bytes; -1: none."""

    token: UserClaims | None = None
    """The claims of the user's token as signed; None if the login has no token."""

    claims: UserClaims | None = None
    """The claims with the limits that apply. If a scoped signing key signed the token, these are the key's limits."""

    scope: UserPermissions | None = None
    """The permissions of the scoped signing key, before its templates are filled in."""

    tags: tuple[str, ...] = ()
    """The user's tags, which monitoring shows."""

    name_tag: str = ""
    """The user's name if ``user`` is a key."""

    presumed_password: str | None = None
    """The configured password of ``no_auth_user``, if a client without credentials is that user; otherwise None."""


class Refusal(Value):
    """The decision that the client is refused, or may not stay. The client does not learn ``why``."""

    why: str = ""
    """The cause, which only the debug log shows."""

    reason: str = "Authentication Failure"
    """The reason for the end of the connection, as monitoring shows it."""

    text: str | None = VIOLATION
    """The error that the client gets; None: none."""

    after_login: bool = False
    """Flag: the credentials were accepted, so the account gets no event about the refusal."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "why", one_line(self.why))


class Waiter(Protocol):
    """A login that waits for a slow check."""

    def check_begun(self) -> None:
        """Note that the check has left its queue and is running."""

    def check_done(self, decision: Login | Refusal) -> None:
        """Receive the decision; called once, unless the check is cancelled first."""


class SlowCheck(Protocol):
    """A decision that takes too long for the event loop."""

    def begin(self, waiter: Waiter) -> None:
        """Start the check. ``waiter`` receives the decision later, never within this call."""

    def cancel(self, waiter: Waiter) -> None:
        """Cancel the check for ``waiter``, whose connection has ended."""


Decision = Login | Refusal | SlowCheck


class Authenticator(Protocol):
    """A way to log in."""

    wants_nonce: bool
    """Flag: INFO must carry a nonce for the client to sign."""

    def decide(self, credentials: Credentials) -> Decision | None:
        """Return the decision; None if another authenticator handles these credentials."""
