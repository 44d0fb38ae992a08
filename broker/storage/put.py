"""The outcome of a put-if-absent, and retries while a store does not answer.

If a put is refused because the key exists, the header of the object there decides:

    our nonce          the put succeeded, perhaps by an earlier attempt whose answer was lost
    a seal             we are fenced
    anything else      the caller decides
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from broker.base.backoff import Backoff
from broker.base.clock import Clock
from broker.storage.format.errors import Corrupt
from broker.storage.format.header import HEADER_BYTES, KIND_AT, ObjectHeader
from broker.storage.objectstore.base import Buffers, NotFound, ObjectStore, PreconditionFailed, StoreError, Transient

__all__ = ["Fenced", "StoreRetry", "holder_of", "key_taken_error", "put_ours", "until_answered"]

_RETRY_NS = 15_000_000_000
_SLOW_SECONDS = 2.0
_WARN_EACH_NS = 60_000_000_000
_log = logging.getLogger(__name__)
T = TypeVar("T")

_TRIES_BEFORE_WARNING = 4


class Fenced(Exception):
    """Another process run owns the shard now. Objects that we write from now on are no part of the shard.

    ``by`` is the name of that process run, "" if unknown.
    """

    def __init__(self, why: str, by: str = "") -> None:
        super().__init__(why)
        self.by = by


async def holder_of(store: ObjectStore, key: str) -> ObjectHeader:
    """Return the header of the object at ``key``.

    Raises: Transient, also if there is no object: the put was just refused because of it, so try again; Corrupt.
    """
    try:
        data = await store.get(key, 0, HEADER_BYTES)
    except NotFound as error:
        raise Transient(f"{store.url}: {key} was refused because it exists, yet it cannot be found") from error
    return ObjectHeader.unpack(data, key)


async def put_ours(store: ObjectStore, key: str, data: Buffers, nonce: bytes) -> ObjectHeader | None:
    """Put once. Returns: None if the object at ``key`` is ours; otherwise the header of the object there.

    An object is ours if its writer and kind are equal to ours: a process run that lost the shard and takes it again may
    find a late segment of its own where it wants to put a seal.
    Raises: Transient, StoreRefused (the outcome is unknown); Corrupt if the object there has no readable header.
    """
    try:
        await store.put(key, data)
    except PreconditionFailed:
        header = await holder_of(store, key)
        return None if header.nonce == nonce and header.kind == data[0][KIND_AT] else header
    return None


def key_taken_error(header: ObjectHeader, key: str) -> Corrupt:
    """Return the error to stop with if one of our keys has another writer's object that is no seal."""
    return Corrupt(key, "header", 8, f"a {header.kind.name.lower()} of another writer (nonce {header.nonce.hex()}) has "
                   f"a key that only we may write")


async def until_answered(ask: Callable[[], Awaitable[T]], rng: random.Random, over: Callable[[StoreError], bool],
                         warn: Callable[[StoreError], object]) -> T:
    """Call ``ask`` until the store answers, however long that takes. If a client waits, ``over`` must limit the time.

    Args: ``over`` gets the error of an attempt and returns whether to give up; ``warn`` is called once, after a few
        attempts.
    Raises: NotFound; StoreError if ``over`` returned True.
    """
    backoff = Backoff(rng=rng)
    while True:
        try:
            return await ask()
        except NotFound:
            raise
        except StoreError as error:
            if over(error):
                raise
            if backoff.tries == _TRIES_BEFORE_WARNING:
                warn(error)
            await asyncio.sleep(backoff.next())


class StoreRetry:
    """Retries the store calls of a task (a take-over, a recovery, a standby's watch) for a limited time.

    A call is retried after each Transient, but no attempt begins later than 15 seconds after the first. A call that
    takes longer than two seconds is logged as a warning, once a minute however many calls wait.
    """

    def __init__(self, store: ObjectStore, clock: Clock, rng: random.Random) -> None:
        self.clock = clock
        self._store = store
        self._rng = rng
        self._warned_ns: int | None = None

    async def call(self, call: Callable[[], Awaitable[T]], what: str) -> T:
        """Repeat ``call`` until it is answered. ``what`` describes it in the log, such as "put KEY".

        Raises: the last Transient after 15 seconds; any other error of ``call`` at once.
        """
        began_ns = self.clock.monotonic_ns()
        backoff = Backoff(rng=self._rng)
        why: list[Transient] = []
        slow_timer = asyncio.get_running_loop().call_later(_SLOW_SECONDS, self._warn, what, why)
        try:
            while True:
                try:
                    return await call()
                except Transient as error:
                    pause = backoff.next()
                    if self.clock.monotonic_ns() - began_ns + pause * 1e9 > _RETRY_NS:
                        raise
                    why[:] = [error]
                await asyncio.sleep(pause)
        finally:
            slow_timer.cancel()

    def _warn(self, what: str, why: list[Transient]) -> None:
        now_ns = self.clock.monotonic_ns()
        if self._warned_ns is None or now_ns - self._warned_ns >= _WARN_EACH_NS:
            self._warned_ns = now_ns
            _log.warning("%s: no answer for %g s to %s (%s); retrying for up to %g s", self._store.url,
                         _SLOW_SECONDS, what, why[0] if why else "the first try is in progress", _RETRY_NS / 1e9)
