"""The race: a test that exactly one of several simultaneous conditional puts of one key succeeds.

Two live brokers depend on it. Some servers first check whether the key exists, and write the object afterwards. They
refuse a put of a key that has existed for a while, so they pass the probe, but let several simultaneous puts succeed.

Each round races puts of a fresh key, each with its own bytes, over connections that are open already. A refused put, or
one without an answer, proves nothing. Only two results show a fault: a second success, or an object whose bytes are not
those of the put that succeeded. So a correct store always passes, and a faulty one passes only if it is lucky in every
round.
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
from broker.storage.objectstore.probe import overwrites_error

__all__ = ["RACERS", "ROUNDS", "expect_one_winner"]

RACERS = 8
"""Simultaneous puts of one round. With twice as many, some of SeaweedFS's answers take longer than a put's time-out."""
ROUNDS = 8
_BODY_BYTES = 16 * 1024
"""Enough to keep a server busy between its check and its write."""
_BEGIN_NS = 2_000_000_000
"""No round begins later than this, because some servers make the racers wait for each other."""


async def expect_one_winner(store: ObjectStore, prefix: str, rng: random.Random, clock: Clock) -> None:
    """Run the race on fresh keys below ``prefix``, and delete them.

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
            raise overwrites_error(store.url, key)
        raise StoreRefused(f"{store.url}: of {RACERS} conditional puts (If-None-Match: *) of one key at the same "
                           f"moment {len(won)} succeeded: {_REMEDY}")
    if not won:
        return
    try:
        there = await store.get(key)
    except (NotFound, Transient):
        return  # the probe checks the consistency of reads
    if there != won[0]:
        raise StoreRefused(f"{store.url}: a conditional put (If-None-Match: *) succeeded, and another one of the same "
                           f"moment, which did not, has overwritten it: {_REMEDY}")


_REMEDY = ("nothing would keep two brokers apart, so none runs on it. Use a store whose conditional puts are atomic: "
           "AWS S3, MinIO, SeaweedFS, or a directory (file://DIR)")


async def _expect_nothing(store: ObjectStore, key: str) -> None:
    with suppress(NotFound, Transient):
        await store.get(key, 0, 1)

