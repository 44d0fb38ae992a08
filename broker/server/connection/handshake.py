"""Login: a connection's credentials are verified, within a limited time, before any other operation is served.

    open ──CONNECT──> decided at once ─────────────────────────┬──> client.finish_connect(login), or refused
      │               or a slow check: waiting ──> running ────┘        │
      └── timer ────────────────────────────┘  stops when the check     └── expiry: the connection is closed
                                               begins to run

Input that arrives during the check is buffered and served afterwards, in order. Reading stops once more than 32 KB
are buffered. If it stopped at once, the broker would not notice a disconnect, and would not cancel the check.

Source: nats-server, server/client.go (processConnect, authViolation, authTimeout, authExpired), server/auth.go.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from typing import Any, Final, Protocol

from broker.base.clock import Clock
from broker.protocol.framing import Framing
from broker.server.auth.login import VIOLATION, Authenticator, ConnectionFacts, Credentials, Login, Refusal, SlowCheck
from broker.server.auth.proxies import NOT_TRUSTED, REQUIRED, TrustedProxies
from broker.server.connection.connect_options import go_quoted

__all__ = ["EVERYBODY", "Handshake"]

log = logging.getLogger(__name__)

EVERYBODY: Final = Login()
"""The login of every client of a server without authentication."""

_EARLY_BYTES: Final = 32 * 1024

_TIMER_SECONDS_MAX: Final = 60.0
"""Maximum duration of an expiry timer. When it ends, the clock is read again, since timers stop during a suspend."""


class LoginServer(Protocol):
    """The server that the connection logs in to."""

    clock: Clock
    loop: asyncio.AbstractEventLoop


class LoginEntrance(Protocol):
    """The entrance that the connection came through."""

    @property
    def auth_timeout_ns(self) -> int: ...

    @property
    def authenticator(self) -> Authenticator | None:
        """The authenticator; None if anyone may connect."""

    @property
    def proxies(self) -> TrustedProxies | None:
        """The trusted proxies; None if there are none."""


class Applicant(ConnectionFacts, Protocol):
    """A connection that logs in."""

    @property
    def parser(self) -> Framing: ...

    options: dict[str, Any]
    """CONNECT's fields."""
    label: str
    closed: bool
    login: Login

    def finish_connect(self, login: Login) -> None:
        """Finish CONNECT: the credentials were accepted."""

    def become_user(self, login: Login) -> bool:
        """Become the user of ``login``. Returns: False if the connection was closed instead."""

    def update_login(self, login: Login) -> None:
        """Apply the changed limits and permissions of ``login``, which is in the same account."""

    def close(self, reason: str) -> None: ...

    def serve_early(self, early: bytes) -> None:
        """Serve the bytes that arrived while the credentials were checked."""

    def fail(self, text: str | None, reason: str) -> None: ...

    def close_refused(self, refusal: Refusal) -> None:
        """Close the connection, whose login was refused."""

    def hold(self) -> None: ...

    def release(self) -> None: ...


