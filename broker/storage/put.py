"""One put-if-absent, settled: did it land, and if not, whose object has the key? And how long to wait for a store.

A refused put is believed only after the object's header was read. Ours (the same nonce): it landed, perhaps by an
earlier try whose answer was lost. A seal: we are fenced. Anything else is for the caller to judge.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from broker.clock import Clock
from broker.storage.format.errors import Corrupt
from broker.storage.format.header import HEADER_BYTES, ObjectHeader
from broker.storage.objectstore.base import Buffers, NotFound, ObjectStore, PreconditionFailed, Transient

__all__ = ["Backoff", "Fenced", "Patience", "describe", "holder_of", "put_ours"]

_PATIENCE_NS = 15_000_000_000
_SILENCE_SECONDS = 2.0
_TOLD_EACH_NS = 60_000_000_000
_log = logging.getLogger(__name__)
T = TypeVar("T")

_KIND_AT = 8
"""Where the common header says what an object is."""


class Fenced(Exception):
    """Another process run owns the shard now; nothing that we write from here on is part of it.

    ``by`` is its name, "" where it is not known.
    """

    def __init__(self, why: str, by: str = "") -> None:
        super().__init__(why)
        self.by = by


async def holder_of(store: ObjectStore, key: str) -> ObjectHeader:
    """The header of the object at ``key``.

    Raises: Transient, also when it is not there: it was refused a moment ago, so asking again is right; Corrupt.
    """
    try:
        data = await store.get(key, 0, HEADER_BYTES)
    except NotFound as error:
        raise Transient(f"{store.url}: {key} was refused as taken, yet is not there") from error
    return ObjectHeader.unpack(data, key)


async def put_ours(store: ObjectStore, key: str, data: Buffers, nonce: bytes) -> ObjectHeader | None:
    """Put once. Returns None when the object at ``key`` is the one that was put, else the header of what has the key.

    Ours is known by writer and kind: a process run that lost the shard and takes it again may find a late segment of its
    own where it means to put a seal.
    Raises: Transient, StoreRefused (nothing is known); Corrupt when the object there has no readable header.
    """
    try:
        await store.put(key, data)
    except PreconditionFailed:
        header = await holder_of(store, key)
        return None if header.nonce == nonce and header.kind == data[0][_KIND_AT] else header
    return None


def describe(header: ObjectHeader, key: str) -> Corrupt:
    """The error to stop with when another writer's object, and no seal, has one of our keys."""
    return Corrupt(key, "header", 8, f"a {header.kind.name.lower()} of another writer (nonce {header.nonce.hex()}) has "
                   f"a key that only we may write")


class Backoff:
    """How long to wait before the same call is tried again: doubled each time, in seconds, with jitter."""

    def __init__(self, rng: random.Random, first: float = 0.05, most: float = 2.0) -> None:
        self._rng = rng
        self._first = first
        self._most = most
        self.tries = 0

    def next(self) -> float:
        """Seconds to wait now."""
        delay = min(self._most, self._first * 2.0 ** min(self.tries, 16))
        self.tries += 1
        return delay * (0.5 + self._rng.random() / 2)


class Patience:
    """How one piece of work (a take-over, a recovery, a standby's watch) waits for a store that gives no answer.

    A call is tried again after each Transient, and no try begins later than a quarter of a minute after the first. A
    call that takes longer than two seconds is a warning in the log, once a minute however many calls wait.
    """

    def __init__(self, store: ObjectStore, clock: Clock, rng: random.Random) -> None:
        self.clock = clock
        self._store = store
        self._rng = rng
        self._told_ns: int | None = None

    async def ask(self, call: Callable[[], Awaitable[T]], what: str) -> T:
        """``call`` until it gives an answer. ``what`` is for the log, as in "put KEY".

        Raises: the last Transient, once patience has run out; whatever else ``call`` raises, at once.
        """
        began_ns = self.clock.monotonic_ns()
        backoff = Backoff(self._rng)
        why: list[Transient] = []
        silence = asyncio.get_running_loop().call_later(_SILENCE_SECONDS, self._tell, what, why)
        try:
            while True:
                try:
                    return await call()
                except Transient as error:
                    pause = backoff.next()
                    if self.clock.monotonic_ns() - began_ns + pause * 1e9 > _PATIENCE_NS:
                        raise
                    why[:] = [error]
                await asyncio.sleep(pause)
        finally:
            silence.cancel()

    def _tell(self, what: str, why: list[Transient]) -> None:
        now_ns = self.clock.monotonic_ns()
        if self._told_ns is None or now_ns - self._told_ns >= _TOLD_EACH_NS:
            self._told_ns = now_ns
            _log.warning("%s: no answer for %g s to %s (%s); it is tried again until %g s have passed", self._store.url,
                         _SILENCE_SECONDS, what, why[0] if why else "the first try is under way", _PATIENCE_NS / 1e9)
