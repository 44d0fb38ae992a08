"""The accounts of trusted operators. An account is fetched when it is first needed, and changes with its token.

    lookup ──> resolver ──> token checked ──> registered ──> the accounts it imports from ──> ready
                                                  │
                                                  ├── another token: its clients' logins are decided again
                                                  └── expiry: its clients are disconnected, the next lookup fetches it

Owns: the claims, their expiry, the running lookups. Does not own: where tokens are stored (resolver), the accounts
themselves and their clients (the server, as ``Host``).

Source: nats-server, server/server.go (lookupOrFetchAccount, fetchAccount, updateAccountWithClaimJWT,
verifyAccountClaims), server/accounts.go (updateAccountClaimsWithRefresh, checkExpiration, removeCb).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, Final, Protocol

from broker.access.accounts import AccountSettings
from broker.base.clock import Clock
from broker.base.gotime import format_time
from broker.base.nkeys import ACCOUNT, is_public_key
from broker.base.shielded import shielded
from broker.config.settings import OperatorSettings
from broker.jwt.access import account_settings
from broker.jwt.claims import AccountClaims, OperatorClaims, UserPermissions, account_claims, operator_claims
from broker.jwt.sharing import exports_of, imports_of, next_expiry
from broker.jwt.token import TokenError, decode_token
from broker.jwt.validation import account_issues, blocking
from broker.server.operator.resolver import Resolver, ResolverError, make_resolver

__all__ = ["AccountError", "Host", "KnownAccount", "OperatorAccounts", "Trust"]

log = logging.getLogger(__name__)

_SECOND: Final = 1_000_000_000
_ASK_AGAIN_NS: Final = _SECOND
"""Minimum time between two lookups of an expired account."""

_FETCHES_AT_ONCE: Final = 64
"""Number of accounts that a resolver fetches concurrently."""

_TIMER_SECONDS_MAX: Final = 60.0
"""Maximum duration of an expiry timer. When it ends, the clock is read again, since timers stop during a suspend."""


class AccountError(Exception):
    """The reason why an account cannot be used."""


class Host(Protocol):
    """The server."""

    @property
    def clock(self) -> Clock: ...

    def put_account(self, settings: AccountSettings) -> Awaitable[object] | None:
        """Add the account, or change it. Returns: an awaitable that completes when it can be used; None: at once."""

    def recheck_clients(self, name: str) -> None:
        """Apply an account's changed claims to its clients: close those that the claims no longer admit."""

    def check_clients(self, name: str) -> None:
        """Check the logins of all clients of an account again, with the credentials that they sent."""

    def expire_clients(self, name: str) -> None:
        """Disconnect all clients of an account, which has expired."""


class Trust:
    """The configured operators: their tokens, or their keys."""

    def __init__(self, settings: OperatorSettings) -> None:
        self.operators: list[OperatorClaims] = [operator_claims(token) for token in settings.tokens]
        self.keys = frozenset(settings.trusted_keys) | {
            key for one in self.operators
            for key in (*one.signing_keys, *(() if one.strict_signing_keys else (one.subject,)))}
        """The keys that may sign for accounts."""

        self.strict_keys = frozenset(
            key for one in self.operators if one.strict_signing_keys for key in one.signing_keys)
        """Operators' keys; an account that one of them signed must use signing keys instead of its own key."""


