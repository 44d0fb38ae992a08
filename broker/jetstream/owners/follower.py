"""The follower: carries out, in the shards of this broker, what the catalogue says about their streams.

A request that this broker serves carries out its own step. The follower does the steps whose requests another broker
got, and those whose requests were given up in between. It leaves out a stream while a request is changing it
(``changing``).
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from broker.base.shielded import shielded
from broker.base.within import within
from broker.jetstream.owners.persisted import POLL_SECONDS, PersistedShards
from broker.jetstream.wire.error_table import ApiErrors
from broker.jetstream.wire.errors import ApiError
from broker.storage.format.errors import CutOff, FormatError
from broker.storage.objectstore.base import StoreError
from broker.storage.put import Fenced

if TYPE_CHECKING:
    from broker.jetstream.account.account import Account
    from broker.jetstream.shard_streams import ShardStreams
    from broker.storage.format.records.catalogue import CatalogueEntry

__all__ = ["STEP_SECONDS", "Follower"]

_log = logging.getLogger(__name__)

STEP_SECONDS: Final = 4.0
"""The time for which a request waits for another broker: less than clients wait for their answer."""

_AT_ONCE: Final = 256
"""Entries that are compared in one turn of the loop."""


class Follower:
    """Follows the catalogue for the shards in ``serving``, which are some of ``shards``.

    Args: ``idle_seconds``: the time after which the catalogue is read again if there was no hint;
        ``is_newest(entry)``: whether no later step of a stream is decided in this broker;
        ``applied(number)`` is called once a shard has stored what the catalogue asked for; ``move(entries, serving)``
        carries out the moves of streams.
    """

    def __init__(self, shards: Mapping[int, ShardStreams], serving: Container[int], accounts: Mapping[str, Account],
                 persisted: PersistedShards, *, idle_seconds: float, is_newest: Callable[[CatalogueEntry], bool],
                 applied: Callable[[int], object],
                 move: Callable[[Mapping[int, CatalogueEntry], Mapping[int, ShardStreams]], object]) -> None:
        self.seen: Mapping[int, CatalogueEntry] = {}
        """The persisted entries, as this broker last read them."""
        self._shards = shards
        self._serving = serving
        self._accounts = accounts
        self._persisted = persisted
        self._idle_seconds = idle_seconds
        self._is_newest = is_newest
        self._applied = applied
        self._move = move
        self._changed = asyncio.Event()
        """Set when the catalogue, or a stream of this broker, may have changed."""
        self._busy: Counter[int] = Counter()
        """The streams of this broker's shards that a request is changing."""
        self._carried_out: dict[int, CatalogueEntry] = {}
        """The entries that this broker's shards have, as they were read."""
        self._next_read: asyncio.Future[None] | None = None
        """Done once the catalogue was read after the call that made it."""
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Follow the catalogue from now on."""
        self._task = asyncio.get_running_loop().create_task(self._follow(), name="follow the catalogue")

    async def stop(self) -> None:
        """Stop following."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def wake(self) -> None:
        """Read the catalogue again soon."""
        self._changed.set()

    def forget(self) -> None:
        """Compare all entries again: a shard was lost."""
        self._carried_out.clear()
        self.wake()

    @contextmanager
    def changing(self, stream_id: int) -> Iterator[None]:
        """Let the body alone carry out what the catalogue says about a stream of this broker."""
        self._busy[stream_id] += 1
        try:
            yield
        finally:
            self._busy[stream_id] -= 1
            if not self._busy[stream_id]:
                del self._busy[stream_id]
                self.wake()

    def is_busy(self, stream_id: int) -> bool:
        """Return whether a request, or a step of the catalogue, is changing a stream of this broker."""
        return stream_id in self._busy

    async def until(self, holds: Callable[[], bool]) -> None:
        """Return once ``holds`` is true after a read of the catalogue.

        Raises: ApiError 10008 after ``STEP_SECONDS``.
        """
        try:
            async with asyncio.timeout(STEP_SECONDS):
                while not holds():
                    self._next_read = self._next_read or asyncio.get_running_loop().create_future()
                    self.wake()
                    await shielded(self._next_read)
        except TimeoutError:
            raise ApiError(ApiErrors.CLUSTER_NOT_AVAIL) from None

    async def _follow(self) -> None:
        while True:
            await within(self._changed.wait(), self._idle_seconds)
            self._changed.clear()
            # A shard that is taken after this read began has been settled by a newer one (rule 2).
            serving = {number: shard for number, shard in self._shards.items() if number in self._serving}
            next_read, self._next_read = self._next_read, None
            try:
                if serving:
                    self.seen = await self._persisted.catalogue()
                    entries = dict(self.seen)
                    await self._carry_out_all(entries, serving)
                    self._move(entries, serving)
            except (StoreError, FormatError, CutOff, Fenced, ApiError) as error:
                _log.warning("the catalogue cannot be followed: %s", error)
                self.wake()
                await asyncio.sleep(POLL_SECONDS)
            except Exception:
                _log.exception("the catalogue cannot be followed")
                await asyncio.sleep(POLL_SECONDS)
            if next_read is not None and not next_read.done():
                next_read.set_result(None)

    async def _carry_out_all(self, entries: Mapping[int, CatalogueEntry], serving: Mapping[int, ShardStreams]) -> None:
        """Carry out the entries of the ``serving`` shards that no request is carrying out."""
        for at, entry in enumerate(entries.values(), 1):
            if not at % _AT_ONCE:
                await asyncio.sleep(0)
            if entry.to is not None or self._carried_out.get(entry.stream_id) is entry:
                continue
            shard = serving.get(entry.shard)
            if (shard is None or not entry.shard or self._shards.get(entry.shard) is not shard
                    or entry.shard not in self._serving):
                continue
            if entry.stream_id in self._busy or not self._is_newest(entry):
                continue
            try:
                if await self._carry_out(entry, shard):
                    self._carried_out[entry.stream_id] = entry
            except ApiError as error:
                _log.warning("stream %s > %s of shard %d waits for what the catalogue says: %s", entry.account,
                             entry.name, entry.shard, error)
                asyncio.get_running_loop().call_later(POLL_SECONDS, self.wake)
        if len(self._carried_out) > 2 * len(entries):
            self._carried_out = {stream_id: entry for stream_id, entry in self._carried_out.items()
                                 if stream_id in entries}

    async def _carry_out(self, entry: CatalogueEntry, shard: ShardStreams) -> bool:
        """Do what an entry asks for; return whether the shard has it then."""
        account = self._accounts.get(entry.account)
        if account is None or entry.name in account.offline:
            return False
        stream = account.streams.get(entry.name)
        if stream is not None and stream.stream_id != entry.stream_id:
            return False
        if stream is None and (entry.deleting or entry.moves or entry.stream_id in shard.log.state.streams):
            return entry.deleting
        if stream is None:
            shard.streams += 1
            await account.changes.create_for_catalogue(entry)
        elif entry.deleting:
            shard.streams -= 1
            await account.changes.delete_for_catalogue(stream)
        elif stream.config.to_json() == entry.config:
            return True
        else:
            await account.changes.update_for_catalogue(stream, entry)
        shard.log.wait(self._applied, entry.shard)
        return True
