"""Reads of many objects, written once for every client: generators of requests, and functions that answer them.

Owns: the requests (listings and ranges), and the functions that run such a generator over an object store or with
blocking calls. Does not own: the reads themselves (snapshot, root, chain).

    steps ── Listing, Gets ──> an object store, a blocking client, a test
          <── rows, bytes ───
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import Any, NamedTuple, TypeVar

from broker.base.clock import SystemClock
from broker.storage.format.header import Position
from broker.storage.objectstore.base import NotFound, ObjectInfo, ObjectStore
from broker.storage.paths import parse
from broker.storage.put import StoreRetry

__all__ = ["Gets", "Listing", "Request", "Steps", "drive", "list_positions", "run", "run_answering", "run_blocking"]


class Listing(NamedTuple):
    """A request for the objects below ``prefix`` after ``after``; the answer is a list of ObjectInfo."""

    prefix: str
    after: str


class Gets(NamedTuple):
    """A request for ranges (key, start, end or None); the answer is a list of each range's bytes, None: no object."""

    ranges: list[tuple[str, int, int | None]]


Request = Listing | Gets
Answer = Any
T = TypeVar("T")
Steps = Generator[Request, Answer, T]


def list_positions(prefix: str, after: str = "") -> Steps[list[Position]]:
    """List the positions in the keys below ``prefix``, ascending."""
    found: list[ObjectInfo] = yield Listing(prefix, after)
    return [key.position for info in found if (key := parse(info.key)) is not None and key.position is not None]


async def drive(steps: Steps[T], answer: Callable[[Request], Awaitable[Answer]]) -> T:
    """Run ``steps``, and answer its requests by ``answer``. Raises: the errors of both."""
    given: Answer = None
    while True:
        try:
            request = steps.send(given)
        except StopIteration as done:
            result: T = done.value
            return result
        given = await answer(request)


async def run(steps: Steps[T], store: ObjectStore, retry: StoreRetry | None = None) -> T:
    """Run ``steps`` with an object store, each call with ``retry``. Raises: the errors of ``steps``; StoreError."""
    retry = retry or StoreRetry(store, SystemClock(), random.Random())
    return await drive(steps, lambda request: _answer(request, store, retry))


async def _answer(request: Request, store: ObjectStore, retry: StoreRetry) -> Answer:
    if isinstance(request, Listing):
        return await retry.call(lambda: store.list(request.prefix, request.after), f"list {request.prefix}")

    async def get(key: str, start: int, end: int | None) -> bytes | None:
        try:
            return await retry.call(lambda: store.get(key, start, end), f"get {key}")
        except NotFound:
            return None

    if len(request.ranges) == 1:
        return [await get(*request.ranges[0])]
    return await asyncio.gather(*[get(*range_) for range_ in request.ranges])


def run_blocking(steps: Steps[T], get: Callable[[str, int, int | None], bytes | None],
                 list_: Callable[[str, str], Sequence[ObjectInfo]]) -> T:
    """Run ``steps`` with blocking calls: get(key, start, end) returns None for no object, list_(prefix, after) all."""
    return run_answering(steps, lambda ranges: [get(*range_) for range_ in ranges], list_)


def run_answering(steps: Steps[T], get_many: Callable[[list[tuple[str, int, int | None]]], Sequence[bytes | None]],
                  list_: Callable[[str, str], Sequence[ObjectInfo]]) -> T:
    """Do the same as ``run_blocking``, with one call that answers all ranges of a request, in their order."""
    answer: Answer = None
    while True:
        try:
            request = steps.send(answer)
        except StopIteration as done:
            result: T = done.value
            return result
        if isinstance(request, Listing):
            answer = list_(request.prefix, request.after)
        else:
            answer = get_many(request.ranges)
