"""Whether of simultaneous conditional puts of one key exactly one succeeds: what keeps two brokers apart when both are alive.

Some servers look whether the key exists, and write it then: they refuse a put of a key that has been there for a while, as the
probe sees, and let several of the same moment succeed. A round races puts of a fresh key, with bytes of their own, over
connections that are open already. A put without an answer proves nothing, for it or against it, nor does a refusal: only a
second success does, or other bytes in the store than those of the one that succeeded. So a right store always passes;
a wrong one does if it is lucky in each round.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress

from broker.base.clock import Clock
from broker.storage.objectstore.base import (
    NotFound,
    ObjectStore,
    PreconditionFailed,
    StoreError,
    StoreRefused,
    Transient,
)
from broker.storage.objectstore.probe import overwritten

__all__ = ["RACERS", "ROUNDS", "expect_one_winner"]

RACERS = 8
"""With twice as many, SeaweedFS lets some wait for longer than a put may take."""
ROUNDS = 8
_BODY_BYTES = 16 * 1024
"""Enough to keep a server busy between its look and its write."""
_BEGIN_NS = 2_000_000_000
"""No round begins later: for servers that let racers wait for each other."""


async def expect_one_winner(store: ObjectStore, prefix: str, rng: random.Random, clock: Clock) -> None:
    """Race on fresh keys below ``prefix``, and delete them.

    Raises: StoreRefused if a key was put twice, or if puts are refused for other reasons.
    """
    names = [f"{prefix}{rng.getrandbits(64):016x}" for _ in range(ROUNDS)]
    until_ns = clock.monotonic_ns() + _BEGIN_NS
    await asyncio.gather(*[_expect_nothing(store, names[0]) for _ in range(RACERS)])  # opens as many connections
    for name in names:
        if clock.monotonic_ns() > until_ns:
            break
        try:
            await _round(store, name, rng)
        finally:
            with suppress(StoreError):  # a few kilobytes may stay; nothing reads them
                await store.delete(name)


async def _round(store: ObjectStore, key: str, rng: random.Random) -> None:
    bodies = [rng.randbytes(16) + bytes(_BODY_BYTES - 16) for _ in range(RACERS)]

    async def put(body: bytes) -> bytes | None:
        try:
            await store.put(key, [body])
        except (PreconditionFailed, Transient):
            return None
        return body

    answers = await asyncio.gather(*map(put, bodies), return_exceptions=True)
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
    won = [body for body in answers if body is not None]
    if len(won) > 1:
        if await put(bodies[0]) is not None:
            raise overwritten(store.url, key)
        raise StoreRefused(f"{store.url}: of {RACERS} conditional puts (If-None-Match: *) of one key at the same moment {len(won)} "
                           f"succeeded: {_REMEDY}")
    if not won:
        return
    try:
        there = await store.get(key)
    except (NotFound, Transient):
        return  # whether reads are consistent is for the probe to see
    if there != won[0]:
        raise StoreRefused(f"{store.url}: a conditional put (If-None-Match: *) succeeded, and another one of the same moment, "
                           f"which did not, has overwritten it: {_REMEDY}")


_REMEDY = ("nothing would keep two brokers apart, so none runs on it. Use a store whose conditional puts are atomic: AWS S3, "
           "MinIO, SeaweedFS, or a directory (file://DIR)")


async def _expect_nothing(store: ObjectStore, key: str) -> None:
    with suppress(NotFound, Transient):
        await store.get(key, 0, 1)

