"""Brings a closed segment into the store: seals its blocks on the loop, encodes it and puts it until it is stored.

Owns the attempts of one put and the meaning of their results: lost, refused, stored by an earlier attempt, taken by
another writer. Does not own when a put begins, nor what follows once the segment is stored (``log``).
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
from broker.storage.log.waiters import Waiter, resolve
from broker.storage.log.writer import Failure, SealedBlock, encode_segment, is_small, seal_block
from broker.storage.objectstore.base import ObjectStore, PreconditionFailed, StoreError, StoreRefused, Transient
from broker.storage.put import Fenced, holder_of, key_taken_error
from broker.storage.state.applied import ShardState

__all__ = ["Putter", "Segment"]

_log = logging.getLogger(__name__)

_BLOCK_BYTES = 4096
"""Encoding a block costs as much as encoding this many bytes of messages."""


class Segment:
    """A closed segment: its contents are fixed, and so are its bytes once ``data`` is set."""

    __slots__ = ("before", "began_ns", "blocks", "complete", "data", "encoded", "failures", "journaled", "on_encoded",
                 "partly_safe", "position", "proved_ns", "raw_bytes", "sealed", "stored", "stored_before", "urgent_ns",
                 "waiters", "whole")

    def __init__(self, position: Position, blocks: list[OpenBlock[Any]], waiters: list[Waiter], raw_bytes: int) -> None:
        self.position = position
        self.blocks = blocks
        self.waiters = waiters
        self.raw_bytes = raw_bytes
        self.sealed: list[SealedBlock[Any]] = []
        self.data: list[bytes] | None = None
        self.whole: bytes | None = None
        """The bytes of ``data`` in one piece, if it is to be kept in memory."""
        self.encoded = False
        self.on_encoded: Callable[[], object] | None = None
        """Called in the thread that has encoded the segment."""
        self.failures: list[Failure] = []
        """Blocks that could not be encoded and were left out, each with its error."""
        self.before: Segment | None = None
        """The previous segment, as long as it may not be encoded yet."""
        self.journaled = False
        """True if some of it is in the journal."""
        self.complete = False
        """True if all of it is in the journal."""
        self.partly_safe = False
        """True if some of it is safe in the journal, and not all."""
        self.stored = False
        self.stored_before: int | None = None
        """Set once the put has begun: the number up to which all segments were stored by then."""
        self.urgent_ns = 0
        """The instant, by the monotonic clock, when something began to wait for this segment; 0: nothing waits."""
        self.began_ns = 0
        self.proved_ns = 0
        """Set once it is stored: when, by the outside clock, its put began. The shard was ours at that time."""

    @property
    def head_bytes(self) -> int:
        """About how many bytes of it a recovery reads."""
        cores = [b.core for b in self.sealed if b.opened is None]
        return HEAD_BYTES_MIN + 250 * len(self.sealed) + sum(32 * len(core.removed) + sum(r.size for r in core.records)
                                                  for core in cores)

    def apply_to(self, state: ShardState) -> None:
        """Apply the segment, which is persisted, to a shard's state, with the same result as a replay of its bytes."""
        state.apply_segment(self.position)
        for block in self.sealed:
            if block.opened is not None and block.packed is not None:
                state.apply_small(block.packed, block.opened.outcome)
            else:
                state.apply_block(block.core, block.ref, block.head, block.ids)
                block.ids = None


