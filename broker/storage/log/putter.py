"""Brings a closed segment into the store: sealed on the loop, encoded, put until it lands.

Owns the tries of one put and what their answers mean: lost, refused, ours after all, another writer's. Does not own when
a put begins, nor what follows once it has landed (``log``).
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any

from broker.base.backoff import Backoff
from broker.base.clock import Clock
from broker.storage.format.claim import Seal
from broker.storage.format.errors import FormatError
from broker.storage.format.header import ObjectKind, Position
from broker.storage.format.segment import HEAD_BYTES_MIN
from broker.storage.log.open_block import OpenBlock
from broker.storage.log.settings import LogSettings
from broker.storage.log.waiters import Waiter
from broker.storage.log.writer import Failure, SealedBlock, encode_segment, is_small, seal_block
from broker.storage.objectstore.base import ObjectStore, PreconditionFailed, StoreError, StoreRefused, Transient
from broker.storage.put import Fenced, describe, holder_of
from broker.storage.state.applied import ShardState

__all__ = ["Putter", "Segment"]

_log = logging.getLogger(__name__)

_BLOCK_BYTES = 4096
"""Encoding a block takes as long as encoding this many bytes of it."""


class Segment:
    """A closed segment: its contents are fixed, and so are its bytes once ``data`` is set."""

    __slots__ = ("before", "began_ns", "blocks", "data", "encoded", "failures", "on_encoded", "position",
                 "proved_ns", "raw_bytes", "sealed", "stored", "stored_before", "urgent_ns", "waiters", "whole")

    def __init__(self, position: Position, blocks: list[OpenBlock[Any]], waiters: list[Waiter], raw_bytes: int) -> None:
        self.position = position
        self.blocks = blocks
        self.waiters = waiters
        self.raw_bytes = raw_bytes
        self.sealed: list[SealedBlock[Any]] = []
        self.data: list[bytes] | None = None
        self.whole: bytes | None = None
        """The same in one piece, if it is to be kept."""
        self.encoded = False
        self.on_encoded: Callable[[], object] | None = None
        """Called in the thread that has encoded it."""
        self.failures: list[Failure] = []
        """Blocks that it should have held, and why it could not."""
        self.before: Segment | None = None
        """The segment before it, while that may not be encoded yet."""
        self.stored = False
        self.stored_before: int | None = None
        """Once it is in flight: the number up to which all had landed when its put began."""
        self.urgent_ns = 0
        """Since when something waits for it, by the monotonic clock; 0: nothing does."""
        self.began_ns = 0
        self.proved_ns = 0
        """Once it landed: when, by the outside clock, its put began, and the shard was still ours."""

    @property
    def head_bytes(self) -> int:
        """About what a recovery reads of it."""
        said = [b.core for b in self.sealed if b.opened is None]
        return HEAD_BYTES_MIN + 250 * len(self.sealed) + sum(32 * len(core.removed) + sum(r.size for r in core.records)
                                                  for core in said)

    def apply_to(self, state: ShardState) -> None:
        """Apply it, now persisted, to a shard's state: with the same result as a replay of its bytes."""
        state.apply_segment(self.position)
        for block in self.sealed:
            if block.opened is not None and block.packed is not None:
                state.apply_small(block.packed, block.opened.outcome)
            else:
                state.apply_block(block.core, block.ref, block.head, block.ids)
                block.ids = None