class Handshake:
    """The login of one connection. While ``pending``, which needs authentication, the connection may only log in."""

    __slots__ = ("_check", "_client", "_early", "_entrance", "_expiry", "_recheck", "_server", "_timer", "pending")

    def __init__(self, server: LoginServer, entrance: LoginEntrance, client: Applicant) -> None:
        self._server = server
        self._entrance = entrance
        self._client = client
        self._check: SlowCheck | None = None
        self._recheck: _Recheck | None = None
        self._early = b""
        self._timer: asyncio.TimerHandle | None = None
        self._expiry: asyncio.TimerHandle | None = None
        self.pending = entrance.authenticator is not None

    @property
    def checking(self) -> bool:
        """Flag: a slow check is queued or running."""
        return self._check is not None

    def set_timer(self) -> None:
        """Start the authentication timeout."""
        self._timer = self._server.loop.call_later(self._entrance.auth_timeout_ns / 1e9, self._timed_out)

    def close(self) -> None:
        """Stop the timers and checks of the connection, which is closing."""
        self._end_timer()
        self._end_expiry()
        if self._check is not None:
            self._check.cancel(self)
        if self._recheck is not None:
            self._recheck.cancel()

    def forget_connection(self) -> None:
        """Drop the references to the connection, which has ended, and its buffered input."""
        self._check = self._recheck = None
        self._early = b""
        del self._client

    def recheck_login(self, names: Collection[str]) -> None:
        """Check a client's login again after a reload; ``names`` are the users now.

        As on nats-server, a client whose user was removed, or is in another account, is closed without an error and
        reconnects. A client whose credentials are no longer valid gets an error. A running check is started again.
        """
        client, authenticator = self._client, self._entrance.authenticator
        fields = client.options
        presumed: Login | None = None
        proxies = self._entrance.proxies
        if client.proxy_key and (proxies is None or client.proxy_key not in proxies.keys):
            self.refuse(NOT_TRUSTED)
            return
        if self._recheck is not None:
            self._recheck.cancel()
            self._recheck = None
        if self._check is not None:
            self._check.cancel(self)
            self._check = None
        elif self.pending:
            # The client has sent no CONNECT yet.
            self.pending = authenticator is not None
            return
        else:
            presumed = client.login if client.login.presumed_password is not None else None
            name = fields.get("nkey") or fields.get("user")
            if name and names and name not in names:
                client.close("Client Closed")
                return
        decision = EVERYBODY if authenticator is None else authenticator.decide(Credentials(fields, client, presumed))
        if self.pending:
            if decision is None or isinstance(decision, Login | Refusal):
                self.check_done(decision or Refusal())
            else:
                self._check = decision
                decision.begin(self)
        elif decision is None or isinstance(decision, Login | Refusal):
            self.apply_decision(decision or Refusal())
        else:
            self._recheck = _Recheck(self, decision)

    def apply_decision(self, decision: Login | Refusal) -> None:
        """Apply a new decision about a logged-in client."""
        client = self._client
        self._recheck = None
        decision = self._admitted(decision)
        if isinstance(decision, Refusal):
            self.refuse(decision)
        elif decision.account != client.login.account:
            client.close("Client Closed")
        else:
            self._begin_expiry(decision)
            client.update_login(decision)

    def connect(self, fields: dict[str, Any]) -> None:
        """Handle CONNECT: ``client.finish_connect`` is called, now or after a check, or the connection is closed."""
        self._end_timer()
        client, proxies = self._client, self._entrance.proxies
        if proxies is not None and (signature := fields.get("proxy_sig")):
            client.proxy_key = proxies.signer(signature, client.nonce)
            if not client.proxy_key:
                self.refuse(NOT_TRUSTED)
                return
        authenticator = self._entrance.authenticator
        decision = EVERYBODY if authenticator is None else authenticator.decide(Credentials(fields, self._client))
        if decision is None or isinstance(decision, Login | Refusal):
            self._decided(decision or Refusal())
        else:
            self.pending = True
            self._check = decision
            self.set_timer()
            decision.begin(self)

    def may_serve(self, data: bytes) -> bool:
        """Return whether to serve ``data`` while ``pending``; if not, it was buffered, or the connection was closed."""
        client = self._client
        if self._check is not None:
            if len(self._early) <= _EARLY_BYTES < len(self._early) + len(data):
                client.hold()
            self._early += data
            return False
        if not client.parser.idle or data[:1] in b"Cc":
            return True
        # The first operation is not CONNECT, which is allowed only if a configured user stands for such clients.
        authenticator = self._entrance.authenticator
        login = authenticator.decide(Credentials({}, client)) if authenticator is not None else None
        if not isinstance(login, Login) or login.kind != "user" or not self._may_use_connection(login):
            self.refuse()
            return False
        self.pending = False
        self._end_timer()
        self._begin_expiry(login)
        return client.become_user(login)

    def refuse(self, refusal: Refusal = Refusal()) -> None:  # noqa: B008 (immutable)
        """Log the failure in nats-server's words and close the connection."""
        label = self._client.label
        if refusal.why:
            log.debug("%s - %s", label, refusal.why)
        if refusal.text != VIOLATION:
            self._client.fail(refusal.text, refusal.reason)
            return
        fields = self._client.options
        who = ""
        if fields.get("nkey"):
            who = f" - Nkey {go_quoted(fields['nkey'])}"
        elif fields.get("user"):
            who = f" - User {go_quoted(fields['user'])}"
        elif fields.get("jwt") and self._client.login.kind == "jwt":
            who = f" - JWT User {go_quoted(self._client.login.user)}"
        elif fields.get("auth_token") and not fields.get("jwt"):
            who = ' - Token "[REDACTED]"'
        log.error("%s - authentication error%s", label, who)
        self._client.close_refused(refusal)

    # Waiter

    def check_begun(self) -> None:
        """Stop the authentication timeout, which does not include the duration of the check."""
        self._end_timer()

    def check_done(self, decision: Login | Refusal) -> None:
        self._check = None
        self._end_timer()
        self._decided(decision)
        early, self._early = self._early, b""
        if not self._client.closed:
            self._client.serve_early(early)
            if len(early) > _EARLY_BYTES:
                self._client.release()

    def _decided(self, decision: Login | Refusal) -> None:
        decision = self._admitted(decision)
        if isinstance(decision, Refusal):
            self.refuse(decision)
            return
        self.pending = False
        self._begin_expiry(decision)
        self._client.finish_connect(decision)

    def _admitted(self, decision: Login | Refusal) -> Login | Refusal:
        """Return ``decision``, or a refusal if the user may not connect in this way."""
        if not isinstance(decision, Login):
            return decision
        if decision.proxy_required and not self._client.proxy_key:
            return REQUIRED
        return decision if self._may_use_connection(decision) else Refusal("Connection type not allowed")

    def _may_use_connection(self, login: Login) -> bool:
        return not login.connection_types or self._client.connection_type in login.connection_types

    def _begin_expiry(self, login: Login) -> None:
        self._end_expiry()
        if login.expires_at_ns is not None:
            self._watch_expiry(login.expires_at_ns)

    def _watch_expiry(self, at_ns: int) -> None:
        seconds = max(at_ns - self._server.clock.now_ns(), 0) / 1e9
        if seconds > _TIMER_SECONDS_MAX:
            self._expiry = self._server.loop.call_later(_TIMER_SECONDS_MAX, self._watch_expiry, at_ns)
        else:
            self._expiry = self._server.loop.call_later(seconds, self._expired)

    def _expired(self) -> None:
        log.debug("%s - User Authentication Expired", self._client.label)
        self._client.fail("User Authentication Expired", "Authentication Expired")

    def _timed_out(self) -> None:
        self._timer = None
        log.debug("%s - Authentication Timeout", self._client.label)
        self._client.fail("Authentication Timeout", "Authentication Timeout")

    def _end_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end_expiry(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None


class _Recheck:
    """A slow check of a client that is already logged in and is served meanwhile."""

    __slots__ = ("_check", "_handshake")

    def __init__(self, handshake: Handshake, check: SlowCheck) -> None:
        self._handshake = handshake
        self._check = check
        check.begin(self)

    def cancel(self) -> None:
        self._check.cancel(self)

    def check_begun(self) -> None:
        pass

    def check_done(self, decision: Login | Refusal) -> None:
        self._handshake.apply_decision(decision)
