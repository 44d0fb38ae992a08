"""Read-only access to a store: gets and listings, with transient failures retried.

Memory is bounded: folders are listed page by page, objects are read through a window, and objects above ``LARGE_BYTES``
one at a time.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import TypeVar

from broker.base.clock import SystemClock
from broker.base.nats_server_store import find_store_dir
from broker.inspect.problems import RESTORE, Problem, of_error
from broker.storage.format.errors import Corrupt, FormatError, KeyMissing, VersionUnknown
from broker.storage.format.store import StoreFormat
from broker.storage.journal_reader import last_journaled
from broker.storage.journal_replay import Replayed, show_all_journaled
from broker.storage.keys.reading import use_keys_of_url
from broker.storage.objectstore import NotFound, ObjectInfo, ObjectStore, StoreError, open_store
from broker.storage.objectstore.file import directory_of
from broker.storage.objectstore.retrying import RetryingStore
from broker.storage.paths import COPYING, FORMAT, ROOT, ShardPaths
from broker.storage.unsynced_tail import hide_all_torn

__all__ = ["LARGE_BYTES", "CannotInspect", "Source", "Window", "each", "open_source", "read_format"]

LARGE_BYTES = 8 << 20
_WINDOW_BYTES = 2 << 20
_LIST_PAGE = 10_000
_LANDED_SECONDS = 10.0
_LANDED_POLL_SECONDS = 0.02

_GIVE_UP_NS = 10_000_000_000

T = TypeVar("T")
R = TypeVar("R")


class CannotInspect(Exception):
    """Nothing can be inspected; ``str()`` gives the reason and the remedy."""


class Source:
    """Read-only access to one store.

    Args: ``journal``: the contents of the killed broker's journal, which ``store`` shows as part of the log.
    """

    def __init__(self, store: ObjectStore, *, give_up_ns: int = _GIVE_UP_NS, journal: Replayed | None = None) -> None:
        self.url = store.url
        self.journal = journal
        self._directory = directory_of(store)
        self.at_once = 32 if store.puts_cost else 4
        """The number of concurrent calls: many hide the round trips to S3; a directory needs a few threads."""
        self._store = RetryingStore(store, clock=SystemClock(), rng=random.Random(), give_up_ns=give_up_ns)
        self._large = asyncio.Semaphore(1)

    async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        """Do the same as ``ObjectStore.get``. Raises: NotFound; StoreError."""
        return await self._store.get(key, start, end)

    async def find(self, key: str, start: int = 0, end: int | None = None) -> bytes | None:
        """Do the same as ``get``, but return None if there is no such object. Raises: StoreError."""
        try:
            return await self._store.get(key, start, end)
        except (NotFound, ValueError):  # ValueError: no object can have such a key
            return None

    async def list(self, prefix: str, after: str = "", limit: int | None = None) -> list[ObjectInfo]:
        """Do the same as ``ObjectStore.list``. Raises: StoreError."""
        return await self._store.list(prefix, after, limit)

    async def folder(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        """Yield the objects of one folder without subfolders, in order, listed page by page. Raises: StoreError."""
        after = ""
        while True:
            page = await self._store.list(prefix, after, _LIST_PAGE)
            for info in page:
                yield info
            if len(page) < _LIST_PAGE:
                return
            after = page[-1].key

    @property
    def note(self) -> str:
        """A line about the journal, if the store has one that counts; otherwise empty."""
        if self.journal is None:
            return ""
        return (f"journal      {self.journal.messages} messages in {self.journal.segments} segments were acknowledged "
                f"by a broker that was killed, and are only in its journal; they are read as the next broker stores "
                f"them")

    async def landed(self, shards: Iterable[int]) -> bool:
        """Wait until a running broker has stored what its journal has now; return False if that takes too long.

        Raises: StoreError; FormatError.
        """
        directory = self._directory
        if directory is None:
            return True
        for paths in map(ShardPaths, shards):
            last = await asyncio.to_thread(last_journaled, directory, paths)
            deadline = time.monotonic() + _LANDED_SECONDS
            while last is not None and directory.is_locked(paths.prefix.rstrip("/")) and not await self.list(
                    paths.log(last), limit=1):
                if time.monotonic() > deadline:
                    return False
                await asyncio.sleep(_LANDED_POLL_SECONDS)
        return True

    @asynccontextmanager
    async def window(self, key: str, size: int) -> AsyncIterator[Window]:
        """Give a window to read an object of ``size`` bytes from front to back; large ones are read one at a time."""
        if size > LARGE_BYTES:
            async with self._large:
                yield Window(self, key)
        else:
            yield Window(self, key)

    async def close(self) -> None:
        """Release the store's resources."""
        await self._store.close()


