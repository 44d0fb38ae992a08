"""Passwords and tokens, plain or as bcrypt hashes. Comparison with a hash runs off the loop, in bounded numbers.

Such a comparison takes 50 ms at cost 10, and the time doubles with each step. So ``compare`` answers a plain password
at once, in a time that does not depend on the matching part. For a hash it returns a ``BcryptCheck``, which
``PasswordChecks`` runs:

    ask ──> waiting, addresses in turn ──> running, in a thread ──> every waiting login is notified
             │                               ^
             └── cancel: its connection      └── an equal check joins: clients that reconnect all at once with one
                 ended                           password cost one comparison

Client addresses take turns: a thousand wrong passwords from one address delay a login from another by one comparison.
The queue is bounded by the number of connections, each of which gives up at its authentication timeout. Results are
not cached.

Source: nats-server, server/auth.go (isBcrypt, comparePasswords).
"""

from __future__ import annotations

import asyncio
import hmac
import os
import re
import threading
from contextlib import suppress
from ipaddress import ip_address
from typing import Final, NamedTuple

from broker.server.auth.login import Login, Refusal, Waiter

__all__ = ["BcryptCheck", "PasswordCheck", "PasswordChecks", "compare", "has_hash_prefix", "hash_cost",
           "is_broken_hash"]

_BCRYPT: Final = re.compile(r"\$2[abxy]\$[0-9]{2}\$")
_HASH: Final = re.compile(r"\$2[abxy]\$(?:0[4-9]|[12][0-9]|3[01])\$[./A-Za-z0-9]{53}")
_HASH_CHARS: Final = 60
_PASSWORD_BYTES_MAX: Final = 72
"""Number of bytes of a password that bcrypt uses. Go ignores the rest when comparing; the Python library refuses it."""


class BcryptCheck(NamedTuple):
    """A comparison that is too slow for the loop."""

    hash: str
    given: str
    known: bool = True
    """False if there is no such user: the comparison runs anyway so that its duration does not reveal that."""

    def run(self) -> bool:
        """Return whether the password is right; slow, but releases the GIL."""
        import bcrypt

        given = self.given.encode()[:_PASSWORD_BYTES_MAX]
        try:
            return bcrypt.checkpw(given, self.hash[:_HASH_CHARS].encode()) and self.known
        except ValueError:  # The hash is malformed, so no password matches it.
            return False


def compare(wanted: str, given: str) -> bool | BcryptCheck:
    """Return whether ``given`` is the password ``wanted``; if ``wanted`` is a hash, return the check that decides."""
    if has_hash_prefix(wanted):
        return BcryptCheck(wanted, given)
    return hmac.compare_digest(wanted.encode("utf-8", "surrogatepass"), given.encode())


def has_hash_prefix(secret: str) -> bool:
    """Return whether ``secret`` begins like a bcrypt hash, and so is treated as one."""
    return bool(_BCRYPT.match(secret))


def is_broken_hash(secret: str) -> bool:
    """Return whether ``secret`` begins like a hash but is malformed."""
    return has_hash_prefix(secret) and not _HASH.match(secret)


def hash_cost(secret: str) -> int:
    """Return the bcrypt cost of ``secret``; 0 if it is not a hash."""
    return int(secret[4:6]) if _HASH.match(secret) else 0


class _Turns:
    """The queued checks. Each client address has a queue, and the addresses take turns: one check in each turn."""

    def __init__(self) -> None:
        self._queues: dict[str, dict[BcryptCheck, None]] = {}
        """Queues by address, in the order of their turns; none is empty."""

    def __bool__(self) -> bool:
        return bool(self._queues)

    def add(self, address: str, check: BcryptCheck) -> None:
        self._queues.setdefault(address, {})[check] = None

    def discard(self, address: str, check: BcryptCheck) -> None:
        queue = self._queues.get(address, {})
        queue.pop(check, None)
        if not queue:
            self._queues.pop(address, None)

    def next(self) -> BcryptCheck:
        """Remove and return the next check; then all other addresses have a turn before this one."""
        address = next(iter(self._queues))
        queue = self._queues.pop(address)
        check = next(iter(queue))
        del queue[check]
        if queue:
            self._queues[address] = queue
        return check


