"""The destination of a copy: the rules for accepting one, and the marks of an unfinished copy.

    a new destination    COPYING is put first and ``format`` last, so an unfinished copy is never used as a store
    an earlier copy      has the same store id and no history of its own; COPYING marks it during an update
    anything else        is refused, before anything is written

A destination has a history of its own once a broker has opened it: its newest claim is then not the source's. Claims
are never deleted, and no two process runs write the same one, so comparing the newest claims is enough.
"""

from __future__ import annotations

import random

from broker.base.clock import SystemClock
from broker.inspect.shardview import shards
from broker.inspect.source import Source
from broker.storage.format.errors import FormatError
from broker.storage.format.store import StoreFormat
from broker.storage.objectstore import ObjectStore, PreconditionFailed, StoreLock
from broker.storage.objectstore.race import expect_one_winner
from broker.storage.objectstore.retrying import RetryingStore
from broker.storage.paths import COPYING, FORMAT, PROBE, ROOT, ShardPaths, parse

__all__ = ["CopyRefused", "Destination"]

_GIVE_UP_NS = 120_000_000_000
_PROBES_LEFT_MAX = 100


class CopyRefused(Exception):
    """The copy cannot begin or continue; ``str()`` gives the reason and the remedy. Nothing was overwritten."""


class Destination:
    """The store to which objects are copied; reads use ``view``."""

    def __init__(self, store: ObjectStore) -> None:
        self.url = store.url
        self.view = Source(store, give_up_ns=_GIVE_UP_NS)
        self.at_once = 16 if store.puts_cost else 8
        """The number of concurrent puts."""
        self.finished = False
        """True if the destination was an earlier, finished copy of the same store when it was opened."""
        self.outdated = False
        """True while the destination has the format object of a source whose version has been raised since."""
        self._bare = store
        self._store = RetryingStore(store, clock=SystemClock(), rng=random.Random(), give_up_ns=_GIVE_UP_NS)
        self._locks: list[StoreLock] = []

    async def open(self, source: Source, format_bytes: bytes, *, must_be_new: bool) -> None:
        """Check that this may become, or is, a copy of the source; write nothing. Raises: CopyRefused; StoreError."""
        mine, unfinished = await self.view.find(FORMAT), await self.view.find(COPYING)
        if mine is None and unfinished is None:
            # A probe that was killed may have left a few objects.
            if any(not info.key.startswith(PROBE) for info in await self.view.list(ROOT, limit=_PROBES_LEFT_MAX)):
                raise CopyRefused(f"{self.url}: there are objects below {ROOT}, and no {FORMAT}: this is neither empty "
                                  f"nor a copy of a store; choose an empty directory or prefix")
            return
        found = mine if mine is not None else unfinished
        assert found is not None
        wanted = StoreFormat.decode(format_bytes)
        try:
            its_format = StoreFormat.decode(found)
        except FormatError as error:
            raise CopyRefused(f"{self.url}: its format object cannot be read ({error}), so it may be another store's; "
                              f"choose an empty directory or prefix") from None
        if its_format.store_id != wanted.store_id:
            raise CopyRefused(f"{self.url}: this is another store (id {its_format.store_id.hex()}, the source's is "
                              f"{wanted.store_id.hex()}); choose an empty directory or prefix")
        # A broker raises the version when the store gets something that older releases do not know, such as a journal.
        self.outdated = its_format.version < wanted.version and its_format._replace(version=wanted.version) == wanted
        if found != format_bytes and not self.outdated:
            raise CopyRefused(f"{self.url}: its format object differs from the source's; choose an empty directory or "
                              "prefix")
        if mine is None:
            return
        if must_be_new:
            raise CopyRefused(f"{self.url}: there is a store already. Restore into an empty directory or prefix: over "
                              f"an existing store, two histories would be mixed")
        self.finished = True
        await self._expect_same_history(source)

    async def _expect_same_history(self, source: Source) -> None:
        for number in await shards(self.view):
            paths = ShardPaths(number)
            newest = ""
            async for info in self.view.folder(paths.epochs):
                newest = info.key if parse(info.key) is not None else newest
            if newest and await self.view.find(newest) != await source.find(newest):
                raise CopyRefused(f"{self.url}: a broker has opened it since it was copied, or the source was set "
                                  f"back: {newest} is not the source's. Its history is its own now; copy to an empty "
                                  f"directory or prefix")

    def lock(self, numbers: list[int]) -> None:
        """Lock the shards of a directory, so that no broker opens it during the copy.

        Raises: CopyRefused; StoreRefused.
        """
        if self._bare.try_lock is None:
            return
        for number in numbers:
            lock = self._bare.try_lock(ShardPaths(number).prefix.rstrip("/"))
            if lock is None:
                raise CopyRefused(f"{self.url}: a broker, or another copy, holds the lock of shard {number}; stop it, "
                                  f"or choose another destination")
            self._locks.append(lock)

    async def begin(self, format_bytes: bytes, newest_claim: bytes) -> None:
        """Mark a new destination as unfinished, and an earlier copy as being updated.

        During an update log entries arrive in any order. Otherwise a later entry would prove that an earlier one is
        lost (``format.log_end``), although it is only not copied yet.
        """
        if not self.finished:
            if self._bare.puts_cost and await self.view.find(COPYING) is None:
                await expect_one_winner(self._store, PROBE, random.Random(), SystemClock())
            if self.outdated:
                await self._store.replace(COPYING, [format_bytes])
            else:
                await self.put(COPYING, format_bytes)
        elif newest_claim:
            await self._store.replace(COPYING, [newest_claim])
        if self.finished and self.outdated:
            await self._store.replace(FORMAT, [format_bytes])
        self.outdated = False

    async def put(self, key: str, data: bytes) -> bool:
        """Put one object; return False if it existed already.

        Raises: CopyRefused if an object with other bytes has its key; StoreError.
        """
        try:
            await self._store.put(key, [data])
        except PreconditionFailed:
            if await self.view.find(key) != data:
                raise CopyRefused(f"{self.url}: {key} exists with other bytes, and nothing is ever overwritten: the "
                                  f"destination has a history of its own, or this object is damaged there") from None
            return False
        return True

    async def finish(self, format_bytes: bytes) -> None:
        """Remove the mark, and put the format object of a new destination, which makes it a store."""
        if not self.finished:
            await self.put(FORMAT, format_bytes)
        await self._store.delete(COPYING)

    async def close(self) -> None:
        """Release locks and connections."""
        for lock in self._locks:
            lock.release()
        await self._store.close()