class Window:
    """Ranges of one object, requested in ascending order: each byte is read once, a few MiB at a time."""

    def __init__(self, source: Source, key: str) -> None:
        self._source = source
        self._key = key
        self._data = b""
        self._start = 0

    async def read(self, start: int, end: int) -> bytes:
        """Return the bytes ``start`` to ``end``, fewer if the object is shorter. Raises: NotFound; StoreError."""
        if not (self._start <= start and end <= self._start + len(self._data)):
            self._data = await self._source.get(self._key, start, max(end, start + _WINDOW_BYTES))
            self._start = start
        return self._data[start - self._start:end - self._start]


async def each(items: Iterable[T] | AsyncIterable[T], work: Callable[[T], Awaitable[R]], at_once: int, *,
               weight: Callable[[T], int] = lambda item: 0, weight_max: int = 1 << 62,
               gently: bool = False) -> AsyncGenerator[tuple[T, R], None]:
    """Call ``work`` for each of ``items``, up to ``at_once`` concurrently; yield items and results in order.

    Args: weight_max bounds the sum of ``weight`` of the items in progress or waiting to be yielded, though one item is
        always admitted. gently begins with one item at a time and doubles, for callers that may stop early.
    """
    width = 1 if gently else at_once
    running: deque[tuple[T, asyncio.Task[R], int]] = deque()
    held = 0
    source = _iterate(items)
    try:
        async for item in source:
            heavy = weight(item)
            while running and (len(running) >= width or held + heavy > weight_max):
                done, task, its = running[0]
                result = await task
                running.popleft()
                held -= its
                yield done, result
                width = min(at_once, 2 * width)
            running.append((item, asyncio.ensure_future(work(item)), heavy))
            held += heavy
        while running:
            done, task, _ = running[0]
            result = await task
            running.popleft()
            yield done, result
    finally:
        for _, task, _ in running:
            task.cancel()
        await asyncio.gather(*[task for _, task, _ in running], return_exceptions=True)


async def _iterate(items: Iterable[T] | AsyncIterable[T]) -> AsyncIterator[T]:
    if isinstance(items, AsyncIterable):
        async for item in items:
            yield item
    else:
        for item in items:
            yield item


def open_source(url: str) -> Source:
    """Open the store at ``url`` for reading. Raises: CannotInspect."""
    if url.startswith("memory:"):
        raise CannotInspect("memory:// exists only inside its broker: there is nothing to inspect from outside")
    try:
        store = open_store(url, read_only=True)
        if (directory := directory_of(store)) is not None:
            hide_all_torn(directory)
        use_keys_of_url(url)
        if directory is not None:
            return Source(store, journal=show_all_journaled(directory))
        return Source(store)
    except (ValueError, StoreError, FormatError, KeyMissing) as error:
        raise CannotInspect(str(error)) from None


async def read_format(source: Source) -> tuple[StoreFormat | None, list[Problem]]:
    """Read the store's format object.

    Returns: None and a problem if it is damaged, or missing while other objects exist.
    Raises: CannotInspect if there is no store, or one of a newer format; StoreError.
    """
    means = "a broker will not start on this store"
    data = await source.find(FORMAT)
    if data is None:
        if await source.find(COPYING) is not None:
            raise CannotInspect(f"{source.url}: this is an unfinished copy of a store: run the same `jetblock copy` "
                                f"again to finish it")
        if not await source.list(f"{ROOT}shards/", limit=1):
            directory = source.url.removeprefix("file://")
            if directory != source.url and (theirs := find_store_dir(directory)) is not None:
                raise CannotInspect(f"{theirs}, and no jetblock store: `jetblock migrate` moves its streams into one")
            raise CannotInspect(f"{source.url}: there is no jetblock store: no object {FORMAT}; check the path or "
                                f"prefix (a broker creates it at its first start)")
        return None, [Problem(FORMAT, "it is missing", "a broker would take this for a new store and give it another "
                                                       "id; "
                              "it would still find the streams", RESTORE)]
    try:
        return StoreFormat.decode(data), []
    except VersionUnknown as error:
        raise CannotInspect(f"{source.url}: a newer jetblock made this store: {error}; use that version or a newer "
                            f"one") from None
    except Corrupt as error:
        return None, [of_error(FORMAT, error, means)]
