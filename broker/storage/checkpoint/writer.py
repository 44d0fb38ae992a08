"""Puts the objects of a checkpoint: pages, several in one object, and roots.

Owns the keys of page objects, their encoding, and the retries: an object is put until it is stored, with the same bytes
each time. Does not own which pages and roots are written, nor what they contain (``directory_pages``,
``subject_pages``, ``checkpointer``).

Page objects are numbered by a counter of this process run, roots by their position: no key is ever put with different
bytes.
"""

from __future__ import annotations

import asyncio
import logging
import random
from concurrent.futures import Executor

from broker.base.backoff import Backoff
from broker.storage.format.checkpoint import Root
from broker.storage.format.header import Position
from broker.storage.format.page import Page, PageRef, encode_pages
from broker.storage.log.log import Log
from broker.storage.objectstore.base import Buffers, StoreRefused, Transient
from broker.storage.paths import ShardPaths
from broker.storage.put import Fenced, key_taken_error, put_ours

__all__ = ["CheckpointWriter"]

_log = logging.getLogger(__name__)


class CheckpointWriter:
    """Writes the page objects and roots of one shard. ``executor``: pages are encoded in one of its threads."""

    def __init__(self, log: Log, paths: ShardPaths, rng: random.Random, executor: Executor | None) -> None:
        self._log = log
        self._paths = paths
        self._rng = rng
        self._executor = executor
        self._number = 0
        """The number of the last page object."""
        self._since: set[Position] = set()
        """Page objects whose put began since the last root. Each may be in the store, whether or not its put ended."""

    async def put_pages(self, pages: list[Page]) -> list[PageRef]:
        """Put pages in one object. Returns: their places, in order. Raises: Fenced; Corrupt."""
        self._number += 1
        position = Position(self._log.epoch, self._number)
        codec = self._log.settings.codec
        if self._executor is not None:
            data, refs = await asyncio.get_running_loop().run_in_executor(
                self._executor, encode_pages, position, self._log.nonce, pages, codec)
        else:
            data, refs = encode_pages(position, self._log.nonce, pages, codec)
        self._since.add(position)
        await self._put(self._paths.pages(position), data)
        return refs

    async def put_root(self, root: Root) -> frozenset[Position]:
        """Put a root. Returns: the page objects whose put began since the root before it. Raises: Fenced; Corrupt."""
        await self._put(self._paths.checkpoint(root.position),
                        [root.encode(self._log.nonce, self._log.settings.codec)])
        since = frozenset(self._since)
        self._since.clear()
        return since

    async def _put(self, key: str, data: Buffers) -> None:
        """Put until the object is stored. Raises: Corrupt if the key has another writer's object."""
        backoff = Backoff(rng=self._rng)
        while True:
            if isinstance(self._log.failure, Fenced):
                raise self._log.failure
            try:
                holder = await put_ours(self._log.store, key, data, self._log.nonce)
            except (Transient, StoreRefused) as error:
                if backoff.tries == 0:
                    _log.warning("a checkpoint is not in the store yet: %s", error)
                await asyncio.sleep(backoff.next())
                continue
            if holder is not None:
                raise key_taken_error(holder, key)
            return