class Putter:
    """Puts the segments of one epoch.

    A block that cannot be sealed or encoded is left out of its segment, and so are all later blocks of its stream: what
    they hold builds on it. Segments are encoded in the order of the log, so that none holds such a later block.

    Attributes: ``error``: why the oldest put has not landed yet, None when the store is well; ``count`` and ``bytes`` of
        what landed; ``broken``: stream_id of each such stream, and the first segment that has nothing of it.
    """

    def __init__(self, store: ObjectStore, key_of: Callable[[Position], str], nonce: bytes, clock: Clock,
                 rng: random.Random, settings: LogSettings, executor: Executor | None,
                 encoded: Callable[[], object], failed: Callable[[Any, int, Exception], object]) -> None:
        """Args: executor encodes large segments; None: all on the loop. ``encoded`` is called when a segment's bytes are
        there before its put begins; ``failed(owner, number, error)`` when a block of segment ``number`` cannot be
        sealed, and it raises where the log cannot go on without.
        """
        self.broken: dict[int, int] = {}
        self.error: StoreError | None = None
        self.count = 0
        self.bytes = 0
        self._told: set[type[StoreError]] = set()
        """The kinds of failure that were logged since the store was well."""
        self._breaking = threading.Lock()  # the loop finds failures, and threads that encode
        self._store = store
        self._key_of = key_of
        self._nonce = nonce
        self._clock = clock
        self._rng = rng
        self._settings = settings
        self._executor = executor
        self._encoded = encoded
        self._failed = failed
        self._loop = asyncio.get_running_loop()

    def leave_out(self, stream_id: int, number: int) -> int:
        """Store nothing of the stream from segment ``number`` on, or an earlier one that failed; returns which."""
        with self._breaking:
            self.broken[stream_id] = number = min(number, self.broken.get(stream_id, number))
        return number

    async def seal(self, segment: Segment) -> None:
        """The loop's part, in turns of a few thousand messages. Returns once the segment may be encoded."""
        run = 0
        for block in segment.blocks:
            try:
                if is_small(block):
                    segment.sealed.append(SealedBlock.folded(block, segment.position))
                    run += 8
                    continue
                segment.sealed.append(seal_block(block, segment.position))
            except Exception as error:
                self._failed(block.owner, segment.position.number, error)
            run += 20 + block.count
            if run >= 8_000:
                run = 0
                await asyncio.sleep(0)
        segment.blocks = []
        before, segment.before = segment.before, None
        if before is not None and not before.encoded:
            waiting = self._loop.create_future()
            before.on_encoded = lambda: self._loop.call_soon_threadsafe(_resolve, waiting)
            if not before.encoded:  # a thread may have encoded it in between
                await waiting

    async def put(self, segment: Segment) -> int:
        """Encode and put until it lands. Raises: Fenced by a seal in its place; Corrupt for anything else that has its key.

        Returns: when, by the outside clock, the first try began. That it landed proves the shard ours as of then, and no
            later: a later try may land after an earlier one did, the shard was taken, and the segment swept.
        """
        store, key, settings = self._store, self._key_of(segment.position), self._settings
        put_sync = self._blocking_put(segment.position)
        timeout = settings.put_timeout_ns
        if self._executor is None or segment.raw_bytes + _BLOCK_BYTES * len(segment.sealed) < settings.inline_bytes_max:
            segment.data = self._encode(segment)
        elif put_sync is None:
            segment.data = await self._loop.run_in_executor(self._executor, self._encode, segment)
        if segment.data is not None:
            self._encoded()
        backoff = Backoff(rng=self._rng)
        taken = False
        began_ns = self._clock.outside_ns()
        while True:
            try:
                if taken:
                    # The key is taken; the writer of the object there is not known yet.
                    header = await holder_of(store, key)
                    if header.nonce != self._nonce or header.kind != ObjectKind.SEGMENT:
                        raise describe(header, key) if header.kind != ObjectKind.SEAL else await self._fenced(
                            segment.position, key)
                elif put_sync is not None and self._executor is None:
                    self._encode_and_put(segment, put_sync, key)
                elif put_sync is not None:
                    await self._loop.run_in_executor(self._executor, self._encode_and_put, segment, put_sync, key)
                else:
                    assert segment.data is not None
                    async with asyncio.timeout(None if timeout is None else timeout / 1e9):
                        await store.put(key, segment.data)
                break
            except PreconditionFailed:
                taken = True
                continue
            except (Transient, TimeoutError) as error:
                failed: StoreError = Transient(f"{store.url}: {key}: no answer in time")
                if isinstance(error, StoreError):
                    failed = error
                taken = False
            except StoreRefused as refused:
                failed = refused
            # Once for each kind: a store that could not be reached, and is back, may refuse what only an operator can mend.
            if type(failed) not in self._told:
                self._told.add(type(failed))
                _log.warning("segment %s is not in the store yet: %s", segment.position, failed)
            self.error = failed
            await asyncio.sleep(backoff.next())
        if self.error is not None:
            _log.warning("segment %s is in the store", segment.position)
            self.error = None
            self._told.clear()
        self.count += 1
        assert segment.data is not None
        self.bytes += sum(map(len, segment.data))
        return began_ns

    def _encode(self, segment: Segment) -> list[bytes]:
        number = segment.position.number
        if self.broken:
            segment.sealed = [block for block in segment.sealed if number < self.broken.get(block.stream_id, number + 1)]
        data = encode_segment(segment.position, self._nonce, segment.sealed, self._settings.codec,
                              failures=segment.failures, landed=segment.stored_before)
        if segment.failures:
            for block, error in segment.failures:
                if not block.stream_id:
                    raise error  # the shard's own: nothing can go on without it
                self.leave_out(block.stream_id, number)
            segment.sealed = [block for block in segment.sealed if block.stream_id not in self.broken]
        for block in segment.sealed:
            block.pack_ids()
        segment.encoded = True
        if segment.on_encoded is not None:
            segment.on_encoded()
        small = [block for block in segment.sealed if block.opened is not None]
        opened = [block.opened for block in small if block.opened is not None]
        if 2 * sum(block.raw_bytes for block in opened) > segment.raw_bytes:
            segment.whole = b"".join(data)
            data = [segment.whole]
            for block in small:
                block.kept = True
        return data

    def _blocking_put(self, position: Position) -> Callable[[str, Any], None] | None:
        """The store's put of this segment for threads that may wait; None: there is none, or no threads."""
        put_unsynced = self._store.put_unsynced
        if put_unsynced is None:
            return self._store.put_sync if self._executor is not None else None
        # Number n is not begun before n - W landed.
        first = Position(position.epoch, max(1, position.number - self._settings.puts_in_flight + 1))
        first_key = self._key_of(first)
        return lambda key, data: put_unsynced(key, data, first_key)

    def _encode_and_put(self, segment: Segment, put_sync: Callable[[str, Any], None], key: str) -> None:
        """In a thread: one hop for both."""
        if segment.data is None:
            segment.data = self._encode(segment)
        put_sync(key, segment.data)

    async def _fenced(self, position: Position, key: str) -> Fenced:
        """The error to stop with at a seal in our slot."""
        by = ""
        try:
            by = Seal.decode(await self._store.get(key), position).sealer
        except (StoreError, FormatError) as error:  # the name is for the message alone; that we are fenced is certain
            _log.info("the seal at %s does not name its sealer: %s", key, error)
        return Fenced(f"{by or 'another broker'} has taken the shard: {key} is a seal", by)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
