"""Slow password checks, off the loop and bounded: a storm of logins takes no more than some processors' time.

    ask ──> waiting, in order of arrival ──> running, in a thread ──> every asker is told
             │                                 ^
             └── forget: its asker left        └── an equal check joins: a fleet that reconnects all at once with one
                                                   password costs one comparison

The queue is bounded by the number of connections, each of which gives up at its authentication timeout. Nothing is
remembered of a check once it is answered.
"""

from __future__ import annotations

import asyncio
import os
import threading
from contextlib import suppress
from typing import Protocol

from broker.server.auth.authenticator import BcryptCheck

__all__ = ["Asker", "PasswordChecks"]


class Asker(Protocol):
    """A connection that waits for a verdict."""

    def check_begun(self) -> None:
        """The check runs now and no longer waits for a free thread."""

    def check_done(self, welcome: bool) -> None:
        """The verdict; called once, unless the asker is forgotten before."""


class PasswordChecks:
    """Used on the loop only. ``at_once`` checks run at a time; by default all processors but one, at most four."""

    def __init__(self, at_once: int | None = None) -> None:
        self._free = at_once or max(1, min(4, (os.cpu_count() or 1) - 1))
        self._waiting: dict[BcryptCheck, list[Asker]] = {}
        self._running: dict[BcryptCheck, list[Asker]] = {}

    def ask(self, check: BcryptCheck, asker: Asker) -> None:
        """Have ``asker`` told the outcome; never within this call."""
        if check in self._running:
            self._running[check].append(asker)
            asker.check_begun()
            return
        self._waiting.setdefault(check, []).append(asker)
        self._run_next()

    def forget(self, check: BcryptCheck, asker: Asker) -> None:
        """``asker`` left: a check without askers is not begun."""
        for checks in (self._waiting, self._running):
            if asker in checks.get(check, ()):
                checks[check].remove(asker)
        if not self._waiting.get(check, True):
            del self._waiting[check]

    def _run_next(self) -> None:
        while self._free and self._waiting:
            check = next(iter(self._waiting))
            askers = self._running[check] = self._waiting.pop(check)
            self._free -= 1
            # A daemon thread, so that a hash of absurd cost cannot keep the process from ending.
            threading.Thread(target=self._run, args=(check, asyncio.get_running_loop()), name="password check",
                             daemon=True).start()
            for asker in list(askers):
                asker.check_begun()

    def _run(self, check: BcryptCheck, loop: asyncio.AbstractEventLoop) -> None:
        welcome = False
        try:
            welcome = check.run()
        finally:
            with suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(self._done, check, welcome)

    def _done(self, check: BcryptCheck, welcome: bool) -> None:
        askers = self._running.pop(check)
        self._free += 1
        self._run_next()
        while askers:
            askers.pop(0).check_done(welcome)