class Putter:
    """Puts the segments of one epoch.

    A block that cannot be sealed or encoded is left out of its segment. All later blocks of its stream are left out
    too, because they depend on it. Segments are encoded in log order, so that none of them contains such a later block.

    Attributes: ``error`` is why the oldest put is not stored yet, None while the store works; ``count`` and ``bytes``
        of the segments stored; ``broken``: the stream_id of each broken stream, and the first segment without its
        blocks.
    """

    def __init__(self, store: ObjectStore, key_of: Callable[[Position], str], nonce: bytes, clock: Clock,
                 rng: random.Random, settings: LogSettings, executor: Executor | None,
                 encoded: Callable[[], object], failed: Callable[[Any, int, Exception], object]) -> None:
        """Args: executor encodes large segments; None: the loop encodes all of them. ``encoded`` is called if a
        segment's bytes are complete before its put begins. ``failed(owner, number, error)`` is called if a block of
        segment ``number`` cannot be sealed; it raises if the log cannot continue without that block.
        """
        self.broken: dict[int, int] = {}
        self.error: StoreError | None = None
        self.count = 0
        self.bytes = 0
        self._logged: set[type[StoreError]] = set()
        """The types of errors that were logged since the store last worked."""
        self._breaking = threading.Lock()  # both the loop and the encoding threads find broken streams
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
        """Store nothing of the stream from segment ``number`` on, or from an earlier broken one; returns which."""
        with self._breaking:
            self.broken[stream_id] = number = min(number, self.broken.get(stream_id, number))
        return number

    async def seal(self, segment: Segment) -> None:
        """Seal the blocks on the loop, a few thousand messages a turn; returns once the segment may be encoded."""
        run = 0
        for block in segment.blocks:
            try:
                if is_small(block):
                    segment.sealed.append(SealedBlock.of_small(block, segment.position))
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
            before.on_encoded = lambda: self._loop.call_soon_threadsafe(resolve, waiting)
            if not before.encoded:  # a thread may have encoded it in between
                await waiting

    async def put(self, segment: Segment) -> int:
        """Encode the segment and put it until it is stored.

        Returns: when, by the outside clock, the first attempt began. The put proves our ownership for that time only.
            An earlier attempt may have stored the segment unnoticed; then another owner may have taken the shard and
            deleted the segment, so that a later attempt succeeds, too.
        Raises: Fenced if a seal has its key; Corrupt if any other object of another writer has it.
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
                        raise key_taken_error(header, key) if header.kind != ObjectKind.SEAL else await self._fenced(
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
            # Log each type of error once: after an outage, the store may refuse the put for a reason that only an
            # operator can remove.
            if type(failed) not in self._logged:
                self._logged.add(type(failed))
                _log.warning("segment %s is not in the store yet: %s", segment.position, failed)
            self.error = failed
            await asyncio.sleep(backoff.next())
        if self.error is not None:
            _log.warning("segment %s is in the store", segment.position)
            self.error = None
            self._logged.clear()
        self.count += 1
        assert segment.data is not None
        self.bytes += sum(map(len, segment.data))
        return began_ns

    def _encode(self, segment: Segment) -> list[bytes]:
        number = segment.position.number
        if self.broken:
            segment.sealed = [block for block in segment.sealed
                              if number < self.broken.get(block.stream_id, number + 1)]
        data = encode_segment(segment.position, self._nonce, segment.sealed, self._settings.codec,
                              failures=segment.failures, landed=segment.stored_before)
        if segment.failures:
            for block, error in segment.failures:
                if not block.stream_id:
                    raise error  # the log cannot continue without the shard's own block
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
        """Return a blocking function that puts this segment; None: use the store's asynchronous ``put``."""
        put_unsynced = self._store.put_unsynced
        if put_unsynced is None:
            return self._store.put_sync if self._executor is not None else None
        # Put n does not begin before put n - puts_in_flight is stored.
        first = Position(position.epoch, max(1, position.number - self._settings.puts_in_flight + 1))
        first_key = self._key_of(first)
        return lambda key, data: put_unsynced(key, data, first_key)

    def _encode_and_put(self, segment: Segment, put_sync: Callable[[str, Any], None], key: str) -> None:
        """Encode the segment if it is not encoded yet, and put it: one call of a thread does both."""
        if segment.data is None:
            segment.data = self._encode(segment)
        put_sync(key, segment.data)

    async def _fenced(self, position: Position, key: str) -> Fenced:
        """Return the error to stop with after a seal was found under our key."""
        sealer = ""
        try:
            sealer = Seal.decode(await self._store.get(key), position).sealer
        except (StoreError, FormatError) as error:  # Only the message needs the name: we are fenced in any case.
            _log.info("the seal at %s does not name its sealer: %s", key, error)
        return Fenced(f"{sealer or 'another broker'} has taken the shard: {key} is a seal", sealer)
