"""The vocabulary of logging in: what a client shows, who decides, and what the decision says.

    Credentials ──> Authenticator.decide ──┬──> Login      the account, the user, and what the user may do
                                           ├──> Refusal
                                           ├──> SlowCheck  which tells one of the two later
                                           └──> None       credentials of a kind that another authenticator knows

Each way to log in (passwords, tokens, keys, certificates, …) is an ``Authenticator`` in a module of its own; the server
asks the configured ones in order.

Source: nats-server, server/auth.go (isClientAuthorized, processClientOrLeafAuthentication).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from broker.config.access import DEFAULT_ACCOUNT
from broker.server.auth.permissions import AccessRules

__all__ = ["Authenticator", "ConnectionFacts", "Credentials", "Decision", "Login", "Refusal", "SlowCheck", "Waiter"]


class ConnectionFacts(Protocol):
    """What a connection knows of its client, whatever that client says. Read only when an authenticator asks."""

    ip: str
    connection_type: str
    """STANDARD, WEBSOCKET or IN_PROCESS."""

    @property
    def nonce(self) -> bytes:
        """What INFO asked the client to sign; b"" if INFO did not."""

    @property
    def certificate(self) -> bytes | None:
        """The client's verified certificate (DER); None without one."""


class Credentials:
    """CONNECT's fields, and the connection they came on."""

    __slots__ = ("connection", "fields")

    def __init__(self, fields: Mapping[str, Any], connection: ConnectionFacts) -> None:
        self.fields = fields
        self.connection = connection

    def text(self, field: str) -> str:
        """A field of CONNECT; "" when it was not sent."""
        value: str = self.fields.get(field) or ""
        return value

    @property
    def anonymous(self) -> bool:
        """Whether the client sent nothing to log in with."""
        return not any(map(self.text, ("user", "pass", "auth_token", "nkey")))


@dataclass(frozen=True, slots=True)
class Login:
    """A client is let in."""

    account: str = DEFAULT_ACCOUNT
    user: str = ""
    """As logs and monitoring show it; "" for nobody in particular."""

    rules: AccessRules | None = None
    """What the user may publish and subscribe to; None: everything."""

    expires_at_ns: int | None = None
    """When the connection has to end."""

    connection_types: frozenset[str] = frozenset()
    """The types of connection by which this user may come; empty: by all."""

    tags: tuple[str, ...] = ()
    """The user's tags, which monitoring shows."""

    name_tag: str = ""
    """The user's name, where ``user`` is a key."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A client is not let in. It is told no more than that."""

    why: str = ""
    """For the log, at debug level."""

    reason: str = "Authentication Failure"
    """Why the connection ended, as monitoring shows it."""


class Waiter(Protocol):
    """A login that waits for a slow check."""

    def check_begun(self) -> None:
        """The check runs now, and no longer waits for its turn."""

    def check_done(self, decision: Login | Refusal) -> None:
        """The decision; called once, unless the check is cancelled before."""


class SlowCheck(Protocol):
    """A decision that takes too long for the event loop."""

    def begin(self, waiter: Waiter) -> None:
        """Have ``waiter`` told the decision; never within this call."""

    def cancel(self, waiter: Waiter) -> None:
        """``waiter`` is gone."""


Decision = Login | Refusal | SlowCheck


class Authenticator(Protocol):
    """One way to log in."""

    wants_nonce: bool
    """Whether INFO must carry a nonce for the client to sign."""

    def decide(self, credentials: Credentials) -> Decision | None:
        """Who this is; None if another authenticator has to say."""