class _Asker(NamedTuple):
    """A login that waits for a check."""

    waiter: Waiter
    login: Login
    address: str


class PasswordChecks:
    """Runs checks in threads. It is used on the loop only.

    ``at_once`` checks run concurrently; default: all processors but one, at most four.
    """

    def __init__(self, at_once: int | None = None) -> None:
        self._free = at_once or max(1, min(4, (os.cpu_count() or 1) - 1))
        self._turns = _Turns()
        self._waiting: dict[BcryptCheck, list[_Asker]] = {}
        self._running: dict[BcryptCheck, list[_Asker]] = {}

    def ask(self, check: BcryptCheck, waiter: Waiter, login: Login, address: str) -> None:
        """Pass ``login`` to ``waiter`` if the check succeeds, otherwise a refusal; never within this call.

        ``address`` is the client's address, whose queue the check joins.
        """
        asker = _Asker(waiter, login, _turn_of(address))
        if check in self._running:
            self._running[check].append(asker)
            waiter.check_begun()
            return
        self._waiting.setdefault(check, []).append(asker)
        self._turns.add(asker.address, check)
        self._run_next()

    def cancel(self, check: BcryptCheck, waiter: Waiter) -> None:
        """Remove ``waiter``, whose connection has ended. A queued check that has no other waiters is removed, too."""
        if check in self._running:
            self._running[check] = [asker for asker in self._running[check] if asker.waiter is not waiter]
        askers = self._waiting.get(check, [])
        left = [asker for asker in askers if asker.waiter is not waiter]
        for address in {asker.address for asker in askers} - {asker.address for asker in left}:
            self._turns.discard(address, check)
        if left:
            self._waiting[check] = left
        else:
            self._waiting.pop(check, None)

    def _run_next(self) -> None:
        while self._free and self._turns:
            check = self._turns.next()
            askers = self._running[check] = self._waiting.pop(check)
            for asker in askers:  # the check may wait in the queues of several addresses
                self._turns.discard(asker.address, check)
            self._free -= 1
            # A daemon thread, so that a hash of absurd cost cannot keep the process from ending.
            threading.Thread(target=self._run, args=(check, asyncio.get_running_loop()), name="password check",
                             daemon=True).start()
            for asker in list(askers):
                asker.waiter.check_begun()

    def _run(self, check: BcryptCheck, loop: asyncio.AbstractEventLoop) -> None:
        right = False
        try:
            right = check.run()
        finally:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._done, check, right)

    def _done(self, check: BcryptCheck, right: bool) -> None:
        askers = self._running.pop(check)
        self._free += 1
        self._run_next()
        for asker in askers:
            asker.waiter.check_done(asker.login if right else Refusal())


class PasswordCheck:
    """The ``SlowCheck`` of one login by password."""

    __slots__ = ("_address", "_check", "_checks", "_login")

    def __init__(self, checks: PasswordChecks, check: BcryptCheck, login: Login, address: str) -> None:
        self._address = address
        self._checks = checks
        self._check = check
        self._login = login

    def begin(self, waiter: Waiter) -> None:
        self._checks.ask(self._check, waiter, self._login, self._address)

    def cancel(self, waiter: Waiter) -> None:
        self._checks.cancel(self._check, waiter)


def _turn_of(address: str) -> str:
    """Return the part of a client's address that identifies its queue.

    For IPv6 it is the first half, since one client can use all addresses with the same first half.
    """
    if ":" not in address:
        return address
    try:
        return ip_address(address).packed[:8].hex()
    except ValueError:
        return address