class KnownAccount:
    """An account with its claims; it implements ``ClaimAccount`` for authenticators."""

    def __init__(self, token: str, claims: AccountClaims, trust: Trust) -> None:
        self._trust = trust
        self.token = token
        self.claims = claims
        self.expired = False
        self.ready = False
        """Flag: the accounts from which this one imports were looked up."""

        self.updated_at_ns = 0
        self._decoded_token = ""
        self._values: dict[str, Any] = {}
        self.timer: asyncio.TimerHandle | None = None
        self.activation_timer: asyncio.TimerHandle | None = None

    def shown(self) -> dict[str, Any]:
        """Return the account's token as monitoring shows it."""
        claims = self.claims
        shown = {"expired": self.expired, "jwt": self.token, "issuer_key": claims.issuer, "tags": list(claims.tags),
                 "decoded_jwt": self._decoded(),
                 "revoked_user": {user: format_time(at * _SECOND) for user, at in claims.revocations.items()}}
        return {name: value for name, value in shown.items() if value or name == "expired"}

    def _decoded(self) -> dict[str, Any]:
        if self._decoded_token != self.token:
            self._decoded_token, self._values = self.token, decode_token(self.token).fields.values
        return self._values

    @property
    def name(self) -> str:
        return self.claims.subject

    @property
    def trusted(self) -> bool:
        return self.claims.issuer in self._trust.keys

    def signer(self, key: str) -> tuple[bool, UserPermissions | None]:
        """Return whether ``key`` signs for the account, and its users' permissions (None: those of their tokens)."""
        if key == self.name and self.claims.issuer not in self._trust.strict_keys:
            return True, self.claims.signing_keys.get(key)
        return key in self.claims.signing_keys, self.claims.signing_keys.get(key)


