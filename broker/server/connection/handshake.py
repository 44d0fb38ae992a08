"""Logging in: nothing is served before a connection's credentials were verified, for which it has limited time.

    open ──CONNECT──> decided at once ─────────────────────────┬──> client.logged_in(True or False)
      │               or a slow check: waiting ──> running ────┘
      └── timer ────────────────────────────┘  ends when the check has its turn

What a client sends while its password is checked is kept and served afterwards, in order; past one read's worth, the
connection is no longer read. It *is* read until then, so that a client that hangs up is noticed and its check dropped.

Source: nats-server, server/client.go (processConnect, authViolation, authTimeout), server/auth.go.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final, Protocol

from broker.protocol.parser import Parser
from broker.server.auth.authenticator import BcryptCheck
from broker.server.connection.connect_options import go_quoted
from broker.server.connection.host import Host

__all__ = ["Login"]

log = logging.getLogger(__name__)

_EARLY_BYTES: Final = 32 * 1024


class Applicant(Protocol):
    """A connection that logs in."""

    server: Host[Any]
    parser: Parser
    options: dict[str, Any]
    """CONNECT's fields."""
    label: str
    closed: bool

    def logged_in(self, welcome: bool) -> None:
        """The credentials were right or not."""

    def go_on(self, early: bytes) -> None:
        """Serve what came while they were checked."""

    def fail(self, text: str | None, reason: str) -> None: ...

    def hold(self) -> None: ...

    def release(self) -> None: ...


class Login:
    """``pending`` while the connection may do nothing but log in; never so without authentication."""

    __slots__ = ("_check", "_client", "_early", "_timer", "pending")

    def __init__(self, client: Applicant) -> None:
        self._client = client
        self._check: BcryptCheck | None = None
        self._early = b""
        self._timer: asyncio.TimerHandle | None = None
        self.pending = client.server.authenticate is not None

    @property
    def checking(self) -> bool:
        """Whether a slow check is under way."""
        return self._check is not None

    def set_timer(self) -> None:
        """Start the time that the client has to log in."""
        seconds = self._client.server.settings.auth.timeout_ns / 1e9
        self._timer = self._client.server.loop.call_later(seconds, self._timed_out)

    def close(self) -> None:
        """The connection ends."""
        self._end_timer()
        if self._check is not None:
            self._client.server.password_checks.forget(self._check, self)

    def decide(self, fields: dict[str, Any]) -> None:
        """CONNECT came: ``client.logged_in`` is called, now or after a check."""
        self._end_timer()
        server = self._client.server
        verdict = server.authenticate(fields) if server.authenticate is not None else True
        if isinstance(verdict, BcryptCheck):
            self.pending = True
            self._check = verdict
            self.set_timer()
            server.password_checks.ask(verdict, self)
        else:
            self._decided(verdict)

    def may_speak(self, data: bytes) -> bool:
        """Whether to serve ``data`` while ``pending``; if not, it was kept for later, or the connection was closed."""
        client = self._client
        if self._check is not None:
            if len(self._early) <= _EARLY_BYTES < len(self._early) + len(data):
                client.hold()
            self._early += data
            return False
        if not client.parser.idle or data[:1] in b"Cc":
            return True
        # The first operation is not CONNECT: only no_auth_user allows that.
        server = client.server
        if server.authenticate is not None and server.settings.auth.no_auth_user and server.authenticate({}) is True:
            self.pending = False
            self._end_timer()
            return True
        self.refuse()
        return False

    def refuse(self) -> None:
        """Log the failure in nats-server's words and close the connection."""
        fields = self._client.options
        who = ""
        if fields.get("nkey"):
            who = f" - Nkey {go_quoted(fields['nkey'])}"
        elif fields.get("user"):
            who = f" - User {go_quoted(fields['user'])}"
        elif fields.get("auth_token") and not fields.get("jwt"):
            who = ' - Token "[REDACTED]"'
        log.error("%s - authentication error%s", self._client.label, who)
        self._client.fail("Authorization Violation", "Authentication Failure")

    # Asker

    def check_begun(self) -> None:
        """The check runs now, and its duration does not count against the client."""
        self._end_timer()

    def check_done(self, welcome: bool) -> None:
        self._check = None
        self._decided(welcome)
        early, self._early = self._early, b""
        if not self._client.closed:
            self._client.go_on(early)
            if len(early) > _EARLY_BYTES:
                self._client.release()

    def _decided(self, welcome: bool) -> None:
        self.pending = self.pending and not welcome
        self._client.logged_in(welcome)

    def _timed_out(self) -> None:
        self._timer = None
        log.debug("%s - Authentication Timeout", self._client.label)
        self._client.fail("Authentication Timeout", "Authentication Timeout")

    def _end_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
