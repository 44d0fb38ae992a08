"""Authorization callout: an authorization service decides each login, by a request and a signed response.

    base decision ──┬── the service's own users, and accounts that it does not decide about: unchanged
                    └── request token ──> $SYS.REQ.USER.AUTH ──> response token ──> user claims ──> Login or Refusal
                                             └── no response before the timeout: Refusal

Each client costs a request, a subscription of its own subject and a timer; its input meanwhile is bounded (handshake).
The request contains the client's credentials unchanged, so a service whose subject others can read should have an xkey.

Source: nats-server, server/auth_callout.go, server/auth.go (processClientOrLeafAuthentication).
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from broker.access.accounts import DEFAULT_ACCOUNT, AccountSettings
from broker.base.clock import Clock
from broker.base.nkeys import USER, CurveKeyPair, KeyPair
from broker.config.callout import CalloutSettings
from broker.jwt.access import permissions_of, seconds_left
from broker.jwt.authorization import SUBJECT, XKEY_HEADER, CalloutError, Expected, read_response, request_token
from broker.jwt.claims import ANY, ResponseClaims, UserClaims
from broker.protocol import headers
from broker.protocol.run import Msg
from broker.server.auth.login import Authenticator, Credentials, Decision, Login, Refusal, SlowCheck, Waiter
from broker.server.auth.permissions import AccessRules
from broker.server.auth.proxies import REQUIRED
from broker.server.auth.tokens import ClaimAccount, ClaimAccounts, expiry_of, login_of, types_of, without_callouts
from broker.server.routing.router import Router
from broker.server.routing.subscription import Subscription

__all__ = ["CalloutAuthenticator", "Callouts", "OperatorCalloutAuthenticator"]

log = logging.getLogger(__name__)

_SECOND: Final = 1_000_000_000
_INBOX: Final = "$SYS._INBOX."
_TOKEN_BEGINS: Final = b"eyJ"


class _Account(Protocol):
    router: Router
    settings: AccountSettings


class _Accounts(Protocol):
    def get(self, name: str) -> _Account | None: ...


class _Host(Protocol):
    """The server."""

    @property
    def clock(self) -> Clock: ...

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...

    @property
    def accounts(self) -> _Accounts: ...

    def callout_identity(self) -> dict[str, Any]:
        """Return name, host, id, version and tags of the server."""


@dataclass(frozen=True, slots=True)
class _Service:
    """An authorization service: its account, its encryption key, and the subject claim of request tokens."""

    account: str
    xkey: str
    subject: str


class Callouts:
    """Sends requests and waits for responses. ``keys`` sign for the server; their public key is the server's id."""

    def __init__(self, host: _Host, keys: KeyPair, timeout_ns: int) -> None:
        self._host = host
        self.keys = keys
        self._curve: CurveKeyPair | None = None
        self.timeout_ns = timeout_ns

    @property
    def clock(self) -> Clock:
        return self._host.clock

    @property
    def curve(self) -> CurveKeyPair:
        """The server's own key pair, made when first needed."""
        if self._curve is None:
            self._curve = CurveKeyPair(secrets.token_bytes(32))
        return self._curve

    def call_soon(self, callback: Callable[[], None]) -> asyncio.TimerHandle:
        """Call ``callback`` on a later turn of the loop."""
        timer: asyncio.TimerHandle = self._host.loop.call_later(0, callback)
        return timer

    def account_settings(self, name: str) -> AccountSettings | None:
        account = self._host.accounts.get(name)
        return account.settings if account is not None else None

    def ask(self, service: _Service, user: str, credentials: Credentials, base: Login | Refusal,
            answered: Callable[[bytes | None], None]) -> Callable[[], None]:
        """Send a request about one client. ``answered`` gets the response later, or None after the timeout.

        Returns: a function that ends the request. Raises: CalloutError.
        """
        account = self._host.accounts.get(service.account)
        if account is None:
            raise CalloutError(f'No valid account "{service.account}" for auth callout request: account missing')
        router = account.router
        reply = f"{_INBOX}{secrets.token_urlsafe(16)}".encode()
        now = self.clock.now_ns() // _SECOND
        server = self._host.callout_identity()
        if service.xkey:
            server["xkey"] = self.curve.public
        parts = {"server_id": server, **_client_parts(credentials, base)}
        body = request_token(service.subject, user, parts, self.keys, now, now + self.timeout_ns // _SECOND).encode()
        header = b""
        if service.xkey:
            body = self.curve.seal(body, service.xkey)
            header = headers.build([(XKEY_HEADER.encode(), self.curve.public.encode())])

        waiting: Subscription | None = None

        def on_response(ops: Sequence[Msg], start: int, _end: int, source: object, now_ns: int) -> None:
            _, _, hlen, answer = ops[start]
            end()
            # Wait for a later turn: otherwise the client's buffered input would be served within the service's publish.
            self.call_soon(lambda: answered(answer[hlen:]))

        def late() -> None:
            end()
            answered(None)

        def end() -> None:
            nonlocal waiting
            timer.cancel()
            if waiting is not None:
                router.unsubscribe(waiting)
            waiting = None  # otherwise it would keep this function, and the waiting connection, in a reference cycle

        timer = self._host.loop.call_later(self.timeout_ns / 1e9, late)
        waiting = router.subscribe(reply, on_response)
        router.publish(SUBJECT.encode(), reply, len(header), header + body)
        return end


class CalloutAuthenticator:
    """Lets the service of a configuration file decide about every client but the service's own users.

    ``chain`` makes the base decision.
    """

    def __init__(self, chain: Authenticator, settings: CalloutSettings, callouts: Callouts) -> None:
        self.wants_nonce = chain.wants_nonce
        self._chain = chain
        self._settings = settings
        self._callouts = callouts

    def decide(self, credentials: Credentials) -> Decision | None:
        base = self._chain.decide(credentials)
        if base is not None and not isinstance(base, Login | Refusal):
            return _Callout(self._begin, credentials, base)
        decided = self._decision_without_service(base or Refusal(), credentials)
        return decided if decided is not None else _Callout(self._begin, credentials, base or Refusal())

    def _decision_without_service(self, base: Login | Refusal, credentials: Credentials) -> Login | Refusal | None:
        """Return the decision if the service is not asked; None if it is."""
        settings = self._settings
        if base is REQUIRED:
            return base
        account = base.account if isinstance(base, Login) else DEFAULT_ACCOUNT
        if account != DEFAULT_ACCOUNT and settings.allowed_accounts and account not in settings.allowed_accounts:
            return base
        return self._forbid_asking(base) if _user_id(base, credentials) in settings.auth_users else None

    def _forbid_asking(self, base: Login | Refusal) -> Login | Refusal:
        """Deny a user of the service's own account to publish requests to the service."""
        return without_callouts(base) if isinstance(base, Login) and base.account == self._settings.account else base

    def _begin(self, base: Login | Refusal, credentials: Credentials, waiter: Waiter) -> Callable[[], None] | None:
        settings = self._settings
        decided = self._decision_without_service(base, credentials)
        if decided is not None:
            waiter.check_done(decided)
            return None
        service = _Service(settings.account, settings.xkey, settings.issuer)

        def decide(response: ResponseClaims, user: UserClaims, sealed: bool,
                   done: Callable[[Login | Refusal], None]) -> None:
            done(self._forbid_asking(self._login(response, user, sealed)))

        return _ask_service(self._callouts, service, credentials, base, waiter, decide)

    def _login(self, response: ResponseClaims, user: UserClaims, sealed: bool) -> Login:
        settings = self._settings
        if not sealed and response.issuer != settings.issuer:
            raise CalloutError("Auth callout signing key is unknown")
        if user.issuer_account:
            raise CalloutError(f'Error non operator mode account "{settings.account}": attempted to use issuer_account')
        if user.issuer != settings.issuer:
            raise CalloutError(f'Wrong issuer for auth callout response on account "{settings.account}", expected '
                               f'"{settings.issuer}" got "{user.issuer}"')
        target = self._callouts.account_settings(user.audience)
        if target is None:
            raise CalloutError(f'No valid account "{user.audience}" for auth callout response on account '
                               f'"{settings.account}": account missing')
        try:
            permissions = permissions_of(user.limits.permissions) or target.default_permissions
        except ValueError as error:
            raise CalloutError(f"Could not register auth callout user: {error}") from None
        rules = AccessRules(permissions) if permissions is not None else None
        return _bound(Login(user.audience, rules=rules), user, settings.account, self._callouts.clock)


class OperatorCalloutAuthenticator:
    """Lets the service of an account decide, if the account's claims delegate its logins. ``chain`` decides first."""

    def __init__(self, chain: Authenticator, accounts: ClaimAccounts, callouts: Callouts) -> None:
        self.wants_nonce = chain.wants_nonce
        self._chain = chain
        self._accounts = accounts
        self._callouts = callouts

    def decide(self, credentials: Credentials) -> Decision | None:
        base = self._chain.decide(credentials)
        if base is not None and not isinstance(base, Login | Refusal):
            return _Callout(self._begin, credentials, base)
        decided = self._decision_without_service(base or Refusal())
        return decided if decided is not None else _Callout(self._begin, credentials, base or Refusal())

    def _decision_without_service(self, base: Login | Refusal) -> Login | Refusal | None:
        """Return the decision if no service is asked; None if one is."""
        account = self._delegating(base)
        if account is None or not isinstance(base, Login):
            return base
        return without_callouts(base) if base.user in account.claims.authorization.auth_users else None

    def _delegating(self, base: Login | Refusal) -> ClaimAccount | None:
        """Return the account if its claims delegate logins. A client that cannot log in there is refused without
        asking."""
        account = self._accounts.find(base.account) if isinstance(base, Login) else None
        return account if account is not None and account.claims.authorization.enabled else None

    def _begin(self, base: Login | Refusal, credentials: Credentials, waiter: Waiter) -> Callable[[], None] | None:
        decided, account = self._decision_without_service(base), self._delegating(base)
        if decided is not None or account is None:
            waiter.check_done(decided or base)
            return None
        external = account.claims.authorization
        name = account.claims.subject

        def decide(response: ResponseClaims, user: UserClaims, sealed: bool,
                   done: Callable[[Login | Refusal], None]) -> None:
            if not sealed and not _is_signed_for(response, account):
                raise CalloutError("Auth callout signing key is unknown")
            if (user.account != name and user.account not in external.allowed_accounts
                    and external.allowed_accounts != (ANY,)):
                raise CalloutError(f'Account "{user.issuer}" not permitted as valid account option for auth callout '
                                   f'for account "{name}"')

            def found(target: ClaimAccount | None) -> None:
                done(self._login(user, target, account))

            self._accounts.fetch(user.account, found)

        return _ask_service(self._callouts, _Service(name, external.xkey, name), credentials, base, waiter, decide)

    def _login(self, user: UserClaims, target: ClaimAccount | None, service: ClaimAccount) -> Login | Refusal:
        name = service.claims.subject
        if target is None or target.expired:
            return Refusal(f'No valid account "{user.account}" for auth callout response on account "{name}"')
        found = login_of(target, user)
        if isinstance(found, Refusal):
            return found
        try:
            bound = _bound(found, found.claims or user, name, self._callouts.clock)
        except CalloutError as error:
            return Refusal(str(error))
        return without_callouts(bound) if bound.account == name else bound


@dataclass(slots=True)
class _Callout(SlowCheck):
    """A check in two steps: the base decision, if it is slow itself, then the service's decision."""

    begin_callout: Callable[[Login | Refusal, Credentials, Waiter], Callable[[], None] | None]
    credentials: Credentials
    base: Decision
    waiter: Waiter | None = None
    end: Callable[[], None] | None = None

    def begin(self, waiter: Waiter) -> None:
        self.waiter = waiter
        if isinstance(self.base, Login | Refusal):
            waiter.check_begun()  # the request has its own time
            self.end = self.begin_callout(self.base, self.credentials, waiter)
        else:
            self.base.begin(self)

    def cancel(self, waiter: Waiter) -> None:
        if self.end is not None:
            self.end()
        elif not isinstance(self.base, Login | Refusal):
            self.base.cancel(self)

    # Methods of Waiter, for the base decision.

    def check_begun(self) -> None:
        assert self.waiter is not None
        self.waiter.check_begun()

    def check_done(self, decision: Login | Refusal) -> None:
        assert self.waiter is not None
        self.base = decision
        self.waiter.check_begun()
        self.end = self.begin_callout(decision, self.credentials, self.waiter)


_Decide = Callable[[ResponseClaims, UserClaims, bool, Callable[[Login | Refusal], None]], None]
"""Decides about a well-formed response; the flag: the response was sealed. Raises: CalloutError."""


def _ask_service(callouts: Callouts, service: _Service, credentials: Credentials, base: Login | Refusal, waiter: Waiter,
                 decide: _Decide) -> Callable[[], None]:
    """Ask the service, and pass ``waiter`` the decision. Returns: a function that cancels the request."""
    user = KeyPair(USER, secrets.token_bytes(32)).public
    cancelled = False

    def done(decision: Login | Refusal) -> None:
        if not cancelled:
            if isinstance(decision, Refusal) and decision.why:
                log.warning("%s", decision.why)
            waiter.check_done(decision)

    def answered(answer: bytes | None) -> None:
        if answer is None:
            done(Refusal(f'Authorization callout response not received in time on account "{service.account}"'))
            return
        try:
            text, sealed = _open_answer(answer, service, callouts)
            expected = Expected(user, callouts.keys.public, service.account)
            response, claims = read_response(text, expected, callouts.clock.now_ns() // _SECOND)
            decide(response, claims, sealed, done)
        except CalloutError as error:
            done(Refusal(str(error)))

    def cancel() -> None:
        nonlocal cancelled
        cancelled = True
        end()

    try:
        end = callouts.ask(service, user, credentials, base, answered)
    except CalloutError as error:
        why = str(error)
        timer = callouts.call_soon(lambda: done(Refusal(why)))
        end = timer.cancel
    return cancel


def _open_answer(answer: bytes, service: _Service, callouts: Callouts) -> tuple[str, bool]:
    """Return the response's text, and whether it was sealed. Raises: CalloutError."""
    sealed = bool(service.xkey and answer and not answer.startswith(_TOKEN_BEGINS))
    if sealed:
        try:
            answer = callouts.curve.open(answer, service.xkey)
        except ValueError as error:
            raise CalloutError(
                f'Error decrypting auth callout response on account "{service.account}": {error}') from None
    return answer.decode("utf-8", "replace"), sealed


def _is_signed_for(response: ResponseClaims, account: ClaimAccount) -> bool:
    """Return whether the account's key, or one of its signing keys, made the signature.

    ``issuer_account`` is only a claim: a response that names the account proves nothing by that.
    """
    name = account.claims.subject
    return response.issuer_account in ("", name) and (response.issuer == name or account.signer(response.issuer)[0])


def _bound(login: Login, user: UserClaims, service: str, clock: Clock) -> Login:
    """Return ``login`` as the user of a response. Raises: CalloutError."""
    left = seconds_left(user.limits, clock.now_ns())
    if left == 0:
        raise CalloutError(f'Authorized user on account "{service}" outside of valid connect times')
    types = types_of(user)
    if types is None:
        raise CalloutError(f'Authorized user on account "{service}" using invalid connection type')
    return login.replace(
        user=user.name or user.subject, kind="user" if user.name else "nkey", tags=(), name_tag="",
        expires_at_ns=expiry_of(user, left, clock.now_ns()), connection_types=types, token=user,
        proxy_required=login.proxy_required or user.limits.proxy_required, max_subscriptions=-1, max_payload=-1)


def _user_id(base: Login | Refusal, credentials: Credentials) -> str:
    """Return the user, as the login or the client's CONNECT names it; a token is redacted."""
    if isinstance(base, Login) and base.user:
        return base.user
    name = credentials.text("nkey") or credentials.text("user")
    return name or ("[REDACTED]" if credentials.text("auth_token") else "")


def _client_parts(credentials: Credentials, base: Login | Refusal) -> dict[str, dict[str, Any]]:
    """Return the parts of a request about the client."""
    connection, text = credentials.connection, credentials.text
    login = base if isinstance(base, Login) else Login()
    client = {"host": connection.ip, "id": connection.cid, "user": _user_id(base, credentials), "name": text("name"),
              "tags": list(login.tags), "name_tag": login.name_tag, "kind": "Client", "type": connection.client_type}
    if text("sig"):
        client["nonce"] = connection.nonce.decode()
    sent = {"jwt": credentials.token, **{name: text(field) for name, field in (
        ("nkey", "nkey"), ("sig", "sig"), ("auth_token", "auth_token"), ("user", "user"), ("pass", "pass"),
        ("name", "name"), ("lang", "lang"), ("version", "version"))}}
    parts: dict[str, dict[str, Any]] = {
        "client_info": client, "connect_opts": {**sent, "protocol": credentials.fields.get("protocol") or 0}}
    tls = connection.tls_facts()
    if tls is not None:
        certificate = connection.certificate
        if certificate is not None:
            # Python shows a server the client's own certificate of the chain.
            tls = {**tls, "verified_chains": [[ssl.DER_cert_to_PEM_cert(certificate)]]}
        parts["client_tls"] = tls
    return parts