class OperatorAccounts:
    """The accounts by their public keys."""

    def __init__(self, settings: OperatorSettings, host: Host) -> None:
        """Make the resolver. Raises: ValueError if it cannot be used."""
        self._host = host
        self.trust = Trust(settings)
        self.resolver = _resolver(settings)
        self._known: dict[str, KnownAccount] = {}
        self._lookups: dict[str, asyncio.Task[KnownAccount]] = {}
        self._waiters: dict[str, int] = {}
        """Number of callers that wait for each lookup."""

        self._queued: set[str] = set()
        """Accounts whose lookup waits for a slot of the resolver."""

        self._slots = asyncio.Semaphore(_FETCHES_AT_ONCE)
        self._refreshing: asyncio.Task[None] | None = None

    def __iter__(self) -> Iterator[KnownAccount]:
        return iter(self._known.values())

    def close(self) -> None:
        """Cancel the running lookups. Accounts continue to expire, because the server may start again."""
        for task in self._lookups.values():
            task.cancel()
        if self._refreshing is not None:
            self._refreshing.cancel()

    # Lookups

    def shown(self, name: str) -> dict[str, Any]:
        """Return an account's token as monitoring shows it; {} if the account is not known."""
        account = self._known.get(name)
        return account.shown() if account is not None else {}

    def known(self, name: str) -> KnownAccount | None:
        return self._known.get(name)

    def find(self, name: str) -> KnownAccount | None:
        """Return the account; None if it must be fetched first."""
        account = self._known.get(name)
        return account if account is not None and account.ready and not self._must_fetch_again(account) else None

    def fetch(self, name: str, then: Callable[[KnownAccount | None], None]) -> Callable[[], None]:
        """Call ``then`` with the account, or None, later. Returns: a function that cancels the call."""
        def done(task: asyncio.Task[KnownAccount]) -> None:
            then(None if task.cancelled() or task.exception() is not None else task.result())

        def cancel() -> None:
            if task.remove_done_callback(done):
                self._waiters[name] -= 1
                self._drop_unless_wanted(name)

        task = self._task(name)
        self._waiters[name] += 1
        task.add_done_callback(done)
        return cancel

    async def get(self, name: str) -> KnownAccount:
        """Return the account; fetching it may take seconds. Raises: AccountError."""
        account = self.find(name)
        return account if account is not None else await self._await_lookup(name)

    async def _await_lookup(self, name: str) -> KnownAccount:
        task = self._task(name)
        self._waiters[name] += 1
        return await shielded(task)

    def _drop_unless_wanted(self, name: str) -> None:
        """Cancel a lookup for which nobody waits, unless the resolver was already asked.

        A client can name accounts that do not exist; without this, lookups for disconnected clients would delay others.
        """
        if not self._waiters[name] and name in self._queued:
            self._lookups.pop(name).cancel()
            del self._waiters[name]

    def _task(self, name: str) -> asyncio.Task[KnownAccount]:
        task = self._lookups.get(name)
        if task is None:
            self._waiters[name] = 0
            task = asyncio.get_running_loop().create_task(self._resolve(name), name=f"look up {name}")
            self._lookups[name] = task
            task.add_done_callback(partial(self._finish_lookup, name))
        return task

    def _finish_lookup(self, name: str, task: asyncio.Task[KnownAccount]) -> None:
        if self._lookups.get(name) is task:
            del self._lookups[name], self._waiters[name]
        # The caller may have been cancelled. Retrieve the exception, so that the loop does not report it.
        if not task.cancelled() and (error := task.exception()) is not None and not isinstance(error, AccountError):
            log.error("looking up the account %s failed: %r", name, error)

    def _must_fetch_again(self, account: KnownAccount) -> bool:
        return account.expired and self._host.clock.now_ns() - account.updated_at_ns >= _ASK_AGAIN_NS

    async def _resolve(self, name: str) -> KnownAccount:
        if name not in self._known:
            return await self._use_token(name, await self._fetch_token(name))
        account = self._known[name]
        if self._must_fetch_again(account):
            account.updated_at_ns = self._host.clock.now_ns()
            with suppress(AccountError):  # the account stays expired
                return await self._use_token(name, await self._fetch_token(name))
        elif not account.ready:
            await self._make_ready(account)
        return account

    async def _fetch_token(self, name: str) -> str:
        if not is_public_key(name, ACCOUNT):
            log.warning("Account fetch failed: will only fetch valid account keys")
            raise AccountError("will only fetch valid account keys")
        self._queued.add(name)
        try:
            await self._slots.acquire()
        finally:
            self._queued.discard(name)
        try:
            return await self.resolver.fetch(name)
        except ResolverError as error:
            log.warning("Account fetch failed: %s", error)
            raise AccountError(str(error)) from None
        finally:
            self._slots.release()

    # Changing

    async def update(self, name: str, token: str) -> None:
        """Use another token for a known account. Raises: AccountError; then nothing has changed."""
        account = self._known.get(name)
        if account is not None and (account.token != token or not account.ready):
            await self._use_token(name, token)

    def remove(self, name: str) -> None:
        """Remove an account whose token was deleted: nobody may log in, and its clients are disconnected."""
        if self._forget(name):
            log.debug("Disable account %s due to remove", name)
            self._host.expire_clients(name)

    def _forget(self, name: str) -> bool:
        """Remove the account from the known ones, and admit no connection to it. Returns: False if it was not known."""
        account = self._known.pop(name, None)
        if account is None:
            return False
        _end_timer(account)
        account.expired = True
        self._host.put_account(AccountSettings(name, max_connections=0))
        return True

    def prepare(self, settings: OperatorSettings) -> Callable[[], None]:
        """Prepare for another resolver or other preloaded tokens. Returns: a function that applies them.

        Raises: ValueError.
        """
        resolver = _resolver(settings)

        def apply() -> None:
            self.resolver = resolver
            if resolver.local:
                self._refreshing = asyncio.get_running_loop().create_task(self._refresh(), name="refresh accounts")

        return apply

    async def _refresh(self) -> None:
        """Fetch the known accounts again. If the resolver has all accounts, those without a valid token are removed."""
        for name in list(self._known):
            try:
                await self.update(name, await self._fetch_token(name))
            except AccountError as error:
                if self.resolver.complete:
                    log.info('Reloaded: deleting account [%s]: "%s"', error, name)
                    self._forget(name)
                    self._host.check_clients(name)

    async def _use_token(self, name: str, token: str) -> KnownAccount:
        """Use ``token`` for the account from now on."""
        claims = self._verified(token)
        if claims.subject != name:
            raise AccountError("account validation failed")
        account = self._known.get(name)
        if account is None:
            account = self._known[name] = KnownAccount(token, claims, self.trust)
        account.token, account.claims, account.ready = token, claims, False
        account.updated_at_ns = self._host.clock.now_ns()
        self._watch_expiry(account)
        self._watch_activations(account)
        waiting = self._host.put_account(self._settings_of(account))
        self._permit_imports(name)
        if waiting is not None:
            await waiting
        self._host.recheck_clients(name)
        await self._make_ready(account)
        return account

    async def _make_ready(self, account: KnownAccount) -> None:
        for one in account.claims.imports:
            if one.account not in self._known and one.account != account.name:
                try:
                    await self._await_lookup(one.account)
                except AccountError as error:
                    log.error("Can't locate account [%s] for import of [%s] %s (err=%s)", one.account, one.subject,
                              one.kind, error)
        account.ready = True

    def _settings_of(self, account: KnownAccount) -> AccountSettings:
        """Return the account's settings with its exports, and with those imports that the exporters permit now."""
        def exporter(name: str) -> AccountClaims | None:
            known = self._known.get(name)
            return known.claims if known is not None else None

        def signs(name: str, key: str) -> bool:
            known = self._known.get(name)
            return known is not None and known.signer(key)[0]

        claims = account.claims
        imports = imports_of(claims, exporter, signs, self._now())
        return account_settings(claims).replace(exports=exports_of(claims), imports=imports)

    def _permit_imports(self, name: str) -> None:
        """Check the imports from an account by token again: its keys or revocations may have changed."""
        for other in list(self._known.values()):
            if any(one.account == name and one.token for one in other.claims.imports):
                self._host.put_account(self._settings_of(other))

    def _now(self) -> int:
        return self._host.clock.now_ns() // _SECOND

    def _verified(self, token: str) -> AccountClaims:
        """Return the claims of a valid token. Raises: AccountError."""
        try:
            claims = account_claims(token)
            account_settings(claims)
        except TokenError as error:
            raise AccountError(str(error)) from None
        except ValueError as error:
            log.error("the claims of an account have invalid permissions: %s", error)
            raise AccountError("account validation failed") from None
        if claims.issuer not in self.trust.keys or blocking(account_issues(claims, self._now())):
            raise AccountError("account validation failed")
        return claims

    # Expiry

    def _watch_expiry(self, account: KnownAccount) -> None:
        _end_timer(account)
        account.expired = False
        ends = account.claims.expires
        if not ends:
            return
        left = ends - self._now()
        if left <= 0:
            account.expired = True
            return
        seconds = min(float(left), _TIMER_SECONDS_MAX)
        account.timer = asyncio.get_running_loop().call_later(seconds, self._expire, account)

    def _watch_activations(self, account: KnownAccount) -> None:
        if account.activation_timer is not None:
            account.activation_timer.cancel()
            account.activation_timer = None
        ends = next_expiry(account.claims, now := self._now())
        if ends is not None:
            account.activation_timer = asyncio.get_running_loop().call_later(
                min(float(ends - now), _TIMER_SECONDS_MAX), self._activation_ended, account)

    def _activation_ended(self, account: KnownAccount) -> None:
        account.activation_timer = None
        if self._known.get(account.name) is account:
            self._watch_activations(account)
            self._host.put_account(self._settings_of(account))

    def _expire(self, account: KnownAccount) -> None:
        account.timer = None
        self._watch_expiry(account)
        if account.expired:
            self._host.expire_clients(account.name)


def _end_timer(account: KnownAccount) -> None:
    if account.timer is not None:
        account.timer.cancel()
        account.timer = None


def _resolver(settings: OperatorSettings) -> Resolver:
    try:
        return make_resolver(settings)
    except ResolverError as error:
        raise ValueError(str(error)) from None
