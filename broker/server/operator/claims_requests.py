"""Requests about claims in the system account: they update, look up, list, delete and pack accounts' tokens.

    $SYS.REQ.ACCOUNT.<account>.CLAIMS.UPDATE    with any resolver; also $SYS.ACCOUNT.<account>.CLAIMS.UPDATE
    $SYS.REQ.CLAIMS.UPDATE  LIST  DELETE        with a directory
    $SYS.REQ.ACCOUNT.<account>.CLAIMS.LOOKUP    with a full directory
    $SYS.REQ.CLAIMS.PACK                        with a full directory: every token in a message, then an empty message

The answer to an update or deletion is sent when the change is on the disk. Updates take effect at once; a thread makes
the writes one after another.

Source: nats-server, server/accounts.go (DirAccResolver.Start, CacheDirAccResolver.Start, handleDeleteRequest,
handleListRequest, respondToUpdate), server/events.go (accountClaimUpdate).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final

from broker.base.clock import Clock
from broker.base.nkeys import ACCOUNT, is_public_key
from broker.jwt.claims import AccountClaims, account_claims
from broker.jwt.fields import one_line
from broker.jwt.token import TokenError, decode_token
from broker.jwt.validation import account_issues, blocking
from broker.server.operator.accounts import AccountError, OperatorAccounts
from broker.server.operator.resolver import DirectoryResolver, ResolverError
from broker.server.routing.router import Router
from broker.server.system.requests import Request, Requests

__all__ = ["ClaimsRequests"]

log = logging.getLogger(__name__)

_FAILED: Final = 500
_WAITING_MAX: Final = 256
"""Bound on the requests that wait for the disk; more are refused."""


class ClaimsRequests:
    """Serves the requests; ``router`` is the system account's."""

    def __init__(self, accounts: OperatorAccounts, requests: Requests, router: Router, clock: Clock,
                 system_account: str) -> None:
        self._accounts = accounts
        self._requests = requests
        self._clock = clock
        self._system_account = system_account
        self._tasks: set[asyncio.Task[None]] = set()
        resolver = accounts.resolver
        serve: dict[str, Callable[[Request], None]] = {}
        if isinstance(resolver, DirectoryResolver):
            serve |= {"$SYS.REQ.CLAIMS.UPDATE": self._update_any, "$SYS.REQ.CLAIMS.LIST": self._list,
                      "$SYS.REQ.CLAIMS.DELETE": self._delete}
            if not resolver.caches:
                serve |= {"$SYS.REQ.ACCOUNT.*.CLAIMS.LOOKUP": self._answer_lookup, "$SYS.REQ.CLAIMS.PACK": self._pack}
        serve |= {"$SYS.REQ.ACCOUNT.*.CLAIMS.UPDATE": self._update_one,
                  "$SYS.ACCOUNT.*.CLAIMS.UPDATE": self._update_one}
        for subject, handler in serve.items():
            requests.serve(router, subject, handler)

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()

    @property
    def _directory(self) -> DirectoryResolver | None:
        resolver = self._accounts.resolver
        return resolver if isinstance(resolver, DirectoryResolver) else None

    # Updates

    def _update_one(self, request: Request) -> None:
        tokens = request.subject.split(".")
        named = tokens[3] if tokens[1] == "REQ" else tokens[2]
        self._later(self._update(request, named), request, named)

    def _update_any(self, request: Request) -> None:
        self._later(self._update(request, ""), request, "n/a")

    async def _update(self, request: Request, named: str) -> None:
        """Update an account's token; ``named``: the account in the subject, "" if the subject names none."""
        directory = self._directory
        cached = " cache" if directory is not None and directory.caches else ""
        failed = f"jwt update{cached} resulted in error"
        if directory is None and not request.body:
            self._refuse(request, named, "jwt update error", "request body is empty")
            return
        token = request.body.decode("utf-8", "replace")
        try:
            claims = account_claims(token)
        except TokenError as error:
            unknown = "n/a" if directory is not None and not (cached and named) else named
            self._refuse(request, unknown, failed, str(error))
            return
        account = named or claims.subject
        if claims.subject != account:
            self._refuse(request, account, failed, "subject does not match jwt content")
        elif directory is not None and self._needs_signing_key(claims):
            self._refuse(request, account, failed, "operator requires issuer to be a signing key")
        elif self._accounts.known(account) is None and (directory is None or cached):
            self._confirm(request, account, f"jwt update{cached} skipped")
        elif directory is not None and (issues := self._issues(claims)):
            self._refuse(request, account, f"jwt{' update cache' if cached else ''} validation failed",
                         f"validation errors: [{' '.join(issues)}]")
        else:
            await self._save(request, account, token, failed, f"jwt updated{cached}")

    async def _save(self, request: Request, account: str, token: str, failed: str, done: str) -> None:
        directory = self._directory
        try:
            if directory is not None:
                await directory.write(account, token)
        except ResolverError as error:
            self._refuse(request, account, failed, str(error))
            return
        try:
            await self._accounts.update(account, token)
        except AccountError as error:
            if directory is None:
                self._refuse(request, account, failed, str(error))
                return
            # A stored token need not be usable now: it may become valid later, or belong to another operator.
            log.error('DirResolver - Update for account "%s" resulted in error %s', account, error)
        self._confirm(request, account, done)

    def _needs_signing_key(self, claims: AccountClaims) -> bool:
        operators = self._accounts.trust.operators
        return bool(operators) and operators[0].strict_signing_keys and claims.issuer == operators[0].subject

    def _issues(self, claims: AccountClaims) -> list[str]:
        found = account_issues(claims, self._now())
        return [issue.why for issue in found if not issue.of_time] if blocking(found, of_time=False) else []

    # Lookups

    def _answer_lookup(self, request: Request) -> None:
        directory = self._directory
        if directory is None or not request.reply:
            return
        try:
            request.send(directory.read(request.token(3)).encode())
        except ResolverError as error:
            log.error('DirResolver - Error looking up account "%s": %s', request.token(3), error)

    def _list(self, request: Request) -> None:
        if request.reply and self._directory is not None:
            self._later(self._send_list(request, self._directory), request, "")

    async def _send_list(self, request: Request, directory: DirectoryResolver) -> None:
        rows = await asyncio.to_thread(
            lambda: [row.partition(b"|")[0].decode() for row in directory.packed(self._now())])
        request.answer(rows)

    def _pack(self, request: Request) -> None:
        if request.reply and self._directory is not None:
            self._later(self._send_pack(request, self._directory), request, "")

    async def _send_pack(self, request: Request, directory: DirectoryResolver) -> None:
        rows: list[bytes] = []
        if request.body != await asyncio.to_thread(directory.digest):
            rows = await asyncio.to_thread(lambda: list(directory.packed(self._now())))
        for row in (*rows, b""):
            request.send(row)

    # Deleting

    def _delete(self, request: Request) -> None:
        self._later(self._delete_all(request), request, "")

    async def _delete_all(self, request: Request) -> None:
        directory = self._directory
        subject, names, why = self._deletion(request.body.decode("utf-8", "replace"))
        if why or directory is None:
            self._refuse(request, "", f"delete accounts request by {subject} failed", why)
            return
        failed = []
        for name in names:
            try:
                await directory.delete(name)
            except ResolverError as error:
                failed.append(str(error))
            else:
                self._accounts.remove(name)
        done = f"deleted {len(names) - len(failed)} accounts"
        if failed:
            self._refuse(request, "", f"{done}, failed for {len(failed)}", "\n".join(failed))
        else:
            self._confirm(request, "", done)

    def _deletion(self, text: str) -> tuple[str, list[str], str]:
        """Return the requester, the accounts to delete, and the error; "" if they may be deleted."""
        directory = self._directory
        try:
            token = decode_token(text, generic=True)
            issuer, subject = token.fields.text("iss"), token.fields.text("sub")
            names = token.fields.inner("nats").values.get("accounts")
        except TokenError as error:
            return "", [], str(error)
        operators = self._accounts.trust.operators
        trusted = {key for one in operators[:1] for key in (
            *one.signing_keys, *(() if one.strict_signing_keys else (one.subject,)))}
        if directory is not None and not (directory.settings.allow_delete or directory.caches):
            return subject, [], "delete must be enabled in server config"
        if subject != issuer:
            return subject, [], "not self signed"
        if issuer not in trusted:
            return subject, [], "not trusted"
        if not isinstance(names, list) or not all(
                isinstance(name, str) and is_public_key(name, ACCOUNT) for name in names):
            return subject, [], "malformed request"
        if self._system_account in names:
            return subject, [], "not allowed to delete system account"
        return subject, names, ""

    # Answers

    def _confirm(self, request: Request, account: str, message: str) -> None:
        log.debug("%s - %s", message, account)
        fields: dict[str, Any] = {"account": account, "code": 200, "message": message}
        request.answer({name: value for name, value in fields.items() if value})

    def _refuse(self, request: Request, account: str, message: str, why: str) -> None:
        log.error("%s - %s - %s", message, account, one_line(why))
        fields: dict[str, Any] = {"account": account, "code": _FAILED, "description": f"{message} - {why}"}
        request.send(self._requests.enveloped(error={name: value for name, value in fields.items() if value}))

    def _later(self, work: Coroutine[Any, Any, None], request: Request, account: str) -> None:
        """Do ``work`` in a task, because it may wait for the disk."""
        if len(self._tasks) >= _WAITING_MAX:
            work.close()
            self._refuse(request, account, "request failed", "too many requests are waiting")
            return
        task = asyncio.get_running_loop().create_task(work, name="claims request")
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a request about claims failed", exc_info=error)

    def _now(self) -> int:
        return self._clock.now_ns() // 1_000_000_000
