"""Types for logging in: credentials, authenticators and their decisions.

    Credentials ──> Authenticator.decide ──┬──> Login      the account, the user, and what the user may do
                                           ├──> Refusal
                                           ├──> SlowCheck  which delivers one of the two later
                                           └──> None       credentials of a kind that another authenticator knows

Each way to log in (passwords, tokens, keys, certificates, …) is an ``Authenticator`` in its own module; the server
tries the configured ones in order.

Source: nats-server, server/auth.go (isClientAuthorized, processClientOrLeafAuthentication).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

from broker.base.value import Value
from broker.config.access import DEFAULT_ACCOUNT
from broker.jwt.fields import one_line
from broker.server.auth.permissions import AccessRules

if TYPE_CHECKING:
    from broker.jwt.claims import UserClaims, UserPermissions

__all__ = ["VIOLATION", "Authenticator", "ConnectionFacts", "Credentials", "Decision", "Login", "Refusal", "SlowCheck",
           "Waiter"]


class ConnectionFacts(Protocol):
    """What a connection knows of its client, apart from CONNECT. Read only when an authenticator asks."""

    ip: str
    connection_type: str
    """STANDARD, WEBSOCKET or IN_PROCESS."""

    proxy_key: str
    """The trusted proxy that it came through, by its public key; "": none."""

    cid: int
    client_type: str
    """nats or websocket."""

    def tls_facts(self) -> dict[str, Any] | None:
        """Version and cipher of its TLS, by their names in authorization requests; None without it."""

    @property
    def nonce(self) -> bytes:
        """The nonce that INFO asked the client to sign; b"" if there was none."""

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
        """Who the client was logged in as before a reload, if it came without credentials."""
        self.token = ""
        """The token that it is taken to have come with."""

    def text(self, field: str) -> str:
        """A field of CONNECT; "" when it was not sent."""
        value: str = self.fields.get(field) or ""
        return value

    @property
    def anonymous(self) -> bool:
        """Whether the client sent neither a user, a password nor a token."""
        return not any(map(self.text, ("user", "pass", "auth_token")))


VIOLATION: Final = "Authorization Violation"
"""What a client is told that may not come."""


class Login(Value, hidden=["presumed_password"]):
    """The client is admitted."""

    account: str = DEFAULT_ACCOUNT
    user: str = ""
    """The user as logs and monitoring show it; "" for an anonymous one."""

    kind: Literal["user", "nkey", "jwt"] = "user"
    """What ``user`` is: a name, or the public key of a configured user or of a token's."""

    rules: AccessRules | None = None
    """What the user may publish and subscribe to; None: everything."""

    expires_at_ns: int | None = None
    """When the connection must end."""

    connection_types: frozenset[str] = frozenset()
    """The types of connection that this user may use; empty: all."""

    proxy_required: bool = False
    """Whether this user may come by trusted proxies only."""

    max_subscriptions: int = -1
    max_payload: int = -1
    """The user's own limits; -1: none."""

    token: UserClaims | None = None
    """What its token says; None: it logged in in another way."""

    claims: UserClaims | None = None
    """The same, with the limits that apply: a scoped signing key's, where such a key signed."""

    scope: UserPermissions | None = None
    """That key's, before templates are filled in."""

    tags: tuple[str, ...] = ()
    """The user's tags, which monitoring shows."""

    name_tag: str = ""
    """The user's name, if ``user`` is a key."""

    presumed_password: str | None = None
    """The password as it is configured, of the ``no_auth_user`` that a client without credentials is; None: it came with
    credentials."""


class Refusal(Value):
    """The client is refused, or may not stay. It is not sent the reason."""

    why: str = ""
    """For the log, at debug level."""

    reason: str = "Authentication Failure"
    """Why the connection ended, as monitoring shows it."""

    text: str | None = VIOLATION
    """What the client is told; None: nothing."""

    after_login: bool = False
    """Whether the credentials were accepted, so that no event of the refusal goes to the account."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "why", one_line(self.why))


class Waiter(Protocol):
    """A login that waits for a slow check."""

    def check_begun(self) -> None:
        """The check is no longer queued, but running."""

    def check_done(self, decision: Login | Refusal) -> None:
        """The decision; called once, unless the check is cancelled first."""


class SlowCheck(Protocol):
    """A decision that takes too long for the event loop."""

    def begin(self, waiter: Waiter) -> None:
        """Start the check. ``waiter`` is notified of the decision, never within this call."""

    def cancel(self, waiter: Waiter) -> None:
        """``waiter`` is gone."""


Decision = Login | Refusal | SlowCheck


class Authenticator(Protocol):
    """One way to log in."""

    wants_nonce: bool
    """Whether INFO must carry a nonce for the client to sign."""

    def decide(self, credentials: Credentials) -> Decision | None:
        """The decision; None if it is for another authenticator."""
